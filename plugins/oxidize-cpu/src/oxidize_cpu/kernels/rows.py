"""Row lookup with decoding, bit for bit that of `oxidize_host.quant.decode`.

Arguments: (out f32[n, d], w, ids i32[n], n, d, rows). Work item: one row of out.
"""
# ruff: noqa: ANN001, ANN202 - numba infers the types of what it compiles
# mypy: disable-error-code="no-untyped-call,no-untyped-def,no-any-return"

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from oxidize_cpu.kernels import simd
from oxidize_cpu.kernels.layout import FORMATS
from oxidize_cpu.kernels.ops import (
    f32,
    float_of,
    half_to_float,
    inline,
    load_first_f32x16,
    load_first_i16x16,
    load_i8x16,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    splat_f32x16,
    splat_i16x16,
    splat_i32x16,
    store_first,
    widen_u16,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_widen, _widen_sign = simd.convert("i32x16", "zext"), simd.convert("i32x16", "sext")
_as_f32 = simd.bitcast("f32x16")
_lanes, _lanes_high = simd.const("i32x16", list(range(16))), simd.const("i32x16", list(range(16, 32)))
_NAN = f32(math.nan)


@inline
def _half(w):
    return half_to_float(splat_i16x16(load_u16(w)))


@inline
def _bits(w, shift, mask):
    """Return 16 bytes at ``w``, shifted right and masked, as integers."""
    return (_widen(load_i8x16(w)) >> splat_i32x16(shift)) & splat_i32x16(mask)


# ---- each: f(w, part) -> the 16 values after 16 * part of the block at w; for plain floats f(w, count) -> some values


def _f32(w, count):
    return load_first_f32x16(w, count)


def _f16(w, count):
    return half_to_float(load_first_i16x16(w, count))


def _bf16(w, count):
    return _as_f32(widen_u16(load_first_i16x16(w, count)) << splat_i32x16(16))


def _fours(fmt: str) -> Any:
    has_minimum, has_fifth = fmt.endswith("1"), fmt.startswith("q5")
    fifth = 4 if has_minimum else 2
    nibbles = fifth + 4 if has_fifth else fifth
    offset = 16 if has_fifth else 8

    def decode(w, part):
        q = _bits(w + nibbles, part * 4, 15)
        if has_fifth:
            bits = splat_i32x16(load_u32(w + fifth) >> part * 16)
            q = q | ((bits >> _lanes(0)) & splat_i32x16(1)) << splat_i32x16(4)
        if has_minimum:
            return _half(w) * float_of(q) + _half(w + 2)
        return _half(w) * float_of(q - splat_i32x16(offset))

    return decode


def _q8_0(w, part):
    return _half(w) * float_of(_widen_sign(load_i8x16(w + 2 + part * 16)))


@inline
def _k_scale(w, sub):
    """Return the scale and the minimum of a sub-block of 32."""
    if sub < 4:
        scale, minimum = load_u8(w + 4 + sub) & 63, load_u8(w + 8 + sub) & 63
    else:
        both = load_u8(w + 8 + sub)
        scale = (both & 15) | (load_u8(w + sub) >> 6 << 4)
        minimum = (both >> 4) | (load_u8(w + 4 + sub) >> 6 << 4)
    return _half(w) * splat_f32x16(f32(scale)), _half(w + 2) * splat_f32x16(f32(minimum))


def _q4_k(w, part):
    sub, half = part >> 1, part & 1
    scale, minimum = _k_scale(w, sub)
    return scale * float_of(_bits(w + 16 + (sub >> 1) * 32 + half * 16, (sub & 1) * 4, 15)) - minimum


def _q5_k(w, part):
    sub, half = part >> 1, part & 1
    scale, minimum = _k_scale(w, sub)
    fifth = _bits(w + 16 + half * 16, sub, 1) << splat_i32x16(4)
    return scale * float_of(_bits(w + 48 + (sub >> 1) * 32 + half * 16, (sub & 1) * 4, 15) | fifth) - minimum


def _q6_k(w, part):
    side, sub, half = part >> 3, part >> 1 & 3, part & 1
    low = _bits(w + side * 64 + (sub & 1) * 32 + half * 16, (sub >> 1) * 4, 15)
    high = _bits(w + 128 + side * 32 + half * 16, sub * 2, 3) << splat_i32x16(4)
    scale = load_u8(w + 192 + part)
    signed = scale - ((scale & 128) << 1)
    return _half(w + 208) * splat_f32x16(f32(signed)) * float_of((low | high) - splat_i32x16(32))


def _decoder(fmt: str) -> Any:
    if fmt in ("q4_0", "q4_1", "q5_0", "q5_1"):
        return _fours(fmt)
    named = {"f32": _f32, "f16": _f16, "bf16": _bf16, "q8_0": _q8_0, "q4_k": _q4_k, "q5_k": _q5_k, "q6_k": _q6_k}
    return named[fmt]


def get_rows(fmt: str) -> Callable[[int, int, int], None]:
    """Return the kernel for weights of ``fmt``."""
    form = FORMATS[fmt]
    block, block_bytes, plain = form.block, form.block_bytes, not form.order
    decode = inline(_decoder(fmt))

    def kernel(args, lo, hi):
        out, w, ids = load_i64(args), load_i64(args + 8), load_i64(args + 16)
        d, rows = load_i64(args + 32), load_i64(args + 40)
        row_bytes = d // block * block_bytes
        for item in range(lo, hi):
            row, to = load_i32(ids + item * 4), out + item * d * 4
            known = 0 <= row < rows
            at = w + row * row_bytes
            for first in range(0, d, 16):
                left = d - first
                if not known:
                    store_first(to + first * 4, splat_f32x16(_NAN), left)
                elif plain:
                    store_first(to + first * 4, decode(at + first * block_bytes, left), left)
                else:
                    part = decode(at + first // block * block_bytes, first % block // 16)
                    store_first(to + first * 4, part, left)

    return kernel
