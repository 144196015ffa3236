"""Generation: text that is produced while one iterates over it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from oxidize_llm.errors import ContextFull
from oxidize_llm.sampling import Sampler, Sampling
from oxidize_llm.tokenizer import Decoder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oxidize_llm.session import Session
    from oxidize_llm.tokenizer import Tokenizer

__all__ = ["Generation", "Stop"]

Stop = Literal["running", "length", "eos", "stop", "context"]


class Generation:
    """A text that the model writes; made by `Model.generate`. Iterating yields it piece by piece, once.

    Attributes
    ----------
    prompt_ids, ids : list[int]
        Tokens of the prompt, and those written so far (a token that ends the text is not among them).
    text : str
        What was yielded so far.
    stop : str
        Why it ended: ``"length"`` (as many tokens as asked for), ``"eos"`` (the model ended it), ``"stop"`` (a stop text
        appeared), ``"context"`` (the context is full); ``"running"`` before.
    prompt_tokens, prompt_seconds
        Tokens that were computed before the first new one (others were in the cache) and the time that took.
    decode_seconds : float
        Time from the first new token to the last.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int | None,
        sampling: Sampling,
        stop: Sequence[str],
        ignore_eos: bool,
    ) -> None:
        if not prompt_ids:
            raise ValueError("the prompt is empty, and the model has no token to begin with: give it a prompt")
        if len(prompt_ids) > session.context:
            raise ContextFull(
                f"the prompt has {len(prompt_ids)} tokens, the context {session.context}: "
                "shorten the prompt or use a larger context (--ctx)"
            )
        self.prompt_ids, self.ids = list(prompt_ids), list[int]()
        self.text, self.stop = "", "running"
        self.prompt_tokens, self.prompt_seconds, self.decode_seconds = 0, 0.0, 0.0
        self._session, self._decoder, self._max = session, Decoder(tokenizer), max_tokens
        self._sampler, self._greedy = Sampler(sampling), sampling.greedy
        self._stops = tuple(text for text in stop if text)
        self._ends = frozenset[int]() if ignore_eos else tokenizer.ends
        self._held = ""
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        """Yield pieces of text, whole characters only."""
        return self._pieces

    def finish(self) -> str:
        """Produce the rest and return all of the text."""
        for _ in self._pieces:
            pass
        return self.text

    @property
    def prompt_tokens_per_s(self) -> float:
        """Speed of reading the prompt; 0 if nothing had to be computed."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Speed of writing; the first token comes with the prompt and does not count."""
        return (len(self.ids) - 1) / self.decode_seconds if len(self.ids) > 1 and self.decode_seconds else 0.0

    def _run(self) -> Iterator[str]:
        start = time.perf_counter()
        if self._max == 0:
            self.stop = "length"
            return
        self._feed_prompt()
        token = self._next(first=True)
        decoding = time.perf_counter()
        self.prompt_seconds = decoding - start
        while token not in self._ends:
            self.ids.append(token)
            self.decode_seconds = time.perf_counter() - decoding
            if piece := self._push(self._decoder.push(token)):
                yield piece
            if self.stop == "stop":
                return
            if len(self.ids) == self._max:
                self.stop = "length"
                break
            if len(self._session.ids) >= self._session.context:
                self.stop = "context"
                break
            token = self._next(first=False)
        else:
            self.stop = "eos"
        if piece := self._push(self._decoder.finish(), final=True):
            yield piece

    def _feed_prompt(self) -> None:
        """Append what the cache does not hold yet; the last token is computed anyway, for its logits."""
        session, prompt = self._session, self.prompt_ids
        common = 0
        for ours, theirs in zip(session.ids, prompt[:-1], strict=False):
            if ours != theirs:
                break
            common += 1
        session.truncate(common)
        self.prompt_tokens = len(prompt) - common
        session.feed(prompt[common:])

    def _next(self, *, first: bool) -> int:
        session = self._session
        if self._greedy:
            return session.greedy() if first else session.feed_greedy()
        if not first:
            session.feed(self.ids[-1:])
        return self._sampler.choose(session.logits(), self.prompt_ids + self.ids)

    def _push(self, text: str, *, final: bool = False) -> str:
        """Return what can be shown: all but what may become a stop text."""
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            piece, self._held, self.stop = self._held[: min(found)], "", "stop"
        else:
            keep = 0 if final else max((_overlap(self._held, stop) for stop in self._stops), default=0)
            cut = len(self._held) - keep
            piece, self._held = self._held[:cut], self._held[cut:]
        self.text += piece
        return piece


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of ``text`` begin ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
