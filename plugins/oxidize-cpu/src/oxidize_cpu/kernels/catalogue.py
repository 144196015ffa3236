"""What the kernels with weights are made of, and ``read``, which measures how fast memory is. Imports nothing that compiles.

``read`` sums float32 values as fast as memory delivers them: no parameters, arguments (out f32[1], x f32[n], n).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oxidize_cpu.kernels.layout import FORMATS, READ_PART, TILE, Format, tokens_at_a_time
from oxidize_cpu.kernels.spec import KernelSpec, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["find_spec"]


def find_spec(name: str, params: Mapping[str, str]) -> KernelSpec | None:
    """Return the phases of a kernel of this module, or None if it has none such."""
    if name == "read":
        return None if params else _read()
    if set(params) != {"weight"} or params["weight"] not in FORMATS:
        return None
    make = {"gemv": _gemv, "gemm": _gemm, "get_rows": _get_rows}.get(name)
    return None if make is None else make(params["weight"], FORMATS[params["weight"]])


def _gemv(fmt: str, form: Format) -> KernelSpec:
    rows = Phase(f"linear.gemv:{fmt}", lambda s: s[3], lambda s: form.row_bytes(s[4]))
    if not form.order:
        return KernelSpec((rows,))
    quantize = Phase(f"quantize.activations:{fmt},5", lambda s: form.groups(s[4]), lambda _s: form.group * 4)
    return KernelSpec((quantize, rows), lambda s: form.scratch(s[4], 1))


def _gemm(fmt: str, form: Format) -> KernelSpec:
    def spans(slots: Sequence[int]) -> int:
        k, n = slots[4], slots[5]
        return -(-n // tokens_at_a_time(form.groups(k) * form.record if form.order else k * 4, n))

    def cost(slots: Sequence[int]) -> int:  # more than the bytes: each is used for many tokens
        return form.row_bytes(slots[4]) * TILE * max(slots[5] // max(spans(slots), 1) // 4, 1)

    rows = Phase(f"linear.gemm:{fmt}", lambda s: -(-s[3] // TILE) * spans(s), cost)
    if not form.order:
        return KernelSpec((rows,))
    quantize = Phase(f"quantize.activations:{fmt},6", lambda s: form.groups(s[4]) * s[5], lambda _s: form.group * 4)
    return KernelSpec((quantize, rows), lambda s: form.scratch(s[4], s[5]))


def _get_rows(fmt: str, _form: Format) -> KernelSpec:
    return KernelSpec((Phase(f"rows.get_rows:{fmt}", lambda s: s[3], lambda s: s[4] * 8),))


def _read() -> KernelSpec:
    parts = Phase("read.parts", lambda s: -(-s[2] // READ_PART), lambda _s: READ_PART * 4)
    total = Phase("read.total", lambda _s: 1, lambda _s: 64)
    return KernelSpec((parts, total), lambda s: -(-s[2] // READ_PART) * 4)
