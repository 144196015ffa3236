"""The open device: memory accounting, a full device, errors where nobody can catch them, closing."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest

import oxidize_host as ox
from oxidize_host import hookimpl
from oxidize_host.testing import DeferredBackend, MinimalBackend, no_leaks

MIB = 2**20


def test_out_of_memory_has_every_figure_and_a_retry_after_freeing_works(register):
    device = ox.Device(register(DeferredBackend(memory=10 * MIB)))
    small, large = device.empty(MIB, np.uint8), device.empty(5 * MIB, np.uint8)
    with pytest.raises(ox.OutOfMemory) as caught:
        device.empty((6, MIB), np.uint8)
    error = caught.value
    assert error.device == device.id
    assert (error.asked, error.free, error.total) == (6 * MIB, 4 * MIB, 10 * MIB)
    assert (error.own, error.largest) == (6 * MIB, 5 * MIB)
    for figure in ("6.0 MiB", "4.0 MiB of 10.0 MiB", "largest piece 5.0 MiB", device.id, "Deferred 0"):
        assert figure in str(error)
    assert isinstance(error.__cause__, MemoryError)
    large.close()
    assert device.empty((6, MIB), np.uint8).nbytes == 6 * MIB
    assert small.nbytes == MIB


def test_an_out_of_memory_of_the_backends_own_gets_the_figures_too(register):
    class Own(MinimalBackend):
        @hookimpl
        def alloc(self, nbytes):
            if nbytes > MIB:
                raise ox.OutOfMemory("CUDA_ERROR_OUT_OF_MEMORY")
            return bytearray(nbytes)

    device = ox.Device(register(Own))
    with pytest.raises(ox.OutOfMemory, match="CUDA_ERROR_OUT_OF_MEMORY") as caught:
        device.empty(MIB + 1, np.uint8)
    assert caught.value.asked == MIB + 1
    assert (caught.value.free, caught.value.total) == (None, None)
    assert "free unknown of unknown" in str(caught.value)


def test_unreachable_buffers_in_cycles_are_collected_before_memory_is_said_to_be_out(register):
    device = ox.Device(register(DeferredBackend(memory=4 * MIB)))
    gc.disable()
    try:
        cycle = [device.empty(3 * MIB, np.uint8)]
        cycle.append(cycle)
        del cycle
        assert device.live_bytes == 3 * MIB
        device.empty(3 * MIB, np.uint8)
    finally:
        gc.enable()


def test_a_second_attempt_that_fails_otherwise_is_typed_too(faulty):
    backend, device = faulty("oom:alloc")
    first = backend.alloc

    def fail_otherwise(*args):
        backend.faults["alloc"] = "raise" if backend.faults["alloc"] == "oom" and backend.calls.count("alloc") else "oom"
        return first(*args)

    device._core.backend.alloc = fail_otherwise
    with pytest.raises(ox.LaunchError, match="backend's alloc failed: RuntimeError"):
        device.empty(1, np.uint8)


def test_memory_figures_that_fail_do_not_hide_the_shortage(faulty):
    _, device = faulty("oom:alloc,raise:memory_info")
    with pytest.raises(ox.OutOfMemory) as caught:
        device.empty(1, np.uint8)
    assert caught.value.total is None


def test_live_memory_is_counted(deferred):
    assert (deferred.live_allocations, deferred.live_bytes) == (0, 0)
    a, b = deferred.empty(100, np.uint8), deferred.empty((2, 3), np.float64)
    part = a[:10]
    assert (deferred.live_allocations, deferred.live_bytes) == (2, 148)
    a.close()
    assert deferred.live_allocations == 2
    part.close()
    b.close()
    assert (deferred.live_allocations, deferred.live_bytes) == (0, 0)


def test_a_buffer_of_no_bytes_still_has_a_handle_of_its_own(deferred):
    empty = deferred.empty((0, 5), np.float32)
    assert empty.nbytes == 0
    assert empty.to_host().shape == (0, 5)
    assert deferred.live_bytes == 1, "backends never see an allocation of no bytes"


def test_a_failure_to_free_is_raised_by_the_next_wait(faulty):
    backend, device = faulty("raise:free")
    device.empty(10, np.uint8).close()
    with pytest.raises(ox.LaunchError, match=r"backend's free failed.*injected") as caught:
        device.synchronize()
    assert device.id in str(caught.value)
    assert type(caught.value.__cause__) is RuntimeError
    device.synchronize()
    backend.faults.clear()


def test_what_a_hook_raises_is_chained_and_names_the_hook(faulty):
    _, device = faulty("raise:compile")
    with pytest.raises(ox.LaunchError, match=r"faulty|backend's compile failed: RuntimeError: injected") as caught:
        device.compile("source")
    assert type(caught.value.__cause__) is RuntimeError


def test_alloc_that_returns_nothing_is_an_error_and_not_a_null_pointer(faulty):
    _, device = faulty("none:alloc")
    with pytest.raises(ox.LaunchError, match="returned None instead of a handle"):
        device.empty(1, np.uint8)
    assert device.live_allocations == 0


def test_close_waits_frees_destroys_and_closes_once(register):
    backend = DeferredBackend()
    device = ox.Device(register(backend))
    stream, out = device.create_stream(), np.zeros(8, np.int64)
    buffer = device.to_device(np.arange(8), stream=stream)
    buffer.copy_to(out, stream=stream)
    state = device._core.state
    device.close()
    device.close()
    assert out.tolist() == list(range(8))
    assert backend.violations == []
    assert state.closed
    assert not state.memory
    assert "closed" in repr(device)
    assert device.live_allocations == 0
    with pytest.raises(ox.ClosedError, match="was closed"):
        buffer.to_host()


AT_EXIT = """
import numpy as np, oxidize_host as ox
from oxidize_host.testing import DeferredBackend

