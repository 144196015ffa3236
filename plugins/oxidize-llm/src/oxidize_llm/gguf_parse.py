"""Reads the header of a GGUF file field by field, each one checked against the end of the file before it is used.

The format is that of ggml's docs/gguf.md; the numbers of its types come from the package ``gguf``. Its ``GGUFReader`` is not
used: it trusts the file (counts, lengths and offsets go unchecked into numpy) and makes several Python objects of every
token, which for a vocabulary of 49152 takes longer than loading the weights, and more memory.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf.constants import GGUFValueType

from oxidize_llm.errors import GGUFError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Array", "Cursor"]

AGAIN = "the file is damaged: download it again"

_SCALARS: dict[int, struct.Struct] = {
    int(GGUFValueType.UINT8): struct.Struct("<B"),
    int(GGUFValueType.INT8): struct.Struct("<b"),
    int(GGUFValueType.UINT16): struct.Struct("<H"),
    int(GGUFValueType.INT16): struct.Struct("<h"),
    int(GGUFValueType.UINT32): struct.Struct("<I"),
    int(GGUFValueType.INT32): struct.Struct("<i"),
    int(GGUFValueType.FLOAT32): struct.Struct("<f"),
    int(GGUFValueType.BOOL): struct.Struct("<?"),
    int(GGUFValueType.UINT64): struct.Struct("<Q"),
    int(GGUFValueType.INT64): struct.Struct("<q"),
    int(GGUFValueType.FLOAT64): struct.Struct("<d"),
}
_STRING = int(GGUFValueType.STRING)
_ARRAY = int(GGUFValueType.ARRAY)
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclasses.dataclass(frozen=True, slots=True)
class Array:
    """An array of the metadata, which stays in the file until somebody reads it.

    Attributes
    ----------
    kind : int
        A ``GGUFValueType``.
    count : int
    """

    kind: int
    count: int
    _cursor: Cursor
    _start: int

    def strings(self) -> Iterator[str]:
        """Yield the strings; raises `GGUFError` if it holds something else, or bytes that are not UTF-8."""
        cursor = self._cursor.at(self._start)
        if self.kind != _STRING:
            raise cursor.error(f"holds {_kind_name(self.kind)}, not strings")
        return (cursor.string() for _ in range(self.count))

    def numbers(self) -> np.ndarray[Any, Any]:
        """Return a copy of the numbers; raises `GGUFError` if it holds something else."""
        cursor = self._cursor.at(self._start)
        if self.kind not in _SCALARS:
            raise cursor.error(f"holds {_kind_name(self.kind)}, not numbers")
        kind = np.dtype(_SCALARS[self.kind].format)
        return np.frombuffer(cursor.take(self.count * kind.itemsize), kind)


class Cursor:
    """A position in a mapped file, and the name of the field that is being read, for messages."""

    def __init__(self, path: Path, data: mmap.mmap, position: int = 0, where: str = "header") -> None:
        self.path, self.data, self.position, self.where = path, data, position, where
        self.size = len(data)

    def at(self, position: int) -> Cursor:
        """Return another cursor, on the same field."""
        return Cursor(self.path, self.data, position, self.where)

    def error(self, what: str, fix: str = AGAIN) -> GGUFError:
        """Return an error that names the file and the field."""
        return GGUFError(f"{self.path}: {self.where} {what}; {fix}")

    @property
    def left(self) -> int:
        """Bytes to the end of the file."""
        return self.size - self.position

    def need(self, nbytes: int, what: str = "") -> None:
        """Raise `GGUFError` unless so many bytes are left."""
        if nbytes > self.left:
            raise self.error(
                f"{what or 'is cut off'}: needs {nbytes} bytes at offset {self.position}, "
                f"the file of {self.size} bytes ends after {self.left}"
            )

    def take(self, nbytes: int) -> bytes:
        """Return the next bytes."""
        self.need(nbytes)
        start = self.position
        self.position = start + nbytes
        return self.data[start : self.position]

    def u32(self) -> int:
        """Return the next unsigned 32-bit number."""
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        """Return the next unsigned 64-bit number."""
        return int(_U64.unpack(self.take(8))[0])

    def string(self, longest: int = 2**31) -> str:
        """Return the next string."""
        length = self.u64()
        if length > min(self.left, longest):
            raise self.error(f"is a string of {length} bytes at offset {self.position}, but {self.left} bytes are left")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise self.error(f"is not UTF-8 text ({error.reason} at byte {error.start})") from error

    def value(self, kind: int) -> Any:
        """Return the next metadata value: a number, a bool, a string or an `Array`."""
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            return scalar.unpack(self.take(scalar.size))[0]
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        raise self.error(f"has the value type {kind}, which does not exist")

    def _array(self) -> Array:
        kind, count = self.u32(), self.u64()
        start = self.position
        if (scalar := _SCALARS.get(kind)) is not None:
            self.need(count * scalar.size, f"is an array of {count} numbers")
            self.position += count * scalar.size
        elif kind == _STRING:
            self.need(count * 8, f"is an array of {count} strings")
            self._skip_strings(count)
        elif kind == _ARRAY:
            raise self.error("is an array of arrays", "this engine reads flat arrays only")
        else:
            raise self.error(f"is an array of values of type {kind}, which does not exist")
        return Array(kind, count, self.at(start), start)

    def _skip_strings(self, count: int) -> None:
        """Step over strings: the inner loop of opening a model."""
        data, size, position, unpack = self.data, self.size, self.position, _U64.unpack_from
        for index in range(count):
            following = position + 8
            if following <= size:
                following += unpack(data, position)[0]
            if following > size:
                self.position = min(position, size)
                raise self.error(f"has a string (number {index} of {count}) that ends after the file of {size} bytes")
            position = following
        self.position = position


def _kind_name(kind: int) -> str:
    return GGUFValueType(kind).name.lower() if kind in GGUFValueType._value2member_map_ else f"type {kind}"
