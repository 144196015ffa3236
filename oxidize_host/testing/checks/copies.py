"""Copies: every direction, offset and size, against a model in numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from oxidize_host.errors import ShapeError
from oxidize_host.testing.base import Checks

if TYPE_CHECKING:
    from oxidize_host.device import Device

__all__ = ["Copies"]

SIZES = (1, 2, 3, 5, 7, 8, 15, 16, 63, 64, 65, 255, 256, 257, 1023, 4096, 4097, 65537)
DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
)
LARGE = 16 * 2**20 + 3


def _random(rng: np.random.Generator, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return rng.integers(0, 256, count, dtype=np.uint8)


class Copies(Checks):
    """Copies: every direction, offset and size, against a model in numpy."""

    @pytest.mark.parametrize("size", SIZES)
    def test_bytes_there_and_back(self, device: Device, rng: np.random.Generator, size: int) -> None:
        """Also sizes that are no multiple of a word."""
        data = _random(rng, size)
        assert np.array_equal(device.to_device(data).to_host(), data)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_every_dtype_there_and_back(self, device: Device, rng: np.random.Generator, dtype: str) -> None:
        """Bit by bit: NaN payloads too."""
        data = _random(rng, 3 * 5 * np.dtype(dtype).itemsize)
        if dtype == "bool":
            data &= 1
        array = data.view(dtype).reshape(3, 5)
        back = device.to_device(array).to_host()
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert back.tobytes() == array.tobytes()

    @pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (2, 3, 4, 5), (0,), (3, 0, 2)], ids=str)
    def test_every_shape_there_and_back(self, device: Device, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
        """No dimension, many, and none of any length."""
        data = rng.standard_normal(shape)
        assert np.array_equal(device.to_device(np.asarray(data)).to_host(), data)

    def test_a_large_copy_there_across_and_back(self, device: Device, rng: np.random.Generator) -> None:
        """16 MiB and three bytes, through a second buffer."""
        data = np.resize(_random(rng, 1000003), LARGE)
        first = device.to_device(data)
        second = device.empty(LARGE, np.uint8).copy_from(first)
        assert np.array_equal(second.to_host(), data)

    @pytest.mark.parametrize("order", ["F", "step", "reverse", "broadcast"])
    def test_a_source_that_is_not_contiguous_is_read_in_c_order(
        self, device: Device, rng: np.random.Generator, order: str
    ) -> None:
        """As numpy would."""
        base = rng.standard_normal((12, 10)).astype(np.float32)
        source = {
            "F": np.asfortranarray(base),
            "step": base[::3, 1::2],
            "reverse": base[::-1, ::-1],
            "broadcast": np.broadcast_to(base[0], (4, 10)),
        }[order]
        assert np.array_equal(device.to_device(source).to_host(), source)

    def test_a_read_only_source_is_fine_and_a_read_only_target_is_not(self, device: Device) -> None:
        """Nothing is written to it."""
        array = np.arange(8, dtype=np.int32)
        array.flags.writeable = False
        buffer = device.to_device(array)
        with pytest.raises(ShapeError):
            buffer.copy_to(array)
        assert array.tolist() == list(range(8))

    @pytest.mark.parametrize("source_offset", [0, 1, 4, 13])
    @pytest.mark.parametrize("target_offset", [0, 3, 4, 29])
    def test_copies_between_buffers_at_any_offset(
        self, device: Device, rng: np.random.Generator, source_offset: int, target_offset: int
    ) -> None:
        """Only the range asked for changes."""
        for size in (0, 1, 4, 5, 64, 67):
            a, b = _random(rng, 128), _random(rng, 128)
            source, target = device.to_device(a), device.to_device(b)
            target.view(size, offset=target_offset).copy_from(source.view(size, offset=source_offset))
            b[target_offset : target_offset + size] = a[source_offset : source_offset + size]
            assert np.array_equal(target.to_host(), b)
            assert np.array_equal(source.to_host(), a)

    @pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 7, 33])
    def test_host_copies_at_any_offset(self, device: Device, rng: np.random.Generator, offset: int) -> None:
        """To a part of a buffer, and from it."""
        for size in (0, 1, 2, 4, 31, 64):
            a, b = _random(rng, 100), _random(rng, size)
            buffer = device.to_device(a)
            part = buffer.view(size, offset=offset).copy_from(b)
            a[offset : offset + size] = b
            assert np.array_equal(buffer.to_host(), a)
            assert np.array_equal(part.to_host(), b)

    @pytest.mark.parametrize("shift", [-40, -8, -1, 0, 1, 3, 8, 40])
    def test_overlapping_ranges_of_one_buffer(self, device: Device, rng: np.random.Generator, shift: int) -> None:
        """As if through a temporary."""
        data = _random(rng, 300)
        buffer = device.to_device(data)
        start = 50
        buffer.view(200, offset=start + shift).copy_from(buffer.view(200, offset=start))
        data[start + shift : start + shift + 200] = data[start : start + 200].copy()
        assert np.array_equal(buffer.to_host(), data)

    @pytest.mark.parametrize("seed", range(6))
    def test_random_sequences_of_copies(self, device: Device, seed: int) -> None:
        """Forty copies in any direction at random offsets, compared with the same on arrays after each tenth."""
        rng = np.random.default_rng(seed)
        models = [_random(rng, int(size)) for size in rng.integers(1, 3000, 4)]
        buffers = [device.to_device(model) for model in models]
        for step in range(40):
            to, of = (int(i) for i in rng.integers(0, 4, 2))
            size = int(rng.integers(0, min(models[to].size, models[of].size) + 1))
            at, start = int(rng.integers(0, models[to].size - size + 1)), int(rng.integers(0, models[of].size - size + 1))
            target, source = buffers[to].view(size, offset=at), buffers[of].view(size, offset=start)
            if rng.random() < 0.5:
                target.copy_from(source)
                models[to][at : at + size] = models[of][start : start + size].copy()
            else:
                data = _random(rng, size)
                target.copy_from(data)
                models[to][at : at + size] = data
            if step % 10 == 9:
                for buffer, model in zip(buffers, models, strict=True):
                    assert np.array_equal(buffer.to_host(), model)

    def test_views_share_memory_and_reinterpret_it(self, device: Device) -> None:
        """A row of a matrix, seen as bytes."""
        buffer = device.to_device(np.arange(12, dtype=np.float32).reshape(3, 4))
        buffer[1].copy_from(np.full(4, 7, np.float32))
        assert buffer[1].view(16, np.uint8).to_host().tobytes() == np.full(4, 7, np.float32).tobytes()
        assert buffer[1:].to_host().tolist() == [[7.0] * 4, [8.0, 9.0, 10.0, 11.0]]
        assert buffer[0].to_host().tolist() == [0.0, 1.0, 2.0, 3.0]

    def test_sizes_and_dtypes_that_differ_are_refused(self, device: Device) -> None:
        """And nothing is copied."""
        buffer = device.to_device(np.arange(4, dtype=np.float32))
        for wrong in (np.zeros(5, np.float32), np.zeros(4, np.int32), device.empty(3, np.float32), device.empty(4, np.int32)):
            with pytest.raises(ShapeError):
                buffer.copy_from(wrong)
        for offset, size in ((0, 17), (16, 1), (-1, 2)):
            with pytest.raises(ShapeError):
                buffer.view(size, np.uint8, offset=offset)
        assert buffer.to_host().tolist() == [0.0, 1.0, 2.0, 3.0]

    def test_host_view_is_the_memory_itself(self, device: Device) -> None:
        """What is written through it arrives, and the other way round; it outlives the buffer."""
        buffer = device.to_device(np.arange(10, dtype=np.int16))
        with self.optional():
            view = buffer[2:8].host_view()
        assert view.tolist() == [2, 3, 4, 5, 6, 7]
        view[1] = -3
        assert buffer.to_host().tolist() == [0, 1, 2, -3, 4, 5, 6, 7, 8, 9]
        buffer.copy_from(np.zeros(10, np.int16))
        assert not view.any()
        del buffer
        assert not view.any()

    def test_wrapped_host_memory_is_used_in_place(self, device: Device) -> None:
        """The array and the buffer are one; a read-only array makes a read-only buffer."""
        array = np.arange(1024, dtype=np.float32)
        with self.optional():
            buffer = device.wrap(array)
        assert np.array_equal(buffer.to_host(), array)
        buffer.copy_from(np.zeros(1024, np.float32))
        assert not array.any()
        array.flags.writeable = False
        with pytest.raises(ShapeError):
            device.wrap(array).copy_from(array)
