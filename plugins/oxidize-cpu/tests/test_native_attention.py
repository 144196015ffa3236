"""The KV cache and attention against float64 formulas; and for all kernels without weights, the same bits however work is divided."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import CACHES, bits, caches, check_guard, frequencies, guarded, launch, quick, random, run_parts

from oxidize_cpu.kernels import catalogue, standard
from oxidize_host import ops
from oxidize_host.testing import oracle


@caches
@quick
@given(n=st.integers(0, 6), width=st.integers(1, 70) | st.sampled_from([192, 600]), data=st.data())
def test_set_rows(device, cache, n, width, data):
    capacity = 5
    rows = np.array(data.draw(st.lists(st.integers(-2, 6) | st.just(2**31 - 1), min_size=n, max_size=n)), np.int32)
    x = random(n, width, seed=width)
    out, memory = guarded((capacity, width), CACHES[cache])
    expected = out.copy()
    for i, row in enumerate(rows):
        if 0 <= row < capacity:
            expected[row] = x[i]
    ops.set_rows(device.wrap(out), device.wrap(x), device.wrap(rows))
    device.synchronize()
    check_guard(memory, out.size)
    np.testing.assert_array_equal(out, expected)


# ---- attention -----------------------------------------------------------------------------------------------------


def cached(capacity, kv_heads, head_dim, cache, *, unused=None, seed=0):
    keys, values = (random(capacity, kv_heads, head_dim, seed=seed + i, scale=1.0).astype(CACHES[cache]) for i in (1, 2))
    if unused is not None:
        keys[unused:] = values[unused:] = np.nan
    return keys, values


@caches
@quick
@given(
    n=st.integers(0, 20),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4) | st.just(40),
    head_dim=st.integers(1, 40) | st.sampled_from([64, 80, 128, 300]),
    capacity=st.integers(1, 100),
    seed=st.integers(0, 99),
)
def test_attention(device, cache, n, kv_heads, group, head_dim, capacity, seed):
    positions = np.random.default_rng(seed).integers(0, capacity + 3, n).astype(np.int32)
    q = random(n, kv_heads * group, head_dim, seed=seed, scale=1.0)
    # What no query sees has not been written yet: it may hold anything.
    keys, values = cached(capacity, kv_heads, head_dim, cache, unused=positions.max(initial=0) + 1, seed=seed)
    out = launch(device, ops.attention, q.shape, q, keys, values, positions, scale=head_dim**-0.5)
    expected = oracle.attention(q, keys, values, positions, float(np.float32(head_dim**-0.5)))
    np.testing.assert_allclose(out, expected, rtol=2e-6, atol=2e-6)


@caches
def test_attention_of_a_long_context(device, cache):
    keys, values = cached(3000, 3, 64, cache)
    q, positions = random(1, 9, 64, scale=2.0), np.array([2999], np.int32)
    out = launch(device, ops.attention, q.shape, q, keys, values, positions, scale=0.125)
    np.testing.assert_allclose(out, oracle.attention(q, keys, values, positions, 0.125), rtol=1e-6, atol=1e-6)


def test_a_token_never_touches_rows_after_its_position(device):
    keys, values = cached(40, 1, 20, "f32")
    keys[5:] = values[5:] = np.nan
    q = random(3, 2, 20)
    out = launch(device, ops.attention, q.shape, q, keys, values, np.array([39, 4, -1], np.int32), scale=1.0)
    assert np.all(np.isnan(out[0]))
    np.testing.assert_allclose(out[1:2], oracle.attention(q[1:2], keys, values, np.array([4]), 1.0), rtol=2e-6, atol=2e-6)
    assert not out[2].any()  # it sees nothing


def test_attention_of_extreme_scores(device):
    keys, values = np.ones((40, 1, 1), np.float32), np.arange(40, dtype=np.float32).reshape(40, 1, 1)
    keys[:35, 0, 0] = -3e38  # times 10 is minus infinity, for more than a tile
    keys[39, 0, 0] = 3e37
    q, positions = np.full((2, 1, 1), 10, np.float32), np.array([39, 38], np.int32)
    out = launch(device, ops.attention, q.shape, q, keys, values, positions, scale=1.0)
    np.testing.assert_allclose(out.ravel(), [39, np.mean([35, 36, 37, 38])], rtol=1e-6)


@caches
def test_a_prompt_gives_the_bits_of_its_tokens_alone(device, cache):
    keys, values = cached(70, 2, 24, cache)
    q, positions = random(70, 6, 24), np.arange(70, dtype=np.int32)
    whole = launch(device, ops.attention, q.shape, q, keys, values, positions, scale=0.2)
    for token in (0, 33, 69):
        one = slice(token, token + 1)
        alone = launch(device, ops.attention, (1, 6, 24), q[one].copy(), keys, values, positions[one].copy(), scale=0.2)
        np.testing.assert_array_equal(alone, whole[one])


# ---- all of them ---------------------------------------------------------------------------------------------------


def everything():
    """Return each kernel's name, parameters, output and other arguments, for shapes of many work items."""
    x, y = random(5000, seed=1), random(5000, seed=2)
    rows, positions = random(20, 250, seed=3), np.arange(20, dtype=np.int32)
    heads, turns = random(20, 5, 50, seed=4), frequencies(23)
    wide = random(3, 1300, seed=5)
    simple = [
        ("add", {}, (5000,), x, y[:50].copy(), 5000, 50),
        ("mul", {}, (5000,), x, y, 5000, 5000),
        ("silu", {}, (5000,), x, 5000),
        ("sigmoid", {}, (5000,), x, 5000),
        ("gelu", {"approximate": "tanh"}, (5000,), x, 5000),
        ("gelu", {"approximate": "none"}, (5000,), x, 5000),
        ("swiglu", {}, (5000,), x, y, 5000),
        ("argmax", {}, (20,), rows, 20, 250),
        ("rms_norm", {}, (20, 250), rows, y[:250].copy(), 20, 250, bits(1e-5)),
        ("softmax", {}, (20, 250), rows, 20, 250),
        ("rope", {"mode": "normal"}, (20, 5, 50), heads, positions, turns, 20, 5, 50, 46),
        ("rope", {"mode": "neox"}, (20, 5, 50), heads, positions, turns, 20, 5, 50, 46),
    ]
    for cache in CACHES:
        keys, values = cached(30, 2, 40, cache)
        q = random(20, 12, 40, seed=6)
        sizes = (20, 12, 2, 40, 30, bits(0.2))
        simple += [
            ("set_rows", {"cache": cache}, (4, 1300), wide, np.array([2, 0, 2], np.int32), 3, 1300, 4),
            ("attention", {"cache": cache}, (20, 12, 40), q, keys, values, positions, *sizes),
        ]
    return simple


