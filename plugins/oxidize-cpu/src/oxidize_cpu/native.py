"""Standard kernels, ready to run."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oxidize_cpu.kernels.spec import KernelSpec
    from oxidize_cpu.pool import Pool

__all__ = ["NativeKernel"]

# Bytes below which a phase is not worth another thread (about 10 us of work), and how finely what is above is cut.
_SMALL = 1 << 17
_CHUNKS_PER_THREAD = 4


class NativeKernel:
    """A kernel of compiled entries: ``kernel(args)`` runs it, ``kernel.bind(args)`` returns what runs it again and again.

    Parameters
    ----------
    name
        For messages.
    spec
        What it is made of. Nothing is compiled or loaded before the first launch.
    """

    __slots__ = ("name", "spec")

    def __init__(self, name: str, spec: KernelSpec) -> None:
        self.name, self.spec = name, spec

    def __repr__(self) -> str:
        return f"<native kernel {self.name}>"

    def __call__(self, args: Sequence[Any]) -> None:
        """Run it once; ``args`` are addresses and numpy scalars in the order of `oxidize_host.ops`."""
        self.bind(args)()

    def bind(self, args: Sequence[Any], pool: Pool | None = None) -> Callable[[], None]:
        """Convert the arguments once; the memory that they point to must stay."""
        from oxidize_cpu import driver
        from oxidize_cpu.pool import Program, default

        pool = pool or default()
        jit = driver.default()
        slots = [_slot(arg) for arg in args]
        scratch = None
        if self.spec.scratch is not None:
            scratch, address = pool.scratch(self.spec.scratch(slots))
            slots.append(address)
        words: list[int] = []
        shared = False
        for phase in self.spec.phases:
            items = phase.items(slots)
            if items <= 0:
                continue
            chunk = _chunk(items, items * phase.cost(slots), pool.threads)
            shared = shared or chunk < items
            words += [jit.address(phase.entry), items, chunk]
        count = len(slots)
        memory = (ctypes.c_int64 * (count + 2 + len(words)))(*slots, 0, len(words) // 3, *words)
        memory[count] = ctypes.addressof(memory)
        program = Program(memory[count] + count * 8)
        program.memory = (memory, scratch)
        return pool.caller(program, shared=shared, scratch=self.spec.scratch is not None)


def _slot(arg: Any) -> int:
    if isinstance(arg, np.float32):
        return int(arg.view(np.uint32))
    return int(arg)


def _chunk(items: int, cost: int, threads: int) -> int:
    """Return how many work items a thread takes at a time."""
    if threads == 1 or cost < _SMALL:
        return items
    return -(-items // (threads * _CHUNKS_PER_THREAD))
