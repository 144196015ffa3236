"""Host memory as the CPU backend hands it around: the bytes, and their address for compiled code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ALIGNMENT", "Memory"]

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""


class Memory:
    """A run of bytes. ``address`` is taken once: asking numpy for it costs more than a launch."""

    __slots__ = ("address", "array")

    def __init__(self, array: NDArray[np.uint8]) -> None:
        self.array = array
        self.address = array.__array_interface__["data"][0]

    @classmethod
    def allocate(cls, nbytes: int) -> Memory:
        """Return ``nbytes`` aligned bytes with undefined contents; raises ``MemoryError``."""
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        start = -raw.__array_interface__["data"][0] % ALIGNMENT
        return cls(raw[start : start + nbytes])
