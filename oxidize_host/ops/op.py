"""What every tensor operation shares: check the operands once, find the kernel, launch or bind."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec

import numpy as np

from oxidize_host.errors import ShapeError
from oxidize_host.kernel import BoundLaunch, LaunchConfig, launch
from oxidize_host.memory import Buffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from oxidize_host.kernel import Kernel
    from oxidize_host.stream import Stream

__all__ = ["Call", "Op", "check", "op"]

P = ParamSpec("P")
_LARGEST = 2**32 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A checked operation: the kernel, its logical extent and its arguments in order."""

    kernel: Kernel
    extent: tuple[int, ...]
    args: tuple[Buffer | np.generic, ...]


class Op(Generic[P]):
    """A tensor operation: ``ops.add(out, a, b, stream=s)`` checks and launches; ``ops.add.bind(out, a, b)`` checks once."""

    def __init__(self, prepare: Callable[Concatenate[Buffer, P], Call]) -> None:
        self._prepare = prepare
        functools.update_wrapper(self, prepare)

    def __call__(self, out: Buffer, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Check the operands and launch on the stream of the keyword ``stream`` (the device's default stream without one).

        Raises
        ------
        ShapeError
            An operand does not fit; it is named.
        UnsupportedOp
            The device has no kernel for it.
        """
        stream: Stream | None = kwargs.pop("stream", None)  # type: ignore[assignment]
        call = self._prepare(out, *args, **kwargs)
        launch(stream or out.device.default_stream, LaunchConfig(call.extent, 1), call.kernel, *call.args)

    def bind(self, out: Buffer, /, *args: P.args, **kwargs: P.kwargs) -> BoundLaunch:
        """Check the operands and return a launch to repeat: ``bound(stream)``; raises as a call does."""
        call = self._prepare(out, *args, **kwargs)
        return BoundLaunch(LaunchConfig(call.extent, 1), call.kernel, call.args)

    def __repr__(self) -> str:
        """Return the name."""
        return f"<op {self.__name__}>"  # type: ignore[attr-defined]


def op(prepare: Callable[..., Call]) -> Op[...]:
    """Make a tensor operation of a function that checks operands and returns a `Call`."""
    return Op(prepare)


def check(name: str, buffer: object, dtype: object, *dims: int | None) -> tuple[int, ...]:
    """Return the shape of operand ``name``, or raise `ShapeError` if it is not a ``dtype`` buffer of ``dims`` (None: any)."""
    if not isinstance(buffer, Buffer):
        raise ShapeError(f"{name} must be a Buffer, not {type(buffer).__name__}")
    if buffer.dtype != dtype:
        raise ShapeError(f"{name} must be {np.dtype(dtype)}, is {buffer.dtype}")  # type: ignore[call-overload]
    good = len(buffer.shape) == len(dims) and all(want in (None, have) for want, have in zip(dims, buffer.shape, strict=True))
    if not good:
        wanted = ", ".join("any" if dim is None else str(dim) for dim in dims)
        raise ShapeError(f"{name} must have the shape ({wanted}), has {buffer.shape}")
    if max(buffer.shape, default=0) > 2**31 - 1:
        raise ShapeError(f"{name}: a dimension of {max(buffer.shape)} does not fit the 32-bit sizes that kernels take")
    return buffer.shape


def check_out(out: object, *dims: int | None, dtype: object = np.float32) -> tuple[int, ...]:
    """Check the output operand, which must also be writable."""
    shape = check("out", out, dtype, *dims)
    if isinstance(out, Buffer) and out.readonly:
        raise ShapeError("out wraps read-only memory")
    return shape


def find(out: Buffer, name: str, **params: str) -> Kernel:
    """Return the standard kernel of the device that holds ``out``."""
    return out.device.kernel(name, **params)


def scalars(*values: Any) -> tuple[np.generic, ...]:
    """Return sizes as u32 and Python floats as f32, as the standard kernels take them."""
    for value in values:
        if isinstance(value, int) and value > _LARGEST:
            raise ShapeError(f"{value} elements do not fit the 32-bit sizes that kernels take; split the operation")
    return tuple(np.float32(value) if isinstance(value, float) else np.uint32(value) for value in values)
