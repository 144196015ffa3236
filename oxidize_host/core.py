"""The open device behind the objects a user holds: calls into the backend, accounting, clean-up."""

from __future__ import annotations

import functools
import gc
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from oxidize_host.errors import ClosedError, LaunchError, OutOfMemory, OxidizeError, ShapeError
from oxidize_host.info import DeviceInfo, MemoryInfo
from oxidize_host.memory import Allocation
from oxidize_host.stream import Stream

if TYPE_CHECKING:
    from oxidize_host.backend import Backend
    from oxidize_host.device import Device

__all__ = ["Core"]


class Core:
    """One open device of one backend. Every `Device` that names it shares it.

    Attributes
    ----------
    id : str
        ``"cpu:0"``.
    asynchronous : bool
        Whether work may be unfinished when a hook returns, so that what it uses must be kept alive.
    live : dict[int, int]
        Bytes of each allocation not yet freed.
    kernels : dict
        Standard kernels found or compiled so far.
    """

    def __init__(self, backend: Backend, index: int, info: DeviceInfo) -> None:
        self.backend, self.index, self.info = backend, index, info
        self.id = f"{backend.name}:{index}"
        self.asynchronous = backend.sync is not None
        self.debug = os.environ.get("OXIDIZE_DEBUG", "") not in ("", "0")
        self.closed = False
        self.live: dict[int, int] = {}
        self.kernels: dict[Any, Any] = {}
        self.deferred: deque[BaseException] = deque()
        self.streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self.allocations: weakref.WeakSet[Allocation] = weakref.WeakSet()
        self.lock = threading.RLock()
        self.state: Any = self.call("open", index)
        self.finalizer = weakref.finalize(self, _close_hook, backend, self.state)

    def device(self) -> Device:
        """Return a `Device` for this core."""
        from oxidize_host.device import Device

        return Device._of(self)

    @functools.cached_property
    def default_stream(self) -> Stream:
        """The stream of calls that name none."""
        return Stream(self)

    def call(self, hook: str, *args: Any) -> Any:
        """Call a hook; whatever is not an `OxidizeError` becomes a chained `LaunchError` that names the hook."""
        try:
            return getattr(self.backend, hook)(*args)
        except OxidizeError:
            raise
        except (Exception, SystemExit) as error:  # a careless driver must not end the program
            raise self.hook_error(hook, error) from error

    def hook_error(self, hook: str, error: BaseException) -> LaunchError:
        """Return the error for a hook that raised what no rule allows."""
        return LaunchError(f"{self.id}: the backend's {hook} failed: {type(error).__name__}: {error}")

    def check_open(self) -> None:
        """Raise `ClosedError` after `close`."""
        if self.closed:
            raise ClosedError(f"the device {self.id} was closed; open it again with Device({self.backend.name!r})")

    def alloc(self, nbytes: int) -> Allocation:
        """Return at least ``nbytes`` bytes; on a full device unreachable buffers are collected and it is tried again."""
        self.check_open()
        asked = max(nbytes, 1)
        try:
            try:
                handle = self.backend.alloc(self.state, asked)
            except MemoryError:
                gc.collect()
                handle = self.backend.alloc(self.state, asked)
        except MemoryError as error:
            raise self._out_of_memory(nbytes, error) from error
        except OxidizeError:
            raise
        except (Exception, SystemExit) as error:
            raise self.hook_error("alloc", error) from error
        return self.adopt(handle, asked)

    def adopt(self, handle: Any, nbytes: int, keep: object = None) -> Allocation:
        """Return an allocation for a handle that the backend made; ``keep`` stays alive as long."""
        if handle is None:
            raise LaunchError(f"{self.id}: the backend's alloc of {nbytes} bytes returned None instead of a handle")
        allocation = Allocation(self, handle, nbytes, keep)
        self.allocations.add(allocation)
        return allocation

    def release(self, key: int, handle: Any) -> None:
        """Free a handle; called by finalizers, so a failure is kept for the next wait."""
        self.live.pop(key, None)
        if self.closed or self.backend.free is None:
            return
        try:
            self.backend.free(self.state, handle)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a finalizer has nobody to raise to
            self.defer("free", error)

    def defer(self, hook: str, error: BaseException) -> None:
        """Keep an error that nobody could catch where it happened, for the next wait."""
        if not isinstance(error, OxidizeError):
            cause, error = error, self.hook_error(hook, error)
            error.__cause__ = cause
        self.deferred.append(error)

    def raise_deferred(self) -> None:
        """Raise the first error that happened where nobody could catch it."""
        if self.deferred:
            error = self.deferred.popleft()
            self.deferred.clear()
            raise error

    def copy(
        self,
        dst: Allocation | memoryview,
        dst_offset: int,
        src: Allocation | memoryview,
        src_offset: int,
        nbytes: int,
        stream: Stream | None,
        keep: object,
    ) -> None:
        """Queue a copy that the caller has checked; without a stream, wait for it."""
        self.check_open()
        if nbytes == 0:
            return
        queue = stream if stream is not None else self.default_stream
        if not isinstance(queue, Stream):
            raise TypeError(f"stream must be a Stream, not {type(queue).__name__}")
        queue._check_open()
        if queue._core is not self:
            raise ShapeError(f"the stream is on {queue._core.id}, the buffer on {self.id}")
        target = dst.handle if isinstance(dst, Allocation) else dst
        source = src.handle if isinstance(src, Allocation) else src
        self.call("copy", self.state, target, dst_offset, source, src_offset, nbytes, queue._handle)
        queue._keep((dst, src, keep), src if isinstance(src, memoryview) else None)
        if stream is None:
            queue.synchronize()

    def memory_info(self) -> MemoryInfo:
        """Return the backend's figures, or all unknown."""
        if self.backend.memory_info is None:
            return self.info.memory
        info = self.call("memory_info", self.state)
        return info if isinstance(info, MemoryInfo) else MemoryInfo()

    def _out_of_memory(self, asked: int, error: MemoryError) -> OutOfMemory:
        try:
            memory = self.memory_info()
        except OxidizeError:
            memory = MemoryInfo()
        own, largest = sum(self.live.values()), max(self.live.values(), default=0)

        def mib(value: int | None) -> str:
            return "unknown" if value is None else f"{value / 2**20:,.1f} MiB"

        return OutOfMemory(
            f"{self.id} ({self.info.name}) is out of memory: asked {mib(asked)}, free {mib(memory.free)} of {mib(memory.total)}; "
            f"this process holds {mib(own)} there, the largest piece {mib(largest)}; close buffers, or use a smaller model or "
            f"context ({error})",
            device=self.id,
            asked=asked,
            free=memory.free,
            total=memory.total,
            own=own,
            largest=largest,
        )

    def close(self) -> None:
        """Wait for all streams, free all memory, release the device. May be repeated."""
        with self.lock:
            if self.closed:
                return
            for stream in list(self.streams):
                stream.close()
            for allocation in list(self.allocations):
                allocation.release()
            self.kernels.clear()
            self.closed = True
            try:
                self.finalizer()
            except OxidizeError:
                raise
            except (Exception, SystemExit) as error:
                raise self.hook_error("close", error) from error
            self.raise_deferred()


def _close_hook(backend: Backend, state: Any) -> None:
    if backend.close is not None:
        backend.close(state)
