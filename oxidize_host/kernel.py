"""Module, Kernel, launch: from source or a name to queued work."""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from oxidize_host.errors import ClosedError, InvalidBackend, LaunchError, OxidizeError, ShapeError, UnsupportedOp
from oxidize_host.memory import _CLOSED, Buffer, _NoArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oxidize_host.core import Core
    from oxidize_host.device import Device
    from oxidize_host.stream import Stream

__all__ = ["BoundLaunch", "Kernel", "LaunchConfig", "Module", "launch"]

Origin = Literal["native", "portable", "source"]

_names: dict[int, list[str]] = {}  # of each live Kernel, by its handle; several may share one


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchConfig:
    """``grid`` groups of ``block`` work items, each an int or a tuple of one to three.

    Raises
    ------
    ShapeError
        Not one to three non-negative integers (positive for ``block``).
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    def __init__(self, grid: int | Sequence[int], block: int | Sequence[int] = 1) -> None:
        object.__setattr__(self, "grid", _dim3("grid", grid, 0))
        object.__setattr__(self, "block", _dim3("block", block, 1))

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do: some axis of ``grid`` is zero."""
        return 0 in self.grid


def _dim3(label: str, value: int | Sequence[int], least: int) -> tuple[int, int, int]:
    try:
        dims: list[Any] = [value] if isinstance(value, int | np.integer) else list(value)
    except TypeError:
        dims = []
    good = all(isinstance(dim, int | np.integer) and not isinstance(dim, bool) and dim >= least for dim in dims)
    if not 1 <= len(dims) <= 3 or not good:
        raise ShapeError(f"{label} must be one to three integers of at least {least}, got {value!r}")
    x, y, z = (int(dim) for dim in [*dims, 1, 1][:3])
    return (x, y, z)


class Kernel:
    """Something to launch on one device; made by `Module.kernel` or `Device.kernel`.

    Attributes
    ----------
    name : str
    origin : "native" | "portable" | "source"
        Whether the backend brought it, the host compiled it from the portable library, or the user gave the source.
    """

    __slots__ = ("__weakref__", "_core", "_handle", "name", "origin")

    def __init__(self, core: Core, name: str, handle: Any, origin: Origin) -> None:
        self._core, self.name, self._handle, self.origin = core, name, handle, origin
        _names.setdefault(id(handle), []).append(name)
        weakref.finalize(self, _forget_name, id(handle), name)

    def __repr__(self) -> str:
        """Return name, origin and device."""
        return f"<Kernel {self.name!r} ({self.origin}) on {self._core.id}>"

    @property
    def device(self) -> Device:
        """The device it was made for."""
        return self._core.device()


def kernel_name(handle: object) -> str:
    """Return the name of the kernel that a backend knows as ``handle``, for observers; "?" if unknown."""
    return (_names.get(id(handle)) or ["?"])[-1]


def _forget_name(key: int, name: str) -> None:
    names = _names[key]
    names.remove(name)
    if not names:
        _names.pop(key, None)


class Module:
    """Compiled kernel source; made by `Device.compile`."""

    def __init__(self, core: Core, kernels: Mapping[str, Any]) -> None:
        if not hasattr(kernels, "__getitem__"):
            raise InvalidBackend(f"{core.id}: compile must return a mapping of names to kernels, not {type(kernels).__name__}")
        self._core, self._kernels = core, kernels

    def __repr__(self) -> str:
        """Return the device and the kernels known."""
        return f"<Module {self.names} on {self._core.id}>"

    @property
    def names(self) -> list[str]:
        """The kernels by name, if the backend lists them."""
        return sorted(self._kernels) if hasattr(self._kernels, "keys") else []

    def kernel(self, name: str) -> Kernel:
        """Return the kernel ``name``; raises ``LookupError`` naming those there are."""
        try:
            handle = self._kernels[name]
        except (KeyError, AttributeError) as error:
            raise LookupError(f"no kernel {name!r} in this module; it has {', '.join(self.names) or 'none'}") from error
        return Kernel(self._core, name, handle, "source")


