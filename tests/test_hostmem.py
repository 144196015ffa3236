"""Memory of the host: of the machine, or of the container if that is less."""

from __future__ import annotations

from pathlib import Path

import pytest

from oxidize_host import MemoryInfo, host_memory_info

GIB = 2**30
MEMINFO = (
    "MemTotal:       16777216 kB\nMemFree:         1000000 kB\nMemAvailable:    8388608 kB\nHugePages_Total:       0\nBroken:\n"
)
V2 = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current")
V1 = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes")


@pytest.fixture
def files(monkeypatch):
    """The files of /proc and /sys, by path; others do not exist."""
    there = {"/proc/meminfo": MEMINFO}

    def read_text(self):
        try:
            return there[str(self)]
        except KeyError:
            raise FileNotFoundError(str(self)) from None

    monkeypatch.setattr(Path, "read_text", read_text)
    return there


def test_a_plain_machine(files):
    assert host_memory_info() == MemoryInfo(16 * GIB, 8 * GIB, "/proc/meminfo")


@pytest.mark.parametrize("names", [V2, V1], ids=["cgroup v2", "cgroup v1"])
def test_a_container_with_a_limit(files, names):
    files |= dict(zip(names, [f"{4 * GIB}\n", f"{1 * GIB}\n"], strict=True))
    assert host_memory_info() == MemoryInfo(4 * GIB, 3 * GIB, names[0])


def test_a_container_over_its_limit_has_nothing_free(files):
    files |= dict(zip(V2, [f"{GIB}\n", f"{GIB + 5}\n"], strict=True))
    assert host_memory_info().free == 0


def test_a_container_cannot_have_more_than_the_machine_has_free(files):
    files |= dict(zip(V2, [f"{12 * GIB}\n", f"{GIB}\n"], strict=True))
    assert host_memory_info() == MemoryInfo(12 * GIB, 8 * GIB, V2[0])


@pytest.mark.parametrize("limit", ["max\n", f"{2**63 - 4096}\n", "", "junk"])
def test_a_container_without_a_limit(files, limit):
    files |= dict(zip(V2, [limit, f"{GIB}\n"], strict=True))
    assert host_memory_info() == MemoryInfo(16 * GIB, 8 * GIB, "/proc/meminfo")


def test_a_system_without_proc(files, monkeypatch):
    del files["/proc/meminfo"]
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert host_memory_info() == MemoryInfo(4096000, None, "sysconf")
    monkeypatch.delattr("os.sysconf")
    assert host_memory_info() == MemoryInfo()


def test_this_machine_has_memory():
    info = host_memory_info()
    assert info.total is None or info.total > 2**26
