"""For authors of backends: the conformance kit, and stand-ins that misbehave in known ways.

A backend's test file is three lines::

    from oxidize_host.testing import BackendTests


    class TestToy(BackendTests):
        spec = "toy"

`verify` runs the same checks on an installed backend, in a child process, and returns a `Report`; ``oxidize verify`` prints it.
Nothing here imports pytest until `BackendTests`, `override` or `Checks` is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oxidize_host.testing import oracle
    from oxidize_host.testing.base import Checks, override
    from oxidize_host.testing.deferred import DeferredBackend
    from oxidize_host.testing.distributions import make_distribution
    from oxidize_host.testing.faulty import FAULTS, FaultyBackend
    from oxidize_host.testing.leaks import no_leaks
    from oxidize_host.testing.minimal import MinimalBackend
    from oxidize_host.testing.report import Failure, Report
    from oxidize_host.testing.runner import verify
    from oxidize_host.testing.suite import BackendTests

__all__ = [
    "FAULTS",
    "BackendTests",
    "Checks",
    "DeferredBackend",
    "Failure",
    "FaultyBackend",
    "MinimalBackend",
    "Report",
    "make_distribution",
    "no_leaks",
    "oracle",
    "override",
    "verify",
]

_HOME = {
    "FAULTS": "faulty",
    "BackendTests": "suite",
    "Checks": "base",
    "DeferredBackend": "deferred",
    "Failure": "report",
    "FaultyBackend": "faulty",
    "MinimalBackend": "minimal",
    "Report": "report",
    "make_distribution": "distributions",
    "no_leaks": "leaks",
    "override": "base",
    "verify": "runner",
}
_NEEDS_PYTEST = ("suite", "base")


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    home = _HOME.get(name)
    if home is None:
        if name == "oracle":
            return importlib.import_module(f"{__name__}.oracle")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if home in _NEEDS_PYTEST:
        _prepare_pytest()
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def _prepare_pytest() -> None:
    """Let pytest show the values in failed assertions of the kit, as it does in test files."""
    from oxidize_host.testing.runner import need_pytest

    need_pytest()
    import pytest

    pytest.register_assert_rewrite(f"{__name__}.base", f"{__name__}.checks", f"{__name__}.leaks")


def __dir__() -> list[str]:
    """Return the public names and what is loaded."""
    return sorted({*globals(), *__all__})
