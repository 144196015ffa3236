"""What is special to the CPU backend."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import oxidize_host as ox
from oxidize_cpu import CpuBuildInfo, cpu_build_info


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)


def test_build_info_imports_neither_numba_nor_llvm():
    code = (
        "import sys; from oxidize_cpu import cpu_build_info as f; print(f().usable, {'numba', 'llvmlite'} & set(sys.modules))"
    )
    assert python(code).stdout.strip() == "True set()"


def test_build_info_names_versions_and_threads():
    info = cpu_build_info()
    assert isinstance(info, CpuBuildInfo)
    assert info.backend == "cpu"
    assert info.numba
    assert info.llvmlite
    assert info.threads >= 1


def test_a_bad_thread_count_is_refused_by_name():
    done = python("import oxidize_host as ox; ox.Device('cpu')", OXIDIZE_NUM_THREADS="many")
    assert done.returncode == 1
    assert "OXIDIZE_NUM_THREADS" in done.stderr
    assert "many" in done.stderr


def test_a_typing_error_in_source_is_a_compile_error_with_numbas_words():
    device = ox.Device("cpu")
    kernel = device.compile("def k(grid, block, out):\n    out[0] = 'text' + 1\n").kernel("k")
    with pytest.raises(ox.CompileError) as caught:
        ox.launch(device.default_stream, ox.LaunchConfig(1), kernel, device.empty(1, np.uint8))
    assert "No implementation" in caught.value.log


def test_source_may_use_private_helpers():
    device = ox.Device("cpu")
    source = "def _twice(v):\n    return 2 * v\n\n\ndef k(grid, block, out):\n    out.view(np.float32)[0] = _twice(grid[0])\n"
    module = device.compile(source)
    assert module.names == ["k"]
    out = device.empty(1, np.float32)
    ox.launch(device.default_stream, ox.LaunchConfig(21), module.kernel("k"), out)
    assert out.to_host()[0] == 42


def test_bounds_are_checked_in_debug_mode():
    code = (
        "import numpy as np, oxidize_host as ox; d = ox.Device('cpu'); out = d.empty(1, np.uint8);"
        "k = d.compile('def k(grid, block, out):\\n    out[grid[0]] = 1\\n').kernel('k');"
        "ox.launch(d.default_stream, ox.LaunchConfig(5), k, out)"
    )
    done = python(code, OXIDIZE_DEBUG="1")
    assert "LaunchError" in done.stderr
    assert "out of bounds" in done.stderr


def test_memory_is_aligned_to_a_cache_line_and_wrapped_memory_is_not_copied():
    device = ox.Device("cpu")
    assert device.empty(100, np.float32).host_view().ctypes.data % 64 == 0
    array = np.zeros(8, np.float32)
    wrapped = device.wrap(array)
    array[3] = 7
    assert wrapped.to_host()[3] == 7
