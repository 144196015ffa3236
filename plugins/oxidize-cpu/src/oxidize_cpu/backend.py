"""The hooks of the CPU backend, in the order of the contract. Every hook finishes its work before it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oxidize_cpu import _missing, cpu_build_info
from oxidize_cpu.compiler import SourceKernel, compile_source
from oxidize_cpu.cpuinfo import cpu_name
from oxidize_cpu.memory import Memory
from oxidize_host import BackendUnavailable, BuildInfo, DeviceInfo, MemoryInfo, Unavailable, hookimpl, host_memory_info

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oxidize_cpu.kernels import NativeKernel

__all__ = ["CpuBackend"]

Dim3 = tuple[int, int, int]


class CpuBackend:
    """The processor, through kernels compiled by numba and cached as object code."""

    api_version = 1

    @hookimpl
    def build_info(self) -> BuildInfo:
        """Return what was found."""
        return cpu_build_info()

    @hookimpl
    def devices(self) -> Sequence[DeviceInfo]:
        """Return the one device, or say which package is missing."""
        if missing := _missing(cpu_build_info()):
            names = " and ".join(missing)
            raise BackendUnavailable(
                Unavailable("NotInstalled", f"the cpu backend needs {names}", 'pip install "oxidize-host[cpu]"')
            )
        return [DeviceInfo(cpu_name(), kind="cpu", memory=host_memory_info(), dialect="python")]

    @hookimpl
    def open(self) -> str:
        """Return a state that nothing needs: the processor is always open."""
        return "cpu"

    @hookimpl
    def alloc(self, nbytes: int) -> Memory:
        """Return aligned memory; what exceeds the memory available is refused here, since Linux would only kill us later."""
        free = host_memory_info().free
        if free is not None and nbytes > free:
            raise MemoryError(f"{nbytes} bytes asked, {free} available")
        return Memory.allocate(nbytes)

    @hookimpl
    def copy(self, dst: Memory | memoryview, dst_offset: int, src: Memory | memoryview, src_offset: int, nbytes: int) -> None:
        """Copy, as if through a temporary where the ranges overlap."""
        target = dst.array if isinstance(dst, Memory) else np.frombuffer(dst, np.uint8)
        source = src.array if isinstance(src, Memory) else np.frombuffer(src, np.uint8)
        target[dst_offset : dst_offset + nbytes] = source[src_offset : src_offset + nbytes]

    @hookimpl
    def compile(self, source: str | bytes) -> Mapping[str, SourceKernel]:
        """Compile Python source: each public function is a kernel, called once per launch as ``kernel(grid, block, *args)``."""
        return compile_source(source)

    @hookimpl
    def launch(
        self, device: str, kernel: NativeKernel | SourceKernel, grid: Dim3, block: Dim3, args: Sequence[Any], stream: None
    ) -> None:
        """Run it."""
        if isinstance(kernel, SourceKernel):
            kernel(grid, block, [arg.array if type(arg) is Memory else arg for arg in args])
        else:
            kernel([arg.address if type(arg) is Memory else arg for arg in args])

    @hookimpl
    def bind(self, kernel: NativeKernel | SourceKernel, grid: Dim3, block: Dim3, args: Sequence[Any]) -> Callable[[Any], None]:
        """Convert the arguments once."""
        if isinstance(kernel, SourceKernel):
            values = [arg.array if isinstance(arg, Memory) else arg for arg in args]
            return lambda _stream: kernel(grid, block, values)
        bound = kernel.bind([arg.address if isinstance(arg, Memory) else arg for arg in args])
        return lambda _stream: bound()

    @hookimpl
    def argument(self, handle: Memory, offset: int, nbytes: int) -> Memory:
        """Return the slice."""
        return Memory(handle.array[offset : offset + nbytes])

    @hookimpl
    def host_view(self, handle: Memory) -> memoryview:
        """Return the memory itself."""
        return handle.array.data

    @hookimpl
    def import_host(self, view: memoryview) -> Memory:
        """Use host memory in place."""
        return Memory(np.frombuffer(view, np.uint8))

    @hookimpl
    def memory_info(self) -> MemoryInfo:
        """Return the host's memory."""
        return host_memory_info()

    @hookimpl
    def find_kernel(self, name: str, params: Mapping[str, str]) -> NativeKernel | None:
        """Return the compiled kernel of a standard operation."""
        from oxidize_cpu import kernels

        return kernels.find(name, params)
