"""Buffer: device memory with a shape and a dtype for copying. Not an array: it has no arithmetic."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from oxidize_host.errors import ClosedError, ShapeError, UnsupportedOp

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from oxidize_host.core import Core
    from oxidize_host.device import Device
    from oxidize_host.stream import Stream

__all__ = ["Buffer"]


class Allocation:
    """One handle of a backend, freed when the last buffer, stream or bound launch that uses it lets go."""

    __slots__ = ("__weakref__", "core", "handle", "keep", "nbytes", "release")

    def __init__(self, core: Core, handle: Any, nbytes: int, keep: object = None) -> None:
        self.core, self.handle, self.nbytes, self.keep = core, handle, nbytes, keep
        core.live[id(self)] = nbytes
        self.release = weakref.finalize(self, core.release, id(self), handle)


class _NoArgument:
    """Stands where a buffer has nothing to give to a kernel; `launch` turns it into the error."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


_CLOSED = _NoArgument("closed")
_UNSUPPORTED = _NoArgument("unsupported")


class Buffer:
    """A range of device memory.

    Made by `Device.empty`, `Device.to_device`, `Device.wrap`, or by slicing another buffer.

    Attributes
    ----------
    shape : tuple[int, ...]
    dtype : numpy.dtype
    nbytes : int
    offset : int
        Bytes from the start of the allocation that this buffer is a part of.
    readonly : bool
        Wraps host memory that must not be written.
    """

    __slots__ = ("__weakref__", "_allocation", "_argument", "_core", "dtype", "nbytes", "offset", "readonly", "shape")

    def __init__(self) -> None:
        raise TypeError("buffers are made by Device.empty(), Device.to_device(), Device.wrap() or by slicing a buffer")

    _allocation: Allocation | None
    _argument: Any
    _core: Core
    dtype: np.dtype[Any]
    nbytes: int
    offset: int
    readonly: bool
    shape: tuple[int, ...]

    @classmethod
    def _make(
        cls, allocation: Allocation, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int = 0, *, readonly: bool = False
    ) -> Self:
        self = object.__new__(cls)
        core = allocation.core
        self._allocation, self._core, self.offset, self.readonly = allocation, core, offset, readonly
        self.shape, self.dtype = shape, dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        if core.backend.argument is not None:
            self._argument = core.call("argument", core.state, allocation.handle, offset, self.nbytes)
        elif offset == 0:
            self._argument = allocation.handle
        else:
            self._argument = _UNSUPPORTED
        return self

    def __repr__(self) -> str:
        """Return device, shape and dtype."""
        state = "closed" if self._allocation is None else f"{self.shape} {self.dtype}"
        return f"<Buffer {state} on {self._core.id}>"

    @property
    def device(self) -> Device:
        """The device that owns the memory."""
        return self._core.device()

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def handle(self) -> Any:
        """The backend's own handle of the whole allocation; `offset` says where in it this buffer starts."""
        return self._open().handle

    @property
    def closed(self) -> bool:
        """Whether `close` was called on this buffer."""
        return self._allocation is None

    def close(self) -> None:
        """Let go of the memory; it is freed when slices and queued work that use it are done too. May be repeated."""
        self._allocation = None
        self._argument = _CLOSED

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _open(self) -> Allocation:
        if self._allocation is None:
            raise ClosedError(f"the buffer {self.shape} {self.dtype} on {self._core.id} was closed; allocate a new one")
        self._core.check_open()
        return self._allocation

    def view(self, shape: int | tuple[int, ...], dtype: DTypeLike | None = None, *, offset: int = 0) -> Buffer:
        """Return a buffer over part of the same memory.

        Parameters
        ----------
        shape
            New shape.
        dtype
            New element type; the same one by default.
        offset
            Bytes from the start of this buffer; any value is allowed for copies, kernels may need alignment.

        Raises
        ------
        ShapeError
            The range ends after this buffer.
        """
        allocation = self._open()
        shape, kind = check_shape(shape), self.dtype if dtype is None else np.dtype(dtype)
        nbytes = math.prod(shape) * kind.itemsize
        if offset < 0 or offset + nbytes > self.nbytes:
            raise ShapeError(f"view of {nbytes} bytes at offset {offset} does not fit into a buffer of {self.nbytes} bytes")
        return Buffer._make(allocation, shape, kind, self.offset + offset, readonly=self.readonly)

    def __getitem__(self, key: slice | int) -> Buffer:
        """Return rows of the first axis, sharing the memory: ``buffer[2:5]``, or ``buffer[2]``, which drops the axis."""
        if not self.shape:
            raise ShapeError("a buffer without dimensions cannot be sliced; use view()")
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        if isinstance(key, slice):
            start, stop, step = key.indices(self.shape[0])
            if step != 1:
                raise ShapeError(f"buffer slices are contiguous: step {step} is not 1")
            return self.view(
                (max(stop - start, 0), *self.shape[1:]), offset=min(start, stop) * row if stop < start else start * row
            )
        if not isinstance(key, int | np.integer):
            raise TypeError(f"a buffer is indexed by an integer or a slice, not {type(key).__name__}")
        index = key + self.shape[0] if key < 0 else key
        if not 0 <= index < self.shape[0]:
            raise IndexError(f"index {key} is out of bounds for a first axis of {self.shape[0]}")
        return self.view(self.shape[1:], offset=index * row)

    def copy_from(self, source: Buffer | ArrayLike, *, stream: Stream | None = None) -> Self:
        """Fill this buffer.

        Parameters
        ----------
        source
            A buffer of the same device, or an array: same dtype, same number of elements. Arrays are read as C-contiguous.
        stream
            Queue the copy there and return at once; the source is kept alive and must not be changed until the
            stream has been waited for. By default the call waits.

        Raises
        ------
        ShapeError
            Sizes or dtypes differ, or the buffer is read-only.
        ClosedError
            A buffer is closed.
        """
        target = self._open()
        if self.readonly:
            raise ShapeError("this buffer wraps read-only host memory; copy_from would write to it")
        if isinstance(source, Buffer):
            self._check_same("source", source._core, source.nbytes, source.dtype)
            self._core.copy(target, self.offset, source._open(), source.offset, self.nbytes, stream, keep=(self, source))
            return self
        array = np.asarray(source)
        self._check_same("source array", None, array.nbytes, array.dtype)
        array = np.ascontiguousarray(array)
        self._core.copy(target, self.offset, byte_view(array), 0, self.nbytes, stream, keep=(self, array))
        return self

    def copy_to(self, target: Buffer | NDArray[Any], *, stream: Stream | None = None) -> None:
        """Copy this buffer into another buffer of the same device or into a C-contiguous, writable array.

        Parameters and errors as for `copy_from`; the array must not be read until the stream has been waited for.
        """
        if isinstance(target, Buffer):
            target.copy_from(self, stream=stream)
            return
        allocation = self._open()
        if not isinstance(target, np.ndarray):
            raise TypeError(f"copy_to fills a Buffer or a NumPy array, not {type(target).__name__}")
        self._check_same("target array", None, target.nbytes, target.dtype)
        if not target.flags.c_contiguous or not target.flags.writeable:
            raise ShapeError("the target array must be C-contiguous and writable")
        self._core.copy(byte_view(target), 0, allocation, self.offset, self.nbytes, stream, keep=(self, target))

    def to_host(self, *, stream: Stream | None = None) -> NDArray[Any]:
        """Return the contents as a new array, after the work queued on ``stream`` (default: the device's own)."""
        array = np.empty(self.shape, self.dtype)
        stream = stream or self._core.default_stream
        self.copy_to(array, stream=stream)
        stream.synchronize()
        return array

    def host_view(self) -> NDArray[Any]:
        """Return the memory itself as an array, without a copy. The array keeps the memory alive.

        Wait for the streams that use the buffer before reading or writing it.

        Raises
        ------
        UnsupportedOp
            The host cannot see this device's memory.
        """
        allocation = self._open()
        if self._core.backend.host_view is None:
            raise UnsupportedOp(f"{self._core.id}: its memory is not visible to the host; use to_host()")
        view: memoryview = self._core.call("host_view", self._core.state, allocation.handle)
        raw = np.frombuffer(view[self.offset : self.offset + self.nbytes], np.uint8).view(_KeepAlive)
        raw.keep = allocation
        array: NDArray[Any] = (
            np.asarray(raw.view(self.dtype)).reshape(self.shape) if self.nbytes else np.empty(self.shape, self.dtype)
        )
        if self.readonly:
            array.flags.writeable = False
        return array

    def __buffer__(self, flags: int, /) -> memoryview:
        """Export host-visible memory (Python 3.12 and later)."""
        try:
            return self.host_view().data
        except UnsupportedOp as error:
            raise BufferError(str(error)) from error

    def __dlpack__(self, **options: Any) -> object:
        """Export host-visible memory without a copy, for ``numpy.from_dlpack`` and other libraries."""
        try:
            return self.host_view().__dlpack__(**options)
        except UnsupportedOp as error:
            raise BufferError(str(error)) from error

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the DLPack device of host-visible memory: (1, 0), the CPU."""
        if self._core.backend.host_view is None:
            raise BufferError(f"{self._core.id}: its memory is not visible to the host; use to_host()")
        return (1, 0)

    def _check_same(self, what: str, core: Core | None, nbytes: int, dtype: np.dtype[Any]) -> None:
        if core is not None and core is not self._core:
            raise ShapeError(
                f"{what} is on {core.id}, this buffer on {self._core.id}; copy through the host: target.copy_from(source.to_host())"
            )
        if dtype != self.dtype:
            raise ShapeError(f"{what} is {dtype}, the buffer {self.dtype}; convert with astype() or reinterpret with view()")
        if nbytes != self.nbytes:
            raise ShapeError(f"{what} has {nbytes} bytes, the buffer {self.nbytes} ({self.shape} {self.dtype})")


class _KeepAlive(np.ndarray[Any, Any]):
    """An array whose base holds the allocation, so that a view outlives its buffer safely."""

    keep: object = None


def check_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return ``shape`` as a tuple of non-negative ints, or raise `ShapeError`."""
    try:
        dims: tuple[Any, ...] = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    except TypeError as error:
        raise ShapeError(f"a shape is an integer or a tuple of them, got {shape!r}") from error
    if any(not isinstance(dim, int | np.integer) or isinstance(dim, bool) or dim < 0 for dim in dims):
        raise ShapeError(f"a shape is non-negative integers, got {shape!r}")
    return tuple(int(dim) for dim in dims)


def byte_view(array: NDArray[Any]) -> memoryview:
    """Return the bytes of a C-contiguous array as a one-dimensional memoryview, without a copy."""
    return array.reshape(-1).view(np.uint8).data
