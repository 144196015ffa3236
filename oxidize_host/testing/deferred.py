"""An asynchronous backend in memory, which runs queued work as late as the contract allows.

On a real accelerator a missing wait or a buffer freed too early goes wrong once in a thousand runs. Here work runs only when
something waits for it, and freed memory is gone for good, so that the same mistake goes wrong every time.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from oxidize_host.errors import CompileError, LaunchError
from oxidize_host.hookspecs import hookimpl
from oxidize_host.info import BuildInfo, DeviceInfo, MemoryInfo
from oxidize_host.reference.backend import NumpyBackend
from oxidize_host.reference.kernels import find
from oxidize_host.testing.queues import Event, Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["DeferredBackend"]

Dim3 = tuple[int, int, int]


@dataclasses.dataclass(slots=True)
class _Device:
    """What one open device holds: memory by handle, and the queues."""

    index: int
    memory: dict[int, NDArray[np.uint8]] = dataclasses.field(default_factory=dict)
    queues: list[Queue] = dataclasses.field(default_factory=list)
    lock: threading.RLock = dataclasses.field(default_factory=threading.RLock)
    closed: bool = False

    def find(self, handle: int, doing: str) -> NDArray[np.uint8]:
        """Return the memory of ``handle``, or say who freed it too early."""
        try:
            return self.memory[handle]
        except KeyError:
            raise LaunchError(f"{doing} uses memory {handle} that was freed before the work ran") from None


@dataclasses.dataclass(frozen=True, slots=True)
class _Argument:
    """What a launch gets for a buffer: resolved to memory when the work runs, not before."""

    handle: int
    offset: int
    nbytes: int


class DeferredBackend:
    """Streams and events over numpy; work runs at ``sync``, ``sync_event`` or, one piece at a time, ``query``.

    Kernels and their source are those of `NumpyBackend`. Memory is not visible to the host.

    Parameters
    ----------
    memory
        Bytes of device memory; allocations beyond it raise ``MemoryError``.
    devices
        How many devices to offer.

    Attributes
    ----------
    violations : list[str]
        What the host did that the contract forbids (destroying a busy stream, closing with memory held); empty when all is well.
    """

    api_version = 1
    saxpy_source = (
        "def saxpy(grid, block, out, x, y, a, n):\n"
        "    i = slice(0, min(int(n), grid[0] * block[0]))\n"
        "    out.view(np.float32)[i] = a * x.view(np.float32)[i] + y.view(np.float32)[i]\n"
    )

    def __init__(self, memory: int = 2**30, devices: int = 1) -> None:
        self.capacity, self.count = memory, devices
        self.violations: list[str] = []
        self._handles = itertools.count(0x1000, 0x10)
        self._compiler = NumpyBackend()

    @hookimpl
    def build_info(self) -> BuildInfo:
        """Return the version of numpy."""
        return BuildInfo("deferred", "1.0", driver=f"numpy {np.__version__}")

    @hookimpl
    def devices(self) -> Sequence[DeviceInfo]:
        """Return as many devices as were asked for."""
        memory = MemoryInfo(self.capacity, self.capacity, "made up")
        return [
            DeviceInfo(f"Deferred {i}", kind="other", uuid=f"deferred-{i}", memory=memory, dialect="python")
            for i in range(self.count)
        ]

    @hookimpl
    def open(self, index: int) -> _Device:
        """Return a device with empty memory."""
        return _Device(index)

    @hookimpl
    def alloc(self, device: _Device, nbytes: int) -> int:
        """Return a number that stands for new memory, filled with a pattern that no test expects."""
        with device.lock:
            used = sum(array.nbytes for array in device.memory.values())
            if used + nbytes > self.capacity:
                raise MemoryError(f"{nbytes} bytes asked, {self.capacity - used} free")
            handle = next(self._handles)
            device.memory[handle] = np.full(nbytes, 0xA5, np.uint8)
            return handle

    @hookimpl
    def free(self, device: _Device, handle: int) -> None:
        """Forget the memory, so that later use is an error."""
        with device.lock:
            if device.memory.pop(handle, None) is None:
                self.violations.append(f"handle {handle} was freed twice")

    @hookimpl
    def argument(self, device: _Device, handle: int, offset: int, nbytes: int) -> _Argument:
        """Return a range of memory."""
        device.find(handle, "argument")
        return _Argument(handle, offset, nbytes)

    @hookimpl
    def memory_info(self, device: _Device) -> MemoryInfo:
        """Return what is left."""
        used = sum(array.nbytes for array in list(device.memory.values()))
        return MemoryInfo(self.capacity, self.capacity - used, "made up")

    @hookimpl
    def copy(self, device: _Device, dst: Any, dst_offset: int, src: Any, src_offset: int, nbytes: int, stream: Queue) -> None:
        """Queue a copy; host sides are held weakly, since keeping them alive is the host's part."""
        target, source = _side(device, dst, "a copy"), _side(device, src, "a copy")

        def task() -> None:
            target()[dst_offset : dst_offset + nbytes] = source()[src_offset : src_offset + nbytes]

        with device.lock:
            stream.put(task)

    @hookimpl
    def compile(self, source: str | bytes, options: Mapping[str, Any]) -> Mapping[str, Callable[..., None]]:
        """Execute Python source, as `NumpyBackend` does; the option ``reject`` makes any source fail."""
        if options.get("reject"):
            raise CompileError("rejected on request", log=str(options["reject"]))
        return self._compiler.compile(source)

    @hookimpl
    def find_kernel(self, name: str, params: Mapping[str, str]) -> Callable[..., None] | None:
        """Return the reference implementation."""
        return find(name, params)

    @hookimpl
    def launch(
        self, device: _Device, kernel: Callable[..., None], grid: Dim3, block: Dim3, args: Sequence[Any], stream: Queue
    ) -> None:
        """Queue a call of the function; it is held weakly, as a driver holds a module that can be unloaded."""
        alive, taken = weakref.ref(kernel), list(args)

        def task() -> None:
            function = alive()
            if function is None:
                raise LaunchError("a launch uses a kernel that was released before the work ran")
            function(grid, block, *(_resolve(device, arg) for arg in taken))

        with device.lock:
            stream.put(task)

    @hookimpl
    def create_stream(self, device: _Device) -> Queue:
        """Return an empty queue."""
        queue = Queue()
        with device.lock:
            device.queues.append(queue)
        return queue

    @hookimpl
    def destroy_stream(self, device: _Device, stream: Queue) -> None:
        """Forget the queue, which must be empty."""
        with device.lock:
            if stream.work:
                self.violations.append(f"a stream was destroyed with {len(stream.work)} pieces of work in it")
            stream.destroyed = True
            device.queues.remove(stream)

    @hookimpl
    def sync(self, device: _Device, stream: Queue) -> None:
        """Run all that is queued, then raise the first failure."""
        with device.lock:
            stream.run(stream.queued)
            stream.raise_failure()

    @hookimpl
    def record(self, device: _Device, stream: Queue) -> Event:
        """Return an event after the work queued so far."""
        with device.lock:
            event = Event(stream, stream.queued + 1)

            def mark() -> None:
                event.time = time.perf_counter()

            stream.put(mark)
            return event

    @hookimpl
    def wait(self, device: _Device, stream: Queue, event: Event) -> None:
        """Queue a piece of work that runs the other queue up to the event."""
        with device.lock:
            stream.put(lambda: event.queue.run(event.position))

    @hookimpl
    def sync_event(self, device: _Device, event: Event) -> None:
        """Run up to the event."""
        with device.lock:
            event.queue.run(event.position)

    @hookimpl
    def query(self, device: _Device, event: Event) -> bool:
        """Return whether the event was reached, then run one more piece of work, so that polling ends."""
        with device.lock:
            reached = event.reached
            if not reached:
                event.queue.run(event.queue.done + 1)
            return reached

    @hookimpl
    def elapsed(self, start: Event, end: Event) -> float:
        """Return the seconds between the moments at which the two were reached."""
        return end.time - start.time

    @hookimpl
    def close(self, device: _Device) -> None:
        """Note what the host left behind."""
        if device.memory:
            self.violations.append(f"the device was closed with {len(device.memory)} allocations held")
        if any(queue.work for queue in device.queues):
            self.violations.append("the device was closed with work queued")
        if device.closed:
            self.violations.append("the device was closed twice")
        device.closed = True


def _side(device: _Device, side: Any, doing: str) -> Callable[[], NDArray[np.uint8]]:
    """Return a function that finds one side of a copy when the copy runs."""
    if not isinstance(side, memoryview):
        return lambda: device.find(side, doing)
    owner, alive = side.obj, weakref.ref(side.obj)
    view = np.asarray(owner)  # an alias of the owner; only its address is remembered below
    address, nbytes, writable = view.__array_interface__["data"][0], side.nbytes, not side.readonly
    del owner, view

    def find_host() -> NDArray[np.uint8]:
        exporter = alive()
        if exporter is None:
            raise LaunchError(f"{doing} uses a host array that was collected before the work ran")
        array = np.asarray(exporter).reshape(-1).view(np.uint8)
        assert (array.__array_interface__["data"][0], array.nbytes) == (address, nbytes)
        array.flags.writeable = writable and array.flags.writeable
        return array

    return find_host


def _resolve(device: _Device, arg: Any) -> Any:
    if not isinstance(arg, _Argument):
        return arg
    return device.find(arg.handle, "a launch")[arg.offset : arg.offset + arg.nbytes]
