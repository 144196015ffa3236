"""Sums of float32 values at the speed of memory; arguments (out f32[1], x f32[n], n, sums of the parts).

Four streams keep more of the hardware's prefetchers busy than one does; prefetching in software only disturbed them.
"""
# ruff: noqa: ANN001, ANN202 - numba infers the types of what it compiles
# mypy: disable-error-code="no-untyped-call,no-untyped-def,no-any-return"

from __future__ import annotations

from typing import TYPE_CHECKING

from oxidize_cpu.kernels.layout import READ_PART
from oxidize_cpu.kernels.ops import (
    inline,
    load_f32x16,
    load_first_f32x16,
    load_i64,
    store_f32,
    sum_of,
    zero_f32x16,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@inline
def _sum(x, count):
    a, b, c, d = zero_f32x16(0), zero_f32x16(0), zero_f32x16(0), zero_f32x16(0)
    quarter = count // 64 * 64  # bytes
    for at in range(x, x + quarter, 64):
        a += load_f32x16(at)
        b += load_f32x16(at + quarter)
        c += load_f32x16(at + 2 * quarter)
        d += load_f32x16(at + 3 * quarter)
    for first in range(count // 64 * 64, count, 16):
        a += load_first_f32x16(x + first * 4, count - first)
    return sum_of((a + b) + (c + d))


def parts() -> Callable[[int, int, int], None]:
    """Work item: `READ_PART` values."""

    def kernel(args, lo, hi):
        x, n, sums = load_i64(args + 8), load_i64(args + 16), load_i64(args + 24)
        for item in range(lo, hi):
            first = item * READ_PART
            store_f32(sums + item * 4, _sum(x + first * 4, min(READ_PART, n - first)))

    return kernel


def total() -> Callable[[int, int, int], None]:
    """Work item: all the parts."""

    def kernel(args, _lo, _hi):
        out, n, sums = load_i64(args), load_i64(args + 16), load_i64(args + 24)
        store_f32(out, _sum(sums, (n + READ_PART - 1) // READ_PART))

    return kernel
