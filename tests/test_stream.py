"""Streams on a backend that runs work as late as it may: what is kept alive, what is waited for, what is noticed."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import oxidize_host as ox
from oxidize_host import ops
from oxidize_host.testing import DeferredBackend, MinimalBackend

F32 = np.float32


def test_work_really_is_late_on_the_deferred_backend(deferred):
    """What the other tests rest on."""
    stream, out = deferred.create_stream(), np.zeros(4)
    deferred.to_device(np.ones(4), stream=stream).copy_to(out, stream=stream)
    assert not out.any()
    stream.synchronize()
    assert out.all()


def test_the_source_array_of_a_queued_copy_is_kept_until_the_wait_and_no_longer(deferred):
    stream, buffer = deferred.create_stream(), deferred.empty(1000, np.int64)
    source = np.arange(1000)
    alive = weakref.ref(source)
    buffer.copy_from(source, stream=stream)
    del source
    gc.collect()
    assert alive() is not None
    stream.synchronize()
    gc.collect()
    assert alive() is None
    assert buffer.to_host()[-1] == 999


def test_a_temporary_made_by_the_copy_is_kept_too(deferred):
    """The contiguous copy of a strided array belongs to nobody else."""
    stream, buffer = deferred.create_stream(), deferred.empty(50, np.int64)
    buffer.copy_from(np.arange(100)[::2], stream=stream)
    gc.collect()
    stream.synchronize()
    assert buffer.to_host().tolist() == list(range(0, 100, 2))


def test_buffers_of_a_queued_launch_are_kept_until_the_wait_and_no_longer(deferred):
    stream, out = deferred.create_stream(), deferred.empty(8, F32)
    x, y = deferred.to_device(np.full(8, 2, F32)), deferred.to_device(np.full(8, 3, F32))
    ops.add(out, x, y, stream=stream)
    x.close()
    del x, y
    gc.collect()
    assert deferred.live_allocations == 3
    stream.synchronize()
    gc.collect()
    assert deferred.live_allocations == 1
    assert out.to_host().tolist() == [5.0] * 8


def test_both_buffers_of_a_queued_copy_are_kept(deferred):
    stream, target = deferred.create_stream(), np.zeros(5)
    middle = deferred.empty(5, np.float64)
    middle.copy_from(deferred.to_device(np.ones(5)), stream=stream)
    middle.copy_to(target, stream=stream)
    del middle
    gc.collect()
    stream.synchronize()
    assert target.all()


def test_the_kernel_of_a_queued_launch_is_kept_until_the_wait(deferred):
    stream, x = deferred.create_stream(), deferred.to_device(np.ones(4, F32))
    kernel = deferred.compile("def k(grid, block, out):\n    out.view(np.float32)[:] = 8\n").kernel("k")
    ox.launch(stream, ox.LaunchConfig(1), kernel, x)
    del kernel
    gc.collect()
    stream.synchronize()
    assert x.to_host().tolist() == [8.0] * 4


def test_a_bound_launch_keeps_its_buffers_and_kernel_until_its_last_run_is_done(deferred):
    out, host = deferred.empty(4, F32), np.zeros(4, F32)
    kernel = deferred.compile("def k(grid, block, out):\n    out.view(np.float32)[:] = 8\n").kernel("k")
    bound = ox.BoundLaunch(ox.LaunchConfig(1), kernel, [out])
    stream = deferred.create_stream()
    bound(stream)
    out.copy_to(host, stream=stream)
    out.close()
    del bound, kernel, out
    gc.collect()
    stream.synchronize()
    assert host.tolist() == [8.0] * 4
    gc.collect()
    assert deferred.live_allocations == 0


class Keen(DeferredBackend):
    """Work is done by the time that somebody asks."""

    @ox.hookimpl
    def query(self, device, event):
        self.sync_event(device, event)
        return event.reached


def test_a_long_queue_lets_go_of_what_is_done(register):
    """A token loop that never waits must not hold memory without bound."""
    backend = Keen()
    device = ox.Device(register(backend))
    stream, x = device.create_stream(), device.to_device(np.zeros(4, F32))
    most = 0
    for _ in range(3000):
        ops.add(x, x, device.empty(4, F32).copy_from(x, stream=stream), stream=stream)
        most = max(most, device.live_allocations)
    assert most < 600
    stream.synchronize()
    gc.collect()
    assert device.live_allocations == 1
    assert backend.violations == []


def test_a_failure_in_queued_work_is_raised_by_the_wait_and_then_gone(deferred):
    stream = deferred.create_stream()
    kernel = deferred.compile("def k(grid, block, out):\n    raise ValueError('on the device')\n").kernel("k")
    buffer = deferred.empty(4, np.uint8)
    ox.launch(stream, ox.LaunchConfig(1), kernel, buffer)
    with pytest.raises(ox.LaunchError, match=r"sync failed: ValueError: on the device") as caught:
        stream.synchronize()
    assert isinstance(caught.value.__cause__, ValueError)
    stream.synchronize()
    del buffer, caught
    gc.collect()
    assert deferred.live_allocations == 0, "what failed work used is let go too"


def test_a_failure_in_a_dropped_stream_is_raised_by_the_next_wait(deferred):
    stream = deferred.create_stream()
    kernel = deferred.compile("def k(grid, block):\n    raise ValueError('nobody waits')\n").kernel("k")
    ox.launch(stream, ox.LaunchConfig(1), kernel)
    del stream
    gc.collect()
    with pytest.raises(ox.LaunchError, match="nobody waits") as caught:
        deferred.synchronize()
    assert isinstance(caught.value.__cause__, ValueError)
    deferred.synchronize()


def test_a_dropped_stream_finishes_its_work(deferred):
    out = np.zeros(3)
    deferred.to_device(np.ones(3)).copy_to(out, stream=deferred.create_stream())
    gc.collect()
    assert out.all()


def test_leaving_a_with_block_waits(deferred):
    out = np.zeros(3)
    with deferred.create_stream() as stream:
        deferred.to_device(np.ones(3)).copy_to(out, stream=stream)
        assert not out.any()
    assert out.all()


def test_to_host_sees_what_its_stream_did_and_waits_for_no_other(deferred):
    buffer, slow = deferred.to_device(np.zeros(3)), deferred.create_stream()
    other, out = deferred.to_device(np.ones(3)), np.zeros(3)
    other.copy_to(out, stream=slow)
    assert buffer.to_host().tolist() == [0, 0, 0]
    assert not out.any(), "the other stream was not waited for"
    slow.synchronize()


def test_streams_wait_for_each_other_without_blocking_the_host(deferred):
    first, second = deferred.create_stream(), deferred.create_stream()
    x, out = deferred.empty(4, F32), np.zeros(4, F32)
    x.copy_from(np.full(4, 6, F32), stream=first)
    event = first.record()
    second.wait(event)
    x.copy_to(out, stream=second)
    assert not event.done
    assert not out.any()
    second.synchronize()
    assert event.done
    assert out.all()


def test_time_between_events_is_the_devices(deferred):
    stream = deferred.create_stream()
    start, end = stream.record(), stream.record()
    assert 0 <= end.elapsed_since(start) < 1


def test_without_event_hooks_the_host_waits(register):
    device = ox.Device(register(MinimalBackend))
    stream = device.create_stream()
    start = stream.record()
    assert start.done
    start.synchronize()
    device.create_stream().wait(start)
    assert stream.record().elapsed_since(start) >= 0


def test_events_and_streams_of_another_device_are_refused(deferred, numpy_device):
    mine, other = deferred.create_stream(), numpy_device.create_stream()
    with pytest.raises(ox.ShapeError, match=r"numpy:0.*test"):
        mine.wait(other.record())
    with pytest.raises(ox.ShapeError, match="different devices"):
        mine.record().elapsed_since(other.record())
    with pytest.raises(ox.ShapeError, match="stream is on"):
        deferred.empty(3, np.uint8).copy_from(np.zeros(3, np.uint8), stream=other)
    assert mine.device == deferred


@pytest.fixture
def debugged(register, monkeypatch):
    monkeypatch.setenv("OXIDIZE_DEBUG", "1")
    return ox.Device(register(DeferredBackend()))


def test_debug_mode_notices_a_source_that_changed_before_the_wait(debugged):
    stream, source = debugged.create_stream(), np.arange(100)
    buffer = debugged.empty(100, np.int64).copy_from(source, stream=stream)
    source[3] = -1
    with pytest.raises(ox.LaunchError, match=r"array of 800 bytes was changed between copy_from.*synchronize first"):
        stream.synchronize()
    stream.synchronize()
    assert buffer.to_host()[3] == -1


def test_debug_mode_is_quiet_about_sources_that_stay_or_change_after_the_wait(debugged):
    stream, source = debugged.create_stream(), np.arange(100)
    debugged.empty(100, np.int64).copy_from(source, stream=stream)
    stream.synchronize()
    source[3] = -1
    debugged.empty(100, np.int64).copy_from(source)
    stream.synchronize()


def test_without_debug_mode_nothing_is_checked(deferred):
    stream, source = deferred.create_stream(), np.arange(100)
    deferred.empty(100, np.int64).copy_from(source, stream=stream)
    source[3] = -1
    stream.synchronize()


def test_a_closed_stream_says_so(deferred):
    stream = deferred.create_stream()
    stream.close()
    assert "closed" in repr(stream)
    for use in (stream.synchronize, stream.record, lambda: stream.wait(deferred.default_stream.record())):
        with pytest.raises(ox.ClosedError, match=deferred.id):
            use()
