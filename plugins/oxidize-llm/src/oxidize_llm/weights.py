"""The weights of a llama model on a device, each tensor checked by name and shape."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from oxidize_host import ShapeError
from oxidize_host.ops import Weight
from oxidize_llm.errors import GGUFError, UnsupportedModel
from oxidize_llm.gguf_parse import AGAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from oxidize_host import Buffer, Device
    from oxidize_llm.config import Config
    from oxidize_llm.gguf_file import GGUFFile, TensorInfo

__all__ = ["Layer", "Linear", "Weights"]


@dataclasses.dataclass(frozen=True, slots=True)
class Linear:
    """A matrix, and the bias that some models add."""

    weight: Weight
    bias: Buffer | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer."""

    attn_norm: Buffer
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    ffn_norm: Buffer
    gate: Linear
    up: Linear
    down: Linear


@dataclasses.dataclass(frozen=True, slots=True)
class Weights:
    """All weights. ``head`` is the embedding itself where the file has no matrix of its own (tied embeddings)."""

    embedding: Weight
    layers: tuple[Layer, ...]
    norm: Buffer
    head: Weight
    frequencies: Buffer

    @classmethod
    def load(
        cls, file: GGUFFile, config: Config, device: Device, progress: Callable[[int, int], None] | None = None
    ) -> Weights:
        """Put the tensors of a file on a device.

        Parameters
        ----------
        file, config, device
            What, in which shapes, and where to.
        progress
            Called with bytes done and bytes in all.

        Raises
        ------
        GGUFError
            A tensor is missing, has another shape, or holds NaN.
        UnsupportedModel
            A tensor that this architecture does not know, or a format that no backend knows.
        """
        loader = _Loader(file, device, progress)
        width, heads = config.width, config.heads * config.head_dim
        kv, hidden = config.kv_heads * config.head_dim, config.hidden
        embedding = loader.matrix("token_embd.weight", config.vocabulary, width)
        layers = []
        for i in range(config.layers):
            at = f"blk.{i}."
            layers.append(
                Layer(
                    attn_norm=loader.vector(f"{at}attn_norm.weight", width),
                    q=loader.linear(f"{at}attn_q", heads, width),
                    k=loader.linear(f"{at}attn_k", kv, width),
                    v=loader.linear(f"{at}attn_v", kv, width),
                    o=loader.linear(f"{at}attn_output", width, heads),
                    ffn_norm=loader.vector(f"{at}ffn_norm.weight", width),
                    gate=loader.linear(f"{at}ffn_gate", hidden, width),
                    up=loader.linear(f"{at}ffn_up", hidden, width),
                    down=loader.linear(f"{at}ffn_down", width, hidden),
                )
            )
        norm = loader.vector("output_norm.weight", width)
        has_head = "output.weight" in file.tensors
        head = loader.matrix("output.weight", config.vocabulary, width) if has_head else embedding
        factors = None
        if "rope_freqs.weight" in file.tensors:
            factors = loader.floats("rope_freqs.weight", config.rotated // 2)
            if not (factors > 0).all():
                raise GGUFError(f"{file.path}: the tensor rope_freqs.weight has factors that are not positive; {AGAIN}")
        loader.check_all_used()
        return cls(embedding, tuple(layers), norm, head, device.to_device(config.frequencies(factors)))


class _Loader:
    def __init__(self, file: GGUFFile, device: Device, progress: Callable[[int, int], None] | None) -> None:
        self.file, self.device, self.progress = file, device, progress
        self.unused = set(file.tensors)
        self.done, self.total = 0, sum(tensor.nbytes for tensor in file.tensors.values())

    def _take(self, name: str, *shape: int) -> TensorInfo:
        tensor = self.file.tensors.get(name)
        if tensor is None:
            raise GGUFError(f"{self.file.path}: the tensor {name} is missing; {AGAIN}, or convert the model again")
        if tensor.shape != shape:
            raise GGUFError(
                f"{self.file.path}: the tensor {name} has the shape {tensor.shape}, but the metadata asks for {shape}; {AGAIN}"
            )
        self.unused.discard(name)
        self.done += tensor.nbytes
        if self.progress is not None:
            self.progress(self.done, self.total)
        return tensor

    def matrix(self, name: str, rows: int, columns: int) -> Weight:
        tensor = self._take(name, rows, columns)
        try:
            return Weight.upload(self.device, self.file.array(tensor), self.file.format(tensor), (rows, columns))
        except ShapeError as error:
            raise GGUFError(f"{self.file.path}: the tensor {name}: {error}; {AGAIN}") from error

    def floats(self, name: str, size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        tensor = self._take(name, size)
        if self.file.format(tensor) != "f32":
            raise UnsupportedModel(f"{self.file.path}: the tensor {name} is {tensor.type_name}; only F32 is supported for it")
        values = self.file.array(tensor).view("<f4").astype(np.float32)
        if not np.isfinite(values).all():
            raise GGUFError(f"{self.file.path}: the tensor {name} holds infinite or NaN values; {AGAIN}")
        return values

    def vector(self, name: str, size: int) -> Buffer:
        return self.device.to_device(self.floats(name, size))

    def linear(self, name: str, rows: int, columns: int) -> Linear:
        weight = self.matrix(f"{name}.weight", rows, columns)
        bias = self.vector(f"{name}.bias", rows) if f"{name}.bias" in self.file.tensors else None
        return Linear(weight, bias)

    def check_all_used(self) -> None:
        if self.unused:
            raise UnsupportedModel(
                f"{self.file.path}: {len(self.unused)} tensors that the llama architecture does not use, "
                f"such as {min(self.unused)}; this variant is not supported"
            )
