"""Normalization, rotary embedding, KV cache and attention, against float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from oxidize_host import ops
from oxidize_host.testing import oracle
from oxidize_host.testing.base import Checks, assert_close

if TYPE_CHECKING:
    from oxidize_host.device import Device

__all__ = ["Transformer"]

F32 = np.float32
CACHES = {"f32": np.float32, "f16": np.float16}
ROWS = [(1, 1), (1, 32), (3, 7), (5, 576), (2, 4097)]


class Transformer(Checks):
    """Normalization, rotary embedding, KV cache and attention, against float64."""

    @pytest.mark.parametrize("in_place", [False, True], ids=["out", "in place"])
    @pytest.mark.parametrize("shape", ROWS, ids=str)
    def test_rms_norm(self, device: Device, rng: np.random.Generator, shape: tuple[int, int], in_place: bool) -> None:
        """Any shape; the output may be the input."""
        x, weight = rng.standard_normal(shape, F32), rng.standard_normal(shape[1], F32)
        dx = device.to_device(x)
        out = dx if in_place else device.empty(shape, F32)
        with self.optional():
            ops.rms_norm(out, dx, device.to_device(weight), eps=1e-5)
        assert_close(out.to_host(), oracle.normalize(x, weight, 1e-5), self.tolerance("rms_norm", 2e-6), "rms_norm")

    @pytest.mark.parametrize("scale", [0.0, 1e-12, 1e-3, 1e4, 1e15], ids=lambda scale: f"{scale:g}")
    def test_rms_norm_of_extremes(self, device: Device, rng: np.random.Generator, scale: float) -> None:
        """Zeros give zeros; eps counts for tiny rows; squares of large ones do not overflow."""
        x = (rng.standard_normal((2, 64)) * scale).astype(F32)
        weight, out = np.ones(64, F32), device.empty((2, 64), F32)
        with self.optional():
            ops.rms_norm(out, device.to_device(x), device.to_device(weight), eps=1e-6)
        assert_close(out.to_host(), oracle.normalize(x, weight, 1e-6), self.tolerance("rms_norm", 2e-6), "rms_norm")

    @pytest.mark.parametrize("in_place", [False, True], ids=["out", "in place"])
    @pytest.mark.parametrize("shape", ROWS, ids=str)
    def test_softmax(self, device: Device, rng: np.random.Generator, shape: tuple[int, int], in_place: bool) -> None:
        """Any shape; the output may be the input."""
        x = (rng.standard_normal(shape) * 5).astype(F32)
        dx = device.to_device(x)
        out = dx if in_place else device.empty(shape, F32)
        with self.optional():
            ops.softmax(out, dx)
        assert_close(out.to_host(), oracle.softmax(x), self.tolerance("softmax", 2e-6), "softmax")

    @pytest.mark.parametrize(
        "row", [[0, 0, 0, 0], [1000, 999, 0, -1000], [-1e30, -1e30, 0, 1], [88, 89, 90, 91], [-np.inf, 0, 1, -np.inf]], ids=str
    )
    def test_softmax_of_extremes(self, device: Device, row: list[float]) -> None:
        """Nothing overflows; what is masked by minus infinity is zero."""
        x, out = np.array([row], F32), device.empty((1, 4), F32)
        with self.optional():
            ops.softmax(out, device.to_device(x))
        assert_close(out.to_host(), oracle.softmax(x), self.tolerance("softmax", 2e-6), "softmax")

    @pytest.mark.parametrize("in_place", [False, True], ids=["out", "in place"])
    @pytest.mark.parametrize("part", [1.0, 0.5])
    @pytest.mark.parametrize("mode", ["normal", "neox"])
    def test_rope(self, device: Device, rng: np.random.Generator, mode: str, part: float, in_place: bool) -> None:
        """Both pairings, whole heads and parts of them."""
        for shape in ((1, 1, 2), (3, 5, 64), (2, 9, 80), (4, 1, 6)):
            half = max(int(shape[2] * part) // 2, 1)
            x = rng.standard_normal(shape, F32)
            positions = rng.integers(0, 300, shape[0]).astype(np.int32)
            frequencies = (10000.0 ** (-np.arange(half) / half)).astype(F32)
            dx = device.to_device(x)
            out = dx if in_place else device.empty(shape, F32)
            with self.optional():
                ops.rope(out, dx, device.to_device(positions), device.to_device(frequencies), mode=mode)
            expected = oracle.rope(x, positions, frequencies, mode)
            # The angle is a product of up to 300 rounded to float32: half a unit in its last place is 2e-5 radians.
            assert_close(out.to_host(), expected, self.tolerance(f"rope:{mode}", 3e-5), f"rope {mode}")
            rest = out.to_host()[..., 2 * half :]
            assert np.array_equal(rest, x[..., 2 * half :]), "dimensions that are not rotated must be copied"

    @pytest.mark.parametrize("cache", CACHES)
    def test_set_rows(self, device: Device, rng: np.random.Generator, cache: str) -> None:
        """Rows are converted and written, others kept, those out of range skipped."""
        x = rng.standard_normal((5, 24), F32)
        before = rng.standard_normal((9, 24)).astype(CACHES[cache])
        rows = np.array([4, -1, 0, 9, 8], np.int32)
        out = device.to_device(before)
        with self.optional():
            ops.set_rows(out, device.to_device(x), device.to_device(rows))
        expected = before.copy()
        expected[[4, 0, 8]] = x[[0, 2, 4]].astype(CACHES[cache])
        assert np.array_equal(out.to_host(), expected)

    @pytest.mark.parametrize("cache", CACHES)
    def test_set_rows_of_extremes(self, device: Device, cache: str) -> None:
        """Signed zeros, the largest and the smallest; ties round to even."""
        with np.errstate(over="ignore"):
            x = np.array([[0.0, -0.0, 65504, -65504, 6e-8, 1e-9, 1 + 2**-11, 1 + 3 * 2**-11, 65520, np.inf]], F32)
            expected = x.astype(CACHES[cache])
        out = device.to_device(np.zeros((1, x.size), CACHES[cache]))
        with self.optional():
            ops.set_rows(out, device.to_device(x), device.to_device(np.zeros(1, np.int32)))
        assert out.to_host().tobytes() == expected.tobytes()

    @pytest.mark.parametrize("n", [1, 4])
    @pytest.mark.parametrize("head_dim", [8, 64, 80])
    @pytest.mark.parametrize("cache", CACHES)
    def test_attention(self, device: Device, rng: np.random.Generator, cache: str, head_dim: int, n: int) -> None:
        """Grouped heads; each token sees the rows up to its position and no others."""
        capacity = 40
        for heads, kv_heads in ((1, 1), (4, 4), (9, 3), (8, 1)):
            q = rng.standard_normal((n, heads, head_dim), F32)
            k, v = rng.standard_normal((2, capacity, kv_heads, head_dim)).astype(CACHES[cache])
            positions = np.array([33] if n == 1 else [0, 17, 39, 60], np.int32)
            used = min(int(positions.max()), capacity - 1) + 1
            k[used:], v[used:] = np.nan, np.nan
            self._attention(device, cache, q, k, v, positions, 1 / np.sqrt(head_dim))

    @pytest.mark.parametrize("cache", CACHES)
    def test_attention_over_a_long_cache(self, device: Device, rng: np.random.Generator, cache: str) -> None:
        """A thousand tokens, scores that differ by a hundred."""
        q = rng.standard_normal((2, 6, 64), F32) * F32(8)
        k, v = rng.standard_normal((2, 1024, 2, 64)).astype(CACHES[cache])
        self._attention(device, cache, q, k, v, np.array([1000, 1023], np.int32), 0.3)

    @pytest.mark.parametrize("cache", CACHES)
    def test_attention_to_equal_keys_is_the_mean(self, device: Device, rng: np.random.Generator, cache: str) -> None:
        """Also at scores that would overflow without their maximum taken off."""
        q, k = np.full((1, 2, 16), 30, F32), np.full((12, 2, 16), 30, CACHES[cache])
        v = rng.standard_normal((12, 2, 16)).astype(CACHES[cache])
        self._attention(device, cache, q, k, v, np.array([11], np.int32), 1.0)

    def _attention(
        self,
        device: Device,
        cache: str,
        q: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
        k: np.ndarray[tuple[int, ...], np.dtype[np.floating]],
        v: np.ndarray[tuple[int, ...], np.dtype[np.floating]],
        positions: np.ndarray[tuple[int, ...], np.dtype[np.int32]],
        scale: float,
    ) -> None:
        out = device.to_device(np.full(q.shape, np.nan, F32))
        operands = [device.to_device(array) for array in (q, k, v, positions)]
        with self.optional():
            ops.attention(out, *operands, scale=scale)
        expected = oracle.attention(q, k, v, positions, float(np.float32(scale)))
        assert_close(out.to_host(), expected, self.tolerance(f"attention:{cache}", 1e-5), f"attention {cache}")
