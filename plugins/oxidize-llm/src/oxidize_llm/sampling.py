"""Choosing the next token from logits, with the filters of llama.cpp in the order in which it applies them by default."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Sampler", "Sampling"]


@dataclasses.dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen: repeat penalty, top-k, top-p, min-p, then temperature, in this order.

    Parameters
    ----------
    temperature
        0 takes the likeliest token always.
    top_k
        Keep the k likeliest tokens; 0 keeps all.
    top_p
        Keep the likeliest tokens that together reach this probability; 1 keeps all (Holtzman et al. 2020, arXiv:1904.09751).
    min_p
        Keep tokens of at least this share of the likeliest one's probability; 0 keeps all (Nguyen et al. 2024, arXiv:2407.01082).
    repeat_penalty
        Divides positive logits, and multiplies negative ones, of the last tokens (Keskar et al. 2019, arXiv:1909.05858); 1 is off.
    repeat_last
        How many tokens count as the last ones.
    seed
        Makes a run repeatable; None takes a new one each time.

    Raises
    ------
    ValueError
        A number is out of its range.
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        rules = (
            ("temperature", "a number of at least 0", math.isfinite(self.temperature) and self.temperature >= 0),
            ("top_k", "at least 0", self.top_k >= 0),
            ("top_p", "more than 0, up to 1", 0 < self.top_p <= 1),
            ("min_p", "from 0 to 1", 0 <= self.min_p <= 1),
            ("repeat_penalty", "a number above 0", math.isfinite(self.repeat_penalty) and self.repeat_penalty > 0),
            ("repeat_last", "at least 0", self.repeat_last >= 0),
            ("seed", "at least 0", self.seed is None or self.seed >= 0),
        )
        for name, what, good in rules:
            if not good:
                raise ValueError(f"{name} must be {what}, is {getattr(self, name)!r}")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken and nothing changes the logits, so that the device can choose."""
        return self.temperature == 0 and (self.repeat_penalty == 1 or self.repeat_last == 0)


class Sampler:
    """Chooses tokens; one for each text, because it holds the random numbers' state."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: NDArray[np.float32], ids: Sequence[int]) -> int:
        """Return a token, given the logits and the tokens before it."""
        how = self.sampling
        scores = logits.astype(np.float64)
        if how.repeat_penalty != 1 and how.repeat_last:
            recent = np.unique(np.asarray(ids[-how.repeat_last :], np.int64))
            values = scores[recent]
            scores[recent] = np.where(values > 0, values / how.repeat_penalty, values * how.repeat_penalty)
        if how.temperature == 0:
            return int(np.argmax(scores))
        kept, probabilities = self.distribution(scores)
        # Not Generator.choice: it checks that the sum is 1 more strictly than rounding allows.
        at = int(np.searchsorted(np.cumsum(probabilities), self._random.random() * probabilities.sum(), side="right"))
        return int(kept[min(at, len(kept) - 1)])

    def distribution(self, scores: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the tokens that the filters leave, likeliest first, and their probabilities."""
        how = self.sampling
        count = min(how.top_k, len(scores)) if how.top_k else len(scores)
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        kept = np.flatnonzero(scores >= least)
        kept = kept[np.argsort(-scores[kept], kind="stable")][:count]  # of equals, the first
        probabilities = _softmax(scores[kept])
        reached = int(np.searchsorted(np.cumsum(probabilities), how.top_p, side="left")) + 1 if how.top_p < 1 else len(kept)
        likely = int(np.count_nonzero(probabilities >= how.min_p * probabilities[0]))
        kept = kept[: max(1, min(reached, likely))]
        return kept, _softmax(scores[kept] / how.temperature) if how.temperature > 0 else _softmax(scores[kept])


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(scores - scores[0])  # the first is the largest
    result: NDArray[np.float64] = weights / weights.sum()
    return result
