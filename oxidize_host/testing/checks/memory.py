"""Running out of memory, giving it back, and several threads at once."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from oxidize_host.errors import CompileError, OutOfMemory, OxidizeError, ShapeError
from oxidize_host.kernel import launch
from oxidize_host.testing.base import Checks, over, unsupported
from oxidize_host.testing.leaks import no_leaks

if TYPE_CHECKING:
    from collections.abc import Callable

    from oxidize_host.device import Device
    from oxidize_host.kernel import Kernel

__all__ = ["Memory"]

F32 = np.float32
MIB = 2**20
THREADS = 4


class Memory(Checks):
    """Running out of memory, giving it back, and several threads at once."""

    @pytest.mark.parametrize("exponent", [50, 62])
    def test_an_absurd_size_is_out_of_memory(self, device: Device, exponent: int) -> None:
        """Which says where and how much; the device works afterwards."""
        held = device.to_device(np.ones(1000, np.uint8))
        with pytest.raises(OutOfMemory) as caught:
            device.empty(2**exponent, np.uint8)
        assert caught.value.device == device.id
        assert caught.value.asked == 2**exponent
        assert caught.value.own >= 1000
        assert caught.value.largest >= 1000
        assert device.id in str(caught.value)
        assert isinstance(caught.value, MemoryError)
        del caught
        assert device.to_device(np.arange(1000)).to_host().tolist() == list(range(1000))
        assert held.to_host().all()

    def test_memory_is_given_back(self, device: Device) -> None:
        """256 MiB are taken, filled and given back again, 4 MiB at a time; what the device says is free must not sink by them."""
        block = np.ones(4 * MIB, np.uint8)

        def churn() -> int:
            before = device.memory_info().free
            for _ in range(64):
                device.to_device(block).close()
            device.synchronize()
            after = device.memory_info().free
            if before is None or after is None:
                unsupported("memory_info: the device does not say what is free")
            return before - after

        # Other processes take memory too; a leak takes it each time.
        assert min(churn() for _ in range(3)) < 128 * MIB, "closed buffers do not give their memory back to the device"

    def test_nothing_stays_allocated_after_use(self, device: Device, saxpy: Kernel) -> None:
        """Copies, slices, launches, streams."""

        def work() -> None:
            x = device.to_device(np.ones(1000, F32))
            out = device.empty(1000, F32)
            with device.create_stream() as stream:
                self.run_saxpy(saxpy, stream, out, x, x, 2.0)
                part = out.view(100, offset=80)
            assert (part.to_host() == 3).all()

        with no_leaks(device):
            for _ in range(20):
                work()

    def test_nothing_stays_allocated_after_errors(self, device: Device, saxpy: Kernel) -> None:
        """Refused launches and copies, source that does not compile, a full device."""
        x = device.to_device(np.ones(10, F32))

        def refused() -> None:
            launch(device.default_stream, over(10, device), saxpy, device.empty(10, F32), x, x, F32(1), 10)  # type: ignore[arg-type]

        def attempt(use: Callable[[], object], *errors: type[BaseException]) -> None:
            with contextlib.suppress(*errors):
                use()
                pytest.fail("nothing was raised")

        with no_leaks(device):
            for _ in range(5):
                attempt(refused, TypeError)
                attempt(lambda: device.empty(4, F32).copy_from(np.zeros(5, F32)), ShapeError)
                attempt(lambda: device.compile("not ( a kernel"), CompileError)
                attempt(lambda: device.empty(2**50, np.uint8), OutOfMemory)

    def test_buffers_and_slices_share_one_allocation(self, device: Device) -> None:
        """It is freed with the last of them."""
        with no_leaks(device):
            before = device.live_allocations
            whole = device.to_device(np.arange(100, dtype=np.uint8))
            part = whole.view(10, offset=50)
            assert device.live_allocations == before + 1
            whole.close()
            assert device.live_allocations == before + 1
            assert part.to_host().tolist() == list(range(50, 60))
            part.close()

    def test_many_small_allocations(self, device: Device) -> None:
        """Each keeps its own contents."""
        with no_leaks(device):
            buffers = [device.to_device(np.full(3, i, np.int16)) for i in range(500)]
            assert [int(buffer.to_host()[2]) for buffer in buffers] == list(range(500))
            del buffers

    def test_several_threads_allocate_copy_and_launch(self, device: Device, saxpy: Kernel) -> None:
        """Each on a stream of its own, each with results of its own."""
        errors: list[BaseException] = []
        start = threading.Barrier(THREADS)

        def work(seed: int) -> None:
            try:
                rng = np.random.default_rng(seed)
                start.wait(30)
                stream = device.create_stream()
                for _ in range(25):
                    n = int(rng.integers(1, 5000))
                    x, y = rng.standard_normal((2, n)).astype(F32)
                    dx, dy = device.to_device(x, stream=stream), device.to_device(y, stream=stream)
                    self.run_saxpy(saxpy, stream, dy, dx, dy, 0.5)
                    np.testing.assert_allclose(dy.to_host(stream=stream), F32(0.5) * x + y, rtol=1e-5, atol=1e-6)
                stream.close()
            except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
        with no_leaks(device):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]

    def test_several_threads_compile_the_same_source(self, device: Device) -> None:
        """And look for standard kernels; all get working ones."""
        text = self.source(device, "saxpy")
        results: list[object] = []

        def work() -> None:
            try:
                kernel = device.compile(text).kernel("saxpy")
                x = device.to_device(np.ones(8, F32))
                with device.create_stream() as stream:
                    self.run_saxpy(kernel, stream, x, x, x, 1.0)
                results.append(x.to_host().tolist())
                device._core.call("build_info")
            except OxidizeError as error:
                results.append(error)

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [[2.0] * 8] * THREADS
