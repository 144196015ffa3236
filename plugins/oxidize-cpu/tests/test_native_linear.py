"""Products, row lookup and the read test, against gguf's decoder in double precision."""

from __future__ import annotations

import os
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import binding as llvm

from oxidize_cpu import driver, kernels
from oxidize_cpu.kernels import isa
from oxidize_cpu.kernels.layout import FORMATS, TILE, tokens_at_a_time
from oxidize_host import quant

sys.path.insert(0, str(Path(__file__).parent))
from native import PLAIN, QUANTIZED, address, close_to_ties, elsewhere, get_rows, oracle, product, weights

few = settings(max_examples=40, deadline=None)
shapes = st.tuples(st.integers(1, 9), st.integers(1, 19), st.sampled_from([1, 2, 3, 4, 5, 8, 11]), st.integers(0, 99))


def activations(n, k, seed=0):
    return np.random.default_rng(seed + 1).standard_normal((n, k)).astype(np.float32)


def bound(fmt, w, x):
    """How far a product may be off: half a step of the 8-bit activations for each weight, and the rounding of floats."""
    rounding = 1e-6 * np.abs(x).astype(np.float64) @ np.abs(w).T
    if fmt in PLAIN:
        return rounding
    steps = np.abs(x).reshape(len(x), -1, 32).max(-1, keepdims=True) / 254
    return rounding + np.repeat(steps, 32, -1).reshape(x.shape) @ np.abs(w).T


def assert_product(name, fmt, m, k, n, seed):
    raw, x = weights(fmt, m, k, seed), activations(n, k, seed)
    w = oracle(fmt, raw).astype(np.float64)
    off = np.abs(product(name, fmt, raw, x) - x.astype(np.float64) @ w.T)
    assert np.all(off <= bound(fmt, w, x)), (off / bound(fmt, w, x)).max()


@pytest.mark.parametrize("fmt", QUANTIZED)
@few
@given(shapes)
def test_a_product_with_blocks_is_off_by_no_more_than_the_activations_steps(fmt, shape):
    m, blocks, n, seed = shape
    for name in ("gemv", "gemm") if n == 1 else ("gemm",):
        assert_product(name, fmt, m, blocks * FORMATS[fmt].block, n, seed)


@pytest.mark.parametrize("fmt", PLAIN)
@few
@given(shapes, st.integers(0, 31))
def test_a_product_with_floats_is_exact_but_for_rounding(fmt, shape, odd):
    m, blocks, n, seed = shape
    for name in ("gemv", "gemm") if n == 1 else ("gemm",):
        assert_product(name, fmt, m, blocks * 32 - odd, n, seed)


@pytest.mark.parametrize("fmt", FORMATS)
def test_accuracy_on_the_sizes_of_models(fmt):
    k = 1536
    raw, x = weights(fmt, 64, k), activations(1, k)
    y = x.astype(np.float64) @ oracle(fmt, raw).astype(np.float64).T
    limit = 1e-2 if fmt in QUANTIZED else 1e-5
    for name in ("gemv", "gemm"):
        assert np.abs(product(name, fmt, raw, x) - y).max() <= limit * np.abs(y).max()


def test_tokens_that_exceed_the_cache_are_taken_in_spans():
    k, n = 4096, 101
    form = FORMATS["q4_0"]
    assert tokens_at_a_time(form.groups(k) * form.record, n) < n // 2
    assert_product("gemm", "q4_0", TILE + 1, k, n, 0)


@pytest.mark.parametrize("fmt", FORMATS)
def test_gemm_gives_each_token_what_it_gets_alone(fmt):
    raw, x = weights(fmt, 7, 768), activations(9, 768)
    together = product("gemm", fmt, raw, x)
    alone = np.concatenate([product("gemv", fmt, raw, row[None].copy()) for row in x])
    assert np.array_equal(together, alone)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_activations_that_are_not_finite_give_results_that_are_not(fmt, value):
    raw, x = weights(fmt, 5, 512), activations(5, 512)
    x[2, 300] = value
    y = product("gemm", fmt, raw, x)
    assert not np.isfinite(y[2]).any()
    assert np.isfinite(np.delete(y, 2, 0)).all()
    assert not np.isfinite(product("gemv", fmt, raw, x[2:3].copy())).any()


@pytest.mark.parametrize("fmt", QUANTIZED)
def test_activations_of_zero_give_zero(fmt):
    assert not product("gemv", fmt, weights(fmt, 5, 512), np.zeros((1, 512), np.float32)).any()


@pytest.mark.parametrize("fmt", ["f32", "q4_1", "q6_k"])
@pytest.mark.parametrize(("m", "k", "n"), [(0, 256, 3), (3, 0, 5), (3, 256, 0)])
def test_sizes_of_zero_do_nothing_or_give_zeros(fmt, m, k, n):
    out = product("gemm", fmt, weights(fmt, max(m, 1), max(k, 256))[:m], np.zeros((n, k), np.float32))
    assert out.shape == (n, m)
    assert not out.any()


