"""Verify an installed backend: the kit in a child process, which may crash or hang without harm."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from typing import IO, TYPE_CHECKING, Any

from oxidize_host.errors import OxidizeError
from oxidize_host.info import Unavailable
from oxidize_host.testing.report import Failure, Report

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["need_pytest", "verify"]

_COUNTED = {"passed": "passed", "failed": "failed", "unsupported": "unsupported", "expected": "expected_failures"}


def need_pytest() -> None:
    """Raise an `OxidizeError` that says what to install, unless pytest can be imported."""
    if importlib.util.find_spec("pytest") is None:
        raise OxidizeError('the conformance kit needs pytest: pip install "oxidize-host[test]"')


def verify(spec: str, *, progress: Callable[[str, str], None] | None = None, deadline: float = 1800.0) -> Report:
    """Run the conformance kit on an installed backend, in a child process.

    Parameters
    ----------
    spec
        As `oxidize_host.Device` takes it.
    progress
        Called with name and outcome (``"passed"``, ``"failed"``, ``"unsupported"``, ``"expected"``) of each check as it ends.
    deadline
        Seconds until the child is killed; the check that ran then counts as failed, as one does in which the process dies.

    Returns
    -------
    Report
        With ``reason`` set if the device cannot be opened.

    Raises
    ------
    OxidizeError
        Pytest is not installed.

    Notes
    -----
    No pytest configuration, conftest.py or plugin of the user takes part, and nothing is written to disk.
    """
    need_pytest()
    env = {key: value for key, value in os.environ.items() if key not in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "COLUMNS")}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
    # -P: neither a pytest.py nor a folder oxidize_host where the user stands may take part.
    command = [sys.executable, "-P", "-m", "oxidize_host.testing.child", spec]
    state = _State(spec, progress)
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=env, start_new_session=True
        )
        late = threading.Event()

        def too_late() -> None:
            late.set()
            _kill(child)

        timer = threading.Timer(deadline, too_late)
        timer.daemon = True
        timer.start()
        try:
            assert child.stdout is not None
            for line in child.stdout:
                state.take(line)
            status = child.wait()
        finally:
            timer.cancel()
            _kill(child)
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
        if not state.complete:
            state.died(f"it ran longer than {deadline:g} s" if late.is_set() else _said(status, errors))
    return state.report()


class _State:
    """What the child has said so far."""

    def __init__(self, spec: str, progress: Callable[[str, str], None] | None) -> None:
        self.spec, self.progress = spec, progress
        self.counts = dict.fromkeys(_COUNTED, 0)
        self.failures: list[Failure] = []
        self.unsupported: list[Failure] = []
        self.reason: Unavailable | None = None
        self.running = "opening the device"
        self.complete = False

    def take(self, line: bytes) -> None:
        """Take one line of JSON."""
        try:
            message: dict[str, Any] = json.loads(line)
        except ValueError:
            return  # a line cut off by the death of the child
        if "started" in message:
            self.running = message["started"]
        elif "kind" in message:
            self._finished(message["name"], message["kind"], message["message"])
        elif "reason" in message:
            self.reason = Unavailable(**message["reason"])
        elif "done" in message:
            self.complete = True

    def _finished(self, name: str, kind: str, text: str) -> None:
        self.counts[kind] += 1
        if kind == "failed":
            self.failures.append(Failure(name, text))
        elif kind == "unsupported":
            self.unsupported.append(Failure(name, text))
        if self.progress is not None:
            self.progress(name, kind)

    def died(self, how: str) -> None:
        """Note that the child ended before it was done."""
        self._finished(self.running, "failed", f"the process died while this ran: {how}")

    def report(self) -> Report:
        """Return the whole."""
        counts = {field: self.counts[kind] for kind, field in _COUNTED.items()}
        return Report(
            self.spec, **counts, reason=self.reason, failures=tuple(self.failures), unsupported_checks=tuple(self.unsupported)
        )


def _said(status: int, errors: IO[bytes]) -> str:
    """Return how a child ended: the name of a signal or its exit status, and the end of what it said."""
    if status < 0:
        try:
            return f"crashed: {signal.Signals(-status).name}"
        except ValueError:
            return f"crashed: signal {-status}"
    errors.seek(0)
    tail = errors.read().decode(errors="replace").strip()[-500:]
    return f"exit status {status}: {tail}"


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the child and what it started."""
    if child.poll() is not None:
        return
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
