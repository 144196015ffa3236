"""Device: opening by name, the smoke test, indices, pinned memory."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import oxidize_host as ox
from oxidize_host import hookimpl
from oxidize_host.device import smoke_test
from oxidize_host.testing import DeferredBackend, FaultyBackend, MinimalBackend


@pytest.mark.parametrize("fault", ["flip:copy", "zero:launch", "nan:launch"])
def test_a_device_that_computes_garbage_is_refused_at_first_use(register, fault):
    backend = FaultyBackend(fault)
    name = register(backend)
    for _ in range(2):  # the second attempt checks again instead of trusting the first
        with pytest.raises(ox.BackendUnavailable, match=f"{name}:0 .Faulty. gives wrong results") as caught:
            ox.Device(name)
        assert caught.value.reason.kind == "WrongResults"
        assert "smoke_test=False" in caught.value.reason.fix
    assert backend.calls.count("close") == 2
    assert backend.held == 0, "what the smoke test took is given back"


@pytest.mark.parametrize("fault", ["flip:copy", "nan:launch"])
def test_whoever_insists_gets_the_device_all_the_same(register, fault):
    device = ox.Device(register(FaultyBackend(fault)), smoke_test=False)
    assert device.to_device(np.zeros(4, np.uint8)).to_host().any() == (fault == "flip:copy")
    assert ox.Device(device.id, smoke_test=False) == device


def test_garbage_is_not_chosen_automatically_and_the_selection_says_why(register, monkeypatch):
    class Tempting(FaultyBackend):
        @hookimpl
        def devices(self):
            return [ox.DeviceInfo("Fast and wrong", kind="discrete", dialect="python")]

    name = register(Tempting("nan:launch"))
    entries = ox.registry.entries()
    monkeypatch.setattr("oxidize_host.registry.entries", lambda: {key: entries[key] for key in (name, "numpy")})
    with pytest.warns(ox.OxidizeWarning) as warned:
        device = ox.Device()
    assert device.id == "numpy:0"
    assert any("Fast and wrong" in str(warning.message) and "wrong results" in str(warning.message) for warning in warned)
    (refused,) = (candidate for candidate in device.selection.candidates if candidate.id == f"{name}:0")
    assert (refused.verdict, refused.reason.kind) == ("unavailable", "WrongResults")
    monkeypatch.setenv("OXIDIZE_STRICT", "1")
    with pytest.raises(ox.BackendUnavailable, match="wrong results"):
        ox.Device()


def test_a_smoke_test_that_crashes_closes_the_device(register):
    backend = FaultyBackend("raise:copy")
    with pytest.raises(ox.LaunchError, match="backend's copy failed"):
        ox.Device(register(backend))
    assert backend.calls[-1] == "close"
    assert backend.held == 0


def test_a_backend_without_standard_kernels_is_checked_by_copies_alone(register):
    smoke_test(ox.Device(register(MinimalBackend)))


def test_the_smoke_test_runs_once_per_open_device(register):
    backend = FaultyBackend()
    name = register(backend)
    ox.Device(name)
    launches = backend.calls.count("launch")
    ox.Device(name)
    ox.Device(f"{name}:0")
    assert backend.calls.count("launch") == launches == 1
    assert backend.calls.count("open") == 1


@pytest.mark.parametrize("index", ["1", "99", "-1", "0x0", "zero", "1e3", str(2**70), "\u0661"])
def test_a_bad_index_is_refused_before_the_library_is_asked(register, index):
    backend = FaultyBackend()
    name = register(backend)
    with pytest.raises(ox.BackendUnavailable, match=f"{name}:0 is Faulty") as caught:
        ox.Device(f"{name}:{index}")
    assert caught.value.reason.kind == "NoDevice"
    assert "open" not in backend.calls


def test_a_backend_whose_driver_is_missing_is_never_opened(register):
    class NoDriver(FaultyBackend):
        @hookimpl
        def devices(self):
            self.calls.append("devices")
            raise ox.BackendUnavailable(ox.Unavailable("DriverMissing", "libfoo.so.3 not found", "apt-get install libfoo3"))

    backend = NoDriver()
    with pytest.raises(ox.BackendUnavailable, match=r"libfoo\.so\.3 not found - apt-get install libfoo3"):
        ox.Device(register(backend))
    assert "open" not in backend.calls


def test_devices_are_found_by_index_and_by_uuid(register):
    name = register(DeferredBackend(devices=3))
    assert ox.Device(f"{name}:2").info.uuid == "deferred-2"
    assert ox.Device(f"{name}:deferred-1").id == f"{name}:1"
    assert ox.Device(f"{name}:DEFERRED-1") == ox.Device(f"{name}:1")
    assert ox.Device(name).id == f"{name}:0"
    assert len({ox.Device(f"{name}:{i}") for i in range(3)}) == 3


def test_devices_of_one_backend_do_not_share_memory(register):
    name = register(DeferredBackend(devices=2))
    first, second = ox.Device(f"{name}:0"), ox.Device(f"{name}:1")
    buffer = first.to_device(np.arange(3))
    assert second.live_allocations == 0
    with pytest.raises(ox.ShapeError, match=f"{name}:0.*{name}:1"):
        second.empty(3, np.int64).copy_from(buffer)
    second.empty(3, np.int64).copy_from(buffer.to_host())


def test_the_environment_names_the_device(register, monkeypatch):
    name = register(DeferredBackend(devices=2))
    monkeypatch.setenv("OXIDIZE_DEVICE", f"{name}:1")
    device = ox.Device()
    assert device.id == f"{name}:1"
    assert device.selection.how == "OXIDIZE_DEVICE"
    monkeypatch.setenv("OXIDIZE_DEVICE", "")
    assert ox.Device("numpy").selection.how == "named by the caller"
    json.dumps(device.selection.as_dict())


def test_parts_of_a_device_lead_back_to_it(deferred):
    buffer, stream = deferred.empty(1, np.uint8), deferred.create_stream()
    assert buffer.device == deferred == stream.device
    assert hash(buffer.device) == hash(deferred)
    assert buffer.device.selection.how == "already open"


def test_a_closed_device_is_opened_anew(register):
    backend = FaultyBackend()
    name = register(backend)
    with ox.Device(name) as device:
        pass
    assert ox.Device(name) != device
    assert backend.calls.count("open") == 2


# -- pinned memory -------------------------------------------------------------------------------------------


class Pinning(MinimalBackend):
    left = 1000

    @hookimpl
    def alloc_pinned(self, nbytes):
        if nbytes > self.left:
            raise MemoryError(f"{nbytes} bytes of page-locked memory asked, ulimit -l is {self.left}")
        self.left -= nbytes
        return memoryview(bytearray(nbytes))


def test_pinned_memory_is_the_backends(register):
    array = ox.Device(register(Pinning)).pinned((3, 5), np.float32)
    assert (array.shape, array.dtype, array.flags.writeable) == ((3, 5), np.float32, True)
    assert isinstance(array.base.base if not isinstance(array.base, memoryview) else array.base, memoryview | np.ndarray)


def test_pinned_memory_that_is_used_up_is_pageable_memory_with_a_warning_and_not_out_of_memory(register):
    device = ox.Device(register(Pinning))
    device.pinned(900, np.uint8)
    with pytest.warns(
        ox.OxidizeWarning, match=rf"{device.id}: pageable memory instead of pinned: .*200 bytes .* ulimit -l is 100"
    ):
        array = device.pinned(200, np.uint8)
    assert (array.shape, array.flags.writeable) == ((200,), True)
    assert device.to_device(array).nbytes == 200


def test_a_closed_device_pins_nothing(register):
    device = ox.Device(register(Pinning))
    device.close()
    with pytest.raises(ox.ClosedError):
        device.pinned(4, np.uint8)


def test_without_pinned_memory_the_warning_says_so(register):
    device = ox.Device(register(MinimalBackend))
    with pytest.warns(ox.OxidizeWarning, match="the backend has no pinned memory"):
        assert device.pinned(4, np.int16).shape == (4,)


def test_pinned_memory_that_raises_anything_is_pageable_with_a_warning(register):
    class Broken(MinimalBackend):
        @hookimpl
        def alloc_pinned(self):
            raise RuntimeError("cuMemHostAlloc: 801")

    device = ox.Device(register(Broken))
    with pytest.warns(ox.OxidizeWarning, match="cuMemHostAlloc: 801"):
        device.pinned(4, np.int16)


def test_the_process_survives_a_hundred_lives_of_a_device(register):
    name = register(DeferredBackend)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(100):
        ox.Device(name, smoke_test=False).close()
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after <= before + 1
