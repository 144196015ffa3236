"""One group of weights times its activations, for each format: ``f(acc f32x16, w, x) -> acc``.

``w`` is the address of the group's first block, ``x`` that of its record (`layout`) or of float32 activations.
The sum of acc's lanes is the product. Adding rows or tokens means calling these again: what two calls have in
common (unpacked weights, loaded activations) LLVM computes once.
"""
# ruff: noqa: ANN001, ANN202 - numba infers the types of what it compiles
# mypy: disable-error-code="no-untyped-call,no-untyped-def,no-any-return"

from __future__ import annotations

from typing import Any

from . import simd
from .layout import FORMATS
from .ops import (
    as_i8x8,
    as_mask64,
    dot_i8i8,
    dot_u8i8,
    float_of,
    fma,
    half_to_float,
    inline,
    load_f32x16,
    load_first_f32x16,
    load_first_i16x16,
    load_i8x16,
    load_i8x32,
    load_i8x64,
    load_i16x16,
    load_i16x32,
    load_i32x16,
    load_u16,
    load_u32,
    select,
    splat_i8x64,
    splat_i16x16,
    widen_u16,
    zero_f32x16,
    zero_i32x16,
)

_join = {lanes: simd.shuffle(range(2 * lanes)) for lanes in (8, 16, 32)}
_join8, _join16, _join32 = _join[8], _join[16], _join[32]
_widen_u8, _widen_i8 = simd.convert("i32x16", "zext"), simd.convert("i32x16", "sext")
_as_f32, _constant_15, _constant_128 = simd.bitcast("f32x16"), simd.const("i8x64", 15), simd.const("i8x64", -128)
_constant_4, _constant_16 = simd.const("i8x64", 4), simd.const("i8x64", 16)
_shift_16 = simd.const("i32x16", 16)


@inline
def _bf16(h):
    return _as_f32(widen_u16(h) << _shift_16(0))


@inline
def _low(q):
    return q & _constant_15(0)


@inline
def _high(q):
    return q >> _constant_4(0)


# ---- float weights -------------------------------------------------------------------------------------------


def _f32(acc, w, x):
    return fma(load_f32x16(w), load_f32x16(x), acc)


def _f32_rest(acc, w, x, count):
    return fma(load_first_f32x16(w, count), load_first_f32x16(x, count), acc)


def _sixteen_bits(convert: Any) -> tuple[Any, Any]:
    def whole(acc, w, x):
        acc = fma(convert(load_i16x16(w)), load_f32x16(x), acc)
        return fma(convert(load_i16x16(w + 32)), load_f32x16(x + 64), acc)

    def rest(acc, w, x, count):
        acc = fma(convert(load_first_i16x16(w, count)), load_first_f32x16(x, count), acc)
        return fma(convert(load_first_i16x16(w + 32, count - 16)), load_first_f32x16(x + 64, count - 16), acc)

    return whole, rest


# ---- blocks of 32 ----------------------------------------------------------------------------------------------


