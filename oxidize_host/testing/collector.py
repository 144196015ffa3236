"""Run the kit with pytest in this process, and collect what it says."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oxidize_host.testing.report import UNSUPPORTED

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Outcome", "run_checks"]

Kind = str  # "passed", "failed", "unsupported", "expected"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One finished check: its name, ``passed``, ``failed``, ``unsupported`` or ``expected``, and what it said."""

    name: str
    kind: Kind
    message: str = ""


class _Collector:
    """A pytest plugin: sets the specification, passes on the outcome of each check."""

    def __init__(self, spec: str, started: Callable[[str], None], finished: Callable[[Outcome], None]) -> None:
        self.spec, self.started, self.finished = spec, started, finished
        self._kinds: dict[str, Outcome] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            item.cls.spec = self.spec

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.started(_name(nodeid))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.finished(Outcome(report.nodeid or "collection", "failed", _message(report)))

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = _name(report.nodeid)
        outcome = _outcome(name, report)
        if outcome is not None and (name not in self._kinds or outcome.kind == "failed"):
            self._kinds[name] = outcome

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        name = _name(nodeid)
        self.finished(self._kinds.pop(name, Outcome(name, "failed", "it reported nothing")))


def run_checks(
    spec: str,
    finished: Callable[[Outcome], None],
    *,
    started: Callable[[str], None] = lambda _: None,
    keyword: str = "",
    stop_at_first: bool = False,
) -> int:
    """Run the checks whose name contains ``keyword`` on the device ``spec``; return pytest's exit status.

    No configuration, conftest.py or plugin of the user counts, and no file is written.
    """
    import oxidize_host.testing

    here = Path(oxidize_host.testing.__file__).parent
    disabled = ("cacheprovider", "terminal", "faulthandler", "junitxml", "pastebin", "stepwise", "logging")
    args = [
        f"{here / 'collected.py'}",
        "--capture=no",
        "--noconftest",
        "--import-mode=importlib",
        "-c",
        os.devnull,
        f"--rootdir={here}",
        *(option for name in disabled for option in ("-p", f"no:{name}")),
        *(["-k", keyword] if keyword else []),
        *(["--maxfail=1"] if stop_at_first else []),
    ]
    return int(pytest.main(args, plugins=[_Collector(spec, started, finished)]))


def _name(nodeid: str) -> str:
    return nodeid.partition("::TestBackend::")[2] or nodeid


def _outcome(name: str, report: Any) -> Outcome | None:
    if report.failed:
        return Outcome(name, "failed", _message(report))
    if hasattr(report, "wasxfail"):
        return Outcome(name, "expected", report.wasxfail.removeprefix("reason: "))
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if reason.startswith(UNSUPPORTED):
            return Outcome(name, "unsupported", reason.removeprefix(UNSUPPORTED))
        return Outcome(name, "failed", f"skipped without being unsupported: {reason}")
    return Outcome(name, "passed") if report.when == "call" else None


def _message(report: Any) -> str:
    """Return the error in a few lines, without the traceback."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    place = f" ({Path(crash.path).name}:{crash.lineno})" if crash is not None else ""
    lines = [line for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
    return "\n".join(lines[:4])[:600] + place
