"""Normalization, softmax, rotary embedding and what fills the KV cache; `oxidize_host.ops` has the arguments.

Work item: one row; one token of ``rope``; 256 columns of ``set_rows``. Sums of a row are in float64.
"""
# mypy: disable-error-code="no-untyped-call,no-untyped-def,no-any-return"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from oxidize_cpu.kernels import simd
from oxidize_cpu.kernels.elementwise import largest, some
from oxidize_cpu.kernels.mathfn import cos_sin, exp
from oxidize_cpu.kernels.ops import (
    double_of,
    f32,
    float_of_bits,
    float_to_half,
    inline,
    load_f32x16,
    load_f32x32,
    load_first_f32x16,
    load_first_f32x32,
    load_i32,
    load_i64,
    narrow_f64,
    splat_f32x16,
    splat_f64x16,
    store,
    store_first,
    sum_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Kernel = Callable[[int, int, int], None]

COLUMNS = 256  # as in standard
_zero_f64 = simd.const("f64x16", 0.0)
_lowest = simd.const("f32x16", float("-inf"))


def rms_norm() -> Kernel:
    """out[n, d] = x / sqrt(mean(x^2) + eps) * weight[d]; arguments (out, x, weight, n, d, eps)."""

    def kernel(args, lo, hi):
        out, x, weight, d = load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 32)
        eps = float(float_of_bits(load_i64(args + 40)))
        whole, left = d // 16 * 16, d % 16
        for row in range(lo, hi):
            source, target = x + row * d * 4, out + row * d * 4
            sums = _zero_f64(0)
            for i in range(0, whole, 16):
                v = double_of(load_f32x16(source + i * 4))
                sums = sums + v * v
            if left:
                v = double_of(load_first_f32x16(source + whole * 4, left))
                sums = sums + v * v
            factor = splat_f64x16(1.0 / math.sqrt(sum_of(sums) / d + eps))
            for i in range(0, whole, 16):
                normal = narrow_f64(double_of(load_f32x16(source + i * 4)) * factor)
                store(target + i * 4, normal * load_f32x16(weight + i * 4))
            if left:
                at = whole * 4
                normal = narrow_f64(double_of(load_first_f32x16(source + at, left)) * factor)
                store_first(target + at, normal * load_first_f32x16(weight + at, left), left)

    return kernel


def softmax() -> Kernel:
    """out[n, d] = exp(x - max) / sum(exp(x - max)); arguments (out, x, n, d)."""

    def kernel(args, lo, hi):
        out, x, d = load_i64(args), load_i64(args + 8), load_i64(args + 24)
        whole, left = d // 16 * 16, d % 16
        for row in range(lo, hi):
            source, target = x + row * d * 4, out + row * d * 4
            value, _nan = largest(source, d)
            top = splat_f32x16(value)
            sums = _zero_f64(0)
            for i in range(0, whole, 16):
                e = exp(load_f32x16(source + i * 4) - top)
                store(target + i * 4, e)
                sums = sums + double_of(e)
            if left:
                e = exp(some(source + whole * 4, left, _lowest(0)) - top)
                store_first(target + whole * 4, e, left)
                sums = sums + double_of(e)
            factor = splat_f32x16(f32(1.0 / sum_of(sums)))
            for i in range(0, whole, 16):
                store(target + i * 4, load_f32x16(target + i * 4) * factor)
            if left:
                store_first(target + whole * 4, load_first_f32x16(target + whole * 4, left) * factor, left)

    return kernel


_even, _odd = simd.shuffle(range(0, 32, 2)), simd.shuffle(range(1, 32, 2))
_interleave = simd.shuffle([lane for pair in zip(range(16), range(16, 32), strict=True) for lane in pair])
_low, _high = simd.shuffle(range(16)), simd.shuffle(range(16, 32))


@inline
def _turn_neighbours(target, source, i, _half, count, cos, sin):
    at = i * 8
    both = load_f32x32(source + at) if count == 16 else load_first_f32x32(source + at, 2 * count)
    a, b = _even(_low(both, both), _high(both, both)), _odd(_low(both, both), _high(both, both))
    turned = _interleave(a * cos - b * sin, a * sin + b * cos)
    if count == 16:
        store(target + at, turned)
    else:
        store_first(target + at, turned, 2 * count)


@inline
def _turn_halves(target, source, i, half, count, cos, sin):
    p, q = i * 4, (i + half) * 4
    if count == 16:
        a, b = load_f32x16(source + p), load_f32x16(source + q)
        store(target + p, a * cos - b * sin)
        store(target + q, a * sin + b * cos)
    else:
        a, b = load_first_f32x16(source + p, count), load_first_f32x16(source + q, count)
        store_first(target + p, a * cos - b * sin, count)
        store_first(target + q, a * sin + b * cos, count)


def rope(mode: str) -> Kernel:
    """Turn pairs of x[n, heads, head_dim]; arguments (out, x, positions, frequencies, n, heads, head_dim, rotated).

    Cosines and sines are computed once for all heads of a token, 16 at a time.
    """
    turn: Any = {"normal": _turn_neighbours, "neox": _turn_halves}[mode]

    def kernel(args, lo, hi):
        out, x, positions, frequencies = load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24)
        heads, head_dim, rotated = load_i64(args + 40), load_i64(args + 48), load_i64(args + 56)
        half, step = rotated // 2, head_dim * 4
        for token in range(lo, hi):
            first = token * heads * step
            position = splat_f64x16(float(load_i32(positions + token * 4)))
            for i in range(0, half, 16):
                count = min(half - i, 16)
                cos, sin = cos_sin(double_of(load_first_f32x16(frequencies + i * 4, count)) * position)
                for head in range(heads):
                    at = first + head * step
                    turn(out + at, x + at, i, half, count, cos, sin)
            if rotated < head_dim and out != x:
                for head in range(heads):
                    at = first + head * step
                    _copy(out + at, x + at, rotated, head_dim)

    return kernel


@inline
def _copy(target, source, start, stop):
    whole = start + (stop - start) // 16 * 16
    for i in range(start, whole, 16):
        store(target + i * 4, load_f32x16(source + i * 4))
    if whole < stop:
        store_first(target + whole * 4, load_first_f32x16(source + whole * 4, stop - whole), stop - whole)


_same = inline(lambda v: v)


def set_rows(cache: str) -> Kernel:
    """out[rows[i]] = x[i], in the order of i; arguments (out[capacity, width], x, rows, n, width, capacity)."""
    convert, each = {"f32": (_same, 4), "f16": (float_to_half, 2)}[cache]

    def kernel(args, lo, hi):
        out, x, rows, n = load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24)
        width, capacity = load_i64(args + 32), load_i64(args + 40)
        start, stop = lo * COLUMNS, min(hi * COLUMNS, width)
        whole = start + (stop - start) // 16 * 16
        for i in range(n):
            row = load_i32(rows + i * 4)
            if 0 <= row < capacity:
                to, of = out + row * width * each, x + i * width * 4
                for column in range(start, whole, 16):
                    store(to + column * each, convert(load_f32x16(of + column * 4)))
                if whole < stop:
                    left = stop - whole
                    store_first(to + whole * each, convert(load_first_f32x16(of + whole * 4, left)), left)

    return kernel
