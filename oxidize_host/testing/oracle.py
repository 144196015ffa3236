"""The standard operations as plain float64 formulas: independent of every backend, the reference one included.

Arrays in, float64 arrays out. Nothing here is clever; whatever is computed elsewhere is compared with it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from oxidize_host import quant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    F64 = NDArray[np.float64]

__all__ = [
    "attention",
    "decode",
    "gelu",
    "normalize",
    "random_weight",
    "rope",
    "sigmoid",
    "silu",
    "softmax",
]


def decode(data: Array, weight_format: str) -> NDArray[np.float32]:
    """Return decoded rows, by ``gguf.quants`` (the format's own package) where it is installed, else by `quant.decode`."""
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError:
        return quant.decode(data, weight_format)
    kind = GGMLQuantizationType(quant.FORMATS[weight_format].ggml_type)
    if weight_format in ("f32", "f16"):  # quants.dequantize wants these already typed
        return data.view("<f4" if weight_format == "f32" else "<f2").astype(np.float32)
    return np.asarray(quants.dequantize(data, kind), np.float32)


def random_weight(
    rng: np.random.Generator, weight_format: str, rows: int, columns: int, scale: float = 0.02
) -> NDArray[np.uint8]:
    """Return the bytes of a random matrix: all packed bits random, f16 scales within ``scale``, some zero or negative zero."""
    layout = quant.FORMATS[weight_format]
    if not layout.quantized:
        values = (rng.standard_normal((rows, columns)) * scale).astype(np.float32)
        if weight_format == "bf16":
            return (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8).reshape(rows, -1)
        return values.astype("<f4" if weight_format == "f32" else "<f2").view(np.uint8).reshape(rows, -1)
    data = rng.integers(0, 256, (rows, quant.row_bytes(weight_format, columns)), dtype=np.uint8)
    blocks = data.reshape(-1, layout.nbytes)
    for at in layout.scales:
        values16 = (rng.uniform(-scale, scale, len(blocks))).astype("<f2")
        values16[::7] = 0.0
        values16[3::11] = -0.0
        blocks[:, at : at + 2] = values16.view(np.uint8).reshape(-1, 2)
    return data


def sigmoid(x: Array) -> F64:
    """1 / (1 + exp(-x)), by the form that cannot overflow."""
    x = x.astype(np.float64)
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def silu(x: Array) -> F64:
    """X * sigmoid(x)."""
    return x.astype(np.float64) * sigmoid(x)


def gelu(x: Array, approximate: str) -> F64:
    """X * Phi(x), or its tanh approximation."""
    x = x.astype(np.float64)
    if approximate == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return np.asarray(x * np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x.ravel()]).reshape(x.shape))


def normalize(x: Array, weight: Array, eps: float) -> F64:
    """RMSNorm of the last axis."""
    x = x.astype(np.float64)
    mean = (x * x).mean(axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean + np.float64(np.float32(eps))) * weight.astype(np.float64))


def softmax(x: Array) -> F64:
    """Softmax of the last axis."""
    x = x.astype(np.float64)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def rope(x: Array, positions: Array, frequencies: Array, mode: str) -> F64:
    """Rotary embedding of x[n, heads, head_dim], one pair at a time, as multiplication of complex numbers."""
    out = x.astype(np.float64)
    half = len(frequencies)
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if mode == "normal" else (i, i + half)
        turn = np.exp(1j * positions.astype(np.float64) * np.float64(frequencies[i]))[:, None]
        rotated = (x[..., a].astype(np.float64) + 1j * x[..., b].astype(np.float64)) * turn
        out[..., a], out[..., b] = rotated.real, rotated.imag
    return out


def attention(q: Array, k: Array, v: Array, positions: Array, scale: float) -> F64:
    """Causal attention of q[n, heads, d] over caches [capacity, kv_heads, d], one token and one head at a time."""
    n, heads, _ = q.shape
    capacity, kv_heads, _ = k.shape
    out = np.zeros(q.shape, np.float64)
    for token in range(n):
        seen = min(int(positions[token]), capacity - 1) + 1
        for head in range(heads):
            kv = head // (heads // kv_heads)
            scores = k[:seen, kv].astype(np.float64) @ q[token, head].astype(np.float64) * scale
            out[token, head] = softmax(scores) @ v[:seen, kv].astype(np.float64)
    return out
