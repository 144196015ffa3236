"""Calls of native kernels with numpy arrays, for the tests here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np

from oxidize_cpu import kernels
from oxidize_cpu.kernels.layout import FORMATS
from oxidize_host import quant

QUANTIZED = [name for name, form in FORMATS.items() if form.order]
PLAIN = [name for name, form in FORMATS.items() if not form.order]


def weights(fmt, m, k, seed=0):
    """Random rows as raw bytes: every bit pattern of the packed integers, and scales of ordinary size."""
    rng = np.random.default_rng(seed)
    layout = quant.FORMATS[fmt]
    if not layout.quantized:
        values = rng.standard_normal((m, k)).astype(np.float32)
        narrow = {"f32": lambda: values, "f16": lambda: values.astype(np.float16)}
        raw = narrow[fmt]() if fmt in narrow else (values.view(np.uint32) >> 16).astype(np.uint16)
        return np.ascontiguousarray(raw).view(np.uint8).reshape(m, -1)
    blocks = rng.integers(0, 256, (m * k // layout.block, layout.nbytes), dtype=np.uint8)
    for at in layout.scales:
        blocks[:, at : at + 2] = (rng.standard_normal((len(blocks), 1)) / 16).astype(np.float16).view(np.uint8)
    return blocks.reshape(m, -1)


def oracle(fmt, raw):
    """The weights as gguf decodes them."""
    kind = getattr(gguf.GGMLQuantizationType, fmt.upper())
    if fmt == "f32":
        return raw.view(np.float32)
    if fmt == "f16":
        return raw.view(np.float16).astype(np.float32)
    return gguf.quants.dequantize(raw, kind).astype(np.float32)


def address(array):
    return array.__array_interface__["data"][0]


def product(name, fmt, raw, x, pool=None):
    m, (n, k) = len(raw), x.shape
    out = np.full((n, m), 7e30, np.float32)
    sizes = [np.uint32(m), np.uint32(k)] + [np.uint32(n)] * (name == "gemm")
    kernels.find(name, {"weight": fmt}).bind([address(out), address(raw), address(x), *sizes], pool)()
    return out


def get_rows(fmt, raw, ids, d):
    ids = np.asarray(ids, np.int32)
    out = np.zeros((len(ids), d), np.float32)
    sizes = [np.uint32(size) for size in (len(ids), d, len(raw))]
    kernels.find("get_rows", {"weight": fmt})([address(out), address(raw), address(ids), *sizes])
    return out


def elsewhere(code, **variables):
    """What ``code`` prints in a process of its own, which must succeed."""
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, **variables}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def close_to_ties():
    """Weights and activations; in the first columns, sums that are next to the middle between two floats.

    The sum in double precision is that middle, and rounding it to a float goes the wrong way.
    """
    w = weights("f32", 9, 768).view(np.float32).copy()
    x = np.random.default_rng(5).standard_normal((1, 768)).astype(np.float32)
    x[0, :48] = 0
    step = np.float32(2**-23)
    x[0, 0], x[0, 16] = 1, (1 - step) / 4096
    w[0, 0], w[0, 16] = 1 + step, (1 + step) / 4096
    w[1, 0], w[1, 16] = -1 - step, (-1 - step) / 4096
    w[:2, 17:] = 0
    return w, x
