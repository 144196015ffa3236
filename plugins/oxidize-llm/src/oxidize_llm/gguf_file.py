"""GGUFFile: a model file, mapped into memory and checked before anything of it is used."""

from __future__ import annotations

import dataclasses
import math
import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from oxidize_host.quant import FORMATS
from oxidize_llm.errors import GGUFError, ModelNotFound, UnsupportedModel
from oxidize_llm.gguf_parse import AGAIN, Cursor

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

__all__ = ["GGUFFile", "TensorInfo"]

T = TypeVar("T")
_REQUIRED: Any = object()
_FORMAT_OF = {layout.ggml_type: name for name, layout in FORMATS.items()}
_HEADER = 24  # magic, version, two counts
_LEAST_TENSOR = 8 + 4 + 8 + 4 + 8  # an empty name, one dimension, type and offset
_LEAST_FIELD = 8 + 4 + 1
_OTHERS = (
    (b"\x89HDF", "an HDF5 file"),
    (b"PK\x03\x04", "a zip archive, such as a PyTorch checkpoint"),
    (b"version https", "a Git LFS pointer: `git lfs pull` fetches the model itself"),
    (b"<!", "a web page: the download went to the wrong address"),
    (b"<htm", "a web page: the download went to the wrong address"),
    (b"lmgg", "a GGML file of before August 2023, which GGUF replaced"),
    (b"fmgg", "a GGML file of before August 2023, which GGUF replaced"),
    (b"tjgg", "a GGML file of before August 2023, which GGUF replaced"),
    (b"FUGG", "a big-endian GGUF file"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies.

    Attributes
    ----------
    name : str
    shape : tuple[int, ...]
        Outermost first, as numpy counts; the file has it the other way round.
    ggml_type : int
    offset, nbytes : int
        From the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int
    nbytes: int

    @property
    def type_name(self) -> str:
        """The name of its type, such as ``"Q4_K"``."""
        return str(GGMLQuantizationType(self.ggml_type).name)


class GGUFFile:
    """A GGUF file, mapped into memory; made by `open`.

    Attributes
    ----------
    path : pathlib.Path
    metadata : dict
        Numbers, bools and strings; `Array` for arrays.
    tensors : dict[str, TensorInfo]
    """

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self._data = path, data
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._read(Cursor(path, data))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Map a file and check its header.

        Raises
        ------
        ModelNotFound
            There is no such file.
        GGUFError
            It is no GGUF file, is cut off, or contradicts itself; with the field, its value and what to do.
        UnsupportedModel
            It is one part of several, or big-endian.
        """
        path = Path(path)
        try:
            if path.is_dir():
                raise GGUFError(f"{path} is a directory; name the .gguf file in it")
            size = path.stat().st_size
            if not path.is_file():
                raise GGUFError(f"{path} is not a regular file, and cannot be mapped into memory; copy it to one")
            if not size:
                raise GGUFError(f"{path} is empty; download it again")
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise ModelNotFound(f"there is no file {path}; check the spelling") from error
        except (OSError, ValueError) as error:
            if isinstance(error, GGUFError):
                raise
            raise GGUFError(f"{path} cannot be read: {error}; check its permissions and path") from error
        return cls(path, data)

    def get(self, key: str, kind: type[T], default: T = _REQUIRED) -> T:
        """Return a metadata value of the type that the caller needs.

        Raises
        ------
        GGUFError
            It is missing and there is no default, or has another type.
        """
        if key not in self.metadata:
            if default is _REQUIRED:
                raise GGUFError(f"{self.path}: the field {key} is missing; {AGAIN}, or convert the model again")
            return default
        value = self.metadata[key]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise GGUFError(
                f"{self.path}: {key} is {value!r:.80}, which is not of type {getattr(kind, '__name__', kind)}; {AGAIN}"
            )
        return value

    def array(self, tensor: TensorInfo) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, without a copy: the array keeps the mapping alive."""
        return np.frombuffer(self._data, np.uint8, tensor.nbytes, tensor.offset)

    def format(self, tensor: TensorInfo) -> str:
        """Return the name of a tensor's format in `oxidize_host.quant.FORMATS`.

        Raises
        ------
        UnsupportedModel
            No backend knows it.
        """
        name = _FORMAT_OF.get(tensor.ggml_type)
        if name is None:
            raise UnsupportedModel(
                f"{self.path}: the tensor {tensor.name} has the type {tensor.type_name}, which is not supported; "
                f"use a file with {', '.join(FORMATS)}"
            )
        return name

    def close(self) -> None:
        """Unmap the file unless arrays still use it; they keep it mapped until the last of them goes."""
        try:
            self._data.close()
        except BufferError:
            return

    def _read(self, cursor: Cursor) -> None:
        fields, tensors = _header(cursor)
        for number in range(fields):
            cursor.where = f"metadata field {number} of {fields}: its key"
            key = cursor.string(longest=65535)
            cursor.where = f"metadata field {key!r}"
            if key in self.metadata:
                raise cursor.error("appears twice")
            self.metadata[key] = cursor.value(cursor.u32())
        if (parts := self.get("split.count", int, 1)) > 1:
            raise UnsupportedModel(f"{self.path} is one of {parts} parts; join them with `llama-gguf-split --merge`")
        alignment = self.get("general.alignment", int, 32)
        if not 8 <= alignment <= 2**20 or alignment & (alignment - 1):
            raise GGUFError(f"{self.path}: general.alignment is {alignment}, not a power of two from 8 to 2**20; {AGAIN}")
        found = [_tensor(cursor, number, tensors, alignment) for number in range(tensors)]
        start = -(-cursor.position // alignment) * alignment
        end = start
        for tensor in sorted(found, key=lambda tensor: tensor.offset):
            cursor.where = f"tensor {tensor.name!r}"
            placed = dataclasses.replace(tensor, offset=tensor.offset + start)
            if tensor.name in self.tensors:
                raise cursor.error("appears twice")
            if placed.offset < end:
                raise cursor.error(f"at offset {placed.offset} overlaps the one before it, which ends at {end}")
            end = placed.offset + placed.nbytes
            if end > cursor.size:
                raise cursor.error(f"ends at byte {end}, after the end of the file of {cursor.size} bytes")
            self.tensors[tensor.name] = placed


def _header(cursor: Cursor) -> tuple[int, int]:
    """Check magic, version and counts; return the number of metadata fields and of tensors."""
    start = cursor.data[: min(cursor.size, 16)]
    if start[:4] != b"GGUF":
        for magic, what in _OTHERS:
            if start.startswith(magic):
                raise GGUFError(f"{cursor.path} is not a GGUF file but {what}; a .gguf file is needed")
        raise GGUFError(f"{cursor.path} is not a GGUF file: it starts with {start[:4]!r}, not b'GGUF'; check which file it is")
    if cursor.size < _HEADER:
        raise GGUFError(f"{cursor.path}: {cursor.size} bytes are less than the header of a GGUF file; download it again")
    cursor.position = 4
    version = cursor.u32()
    if version and not version & 0xFFFF:
        raise UnsupportedModel(f"{cursor.path} is big-endian (version {version:#010x}); convert it for little-endian machines")
    if version not in (2, 3):
        raise GGUFError(f"{cursor.path} is GGUF version {version}; supported: 2 and 3; convert the model again")
    tensors, fields = cursor.u64(), cursor.u64()
    for what, count, least in (("tensors", tensors, _LEAST_TENSOR), ("metadata fields", fields, _LEAST_FIELD)):
        if count * least > cursor.left:
            raise GGUFError(f"{cursor.path}: {count} {what} do not fit into a file of {cursor.size} bytes; {AGAIN}")
    return fields, tensors


def _tensor(cursor: Cursor, number: int, count: int, alignment: int) -> TensorInfo:
    """Read what the header says about one tensor; the offset is still that from the start of the data."""
    cursor.where = f"tensor {number} of {count}: its name"
    name = cursor.string(longest=1024)
    cursor.where = f"tensor {name!r}"
    rank = cursor.u32()
    if not 1 <= rank <= 4:
        raise cursor.error(f"has {rank} dimensions, not 1 to 4")
    shape = tuple(reversed([cursor.u64() for _ in range(rank)]))
    kind, offset = cursor.u32(), cursor.u64()
    if kind not in GGMLQuantizationType._value2member_map_:
        raise cursor.error(f"has the type {kind}, which does not exist", "a newer gguf package may know it, or " + AGAIN)
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    if 0 in shape or max(shape) >= 2**31:
        raise cursor.error(f"has the shape {shape}")
    if shape[-1] % block:
        raise cursor.error(f"has rows of {shape[-1]} weights, which is not a whole number of blocks of {block}")
    if offset % alignment:
        raise cursor.error(f"has the offset {offset}, which is not a multiple of the alignment {alignment}")
    return TensorInfo(name, shape, kind, offset, math.prod(shape) // block * block_bytes)
