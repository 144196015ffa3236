"""Phase 1 of a quantized product: float32 activations to records of 8-bit ones; see `layout`.

Arguments of gemv and gemm: (out, w, x f32[n,k], m, k, ..., scratch). Work item: one record.
Infinite or NaN activations give a scale that is not finite, and so results that are not finite.
"""
# ruff: noqa: ANN001, ANN202 - numba infers the types of what it compiles
# mypy: disable-error-code="no-untyped-call,no-untyped-def,no-any-return"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import simd
from .layout import FORMATS
from .ops import (
    absolute,
    as_i32x16,
    dot_u8i8,
    f32,
    float_of,
    inline,
    load_f32x16,
    load_i8x64,
    load_i64,
    max_of,
    narrow_i8,
    select,
    splat_f32x8,
    splat_f32x16,
    splat_i8x64,
    splat_i32x16,
    store,
    store_f32,
    sum_of,
    zero_i32x16,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# Adding 1.5 * 2**23 leaves a float's nearest integer (ties to even) in its low bits.
_MAGIC = f32(12582912.0)
_i32_of_i8 = simd.convert("i32x16", "sext")
_splat_f32x4 = simd.splat("f32x4")


@inline
def _block(x):
    """Return the scale of the 32 values at ``x`` and their 8-bit values in two vectors of 16."""
    a, b = load_f32x16(x), load_f32x16(x + 64)
    largest = max_of(_larger(absolute(a), absolute(b)))
    inverse = splat_f32x16(f32(127.0) / largest if largest > f32(0.0) else f32(0.0))
    magic = splat_f32x16(_MAGIC)
    qa, qb = narrow_i8(as_i32x16(a * inverse + magic)), narrow_i8(as_i32x16(b * inverse + magic))
    # x - x is 0 unless x is infinite or NaN, which max_of may have missed.
    return largest / f32(127.0) + sum_of((a - a) + (b - b)), qa, qb


@inline
def _larger(a, b):
    """Return the larger of each lane."""
    return select(a > b, a, b)


@inline
def _sums(address):
    """Return the sums of each four signed bytes of 64."""
    return dot_u8i8(zero_i32x16(0), splat_i8x64(1), load_i8x64(address))


@inline
def _clear(address, size):
    for offset in range(0, size, 64):
        store(address + offset, zero_i32x16(0))


@inline
def _total(q):
    """Return the sum of 16 signed bytes."""
    return sum_of(_i32_of_i8(q))


def activations(fmt: str, scratch_slot: str) -> Callable[[int, int, int], None]:
    """Quantize what meets weights of ``fmt``; the records lie where argument ``scratch_slot`` points."""
    form = FORMATS[fmt]
    pack = {"halves": _halves, "natural": _natural, "pairs": _pairs, "sixteens": _sixteens}[form.order](form.correction)
    group, record, scratch = form.group, form.record, int(scratch_slot) * 8
    blocks = group // 32

    def kernel(args, lo, hi):
        x, k = load_i64(args + 16), load_i64(args + 32)
        records = load_i64(args + scratch)
        groups = (k + group - 1) // group
        for item in range(lo, hi):
            row, column = item // groups, item % groups
            # The first block to count, and where the (maybe overlapping) group starts, in blocks of this row.
            first = column * blocks
            start = max(min(first, k // 32 - blocks), 0)
            to = records + item * record
            if (column + 1) * group > k:
                _clear(to, record)
            pack(to, x + (row * k + start * 32) * 4, first - start, min(blocks, k // 32 - start))

    return kernel


def _halves(correction: str) -> Any:
    sums, offset = correction == "sums", 0 if correction == "sums" else -int(correction)

    @inline
    def pack(to, x, first, last):
        for block in range(first, last):
            d, a, b = _block(x + block * 128)
            store(to + block * 16, a)
            store(to + 64 + block * 16, b)
            store(to + 128 + block * 16, _splat_f32x4(d))
        total = _sums(to) + _sums(to + 64)
        if sums:
            store(to + 192, float_of(total) * load_f32x16(to + 128))
        else:
            store(to + 192, total * splat_i32x16(offset))

    return pack


def _natural(correction: str) -> Any:
    offset = -int(correction)

    @inline
    def pack(to, x, first, last):
        for block in range(first, last):
            d, a, b = _block(x + block * 128)
            store(to + block * 32, a)
            store(to + block * 32 + 16, b)
            store(to + 128 + block * 32, splat_f32x8(d))
        store(to + 256, _sums(to) * splat_i32x16(offset))
        store(to + 320, _sums(to + 64) * splat_i32x16(offset))

    return pack


def _pairs(_correction: str) -> Any:
    @inline
    def pack(to, x, _first, _last):
        for block in range(8):
            d, a, b = _block(x + block * 128)
            place = to + (block >> 2) * 128 + (block & 1) * 64 + ((block >> 1) & 1) * 32
            store(place, a)
            store(place + 16, b)
            store_f32(to + 256 + block * 4, d)
            store_f32(to + 288 + block * 4, -d * f32(_total(a) + _total(b)))

    return pack


def _sixteens(_correction: str) -> Any:
    @inline
    def pack(to, x, _first, _last):
        for block in range(8):
            d, a, b = _block(x + block * 128)
            store(to + block * 32, a)
            store(to + block * 32 + 16, b)
            store_f32(to + 256 + block * 8, d)
            store_f32(to + 260 + block * 8, d)
            store_f32(to + 320 + block * 8, f32(-32.0) * d * f32(_total(a)))
            store_f32(to + 324 + block * 8, f32(-32.0) * d * f32(_total(b)))

    return pack
