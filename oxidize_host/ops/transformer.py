"""Normalization, rotary embedding, the KV cache and attention."""

from __future__ import annotations

import numpy as np

from oxidize_host.errors import ShapeError
from oxidize_host.memory import Buffer
from oxidize_host.ops.op import Call, check, check_out, find, op, scalars

__all__ = ["attention", "rms_norm", "rope", "set_rows", "softmax"]

_CACHE = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16"}


def _cache(name: str, buffer: object) -> str:
    if not isinstance(buffer, Buffer) or buffer.dtype not in _CACHE:
        got = buffer.dtype if isinstance(buffer, Buffer) else type(buffer).__name__
        raise ShapeError(f"{name} must be a float32 or float16 buffer, is {got}")
    return _CACHE[buffer.dtype]


@op
def rms_norm(out: Buffer, x: Buffer, weight: Buffer, *, eps: float) -> Call:
    """out[n, d] = x / sqrt(mean(x^2, last axis) + eps) * weight[d] (Zhang and Sennrich 2019, arXiv:1910.07467).

    Kernel ``rms_norm``, extent (n,), arguments (out, x, weight, n, d, eps). ``out`` may be ``x``.
    """
    n, d = check("x", x, np.float32, None, None)
    check_out(out, n, d)
    check("weight", weight, np.float32, d)
    if not eps >= 0:
        raise ShapeError(f"eps must be a non-negative number, is {eps!r}")
    return Call(find(out, "rms_norm"), (n,), (out, x, weight, *scalars(n, d, float(eps))))


@op
def softmax(out: Buffer, x: Buffer) -> Call:
    """out[n, d] = exp(x - max) / sum(exp(x - max)) along the last axis.

    Kernel ``softmax``, extent (n,), arguments (out, x, n, d). ``out`` may be ``x``.
    """
    n, d = check("x", x, np.float32, None, None)
    check_out(out, n, d)
    return Call(find(out, "softmax"), (n,), (out, x, *scalars(n, d)))


@op
def rope(out: Buffer, x: Buffer, positions: Buffer, frequencies: Buffer, *, mode: str = "normal") -> Call:
    """Rotate pairs of x[n, heads, head_dim] by ``positions[n] * frequencies[i]`` radians (Su et al. 2021, arXiv:2104.09864).

    ``mode="normal"`` pairs (2i, 2i + 1), ``"neox"`` pairs (i, i + rotated / 2), where rotated is twice the number of
    frequencies; dimensions past it are copied.

    Kernel ``rope`` {mode}, extent (n, heads), arguments (out, x, positions i32[n], frequencies f32[rotated / 2], n, heads,
    head_dim, rotated). ``out`` may be ``x``.
    """
    n, heads, head_dim = check("x", x, np.float32, None, None, None)
    check_out(out, n, heads, head_dim)
    check("positions", positions, np.int32, n)
    (half,) = check("frequencies", frequencies, np.float32, None)
    if 2 * half > head_dim:
        raise ShapeError(f"frequencies: {half} pairs do not fit into heads of {head_dim}")
    if mode not in ("normal", "neox"):
        raise ShapeError(f"mode must be 'normal' or 'neox', is {mode!r}")
    sizes = scalars(n, heads, head_dim, 2 * half)
    return Call(find(out, "rope", mode=mode), (n, heads), (out, x, positions, frequencies, *sizes))


@op
def set_rows(out: Buffer, x: Buffer, rows: Buffer) -> Call:
    """out[rows[i]] = x[i], converted to the dtype of ``out``: appends to a KV cache. Rows out of range are skipped.

    Kernel ``set_rows`` {cache: "f32" | "f16"}, extent (n,), arguments (out[capacity, width], x f32[n, width], rows i32[n],
    n, width, capacity).
    """
    kind = _cache("out", out)
    n, width = check("x", x, np.float32, None, None)
    capacity, _ = check_out(out, None, width, dtype=out.dtype)
    check("rows", rows, np.int32, n)
    return Call(find(out, "set_rows", cache=kind), (n,), (out, x, rows, *scalars(n, width, capacity)))


@op
def attention(out: Buffer, q: Buffer, k_cache: Buffer, v_cache: Buffer, positions: Buffer, *, scale: float) -> Call:
    """Causal attention of q[n, heads, head_dim] over a KV cache: token i sees cache rows 0 to positions[i].

    out = softmax(scale * q @ k.T) @ v per head (Vaswani et al. 2017, arXiv:1706.03762); with fewer KV heads, head h uses KV
    head h // (heads / kv_heads) (Ainslie et al. 2023, arXiv:2305.13245).

    Kernel ``attention`` {cache: "f32" | "f16"}, extent (n, heads), arguments (out, q, k_cache[capacity, kv_heads, head_dim],
    v_cache, positions i32[n], n, heads, kv_heads, head_dim, capacity, scale). Positions are taken as at most capacity - 1.
    """
    kind = _cache("k_cache", k_cache)
    n, heads, head_dim = check("q", q, np.float32, None, None, None)
    check_out(out, n, heads, head_dim)
    capacity, kv_heads, _ = check("k_cache", k_cache, k_cache.dtype, None, None, head_dim)
    check("v_cache", v_cache, k_cache.dtype, capacity, kv_heads, head_dim)
    check("positions", positions, np.int32, n)
    if not kv_heads or heads % kv_heads:
        raise ShapeError(f"q has {heads} heads, which is no multiple of the {kv_heads} heads of k_cache")
    if not capacity:
        raise ShapeError("k_cache has no rows")
    sizes = scalars(n, heads, kv_heads, head_dim, capacity, float(scale))
    return Call(find(out, "attention", cache=kind), (n, heads), (out, q, k_cache, v_cache, positions, *sizes))
