"""Operations on each element, and the largest one of each row; `oxidize_host.ops` has the arguments.

Work item: 1024 elements, or one row of ``argmax``. NaN gives NaN; of minus infinity so do silu, swiglu and gelu, as in numpy.
"""
# mypy: disable-error-code="no-untyped-call,no-untyped-def,no-any-return"
# ruff: noqa: ANN001, ANN201, ANN202, PLR0124

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oxidize_cpu.kernels import mathfn, simd
from oxidize_cpu.kernels.ops import (
    any_of,
    f32,
    inline,
    load_f32,
    load_f32x16,
    load_first_f32x16,
    load_i64,
    max_of,
    select,
    splat_f32x16,
    splat_i32x16,
    store,
    store_first,
    store_i32,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Kernel = Callable[[int, int, int], None]

CHUNK = 1024  # as in standard
_FUNCTIONS = {
    "silu": mathfn.silu,
    "sigmoid": mathfn.sigmoid,
    "gelu_tanh": mathfn.gelu_tanh,
    "gelu_none": mathfn.gelu_exact,
}


def unary(function: str) -> Kernel:
    """out[i] = function(x[i]); arguments (out, x, size)."""
    of = _FUNCTIONS[function]

    def kernel(args, lo, hi):
        out, x, size = load_i64(args), load_i64(args + 8), load_i64(args + 16)
        start, stop = lo * CHUNK, min(hi * CHUNK, size)
        whole = start + (stop - start) // 16 * 16
        for i in range(start, whole, 16):
            store(out + i * 4, of(load_f32x16(x + i * 4)))
        if whole < stop:
            left = stop - whole
            store_first(out + whole * 4, of(load_first_f32x16(x + whole * 4, left)), left)

    return kernel


def swiglu() -> Kernel:
    """out[i] = silu(gate[i]) * up[i]; arguments (out, gate, up, size)."""

    def kernel(args, lo, hi):
        out, gate, up, size = load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24)
        _pairwise(_gated, out, gate, up, lo * CHUNK, min(hi * CHUNK, size))

    return kernel


@inline
def _gated(gate, up):
    return mathfn.silu(gate) * up


@inline
def _sum(a, b):
    return a + b


@inline
def _product(a, b):
    return a * b


@inline
def _pairwise(function, out, a, b, start, stop):
    """out[i] = function(a[i], b[i]) for start <= i < stop."""
    whole = start + (stop - start) // 16 * 16
    for i in range(start, whole, 16):
        store(out + i * 4, function(load_f32x16(a + i * 4), load_f32x16(b + i * 4)))
    if whole < stop:
        left, at = stop - whole, whole * 4
        store_first(out + at, function(load_first_f32x16(a + at, left), load_first_f32x16(b + at, left)), left)


def repeating(name: str) -> Kernel:
    """out[i] = a[i] + b[i % b_size], or the product; arguments (out, a, b, size, b_size)."""
    function: Any = {"add": _sum, "mul": _product}[name]

    def kernel(args, lo, hi):
        out, a, b = load_i64(args), load_i64(args + 8), load_i64(args + 16)
        size, b_size = load_i64(args + 24), load_i64(args + 32)
        start, stop = lo * CHUNK, min(hi * CHUNK, size)
        if b_size == 1:
            scalar = splat_f32x16(load_f32(b))
            whole = start + (stop - start) // 16 * 16
            for i in range(start, whole, 16):
                store(out + i * 4, function(load_f32x16(a + i * 4), scalar))
            if whole < stop:
                left, at = stop - whole, whole * 4
                store_first(out + at, function(load_first_f32x16(a + at, left), scalar), left)
            return
        while start < stop:
            column = start % b_size
            end = min(stop, start + b_size - column)
            _pairwise(function, out, a, b + (column - start) * 4, start, end)
            start = end

    return kernel


_lanes = simd.const("i32x16", list(range(16)))
_lowest = simd.const("f32x16", float("-inf"))


@inline
def _larger(a, b):
    return select(a > b, a, b)


@inline
def some(address, count, fill):
    """Return the first ``count`` of 16 floats, ``fill`` in the other lanes."""
    return select(_lanes(0) < splat_i32x16(count), load_first_f32x16(address, count), fill)


@inline
def largest(x, size):
    """Return the largest of ``size`` floats at ``x`` (minus infinity of none), and whether one is NaN."""
    m0, m1, m2, m3 = _lowest(0), _lowest(0), _lowest(0), _lowest(0)
    nan = m0 != m0
    fours = size // 64 * 64
    for i in range(0, fours, 64):
        v0, v1 = load_f32x16(x + i * 4), load_f32x16(x + i * 4 + 64)
        v2, v3 = load_f32x16(x + i * 4 + 128), load_f32x16(x + i * 4 + 192)
        m0, m1, m2, m3 = _larger(v0, m0), _larger(v1, m1), _larger(v2, m2), _larger(v3, m3)
        nan = nan | ((v0 != v0) | (v1 != v1)) | ((v2 != v2) | (v3 != v3))
    for i in range(fours, size, 16):
        v = some(x + i * 4, size - i, _lowest(0))
        m0, nan = _larger(v, m0), nan | (v != v)
    return max_of(_larger(_larger(m0, m1), _larger(m2, m3))), any_of(nan)


@inline
def _first(x, size, wanted, nan):
    """Return the index of the first float that is ``wanted``, or that is NaN."""
    target, at = splat_f32x16(wanted), 0
    while at + 16 <= size:
        v = load_f32x16(x + at * 4)
        if any_of((v != v) if nan else (v == target)):
            break
        at += 16
    for j in range(at, size):
        value = load_f32(x + j * 4)
        if (value != value) if nan else (value == wanted):
            return j
    return 0


def argmax() -> Kernel:
    """out[n] i32 = index of the first largest of x[n, size], NaN being larger than all; arguments (out, x, n, size)."""

    def kernel(args, lo, hi):
        out, x, size = load_i64(args), load_i64(args + 8), load_i64(args + 24)
        for row in range(lo, hi):
            at = x + row * size * 4
            value, nan = largest(at, size)
            store_i32(out + row * 4, _first(at, size, f32(value), nan))

    return kernel
