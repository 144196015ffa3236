"""What differs between instruction sets: a few LLVM functions, linked into each kernel after numba.

``ox.dp(c, u, s)`` adds to each 32-bit lane of c the dot product of the four unsigned bytes of u and the four
signed bytes of s at that lane, and needs u < 128; ``ox.dp8(c, u, s)`` does so for any u, and needs c to be -128 times the
sums of s: it is the dot product of u - 128; ``ox.fma`` rounds once; ``ox.h2f``, ``ox.h2f8`` and ``ox.f2h`` convert half floats, to nearest even;
``ox.pause`` tells the core that it spins. Every set gives the same bits.
"""

from __future__ import annotations

import os
import platform
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ISAS", "NAMES", "available", "choose", "prelude", "target"]

VARIABLE = "OXIDIZE_CPU_ISA"
# vnni512, vnni256: the dot product of AVX-512 VNNI or of AVX-VNNI; avx2: that of 8-bit values in pairs; generic: the host CPU but only portable
# LLVM IR; portable: the same for the oldest CPU of the architecture, and nothing taken for granted.
NAMES = ("dp", "dp8", "fma", "h2f", "h2f8", "f2h", "pause")
ISAS = ("vnni512", "vnni256", "avx2", "generic", "portable")


def available(features: Mapping[str, bool]) -> list[str]:
    """Return those of `ISAS` that a CPU with these features has, the best one first."""
    return [isa for isa in ISAS if _has(isa, features)]


def choose(features: Mapping[str, bool], override: str | None = None) -> str:
    """Return the best instruction set that the CPU has, or the override (default: ``OXIDIZE_CPU_ISA``).

    Raises
    ------
    ValueError
        The override is none of `ISAS`, or the CPU lacks it.
    """
    able = available(features)
    override = os.environ.get(VARIABLE, "") if override is None else override
    if not override:
        return able[0]
    if override not in able:
        raise ValueError(f"{VARIABLE}={override!r}: this CPU can do {', '.join(able)}")
    return override


def _has(isa: str, features: Mapping[str, bool]) -> bool:
    if isa == "vnni512":
        return all(features.get(name, False) for name in ("avx512vnni", "avx512bw", "avx512vl"))
    if isa == "vnni256":
        return features.get("avxvnni", False) or _has("vnni512", features)
    return isa != "avx2" or features.get("avx2", False)


def target(isa: str, cpu: str, features: Mapping[str, bool]) -> tuple[str, str]:
    """Return the CPU name and feature string to give to LLVM."""
    if isa == "portable":
        return "", ""
    return cpu, ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(features.items()))


def prelude(isa: str, features: Mapping[str, bool], text: str) -> str:
    """Return the LLVM functions that the kernel in ``text`` calls."""
    hardware_half = isa != "portable" and (features.get("f16c", False) or platform.machine() in ("arm64", "aarch64"))
    x86 = platform.machine().lower() in ("x86_64", "amd64", "i686")
    dot = {"vnni512": _DP512, "vnni256": _DP256, "avx2": _DP_AVX2}.get(isa, _DP)
    one_rounding = not x86 or (isa != "portable" and features.get("fma", False))
    parts = {
        "@ox.dp(": dot.replace("NAME", "dp"),
        "@ox.dp8(": _DP8_AVX2 if isa == "avx2" else dot.replace("NAME", "dp8"),
        "@ox.fma(": _FMA if one_rounding else _FMA_BY_PARTS,
        "@ox.h2f(": (_H2F if hardware_half else _H2F_BITS).replace("NAME", "h2f").replace("N x", "16 x"),
        "@ox.h2f8(": (_H2F if hardware_half else _H2F_BITS).replace("NAME", "h2f8").replace("N x", "8 x"),
        "@ox.f2h(": _F2H if hardware_half else _F2H_BITS,
        "@ox.pause(": _PAUSE if x86 else _NO_PAUSE,
    }
    bodies = [body for call, body in parts.items() if call in text]
    declarations = dict.fromkeys(line for body in bodies for line in body.splitlines() if line.startswith("declare"))
    return "\n".join([*declarations, *(re.sub(r"^declare.*$", "", body, flags=re.MULTILINE) for body in bodies)])