class Telling(DeferredBackend):
    @ox.hookimpl
    def close(self, device):
        super().close(device)
        print("closed with", len(device.memory), "allocations and", sum(len(q.work) for q in device.queues), "tasks", flush=True)

ox.register_backend("telling", Telling)
device = ox.Device("telling")
stream = device.create_stream()
buffer = device.to_device(np.arange(9), stream=stream)
if ROUND: device.default_stream.cycle = [device, buffer, stream]
"""


@pytest.mark.parametrize("cycle", ["True", "False"])
def test_the_end_of_the_process_waits_frees_and_closes_in_this_order(cycle):
    code = AT_EXIT.replace("ROUND", cycle)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "closed with 0 allocations and 0 tasks\n"
    assert done.stderr == ""


def test_a_failure_to_close_is_raised_once(faulty):
    backend, device = faulty("raise:close")
    with pytest.raises(ox.OxidizeError, match="injected") as caught:
        device.close()
    assert "close" in str(caught.value)
    device.close()
    assert backend.calls.count("close") == 1


def test_buffers_that_outlive_the_device_are_harmless(register):
    backend = DeferredBackend()
    device = ox.Device(register(backend))
    buffer, stream = device.to_device(np.arange(3)), device.create_stream()
    kernel = device.kernel("add")
    device.close()
    del buffer, stream, kernel
    gc.collect()
    assert backend.violations == []


def test_no_leaks_notices_what_stays(deferred):
    kept = []
    with pytest.raises(AssertionError, match="0 allocations .* before and 1"), no_leaks(deferred):
        kept.append(deferred.empty(5, np.uint8))
    with no_leaks(deferred):
        deferred.empty(5, np.uint8)


def test_no_leaks_lets_errors_through(deferred):
    with pytest.raises(KeyError), no_leaks(deferred):
        deferred.empty(5, np.uint8)
        raise KeyError


def test_nonsense_from_memory_info_is_unknown(faulty):
    _, device = faulty("nonsense:memory_info")
    assert device.memory_info() == ox.MemoryInfo()
