"""The hooks of the built-in backend ``numpy``, registered through the same entry point as third parties."""

from __future__ import annotations

import traceback
import types
from typing import TYPE_CHECKING, Any

import numpy as np

from oxidize_host.errors import CompileError
from oxidize_host.hookspecs import hookimpl
from oxidize_host.hostmem import host_memory_info
from oxidize_host.info import BuildInfo, DeviceInfo, MemoryInfo
from oxidize_host.reference.kernels import find

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["NumpyBackend"]

Dim3 = tuple[int, int, int]


class NumpyBackend:
    """Host memory and numpy; every hook finishes its work before it returns.

    A handle is a uint8 array. ``compile`` takes Python source: each function in it whose name does not start with an
    underscore is a kernel, called once per launch as ``kernel(grid, block, *args)``, with buffers as uint8 arrays
    (``x.view(np.float32)``), scalars as NumPy scalars, and ``np`` in its namespace.
    """

    api_version = 1

    @hookimpl
    def build_info(self) -> BuildInfo:
        """Return the version of numpy."""
        from oxidize_host import __version__

        return BuildInfo("numpy", __version__, driver=f"numpy {np.__version__}")

    @hookimpl
    def devices(self) -> Sequence[DeviceInfo]:
        """Return the one device."""
        return [DeviceInfo(f"NumPy {np.__version__} (reference)", kind="cpu", memory=host_memory_info(), dialect="python")]

    @hookimpl
    def open(self) -> str:
        """Return a state that nothing needs."""
        return "numpy"

    @hookimpl
    def alloc(self, nbytes: int) -> NDArray[np.uint8]:
        """Return an array; what exceeds the memory available is refused here, since Linux would only kill us later."""
        free = host_memory_info().free
        if free is not None and nbytes > free:
            raise MemoryError(f"{nbytes} bytes asked, {free} available")
        return np.empty(nbytes, np.uint8)

    @hookimpl
    def copy(self, dst: Any, dst_offset: int, src: Any, src_offset: int, nbytes: int) -> None:
        """Copy, as if through a temporary where the ranges overlap."""
        target, source = np.frombuffer(dst, np.uint8), np.frombuffer(src, np.uint8)
        target[dst_offset : dst_offset + nbytes] = source[src_offset : src_offset + nbytes]

    @hookimpl
    def argument(self, handle: NDArray[np.uint8], offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return the slice."""
        return handle[offset : offset + nbytes]

    @hookimpl
    def host_view(self, handle: NDArray[np.uint8]) -> memoryview:
        """Return the array's memory."""
        return handle.data

    @hookimpl
    def import_host(self, view: memoryview) -> NDArray[np.uint8]:
        """Return an array over the same memory."""
        return np.frombuffer(view, np.uint8)

    @hookimpl
    def memory_info(self) -> MemoryInfo:
        """Return the host's memory."""
        return host_memory_info()

    @hookimpl
    def compile(self, source: str | bytes) -> Mapping[str, Callable[..., None]]:
        """Execute the source and return its public functions."""
        namespace: dict[str, Any] = {"np": np}
        try:
            text = source.decode() if isinstance(source, bytes) else source
            exec(compile(text, "<oxidize kernel>", "exec"), namespace)  # noqa: S102 - running the caller's code is the purpose
        except Exception as error:
            raise CompileError(f"not a Python kernel: {error}", log=traceback.format_exc(limit=-2)) from error
        return {k: v for k, v in namespace.items() if isinstance(v, types.FunctionType) and not k.startswith("_")}

    @hookimpl
    def find_kernel(self, name: str, params: Mapping[str, str]) -> Callable[..., None] | None:
        """Return the reference implementation of a standard operation."""
        return find(name, params)

    @hookimpl
    def launch(
        self, device: str, kernel: Callable[..., None], grid: Dim3, block: Dim3, args: Sequence[Any], stream: None
    ) -> None:
        """Call the function. All arguments are taken, used or not, so that the host binds it without an adapter."""
        kernel(grid, block, *args)
