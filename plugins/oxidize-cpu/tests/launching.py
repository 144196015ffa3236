"""Launching standard kernels into guarded memory, whole or in parts; shared by the tests of those kernels."""

from __future__ import annotations

import ctypes
import functools
import itertools

import numpy as np
import pytest
from hypothesis import settings

from oxidize_cpu import driver
from oxidize_cpu.kernels import standard
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


def frequencies(half):
    return (10000.0 ** -(np.arange(half) / max(half, 1))).astype(np.float32)
