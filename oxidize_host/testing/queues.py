"""Queues and events of `DeferredBackend`: work that waits until somebody makes it run."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING

from oxidize_host.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Event", "Queue"]


@dataclasses.dataclass(slots=True, weakref_slot=True, eq=False)
class Queue:
    """Work in order; ``done`` counts what has run."""

    work: deque[Callable[[], None]] = dataclasses.field(default_factory=deque)
    queued: int = 0
    done: int = 0
    failure: BaseException | None = None
    destroyed: bool = False

    def put(self, task: Callable[[], None]) -> None:
        """Queue a piece of work."""
        if self.destroyed:
            raise LaunchError("work was queued on a destroyed stream")
        self.work.append(task)
        self.queued += 1

    def run(self, until: int) -> None:
        """Run tasks until ``until`` of them are done; the first failure is kept for `sync`."""
        while self.done < until and self.work:
            task = self.work.popleft()
            try:
                task()
            except Exception as error:  # noqa: BLE001 - a queue has nobody to raise to until somebody waits
                self.failure = self.failure or error
            self.done += 1

    def raise_failure(self) -> None:
        """Raise what went wrong since the last time."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure


@dataclasses.dataclass(slots=True, eq=False)
class Event:
    """A point in a queue, and the moment at which it was reached."""

    queue: Queue
    position: int
    time: float = 0.0

    @property
    def reached(self) -> bool:
        """Whether all work before it has run."""
        return self.queue.done >= self.position
