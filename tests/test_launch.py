"""Launching: geometry and arguments are checked once, before any backend is called."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import oxidize_host as ox
from oxidize_host.testing import FaultyBackend

F32 = np.float32
SOURCE = "def fill(grid, block, out, value):\n    out.view(np.float32)[:] = value\n\n\ndef _helper():\n    pass\n"


@pytest.fixture
def backend():
    return FaultyBackend()


@pytest.fixture
def device(register, backend):
    return ox.Device(register(backend), smoke_test=False)


@pytest.fixture
def kernel(device):
    return device.compile(SOURCE).kernel("fill")


def launch_and_bind(device, kernel, *args):
    """The two ways to launch, which must refuse the same."""
    return (
        lambda: ox.launch(device.default_stream, ox.LaunchConfig(1), kernel, *args),
        lambda: ox.BoundLaunch(ox.LaunchConfig(1), kernel, args),
    )


@pytest.mark.parametrize(
    ("value", "dims"),
    [(3, (3, 1, 1)), ((4,), (4, 1, 1)), ([2, 3], (2, 3, 1)), ((1, 2, 3), (1, 2, 3)), (np.int64(7), (7, 1, 1)), (0, (0, 1, 1))],
    ids=str,
)
def test_geometry_becomes_three_plain_integers(value, dims):
    config = ox.LaunchConfig(value)
    assert config.grid == dims
    assert config.block == (1, 1, 1)
    assert all(type(dim) is int for dim in config.grid)
    assert config.empty == (0 in dims)


@pytest.mark.parametrize("value", [-1, (), (1, 2, 3, 4), 1.5, (2.0,), True, "12", None, (1, None)], ids=str)
@pytest.mark.parametrize("label", ["grid", "block"])
def test_geometry_that_is_none_is_refused_by_name(label, value):
    with pytest.raises(ox.ShapeError, match=f"{label} must be one to three integers"):
        ox.LaunchConfig(**{"grid": 1, "block": 1, label: value})


def test_a_block_of_nothing_is_refused():
    with pytest.raises(ox.ShapeError, match="block must be one to three integers of at least 1"):
        ox.LaunchConfig(1, 0)


@pytest.mark.parametrize(
    ("value", "hint"),
    [(5, r"np\.uint32\(5\)"), (-5, r"np\.int32\(-5\)"), (0.5, r"np\.float32\(0\.5\)"), (True, "np."), (np.zeros(2), "to_device"), ("x", "str"), (None, "NoneType")],
    ids=str,
)  # fmt: skip
def test_what_is_no_argument_is_refused_with_a_hint(device, kernel, backend, value, hint):
    backend.calls.clear()
    for use in launch_and_bind(device, kernel, device.empty(2, F32), value):
        with pytest.raises(TypeError, match=rf"fill\(\) argument 1 .*{hint}"):
            use()
    assert "launch" not in backend.calls


def test_buffers_of_another_device_are_refused_before_the_backend_is_called(device, kernel, backend, numpy_device):
    foreign = numpy_device.empty(2, F32)
    for use in launch_and_bind(device, kernel, foreign, F32(1)):
        with pytest.raises(ox.ShapeError, match=rf"argument 0 is on numpy:0, the kernel on {device.id}"):
            use()
    assert "launch" not in backend.calls


def test_streams_and_kernels_of_different_devices_are_refused(device, kernel, numpy_device):
    with pytest.raises(ox.ShapeError, match="fill"):
        ox.launch(numpy_device.default_stream, ox.LaunchConfig(1), kernel, numpy_device.empty(2, F32), F32(1))
    bound = ox.BoundLaunch(ox.LaunchConfig(1), kernel, [device.empty(2, F32), F32(1)])
    with pytest.raises(ox.ShapeError, match="numpy:0"):
        bound(numpy_device.default_stream)


def test_closed_buffers_streams_and_devices_are_refused(device, kernel, backend):
    closed, stream, good = device.empty(2, F32), device.create_stream(), device.empty(2, F32)
    closed.close()
    stream.close()
    for use in launch_and_bind(device, kernel, closed, F32(1)):
        with pytest.raises(ox.ClosedError, match=r"argument 0: the buffer \(2,\) float32 is closed"):
            use()
    bound = ox.BoundLaunch(ox.LaunchConfig(1), kernel, [good, F32(1)])
    for use in (lambda: ox.launch(stream, ox.LaunchConfig(1), kernel, good, F32(1)), lambda: bound(stream)):
        with pytest.raises(ox.ClosedError):
            use()
    default = device.default_stream
    device.close()
    for use in (lambda: ox.launch(default, ox.LaunchConfig(1), kernel, good, F32(1)), lambda: bound(default)):
        with pytest.raises(ox.ClosedError):
            use()
    with pytest.raises(ox.ClosedError):
        ox.BoundLaunch(ox.LaunchConfig(1), kernel, [])
    assert "launch" not in backend.calls


def test_an_empty_grid_is_checked_and_not_launched(device, kernel, backend):
    out = device.empty(2, F32)
    empty = ox.LaunchConfig((3, 0))
    ox.launch(device.default_stream, empty, kernel, out, F32(1))
    ox.BoundLaunch(empty, kernel, [out, F32(1)])(device.default_stream)
    with pytest.raises(TypeError):
        ox.launch(device.default_stream, empty, kernel, out, 1)
    assert "launch" not in backend.calls


def test_slices_without_an_argument_hook_are_unsupported_and_say_why(register):
    from oxidize_host.testing import MinimalBackend

    device = ox.Device(register(MinimalBackend))
    kernel = device.compile(SOURCE).kernel("fill")
    part = device.empty(4, F32)[1:]
    for use in launch_and_bind(device, kernel, part, F32(1)):
        with pytest.raises(ox.UnsupportedOp, match=r"slice at offset 4.*copy it into a buffer of its own"):
            use()


def test_a_vendor_error_in_a_launch_is_chained_and_names_the_kernel(faulty):
    backend, device = faulty("raise:launch")
    kernel = device.compile(SOURCE).kernel("fill")
    out = device.empty(2, F32)
    bound = ox.BoundLaunch(ox.LaunchConfig(1), kernel, [out, F32(1)])
    for use in (
        lambda: ox.launch(device.default_stream, ox.LaunchConfig(1), kernel, out, F32(1)),
        lambda: bound(device.default_stream),
    ):
        with pytest.raises(ox.LaunchError, match=rf"{device.id}: launch of 'fill' failed: RuntimeError") as caught:
            use()
        assert type(caught.value.__cause__) is RuntimeError
    backend.faults["launch"] = "oom"
    with pytest.raises(ox.LaunchError, match="MemoryError"):
        bound(device.default_stream)


def test_an_oxidize_error_of_the_backend_passes_unchanged(register):
    class Lost(FaultyBackend):
        @ox.hookimpl
        def launch(self, device, kernel, grid, block, args, stream):
            raise ox.DeviceLost("the card fell off the bus")

    device = ox.Device(register(Lost), smoke_test=False)
    kernel = device.compile(SOURCE).kernel("fill")
    with pytest.raises(ox.DeviceLost, match="fell off the bus"):
        ox.launch(device.default_stream, ox.LaunchConfig(1), kernel)


def test_a_bound_launch_repeats_without_checks(device, kernel, backend):
    out = device.empty(2, F32)
    bound = ox.BoundLaunch(ox.LaunchConfig(4, 2), kernel, [out, F32(3)])
    assert "fill" in repr(bound)
    out.close()
    for _ in range(3):
        bound(device.default_stream)
    assert backend.calls.count("launch") == 3
    device.synchronize()
    assert device.live_allocations == 1
    del bound
    gc.collect()
    assert device.live_allocations == 0


def test_a_module_lists_its_kernels_and_names_them_when_one_is_missing(device):
    module = device.compile(SOURCE)
    assert module.names == ["fill"]
    assert "fill" in repr(module)
    with pytest.raises(LookupError, match="no kernel 'fil' in this module; it has fill"):
        module.kernel("fil")


def test_compile_that_returns_no_mapping_is_a_broken_contract(faulty):
    for kind in ("none", "nonsense"):
        _, device = faulty(f"{kind}:compile")
        with pytest.raises(ox.InvalidBackend, match="compile must return a mapping"):
            device.compile(SOURCE)


def test_kernels_know_their_name_origin_and_device(device, kernel):
    assert (kernel.name, kernel.origin, kernel.device) == ("fill", "source", device)
    assert ox.kernel_name(kernel._handle) == "fill"
    assert ox.kernel_name(object()) == "?"
    assert device.kernel("add").origin == "native"


def test_the_name_of_a_kernel_is_forgotten_with_its_last_object(device):
    first = device.compile(SOURCE)
    a, b = first.kernel("fill"), first.kernel("fill")
    handle = a._handle
    del a
    gc.collect()
    assert ox.kernel_name(handle) == "fill"
    del b
    gc.collect()
    assert ox.kernel_name(handle) == "?"


def test_standard_kernels_are_found_once(device, backend):
    backend.calls.clear()
    assert device.kernel("gemv", weight="q4_0") is device.kernel("gemv", weight="q4_0")
    assert device.kernel("gemv", weight="q8_0") is not device.kernel("gemv", weight="q4_0")
    assert backend.calls.count("find_kernel") == 2
    assert device.kernels_used == {"gemv:q4_0": "native", "gemv:q8_0": "native"}


def test_a_kernel_that_no_backend_has_names_another_device(device):
    with pytest.raises(ox.UnsupportedOp, match=r"no kernel for 'gemv', weight='iq1_s'; use another device"):
        device.kernel("gemv", weight="iq1_s")


@pytest.mark.parametrize("wrong", ["stream", "config", "kernel"])
def test_a_launch_of_something_else_says_what_it_takes(numpy_device, wrong):
    kernel = numpy_device.compile("def k(grid, block):\n    pass\n").kernel("k")
    given = {"stream": numpy_device.default_stream, "config": ox.LaunchConfig(1), "kernel": kernel, wrong: "text"}
    with pytest.raises(TypeError, match=r"launch takes a Stream, a LaunchConfig and a Kernel.*str"):
        ox.launch(*given.values())
