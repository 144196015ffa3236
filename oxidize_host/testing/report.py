"""What a run of the conformance kit found."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oxidize_host.info import Unavailable

__all__ = ["UNSUPPORTED", "Failure", "Report"]

UNSUPPORTED = "unsupported: "
"""How the reason of a skipped check begins when the backend does not have what it checks."""


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A check that failed: its name (``"test_copy_there_and_back[uint8]"``) and what it said, in a few lines."""

    name: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What a run of the conformance kit found.

    Parameters
    ----------
    spec
        What was verified.
    passed, failed, unsupported, expected_failures
        Numbers of checks. Unsupported is what the backend says that it does not have; an expected failure is one that its
        author declared, and which did fail.
    reason
        Why no check could run, None if they ran.
    failures
        One for each failed check; one more if the process died or ran out of time.
    unsupported_checks
        Name and reason of each unsupported check.
    """

    spec: str
    passed: int = 0
    failed: int = 0
    unsupported: int = 0
    expected_failures: int = 0
    reason: Unavailable | None = None
    failures: tuple[Failure, ...] = ()
    unsupported_checks: tuple[Failure, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether checks ran and none failed."""
        return self.reason is None and not self.failed and self.passed > 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for JSON; ``reason`` is ``{"kind", "message", "fix"}`` or None."""
        return {"ok": self.ok, **dataclasses.asdict(self)}

    def __str__(self) -> str:
        """Return the verdict, and a line for each failure."""
        if self.reason is not None:
            return f"{self.spec}: not verified: {self.reason}"
        counts = f"{self.passed} passed, {self.failed} failed, {self.unsupported} unsupported"
        if self.expected_failures:
            counts += f", {self.expected_failures} expected failures"
        verdict = f"{self.spec}: {'conforms' if self.ok else 'does not conform'}: {counts}"
        return "\n  ".join([verdict, *(f"{failure.name}: {failure.message}" for failure in self.failures)])
