"""Sizes of the weight formats and of the 8-bit activations that meet them. Imports nothing.

Quantized weights are met by activations in *records*. A record serves one *group* of weights: four blocks of 32
(128 values), or one K super-block (256 values). Each 32 activations share a scale d = max|x| / 127; in a record
their bytes stand in the order in which the format unpacks, followed by vectors that save work per weight row:

* ``halves`` (q4_0, q4_1, q5_0, q5_1), 256 bytes: A (elements 0..15 of each block), B (16..31), d for each 32-bit
  lane, and the correction: int32 -offset * sums of q (q4_0, q5_0) or float32 d * sums of q (q4_1, q5_1).
* ``natural`` (q8_0), 384: A (blocks 0 and 1), B (2 and 3), d and correction of A's lanes, then of B's:
  A, B, dA, dB, cA, cB.
* ``pairs`` (q4_k, q5_k), 320: 2 x (blocks 0 and 2, blocks 1 and 3), then 8 d, then 8 times -d * sum of q.
* ``sixteens`` (q6_k), 384: 256 bytes in order, 16 d (each twice), 16 times -32 * d * sum of 16 q.

A last group that is not full overlaps the one before it; its record has zeros for what was done already.
"""

from __future__ import annotations

import dataclasses

__all__ = ["FORMATS", "READ_PART", "TILE", "Format", "tokens_at_a_time"]

TILE = 4
"""Rows of weights in a work item of gemm."""

READ_PART = 1 << 16
"""Values in a work item of read."""

_CACHE = 384 << 10


def tokens_at_a_time(x_bytes: int, n: int) -> int:
    """Return how many of ``n`` tokens, of ``x_bytes`` each, a work item of gemm serves: what a core's cache keeps."""
    return max(min(n, _CACHE // max(x_bytes, 1) // 8 * 8), 8)


@dataclasses.dataclass(frozen=True, slots=True)
class Format:
    """One weight format.

    Attributes
    ----------
    block, block_bytes
        Values and bytes of a GGUF block.
    group
        Values that the kernels take at a time.
    order, record
        Order of the activations, ``""`` if they stay float32, and bytes of their record.
    correction
        What the quantizer of the activations is told, see `quantize`.
    """

    block: int
    block_bytes: int
    group: int
    order: str
    record: int
    correction: str = ""

    @property
    def group_bytes(self) -> int:
        """Bytes of weights in a group."""
        return self.group // self.block * self.block_bytes

    def row_bytes(self, k: int) -> int:
        """Return the bytes of a row of ``k`` values."""
        return k // self.block * self.block_bytes

    def groups(self, k: int) -> int:
        """Return the groups, and so records, for ``k`` values."""
        return -(-k // self.group)

    def scratch(self, k: int, n: int) -> int:
        """Return the bytes for the records of ``n`` tokens of ``k`` activations."""
        return self.groups(k) * n * self.record if self.order else 0


FORMATS = {
    "f32": Format(1, 4, 16, "", 64),
    "f16": Format(1, 2, 32, "", 128),
    "bf16": Format(1, 2, 32, "", 128),
    "q4_0": Format(32, 18, 128, "halves", 256, "8"),
    "q4_1": Format(32, 20, 128, "halves", 256, "sums"),
    "q5_0": Format(32, 22, 128, "halves", 256, "16"),
    "q5_1": Format(32, 24, 128, "halves", 256, "sums"),
    "q8_0": Format(32, 34, 128, "natural", 384, "128"),
    "q4_k": Format(256, 144, 256, "pairs", 320),
    "q5_k": Format(256, 176, 256, "pairs", 320),
    "q6_k": Format(256, 210, 256, "sixteens", 384),
}
