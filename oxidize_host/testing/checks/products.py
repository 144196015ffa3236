"""Products with weights in every format, against float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from oxidize_host import ops, quant
from oxidize_host.testing import oracle
from oxidize_host.testing.base import Checks, assert_close

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxidize_host.device import Device

__all__ = ["Products"]

F32 = np.float32
FORMATS = tuple(quant.FORMATS)
FLOAT_TOLERANCE = 1e-5
QUANTIZED_TOLERANCE = 1.5e-2
"""Kernels may round activations to 8 bits a block, as those of llama.cpp do.

That adds noise with a standard deviation of about 0.006 |w| rms(x) to a result (for Gaussian x, in blocks of 32 to 256), however
small the result is when its terms cancel. So the tolerance is relative to the largest result or twice |w| rms(x), whichever is
more; the latter is what a lone result is likely to be, and five times the noise.
"""


def _columns(weight: str, blocks: int) -> int:
    return blocks * max(quant.FORMATS[weight].block, 32)


def default_tolerance(weight: str) -> float:
    """Return what a product may be off by, relative to the largest one."""
    return QUANTIZED_TOLERANCE if quant.FORMATS[weight].quantized else FLOAT_TOLERANCE


class Products(Checks):
    """Products with weights in every format, against float64."""

    def check_product(self, device: Device, weight: str, raw: NDArray[np.uint8], x: NDArray[np.float32]) -> None:
        """Compare gemv (for one row) or gemm with the oracle."""
        matrix = oracle.decode(raw, weight).astype(np.float64)
        rows, columns = matrix.shape
        w = ops.Weight.upload(device, raw, weight, (rows, columns))
        name, op = ("gemv", ops.gemv) if x.ndim == 1 else ("gemm", ops.gemm)
        expected = x.astype(np.float64) @ matrix.T
        out = device.to_device(np.full(expected.shape, np.nan, F32))
        with self.optional():
            op(out, w, device.to_device(x))
        limit = self.tolerance(f"{name}:{weight}", default_tolerance(weight))
        typical = 2 * float(
            np.max(np.linalg.norm(matrix, axis=1)) * np.max(np.sqrt(np.mean(np.square(x, dtype=np.float64), -1)))
        )
        assert_close(out.to_host(), expected, limit, f"{name} of {weight}", magnitude=typical)

    @pytest.mark.parametrize("blocks", [1, 2, 5], ids=lambda blocks: f"blocks={blocks}")
    @pytest.mark.parametrize("weight", FORMATS)
    def test_gemv(self, device: Device, rng: np.random.Generator, weight: str, blocks: int) -> None:
        """Odd numbers of rows, one block and more."""
        columns = _columns(weight, blocks)
        for rows in (1, 3, 64, 257):
            raw = oracle.random_weight(rng, weight, rows, columns)
            self.check_product(device, weight, raw, rng.standard_normal(columns, F32))

    @pytest.mark.parametrize("columns", [1, 2, 7, 33, 130])
    @pytest.mark.parametrize("weight", ["f32", "f16", "bf16"])
    def test_gemv_of_any_number_of_columns(self, device: Device, rng: np.random.Generator, weight: str, columns: int) -> None:
        """Plain floats have no blocks."""
        self.check_product(device, weight, oracle.random_weight(rng, weight, 5, columns), rng.standard_normal(columns, F32))

    @pytest.mark.parametrize("shape", [(64, 2048), (2048, 512)], ids=str)
    @pytest.mark.parametrize("weight", FORMATS)
    def test_gemv_of_a_models_size(self, device: Device, rng: np.random.Generator, weight: str, shape: tuple[int, int]) -> None:
        """Long rows, many rows."""
        self.check_product(device, weight, oracle.random_weight(rng, weight, *shape), rng.standard_normal(shape[1], F32))

    @pytest.mark.parametrize("scale", [0.0, 1e-7, 1000.0], ids=lambda scale: f"scale={scale:g}")
    @pytest.mark.parametrize("weight", FORMATS)
    def test_gemv_of_extreme_weights(self, device: Device, rng: np.random.Generator, weight: str, scale: float) -> None:
        """Zeros, scale factors that are subnormal halves, huge ones."""
        columns = _columns(weight, 2)
        raw = oracle.random_weight(rng, weight, 17, columns, scale)
        self.check_product(device, weight, raw, rng.standard_normal(columns, F32))

    @pytest.mark.parametrize("kind", ["zeros", "negative zeros", "tiny", "huge", "one", "blocks"])
    @pytest.mark.parametrize("weight", FORMATS)
    def test_gemv_of_extreme_activations(self, device: Device, rng: np.random.Generator, weight: str, kind: str) -> None:
        """All zero, 1e-30, 1e15, a single one, blocks of very different size."""
        columns = _columns(weight, 4)
        x = rng.standard_normal(columns, F32)
        if kind == "blocks":
            x *= np.repeat(np.array([1, 1e-6, 0, 100], F32), columns // 4)
        elif kind == "one":
            x = np.eye(1, columns, columns - 1, dtype=F32)[0]
        else:
            x *= F32({"zeros": 0.0, "negative zeros": -0.0, "tiny": 1e-30, "huge": 1e15}[kind])
        self.check_product(device, weight, oracle.random_weight(rng, weight, 19, columns), x)

    @pytest.mark.parametrize("weight", FORMATS)
    def test_gemm(self, device: Device, rng: np.random.Generator, weight: str) -> None:
        """One row of activations and many."""
        columns = _columns(weight, 2)
        raw = oracle.random_weight(rng, weight, 37, columns)
        for n in (1, 2, 5, 33):
            self.check_product(device, weight, raw, rng.standard_normal((n, columns), F32))

    @pytest.mark.parametrize("weight", FORMATS)
    def test_gemm_without_rows_does_nothing(self, device: Device, rng: np.random.Generator, weight: str) -> None:
        """No activations, no results."""
        columns = _columns(weight, 1)
        w = ops.Weight.upload(device, oracle.random_weight(rng, weight, 4, columns), weight, (4, columns))
        with self.optional():
            ops.gemm(device.empty((0, 4), F32), w, device.empty((0, columns), F32))
        device.synchronize()

    @pytest.mark.parametrize("weight", FORMATS)
    def test_get_rows(self, device: Device, rng: np.random.Generator, weight: str) -> None:
        """Decoded exactly; a row of NaN for an id out of range."""
        columns = _columns(weight, 2)
        raw = oracle.random_weight(rng, weight, 11, columns)
        ids = np.array([3, 0, 10, 3, 11, -1, 2**31 - 1, 7], np.int32)
        expected: NDArray[Any] = oracle.decode(raw[np.clip(ids, 0, 10)], weight)
        expected[(ids < 0) | (ids > 10)] = np.nan
        out = device.empty((len(ids), columns), F32)
        with self.optional():
            ops.get_rows(out, ops.Weight.upload(device, raw, weight, (11, columns)), device.to_device(ids))
        assert_close(out.to_host(), expected, self.tolerance(f"get_rows:{weight}", 1e-6), f"get_rows of {weight}")

    @pytest.mark.parametrize("zero_copy", [True, False])
    def test_weights_in_place_and_copied_give_the_same(self, device: Device, rng: np.random.Generator, zero_copy: bool) -> None:
        """`Weight.upload` of a read-only array, as of a mapped file."""
        raw = oracle.random_weight(rng, "q8_0", 8, 64)
        raw.flags.writeable = False
        x = rng.standard_normal(64, F32)
        out = device.empty(8, F32)
        weight = ops.Weight.upload(device, raw, "q8_0", (8, 64), zero_copy=zero_copy)
        with self.optional():
            ops.gemv(out, weight, device.to_device(x))
        expected = oracle.decode(raw, "q8_0").astype(np.float64) @ x
        assert_close(out.to_host(), expected, self.tolerance("gemv:q8_0", default_tolerance("q8_0")))

    def test_bound_products_see_new_activations(self, device: Device, rng: np.random.Generator) -> None:
        """A bound launch reads what the buffer holds when it runs."""
        raw = oracle.random_weight(rng, "f32", 6, 40)
        w, x, out = ops.Weight.upload(device, raw, "f32", (6, 40)), device.empty(40, F32), device.empty(6, F32)
        with self.optional():
            bound = ops.gemv.bind(out, w, x)
        for _ in range(3):
            values = rng.standard_normal(40, F32)
            x.copy_from(values)
            bound(device.default_stream)
            assert_close(out.to_host(), oracle.decode(raw, "f32").astype(np.float64) @ values, FLOAT_TOLERANCE)
