"""The hyperparameters of a llama model, read from a GGUF file and checked."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Self

import numpy as np

from oxidize_llm.errors import GGUFError, UnsupportedModel
from oxidize_llm.gguf_parse import AGAIN, Array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxidize_llm.gguf_file import GGUFFile

__all__ = ["ARCHITECTURES", "Config"]

ARCHITECTURES = ("llama",)


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """What the forward pass needs to know.

    Attributes
    ----------
    name : str
        ``general.name``, or the name of the file.
    layers, width, hidden, heads, kv_heads, head_dim, vocabulary : int
    context : int
        The longest text that the model was trained for.
    eps : float
        Of the RMS norms.
    rope_base, rope_scale : float
        Angle of pair i at position p: ``p / rope_scale * rope_base ** (-2 i / rotated)``.
    rotated : int
        Dimensions of a head that are rotated.
    """

    name: str
    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    eps: float
    rope_base: float
    rope_scale: float
    rotated: int

    @classmethod
    def read(cls, file: GGUFFile) -> Self:
        """Read and check.

        Raises
        ------
        UnsupportedModel
            Another architecture, or a variant of this one that the engine does not compute.
        GGUFError
            A field is missing or out of range.
        """
        architecture = file.get("general.architecture", str)
        if architecture not in ARCHITECTURES:
            raise UnsupportedModel(
                f"{file.path}: the architecture {architecture!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
            )
        heads = _count(file, "llama.attention.head_count")
        width = _count(file, "llama.embedding_length")
        head_dim = _count(file, "llama.attention.key_length", width // heads)
        config = cls(
            name=file.get("general.name", str, file.path.stem),
            layers=_count(file, "llama.block_count"),
            width=width,
            hidden=_count(file, "llama.feed_forward_length"),
            heads=heads,
            kv_heads=_count(file, "llama.attention.head_count_kv", heads),
            head_dim=head_dim,
            vocabulary=_vocabulary(file),
            context=_count(file, "llama.context_length"),
            eps=_positive(file, "llama.attention.layer_norm_rms_epsilon"),
            rope_base=_positive(file, "llama.rope.freq_base", 10000.0),
            rope_scale=_rope_scale(file),
            rotated=_count(file, "llama.rope.dimension_count", head_dim),
        )
        config._check(file)
        return config

    def _check(self, file: GGUFFile) -> None:
        if file.get("llama.expert_count", int, 0):
            raise UnsupportedModel(f"{file.path}: a mixture of experts (llama.expert_count) is not supported")
        if (value_dim := file.get("llama.attention.value_length", int, self.head_dim)) != self.head_dim:
            raise UnsupportedModel(f"{file.path}: keys of {self.head_dim} and values of {value_dim} are not supported")
        if self.heads % self.kv_heads:
            raise GGUFError(
                f"{file.path}: llama.attention.head_count {self.heads} is no multiple of llama.attention.head_count_kv {self.kv_heads}; {AGAIN}"
            )
        if self.rotated % 2 or self.rotated > self.head_dim:
            raise GGUFError(
                f"{file.path}: llama.rope.dimension_count is {self.rotated}, not an even number up to {self.head_dim}; {AGAIN}"
            )

    def frequencies(self, factors: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Return the angle of each pair at position 1 (Su et al. 2021); ``factors`` divide it, as in Llama 3.1."""
        pairs = np.arange(self.rotated // 2, dtype=np.float64)
        angles = self.rope_base ** (-2 * pairs / self.rotated) / self.rope_scale
        return (angles if factors is None else angles / factors).astype(np.float32)


def _count(file: GGUFFile, key: str, default: int | None = None) -> int:
    value = file.get(key, int) if default is None else file.get(key, int | Array, default)  # type: ignore[arg-type]
    if isinstance(value, Array):  # one number a layer
        numbers = value.numbers()
        if not len(numbers) or (numbers != numbers[0]).any():
            raise UnsupportedModel(f"{file.path}: {key} differs between layers, which is not supported")
        value = int(numbers[0])
    if not 1 <= value <= 2**31 - 1:
        raise GGUFError(f"{file.path}: {key} is {value}; {AGAIN}")
    return int(value)


def _positive(file: GGUFFile, key: str, default: float | None = None) -> float:
    value = file.get(key, float) if default is None else file.get(key, float, default)
    if not (math.isfinite(value) and value > 0):
        raise GGUFError(f"{file.path}: {key} is {value}, not a positive number; {AGAIN}")
    return value


def _vocabulary(file: GGUFFile) -> int:
    """Return the rows of the embedding, which is what counts: ``vocab_size`` is optional."""
    tensor = file.tensors.get("token_embd.weight")
    if tensor is None:
        raise GGUFError(f"{file.path}: the tensor token_embd.weight is missing; {AGAIN}")
    return tensor.shape[0]


def _rope_scale(file: GGUFFile) -> float:
    kind = file.get("llama.rope.scaling.type", str, "none")
    if kind not in ("none", "linear"):
        raise UnsupportedModel(f"{file.path}: llama.rope.scaling.type {kind!r} is not supported; supported: none, linear")
    if kind == "none":
        if "llama.rope.scale_linear" in file.metadata:  # its name before 2023-10
            return _positive(file, "llama.rope.scale_linear")
        return 1.0
    return _positive(file, "llama.rope.scaling.factor", 1.0)