@pytest.mark.parametrize("fmt", FORMATS)
def test_rows_are_decoded_bit_for_bit(fmt):
    d = 768 if fmt in QUANTIZED else 777
    raw = weights(fmt, 6, d)
    rows = get_rows(fmt, raw, [5, 0, 3, 3], d)
    assert np.array_equal(rows.view(np.uint32), quant.decode(raw, fmt)[[5, 0, 3, 3]].view(np.uint32))


@pytest.mark.parametrize("fmt", FORMATS)
def test_an_id_out_of_range_gives_nan(fmt):
    rows = get_rows(fmt, weights(fmt, 4, 256), [4, -1, 2**31 - 1, -(2**31), 3], 256)
    assert np.isnan(rows[:4]).all()
    assert np.isfinite(rows[4]).all()


@pytest.mark.parametrize("n", [1, 15, 63, 64, 65, 65535, 65536, 65537, 300_001])
def test_read_sums_all_there_is(n):
    x, out = np.ones(n + 9, np.float32), np.zeros(1, np.float32)
    kernels.find("read", {})([address(out), address(x), np.uint32(n)])
    assert out[0] == n


def test_what_is_not_a_standard_kernel_is_not_found():
    for name, params in [
        ("gemv", {}),
        ("gemv", {"weight": "q3_k"}),
        ("gemv", {"weight": "f32", "more": "x"}),
        ("read", {"weight": "f32"}),
        ("divide", {}),
    ]:
        assert kernels.find(name, params) is None


# gemm gives the bits of gemv, which is tested above, and takes long to compile.
MUCH = """
import hashlib, numpy as np
from native import get_rows, product, weights
digest = hashlib.sha256()
for fmt in ("f32", "f16", "q4_1", "q5_0", "q8_0", "q4_k", "q6_k"):
    raw = weights(fmt, 5, 768)
    x = np.random.default_rng(5).standard_normal((3, 768)).astype(np.float32) * np.float32([[1e-3], [1], [50]])
    products = [product("gemv", fmt, raw, row[None].copy()) for row in x]
    for part in (*products, get_rows(fmt, raw, [4, 1], 768), product("gemm", fmt, raw, x) if fmt == "q4_1" else raw):
        digest.update(part.tobytes())
print(digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits():
    able = isa.available(llvm.get_host_cpu_features())
    assert "portable" in able
    assert len({elsewhere(MUCH, OXIDIZE_CPU_ISA=name) for name in able}) == 1


@pytest.mark.parametrize("name", isa.ISAS)
def test_the_functions_of_every_instruction_set_are_valid(name):
    text = " ".join(f"@ox.{function}(" for function in isa.NAMES)
    module = llvm.parse_assembly(isa.prelude(name, llvm.get_host_cpu_features(), text))
    module.verify()
    assert {function.name for function in module.functions if not function.is_declaration} == {f"ox.{n}" for n in isa.NAMES}


@pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="protects a page through Linux's libc")
def test_nothing_is_read_beyond_the_weights_and_activations():
    elsewhere("""
import ctypes, mmap, numpy as np
from native import FORMATS, address, get_rows, product, weights
libc = ctypes.CDLL(None, use_errno=True)
def at_the_end(array):
    size = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, size + mmap.PAGESIZE), np.uint8)
    assert libc.mprotect(ctypes.c_void_p(address(memory) + size), mmap.PAGESIZE, 0) == 0
    place = memory[size - array.nbytes : size].view(array.dtype).reshape(array.shape)
    place[:] = array
    return place
for fmt, form in FORMATS.items():
    for k in {form.block, form.block * 3, form.block * 5, 768, 1} if form.block == 1 else {form.block, form.block * 3, 768}:
        for n in (1, 5):
            raw, x = at_the_end(weights(fmt, 3, k)), at_the_end(np.ones((n, k), np.float32))
            product("gemm", fmt, raw, x)
            product("gemv", fmt, raw, x[-1:])
            get_rows(fmt, raw, [2], k)
""")


def test_the_emulated_multiplication_with_addition_rounds_once():
    code = """
from native import close_to_ties, product
w, x = close_to_ties()
print(product("gemv", "f32", w, x).tobytes().hex())
"""
    assert elsewhere(code, OXIDIZE_CPU_ISA="portable") == _exactly().tobytes().hex()


def _exactly():
    w, x = close_to_ties()

    def fma(a, b, c):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        near = np.float32(float(exact))
        around = (near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf)))
        return min(around, key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(np.uint32)) & 1))

    def dot(w, v):
        lanes = np.zeros(16, np.float32)
        for at in range(0, len(v), 16):
            lanes = np.array([fma(a, b, c) for a, b, c in zip(w[at : at + 16], v[at : at + 16], lanes, strict=True)])
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
        return lanes[0]

    return np.array([dot(row, x[0]) for row in w], np.float32)


def test_the_driver_uses_the_best_instruction_set():
    if not os.environ.get("OXIDIZE_CPU_ISA"):
        assert driver.default().isa == isa.available(llvm.get_host_cpu_features())[0]
