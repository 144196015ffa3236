"""Order within a stream and across streams, events, and the life of what queued work uses."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest

from oxidize_host.errors import ClosedError
from oxidize_host.testing.base import Checks, assert_close, unsupported

if TYPE_CHECKING:
    from oxidize_host.device import Device
    from oxidize_host.kernel import Kernel

__all__ = ["Streams"]

F32 = np.float32
N = 20_000


class Streams(Checks):
    """Order within a stream and across streams, events, and the life of what queued work uses."""

    def test_work_of_one_stream_happens_in_order(self, device: Device, saxpy: Kernel) -> None:
        """Copies and launches that each need the one before."""
        one, acc, back = device.to_device(np.ones(N, F32)), device.to_device(np.zeros(N, F32)), np.zeros(N, F32)
        with device.create_stream() as stream:
            for step in range(1, 31):
                self.run_saxpy(saxpy, stream, acc, acc, one, 2.0)
                if step % 10 == 0:
                    acc.copy_to(back, stream=stream)
                    acc.copy_from(np.zeros(N, F32), stream=stream)
                    one.copy_from(np.full(N, step, F32), stream=stream)
        assert_close(back, np.full(N, 20 * (2.0**10 - 1)), 1e-6)
        assert not acc.to_host().any()

    def test_a_stream_waits_for_an_event_of_another(self, device: Device, saxpy: Kernel) -> None:
        """Back and forth between two streams, ten times."""
        one, acc = device.to_device(np.ones(N, F32)), device.to_device(np.zeros(N, F32))
        first, second = device.create_stream(), device.create_stream()
        for _ in range(10):
            for mine, other in ((first, second), (second, first)):
                self.run_saxpy(saxpy, mine, acc, acc, one, 1.0)
                other.wait(mine.record())
        out = np.zeros(N, F32)
        acc.copy_to(out, stream=first)
        first.synchronize()
        assert_close(out, np.full(N, 20.0), 1e-6)

    def test_an_event_is_reached_after_its_work(self, device: Device, saxpy: Kernel) -> None:
        """After `Event.synchronize`, the results are there."""
        one, out = device.to_device(np.ones(N, F32)), np.zeros(N, F32)
        stream = device.create_stream()
        self.run_saxpy(saxpy, stream, one, one, one, 1.0)
        one.copy_to(out, stream=stream)
        event = stream.record()
        event.synchronize()
        assert event.done
        assert (out == 2).all()

    def test_polling_an_event_ends(self, device: Device, saxpy: Kernel) -> None:
        """`Event.done` becomes true without a wait, and stays so."""
        one = device.to_device(np.ones(N, F32))
        stream = device.create_stream()
        self.run_saxpy(saxpy, stream, one, one, one, 1.0)
        event = stream.record()
        for _ in range(10_000_000):
            if event.done:
                break
        assert event.done

    def test_time_between_events_is_not_negative(self, device: Device, saxpy: Kernel) -> None:
        """And under a minute, so that it is in seconds."""
        one = device.to_device(np.ones(N, F32))
        with device.create_stream() as stream:
            start = stream.record()
            self.run_saxpy(saxpy, stream, one, one, one, 1.0)
            end = stream.record()
            assert 0 <= end.elapsed_since(start) < 60

    def test_the_default_stream_and_others_are_separate_queues(self, device: Device, saxpy: Kernel) -> None:
        """Synchronizing the device waits for all of them."""
        buffers = [device.to_device(np.full(N, i, F32)) for i in range(3)]
        outs = [np.zeros(N, F32) for _ in buffers]
        streams = [device.default_stream, device.create_stream(), device.create_stream()]
        for buffer, stream, out in zip(buffers, streams, outs, strict=True):
            self.run_saxpy(saxpy, stream, buffer, buffer, buffer, 2.0)
            buffer.copy_to(out, stream=stream)
        device.synchronize()
        assert [float(out[-1]) for out in outs] == [0.0, 3.0, 6.0]

    def test_a_closed_stream_refuses(self, device: Device) -> None:
        """Closing waits for its work and may be repeated."""
        stream, out = device.create_stream(), np.zeros(100, F32)
        device.to_device(np.ones(100, F32)).copy_to(out, stream=stream)
        stream.close()
        stream.close()
        assert out.all()
        with pytest.raises(ClosedError):
            stream.synchronize()
        with pytest.raises(ClosedError):
            device.empty(100, F32).copy_from(out, stream=stream)

    def test_many_streams_can_be_made_and_dropped(self, device: Device) -> None:
        """Two hundred, each with work in it when it is dropped."""
        buffer = device.empty(8, np.int64)
        for i in range(200):
            buffer.copy_from(np.full(8, i), stream=device.create_stream())
        device.synchronize()
        gc.collect()
        assert buffer.to_host().tolist() == [199] * 8

    def test_arrays_dropped_right_after_queueing(self, device: Device) -> None:
        """The source of a queued copy lives until it is done, and is not reused for the next one."""
        stream = device.create_stream()
        buffers = [device.empty(4096, np.int32) for _ in range(20)]
        for i, buffer in enumerate(buffers):
            buffer.copy_from(np.full(4096, i, np.int32), stream=stream)
            np.full(4096, -1, np.int32)  # takes the memory of the source, if that was let go
        gc.collect()
        stream.synchronize()
        for i, buffer in enumerate(buffers):
            assert (buffer.to_host() == i).all()

    def test_buffers_and_kernels_dropped_right_after_queueing(self, device: Device) -> None:
        """A launch's buffers and its kernel live until it is done, and their memory is not given to others."""
        stream, outs = device.create_stream(), []
        for i in range(10):
            kernel = self.module(device, "saxpy").kernel("saxpy")
            x, y = device.to_device(np.full(N, i, F32)), device.to_device(np.ones(N, F32))
            out = device.empty(N, F32)
            self.run_saxpy(kernel, stream, out, x, y, 3.0)
            del kernel, x, y
            device.to_device(np.full(N, np.nan, F32)).close()
            host = np.zeros(N, F32)
            out.copy_to(host, stream=stream)
            out.close()
            outs.append(host)
        gc.collect()
        stream.synchronize()
        assert [float(out[0]) for out in outs] == [3.0 * i + 1 for i in range(10)]
        assert all((out == out[0]).all() for out in outs)

    def test_a_target_array_lives_until_the_copy_is_done(self, device: Device) -> None:
        """It may be dropped, and the wait must not write into memory that others own."""
        if not device._core.asynchronous:
            unsupported("queued work: every call of this backend finishes before it returns")
        buffer, stream = device.to_device(np.arange(1000)), device.create_stream()
        target = np.zeros(1000, np.int64)
        alive = weakref.ref(target)
        buffer.copy_to(target, stream=stream)
        del target
        gc.collect()
        assert alive() is not None
        stream.synchronize()
        gc.collect()
        assert alive() is None

    def test_thousands_of_queued_pieces(self, device: Device, saxpy: Kernel) -> None:
        """What they use is let go along the way, not only at the end."""
        one, acc = device.to_device(np.ones(16, F32)), device.to_device(np.zeros(16, F32))
        stream = device.create_stream()
        for _ in range(3000):
            self.run_saxpy(saxpy, stream, acc, acc, one, 1.0)
        stream.synchronize()
        assert acc.to_host().tolist() == [3000.0] * 16
