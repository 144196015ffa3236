"""Session: the forward pass of a llama model over one text, with its key-value cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oxidize_host import ops
from oxidize_llm.errors import ContextFull

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from oxidize_host import BoundLaunch, Buffer, Device, Stream
    from oxidize_llm.config import Config
    from oxidize_llm.weights import Layer, Linear, Weights

__all__ = ["Session"]

BATCH = 128


class _Activations:
    """The buffers that a forward pass over up to ``rows`` tokens writes."""

    def __init__(self, device: Device, config: Config, rows: int) -> None:
        heads, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.ids, self.positions = device.empty(rows, np.int32), device.empty(rows, np.int32)
        self.x, self.normed, self.delta = (device.empty((rows, config.width), np.float32) for _ in range(3))
        self.q, self.attended = (device.empty((rows, heads), np.float32) for _ in range(2))
        self.k, self.v = (device.empty((rows, kv), np.float32) for _ in range(2))
        self.gate, self.up = (device.empty((rows, config.hidden), np.float32) for _ in range(2))

    def first(self, rows: int) -> _Activations:
        """Return the first rows of each buffer."""
        part = object.__new__(_Activations)
        for name, buffer in vars(self).items():
            setattr(part, name, buffer.view((rows, *buffer.shape[1:])))
        return part


class Session:
    """One text on one device: its tokens so far, their keys and values, and the launches that add to them.

    Made by `Model.session`. What depends on the step (token, position) lies in buffers, so the launches of a step are checked and
    bound once; a step repeats them.

    Attributes
    ----------
    ids : list[int]
        The tokens in the cache.
    context : int
        How many fit.
    """

    def __init__(self, device: Device, config: Config, weights: Weights, context: int) -> None:
        self.device, self.config, self.context = device, config, context
        self.ids: list[int] = []
        self._weights = weights
        self._stream: Stream = device.create_stream()
        width = config.kv_heads * config.head_dim
        self._caches = [tuple(device.empty((context, width), np.float16) for _ in range(2)) for _ in range(config.layers)]
        one = self._one = _Activations(device, config, 1)
        self._logits = device.empty((1, config.vocabulary), np.float32)
        self._head = [
            _rms(one.normed, one.x, weights.norm, config.eps),
            ops.gemv.bind(_flat(self._logits), weights.head, _flat(one.normed)),
        ]
        # The token chosen on the device is where the next step looks its embedding up.
        self._choose = ops.argmax.bind(one.ids, self._logits)
        self._step = self._forward(one)
        # Whole batches are bound now, which also has the backend prepare its kernels; a shorter one when it comes.
        self._batch = _Activations(device, config, min(BATCH, context))
        self._bound = (self._batch, self._forward(self._batch))
        self._token = np.zeros(1, np.int32)

    def feed(self, ids: Sequence[int]) -> None:
        """Append tokens; afterwards `logits` and `greedy` speak of the last one.

        Raises
        ------
        ContextFull
            They do not fit.
        """
        if not ids:
            raise ValueError("no tokens to append")
        if len(self.ids) + len(ids) > self.context:
            raise ContextFull(
                f"{len(ids)} more tokens do not fit: the context of {self.context} holds {len(self.ids)}; "
                "shorten the prompt or use a larger context (--ctx)"
            )
        if len(ids) == 1:
            self._one.ids.copy_from(np.array(ids, np.int32), stream=self._stream)
            self._advance(ids[0])
            return
        for start in range(0, len(ids), BATCH):
            rows = self._feed_batch(ids[start : start + BATCH])
        _flat(self._one.x).copy_from(rows[-1], stream=self._stream)
        self._run(self._head)

    def greedy(self) -> int:
        """Return the likeliest next token; the device finds it, and keeps it for `feed_greedy`."""
        self._choose(self._stream)
        self._one.ids.copy_to(self._token, stream=self._stream)
        self._stream.synchronize()
        return int(self._token[0])

    def feed_greedy(self) -> int:
        """Append the token that `greedy` returned last, which is on the device already, and return the next one."""
        if len(self.ids) >= self.context:
            raise ContextFull(f"the context of {self.context} tokens is full")
        self._advance(int(self._token[0]))
        return self.greedy()

    def logits(self) -> NDArray[np.float32]:
        """Return the logits of the token after the last one."""
        array: NDArray[np.float32] = self._logits.to_host(stream=self._stream).reshape(-1)
        return array

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first ``length``."""
        del self.ids[length:]

    def wait(self) -> None:
        """Wait until the device has done what was appended."""
        self._stream.synchronize()

    def _advance(self, token: int) -> None:
        """Run the step for the token in ``one.ids``."""
        self._one.positions.copy_from(np.array([len(self.ids)], np.int32), stream=self._stream)
        self._run(self._step)
        self._run(self._head)
        self.ids.append(token)

    def _feed_batch(self, ids: Sequence[int]) -> Buffer:
        """Run the layers over several tokens at once; return what they leave, a row for each token."""
        rows, start = len(ids), len(self.ids)
        part, launches = self._bound
        if rows != part.ids.size:
            part = self._batch.first(rows)
            launches = self._forward(part)
        part.ids.copy_from(np.array(ids, np.int32), stream=self._stream)
        part.positions.copy_from(np.arange(start, start + rows, dtype=np.int32), stream=self._stream)
        self._run(launches)
        self.ids += ids
        return part.x

    def _run(self, launches: list[BoundLaunch]) -> None:
        stream = self._stream
        for bound in launches:
            bound(stream)

    def _forward(self, a: _Activations) -> list[BoundLaunch]:
        """Return the launches that append the tokens in ``a.ids`` at ``a.positions`` to the cache and leave the result in ``a.x``."""
        launches = [ops.get_rows.bind(a.x, self._weights.embedding, a.ids)]
        for layer, (keys, values) in zip(self._weights.layers, self._caches, strict=True):
            launches += self._attention(a, layer, keys, values)
            launches += self._feed_forward(a, layer)
        return launches

    def _attention(self, a: _Activations, layer: Layer, keys: Buffer, values: Buffer) -> list[BoundLaunch]:
        config, frequencies = self.config, self._weights.frequencies
        q, attended = (_heads(buffer, config.head_dim) for buffer in (a.q, a.attended))
        k, k_cache, v_cache = (_heads(buffer, config.head_dim) for buffer in (a.k, keys, values))
        return [
            _rms(a.normed, a.x, layer.attn_norm, config.eps),
            *_linear(a.q, layer.q, a.normed),
            *_linear(a.k, layer.k, a.normed),
            *_linear(a.v, layer.v, a.normed),
            ops.rope.bind(q, q, a.positions, frequencies),
            ops.rope.bind(k, k, a.positions, frequencies),
            ops.set_rows.bind(keys, a.k, a.positions),
            ops.set_rows.bind(values, a.v, a.positions),
            ops.attention.bind(attended, q, k_cache, v_cache, a.positions, scale=config.head_dim**-0.5),
            *_linear(a.delta, layer.o, a.attended),
            ops.add.bind(a.x, a.x, a.delta),
        ]

    def _feed_forward(self, a: _Activations, layer: Layer) -> list[BoundLaunch]:
        return [
            _rms(a.normed, a.x, layer.ffn_norm, self.config.eps),
            *_linear(a.gate, layer.gate, a.normed),
            *_linear(a.up, layer.up, a.normed),
            ops.swiglu.bind(a.gate, a.gate, a.up),
            *_linear(a.delta, layer.down, a.gate),
            ops.add.bind(a.x, a.x, a.delta),
        ]


def _rms(out: Buffer, x: Buffer, weight: Buffer, eps: float) -> BoundLaunch:
    return ops.rms_norm.bind(out, x, weight, eps=eps)


def _linear(out: Buffer, linear: Linear, x: Buffer) -> list[BoundLaunch]:
    """Return the launches of ``out = x @ weight.T + bias``."""
    if x.shape[0] == 1:
        launches = [ops.gemv.bind(_flat(out), linear.weight, _flat(x))]
    else:
        launches = [ops.gemm.bind(out, linear.weight, x)]
    if linear.bias is not None:
        launches.append(ops.add.bind(out, out, linear.bias))
    return launches


def _flat(buffer: Buffer) -> Buffer:
    return buffer.view(buffer.size)


def _heads(buffer: Buffer, head_dim: int) -> Buffer:
    rows, width = buffer.shape
    return buffer.view((rows, width // head_dim, head_dim))
