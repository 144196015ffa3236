"""What a native kernel is made of: compiled entries, run one after the other, each over a number of work items.

An entry's work items are independent, so threads share them; an entry starts when the one before it is finished. Arguments are
64-bit slots, in the order of `oxidize_host.ops`: the address of each buffer, the value of each u32, the bits of each f32. If a
kernel asks for scratch memory, its address stands in one further slot. Imports nothing that compiles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

__all__ = ["Count", "KernelSpec", "Phase"]

Count = Callable[[Sequence[int]], int]
"""A number that depends on the argument slots."""


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """One entry, ``void entry(const int64_t *slots, int64_t lo, int64_t hi)``, over the work items ``lo <= item < hi``.

    Attributes
    ----------
    entry
        Name as `oxidize_cpu.driver.Jit` knows it, ``"transformer.rms_norm"``.
    items
        How many work items there are.
    cost
        About how many bytes one work item touches: what is small is not worth waking another thread for.
    """

    entry: str
    items: Count
    cost: Count


@dataclasses.dataclass(frozen=True, slots=True)
class KernelSpec:
    """The phases of a standard kernel.

    Attributes
    ----------
    phases
        In order.
    scratch
        Bytes of scratch memory; None if there is none.
    """

    phases: tuple[Phase, ...]
    scratch: Count | None = None
