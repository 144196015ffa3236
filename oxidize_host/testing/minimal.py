"""The least that a backend can be: the seven required hooks, over bytearrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oxidize_host.hookspecs import hookimpl
from oxidize_host.info import BuildInfo, DeviceInfo
from oxidize_host.reference.backend import NumpyBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["MinimalBackend"]


class MinimalBackend:
    """Conforms without any optional hook; a test derives from it to break one rule.

    Kernels are Python functions that get bytearrays, which `numpy.frombuffer` reads and writes.
    """

    api_version = 1

    def __init__(self) -> None:
        self._inner = NumpyBackend()

    @hookimpl
    def build_info(self) -> BuildInfo:
        """Return a record."""
        return BuildInfo("minimal", "1.0", driver="bytearray")

    @hookimpl
    def devices(self) -> Sequence[DeviceInfo]:
        """Return one device."""
        return [DeviceInfo("Minimal", kind="other", dialect="python")]

    @hookimpl
    def open(self, index: int) -> int:
        """Return a state."""
        return index

    @hookimpl
    def alloc(self, nbytes: int) -> bytearray:
        """Return memory."""
        return bytearray(nbytes)

    @hookimpl
    def copy(self, dst: Any, dst_offset: int, src: Any, src_offset: int, nbytes: int) -> None:
        """Copy, as if through a temporary."""
        memoryview(dst)[dst_offset : dst_offset + nbytes] = bytes(memoryview(src)[src_offset : src_offset + nbytes])

    @hookimpl
    def compile(self, source: str | bytes) -> Mapping[str, Callable[..., None]]:
        """Compile Python."""
        return self._inner.compile(source)

    @hookimpl
    def launch(self, kernel: Callable[..., None], grid: Any, block: Any, args: Sequence[Any]) -> None:
        """Call the function."""
        kernel(grid, block, *args)
