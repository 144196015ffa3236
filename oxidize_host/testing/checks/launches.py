"""Compiling and launching source in the device's dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from oxidize_host.errors import ClosedError, CompileError, UnsupportedOp
from oxidize_host.kernel import BoundLaunch, LaunchConfig, launch
from oxidize_host.testing.base import Checks, assert_close, over, unsupported
from oxidize_host.testing.sources import SCALARS

if TYPE_CHECKING:
    from oxidize_host.device import Device
    from oxidize_host.kernel import Kernel
    from oxidize_host.memory import Buffer

__all__ = ["Launches"]

F32 = np.float32
_GEOMETRIES = [
    (1, 1),
    (5, 1),
    (1, 32),
    (7, 8),
    ((3, 5), (1, 1)),
    ((2, 3), (4, 2)),
    ((2, 3, 4), (1, 1, 1)),
    ((2, 1, 3), (2, 3, 2)),
    ((1, 1, 9), (1, 1, 2)),
]
_VALUES: dict[str, tuple[type[np.generic], list[Any]]] = {
    "i32": (np.int32, [0, -1, 2**31 - 1, -(2**31)]),
    "u32": (np.uint32, [0, 1, 2**31, 2**32 - 1]),
    "f32": (np.float32, [0.0, -0.0, 1.1, -3.4e38, 1e-38, np.inf, np.nan]),
    "i64": (np.int64, [0, -1, 2**63 - 1, -(2**63)]),
    "u64": (np.uint64, [0, 2**63, 2**64 - 1]),
    "f64": (np.float64, [0.1, -1e300, 5e-324]),
}


def _vectors(device: Device, rng: np.random.Generator, n: int) -> tuple[Any, Any, Buffer, Buffer, Buffer]:
    x, y = rng.standard_normal((2, n)).astype(F32)
    return x, y, device.empty(n, F32).copy_from(np.full(n, np.nan, F32)), device.to_device(x), device.to_device(y)


class Launches(Checks):
    """Compiling and launching source in the device's dialect."""

    @pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 1000, 2**20 + 1])
    def test_saxpy_of_any_length(self, device: Device, rng: np.random.Generator, saxpy: Kernel, n: int) -> None:
        """Elements past n and neighbours in memory stay as they were."""
        x, y, out, dx, dy = _vectors(device, rng, n + 3)
        launch(device.default_stream, over(n, device), saxpy, out, dx, dy, F32(-1.5), np.uint32(n))
        got = out.to_host()
        assert_close(got[:n], F32(-1.5) * x[:n] + y[:n], 1e-6)
        assert np.isnan(got[n:]).all()

    def test_in_place(self, device: Device, rng: np.random.Generator, saxpy: Kernel) -> None:
        """The output may be an input."""
        x, y, _, dx, dy = _vectors(device, rng, 777)
        self.run_saxpy(saxpy, device.default_stream, dy, dx, dy, 2.0)
        assert_close(dy.to_host(), 2 * x + y, 1e-6)
        assert np.array_equal(dx.to_host(), x)

    def test_slices(self, device: Device, rng: np.random.Generator, saxpy: Kernel) -> None:
        """Parts of buffers, at offsets that are multiples of 256 bytes and of 4."""
        for offset, n in ((64, 100), (1, 7)):
            x, y, out, dx, dy = _vectors(device, rng, offset + n + 9)
            part = slice(offset, offset + n)
            with self.optional():
                launch(device.default_stream, over(n, device), saxpy, out[part], dx[part], dy[part], F32(3), np.uint32(n))
            got = out.to_host()
            assert_close(got[part], 3 * x[part] + y[part], 1e-6)
            assert np.isnan(got[:offset]).all()
            assert np.isnan(got[offset + n :]).all()

    @pytest.mark.parametrize(("grid", "block"), _GEOMETRIES, ids=str)
    def test_each_work_item_runs_once_at_its_place(self, device: Device, grid: Any, block: Any) -> None:
        """In one to three dimensions."""
        config = LaunchConfig(grid, block)
        if device.info.max_block and int(np.prod(config.block)) > device.info.max_block:
            unsupported(f"blocks of {config.block}")
        kernel = self.module(device, "extent").kernel("extent")
        nx, ny, nz = (g * b for g, b in zip(config.grid, config.block, strict=True))
        count = nx * ny * nz
        out = device.to_device(np.full(count + 5, 0xFFFFFFFF, np.uint32))
        launch(device.default_stream, config, kernel, out, np.uint32(count))
        z, y, x = np.indices((nz, ny, nx))
        got = out.to_host()
        assert np.array_equal(got[:count], (x + 1000 * y + 1000000 * z).ravel())
        assert (got[count:] == 0xFFFFFFFF).all()

    @pytest.mark.parametrize("grid", [0, (3, 0), (2, 2, 0)], ids=str)
    def test_an_empty_grid_does_nothing(self, device: Device, saxpy: Kernel, grid: Any) -> None:
        """It is not an error."""
        out = device.to_device(np.full(4, 9, F32))
        launch(device.default_stream, LaunchConfig(grid, 1), saxpy, out, out, out, F32(1), np.uint32(4))
        assert out.to_host().tolist() == [9.0] * 4

    @pytest.mark.parametrize("kind", SCALARS)
    def test_scalars_arrive_bit_by_bit(self, device: Device, kind: str) -> None:
        """Extremes of each type."""
        module = self.module(device, "scalars")
        if f"store_{kind}" not in module.names:
            unsupported(f"scalars of the type {kind}")
        kernel = module.kernel(f"store_{kind}")
        dtype, values = _VALUES[kind]
        for value in values:
            scalar = dtype(value)
            out = device.empty(1, dtype)
            launch(device.default_stream, LaunchConfig(1, 1), kernel, out, scalar)
            assert out.to_host().tobytes() == scalar.tobytes(), value

    def test_a_bound_launch_repeats(self, device: Device, rng: np.random.Generator, saxpy: Kernel) -> None:
        """A hundred times, on two streams, with the data that is there each time."""
        x, y, _, dx, dy = _vectors(device, rng, 50)
        bound = BoundLaunch(over(50, device), saxpy, [dy, dx, dy, F32(0.25), np.uint32(50)])
        with device.create_stream() as stream:
            for _ in range(100):
                bound(stream)
        assert_close(dy.to_host(), 25 * x + y, 1e-5)
        dx.copy_from(np.zeros(50, F32))
        bound(device.default_stream)
        assert_close(dy.to_host(), 25 * x + y, 1e-5)

    def test_one_source_compiles_twice_and_kernels_are_independent(self, device: Device, rng: np.random.Generator) -> None:
        """Two modules of one text."""
        first, second = (self.module(device, "saxpy").kernel("saxpy") for _ in range(2))
        x, y, out, dx, dy = _vectors(device, rng, 10)
        self.run_saxpy(first, device.default_stream, out, dx, dy, 2)
        self.run_saxpy(second, device.default_stream, out, out, dy, 1)
        assert_close(out.to_host(), 2 * x + 2 * y, 1e-6)

    def test_source_that_does_not_compile_is_a_compile_error_with_a_log(self, device: Device) -> None:
        """And the device works afterwards."""
        with pytest.raises(CompileError) as caught:
            device.compile("this is ( not a kernel in any dialect }")
        assert caught.value.log.strip(), "CompileError.log is empty: the compiler's words are what a user needs"
        assert device.to_device(np.arange(3)).to_host().tolist() == [0, 1, 2]

    def test_a_kernel_that_the_module_does_not_have_is_a_lookup_error(self, device: Device) -> None:
        """Which names it."""
        with pytest.raises(LookupError, match="no_such_kernel"):
            self.module(device, "saxpy").kernel("no_such_kernel")

    def test_an_operation_that_does_not_exist_is_unsupported(self, device: Device) -> None:
        """`find_kernel` answers None for what it does not know: names, parameters and their values."""
        for name, params in (("no_such_operation", {}), ("gemv", {"weight": "q3_9"}), ("add", {"colour": "red"}), ("gemv", {})):
            with pytest.raises(UnsupportedOp):
                device.kernel(name, **params)

    def test_arguments_are_refused_before_they_reach_the_backend(self, device: Device, saxpy: Kernel) -> None:
        """Bare numbers, arrays, closed buffers."""
        x = device.to_device(np.ones(4, F32))
        with pytest.raises(TypeError, match="uint32"):
            launch(device.default_stream, over(4, device), saxpy, x, x, x, F32(1), 4)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="to_device"):
            launch(device.default_stream, over(4, device), saxpy, x, x, np.ones(4), F32(1), np.uint32(4))  # type: ignore[arg-type]
        closed = device.empty(4, F32)
        closed.close()
        with pytest.raises(ClosedError):
            launch(device.default_stream, over(4, device), saxpy, closed, x, x, F32(1), np.uint32(4))
        self.run_saxpy(saxpy, device.default_stream, x, x, x, 1)
        assert x.to_host().tolist() == [2.0] * 4
