"""Threads: the same bits with any number of them, and nothing lost on the way."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from oxidize_cpu import kernels, pool

sys.path.insert(0, str(Path(__file__).parent))
from native import address, elsewhere, product, weights

K, N = 512, 40


@pytest.fixture
def threads():
    """Make pools, and end their threads afterwards."""
    made = []

    def make(count):
        made.append(pool.Pool(count))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def activations(seed=0):
    return np.random.default_rng(seed).standard_normal((N, K)).astype(np.float32)


@pytest.mark.parametrize("fmt", ["f32", "q4_1"])
def test_any_number_of_threads_gives_the_same_bits(threads, fmt):
    raw, x = weights(fmt, 1001, K), activations()
    one = threads(1)
    gemm, gemv = product("gemm", fmt, raw, x, one), product("gemv", fmt, raw, x[:1], one)
    assert not one._workers
    for count in (2, 3, 5):
        many = threads(count)
        for _ in range(20):
            assert np.array_equal(product("gemm", fmt, raw, x, many), gemm)
            assert np.array_equal(product("gemv", fmt, raw, x[:1], many), gemv)
        assert len(many._workers) == count - 1


def test_little_work_stays_on_the_calling_thread(threads):
    two = threads(2)
    product("gemv", "f32", weights("f32", 8, K), activations()[:1], two)
    assert not two._workers


@pytest.mark.parametrize("patience", [0, 1, 100])
def test_workers_that_park_at_once_lose_nothing(threads, monkeypatch, patience):
    monkeypatch.setattr(pool, "_PATIENCE", patience)
    n = 1 << 20
    x, out = np.ones(n, np.float32), np.zeros(1, np.float32)
    total = kernels.find("read", {}).bind([address(out), address(x), np.uint32(n)], threads(3))
    for _ in range(300):
        out[0] = 0
        total()
        assert out[0] == n


def test_workers_help_and_help_again_after_they_have_parked(threads):
    two = threads(2)
    raw, x, out = weights("q4_1", 1001, K), activations(), np.zeros((N, 1001), np.float32)
    sizes = [np.uint32(size) for size in (1001, K, N)]
    call = kernels.find("gemm", {"weight": "q4_1"}).bind([address(out), address(raw), address(x), *sizes], two)
    for _ in range(2):
        before, end = two.helped(), time.monotonic() + 20
        while two.helped() == before:
            assert time.monotonic() < end, "the worker runs nothing"
            call()
        while not two._parked:
            assert time.monotonic() < end, "the worker does not park"
            time.sleep(0.001)


def test_threads_that_launch_at_once_get_their_own_results(threads):
    for count in (1, 2):
        shared, wrong = threads(count), []

        def launch(seed, shared=shared, wrong=wrong):
            raw, x = weights("q4_1", 300, K, seed), activations(seed)
            right = product("gemm", "q4_1", raw, x, shared)
            wrong.extend(i for i in range(40) if not np.array_equal(product("gemm", "q4_1", raw, x, shared), right))

        launchers = [threading.Thread(target=launch, args=(seed,)) for seed in range(3)]
        for each in launchers:
            each.start()
        for each in launchers:
            each.join()
        assert not wrong


def test_scratch_memory_that_grew_stays_valid_for_what_was_bound_before(threads):
    one = threads(1)
    raw, x, out = weights("q4_1", 5, K), activations()[:1], np.zeros((1, 5), np.float32)
    sizes = [np.uint32(5), np.uint32(K)]
    call = kernels.find("gemv", {"weight": "q4_1"}).bind([address(out), address(raw), address(x), *sizes], one)
    call()
    before = out.copy()
    old = one._scratch[1]
    product("gemm", "q4_1", raw, activations(), one)
    assert one._scratch[1] != old
    call()
    assert np.array_equal(out, before)


def test_a_stopped_pool_starts_again(threads):
    two = threads(2)
    raw, x = weights("q4_1", 1001, K), activations()
    right = product("gemm", "q4_1", raw, x, two)
    workers = list(two._workers)
    two.stop()
    assert not any(worker.is_alive() for worker in workers)
    assert np.array_equal(product("gemm", "q4_1", raw, x, two), right)
    assert len(two._workers) == 1


SETUP = """
import os, numpy as np, threading
from native import product, weights
from oxidize_cpu.pool import default
raw, x = weights("q4_1", 1001, 512), np.ones((40, 512), np.float32)
right = product("gemm", "q4_1", raw, x)
assert len(default()._workers) == 1
"""


def test_a_process_with_workers_ends():
    assert elsewhere(SETUP + "print('end')", OXIDIZE_NUM_THREADS="2") == "end"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_has_threads_of_its_own():
    code = """
stop = threading.Event()
busy = threading.Thread(target=lambda: [product("gemm", "q4_1", raw, x) for _ in iter(stop.is_set, True)])
busy.start()
for _ in range(10):  # while another thread launches, and so maybe holds the lock
    child = os.fork()
    if not child:
        same = np.array_equal(product("gemm", "q4_1", raw, x), right)
        os._exit(0 if same and len(default()._workers) == 1 else 1)
    print(os.waitpid(child, 0)[1])
stop.set()
busy.join()
"""
    assert elsewhere(SETUP + code, OXIDIZE_NUM_THREADS="2").split() == ["0"] * 10
