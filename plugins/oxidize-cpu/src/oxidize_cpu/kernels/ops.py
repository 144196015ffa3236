"""The vocabulary of the kernels: named vector operations, scalar memory access, masks, reductions, atomics.

This module imports numba: import it only to compile.
"""
# numba ships no type information for its extension API.
# ruff: noqa: ANN001, ANN202 - numba infers the types of what it compiles
# mypy: disable-error-code="misc,no-untyped-call,no-untyped-def,no-any-return"

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types

from . import simd
from .simd import F32, F64, I8, I16, I32, I64, VecType, call, vec

f32 = np.float32
i32 = np.int32


def inline(function: Any) -> Any:
    """Compile a helper that is always inlined into the kernel that calls it."""
    return njit(function, forceinline=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


# ---- scalars by address (unaligned; narrow integers widen to int64 without sign) -------------------------------


def _scalar(llvm_type: Any, result: types.Type, align: int, widen: str = "") -> Any:
    def emit(b, _sig, address):
        value = simd._load(b, address, llvm_type, align)
        return getattr(b, widen)(value, I64) if widen else value

    return simd._as(result, emit)


def _put(llvm_type: Any, align: int) -> Any:
    def emit(b, _sig, address, value):
        if isinstance(llvm_type, ir.IntType) and value.type.width > llvm_type.width:
            value = b.trunc(value, llvm_type)
        b.store(value, b.inttoptr(address, llvm_type.as_pointer()), align=align)
        return ir.Constant(I8.as_pointer(), None)

    return simd._as(types.void, emit)


load_u8 = _scalar(I8, types.int64, 1, "zext")
load_u16 = _scalar(I16, types.int64, 1, "zext")
load_u32 = _scalar(I32, types.int64, 1, "zext")
load_i32 = _scalar(I32, types.int64, 1, "sext")
load_i64 = _scalar(I64, types.int64, 8)
load_f32 = _scalar(F32, types.float32, 4)
load_f64 = _scalar(F64, types.float64, 8)
store_u8 = _put(I8, 1)
store_u16 = _put(I16, 1)
store_i32 = _put(I32, 4)
store_i64 = _put(I64, 8)
store_f32 = _put(F32, 4)
store_f64 = _put(F64, 8)

# ---- vectors -------------------------------------------------------------------------------------------------

load_f32x16, load_f32x8, load_f32x4 = simd.load("f32x16"), simd.load("f32x8"), simd.load("f32x4")
load_f32x32 = simd.load("f32x32")
load_i32x16 = simd.load("i32x16")
load_i16x16, load_i16x32 = simd.load("i16x16"), simd.load("i16x32")
load_i8x16, load_i8x32, load_i8x64 = simd.load("i8x16"), simd.load("i8x32"), simd.load("i8x64")
load_first_f32x16, load_first_f32x32 = simd.load_first("f32x16"), simd.load_first("f32x32")
load_first_i16x16 = simd.load_first("i16x16")
store, store_first, select = simd.store, simd.store_first, simd.select
splat_f32x16, splat_f32x8 = simd.splat("f32x16"), simd.splat("f32x8")
splat_i32x16, splat_i8x64, splat_i8x32 = simd.splat("i32x16"), simd.splat("i8x64"), simd.splat("i8x32")
splat_i16x16, splat_f64x16 = simd.splat("i16x16"), simd.splat("f64x16")
zero_f32x16, zero_i32x16 = simd.const("f32x16", 0.0), simd.const("i32x16", 0)

as_f32x16, as_i32x16, as_i8x64 = simd.bitcast("f32x16"), simd.bitcast("i32x16"), simd.bitcast("i8x64")
as_mask64, as_mask32, as_i8x8 = simd.bitcast("i1x64"), simd.bitcast("i1x32"), simd.bitcast("i8x8")
float_of = simd.convert("f32x16", "sitofp")
int_of = simd.convert("i32x16", "fptosi")
widen_u16 = simd.convert("i32x16", "zext")
narrow_f64 = simd.convert("f32x16", "fptrunc")
double_of = simd.convert("f64x16", "fpext")
double_of_int = simd.convert("f64x16", "sitofp")
narrow_i8 = simd.convert("i8x16", "trunc")

half_to_float = simd.external("h2f", "f32x16", args=1)
half_to_float8 = simd.external("h2f8", "f32x8", args=1)
float_to_half = simd.external("f2h", "i16x16", args=1)
dot_u8i8 = simd.external("dp", "i32x16", args=3)
dot_i8i8 = simd.external("dp8", "i32x16", args=3)  # of what is 128 less than its second argument; see isa


def _unary(name: str) -> Any:
    return simd._as(simd._same, lambda b, sig, x: call(b, f"llvm.{name}.{simd._suffix(sig.args[0])}", sig.args[0].ir, [x]))


absolute, round_even, square_root, floor_of = _unary("fabs"), _unary("rint"), _unary("sqrt"), _unary("floor")


def _emit_fma(b, sig, x, y, z):
    kind = sig.args[0]
    return call(b, "ox.fma" if kind.ir == vec("f32x16").ir else f"llvm.fmuladd.{simd._suffix(kind)}", kind.ir, [x, y, z])


# Rounds once for 16 floats, on every CPU; for other vectors, as is fast.
fma = simd._as(simd._same, _emit_fma)


def _reduction(operation: str) -> Any:
    """Sum or maximum of all lanes by halving, so that the order is the same on every target."""

    def emit(b, sig, x):
        lanes = sig.args[0].lanes
        while lanes > 1:
            lanes //= 2
            undefined = ir.Constant(x.type, ir.Undefined)
            low, high = (
                b.shuffle_vector(x, undefined, simd.constant(VecType("i32", lanes), list(range(at, at + lanes))))
                for at in (0, lanes)
            )
            if operation == "add":
                x = b.fadd(low, high) if sig.args[0].floating else b.add(low, high)
            else:
                x = b.select(b.fcmp_ordered(">", low, high), low, high)
        return b.extract_element(x, ir.Constant(I32, 0))

    scalars = {"f32": types.float32, "f64": types.float64, "i32": types.int32, "i64": types.int64}
    return simd._as(lambda x: scalars.get(getattr(x, "element", "")), emit)


sum_of, max_of = _reduction("add"), _reduction("max")


def _emit_any(b, sig, mask):
    bits = b.bitcast(mask, ir.IntType(sig.args[0].lanes))
    return b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))


