"""What the kernels without weights are made of, for `oxidize_host.ops`. Imports nothing that compiles.

Each work item computes the same bits whoever does it, however the items are divided, and whatever instructions the CPU has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oxidize_cpu.kernels.spec import KernelSpec, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oxidize_cpu.kernels.spec import Count

__all__ = ["find_spec"]

_CHUNK = 1024  # elements; as in elementwise
_QUERIES, _COLUMNS = 32, 256  # as in attention and transformer.set_rows
# What a vector of an elementary function costs, in the time that so many bytes take to be read.
_EXP = 2


def find_spec(name: str, params: Mapping[str, str]) -> KernelSpec | None:
    """Return the phases of a kernel of this module, or None if it has none such."""
    make = _KERNELS.get((name, *(word for item in sorted(params.items()) for word in item)))
    return None if make is None else make()


def _elementwise(entry: str, size: int, cost: int) -> Callable[[], KernelSpec]:
    """Work items of 1024 elements of ``cost`` bytes each; slot ``size`` counts the elements."""

    def items(slots: Sequence[int]) -> int:
        return -(-slots[size] // _CHUNK)

    return lambda: KernelSpec((Phase(entry, items, lambda _slots: _CHUNK * cost),))


def _rows(entry: str, items: Count, cost: Count) -> Callable[[], KernelSpec]:
    return lambda: KernelSpec((Phase(entry, items, cost),))


def _attention(cache: str) -> Callable[[], KernelSpec]:
    # slots: out, q, k, v, positions, n, heads, kv_heads, head_dim, capacity, scale
    def blocks(s: Sequence[int]) -> int:
        return -(-s[5] * (s[6] // s[7]) // _QUERIES) * s[7] if s[7] else 0

    def cost(s: Sequence[int]) -> int:
        # How much of the cache is in use only the kernel sees; say a quarter. Each row serves several queries.
        queries = min(s[5] * (s[6] // s[7]), _QUERIES)
        return (s[9] + 3) // 4 * s[8] * 2 * (4 if cache == "f32" else 2) * max(queries // 2, 1)

    return _rows(f"attention.attention:{cache}", blocks, cost)


def _set_rows(cache: str) -> Callable[[], KernelSpec]:
    # slots: out, x, rows, n, width, capacity. Items are columns, so that of equal rows the last one wins, always.
    return _rows(f"transformer.set_rows:{cache}", lambda s: -(-s[4] // _COLUMNS) if s[3] else 0, lambda s: s[3] * _COLUMNS * 8)


_KERNELS: dict[tuple[str, ...], Callable[[], KernelSpec]] = {
    ("add",): _elementwise("elementwise.repeating:add", 3, 12),
    ("mul",): _elementwise("elementwise.repeating:mul", 3, 12),
    ("silu",): _elementwise("elementwise.unary:silu", 2, 8 * _EXP),
    ("sigmoid",): _elementwise("elementwise.unary:sigmoid", 2, 8 * _EXP),
    ("gelu", "approximate", "tanh"): _elementwise("elementwise.unary:gelu_tanh", 2, 8 * _EXP),
    ("gelu", "approximate", "none"): _elementwise("elementwise.unary:gelu_none", 2, 8 * _EXP),
    ("swiglu",): _elementwise("elementwise.swiglu", 3, 12 * _EXP),
    ("argmax",): _rows("elementwise.argmax", lambda s: s[2], lambda s: s[3] * 4),
    ("rms_norm",): _rows("transformer.rms_norm", lambda s: s[3] if s[4] else 0, lambda s: s[4] * 12),
    ("softmax",): _rows("transformer.softmax", lambda s: s[2] if s[3] else 0, lambda s: s[3] * 8 * _EXP),
    ("rope", "mode", "normal"): _rows("transformer.rope:normal", lambda s: s[4], lambda s: s[5] * s[6] * 8),
    ("rope", "mode", "neox"): _rows("transformer.rope:neox", lambda s: s[4], lambda s: s[5] * s[6] * 8),
    ("set_rows", "cache", "f32"): _set_rows("f32"),
    ("set_rows", "cache", "f16"): _set_rows("f16"),
    ("attention", "cache", "f32"): _attention("f32"),
    ("attention", "cache", "f16"): _attention("f16"),
}