def _halves(fmt: str) -> Any:
    """q4_0, q4_1, q5_0, q5_1: [scale f16][minimum f16]?[fifth bits u32]?[16 bytes of nibbles]."""
    size = FORMATS[fmt].block_bytes
    has_minimum, has_fifth = fmt.endswith("1"), fmt.startswith("q5")
    fifth = 4 if has_minimum else 2
    nibbles = size - 16
    lanes = [lane for half in (0, 16) for block in (0, size // 2) for lane in [half + block] * 4]
    scales = simd.shuffle(lanes)
    minima = simd.shuffle([lane + 1 for lane in lanes])

    @inline
    def fifth_bits(w, part):
        """Return bit 16 for the elements of a half (0 or 2: the byte at which its 16 bits start) of four blocks."""
        at = w + fifth + part
        bits = load_u16(at) | load_u16(at + size) << 16 | load_u16(at + 2 * size) << 32 | load_u16(at + 3 * size) << 48
        return select(as_mask64(bits), _constant_16(0), splat_i8x64(0))

    @inline
    def unpack(w):
        at = w + nibbles
        q = _join32(
            _join16(load_i8x16(at), load_i8x16(at + size)), _join16(load_i8x16(at + 2 * size), load_i8x16(at + 3 * size))
        )
        low, high = _low(q), _high(q)
        if has_fifth:
            low, high = low | fifth_bits(w, 0), high | fifth_bits(w, 2)
        return low, high

    def plain(acc, w, x):
        low, high = unpack(w)
        dot = dot_u8i8(dot_u8i8(load_i32x16(x + 192), low, load_i8x64(x)), high, load_i8x64(x + 64))
        d = half_to_float(scales(load_i16x16(w), load_i16x16(w + 2 * size)))
        return fma(float_of(dot), d * load_f32x16(x + 128), acc)

    def with_minimum(acc, w, x):
        low, high = unpack(w)
        dot = dot_u8i8(dot_u8i8(zero_i32x16(0), low, load_i8x64(x)), high, load_i8x64(x + 64))
        first, second = load_i16x16(w), load_i16x16(w + 2 * size)
        acc = fma(half_to_float(minima(first, second)), load_f32x16(x + 192), acc)
        return fma(float_of(dot), half_to_float(scales(first, second)) * load_f32x16(x + 128), acc)

    return with_minimum if has_minimum else plain


_q8_scales = simd.shuffle([0] * 8 + [17] * 8)


@inline
def _q8_pair(acc, w, q, d, correction):
    weights = _join32(load_i8x32(w + 2), load_i8x32(w + 36)) ^ _constant_128(0)
    whole = load_i16x32(w)
    scale = half_to_float(_q8_scales(whole, whole))
    return fma(float_of(dot_i8i8(load_i32x16(correction), weights, load_i8x64(q))), scale * load_f32x16(d), acc)


def _q8_0(acc, w, x):
    acc = _q8_pair(acc, w, x, x + 128, x + 256)
    return _q8_pair(acc, w + 68, x + 64, x + 192, x + 320)


# ---- K super-blocks ----------------------------------------------------------------------------------------------

_k_scales = simd.shuffle([0] * 8 + [1] * 8)
_k_minima = simd.shuffle([16] * 8 + list(range(8, 16)))
_eights = [simd.shuffle([first] * 8 + [first + 2] * 8) for first in (0, 1, 4, 5)]
_eights0, _eights1, _eights2, _eights3 = _eights
_fours = [simd.shuffle([4 * part + lane // 4 for lane in range(16)]) for part in range(4)]
_fours0, _fours1, _fours2, _fours3 = _fours


@inline
def _scaled(acc, weights, q, scale):
    return fma(float_of(dot_u8i8(zero_i32x16(0), weights, load_i8x64(q))), scale, acc)


@inline
def _k_header(w, x):
    """Return 8 scales times those of the activations, then 8 minima times the activations' sums."""
    a, b, c = load_u32(w + 4), load_u32(w + 8), load_u32(w + 12)
    scales = (a & 0x3F3F3F3F) | ((c & 0x0F0F0F0F) | (a >> 2 & 0x30303030)) << 32
    minima = (b & 0x3F3F3F3F) | ((c >> 4 & 0x0F0F0F0F) | (b >> 2 & 0x30303030)) << 32
    both = float_of(_widen_u8(_join8(as_i8x8(scales), as_i8x8(minima))))
    head = load_i16x16(w)
    return both * half_to_float(_k_scales(head, head)) * load_f32x16(x + 256)


def _q4_k(acc, w, x):
    both = _k_header(w, x)
    acc = acc + _k_minima(both, zero_f32x16(0))
    q = load_i8x64(w + 16)
    acc = _scaled(acc, _low(q), x, _eights0(both, both))
    acc = _scaled(acc, _high(q), x + 64, _eights1(both, both))
    q = load_i8x64(w + 80)
    acc = _scaled(acc, _low(q), x + 128, _eights2(both, both))
    return _scaled(acc, _high(q), x + 192, _eights3(both, both))


_fifths = [simd.const("i8x64", [bit] * 32 + [bit << 2] * 32) for bit in (1, 2)]
_fifth0, _fifth1 = _fifths
_fifth2 = simd.const("i8x64", [16] * 32 + [64] * 32)
_fifth3 = simd.const("i8x64", [32] * 32 + [-128] * 32)


@inline
def _add_fifth(q, bits, which):
    return q | select((bits & which) != splat_i8x64(0), _constant_16(0), splat_i8x64(0))


def _q5_k(acc, w, x):
    both = _k_header(w, x)
    acc = acc + _k_minima(both, zero_f32x16(0))
    half = load_i8x32(w + 16)
    bits = _join32(half, half)
    q = load_i8x64(w + 48)
    acc = _scaled(acc, _add_fifth(_low(q), bits, _fifth0(0)), x, _eights0(both, both))
    acc = _scaled(acc, _add_fifth(_high(q), bits, _fifth1(0)), x + 64, _eights1(both, both))
    q = load_i8x64(w + 112)
    acc = _scaled(acc, _add_fifth(_low(q), bits, _fifth2(0)), x + 128, _eights2(both, both))
    return _scaled(acc, _add_fifth(_high(q), bits, _fifth3(0)), x + 192, _eights3(both, both))


_q6_mask = simd.const("i8x64", 0x30)
_shift2 = simd.const("i8x32", 2)
_shift4 = simd.const("i8x32", 4)


@inline
def _q6_half(acc, ql, qh, x, first, second):
    q, bits = load_i8x64(ql), load_i8x32(qh)
    top = _join32(bits << _shift4(0), bits << _shift2(0)) & _q6_mask(0)
    acc = _scaled(acc, _low(q) | top, x, first)
    top = _join32(bits, bits >> _shift2(0)) & _q6_mask(0)
    return _scaled(acc, _high(q) | top, x + 64, second)


def _q6_k(acc, w, x):
    scales = float_of(_widen_i8(load_i8x16(w + 192))) * half_to_float(splat_i16x16(load_u16(w + 208)))
    acc = fma(scales, load_f32x16(x + 320), acc)
    s = scales * load_f32x16(x + 256)
    acc = _q6_half(acc, w, w + 128, x, _fours0(s, s), _fours1(s, s))
    return _q6_half(acc, w + 64, w + 160, x + 128, _fours2(s, s), _fours3(s, s))


def group(fmt: str) -> tuple[Any, Any]:
    """Return the function for a whole group, and for floats the one for the first ``count`` values of one."""
    if fmt == "f32":
        return _f32, _f32_rest
    if fmt in ("f16", "bf16"):
        return _sixteen_bits(half_to_float if fmt == "f16" else _bf16)
    if FORMATS[fmt].order == "halves":
        return _halves(fmt), None
    return {"q8_0": _q8_0, "q4_k": _q4_k, "q5_k": _q5_k, "q6_k": _q6_k}[fmt], None
