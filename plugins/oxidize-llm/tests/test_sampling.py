"""Choosing tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from oxidize_llm import Sampler, Sampling

LOGITS = arrays(np.float32, st.integers(1, 40), elements=st.floats(-30, 30, width=32))
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 50),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)


def softmax(x):
    p = np.exp(np.float64(x) - np.max(x))
    return p / p.sum()


def kept(logits, **options):
    options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | options
    tokens, probabilities = Sampler(Sampling(**options)).distribution(np.float64(logits))
    return dict(zip(tokens.tolist(), probabilities.tolist(), strict=True))


@given(LOGITS, SAMPLINGS)
def test_a_choice_is_a_token_that_the_filters_leave(logits, sampling):
    sampler = Sampler(sampling)
    tokens, probabilities = sampler.distribution(logits.astype(np.float64))
    assert len(tokens) >= 1
    assert tokens[0] == np.argmax(logits)  # the likeliest always stays
    assert np.isclose(probabilities.sum(), 1)
    assert (np.diff(probabilities) <= 1e-12).all()
    assert sampler.choose(logits, []) in tokens


@given(LOGITS)
def test_temperature_zero_is_argmax(logits):
    assert Sampler(Sampling()).choose(logits, []) == np.argmax(logits)


@given(LOGITS, st.integers(1, 50))
def test_top_k_keeps_the_k_likeliest(logits, k):
    tokens = kept(logits, top_k=k)
    assert len(tokens) == min(k, len(logits))
    assert min(logits[list(tokens)]) >= max(np.delete(logits, list(tokens)), default=-np.inf)


@given(LOGITS, st.floats(0.01, 0.99))
def test_top_p_keeps_the_fewest_that_reach_p(logits, p):
    tokens = list(kept(logits, top_p=p))
    share = softmax(logits)[tokens]
    assert share.sum() >= p - 1e-9
    assert share[:-1].sum() < p + 1e-9


@given(LOGITS, st.floats(0.01, 1))
def test_min_p_keeps_what_is_likely_enough_against_the_best(logits, p):
    share = softmax(logits)
    tokens = set(kept(logits, min_p=p))
    assert {int(i) for i in np.flatnonzero(share >= p * share.max() * (1 + 1e-9))} <= tokens
    assert all(share[i] >= p * share.max() * (1 - 1e-9) for i in tokens)


def test_filters_see_probabilities_before_temperature():
    """llama.cpp applies temperature last: a high one spreads what is left, and lets nothing more in."""
    logits = np.log(np.array([0.6, 0.3, 0.08, 0.02], np.float32))
    tokens = kept(logits, top_p=0.85, temperature=100.0)
    assert list(tokens) == [0, 1]
    assert tokens[1] == pytest.approx(0.5, abs=0.01)
    assert kept(logits, temperature=0.5)[0] == pytest.approx(0.36 / (0.36 + 0.09 + 0.0064 + 0.0004), rel=1e-5)


def test_frequencies_follow_the_probabilities():
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    sampler = Sampler(Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1))
    counts = np.bincount([sampler.choose(logits, []) for _ in range(4000)], minlength=3) / 4000
    np.testing.assert_allclose(counts, [0.5, 0.3, 0.2], atol=0.03)


def test_repeat_penalty_lowers_what_was_said_lately():
    logits = np.array([2.0, 1.9, -1.0], np.float32)
    how = Sampling(repeat_penalty=1.5, repeat_last=2)
    assert not how.greedy
    assert Sampler(how).choose(logits, [0]) == 1
    assert Sampler(how).choose(logits, [0, 2, 2]) == 0  # too long ago
    assert Sampler(Sampling(repeat_penalty=1.5, repeat_last=0)).choose(logits, [0]) == 0
    negative = np.array([-1.0, -1.2], np.float32)
    assert Sampler(how).choose(negative, [0]) == 1  # multiplied, not divided: -1.5 is less than -1.2


def test_a_seed_repeats_and_others_differ():
    logits = np.zeros(1000, np.float32)
    draw = lambda seed: [Sampler(Sampling(temperature=1.0, top_k=0, min_p=0, top_p=1.0, seed=seed)).choose(logits, [])]  # noqa: E731
    assert draw(5) == draw(5)
    assert len({draw(seed)[0] for seed in range(20)}) > 10
    assert len({draw(None)[0] for _ in range(20)}) > 10


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": 2},
        {"repeat_penalty": 0},
        {"repeat_last": -1},
        {"seed": -1},
    ],
)
def test_numbers_out_of_range_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)