EVERYTHING = everything()


def outputs(case, isa, parts):
    name, params, shape, *args = case
    dtype = CACHES[params.get("cache", "f32")] if name == "set_rows" else np.int32 if name == "argmax" else np.float32
    out, memory = guarded(shape, dtype)
    run_parts(isa, name, params, parts, out, *args)
    check_guard(memory, out.size)
    return out


@pytest.mark.parametrize("case", EVERYTHING, ids=lambda case: " ".join([case[0], *case[1].values()]))
def test_the_bits_do_not_depend_on_how_work_is_divided(case):
    whole = outputs(case, None, 1)
    for parts in (2, 7):
        np.testing.assert_array_equal(outputs(case, None, parts), whole)


@pytest.mark.parametrize("case", EVERYTHING, ids=lambda case: " ".join([case[0], *case[1].values()]))
def test_the_oldest_cpu_gives_the_same_bits(case):
    np.testing.assert_array_equal(outputs(case, "portable", 1), outputs(case, None, 1))


def test_each_kernel_is_known_by_name_and_parameters_only():
    for name, params, *_ in EVERYTHING:
        assert standard.find_spec(name, params) is not None
        assert standard.find_spec(name, {**params, "more": "x"}) is None
        assert catalogue.find_spec(name, params) is None
    assert standard.find_spec("rope", {}) is None
    assert standard.find_spec("rope", {"approximate": "tanh"}) is None
    assert standard.find_spec("gelu", {"approximate": "sigmoid"}) is None
    assert standard.find_spec("gemv", {"weight": "f32"}) is None
