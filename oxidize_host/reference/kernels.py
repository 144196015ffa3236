"""The standard operations in numpy: what every other kernel is compared with.

Each function takes (grid, block, *args) with the arguments that `oxidize_host.ops` documents for the kernel; buffers are uint8
arrays. Plain code matters more than speed here. Quantized weights are decoded to float32 and products use float activations.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from oxidize_host import quant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

__all__ = ["find"]

Raw = Any  # NDArray[np.uint8]; the views below give the real type
_CACHE = {"f32": np.float32, "f16": np.float16}
_ROWS_AT_ONCE = 8192  # bounds the float32 copy of decoded weights


def find(name: str, params: Mapping[str, str]) -> Callable[..., None] | None:
    """Return the function for a standard operation, or None."""
    if name in _BY_WEIGHT and set(params) == {"weight"} and params["weight"] in quant.FORMATS:
        return functools.partial(_BY_WEIGHT[name], params["weight"])
    if name in _BY_CACHE and set(params) == {"cache"} and params["cache"] in _CACHE:
        return functools.partial(_BY_CACHE[name], _CACHE[params["cache"]])
    return _PLAIN.get((name, *params.values()))


def _f32(raw: Raw, *shape: Any) -> NDArray[np.float32]:
    return raw.view(np.float32).reshape([int(dim) for dim in shape])  # type: ignore[no-any-return]


def _weight_rows(fmt: str, raw: Raw, rows: int) -> NDArray[np.uint8]:
    return raw.reshape(int(rows), -1)  # type: ignore[no-any-return]


def _gemm(fmt: str, grid: Any, block: Any, out: Raw, weight: Raw, x: Raw, m: Any, k: Any, n: Any) -> None:
    target, activations, rows = _f32(out, n, m), _f32(x, n, k), _weight_rows(fmt, weight, m)
    for start in range(0, int(m), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        target[:, part] = activations @ quant.decode(rows[part], fmt).T


def _gemv(fmt: str, grid: Any, block: Any, out: Raw, weight: Raw, x: Raw, m: Any, k: Any) -> None:
    _gemm(fmt, grid, block, out, weight, x, m, k, 1)


def _get_rows(fmt: str, grid: Any, block: Any, out: Raw, weight: Raw, ids: Raw, n: Any, d: Any, rows: Any) -> None:
    wanted, target = ids.view(np.int32), _f32(out, n, d)
    good = (wanted >= 0) & (wanted < int(rows))
    target[~good] = np.nan
    target[good] = quant.decode(_weight_rows(fmt, weight, rows)[wanted[good]], fmt)


def _rms_norm(grid: Any, block: Any, out: Raw, x: Raw, weight: Raw, n: Any, d: Any, eps: Any) -> None:
    rows = _f32(x, n, d)
    mean = np.mean(np.square(rows, dtype=np.float64), axis=-1, keepdims=True)
    _f32(out, n, d)[:] = rows / np.sqrt(mean + eps) * _f32(weight, d)


def _softmax(grid: Any, block: Any, out: Raw, x: Raw, n: Any, d: Any) -> None:
    _f32(out, n, d)[:] = _softmax_rows(_f32(x, n, d))


def _softmax_rows(x: NDArray[np.float32]) -> NDArray[np.float32]:
    if not x.size:
        return x
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)  # type: ignore[no-any-return]


def _rope(
    neox: bool,  # noqa: FBT001 - bound by functools.partial
    grid: Any,
    block: Any,
    out: Raw,
    x: Raw,
    pos: Raw,
    freqs: Raw,
    n: Any,
    heads: Any,
    hd: Any,
    rot: Any,
) -> None:
    half = int(rot) // 2
    rows = _f32(x, n, heads, hd).copy()
    angle = pos.view(np.int32).astype(np.float64)[:, None, None] * freqs.view(np.float32).astype(np.float64)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    first, second = (slice(0, half), slice(half, 2 * half)) if neox else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    a, b = rows[..., first].copy(), rows[..., second].copy()
    rows[..., first], rows[..., second] = a * cos - b * sin, a * sin + b * cos
    _f32(out, n, heads, hd)[:] = rows


def _set_rows(kind: Any, grid: Any, block: Any, out: Raw, x: Raw, rows: Raw, n: Any, width: Any, capacity: Any) -> None:
    target, wanted, values = out.view(kind).reshape(int(capacity), int(width)), rows.view(np.int32), _f32(x, n, width)
    good = (wanted >= 0) & (wanted < int(capacity))
    with np.errstate(over="ignore"):  # what exceeds a half is inf
        target[wanted[good]] = values[good]


def _attention(
    kind: Any, grid: Any, block: Any, out: Raw, q: Raw, k: Raw, v: Raw, pos: Raw,
    n: Any, heads: Any, kv_heads: Any, hd: Any, capacity: Any, scale: Any,
) -> None:  # fmt: skip
    queries, target = _f32(q, n, heads, hd), _f32(out, n, heads, hd)
    shape = (int(capacity), int(kv_heads), int(hd))
    keys, values = k.view(kind).reshape(shape), v.view(kind).reshape(shape)
    group = int(heads) // int(kv_heads)
    for token, position in enumerate(pos.view(np.int32)):
        seen = min(int(position), int(capacity) - 1) + 1
        for head in range(int(kv_heads)):
            mine = slice(head * group, (head + 1) * group)
            near, content = keys[:seen, head].astype(np.float32), values[:seen, head].astype(np.float32)
            target[token, mine] = _softmax_rows(queries[token, mine] @ near.T * scale) @ content


def _add(grid: Any, block: Any, out: Raw, a: Raw, b: Raw, na: Any, nb: Any) -> None:
    if nb:
        _f32(out, -1, nb)[:] = _f32(a, -1, nb) + _f32(b, 1, nb)


def _mul(grid: Any, block: Any, out: Raw, a: Raw, b: Raw, na: Any, nb: Any) -> None:
    if nb:
        _f32(out, -1, nb)[:] = _f32(a, -1, nb) * _f32(b, 1, nb)


def _sigmoid_of(x: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # exp(-x) of a very negative x is inf, and 1 / inf the right limit
        result: NDArray[np.float32] = np.float32(1) / (np.float32(1) + np.exp(-x))
    return result


def _silu(grid: Any, block: Any, out: Raw, x: Raw, n: Any) -> None:
    values = _f32(x, n)
    _f32(out, n)[:] = values * _sigmoid_of(values)


def _sigmoid(grid: Any, block: Any, out: Raw, x: Raw, n: Any) -> None:
    _f32(out, n)[:] = _sigmoid_of(_f32(x, n))


def _swiglu(grid: Any, block: Any, out: Raw, gate: Raw, up: Raw, n: Any) -> None:
    values = _f32(gate, n)
    _f32(out, n)[:] = values * _sigmoid_of(values) * _f32(up, n)


def _gelu_tanh(grid: Any, block: Any, out: Raw, x: Raw, n: Any) -> None:
    v = _f32(x, n)
    with np.errstate(over="ignore"):  # the cube of a huge x is inf, and tanh(inf) is 1
        _f32(out, n)[:] = 0.5 * v * (1 + np.tanh(np.float32(0.7978845608028654) * (v + np.float32(0.044715) * v**3)))


def _gelu_exact(grid: Any, block: Any, out: Raw, x: Raw, n: Any) -> None:
    v = _f32(x, n)
    _f32(out, n)[:] = v * _normal_cdf(v.astype(np.float64))


def _normal_cdf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Phi(x) through math.erfc, element by element: numpy has no erf, and this is the oracle, not the fast path."""
    from math import erfc, sqrt

    return np.array([0.5 * erfc(-value / sqrt(2)) for value in x.ravel()], np.float64).reshape(x.shape)


def _argmax(grid: Any, block: Any, out: Raw, x: Raw, n: Any, d: Any) -> None:
    out.view(np.int32)[:] = np.argmax(_f32(x, n, d), axis=-1)


_BY_WEIGHT: dict[str, Callable[..., None]] = {"gemv": _gemv, "gemm": _gemm, "get_rows": _get_rows}
_BY_CACHE: dict[str, Callable[..., None]] = {"set_rows": _set_rows, "attention": _attention}
_PLAIN: dict[tuple[str, ...], Callable[..., None]] = {
    ("rms_norm",): _rms_norm,
    ("softmax",): _softmax,
    ("rope", "normal"): functools.partial(_rope, False),  # noqa: FBT003
    ("rope", "neox"): functools.partial(_rope, True),  # noqa: FBT003
    ("add",): _add,
    ("mul",): _mul,
    ("silu",): _silu,
    ("sigmoid",): _sigmoid,
    ("swiglu",): _swiglu,
    ("gelu", "tanh"): _gelu_tanh,
    ("gelu", "none"): _gelu_exact,
    ("argmax",): _argmax,
}
