"""What the host's tests share: backends registered for one test, a cache of their own, no leftovers between tests."""

from __future__ import annotations

import gc
import itertools

import pytest

import oxidize_host
from oxidize_host import device as device_module
from oxidize_host import registry
from oxidize_host.testing import DeferredBackend, FaultyBackend
from oxidize_host.testing.collector import run_checks

_counter = itertools.count()


def pytest_collection_finish():
    """Leave out of every later gc.collect() what lives to the end anyway: modules and collected tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _isolated(monkeypatch, tmp_path):
    """Without the user's choices, with a cache that goes away."""
    for name in ("OXIDIZE_DEVICE", "OXIDIZE_STRICT", "OXIDIZE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OXIDIZE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def register():
    """Register a backend under a name of its own for one test; returns the name. Its devices are closed afterwards."""
    names = []

    def register(backend, name=None):
        name = name or f"test{next(_counter)}"
        oxidize_host.register_backend(name, backend, distribution=f"oxidize-{name}", version="1.0")
        names.append(name)
        return name

    yield register
    for name in names:
        for (backend, _), core in list(device_module._open.items()):
            if backend == name:
                try:
                    core.close()
                except Exception:
                    core.closed = True  # a backend that is meant to fail
                del device_module._open[backend, _]
        oxidize_host.unregister_backend(name)


@pytest.fixture
def deferred(register):
    """A device whose work runs as late as possible; afterwards, the host must have kept all its promises."""
    backend = DeferredBackend(memory=2**26)
    device = oxidize_host.Device(register(backend))
    yield device
    gc.collect()
    device.close()
    assert backend.violations == []


@pytest.fixture
def numpy_device():
    return oxidize_host.Device("numpy")


@pytest.fixture
def faulty(register):
    """Open a device with faults: ``faulty("raise:copy")`` returns backend and device."""

    def make(fault, **options):
        backend = FaultyBackend(fault)
        return backend, oxidize_host.Device(register(backend), smoke_test=False, **options)

    return make


@pytest.fixture(autouse=True)
def _no_backend_left():
    """No test leaves a registered backend or an observer behind."""
    yield
    assert not registry._observers


@pytest.fixture
def run_kit():
    """Run the checks whose name contains a keyword on a backend, in this process; returns the outcomes."""

    def run(spec, keyword="", *, stop_at_first=False):
        outcomes = []
        run_checks(spec, outcomes.append, keyword=keyword, stop_at_first=stop_at_first)
        return outcomes

    return run


@pytest.fixture
def kit_failures(run_kit, monkeypatch):
    """Return the messages of the checks that fail, up to the first.

    The smoke test would refuse some backends at the door; here the kit has to notice.
    """
    monkeypatch.setattr("oxidize_host.device.smoke_test", lambda device: None)

    def failures(spec, keyword):
        return [outcome.message for outcome in run_kit(spec, keyword, stop_at_first=True) if outcome.kind == "failed"]

    return failures
