"""Compiling kernel entries, and loading them from the disk."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from oxidize_cpu import driver
from oxidize_cpu.kernels import isa
from oxidize_host import ArtifactCache

# A sum on one thread: the smallest entries there are.
SUM = """
import sys
import numpy as np
from oxidize_cpu import driver, kernels
x, out = np.ones(1000, np.float32), np.zeros(1, np.float32)
kernels.find("read", {})([out.ctypes.data, x.ctypes.data, np.uint32(1000)])
jit = driver.default()
print(out[0], len(jit.compiled), len(jit.loaded), "numba" in sys.modules, len(jit.cache.problems))
"""
ENTRY = "read.total"


def sum_in_a_process(cache, **variables):
    env = {**os.environ, "OXIDIZE_CACHE_DIR": str(cache), "OXIDIZE_NUM_THREADS": "1", **variables}
    done = subprocess.run([sys.executable, "-c", SUM], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_second_process_compiles_nothing_and_does_not_import_numba(tmp_path):
    assert sum_in_a_process(tmp_path) == ["1000.0", "3", "0", "True", "0"]
    assert sum_in_a_process(tmp_path) == ["1000.0", "0", "3", "False", "0"]


def test_numbas_debugging_switch_does_not_break_kernels(tmp_path):
    assert sum_in_a_process(tmp_path, NUMBA_DISABLE_JIT="1")[:2] == ["1000.0", "3"]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    file = tmp_path / "file"
    file.write_text("not a folder")
    assert sum_in_a_process(file)[:2] == ["1000.0", "3"]


@pytest.fixture
def cache(tmp_path):
    return ArtifactCache("cpu", root=tmp_path)


def test_an_entry_is_compiled_once_and_then_loaded(cache):
    first, second = driver.Jit(cache=cache), driver.Jit(cache=cache)
    assert first.address(ENTRY) == first.address(ENTRY)
    assert (first.compiled, first.loaded) == ([ENTRY], [])
    assert second.address(ENTRY)
    assert (second.compiled, second.loaded) == ([], [ENTRY])


@pytest.mark.parametrize("damage", ["bytes", "truncated", "object"])
def test_a_damaged_entry_is_compiled_again(cache, damage):
    jit = driver.Jit(cache=cache)
    jit.address(ENTRY)
    path = cache.path(jit.key(ENTRY))
    good = path.read_bytes()
    if damage == "object":  # stored as it should be, but not machine code
        cache.put(jit.key(ENTRY), b"garbage")
    else:
        path.write_bytes(good[:-100] + (b"" if damage == "truncated" else bytes(100)))
    again = driver.Jit(cache=cache)
    assert again.address(ENTRY)
    assert again.compiled == [ENTRY]
    assert len(cache.problems) == 1
    assert path.read_bytes() == good


def test_the_key_tells_apart_entries_instruction_sets_and_processors(cache, monkeypatch):
    def keys():
        return {str(driver.Jit(name, cache=cache).key(entry)) for name in ("generic", "portable") for entry in ("a.b", "a.c")}

    before = keys()
    assert len(before) == 4
    monkeypatch.setattr(driver.llvm, "get_host_cpu_name", lambda: "another")
    assert len(keys() & before) == 2  # portable code serves any


def test_the_key_changes_with_the_sources(cache, monkeypatch, tmp_path):
    before = driver.Jit(cache=cache).key(ENTRY)
    source = tmp_path / "kernel.py"
    source.write_text("changed")
    driver._versions.cache_clear()
    monkeypatch.setattr(driver, "_sources", lambda: [source])
    assert driver.Jit(cache=cache).key(ENTRY) != before
    driver._versions.cache_clear()


@pytest.mark.parametrize("entry", ["nothing.here", "read.nothing"])
def test_an_unknown_entry_is_named(cache, entry):
    with pytest.raises(LookupError, match=entry):
        driver.Jit(cache=cache).address(entry)


def test_an_instruction_set_that_the_processor_lacks_is_refused():
    with pytest.raises(ValueError, match=r"OXIDIZE_CPU_ISA='vnni512': this CPU can do avx2, generic, portable"):
        isa.choose({"avx2": True}, "vnni512")
    assert isa.choose({}, "") == "generic"
    assert isa.choose({"avx512vnni": True, "avx512bw": True, "avx512vl": True, "avx2": True}, "") == "vnni512"
