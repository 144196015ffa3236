"""The kernels without weights, against float64 formulas: shapes of all kinds, limits, and the same bits however work is divided."""

from __future__ import annotations

import ctypes
import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oxidize_host as ox
from oxidize_cpu import driver
from oxidize_cpu.kernels import catalogue, standard
from oxidize_host import ops
from oxidize_host.testing import oracle

ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
UNARY = {
    "silu": (ops.silu, oracle.silu),
    "sigmoid": (ops.sigmoid, oracle.sigmoid),
    "gelu tanh": (functools.partial(ops.gelu, approximate="tanh"), lambda x: oracle.gelu(x, "tanh")),
    "gelu none": (functools.partial(ops.gelu, approximate="none"), lambda x: oracle.gelu(x, "none")),
}
CACHES = {"f32": np.float32, "f16": np.float16}
quick = settings(deadline=None, max_examples=30)
unary = pytest.mark.parametrize("name", UNARY)
caches = pytest.mark.parametrize("cache", CACHES)


@pytest.fixture(scope="module")
def device():
    return ox.Device("cpu")


@functools.cache
def jit(isa):
    return driver.Jit(isa)


def random(*shape, seed=0, scale=3.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def guarded(shape, dtype=np.float32):
    """Return an array of 77s and the memory around it, which must stay all 77."""
    size = int(np.prod(shape))
    memory = np.full(size + 64, 77, dtype)
    return memory[32 : 32 + size].reshape(shape), memory


def check_guard(memory, size):
    assert np.all(memory[:32] == 77)
    assert np.all(memory[32 + size :] == 77)


def launch(device, op, out_shape, *arrays, dtype=np.float32, **options):
    """Run an operation into guarded memory and return what it wrote."""
    out, memory = guarded(out_shape, dtype)
    op(device.wrap(out), *(device.wrap(array) for array in arrays), **options)
    device.synchronize()
    check_guard(memory, out.size)
    return out


def run_parts(isa, name, params, parts, *args):
    """Run a kernel's entries directly, their work items in ``parts`` calls, the last ones first."""
    spec = standard.find_spec(name, params)
    slots = [arg.ctypes.data if isinstance(arg, np.ndarray) else int(arg) for arg in args]
    memory = (ctypes.c_int64 * len(slots))(*slots)
    for phase in spec.phases:
        entry = ENTRY(jit(isa).address(phase.entry))
        edges = np.linspace(0, phase.items(slots), parts + 1).astype(int).tolist()
        for lo, hi in reversed(list(itertools.pairwise(edges))):
            entry(ctypes.addressof(memory), lo, hi)


def bits(value):
    return int(np.float32(value).view(np.uint32))


# ---- each element --------------------------------------------------------------------------------------------------


@unary
@quick
@given(size=st.integers(0, 70) | st.integers(1000, 3000), scale=st.sampled_from([1e-3, 1.0, 30.0]))
def test_functions_of_each_element(device, name, size, scale):
    op, formula = UNARY[name]
    x = random(size, seed=size, scale=scale)
    np.testing.assert_allclose(launch(device, op, (size,), x), formula(x), rtol=2e-6, atol=2e-7)


@unary
def test_functions_of_each_element_are_accurate_where_results_are_tiny(device, name):
    op, formula = UNARY[name]
    x = np.linspace(-5, 1e-3, 10007, dtype=np.float32)  # further down the float64 formula of the tanh is no better itself
    np.testing.assert_allclose(launch(device, op, x.shape, x), formula(x), rtol=4e-6, atol=0)


@unary
def test_functions_of_each_element_have_their_limits_at_huge_values(device, name):
    op, _ = UNARY[name]
    x = np.array([3e38, -3e38, 1e20, -1e20, 200, -200, np.inf, 0, np.nan], np.float32)
    limits = [1, 0, 1, 0, 1, 0, 1, 0.5] if name == "sigmoid" else [3e38, 0, 1e20, 0, 200, 0, np.inf, 0]
    np.testing.assert_array_equal(launch(device, op, x.shape, x), np.array([*limits, np.nan], np.float32))


def test_sigmoid_keeps_subnormal_results(device):
    x = np.array([-88.0, -90.0, -100.0, -np.inf], np.float32)
    np.testing.assert_allclose(launch(device, ops.sigmoid, (4,), x), oracle.sigmoid(x), rtol=1e-6, atol=1.5e-45)


@quick
@given(size=st.integers(0, 70) | st.integers(1000, 3000))
def test_swiglu(device, size):
    gate, up = random(size, seed=size), random(size, seed=size + 1)
    np.testing.assert_allclose(launch(device, ops.swiglu, (size,), gate, up), oracle.silu(gate) * up, rtol=1e-6, atol=1e-7)


def test_swiglu_of_huge_gates(device):
    gate, up = np.array([3e38, -3e38, -200, np.nan], np.float32), np.array([0.5, 2, 3, 1], np.float32)
    np.testing.assert_array_equal(launch(device, ops.swiglu, (4,), gate, up), np.array([1.5e38, 0, 0, np.nan], np.float32))


@pytest.mark.parametrize(("op", "function"), [(ops.add, np.add), (ops.mul, np.multiply)], ids=["add", "mul"])
@quick
@given(rows=st.integers(0, 40), columns=st.integers(1, 70) | st.sampled_from([576, 1024, 1500]), repeated=st.booleans())
def test_add_and_mul_repeat_b(device, op, function, rows, columns, repeated):
    a = random(rows, columns, seed=rows)
    b = random(columns, seed=1) if repeated else random(rows, columns, seed=2)
    np.testing.assert_array_equal(launch(device, op, a.shape, a, b), function(a, b))


@pytest.mark.parametrize("size", [1, 17, 2500])
def test_add_of_one_number(device, size):
    a, b = random(size), np.array(2.5, np.float32)
    np.testing.assert_array_equal(launch(device, ops.add, (size,), a, b), a + b)


@pytest.mark.parametrize("size", [5, 64, 2000])
def test_outputs_may_be_inputs(device, size):
    for index in (0, 1):
        for op, formula in ((ops.add, np.add), (ops.mul, np.multiply), (ops.swiglu, lambda a, b: oracle.silu(a) * b)):
            pair = [random(size, seed=1), random(size, seed=2)]
            expected = formula(*pair)
            buffers = [device.wrap(array) for array in pair]
            op(buffers[index], *buffers)
            device.synchronize()
            np.testing.assert_allclose(pair[index], expected, rtol=1e-6, atol=1e-7)
    for op, formula in UNARY.values():
        x = random(size)
        expected = formula(x)
        op(device.wrap(x), device.wrap(x))
        device.synchronize()
        np.testing.assert_allclose(x, expected, rtol=2e-6, atol=2e-7)


# ---- rows ----------------------------------------------------------------------------------------------------------


@quick
@given(rows=st.integers(0, 5), columns=st.integers(1, 200) | st.sampled_from([49152]), ties=st.booleans(), nans=st.booleans())
def test_argmax_is_numpys(device, rows, columns, ties, nans):
    rng = np.random.default_rng(columns)
    x = rng.integers(-3, 3, (rows, columns)).astype(np.float32) if ties else random(rows, columns, seed=rows)
    if nans:
        x[rng.random(x.shape) < 1 / columns] = np.nan
    np.testing.assert_array_equal(launch(device, ops.argmax, (rows,), x, dtype=np.int32), np.argmax(x, axis=-1))


@pytest.mark.parametrize("columns", [1, 16, 100])
def test_argmax_of_infinities_and_zeros(device, columns):
    x = np.zeros((4, columns), np.float32)
    x[0] = -np.inf
    x[1, -1] = np.inf
    x[2, 0] = -0.0
    x[3], x[3, columns // 2 :] = np.inf, np.nan
    np.testing.assert_array_equal(launch(device, ops.argmax, (4,), x, dtype=np.int32), [0, columns - 1, 0, columns // 2])


@quick
@given(
    rows=st.integers(0, 5), columns=st.integers(1, 150) | st.sampled_from([576, 4096]), scale=st.sampled_from([1e-6, 1, 1e6])
)
def test_rms_norm(device, rows, columns, scale):
    x, weight = random(rows, columns, seed=columns, scale=scale), random(columns, seed=1)
    out = launch(device, ops.rms_norm, x.shape, x, weight, eps=1e-5)
    np.testing.assert_allclose(out, oracle.normalize(x, weight, 1e-5), rtol=4e-7, atol=0)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_rms_norm_of_values_whose_squares_are_no_floats(device, scale):
    x, weight = random(3, 50, scale=scale), random(50, seed=1)
    out = launch(device, ops.rms_norm, x.shape, x, weight, eps=0.0)
    np.testing.assert_allclose(out, oracle.normalize(x, weight, 0.0), rtol=4e-7, atol=0)


@quick
@given(
    rows=st.integers(0, 5), columns=st.integers(1, 150) | st.sampled_from([4096, 50000]), offset=st.sampled_from([0, 1e4, -1e4])
)
def test_softmax(device, rows, columns, offset):
    x = random(rows, columns, seed=columns) + np.float32(offset)
    np.testing.assert_allclose(launch(device, ops.softmax, x.shape, x), oracle.softmax(x), rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize("columns", [3, 16, 40])
def test_softmax_of_infinities(device, columns):
    x = random(4, columns)
    x[0, 1:] = -np.inf
    x[1] = 3e38
    x[2, 1] = np.nan
    x[3] = -np.inf
    out = launch(device, ops.softmax, x.shape, x)
    np.testing.assert_array_equal(out[0], np.eye(columns, dtype=np.float32)[0])
    np.testing.assert_allclose(out[1], 1 / columns, rtol=1e-6)
    assert np.all(np.isnan(out[2:]))  # as numpy: nothing is as large as NaN, and infinity minus infinity is no number


def test_rows_may_be_changed_in_place(device):
    x, weight = random(3, 100), random(100, seed=1)
    expected = oracle.softmax(oracle.normalize(x, weight, 1e-5).astype(np.float32))
    buffer = device.wrap(x)
    ops.rms_norm(buffer, buffer, device.wrap(weight), eps=1e-5)
    ops.softmax(buffer, buffer)
    device.synchronize()
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-37)


# ---- rope, cache ---------------------------------------------------------------------------------------------------


def frequencies(half):
    return (10000.0 ** -(np.arange(half) / max(half, 1))).astype(np.float32)


@pytest.mark.parametrize("mode", ["normal", "neox"])
@quick
@given(
    n=st.integers(0, 4), heads=st.integers(1, 3), head_dim=st.integers(1, 80), data=st.data(), in_place=st.booleans(), seed=st.integers(0, 99)
)  # fmt: skip
def test_rope(device, mode, n, heads, head_dim, data, in_place, seed):
    half = data.draw(st.integers(0, head_dim // 2))
    x, turns = random(n, heads, head_dim, seed=seed, scale=1.0), frequencies(half)
    positions = np.random.default_rng(seed).integers(-5, 131072, n).astype(np.int32)
    expected = oracle.rope(x, positions, turns, mode)
    if in_place:
        ops.rope(device.wrap(x), device.wrap(x), device.wrap(positions), device.wrap(turns), mode=mode)
        device.synchronize()
        out = x
    else:
        out = launch(device, ops.rope, x.shape, x, positions, turns, mode=mode)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-6)


def test_rope_is_accurate_at_any_position(device):
    positions = np.concatenate([np.arange(5000), np.arange(2**31 - 5000, 2**31), [-(2**31)]]).astype(np.int32)
    x = np.tile(np.float32([1, 0]), (len(positions), 1, 1))
    turns = np.ones(1, np.float32)
    out = launch(device, ops.rope, x.shape, x, positions, turns, mode="normal")[:, 0]
    angle = positions.astype(np.float64)
    np.testing.assert_allclose(out, np.stack([np.cos(angle), np.sin(angle)], axis=-1), rtol=0, atol=6e-8)


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
