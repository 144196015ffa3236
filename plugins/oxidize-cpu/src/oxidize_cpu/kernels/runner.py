"""Running the phases of a kernel: alone, or with the help of worker threads; see `oxidize_cpu.pool`.

A *program* is int64 words: address of the argument slots, number of phases, then for each phase the address of its entry, its
work items, and how many of them make a chunk. The threads' shared *state* is words at the offsets below, apart by cache lines.

Threads claim chunks by adding one to the ticket, whose upper bits count the phases ever run. A claim succeeds only if the
ticket is still the one that was read, so what was read in between belongs to it: a thread that comes late finds nothing to do.
Whoever launches takes chunks too and waits only for those that others have claimed, so no worker is ever needed.
"""
# ruff: noqa: ANN001, ANN202 - numba infers the types of what it compiles
# mypy: disable-error-code="no-untyped-call,no-untyped-def,no-any-return"

from __future__ import annotations

from typing import TYPE_CHECKING

from oxidize_cpu.kernels.ops import (
    atomic_add,
    atomic_load,
    atomic_store,
    atomic_swap,
    call_entry,
    call_plain,
    inline,
    load_i64,
    pause,
)

if TYPE_CHECKING:
    from collections.abc import Callable

TICKET, DONE, STOP = 0, 64, 192
ENTRY, SLOTS, ITEMS, CHUNK, CHUNKS = range(128, 168, 8)
YIELD, HELPED = 200, 208  # the address of sched_yield, or 0; the chunks that workers have done

_BITS = 24
_CLOSED = (1 << _BITS) - 1  # the lower bits of a ticket while a phase is being set up: more than there are chunks
_PATIENCE = 2000


@inline
def _help(state):
    """Do one chunk; returns how many it did, or -1 if there was none."""
    ticket = atomic_load(state + TICKET)
    entry, slots = atomic_load(state + ENTRY), atomic_load(state + SLOTS)
    items, chunk = atomic_load(state + ITEMS), atomic_load(state + CHUNK)
    index = ticket & _CLOSED
    if index >= atomic_load(state + CHUNKS):
        return -1
    if not atomic_swap(state + TICKET, ticket, ticket + 1):
        return 0  # another thread was faster
    first = index * chunk
    call_entry(entry, slots, (first, min(first + chunk, items)))
    atomic_add(state + DONE, 1)
    return 1


@inline
def _share(state, entry, slots, items, chunk):
    chunks = (items + chunk - 1) // chunk
    ticket = ((atomic_load(state + TICKET) >> _BITS) + 1) << _BITS
    atomic_store(state + TICKET, ticket | _CLOSED)
    atomic_store(state + ENTRY, entry)
    atomic_store(state + SLOTS, slots)
    atomic_store(state + ITEMS, items)
    atomic_store(state + CHUNK, chunk)
    atomic_store(state + CHUNKS, chunks)
    atomic_store(state + DONE, 0)
    atomic_store(state + TICKET, ticket)
    while _help(state) >= 0:
        pass
    spins = 0
    while atomic_load(state + DONE) != chunks:
        pause(0)
        spins += 1
        if spins % _PATIENCE == 0 and load_i64(state + YIELD) != 0:
            call_plain(load_i64(state + YIELD))  # the other thread may need this very core


def run() -> Callable[[int, int, int], None]:
    """Run the program at ``args``; ``lo`` is the address of the state, 0 without threads."""

    def kernel(program, state, _unused):
        slots, phases = load_i64(program), load_i64(program + 8)
        for phase in range(phases):
            at = program + 16 + phase * 24
            entry, items, chunk = load_i64(at), load_i64(at + 8), load_i64(at + 16)
            if state == 0 or chunk >= items:
                call_entry(entry, slots, (0, items))
            else:
                _share(state, entry, slots, items, chunk)

    return kernel


def work() -> Callable[[int, int, int], None]:
    """Help with what is launched until nothing has come for ``lo`` looks, or the state says stop."""

    def kernel(state, patience, _unused):
        idle = 0
        while idle < patience and atomic_load(state + STOP) == 0:
            done = _help(state)
            if done >= 0:
                atomic_add(state + HELPED, done)
                idle = 0
            else:
                pause(0)
                idle += 1

    return kernel
