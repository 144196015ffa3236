"""Stream: an in-order queue of copies and launches. Event: a point in it."""

from __future__ import annotations

import time
import weakref
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from oxidize_host.errors import ClosedError, LaunchError, ShapeError

if TYPE_CHECKING:
    from oxidize_host.core import Core
    from oxidize_host.device import Device

__all__ = ["Event", "Stream"]

_RETIRE_AFTER = 512


class Pending:
    """What queued work uses: kept here, in order, until that work is done."""

    def __init__(self) -> None:
        self.now: list[object] = []
        self.batches: deque[tuple[Any, list[object]]] = deque()
        self.sources: list[tuple[memoryview, int]] = []

    def clear(self) -> None:
        self.batches.clear()
        self.now = []


class Stream:
    """An in-order queue of copies and launches on one device; made by `Device.create_stream`.

    Leaving a ``with`` block waits for the work queued in it.
    """

    def __init__(self, core: Core) -> None:
        create = core.backend.create_stream
        self._core = core
        self._handle: Any = None if create is None else core.call("create_stream", core.state)
        self._pending: Pending | None = Pending() if core.asynchronous else None
        self._alive = True  # read on every launch, where finalize.alive would cost more than the rest
        self._close = weakref.finalize(self, _retire, core, self._handle, self._pending)
        core.streams.add(self)

    def __repr__(self) -> str:
        """Return the device and whether the stream is closed."""
        return f"<Stream on {self._core.id}{'' if self._alive else ', closed'}>"

    @property
    def device(self) -> Device:
        """The device whose work it queues."""
        return self._core.device()

    @property
    def handle(self) -> Any:
        """The backend's own stream, None where it has none."""
        return self._handle

    def synchronize(self) -> None:
        """Block until everything queued so far is done; raises what went wrong in it."""
        self._check_open()
        core, pending = self._core, self._pending
        if pending is not None:
            try:
                core.call("sync", core.state, self._handle)
            finally:
                pending.clear()
            _check_sources(core, pending)
        core.raise_deferred()

    def record(self) -> Event:
        """Return an event that is reached when all work queued so far is done."""
        return Event(self)

    def wait(self, event: Event) -> None:
        """Make later work on this stream wait for ``event``, without blocking the caller where the backend can.

        Raises
        ------
        ShapeError
            The event belongs to another device.
        """
        self._check_open()
        if event._core is not self._core:
            raise ShapeError(f"the event is on {event._core.id}, the stream on {self._core.id}")
        if event._native:
            self._core.call("wait", self._core.state, self._handle, event._handle)
        else:
            event.synchronize()

    def close(self) -> None:
        """Wait for the queued work and release the queue. May be repeated."""
        self._alive = False
        self._close()

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the queued work."""
        self.synchronize()

    def _check_open(self) -> None:
        if not self._alive:
            raise ClosedError(f"the stream on {self._core.id} was closed; create a new one")
        self._core.check_open()

    def _keep(self, objects: object, source: memoryview | None = None) -> None:
        """Hold ``objects`` until the work that uses them, just queued, is done."""
        pending = self._pending
        if pending is None:
            return
        pending.now.append(objects)
        if source is not None and self._core.debug:
            pending.sources.append((source, zlib.crc32(source)))
        if len(pending.now) >= _RETIRE_AFTER and self._core.backend.record is not None:
            core, batch = self._core, pending.now
            pending.now = []
            pending.batches.append((core.call("record", core.state, self._handle), batch))
            while pending.batches and core.call("query", core.state, pending.batches[0][0]):
                pending.batches.popleft()


class Event:
    """A point in a stream's work; made by `Stream.record`."""

    def __init__(self, stream: Stream) -> None:
        stream._check_open()
        core = stream._core
        self._core, self._native = core, core.backend.record is not None
        self._handle: Any = None
        if self._native:
            self._handle = core.call("record", core.state, stream._handle)
        else:  # nothing to mark the point with, so the host waits for it here
            stream.synchronize()
        self._host_time = time.perf_counter()

    def synchronize(self) -> None:
        """Block until the event is reached."""
        if self._native:
            self._core.call("sync_event", self._core.state, self._handle)

    @property
    def done(self) -> bool:
        """Whether the event has been reached."""
        return not self._native or bool(self._core.call("query", self._core.state, self._handle))

    def elapsed_since(self, start: Event) -> float:
        """Return the seconds from ``start`` to this event, after waiting for both.

        Device time where the backend measures it, else the host's clock at the two calls of `Stream.record`.

        Raises
        ------
        ShapeError
            The events are on different devices.
        """
        if start._core is not self._core:
            raise ShapeError(f"events on different devices: {start._core.id} and {self._core.id}")
        start.synchronize()
        self.synchronize()
        if self._native and self._core.backend.elapsed is not None:
            return float(self._core.call("elapsed", self._core.state, start._handle, self._handle))
        return self._host_time - start._host_time


def _check_sources(core: Core, pending: Pending) -> None:
    """With OXIDIZE_DEBUG=1: an array that changed between copy_from and the wait gave the device undefined bytes."""
    changed = [view for view, checksum in pending.sources if zlib.crc32(view) != checksum]
    pending.sources = []
    if changed:
        raise LaunchError(
            f"{core.id}: an array of {changed[0].nbytes} bytes was changed between copy_from(..., stream=) and the wait; "
            "synchronize first, or copy without a stream"
        )


def _retire(core: Core, handle: Any, pending: Pending | None) -> None:
    """Wait for what is queued, drop what it used, release the queue."""
    try:
        if pending is not None and not core.closed:
            core.backend.sync(core.state, handle)
        if core.backend.destroy_stream is not None and not core.closed:
            core.backend.destroy_stream(core.state, handle)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a finalizer has nobody to raise to; the next synchronize() raises it
        core.defer("sync", error)
    finally:
        if pending is not None:
            pending.clear()
