"""The built-in backend ``numpy`` takes the conformance kit as any other does, and what is special to it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import oxidize_host as ox
from oxidize_host import quant
from oxidize_host.reference.backend import NumpyBackend
from oxidize_host.testing import BackendTests


class TestNumpy(BackendTests):
    spec = "numpy"


def test_it_is_installed_through_the_same_entry_point_as_third_parties():
    entry = ox.registry.entries()["numpy"]
    assert (entry.distribution, entry.value) == ("oxidize-host", "oxidize_host.reference.backend:NumpyBackend")


def test_a_kernel_may_use_numpy_and_private_helpers():
    device = ox.Device("numpy")
    source = "def _twice(x):\n    return 2 * x\n\n\ndef k(grid, block, out):\n    out.view(np.int32)[0] = _twice(grid[0])\n"
    module = device.compile(source.encode())
    assert module.names == ["k"]
    out = device.empty(1, np.int32)
    ox.launch(device.default_stream, ox.LaunchConfig(21), module.kernel("k"), out)
    assert out.to_host()[0] == 42


@pytest.mark.parametrize("source", ["def k(:", "import no_such_module", "1 / 0", b"\xff\xfe"])
def test_source_that_fails_when_executed_is_a_compile_error_with_the_traceback(source):
    with pytest.raises(ox.CompileError, match="not a Python kernel") as caught:
        ox.Device("numpy").compile(source)
    assert type(caught.value.__cause__).__name__ in caught.value.log


def test_more_than_is_free_is_refused_before_linux_kills_the_process(monkeypatch):
    monkeypatch.setattr("oxidize_host.reference.backend.host_memory_info", lambda: ox.MemoryInfo(1000, 100, "made up"))
    backend = NumpyBackend()
    with pytest.raises(MemoryError, match="101 bytes asked, 100 available"):
        backend.alloc(101)
    assert backend.alloc(100).nbytes == 100


def test_a_launch_is_bound_to_the_function_itself():
    backend = ox.registry.load("numpy")
    assert backend.launch == backend.plugin.launch


def test_large_matrices_are_decoded_in_parts():
    from oxidize_host.reference import kernels

    rows = 2 * kernels._ROWS_AT_ONCE + 5
    weights = np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)
    x, out = np.arange(4, dtype=np.float32), np.zeros(rows, np.float32)
    kernel = kernels.find("gemv", {"weight": "f32"})
    kernel(None, None, out.view(np.uint8), weights.view(np.uint8).reshape(-1), x.view(np.uint8), np.uint32(rows), np.uint32(4))
    assert np.allclose(out, weights @ x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("params", [{}, {"weight": "q9_9"}, {"weight": "f32", "cache": "f16"}, {"cache": "f16"}])
def test_it_does_not_guess_at_parameters(params):
    from oxidize_host.reference.kernels import find

    assert find("gemv", params) is None


def test_every_format_has_a_kernel():
    from oxidize_host.reference.kernels import find

    assert all(find(name, {"weight": fmt}) for name in ("gemv", "gemm", "get_rows") for fmt in quant.FORMATS)


def test_the_command_line_need_not_import_the_kit():
    code = (
        "import oxidize_host as ox, sys; ox.Device('numpy'); print(sorted({'pytest', 'hypothesis', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
