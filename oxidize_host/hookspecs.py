"""THE contract between the host and a backend.

A backend is one class (or module) named by an entry point::

    [project.entry-points."oxidize.backends"]
    mydev = "oxidize_mydev.backend:MyBackend"

    [project.entry-points."oxidize.api"]        # optional: lets the host refuse before it imports you
    mydev = "v1"

whose methods carry ``@oxidize_host.hookimpl``. A method may take fewer arguments than its specification
here, never others and never in another order; so the contract can grow without breaking a backend.

``device`` is whatever `open` returned, ``stream`` whatever `create_stream` returned (None in a backend that
has none), ``handle`` whatever `alloc` returned: all opaque to the host. Sizes, offsets and bounds are checked
by the host once, for all backends, before a hook is called; ``grid`` and ``block`` are 3-tuples of ints by then.
Zero-byte copies and empty launches never arrive. Memory and host arrays stay alive until the work that uses
them has been waited for, so a backend need not hold them.

A hook raises `OxidizeError` subclasses where one fits, chained to the vendor's error; the host wraps all else.
"""

# A specification has no body, only a signature and its docstring.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

from oxidize_host.version import API_VERSION, OLDEST_API_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oxidize_host.info import BuildInfo, DeviceInfo, MemoryInfo

__all__ = ["API_VERSION", "OLDEST_API_VERSION", "BackendSpec", "hookimpl"]

hookspec = pluggy.HookspecMarker("oxidize")
hookimpl = pluggy.HookimplMarker("oxidize")


class BackendSpec:
    """The hooks of a backend: seven required, the others optional."""

    # -- required -------------------------------------------------------------------------------------

    @hookspec(firstresult=True)
    def build_info(self) -> BuildInfo:
        """Return what was found at import time. Cheap: no driver call."""

    @hookspec(firstresult=True)
    def devices(self) -> Sequence[DeviceInfo]:
        """Return one record per device, in index order; raise `BackendUnavailable` if there can be none."""

    @hookspec(firstresult=True)
    def open(self, index: int) -> Any:
        """Return your own state for device ``index`` (an index into `devices`)."""

    @hookspec(firstresult=True)
    def alloc(self, device: Any, nbytes: int) -> Any:
        """Return a handle to ``nbytes`` >= 1 bytes, or raise `OutOfMemory` or ``MemoryError``; contents are undefined."""

    @hookspec(firstresult=True)
    def copy(self, device: Any, dst: Any, dst_offset: int, src: Any, src_offset: int, nbytes: int, stream: Any) -> None:
        """Copy bytes. A host side is a contiguous memoryview of bytes, a device side a handle; both may be handles."""

    @hookspec(firstresult=True)
    def compile(self, device: Any, source: str | bytes, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the kernels of ``source`` by name (values are opaque), or raise `CompileError` with the log."""

    @hookspec(firstresult=True)
    def launch(
        self,
        device: Any,
        kernel: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[Any],
        stream: Any,
    ) -> None:
        """Queue ``kernel`` over ``grid`` groups of ``block`` items.

        ``args`` holds, in order, a NumPy scalar for each scalar and for each buffer what `argument` returned
        (the plain handle if `argument` is not implemented). A kernel that came from `find_kernel` is launched
        over the extent that `oxidize_host.ops` documents for it, with ``block == (1, 1, 1)``.
        """

    # -- optional: memory -----------------------------------------------------------------------------

    @hookspec(firstresult=True)
    def free(self, device: Any, handle: Any) -> None:
        """Release a handle; nothing uses it any more. Default: the handle is dropped and Python collects it."""

    @hookspec(firstresult=True)
    def argument(self, device: Any, handle: Any, offset: int, nbytes: int) -> Any:
        """Return what `launch` gets for the ``nbytes`` at ``offset`` of ``handle``.

        Default: the handle itself for a whole buffer; slices can then be copied but not launched on.
        """

    @hookspec(firstresult=True)
    def host_view(self, device: Any, handle: Any) -> memoryview:
        """Return the memory behind ``handle`` as a memoryview of bytes. Default: the memory is not host-visible."""

    @hookspec(firstresult=True)
    def import_host(self, device: Any, view: memoryview) -> Any:
        """Return a handle to existing host memory, without a copy. Default: `Device.wrap` is unsupported."""

    @hookspec(firstresult=True)
    def alloc_pinned(self, device: Any, nbytes: int) -> memoryview:
        """Return writable page-locked host memory, freed when the view is. Default: pageable memory."""

    @hookspec(firstresult=True)
    def memory_info(self, device: Any) -> MemoryInfo:
        """Return the bytes free now. Default: unknown."""

    # -- optional: kernels ----------------------------------------------------------------------------

    @hookspec(firstresult=True)
    def find_kernel(self, device: Any, name: str, params: Mapping[str, str]) -> Any:
        """Return your native kernel for a standard operation of `oxidize_host.ops`, or None. Default: None."""

    @hookspec(firstresult=True)
    def bind(
        self, device: Any, kernel: Any, grid: tuple[int, int, int], block: tuple[int, int, int], args: Sequence[Any]
    ) -> Callable[[Any], None]:
        """Return a function of ``stream`` that repeats this launch. Default: one that calls `launch`.

        Called once for launches that repeat thousands of times: convert arguments, allocate descriptors here.
        """

    # -- optional: streams and events. Without `sync`, every hook must finish its work before it returns ---

    @hookspec(firstresult=True)
    def create_stream(self, device: Any) -> Any:
        """Return a new in-order queue. Default: None is passed as ``stream``."""

    @hookspec(firstresult=True)
    def destroy_stream(self, device: Any, stream: Any) -> None:
        """Release a queue; the host has waited for it. Default: it is dropped."""

    @hookspec(firstresult=True)
    def sync(self, device: Any, stream: Any) -> None:
        """Block until all work queued on ``stream`` is done; raise what went wrong in it."""

    @hookspec(firstresult=True)
    def record(self, device: Any, stream: Any) -> Any:
        """Return an event that is reached when the work queued so far on ``stream`` is done.

        `record`, `wait`, `sync_event` and `query` come together or not at all. Default: the host waits for the stream.
        """

    @hookspec(firstresult=True)
    def wait(self, device: Any, stream: Any, event: Any) -> None:
        """Make later work on ``stream`` wait for ``event``, without blocking the host."""

    @hookspec(firstresult=True)
    def sync_event(self, device: Any, event: Any) -> None:
        """Block until ``event`` is reached."""

    @hookspec(firstresult=True)
    def query(self, device: Any, event: Any) -> bool:
        """Return whether ``event`` has been reached."""

    @hookspec(firstresult=True)
    def elapsed(self, device: Any, start: Any, end: Any) -> float:
        """Return the seconds between two reached events. Default: host clock, taken when the stream was waited for."""

    @hookspec(firstresult=True)
    def close(self, device: Any) -> None:
        """Release the device; the host has freed and waited for all. Default: it is dropped."""
