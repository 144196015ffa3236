"""Device: one piece of hardware, reached through one backend."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from oxidize_host import registry, select
from oxidize_host.core import Core
from oxidize_host.errors import BackendUnavailable, OxidizeError, OxidizeWarning, ShapeError, UnsupportedOp
from oxidize_host.info import MemoryInfo, Unavailable
from oxidize_host.kernel import Kernel, Module
from oxidize_host.memory import Buffer, byte_view, check_shape
from oxidize_host.stream import Stream

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from oxidize_host.info import DeviceInfo
    from oxidize_host.select import Selection

__all__ = ["Device", "smoke_test"]

_open: dict[tuple[str, int], Core] = {}
_open_lock = threading.RLock()


class Device:
    """One device of one backend.

    Two `Device` objects that name the same device share it: memory, kernels and streams of one serve the other.

    Parameters
    ----------
    spec
        ``"backend"``, ``"backend:index"`` or ``"backend:uuid"``: exactly that device or an exception. None takes
        ``OXIDIZE_DEVICE`` if it is set, else chooses; `selection` says what was considered and why.
    smoke_test
        At the first use of a device, check by a small seeded computation that it computes (see `smoke_test`).

    Raises
    ------
    BackendNotFound, BackendUnavailable
        With a typed reason and the remedy.
    InvalidBackend
        The named plugin breaks the contract.
    """

    __slots__ = ("_core", "selection")

    def __init__(self, spec: str | None = None, *, smoke_test: bool = True) -> None:
        def open_core(name: str, index: int) -> Core:
            return _open_core(name, index, check=smoke_test)

        how = "named by the caller"
        if spec is None and (spec := os.environ.get("OXIDIZE_DEVICE") or None):
            how = "OXIDIZE_DEVICE"
        self._core: Core
        self.selection: Selection
        if spec is None:
            self.selection, self._core = select.choose(open_core)
        else:
            name, index, self.selection = select.named(spec, how)
            self._core = open_core(name, index)

    @classmethod
    def _of(cls, core: Core) -> Self:
        self = object.__new__(cls)
        self._core = core
        self.selection = select.Selection.already_open(core.id)
        return self

    def __repr__(self) -> str:
        """Return id and name."""
        return f"<Device {self._core.id} {self._core.info.name!r}{' closed' if self._core.closed else ''}>"

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same open device."""
        return isinstance(other, Device) and other._core is self._core

    def __hash__(self) -> int:
        """Hash by the open device."""
        return hash(id(self._core))

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    @property
    def id(self) -> str:
        """``"backend:index"``, which names this device to `Device` and on the command line."""
        return self._core.id

    @property
    def info(self) -> DeviceInfo:
        """What the backend says about it."""
        return self._core.info

    @property
    def default_stream(self) -> Stream:
        """The stream of calls that name none."""
        return self._core.default_stream

    @property
    def kernels_used(self) -> dict[str, str]:
        """Standard kernels asked for so far and where they came from, such as ``{"gemv:q4_k": "native"}``."""
        return {
            ":".join([name, *(value for _, value in params)]): kernel.origin
            for (name, params), kernel in self._core.kernels.items()
        }

    @property
    def live_bytes(self) -> int:
        """Bytes that this process holds on the device through oxidize."""
        return sum(self._core.live.values())

    @property
    def live_allocations(self) -> int:
        """Number of allocations not yet freed."""
        return len(self._core.live)

    def memory_info(self) -> MemoryInfo:
        """Return total and free bytes as far as the backend knows."""
        self._core.check_open()
        return self._core.memory_info()

    def create_stream(self) -> Stream:
        """Return a new in-order queue."""
        self._core.check_open()
        return Stream(self._core)

    def synchronize(self) -> None:
        """Wait for all streams of the device."""
        self._core.check_open()
        for stream in list(self._core.streams):
            if stream._alive:
                stream.synchronize()
        self._core.raise_deferred()

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Buffer:
        """Return a new buffer with undefined contents.

        Raises
        ------
        OutOfMemory
            With what was asked, free, total and held.
        ShapeError
            A negative or non-integer dimension, or a dtype with Python objects.
        """
        shape, kind = check_shape(shape), np.dtype(dtype)
        if kind.hasobject:
            raise ShapeError(f"a buffer holds plain bytes, not {kind}")
        nbytes = kind.itemsize
        for dim in shape:  # Python integers do not overflow; np.prod would
            nbytes *= dim
        return Buffer._make(self._core.alloc(nbytes), shape, kind)

    def to_device(self, array: ArrayLike, *, stream: Stream | None = None) -> Buffer:
        """Return a new buffer with the contents of ``array`` (any shape, C order); see `Buffer.copy_from`."""
        host = np.asarray(array)
        return self.empty(host.shape, host.dtype).copy_from(host, stream=stream)

    def wrap(self, array: NDArray[Any]) -> Buffer:
        """Return a buffer over the memory of ``array``, without a copy; the array is kept alive.

        Work that uses the buffer sees what the array holds when it runs. Read-only arrays (a mapped file) are allowed;
        kernels must not write to them.

        Raises
        ------
        UnsupportedOp
            This device cannot use host memory in place; `to_device` copies.
        ShapeError
            The array is not C-contiguous, or its dtype has Python objects.
        """
        self._core.check_open()
        if self._core.backend.import_host is None:
            raise UnsupportedOp(f"{self.id} cannot use host memory in place; copy with to_device()")
        if array.dtype.hasobject:
            raise ShapeError(f"a buffer holds plain bytes, not {array.dtype}")
        if not array.flags.c_contiguous:
            raise ShapeError(f"only C-contiguous arrays can be wrapped, got strides {array.strides}; copy with to_device()")
        view = byte_view(array)
        handle = self._core.call("import_host", self._core.state, view)
        allocation = self._core.adopt(handle, array.nbytes, keep=array)
        return Buffer._make(allocation, array.shape, array.dtype, readonly=not array.flags.writeable)

    def from_dlpack(self, tensor: Any) -> Buffer:
        """Return a buffer over a DLPack tensor: without a copy if it is in host memory that the device can use, else copied."""
        array = np.from_dlpack(tensor)
        try:
            return self.wrap(array)
        except UnsupportedOp:
            return self.to_device(array)

    def pinned(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return a host array in page-locked memory for fast copies, or in ordinary memory with a warning that says why."""
        self._core.check_open()
        shape, kind = check_shape(shape), np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        why = "the backend has no pinned memory"
        if self._core.backend.alloc_pinned is not None:
            try:
                view = self._core.call("alloc_pinned", self._core.state, max(count * kind.itemsize, 1))
                return np.frombuffer(view, kind, count).reshape(shape)
            except (OxidizeError, MemoryError) as error:
                why = str(error)
        import warnings

        warnings.warn(f"{self.id}: pageable memory instead of pinned: {why}", OxidizeWarning, stacklevel=2)
        return np.empty(shape, kind)

    def compile(self, source: str | bytes, **options: Any) -> Module:
        """Compile native source in the device's dialect (``info.dialect``).

        Raises
        ------
        CompileError
            With the compiler's words in ``log``.
        """
        self._core.check_open()
        return Module(self._core, self._core.call("compile", self._core.state, source, options))

    def kernel(self, name: str, **params: str) -> Kernel:
        """Return the kernel of a standard operation (see `oxidize_host.ops`), found once per device.

        Raises
        ------
        UnsupportedOp
            The backend has none for these parameters.
        """
        core = self._core
        key = (name, tuple(sorted(params.items())))
        kernel: Kernel | None = core.kernels.get(key)
        if kernel is not None:
            return kernel
        core.check_open()
        handle = None
        if core.backend.find_kernel is not None:
            handle = core.call("find_kernel", core.state, name, params)
        if handle is None:
            wanted = ", ".join([repr(name), *(f"{k}={v!r}" for k, v in params.items())])
            raise UnsupportedOp(f"{core.id} has no kernel for {wanted}; use another device, such as Device('numpy')")
        kernel = core.kernels[key] = Kernel(core, name, handle, "native")
        return kernel

    def close(self) -> None:
        """Wait for all work, free all memory, release the device; `Device` opens it anew. May be repeated."""
        self._core.close()


def _open_core(name: str, index: int, *, check: bool) -> Core:
    with _open_lock:
        core = _open.get((name, index))
        backend = registry.load(name)
        if core is not None and not core.closed and core.backend is backend:
            return core
        infos = select.device_infos(backend)
        core = Core(backend, index, infos[index])
        if check:
            try:
                smoke_test(Device._of(core))
            except BaseException:
                core.close()
                raise
        _open[name, index] = core
        return core


def smoke_test(device: Device) -> None:
    """Check by a small seeded computation that a device computes.

    Copies pseudo-random bytes there and back at even and odd offsets and, where the device has the standard kernel
    ``add``, adds two vectors. Takes a few milliseconds on an accelerator.

    Raises
    ------
    BackendUnavailable
        Kind ``WrongResults``: something else came back.
    """
    rng = np.random.default_rng(20260)
    data = rng.integers(0, 256, 4096, dtype=np.uint8)
    buffer = device.empty(data.shape, np.uint8)
    buffer.copy_from(data)
    part = buffer.view(1021, offset=7)
    if not np.array_equal(buffer.to_host(), data) or not np.array_equal(part.to_host(), data[7:1028]):
        raise _wrong(device, "copies there and back changed the bytes")
    from oxidize_host import ops

    a, b = rng.standard_normal((2, 257), dtype=np.float32)
    try:
        kernel_out = device.empty(a.shape, np.float32)
        ops.add(kernel_out, device.to_device(a), device.to_device(b))
    except UnsupportedOp:
        return
    if not np.allclose(kernel_out.to_host(), a + b, rtol=1e-6, atol=1e-6, equal_nan=False):
        raise _wrong(device, "adding two vectors gave something else")


def _wrong(device: Device, what: str) -> BackendUnavailable:
    return BackendUnavailable(
        Unavailable(
            "WrongResults",
            f"{device.id} ({device.info.name}) gives wrong results: {what}",
            "update its driver; Device(..., smoke_test=False) insists",
        )
    )
