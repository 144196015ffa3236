"""Elementary functions of vectors in additions, multiplications and divisions: the same bits on every CPU.

All take and return ``f32x16`` unless they say otherwise. Errors are relative and the largest found among a million arguments.
There is no fused multiply-add here, whose bits the CPUs without one would not have.
"""
# mypy: disable-error-code="no-untyped-call,no-untyped-def,no-any-return"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from typing import Any

from oxidize_cpu.kernels import simd
from oxidize_cpu.kernels.ops import absolute, as_f32x16, as_i32x16, inline, narrow_f64, select


def polynomial(element: str, coefficients: list[float]) -> Any:
    """Make ``f(x)`` by Horner's rule, for 16 lanes; the first coefficient is the constant one."""
    kind = f"{element}x16"
    if len(coefficients) == 1:
        return simd.const(kind, coefficients[0])
    first, rest = simd.const(kind, coefficients[0]), polynomial(element, coefficients[1:])

    @inline
    def evaluate(x):
        return rest(x) * x + first(0)

    return evaluate


_one, _half = simd.const("f32x16", 1.0), simd.const("f32x16", 0.5)
_minus_one = simd.const("f32x16", -1.0)
_zero = simd.const("f32x16", 0.0)

# ---- exp: Cody and Waite, Software Manual for the Elementary Functions (1980), chapter 6 ---------------------------
# exp(x) = 2^n exp(r), |r| <= log(2) / 2. The polynomial is that of Moshier's Cephes library, expf.c (1992).

_exp_highest, _exp_lowest = simd.const("f32x16", 89.0), simd.const("f32x16", -105.0)
_log2_e, _log2_high = simd.const("f32x16", 1.4426950216293335), simd.const("f32x16", 0.693359375)
_log2_low = simd.const("f32x16", -0.00021219444170128554)
# Adding 1.5 * 2^23 leaves a float's nearest integer in its low bits; subtracting it again, as a float.
_round = simd.const("f32x16", 12582912.0)
_bias, _exponent = simd.const("i32x16", 127), simd.const("i32x16", 23)
_exp_tail = polynomial(
    "f32",
    [5.0000001201e-1, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4],
)


@inline
def _power_of_2(rounded):
    """Return 2^n of an n to which 1.5 * 2^23 is added."""
    return as_f32x16((as_i32x16(rounded) + _bias(0)) << _exponent(0))


@inline
def exp(x):
    """exp(x), error 1e-7; infinity and subnormal numbers where they are right."""
    x = select(x > _exp_highest(0), _exp_highest(0), x)
    x = select(x < _exp_lowest(0), _exp_lowest(0), x)
    n = x * _log2_e(0) + _round(0) - _round(0)
    r = x - n * _log2_high(0) - n * _log2_low(0)  # the first product is exact
    p = _exp_tail(r) * (r * r) + r + _one(0)
    # 2^n itself may be no float: the product of two halves of it is applied to p.
    half = n * _half(0) + _round(0)
    rest = n - (half - _round(0)) + _round(0)
    return p * _power_of_2(half) * _power_of_2(rest)


@inline
def sigmoid(x):
    """1 / (1 + exp(-x)), error 2e-7, by the form that cannot overflow."""
    e = exp(_zero(0) - absolute(x))
    return select(x < _zero(0), e, _one(0)) / (_one(0) + e)


@inline
def silu(x):
    """X * sigmoid(x), error 3e-7."""
    return x * sigmoid(x)


# ---- gelu: Hendrycks and Gimpel 2016, arXiv:1606.08415 -------------------------------------------------------------

_cubic, _two_sqrt_2_by_pi = simd.const("f32x16", 0.044715), simd.const("f32x16", 1.5957691216057308)


@inline
def gelu_tanh(x):
    """0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3); error 1.5e-6 above -4, growing below."""
    return x * sigmoid(_two_sqrt_2_by_pi(0) * (x + _cubic(0) * x * x * x))


# erfc(z) = t Q(t) exp(-z^2), t = 1 / (1 + 0.4 z), for z >= 0: the form of Hastings (1955), Abramowitz and Stegun 7.1.26.
# Q, of degree 8, was fitted for this module by Lawson's algorithm to the smallest relative error, 7e-8, for 0 <= z <= 10.5.
# Further out the result is below all floats.
_erfc_t = simd.const("f32x16", 0.4 * 0.7071067811865476)
_erfc_end = simd.const("f32x16", 14.8)
_erfc_q = polynomial(
    "f32",
    [0.2256406318571761, 0.22633430632724436, 0.20266110154913827, 0.19038334983644525, 0.08678618234630894,
     0.07784402783633185, 0.09278370167782554, -0.14455183136513855, 0.04211859569101229],
)  # fmt: skip
_minus_half = simd.const("f32x16", -0.5)


@inline
def gelu_exact(x):
    """X * Phi(x); Phi(-a) = erfc(a / sqrt(2)) / 2; error 7e-7 above -4, 4e-6 where results are about 1e-30."""
    a = absolute(x)
    a = select(a > _erfc_end(0), _erfc_end(0), a)
    t = _one(0) / (_one(0) + _erfc_t(0) * a)
    tail = _half(0) * t * _erfc_q(t) * exp(_minus_half(0) * a * a)
    return x * select(x < _zero(0), tail, _one(0) - tail)


# ---- sine and cosine of f64x16 --------------------------------------------------------------------------------------
# Cody and Waite, chapter 8: r = x - n pi/2. The parts of pi/2 have 22 bits or fewer, so that their products with any 31-bit
# n are exact. The polynomials are Taylor's, whose error is below 2e-10 where |r| <= pi/4.

_two_by_pi, _round_f64 = simd.const("f64x16", 0.6366197723675814), simd.const("f64x16", 6755399441055744.0)
_pi_by_2 = tuple(
    simd.const("f64x16", float.fromhex(part)) for part in ("0x1.921fbp+0", "0x1.5110bp-22", "0x1.18469898cc517p-44")
)
_pi_1, _pi_2, _pi_3 = _pi_by_2
_one_f64 = simd.const("f64x16", 1.0)
_sin_tail = polynomial("f64", [-1 / 6, 1 / 120, -1 / 5040, 1 / 362880, -1 / 39916800])
_cos_tail = polynomial("f64", [-1 / 2, 1 / 24, -1 / 720, 1 / 40320, -1 / 3628800])
_as_i64x16 = simd.bitcast("i64x16")
_one_i64, _two_i64, _zero_i64 = simd.const("i64x16", 1), simd.const("i64x16", 2), simd.const("i64x16", 0)


@inline
def cos_sin(angle):
    """Return the cosine and the sine, as f32x16, of angles in f64x16; error 6e-8 up to 2^31 radians, NaN of infinity."""
    rounded = angle * _two_by_pi(0) + _round_f64(0)
    n = rounded - _round_f64(0)
    r = angle - n * _pi_1(0) - n * _pi_2(0) - n * _pi_3(0)
    square = r * r
    sine = narrow_f64(r + r * square * _sin_tail(square))
    cosine = narrow_f64(_one_f64(0) + square * _cos_tail(square))
    quadrant = _as_i64x16(rounded)
    swap = (quadrant & _one_i64(0)) != _zero_i64(0)
    down = (quadrant & _two_i64(0)) != _zero_i64(0)
    left = ((quadrant + _one_i64(0)) & _two_i64(0)) != _zero_i64(0)
    s, c = select(swap, cosine, sine), select(swap, sine, cosine)
    return select(left, c * _minus_one(0), c), select(down, s * _minus_one(0), s)
