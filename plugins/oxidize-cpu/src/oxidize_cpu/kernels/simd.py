"""Fixed-width vectors for numba: types, operators and memory access by address.

Kernels are ordinary numba functions over 64-bit addresses; what numba lacks for them is a vector value. Each
operation here lowers to plain LLVM vector IR, which every target legalises, so the same kernel is right on any
CPU. The few operations that differ by instruction set are calls of the functions named in `isa`, whose bodies
are linked in after numba has finished.

This module imports numba: import it only to compile.
"""
# numba ships no type information for its extension API.
# ruff: noqa: ANN001, ANN002, ANN202 - numba infers the types of what it compiles
# mypy: disable-error-code="misc,no-untyped-call,no-untyped-def,no-any-return"

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import signature
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()
_ELEMENTS: dict[str, Any] = {"i1": I1, "i8": I8, "i16": I16, "i32": I32, "i64": I64, "f32": F32, "f64": F64}
_SIZES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "f32": 4, "f64": 8}


class VecType(types.Type):
    """The numba type of ``lanes`` values of ``element`` ("i1" for masks)."""

    def __init__(self, element: str, lanes: int) -> None:
        self.element, self.lanes = element, lanes
        super().__init__(name=f"vec_{element}x{lanes}")

    @property
    def ir(self) -> Any:
        """The LLVM vector type."""
        return ir.VectorType(_ELEMENTS[self.element], self.lanes)

    @property
    def floating(self) -> bool:
        """Whether the elements are floats."""
        return self.element[0] == "f"


@register_model(VecType)
class _VecModel(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: VecType) -> None:
        super().__init__(manager, fe_type, fe_type.ir)


def vec(name: str) -> VecType:
    """Return the type called, for example, ``"f32x16"``."""
    element, lanes = name.split("x")
    return VecType(element, int(lanes))


def constant(kind: VecType, values: Any) -> Any:
    """Return an LLVM constant: one value for all lanes, or one per lane."""
    values = values if isinstance(values, list | tuple) else [values] * kind.lanes
    return ir.Constant(kind.ir, [ir.Constant(_ELEMENTS[kind.element], value) for value in values])


