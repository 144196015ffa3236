"""Opening, describing, closing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from oxidize_host.device import Device, smoke_test
from oxidize_host.errors import BackendUnavailable, ClosedError
from oxidize_host.info import BuildInfo, MemoryInfo
from oxidize_host.kernel import launch
from oxidize_host.testing.base import Checks, over, unsupported

if TYPE_CHECKING:
    from oxidize_host.kernel import Kernel

__all__ = ["Lifecycle"]


class Lifecycle(Checks):
    """Opening, describing, closing."""

    def test_build_info_is_a_record_that_names_the_backend(self, device: Device) -> None:
        """It is a `BuildInfo`, the same each time, and usable, since the device is open."""
        info = device._core.backend.build_info()
        assert isinstance(info, BuildInfo)
        assert info.backend
        assert info.version
        assert info.usable
        assert device._core.backend.build_info() == info

    def test_devices_are_the_same_each_time(self, device: Device) -> None:
        """Indices name devices, so their order must not change."""
        backend = device._core.backend
        first, second = backend.devices(), backend.devices()
        assert [(info.name, info.uuid, info.pci) for info in first] == [(info.name, info.uuid, info.pci) for info in second]
        assert all(info.name for info in first)
        uuids = [info.uuid for info in first if info.uuid]
        assert len(uuids) == len(set(uuids))

    def test_memory_figures_make_sense(self, device: Device) -> None:
        """Free is at most total; unknown is None."""
        own = device._core.backend.memory_info
        if own is not None:
            assert isinstance(own(device._core.state), MemoryInfo)
        info = device.memory_info()
        if info.total is not None:
            assert info.total > 0
        if info.free is not None and info.total is not None:
            assert 0 <= info.free <= info.total

    def test_the_smoke_test_passes(self, device: Device) -> None:
        """What every first use of the device does."""
        smoke_test(device)

    def test_a_device_without_such_an_index_is_refused(self, device: Device) -> None:
        """The message lists those there are; the backend is not asked to open it."""
        name = device.id.partition(":")[0]
        with pytest.raises(BackendUnavailable) as caught:
            Device(f"{name}:9999")
        assert caught.value.reason.kind == "NoDevice"

    def test_a_closed_device_refuses_and_can_be_opened_anew(self, device: Device) -> None:
        """After close, everything that belonged to it raises `ClosedError`; a new `Device` works."""
        buffer = device.to_device(np.arange(16, dtype=np.int32))
        stream = device.create_stream()
        device.close()
        device.close()
        assert device.live_allocations == 0
        for use in (
            lambda: device.empty(1, np.uint8),
            device.create_stream,
            device.synchronize,
            device.memory_info,
            buffer.to_host,
            lambda: buffer.copy_from(np.zeros(16, np.int32)),
            stream.synchronize,
            stream.record,
        ):
            with pytest.raises(ClosedError):
                use()
        again = Device(self.spec)
        assert again.to_device(np.arange(16, dtype=np.int32)).to_host().tolist() == list(range(16))

    def test_a_kernel_of_a_closed_device_is_refused(self, device: Device, saxpy: Kernel) -> None:
        """Launching it on the device's next life is an error too, not a crash."""
        device.close()
        again = Device(self.spec)
        x = again.to_device(np.ones(4, np.float32))
        with pytest.raises((ClosedError, ValueError)):
            launch(again.default_stream, over(4, again), saxpy, x, x, x, np.float32(1), np.uint32(4))

    def test_opening_and_closing_many_times_works(self, device: Device) -> None:
        """Ten lives, each of which computes."""
        device.close()
        for life in range(10):
            with Device(self.spec, smoke_test=False) as again:
                assert again.to_device(np.full(3, life, np.int64)).to_host().tolist() == [life] * 3

    def test_two_devices_of_one_name_are_one(self, device: Device) -> None:
        """Memory of one serves the other."""
        assert Device(device.id) == device
        assert Device(device.id).live_allocations == device.live_allocations

    def test_pinned_memory_copies_like_any_other(self, device: Device) -> None:
        """Page-locked memory is writable, of the right size, and a valid source and target."""
        if device._core.backend.alloc_pinned is None:
            unsupported("alloc_pinned")
        source, target = device.pinned((5, 7), np.float32), device.pinned(35, np.float32)
        source[:] = np.arange(35).reshape(5, 7)
        device.to_device(source).view(35).copy_to(target)
        assert target.tolist() == list(range(35))
