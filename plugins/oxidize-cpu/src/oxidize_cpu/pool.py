"""The threads that share a kernel's work: Python threads that wait inside native code.

A worker spins for a moment after it has run out of work, since the next launch of a model is microseconds away, and then
returns to Python and parks on a lock. A launch first releases those that are parked. The launching thread needs none of
them (`oxidize_cpu.kernels.runner`), so a worker that is late, or gone, costs time and nothing else.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import threading
from typing import TYPE_CHECKING

import numpy as np

from oxidize_cpu.threads import thread_count

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Pool", "Program", "default"]

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
# Words of the state, as kernels.runner has them, which cannot be imported without numba.
_STATE_BYTES, _STOP, _YIELD, _HELPED = 256, 192 // 8, 200 // 8, 208 // 8
_PATIENCE = 5000  # looks for work before a worker parks: about a quarter of a millisecond


class Program(ctypes.c_int64):
    """The address of a program, and what must live as long as it is in use."""

    memory: object


class Pool:
    """Runs programs (`oxidize_cpu.kernels.runner`) on a number of threads, the calling one among them.

    Parameters
    ----------
    threads
        How many; default: `oxidize_cpu.threads.thread_count`. With one, nothing is started.

    Attributes
    ----------
    threads : int
    lock : threading.Lock
        Held by a launch that uses what all launches share: the workers, or the scratch memory.
    """

    def __init__(self, threads: int | None = None) -> None:
        from oxidize_cpu import driver

        self.threads = thread_count() if threads is None else threads
        jit = driver.default()
        self._run = _SIGNATURE(jit.address("runner.run"))
        self._work = _SIGNATURE(jit.address("runner.work")) if self.threads > 1 else None
        self._reset()

    def _reset(self) -> None:
        self.lock = threading.Lock()
        self._memory, self.state = _aligned(_STATE_BYTES)
        self._memory[_YIELD] = _sched_yield()
        self._workers: list[threading.Thread] = []
        self._parked: list[threading.Lock] = []
        self._scratch = _aligned(64)

    def scratch(self, nbytes: int) -> tuple[object, int]:
        """Return memory that launches share (keep it: it is replaced when it grows), and its address."""
        with self.lock:
            if self._scratch[0].nbytes < nbytes:
                self._scratch = _aligned(max(nbytes, 2 * self._scratch[0].nbytes))
            return self._scratch

    def caller(self, program: Program, *, shared: bool, scratch: bool) -> Callable[[], None]:
        """Return what runs the program: on all threads if ``shared``, and one at a time if it uses ``scratch`` memory."""
        run, none = self._run, ctypes.c_int64(0)
        if shared and self.threads > 1:
            return functools.partial(self._share, program)
        if not scratch:
            return functools.partial(run, program, none, none)

        def locked() -> None:
            with self.lock:
                run(program, none, none)

        return locked

    def helped(self) -> int:
        """Return how many chunks the workers have done."""
        return int(self._memory[_HELPED])

    def _share(self, program: Program) -> None:
        with self.lock:
            if len(self._workers) < self.threads - 1:
                self._start()
            while self._parked:
                self._parked.pop().release()
            self._run(program, self.state, 0)

    def _start(self) -> None:
        while len(self._workers) < self.threads - 1:
            worker = threading.Thread(target=self._worker, name=f"oxidize-cpu-{len(self._workers) + 1}", daemon=True)
            self._workers.append(worker)
            worker.start()

    def _worker(self) -> None:
        memory, state, parked, work = self._memory, self.state, self._parked, self._work
        assert work is not None
        gate = threading.Lock()
        gate.acquire()
        while not memory[_STOP]:
            work(state, _PATIENCE, 0)
            parked.append(gate)
            if memory[_STOP]:
                return
            gate.acquire()

    def stop(self) -> None:
        """End the workers; the next launch starts others."""
        with self.lock:
            workers, self._workers = self._workers, []
            self._memory[_STOP] = 1
            for worker in workers:
                while worker.is_alive():
                    with contextlib.suppress(IndexError):
                        self._parked.pop().release()
                    worker.join(0.01)
            self._parked.clear()
            self._memory[_STOP] = 0


def _aligned(nbytes: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], int]:
    """Return zeroed int64 words that start a cache line, and their address."""
    words = -(-nbytes // 8)
    raw = np.zeros(words + 8, np.int64)
    start = -raw.ctypes.data % 64 // 8
    return raw[start : start + words], raw.ctypes.data + start * 8


def _sched_yield() -> int:
    try:
        return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0
    except (AttributeError, OSError, TypeError):  # Windows
        return 0


@functools.cache
def default() -> Pool:
    """Return the process's own pool."""
    pool = Pool()
    atexit.register(pool.stop)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=pool._reset)  # threads do not survive a fork
    return pool