def broadcast(builder: Any, value: Any, kind: VecType) -> Any:
    """Return LLVM ``value`` in every lane."""
    first = builder.insert_element(ir.Constant(kind.ir, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, ir.Constant(kind.ir, ir.Undefined), constant(VecType("i32", kind.lanes), 0))


def call(builder: Any, name: str, result: Any, args: Sequence[Any], **options: Any) -> Any:
    """Call the LLVM intrinsic or external function ``name``, declared on first use."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    if name.startswith("ox."):
        function.attributes.add("nounwind")
    return builder.call(function, args, **options)


# ---- operators ----------------------------------------------------------------------------------------------


def _binary(op: Callable[..., Any], on_float: str | None, on_int: str) -> None:
    @type_callable(op)
    def _typer(_context):
        def typer(a, b):
            ok = isinstance(a, VecType) and a == b and (on_float is not None or not a.floating)
            return a if ok else None

        return typer

    @lower_builtin(op, VecType, VecType)
    def _lower(_context, builder, sig, args):
        name = on_float if sig.args[0].floating else on_int
        return getattr(builder, str(name))(*args)


for _name, _on_float, _on_int in (
    ("add", "fadd", "add"),
    ("sub", "fsub", "sub"),
    ("mul", "fmul", "mul"),
    ("truediv", "fdiv", "sdiv"),
    ("and_", None, "and_"),
    ("or_", None, "or_"),
    ("xor", None, "xor"),
    ("lshift", None, "shl"),
    ("rshift", None, "lshr"),
):
    _binary(getattr(operator, _name), _on_float, _on_int)
    _binary(getattr(operator, "i" + _name.rstrip("_")), _on_float, _on_int)  # a += b


def _compare(op: Callable[..., Any], sign: str) -> None:
    @type_callable(op)
    def _typer(_context):
        def typer(a, b):
            return VecType("i1", a.lanes) if isinstance(a, VecType) and a == b else None

        return typer

    @lower_builtin(op, VecType, VecType)
    def _lower(_context, builder, sig, args):
        if not sig.args[0].floating:
            return builder.icmp_signed(sign, *args)
        # != is true for NaN, as in Python; the others are false.
        return builder.fcmp_unordered(sign, *args) if sign == "!=" else builder.fcmp_ordered(sign, *args)


for _op, _sign in ((operator.lt, "<"), (operator.le, "<="), (operator.gt, ">"), (operator.eq, "=="), (operator.ne, "!=")):
    _compare(_op, _sign)


# ---- factories: each returns a function that compiled code may call -----------------------------------------


def _as(result: Any, emit: Callable[..., Any]) -> Any:
    """Make an intrinsic: ``result`` is its type, or computes it from the argument types (None refuses)."""

    def make(arity: int) -> Any:
        def typed(_typingctx, *args):
            kind = result(*args) if callable(result) and not isinstance(result, types.Type) else result
            if kind is None:
                return None
            return signature(kind, *args), lambda _ctx, builder, sig, values: emit(builder, sig, *values)

        # numba reads the argument names of an intrinsic, so each arity needs a signature of its own.
        one = lambda typingctx, a: typed(typingctx, a)  # noqa: E731, PLW0108
        two = lambda typingctx, a, b: typed(typingctx, a, b)  # noqa: E731, PLW0108
        three = lambda typingctx, a, b, c: typed(typingctx, a, b, c)  # noqa: E731, PLW0108
        return intrinsic({1: one, 2: two, 3: three}[arity])

    return make(emit.__code__.co_argcount - 2)


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, I8.as_pointer())


def _load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = align
    return value


def load(name: str) -> Any:
    """Make ``f(address) -> vector``; floats need alignment 4, the rest none."""
    kind = vec(name)
    align = _SIZES[kind.element] if kind.floating else 1
    return _as(kind, lambda b, _sig, address: _load(b, address, kind.ir, align))


def _first(builder: Any, count: Any, lanes: int) -> Any:
    """Return the mask of the first ``count`` lanes (int64; may be more than there are)."""
    kind = VecType("i64", lanes)
    return builder.icmp_signed("<", constant(kind, list(range(lanes))), broadcast(builder, count, kind))


def load_first(name: str) -> Any:
    """Make ``f(address, count) -> vector``: zeros beyond ``count`` lanes, where no memory is read."""
    kind = vec(name)
    suffix = f"v{kind.lanes}{kind.element}.p0"
    align = ir.Constant(I32, _SIZES[kind.element] if kind.floating else 1)

    def emit(b, _sig, address, count):
        zero = ir.Constant(kind.ir, None)
        args = [_pointer(b, address), align, _first(b, count, kind.lanes), zero]
        return call(b, f"llvm.masked.load.{suffix}", kind.ir, args)

    return _as(kind, emit)


def _emit_store(b, sig, address, value):
    kind = sig.args[1]
    b.store(value, b.inttoptr(address, kind.ir.as_pointer()), align=_SIZES[kind.element] if kind.floating else 1)
    return ir.Constant(I8.as_pointer(), None)


def _emit_store_first(b, sig, address, value, count):
    kind = sig.args[1]
    align = ir.Constant(I32, _SIZES[kind.element] if kind.floating else 1)
    args = [value, _pointer(b, address), align, _first(b, count, kind.lanes)]
    call(b, f"llvm.masked.store.v{kind.lanes}{kind.element}.p0", ir.VoidType(), args)
    return ir.Constant(I8.as_pointer(), None)


def splat(name: str) -> Any:
    """Make ``f(scalar) -> vector``; the scalar must have the element's type (int64 is truncated)."""
    kind = vec(name)

    def emit(b, sig, value):
        if not kind.floating and sig.args[0].bitwidth > _ELEMENTS[kind.element].width:
            value = b.trunc(value, _ELEMENTS[kind.element])
        return broadcast(b, value, kind)

    return _as(kind, emit)


def const(name: str, values: Any) -> Any:
    """Make ``f(ignored) -> vector`` of constants: one value, or one per lane."""
    kind = vec(name)
    return _as(kind, lambda _b, _sig, _ignored: constant(kind, values))


def shuffle(lanes: Sequence[int]) -> Any:
    """Make ``f(a, b) -> vector`` with the lanes named, counted through ``a`` and then ``b``."""
    mask = constant(VecType("i32", len(lanes)), list(lanes))

    def result(a, b):
        return VecType(a.element, len(lanes)) if isinstance(a, VecType) and a == b else None

    return _as(result, lambda b, _sig, x, y: b.shuffle_vector(x, y, mask))


def bitcast(name: str) -> Any:
    """Make ``f(vector) -> vector`` of the same bits (an int64 also serves as a vector of 64 bits)."""
    kind = vec(name)
    return _as(kind, lambda b, _sig, value: b.bitcast(value, kind.ir))


def convert(name: str, how: str) -> Any:
    """Make ``f(vector) -> vector`` by one of LLVM's casts: zext, sext, trunc, sitofp, fptosi, fpext, fptrunc."""
    kind = vec(name)
    return _as(kind, lambda b, _sig, value: getattr(b, how)(value, kind.ir))


def external(name: str, result: str, *, args: int) -> Any:
    """Make a call of the instruction-set function ``ox.<name>``; see `isa`."""
    kind = vec(result)
    one = lambda b, _sig, x: call(b, f"ox.{name}", kind.ir, [x])  # noqa: E731
    three = lambda b, _sig, x, y, z: call(b, f"ox.{name}", kind.ir, [x, y, z])  # noqa: E731
    return _as(kind, one if args == 1 else three)


def stack(size: int) -> Any:
    """Make ``f(ignored) -> address`` of ``size`` bytes of this call's stack, aligned to 64."""

    def emit(b, _sig, _ignored):
        with b.goto_entry_block():
            slot = b.alloca(ir.ArrayType(I8, size))
            slot.align = 64
        return b.ptrtoint(slot, I64)

    return _as(types.int64, emit)


def _same(*args):
    return args[-1] if all(isinstance(arg, VecType) for arg in args) else None


def _suffix(kind: VecType) -> str:
    return f"v{kind.lanes}{kind.element.replace('x', '')}"


store = _as(types.void, _emit_store)
store_first = _as(types.void, _emit_store_first)
select = _as(_same, lambda b, _sig, mask, yes, no: b.select(mask, yes, no))