_DP512 = """
declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <16 x i32>, <16 x i32>)
define internal <16 x i32> @ox.NAME(<16 x i32> %c, <64 x i8> %u, <64 x i8> %s) alwaysinline nounwind {
  %ui = bitcast <64 x i8> %u to <16 x i32>
  %si = bitcast <64 x i8> %s to <16 x i32>
  %r = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %c, <16 x i32> %ui, <16 x i32> %si)
  ret <16 x i32> %r
}
"""


def _range(start: int, stop: int, step: int = 1) -> str:
    lanes = range(start, stop, step)
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"


_DP256 = f"""
declare <8 x i32> @llvm.x86.avx512.vpdpbusd.256(<8 x i32>, <8 x i32>, <8 x i32>)
define internal <16 x i32> @ox.NAME(<16 x i32> %c, <64 x i8> %u, <64 x i8> %s) alwaysinline nounwind {{
  %ui = bitcast <64 x i8> %u to <16 x i32>
  %si = bitcast <64 x i8> %s to <16 x i32>
  %c0 = shufflevector <16 x i32> %c, <16 x i32> poison, {_range(0, 8)}
  %c1 = shufflevector <16 x i32> %c, <16 x i32> poison, {_range(8, 16)}
  %u0 = shufflevector <16 x i32> %ui, <16 x i32> poison, {_range(0, 8)}
  %u1 = shufflevector <16 x i32> %ui, <16 x i32> poison, {_range(8, 16)}
  %s0 = shufflevector <16 x i32> %si, <16 x i32> poison, {_range(0, 8)}
  %s1 = shufflevector <16 x i32> %si, <16 x i32> poison, {_range(8, 16)}
  %r0 = call <8 x i32> @llvm.x86.avx512.vpdpbusd.256(<8 x i32> %c0, <8 x i32> %u0, <8 x i32> %s0)
  %r1 = call <8 x i32> @llvm.x86.avx512.vpdpbusd.256(<8 x i32> %c1, <8 x i32> %u1, <8 x i32> %s1)
  %r = shufflevector <8 x i32> %r0, <8 x i32> %r1, {_range(0, 16)}
  ret <16 x i32> %r
}}
"""

# The products of 16-bit values added in pairs are an idiom that LLVM knows as pmaddwd.
_DP = f"""
define internal <16 x i32> @ox.NAME(<16 x i32> %c, <64 x i8> %u, <64 x i8> %s) alwaysinline nounwind {{
  %uw = zext <64 x i8> %u to <64 x i32>
  %sw = sext <64 x i8> %s to <64 x i32>
  %p = mul nsw <64 x i32> %uw, %sw
  %p0 = shufflevector <64 x i32> %p, <64 x i32> poison, {_range(0, 64, 2)}
  %p1 = shufflevector <64 x i32> %p, <64 x i32> poison, {_range(1, 64, 2)}
  %q = add nsw <32 x i32> %p0, %p1
  %q0 = shufflevector <32 x i32> %q, <32 x i32> poison, {_range(0, 32, 2)}
  %q1 = shufflevector <32 x i32> %q, <32 x i32> poison, {_range(1, 32, 2)}
  %d = add nsw <16 x i32> %q0, %q1
  %r = add <16 x i32> %c, %d
  ret <16 x i32> %r
}}
"""

