"""The cache of compiled artefacts: damaged, foreign, shared, full; never a reason to fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oxidize_host import ArtifactCache, cache_root

KEY = {"source": "abc", "device": "gfx1151", "driver": "1.2"}


@pytest.fixture
def cache(tmp_path):
    return ArtifactCache("test", root=tmp_path)


def test_what_was_put_is_got(cache):
    assert cache.get(KEY) is None
    cache.put(KEY, b"machine code\n\x00")
    assert cache.get(KEY) == b"machine code\n\x00"
    assert cache.get(dict(reversed(KEY.items()))) == b"machine code\n\x00", "the order of a key's fields does not matter"
    assert cache.problems == []
    assert [path.suffix for path in cache.folder.iterdir()] == [".bin"]


def test_every_field_of_the_key_counts(cache):
    cache.put(KEY, b"x")
    for field in KEY:
        assert cache.get({**KEY, field: "other"}) is None
        assert cache.get({k: v for k, v in KEY.items() if k != field}) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(payload=st.binary(max_size=200), data=st.data())
def test_a_damaged_entry_is_a_miss_put_aside_and_rebuilt(cache, payload, data):
    cache.put(KEY, payload)
    path = cache.path(KEY)
    raw = path.read_bytes()
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans(), label="truncate"):
        path.write_bytes(raw[:at])
    else:
        path.write_bytes(raw[:at] + bytes([raw[at] ^ data.draw(st.integers(1, 255))]) + raw[at + 1 :])
    assert cache.get(KEY) is None
    assert not path.exists()
    assert path.with_suffix(".damaged").exists()
    assert "damaged" in cache.problems[-1]
    cache.put(KEY, payload)
    assert cache.get(KEY) == payload


def test_a_foreign_file_under_the_right_name_is_refused(cache):
    """Copied from another machine: its own checksum is right, its key is not."""
    other = {**KEY, "driver": "9.9"}
    cache.put(other, b"for another driver")
    cache.path(other).rename(cache.path(KEY))
    assert cache.get(KEY) is None


WRITER = """
import sys
from pathlib import Path
from oxidize_host import ArtifactCache
cache = ArtifactCache("test", root=Path(sys.argv[1]))
key = {"source": "same"}
print("ready", flush=True)
sys.stdin.readline()
for i in range(300):
    cache.put(key, (sys.argv[2] * 5000).encode())
    got = cache.get(key)
    assert got is not None and len(got) == 5000 and len(set(got)) == 1, got
assert cache.problems == [], cache.problems
"""


def test_two_processes_that_write_at_once_both_succeed(tmp_path):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), letter], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for letter in "ab"
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    assert not list(tmp_path.rglob("*.tmp"))
    assert not list(tmp_path.rglob("*.damaged"))


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    cache = ArtifactCache("test", root=blocker)
    cache.put(KEY, b"x")
    assert cache.get(KEY) is None
    assert "cannot write" in cache.problems[0]


def test_a_failed_write_leaves_no_temporary_file(cache, monkeypatch):
    def refuse(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    cache.put(KEY, b"x")
    assert list(cache.folder.iterdir()) == []
    assert "No space left" in cache.problems[0]


def test_the_root_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("OXIDIZE_CACHE_DIR", str(tmp_path / "mine"))
    assert cache_root() == tmp_path / "mine"
    assert ArtifactCache("cpu").folder == tmp_path / "mine" / "cpu"
    monkeypatch.delenv("OXIDIZE_CACHE_DIR")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "oxidize"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "oxidize"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_root() == tmp_path / "Library" / "Caches" / "oxidize"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_root() == tmp_path / "local" / "oxidize"
