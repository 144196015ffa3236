"""Model: a GGUF file, loaded on a device."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from oxidize_host import Device
from oxidize_llm.chat_template import ChatTemplate
from oxidize_llm.config import Config
from oxidize_llm.errors import GGUFError
from oxidize_llm.find import find_model
from oxidize_llm.generation import Generation
from oxidize_llm.gguf_file import GGUFFile
from oxidize_llm.gguf_parse import AGAIN
from oxidize_llm.sampling import Sampling
from oxidize_llm.session import Session
from oxidize_llm.tokenizer import Tokenizer
from oxidize_llm.weights import Weights

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["Model"]

DEFAULT_CONTEXT = 4096


class Model:
    """A language model on a device; made by `load`.

    Attributes
    ----------
    path : pathlib.Path
    config : Config
    tokenizer : Tokenizer
    template : ChatTemplate | None
    device : oxidize_host.Device
    load_seconds : float
    """

    def __init__(
        self, path: Path, config: Config, tokenizer: Tokenizer, template: ChatTemplate | None, weights: Weights, device: Device
    ) -> None:
        self.path, self.config, self.tokenizer, self.template, self.device = path, config, tokenizer, template, device
        self.load_seconds = 0.0
        self._weights = weights

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str],
        device: Device | str | None = None,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Load a model.

        Parameters
        ----------
        model
            A GGUF file, or the name of a model that an installed package carries, such as ``"smollm2"``.
        device
            A device or its name; by default the best one is chosen.
        progress
            Called with bytes done and bytes in all.

        Raises
        ------
        ModelNotFound
            No such file or package.
        GGUFError
            The file is damaged.
        UnsupportedModel
            It needs what the engine does not have.
        """
        start = time.perf_counter()
        path = find_model(model)
        file = GGUFFile.open(path)
        config = Config.read(file)
        tokenizer = Tokenizer(file)
        if tokenizer.size != config.vocabulary:
            raise GGUFError(
                f"{path}: tokenizer.ggml.tokens has {tokenizer.size} entries, but token_embd.weight {config.vocabulary} rows; {AGAIN}"
            )
        template = ChatTemplate.of(file, tokenizer)
        where = device if isinstance(device, Device) else Device(device)
        self = cls(path, config, tokenizer, template, Weights.load(file, config, where, progress), where)
        self.load_seconds = time.perf_counter() - start
        return self

    def __repr__(self) -> str:
        """Return name and device."""
        return f"<Model {self.config.name!r} on {self.device.id}>"

    def session(self, context: int | None = None) -> Session:
        """Return a new, empty session.

        Parameters
        ----------
        context
            Tokens that fit; by default what the model was trained for, up to 4096. Its cache takes
            ``4 * layers * kv_heads * head_dim`` bytes a token.
        """
        if context is None:
            context = min(self.config.context, DEFAULT_CONTEXT)
        if context < 1:
            raise ValueError(f"a context has at least one token, not {context}")
        return Session(self.device, self.config, self._weights, context)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        session: Session | None = None,
    ) -> Generation:
        """Continue a text: ``for piece in model.generate("Once upon a time"): print(piece, end="")``.

        Parameters
        ----------
        prompt
            A text, or token ids.
        max_tokens
            How many tokens to write at most; by default until the model ends the text or the context is full.
        sampling
            How tokens are chosen; by default the likeliest one always.
        stop
            Texts before which to stop.
        ignore_eos
            Go on where the model would end the text.
        session
            A cache to continue: what it shares with the prompt is not computed again. A new one by default, as large as needed.

        Raises
        ------
        ContextFull
            The prompt does not fit into the context.
        ValueError
            The prompt is empty.
        """
        if max_tokens is not None and max_tokens < 0:
            raise ValueError(f"max_tokens must be at least 0, is {max_tokens}")
        ids = self.tokenizer.encode(prompt, special=True) if isinstance(prompt, str) else [int(i) for i in prompt]
        if not ids and self.tokenizer.bos is not None:
            ids = [self.tokenizer.bos]
        for i in ids:
            if not 0 <= i < self.config.vocabulary:
                raise ValueError(f"there is no token {i}; the model has {self.config.vocabulary}")
        if session is None:
            wanted = max(DEFAULT_CONTEXT, 2 * len(ids)) if max_tokens is None else len(ids) + max_tokens
            session = self.session(max(1, min(self.config.context, wanted)))
        return Generation(
            session,
            self.tokenizer,
            ids,
            max_tokens=max_tokens,
            sampling=sampling or Sampling(),
            stop=stop,
            ignore_eos=ignore_eos,
        )
