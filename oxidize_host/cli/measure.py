"""The measurements of `oxidize bench`. A ratio is always to a reference that was measured in turn with it, in the same run."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from oxidize_host import ops, quant
from oxidize_host.errors import OutOfMemory, UnsupportedOp
from oxidize_host.kernel import BoundLaunch, LaunchConfig, launch
from oxidize_host.testing import oracle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from oxidize_host.device import Device
    from oxidize_host.ops.weight import Weight

__all__ = ["gemv", "launches"]

_READ_BYTES = 256 * 2**20
_READS = 4
_TOLERANCE = 0.02  # of the largest result: 8-bit activations err by up to 1 %


def gemv(
    device: Device, formats: Sequence[str], rows: int, columns: int, megabytes: int, rounds: int
) -> Iterator[dict[str, Any]]:
    """Yield a record for each format.

    Keys: ``format``, ``ms`` (median over all launches), ``gb_per_s`` (bytes of weights), ``read_gb_per_s`` and ``ratio`` (median
    over rounds of the two in turn; None if the device has no read test), ``copies`` (distinct weights), ``error`` (largest,
    relative to the largest result of float64), ``wrong``, ``unsupported`` (why, or None).
    """
    read = _read_test(device)
    for name in formats:
        try:
            yield _gemv(device, name, rows, columns, megabytes, rounds, read)
        except UnsupportedOp as error:
            yield {"format": name, "unsupported": str(error), "wrong": False}


def _gemv(
    device: Device,
    name: str,
    rows: int,
    columns: int,
    megabytes: int,
    rounds: int,
    read: Callable[[], float] | None,
) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    raw = oracle.random_weight(rng, name, rows, columns)
    x = rng.standard_normal(columns, dtype=np.float32)
    out, vector = device.empty(rows, np.float32), device.to_device(x)
    weights: list[Weight] = []
    for _ in range(max(1, megabytes * 2**20 // raw.nbytes)):
        try:
            weights.append(ops.Weight.upload(device, raw, name, (rows, columns)))
        except OutOfMemory:
            if not weights:
                raise
            break  # `copies` says how many there were
    bound = [ops.gemv.bind(out, weight, vector) for weight in weights]
    stream = device.default_stream
    bound[0](stream)
    stream.synchronize()
    some = slice(0, min(rows, 64))
    expected = quant.decode(raw[some], name).astype(np.float64) @ x
    error = float(np.max(np.abs(out.to_host()[some] - expected)) / np.max(np.abs(expected)))
    times: list[float] = []
    limits: list[float] = []
    ratios: list[float] = []
    for _ in range(rounds):
        limit = read() if read else None
        taken = []
        for call in bound:
            start = time.perf_counter()
            call(stream)
            stream.synchronize()
            taken.append(time.perf_counter() - start)
        times += taken
        if limit is not None:
            limits.append(limit)
            ratios.append(raw.nbytes / statistics.median(taken) / limit)
    seconds = statistics.median(times)
    return {
        "format": name,
        "ms": seconds * 1e3,
        "gb_per_s": raw.nbytes / seconds / 1e9,
        "read_gb_per_s": statistics.median(limits) / 1e9 if limits else None,
        "ratio": statistics.median(ratios) if ratios else None,
        "copies": len(weights),
        "error": error,
        "wrong": not error < _TOLERANCE,
        "unsupported": None,
    }


def _read_test(device: Device) -> Callable[[], float] | None:
    """Return a function that measures the bytes per second that the device reads, if it has a kernel for that."""
    try:
        kernel = device.kernel("read")
    except UnsupportedOp:
        return None
    part = _READ_BYTES // _READS
    memory = device.empty(_READ_BYTES // 4, np.float32)
    memory.copy_from(np.zeros(_READ_BYTES // 4, np.float32))
    out, count = device.empty(1, np.float32), np.uint32(part // 4)
    parts = [memory.view(part // 4, offset=index * part) for index in range(_READS)]
    bound = [BoundLaunch(LaunchConfig(part // 4), kernel, (out, piece, count)) for piece in parts]
    stream = device.default_stream

    def measure() -> float:
        taken = []
        for call in bound * 2:
            start = time.perf_counter()
            call(stream)
            stream.synchronize()
            taken.append(time.perf_counter() - start)
        return part / statistics.median(taken)

    return measure


def launches(device: Device) -> dict[str, Any]:
    """Return what a launch costs in nanoseconds, and what of it the host adds to the backend's own hook.

    The kernel takes three buffers and a scalar and does nothing, or is ``add`` where the host cannot write one.

    Keys: ``hook_ns`` (the hook called with prepared arguments), ``launch_ns``, ``launch_added_ns``, ``bind_hook_ns`` (None if the
    backend has no `bind`), ``bound_ns``, ``bound_added_ns``.
    """
    a, b, out = (device.to_device(np.ones(8, np.float32)) for _ in range(3))
    config = LaunchConfig(8)
    scalars: tuple[np.uint32, ...] = (np.uint32(8),)
    if device.info.dialect == "python":
        kernel = device.compile("def nothing(grid, block, out, a, b, n):\n    pass\n").kernel("nothing")
    else:
        kernel, scalars = device.kernel("add"), (np.uint32(8), np.uint32(8))
    core, stream = device._core, device.default_stream
    handles = [*(buffer._argument for buffer in (out, a, b)), *scalars]
    bound = BoundLaunch(config, kernel, (out, a, b, *scalars))
    backend, state = core.backend, core.state
    hook: Callable[[], Any] = lambda: backend.launch(  # noqa: E731
        state, kernel._handle, config.grid, config.block, handles, stream._handle
    )
    calls: dict[str, Callable[[], Any]] = {
        "hook_ns": hook,
        "launch_ns": lambda: launch(stream, config, kernel, out, a, b, *scalars),
        "bound_ns": lambda: bound(stream),
    }
    raw = backend.bind(state, kernel._handle, config.grid, config.block, handles) if backend.bind is not None else None
    if raw is not None:
        calls["bind_hook_ns"] = lambda: raw(stream._handle)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(15):
        for name, call in calls.items():
            samples[name].append(_nanoseconds(call))
            stream.synchronize()
    result: dict[str, Any] = {name: statistics.median(values) for name, values in samples.items()}
    result.setdefault("bind_hook_ns", None)
    result["launch_added_ns"] = result["launch_ns"] - result["hook_ns"]
    result["bound_added_ns"] = result["bound_ns"] - (result["bind_hook_ns"] or result["hook_ns"])
    return result


def _nanoseconds(call: Callable[[], Any], repeat: int = 2000) -> float:
    start = time.perf_counter_ns()
    for _ in range(repeat):
        call()
    return (time.perf_counter_ns() - start) / repeat
