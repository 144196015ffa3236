"""Operations on each element, and the largest one."""

from __future__ import annotations

import numpy as np

from oxidize_host.errors import ShapeError
from oxidize_host.memory import Buffer
from oxidize_host.ops.op import Call, check, check_out, find, op, scalars

__all__ = ["add", "argmax", "gelu", "mul", "sigmoid", "silu", "swiglu"]


def _check_any(out: object) -> None:
    """Check an output of any shape."""
    check_out(out, *[None] * getattr(out, "ndim", 0))


def _like(name: str, buffer: object, out: Buffer) -> None:
    check(name, buffer, np.float32, *out.shape)


def _unary(kernel: str, out: Buffer, x: Buffer, **params: str) -> Call:
    _check_any(out)
    _like("x", x, out)
    return Call(find(out, kernel, **params), (out.size,), (out, x, *scalars(out.size)))


def _repeating(kernel: str, out: Buffer, a: Buffer, b: object) -> Call:
    _check_any(out)
    _like("a", a, out)
    if not isinstance(b, Buffer) or b.dtype != np.float32:
        raise ShapeError(f"b must be a float32 buffer, is {b.dtype if isinstance(b, Buffer) else type(b).__name__}")
    if b.ndim > a.ndim or b.shape != a.shape[a.ndim - b.ndim :]:
        raise ShapeError(f"b must have the shape of a, {a.shape}, or of its last axes, has {b.shape}")
    return Call(find(out, kernel), (out.size,), (out, a, b, *scalars(a.size, b.size)))


@op
def add(out: Buffer, a: Buffer, b: Buffer) -> Call:
    """Out = a + b; b may lack leading axes of a and then repeats. ``out`` may be a or b.

    Kernel ``add``, extent (size of a,), arguments (out, a, b, size of a, size of b).
    """
    return _repeating("add", out, a, b)


@op
def mul(out: Buffer, a: Buffer, b: Buffer) -> Call:
    """Out = a * b; as `add`.

    Kernel ``mul``, extent (size of a,), arguments (out, a, b, size of a, size of b).
    """
    return _repeating("mul", out, a, b)


@op
def silu(out: Buffer, x: Buffer) -> Call:
    """Out = x * sigmoid(x).

    Kernel ``silu``, extent (size,), arguments (out, x, size). ``out`` may be x.
    """
    return _unary("silu", out, x)


@op
def sigmoid(out: Buffer, x: Buffer) -> Call:
    """Out = 1 / (1 + exp(-x)).

    Kernel ``sigmoid``, extent (size,), arguments (out, x, size). ``out`` may be x.
    """
    return _unary("sigmoid", out, x)


@op
def gelu(out: Buffer, x: Buffer, *, approximate: str = "tanh") -> Call:
    """Out = x * Phi(x) (Hendrycks and Gimpel 2016, arXiv:1606.08415), exactly (``"none"``) or by its tanh approximation.

    Kernel ``gelu`` {approximate: "tanh" | "none"}, extent (size,), arguments (out, x, size). ``out`` may be x.
    """
    if approximate not in ("tanh", "none"):
        raise ShapeError(f"approximate must be 'tanh' or 'none', is {approximate!r}")
    return _unary("gelu", out, x, approximate=approximate)


@op
def swiglu(out: Buffer, gate: Buffer, up: Buffer) -> Call:
    """Out = silu(gate) * up (Shazeer 2020, arXiv:2002.05202).

    Kernel ``swiglu``, extent (size,), arguments (out, gate, up, size). ``out`` may be gate or up.
    """
    _check_any(out)
    _like("gate", gate, out)
    _like("up", up, out)
    return Call(find(out, "swiglu"), (out.size,), (out, gate, up, *scalars(out.size)))


@op
def argmax(out: Buffer, x: Buffer) -> Call:
    """out[n] i32 = index of the largest of x[n, d] along the last axis, as ``numpy.argmax``: the first one, NaN is largest.

    Kernel ``argmax``, extent (n,), arguments (out, x, n, d).
    """
    n, d = check("x", x, np.float32, None, None)
    if not d:
        raise ShapeError("x has no columns, so there is no largest")
    check_out(out, n, dtype=np.int32)
    return Call(find(out, "argmax"), (n,), (out, x, *scalars(n, d)))
