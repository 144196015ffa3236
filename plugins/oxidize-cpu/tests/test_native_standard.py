"""The kernels without weights, against float64 formulas: shapes of all kinds, limits, and the same bits however work is divided."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import UNARY, frequencies, launch, quick, random, unary

from oxidize_host import ops
from oxidize_host.testing import oracle


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
