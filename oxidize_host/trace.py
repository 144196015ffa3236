"""Record every alloc, free, copy, compile, launch and wait as a Chrome / Perfetto trace.

The file is the JSON object format that chrome://tracing and https://ui.perfetto.dev read: complete events
(``ph: "X"``) with microsecond timestamps.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from oxidize_host.hookspecs import hookimpl
from oxidize_host.kernel import kernel_name
from oxidize_host.registry import register_observer, unregister_observer

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

__all__ = ["TraceWriter"]


class TraceWriter:
    """An observer that writes what the hooks of every backend did to a file.

    Use it as a context manager: ``with TraceWriter("trace.json"): ...``. Times are those of the host's calls; on an
    asynchronous device a launch is the time it takes to queue it, and the wait is where the work shows.

    Parameters
    ----------
    path
        The file to write, when the block ends (also after an exception).

    Raises
    ------
    OSError
        On entry, if the file cannot be written: before the work, not after it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        """Start to record."""
        self.path.write_text("")
        register_observer(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and write the file."""
        unregister_observer(self)
        document = {"traceEvents": self.events, "displayTimeUnit": "ns", "otherData": {"producer": "oxidize"}}
        self.path.write_text(json.dumps(document))

    def _span(self, name: str, category: str, **args: object) -> Generator[None, Any, Any]:
        start = time.perf_counter_ns()
        try:
            return (yield)
        finally:
            self.events.append(
                {
                    "name": name,
                    "cat": category,
                    "ph": "X",
                    "ts": start / 1000,
                    "dur": (time.perf_counter_ns() - start) / 1000,
                    "pid": os.getpid(),
                    "tid": threading.get_native_id(),
                    "args": args,
                }
            )

    @hookimpl(wrapper=True)
    def alloc(self, nbytes: int) -> Generator[None, Any, Any]:
        """Record an allocation."""
        return (yield from self._span("alloc", "memory", nbytes=nbytes))

    @hookimpl(wrapper=True)
    def free(self) -> Generator[None, Any, Any]:
        """Record a release."""
        return (yield from self._span("free", "memory"))

    @hookimpl(wrapper=True)
    def copy(self, dst: Any, src: Any, nbytes: int) -> Generator[None, Any, Any]:
        """Record a copy and its direction."""
        sides = ["host" if isinstance(side, memoryview) else "device" for side in (src, dst)]
        return (yield from self._span(f"copy {sides[0]} to {sides[1]}", "copy", nbytes=nbytes))

    @hookimpl(wrapper=True)
    def compile(self) -> Generator[None, Any, Any]:
        """Record a compilation."""
        return (yield from self._span("compile", "kernel"))

    @hookimpl(wrapper=True)
    def launch(self, kernel: Any, grid: Sequence[int], block: Sequence[int]) -> Generator[None, Any, Any]:
        """Record a launch by the kernel's name."""
        return (yield from self._span(kernel_name(kernel), "kernel", grid=list(grid), block=list(block)))

    @hookimpl(wrapper=True)
    def sync(self) -> Generator[None, Any, Any]:
        """Record a wait."""
        return (yield from self._span("synchronize", "wait"))