any_of = simd._as(types.boolean, _emit_any)
float_bits = simd._as(types.int32, lambda b, _sig, x: b.bitcast(x, I32))
float_of_bits = simd._as(types.float32, lambda b, _sig, x: b.bitcast(b.trunc(x, I32) if x.type != I32 else x, F32))
sqrt_f32 = simd._as(types.float32, lambda b, _sig, x: call(b, "llvm.sqrt.f32", F32, [x]))


def _emit_prefetch(b, _sig, address):
    flags = [ir.Constant(I32, flag) for flag in (0, 3, 1)]
    call(b, "llvm.prefetch.p0", ir.VoidType(), [simd._pointer(b, address), *flags])
    return ir.Constant(I8.as_pointer(), None)


prefetch = simd._as(types.void, _emit_prefetch)

# ---- threads ---------------------------------------------------------------------------------------------------


def _pointer64(b, address):
    return b.inttoptr(address, I64.as_pointer())


def _emit_atomic_store(b, _sig, address, value):
    b.store_atomic(value, _pointer64(b, address), "seq_cst", 8)
    return ir.Constant(I8.as_pointer(), None)


def _emit_swap(b, _sig, address, old, new):
    result = b.cmpxchg(_pointer64(b, address), old, new, "seq_cst", "seq_cst")
    return b.extract_value(result, 1)


def _emit_pause(b, _sig, _ignored):
    call(b, "ox.pause", ir.VoidType(), [])
    return ir.Constant(I8.as_pointer(), None)


def _emit_call(b, _sig, function, args, span):
    kind = ir.FunctionType(ir.VoidType(), [I64, I64, I64])
    lo, hi = (b.extract_value(span, index) for index in (0, 1))
    b.call(b.inttoptr(function, kind.as_pointer()), [args, lo, hi])
    return ir.Constant(I8.as_pointer(), None)


def _emit_call0(b, _sig, function):
    b.call(b.inttoptr(function, ir.FunctionType(I32, []).as_pointer()), [])
    return ir.Constant(I8.as_pointer(), None)


atomic_load = simd._as(types.int64, lambda b, _sig, address: b.load_atomic(_pointer64(b, address), "seq_cst", 8))
atomic_store = simd._as(types.void, _emit_atomic_store)
atomic_add = simd._as(
    types.int64, lambda b, _sig, address, value: b.atomic_rmw("add", _pointer64(b, address), value, "seq_cst")
)
# f(address, old, new) -> whether the value was old and is now new
atomic_swap = simd._as(types.boolean, _emit_swap)
pause = simd._as(types.void, _emit_pause)
# f(entry address, args address, (lo, hi))
call_entry = simd._as(types.void, _emit_call)
# f(address of an int function without arguments)
call_plain = simd._as(types.void, _emit_call0)