def launch(  # noqa: C901 - the hot path is written out: each function call would cost a tenth of it
    stream: Stream, config: LaunchConfig, kernel: Kernel, *args: Buffer | np.generic
) -> None:
    """Queue ``kernel`` on ``stream``.

    Parameters
    ----------
    stream
        Where to queue it.
    config
        Geometry.
    kernel
        From the stream's device.
    args
        Buffers of that device and NumPy scalars, in the kernel's order; the type of a scalar fixes its size.

    Raises
    ------
    TypeError
        An argument is neither, such as a bare Python number.
    ShapeError
        Something belongs to another device.
    ClosedError
        A buffer, the stream or the device is closed.
    LaunchError
        The backend could not start it.
    """
    try:
        core, grid, block = stream._core, config.grid, config.block
        if kernel._core is not core or core.closed or not stream._alive:
            _refuse(stream, kernel)
    except AttributeError:
        given = ", ".join(type(value).__name__ for value in (stream, config, kernel))
        raise TypeError(
            f"launch takes a Stream, a LaunchConfig and a Kernel, then the kernel's arguments; got {given}"
        ) from None
    handles: list[Any] = []
    for arg in args:
        if type(arg) is Buffer:
            handle = arg._argument
            if arg._core is not core or type(handle) is _NoArgument:
                _refuse_argument(core, kernel, len(handles), arg)
            handles.append(handle)
        elif isinstance(arg, np.generic):
            handles.append(arg)
        else:
            _refuse_argument(core, kernel, len(handles), arg)
    if 0 in grid:
        return
    try:
        core.backend.launch(core.state, kernel._handle, grid, block, handles, stream._handle)
    except OxidizeError:
        raise
    except (Exception, SystemExit) as error:
        raise LaunchError(f"{core.id}: launch of {kernel.name!r} failed: {type(error).__name__}: {error}") from error
    if core.asynchronous:
        stream._keep([kernel, *(arg._allocation for arg in args if type(arg) is Buffer)])


class BoundLaunch:
    """A launch whose arguments are checked once and which can then be repeated: ``bound(stream)``.

    It keeps its buffers' memory alive. Made by `bind` and by ``ops.NAME.bind``.
    """

    __slots__ = ("_args", "_block", "_call", "_core", "_grid", "_handles", "_memory", "kernel")

    def __init__(self, config: LaunchConfig, kernel: Kernel, args: Sequence[Buffer | np.generic]) -> None:
        core = kernel._core
        core.check_open()
        self._core, self.kernel, self._grid, self._block = core, kernel, config.grid, config.block
        for position, arg in enumerate(args):
            wrong = (
                arg._core is not core or type(arg._argument) is _NoArgument
                if type(arg) is Buffer
                else not isinstance(arg, np.generic)
            )
            if wrong:
                _refuse_argument(core, kernel, position, arg)
        self._handles = [arg._argument if isinstance(arg, Buffer) else arg for arg in args]
        self._memory = [kernel, *(arg._allocation for arg in args if isinstance(arg, Buffer))]
        self._call: Callable[[Any], None] | None = None
        if core.backend.bind is not None and not config.empty:
            self._call = core.call("bind", core.state, kernel._handle, config.grid, config.block, self._handles)

    def __repr__(self) -> str:
        """Return the kernel and its extent."""
        return f"<BoundLaunch {self.kernel.name!r} {self._grid} on {self._core.id}>"

    def __call__(self, stream: Stream) -> None:
        """Queue it on ``stream``; raises as `launch` does."""
        core = self._core
        if stream._core is not core or core.closed or not stream._alive:
            _refuse(stream, self.kernel)
        try:
            call = self._call
            if call is not None and not core.backend.observed:
                call(stream._handle)
            elif 0 not in self._grid:
                core.backend.launch(core.state, self.kernel._handle, self._grid, self._block, self._handles, stream._handle)
        except OxidizeError:
            raise
        except (Exception, SystemExit) as error:
            raise LaunchError(f"{core.id}: launch of {self.kernel.name!r} failed: {type(error).__name__}: {error}") from error
        if core.asynchronous:
            stream._keep(self._memory)


def _refuse(stream: Stream, kernel: Kernel) -> None:
    stream._check_open()
    raise ShapeError(f"kernel {kernel.name!r} belongs to {kernel._core.id}, the stream to {stream._core.id}")


def _refuse_argument(core: Core, kernel: Kernel, position: int, arg: object) -> None:
    where = f"{kernel.name}() argument {position}"
    if not isinstance(arg, Buffer):
        hint = ""
        if isinstance(arg, bool | int | float):
            guess = "float32" if isinstance(arg, float) else "uint32" if arg >= 0 else "int32"
            hint = f"; a kernel's scalar has a size: np.{guess}({arg!r})"
        elif isinstance(arg, np.ndarray):
            hint = "; copy it with device.to_device() first"
        raise TypeError(f"{where} must be a Buffer or a NumPy scalar, not {type(arg).__name__}{hint}")
    if arg._argument is _CLOSED:
        raise ClosedError(f"{where}: the buffer {arg.shape} {arg.dtype} is closed")
    if arg._core is not core:
        raise ShapeError(f"{where} is on {arg._core.id}, the kernel on {core.id}")
    raise UnsupportedOp(
        f"{where} is a slice at offset {arg.offset}; {core.id} cannot launch on slices: copy it into a buffer of its own"
    )