# Products of two pairs in 16 bits: 127 * 127 * 2 fits, and so does 128 * 127 * 2.
_AVX2 = f"""
declare <16 x i16> @llvm.x86.avx2.pmadd.ub.sw(<32 x i8>, <32 x i8>)
declare <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16>, <16 x i16>)
declare <32 x i8> @llvm.x86.avx2.psign.b(<32 x i8>, <32 x i8>)
define internal <16 x i32> @ox.NAME(<16 x i32> %c, <64 x i8> %u, <64 x i8> %s) alwaysinline nounwind {{
  %u0 = shufflevector <64 x i8> %u, <64 x i8> poison, {_range(0, 32)}
  %u1 = shufflevector <64 x i8> %u, <64 x i8> poison, {_range(32, 64)}
  %s0 = shufflevector <64 x i8> %s, <64 x i8> poison, {_range(0, 32)}
  %s1 = shufflevector <64 x i8> %s, <64 x i8> poison, {_range(32, 64)}
  BODY
  %p0 = call <16 x i16> @llvm.x86.avx2.pmadd.ub.sw(<32 x i8> %a0, <32 x i8> %b0)
  %p1 = call <16 x i16> @llvm.x86.avx2.pmadd.ub.sw(<32 x i8> %a1, <32 x i8> %b1)
  %q0 = call <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16> %p0, <16 x i16> splat (i16 1))
  %q1 = call <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16> %p1, <16 x i16> splat (i16 1))
  %q = shufflevector <8 x i32> %q0, <8 x i32> %q1, {_range(0, 16)}
  RETURN
}}
"""

_DP_AVX2 = (
    _AVX2.replace("%a", "%u")
    .replace("%b", "%s")
    .replace("BODY", "")
    .replace("RETURN", "%r = add <16 x i32> %c, %q\n  ret <16 x i32> %r")
)
_DP8_AVX2 = (
    _AVX2.replace("NAME", "dp8")
    .replace(
        "BODY",
        "\n".join(
            f"""
  %w{part} = xor <32 x i8> %u{part}, splat (i8 -128)
  %a{part} = call <32 x i8> @llvm.x86.avx2.psign.b(<32 x i8> %w{part}, <32 x i8> %w{part})
  %b{part} = call <32 x i8> @llvm.x86.avx2.psign.b(<32 x i8> %s{part}, <32 x i8> %w{part})
"""
            for part in (0, 1)
        ),
    )
    .replace("RETURN", "ret <16 x i32> %q")
)

_FMA = """
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
define internal <16 x float> @ox.fma(<16 x float> %a, <16 x float> %b, <16 x float> %c) alwaysinline nounwind {
  %r = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %c)
  ret <16 x float> %r
}
"""

# The product is exact in double precision. Their sum, rounded to odd (its last bit set if the error of the addition is not
# zero, after a step towards zero if the sum was too large), rounds to float as the exact sum would: Boldo and Melquiond 2008.
_FMA_BY_PARTS = """
define internal <16 x float> @ox.fma(<16 x float> %a, <16 x float> %b, <16 x float> %c) alwaysinline nounwind {
  %ad = fpext <16 x float> %a to <16 x double>
  %bd = fpext <16 x float> %b to <16 x double>
  %cd = fpext <16 x float> %c to <16 x double>
  %p = fmul <16 x double> %ad, %bd
  %s = fadd <16 x double> %p, %cd
  %cc = fsub <16 x double> %s, %p
  %pp = fsub <16 x double> %s, %cc
  %dc = fsub <16 x double> %cd, %cc
  %dp = fsub <16 x double> %p, %pp
  %e = fadd <16 x double> %dc, %dp
  %inexact = fcmp one <16 x double> %e, zeroinitializer
  %si = bitcast <16 x double> %s to <16 x i64>
  %ei = bitcast <16 x double> %e to <16 x i64>
  %differ = xor <16 x i64> %si, %ei
  %toolarge = icmp slt <16 x i64> %differ, zeroinitializer
  %less = sext <16 x i1> %toolarge to <16 x i64>
  %t0 = add <16 x i64> %si, %less
  %t = or <16 x i64> %t0, splat (i64 1)
  %odd = select <16 x i1> %inexact, <16 x i64> %t, <16 x i64> %si
  %od = bitcast <16 x i64> %odd to <16 x double>
  %r = fptrunc <16 x double> %od to <16 x float>
  ret <16 x float> %r
}
"""

