"""The trace writer: valid JSON with every alloc, copy, launch and wait; nothing when it is absent."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import oxidize_host as ox
from oxidize_host import ops, registry
from oxidize_host.trace import TraceWriter


def work(device):
    x = device.to_device(np.ones(100, np.float32))
    y = device.empty(100, np.float32)
    ops.add(y, x, x)
    y.copy_from(x)
    ops.mul.bind(y, y, x)(device.default_stream)
    device.compile("def nothing(grid, block):\n    pass\n")
    y.to_host()
    x.close()


def test_every_hook_call_is_an_event_in_order(deferred, tmp_path):
    path = tmp_path / "trace.json"
    with TraceWriter(path):
        work(deferred)
    document = json.loads(path.read_text())
    names = [event["name"] for event in document["traceEvents"]]
    assert names[:5] == ["alloc", "copy host to device", "synchronize", "alloc", "add"]
    for name, count in {"alloc": 2, "copy host to device": 1, "copy device to device": 1, "copy device to host": 1, "add": 1, "mul": 1, "compile": 1}.items():  # fmt: skip
        assert names.count(name) == count, name
    assert names.count("free") >= 1
    by_name = {event["name"]: event for event in document["traceEvents"]}
    assert by_name["copy host to device"]["args"] == {"nbytes": 400}
    assert by_name["add"]["args"] == {"grid": [100, 1, 1], "block": [1, 1, 1]}
    assert {event["cat"] for event in document["traceEvents"]} == {"memory", "copy", "kernel", "wait"}


def test_events_have_what_the_viewers_need(deferred, tmp_path):
    """The trace event format: complete events with a start, a duration, a process and a thread."""
    path = tmp_path / "trace.json"
    with TraceWriter(path):
        work(deferred)
    previous = 0.0
    for event in json.loads(path.read_text())["traceEvents"]:
        assert event["ph"] == "X"
        assert event["dur"] >= 0
        assert event["ts"] >= previous
        previous = event["ts"]
        assert event["pid"] == os.getpid()
        assert isinstance(event["tid"], int)


def test_work_that_fails_is_in_the_file_too_and_the_error_is_the_same(faulty, tmp_path):
    _, device = faulty("raise:launch")
    x = device.to_device(np.ones(4, np.float32))
    path = tmp_path / "trace.json"
    with pytest.raises(ox.LaunchError, match="injected"), TraceWriter(path):
        ops.add(x, x, x)
    assert [event["name"] for event in json.loads(path.read_text())["traceEvents"]] == ["add"]
    assert registry._observers == []


def test_a_file_that_cannot_be_written_is_an_error_before_the_work(tmp_path):
    with pytest.raises(OSError, match="no_such_folder"), TraceWriter(tmp_path / "no_such_folder" / "trace.json"):
        pytest.fail("the work began")
    assert registry._observers == []


def test_results_are_the_same_and_afterwards_nothing_is_wrapped(deferred, tmp_path):
    backend = deferred._core.backend
    direct = backend.launch
    assert direct == backend.plugin.launch, "without observers a launch is the backend's own method"
    x = deferred.to_device(np.arange(4, dtype=np.float32))
    with TraceWriter(tmp_path / "a.json") as first:
        ops.add(x, x, x)
        with TraceWriter(tmp_path / "b.json") as second:
            ops.add(x, x, x)
    ops.add(x, x, x)
    assert x.to_host().tolist() == [0, 8, 16, 24]
    assert backend.launch == direct
    assert [len([e for e in writer.events if e["name"] == "add"]) for writer in (first, second)] == [2, 1]
