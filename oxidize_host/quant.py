"""GGUF weight formats: block layouts, and a decoder in numpy that is the oracle for every kernel.

The formats are those of ggml (``block_q4_0`` and so on in ggml-common.h; the container is specified in
ggml's docs/gguf.md). A row of a quantized matrix is a run of fixed-size blocks of 32 or 256 weights; all
fields are little-endian and unaligned.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from oxidize_host.errors import ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["FORMATS", "Format", "bad_scales", "decode", "row_bytes"]

F32 = np.float32


@dataclasses.dataclass(frozen=True, slots=True)
class Format:
    """The layout of one weight format.

    Parameters
    ----------
    name
        Lower-case name, ``"q4_k"``.
    block
        Weights in a block.
    nbytes
        Bytes in a block.
    scales
        Byte offsets of the block's f16 scale factors.
    ggml_type
        The type's number in a GGUF file.
    """

    name: str
    block: int
    nbytes: int
    scales: tuple[int, ...]
    ggml_type: int

    @property
    def quantized(self) -> bool:
        """Whether rows are blocks of packed integers rather than plain floats."""
        return self.block > 1


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("f32", 1, 4, (), 0),
        Format("f16", 1, 2, (), 1),
        Format("bf16", 1, 2, (), 30),
        Format("q4_0", 32, 18, (0,), 2),
        Format("q4_1", 32, 20, (0, 2), 3),
        Format("q5_0", 32, 22, (0,), 6),
        Format("q5_1", 32, 24, (0, 2), 7),
        Format("q8_0", 32, 34, (0,), 8),
        Format("q4_k", 256, 144, (0, 2), 12),
        Format("q5_k", 256, 176, (0, 2), 13),
        Format("q6_k", 256, 210, (208,), 14),
    )
}


def row_bytes(format: str, columns: int) -> int:  # noqa: A002 - the field's word for it
    """Return the bytes of a row of ``columns`` weights.

    Raises
    ------
    ShapeError
        The format is unknown, or the row is not a whole number of blocks.
    """
    if format not in FORMATS:
        raise ShapeError(f"unknown weight format {format!r}; one of {', '.join(FORMATS)}")
    layout = FORMATS[format]
    if columns % layout.block:
        raise ShapeError(f"a row of {columns} weights is not a whole number of {format} blocks of {layout.block}")
    return columns // layout.block * layout.nbytes


def decode(data: NDArray[np.uint8], format: str) -> NDArray[np.float32]:  # noqa: A002
    """Return the weights of whole rows as float32.

    Parameters
    ----------
    data
        uint8 of shape (..., row bytes).
    format
        A name of `FORMATS`.

    Raises
    ------
    ShapeError
        The last axis is not a whole number of blocks.
    """
    layout = FORMATS.get(format)
    if layout is None:
        raise ShapeError(f"unknown weight format {format!r}; one of {', '.join(FORMATS)}")
    if data.dtype != np.uint8 or data.shape[-1] % layout.nbytes:
        raise ShapeError(f"{format} rows are uint8 in blocks of {layout.nbytes} bytes, got {data.dtype} {data.shape}")
    columns = data.shape[-1] // layout.nbytes * layout.block
    blocks = np.ascontiguousarray(data).reshape(-1, layout.nbytes)
    return _DECODERS[format](blocks).reshape(*data.shape[:-1], columns)


def bad_scales(data: NDArray[np.uint8], format: str) -> int:  # noqa: A002
    """Return how many scale factors (or, in plain float formats, weights) are infinite or NaN."""
    layout = FORMATS[format]
    if not layout.quantized:
        exponent, kind = {"f32": (0x7F800000, "<u4"), "f16": (0x7C00, "<u2"), "bf16": (0x7F80, "<u2")}[format]
        bits = np.ascontiguousarray(data).view(kind)
        return int(np.count_nonzero((bits & exponent) == exponent))
    blocks = np.ascontiguousarray(data).reshape(-1, layout.nbytes)
    return sum(int(np.count_nonzero((_u16(blocks, at) & 0x7C00) == 0x7C00)) for at in layout.scales)


def _u16(blocks: NDArray[np.uint8], at: int) -> NDArray[np.uint16]:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<u2")[:, 0]


def _f16(blocks: NDArray[np.uint8], at: int) -> NDArray[np.float32]:
    """Return the half at byte ``at`` of each block as a float32 column."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(F32)


def _nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return low nibbles, then high nibbles, of each group along the last axis."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _high_bits(blocks: NDArray[np.uint8], at: int) -> NDArray[np.uint8]:
    """Return the 32 bits of a little-endian word as 0 or 16, the fifth bit of each weight."""
    bits: NDArray[np.uint8] = np.unpackbits(blocks[:, at : at + 4], axis=-1, bitorder="little")
    return bits * np.uint8(16)


def _f32(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    return blocks.view("<f4").astype(F32, copy=False)


def _half(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    return blocks.view("<f2").astype(F32)


def _bf16(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(F32)


def _q4_0(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    return _f16(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.int8) - 8).astype(F32)


def _q4_1(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    return _f16(blocks, 0) * _nibbles(blocks[:, 4:]).astype(F32) + _f16(blocks, 2)


def _q5_0(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    weights = _nibbles(blocks[:, 6:]) | _high_bits(blocks, 2)
    return _f16(blocks, 0) * (weights.astype(np.int8) - 16).astype(F32)


def _q5_1(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    weights = _nibbles(blocks[:, 8:]) | _high_bits(blocks, 4)
    return _f16(blocks, 0) * weights.astype(F32) + _f16(blocks, 2)


def _q8_0(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    return _f16(blocks, 0) * blocks[:, 2:].view(np.int8).astype(F32)


def _k_scales(blocks: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the 8 scales and 8 minima of a Q4_K or Q5_K block, each (blocks, 8, 1): 6-bit values in 12 bytes.

    The first four of each are the low 6 bits of bytes 0-3 (scales) and 4-7 (minima); the last four take 4 bits
    from bytes 8-11 and their upper two bits from the top of bytes 0-7.
    """
    packed = blocks[:, 4:16]
    low, mid, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scale = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=-1)
    minimum = np.concatenate([mid & 63, (high >> 4) | ((mid >> 6) << 4)], axis=-1)
    return (_f16(blocks, 0) * scale)[:, :, None], (_f16(blocks, 2) * minimum)[:, :, None]


def _q4_k(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    scale, minimum = _k_scales(blocks)
    weights = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return scale * weights.astype(F32) - minimum


def _q5_k(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    scale, minimum = _k_scales(blocks)
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    shifts = np.arange(8, dtype=np.uint8)[None, :, None]
    fifth = ((blocks[:, 16:48][:, None, :] >> shifts) & 1) << 4
    return scale * (low | fifth).astype(F32) - minimum


def _q6_k(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    low = _nibbles(blocks[:, 0:128].reshape(-1, 2, 64)).reshape(-1, 8, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    high = ((blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3).reshape(-1, 8, 32) << 4
    weights = ((low | high).astype(np.int8) - 32).reshape(-1, 16, 16)
    scale = _f16(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(F32)
    return scale[:, :, None] * weights.astype(F32)


_DECODERS: dict[str, Callable[[NDArray[np.uint8]], NDArray[Any]]] = {
    "f32": _f32,
    "f16": _half,
    "bf16": _bf16,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
}