_H2F = """
define internal <N x float> @ox.NAME(<N x i16> %h) alwaysinline nounwind {
  %x = bitcast <N x i16> %h to <N x half>
  %r = fpext <N x half> %x to <N x float>
  ret <N x float> %r
}
"""

# The 15 bits, moved to a float's place, need the exponent raised by 112: a multiplication, which is exact and
# also normalises subnormal halves. Infinity and NaN get the largest exponent instead.
_H2F_BITS = """
define internal <N x float> @ox.NAME(<N x i16> %h) alwaysinline nounwind {
  %w = zext <N x i16> %h to <N x i32>
  %body = and <N x i32> %w, splat (i32 32767)
  %sign = and <N x i32> %w, splat (i32 32768)
  %moved = shl <N x i32> %body, splat (i32 13)
  %f = bitcast <N x i32> %moved to <N x float>
  %m = fmul <N x float> %f, splat (float 0x46F0000000000000)
  %mi = bitcast <N x float> %m to <N x i32>
  %big = icmp ugt <N x i32> %body, splat (i32 31743)
  %inf = or <N x i32> %moved, splat (i32 2139095040)
  %abs = select <N x i1> %big, <N x i32> %inf, <N x i32> %mi
  %s = shl <N x i32> %sign, splat (i32 16)
  %ri = or <N x i32> %abs, %s
  %r = bitcast <N x i32> %ri to <N x float>
  ret <N x float> %r
}
"""

_F2H = """
define internal <16 x i16> @ox.f2h(<16 x float> %x) alwaysinline nounwind {
  %h = fptrunc <16 x float> %x to <16 x half>
  %r = bitcast <16 x half> %h to <16 x i16>
  ret <16 x i16> %r
}
"""

# Normal results: round by adding half of the last place (less one, plus the bit that makes ties go to even).
# Subnormal results: adding 0.5 leaves exactly the wanted bits at the bottom, rounded by the FPU.
_F2H_BITS = """
define internal <16 x i16> @ox.f2h(<16 x float> %x) alwaysinline nounwind {
  %b = bitcast <16 x float> %x to <16 x i32>
  %sign = and <16 x i32> %b, splat (i32 -2147483648)
  %a = and <16 x i32> %b, splat (i32 2147483647)
  %af = bitcast <16 x i32> %a to <16 x float>
  %odd0 = lshr <16 x i32> %a, splat (i32 13)
  %odd = and <16 x i32> %odd0, splat (i32 1)
  %n0 = add <16 x i32> %a, splat (i32 -939520001)
  %n1 = add <16 x i32> %n0, %odd
  %n = lshr <16 x i32> %n1, splat (i32 13)
  %d0 = fadd <16 x float> %af, splat (float 5.000000e-01)
  %d1 = bitcast <16 x float> %d0 to <16 x i32>
  %d = sub <16 x i32> %d1, splat (i32 1056964608)
  %small = icmp ult <16 x i32> %a, splat (i32 947912704)
  %finite = select <16 x i1> %small, <16 x i32> %d, <16 x i32> %n
  %large = icmp uge <16 x i32> %a, splat (i32 1199570944)
  %nan = icmp ugt <16 x i32> %a, splat (i32 2139095040)
  %special = select <16 x i1> %nan, <16 x i32> splat (i32 32256), <16 x i32> splat (i32 31744)
  %abs = select <16 x i1> %large, <16 x i32> %special, <16 x i32> %finite
  %s = lshr <16 x i32> %sign, splat (i32 16)
  %w = or <16 x i32> %abs, %s
  %r = trunc <16 x i32> %w to <16 x i16>
  ret <16 x i16> %r
}
"""

_PAUSE = """
declare void @llvm.x86.sse2.pause()
define internal void @ox.pause() alwaysinline nounwind {
  call void @llvm.x86.sse2.pause()
  ret void
}
"""

_NO_PAUSE = """
define internal void @ox.pause() alwaysinline nounwind {
  ret void
}
"""
