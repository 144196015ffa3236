"""The host survives whatever a hook does: a typed error that names the backend, chained to the cause, and nothing leaks."""

from __future__ import annotations

import gc
import inspect

import numpy as np
import pytest

import oxidize_host as ox
from oxidize_host import ops
from oxidize_host.backend import HOOKS
from oxidize_host.device import _open
from oxidize_host.testing import FAULTS, FaultyBackend

F32 = np.float32
SOURCE = "def twice(grid, block, out):\n    out.view(np.float32)[:] *= 2\n"
# build_info is for listings, which ask in a child process; nothing that computes does.
HOOK_NAMES = [name for name in HOOKS if hasattr(FaultyBackend, name) and name != "build_info"]


def use_everything(name):
    """What a program does from the first device to the last."""
    device = ox.Device(name, smoke_test=False)
    try:
        device.memory_info()
        x = device.to_device(np.arange(8, dtype=F32))
        ops.add(x, x, x)
        ops.mul.bind(x, x, x)(device.default_stream)
        ox.launch(device.default_stream, ox.LaunchConfig(1), device.compile(SOURCE).kernel("twice"), x)
        with device.create_stream() as stream:
            x[2:4].copy_from(np.zeros(2, F32), stream=stream)
        result = x.to_host()
        x.close()
        device.synchronize()
        return result
    finally:
        device.close()


def test_without_a_fault_everything_works(register):
    assert use_everything(register(FaultyBackend())).tolist() == [0, 8, 0, 0, 128, 200, 288, 392]


# Hooks whose result is not used, or is the backend's own business: it may be anything.
FREE = ("free", "copy", "launch", "sync", "close", "memory_info", "open")
HARMLESS = {(kind, hook) for kind in ("none", "nonsense") for hook in FREE} | {("none", "argument")}
CAUSES = {"raise": RuntimeError, "oserror": OSError, "exit": SystemExit, "oom": MemoryError}


def causes(error):
    while error is not None:
        yield error
        error = error.__cause__


@pytest.mark.parametrize("hook", HOOK_NAMES)
@pytest.mark.parametrize("kind", [*CAUSES, "none", "nonsense"])
def test_a_fault_in_any_hook_is_a_typed_error(register, kind, hook):
    backend = FaultyBackend(f"{kind}:{hook}")
    name = register(backend)
    if (kind, hook) in HARMLESS:
        try:
            use_everything(name)
        except ox.OxidizeError as error:
            assert name in str(error)
    else:
        with pytest.raises(ox.OxidizeError, match=name) as caught:
            use_everything(name)
        if kind in CAUSES:
            found = list(causes(caught.value))
            assert any(type(cause) is CAUSES[kind] and "injected fault" in str(cause) for cause in found)
            del found
        del caught
    gc.collect()
    assert all(core.closed and not core.live for (owner, _), core in _open.items() if owner == name)
    if hook != "free":
        assert backend.held == 0


@pytest.mark.parametrize("hook", HOOK_NAMES)
def test_after_a_fault_is_gone_the_backend_works_again(register, hook):
    backend = FaultyBackend(f"raise:{hook}")
    name = register(backend)
    with pytest.raises(ox.OxidizeError):
        use_everything(name)
    backend.faults.clear()
    assert use_everything(name).tolist() == [0, 8, 0, 0, 128, 200, 288, 392]


def test_a_device_full_after_a_mebibyte_recovers(faulty):
    _, device = faulty("full:alloc")
    held = device.empty(2**20 - 10, np.uint8)
    with pytest.raises(ox.OutOfMemory, match="injected|free"):
        device.empty(100, np.uint8)
    held.close()
    assert device.to_device(np.ones(100, np.uint8)).to_host().all()


def test_every_hook_of_the_stand_in_takes_the_arguments_of_the_contract():
    for hook in HOOK_NAMES:
        taken = list(inspect.signature(getattr(FaultyBackend, hook)).parameters)[1:]
        assert tuple(taken) == HOOKS[hook], hook


@pytest.mark.parametrize("fault", ["smash:copy", "raise:kopy", "raise", ":copy", "raise:"])
def test_an_unknown_fault_is_refused(fault):
    with pytest.raises(ValueError, match="unknown fault"):
        FaultyBackend(fault)


def test_every_kind_of_fault_is_explained():
    assert all(FAULTS.values())
