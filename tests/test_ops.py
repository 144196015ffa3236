"""Operations: operands are checked once, for all backends, and an error names the operand."""

from __future__ import annotations

import numpy as np
import pytest

import oxidize_host as ox
from oxidize_host import ops
from oxidize_host.testing import FaultyBackend

F32, I32 = np.float32, np.int32


@pytest.fixture
def backend():
    return FaultyBackend()


@pytest.fixture
def device(register, backend):
    return ox.Device(register(backend), smoke_test=False)


class Operands:
    """Good operands of every operation, by name; a case replaces one."""

    def __init__(self, device):
        self.device = device
        f = self.f
        weight = ops.Weight.upload(device, np.ones((4, 8), F32), "f32", (4, 8))
        cache = device.empty((6, 2, 4), np.float16)
        self.good = {
            "add": {"out": f(2, 3), "a": f(2, 3), "b": f(3)},
            "mul": {"out": f(2, 3), "a": f(2, 3), "b": f(3)},
            "silu": {"out": f(5), "x": f(5)},
            "sigmoid": {"out": f(5), "x": f(5)},
            "gelu": {"out": f(5), "x": f(5)},
            "swiglu": {"out": f(5), "gate": f(5), "up": f(5)},
            "argmax": {"out": self.i(2), "x": f(2, 3)},
            "gemv": {"out": f(4), "weight": weight, "x": f(8)},
            "gemm": {"out": f(3, 4), "weight": weight, "x": f(3, 8)},
            "get_rows": {"out": f(3, 8), "weight": weight, "ids": self.i(3)},
            "rms_norm": {"out": f(2, 3), "x": f(2, 3), "weight": f(3), "eps": 1e-5},
            "softmax": {"out": f(2, 3), "x": f(2, 3)},
            "rope": {"out": f(2, 4, 8), "x": f(2, 4, 8), "positions": self.i(2), "frequencies": f(4)},
            "set_rows": {"out": device.empty((6, 8), np.float16), "x": f(2, 8), "rows": self.i(2)},
            "attention": {"out": f(2, 4, 4), "q": f(2, 4, 4), "k_cache": cache, "v_cache": cache, "positions": self.i(2), "scale": 0.5},
        }  # fmt: skip

    def f(self, *shape):
        return self.device.to_device(np.zeros(shape, F32))

    def i(self, *shape):
        return self.device.to_device(np.zeros(shape, I32))

    def call(self, name, **changed):
        return self._run(getattr(ops, name), name, changed)

    def bind(self, name, **changed):
        return self._run(getattr(ops, name).bind, name, changed)

    def _run(self, function, name, changed):
        operands = {**self.good[name], **changed}
        return function(operands.pop("out"), **operands)


@pytest.fixture
def operands(device):
    return Operands(device)


NAMES = sorted(name for name in ops.__all__ if name != "Weight")


@pytest.mark.parametrize("name", NAMES)
def test_good_operands_are_launched_called_or_bound(operands, backend, name):
    backend.calls.clear()
    operands.call(name)
    bound = operands.bind(name)
    assert backend.calls.count("launch") == 1
    bound(operands.device.default_stream)
    assert backend.calls.count("launch") == 2
    assert getattr(ops, name).__doc__
    assert name in repr(getattr(ops, name))


def _cases():
    """Every buffer operand of every operation: missing, of a wrong dtype, with one dimension more."""
    wrong = {
        "nothing": lambda o: None,
        "an array": lambda o: np.zeros(3, F32),
        "float64": lambda o: o.device.empty(3, np.float64),
    }
    operands = {
        "add": "out a b", "mul": "out a b", "silu": "out x", "sigmoid": "out x", "gelu": "out x", "swiglu": "out gate up", "argmax": "out x",
        "gemv": "out weight x", "gemm": "out weight x", "get_rows": "out weight ids", "rms_norm": "out x weight", "softmax": "out x",
        "rope": "out x positions frequencies", "set_rows": "out x rows", "attention": "out q k_cache v_cache positions",
    }  # fmt: skip
    for name, parts in operands.items():
        for operand in parts.split():
            for what, make in wrong.items():
                yield pytest.param(name, operand, make, id=f"{name}-{operand}-{what}")


@pytest.mark.parametrize(("name", "operand", "make"), list(_cases()))
def test_an_operand_that_is_no_such_buffer_is_named(operands, backend, name, operand, make):
    backend.calls.clear()
    for use in (operands.call, operands.bind):
        with pytest.raises(ox.ShapeError, match=rf"^{operand}\b"):
            use(name, **{operand: make(operands)})
    assert "launch" not in backend.calls


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("add", {"a": (3, 2)}, r"a must have the shape \(2, 3\), has \(3, 2\)"),
        ("add", {"b": (2,)}, r"b must have the shape of a, \(2, 3\), or of its last axes, has \(2,\)"),
        ("mul", {"b": (1, 2, 3)}, "b must have the shape of a"),
        ("silu", {"x": (6,)}, r"x must have the shape \(5\)"),
        ("swiglu", {"up": (4,)}, r"up must have the shape \(5\), has \(4,\)"),
        ("argmax", {"out": (3,)}, r"out must be int32"),
        ("argmax", {"x": (2, 0)}, "x has no columns"),
        ("gemv", {"x": (7,)}, r"x must have the shape \(8\), has \(7,\)"),
        ("gemv", {"out": (5,)}, r"out must have the shape \(4\)"),
        ("gemm", {"x": (3, 7)}, r"x must have the shape \(any, 8\), has \(3, 7\)"),
        ("gemm", {"out": (4, 3)}, r"out must have the shape \(3, 4\)"),
        ("get_rows", {"out": (3, 7)}, r"out must have the shape \(3, 8\)"),
        ("rms_norm", {"weight": (2,)}, r"weight must have the shape \(3\)"),
        ("rms_norm", {"x": (6,)}, r"x must have the shape \(any, any\)"),
        ("softmax", {"out": (2, 4)}, r"out must have the shape \(2, 3\)"),
        ("rope", {"frequencies": (5,)}, "frequencies: 5 pairs do not fit into heads of 8"),
        ("set_rows", {"x": (2, 7)}, r"out must have the shape \(any, 7\)"),
        ("attention", {"q": (2, 3, 4), "out": (2, 3, 4)}, "q has 3 heads, which is no multiple of the 2 heads of k_cache"),
        ("attention", {"q": (2, 4, 8), "out": (2, 4, 8)}, r"k_cache must have the shape \(any, any, 8\)"),
    ],
)
def test_shapes_that_do_not_fit_are_named_with_both(operands, name, changed, words):
    with pytest.raises(ox.ShapeError, match=words):
        operands.call(name, **{key: operands.f(*shape) for key, shape in changed.items()})


def test_caches_of_different_dtypes_or_lengths_are_refused(operands, device):
    with pytest.raises(ox.ShapeError, match="v_cache must be float16, is float32"):
        operands.call("attention", v_cache=operands.f(6, 2, 4))
    with pytest.raises(ox.ShapeError, match=r"v_cache must have the shape \(6, 2, 4\)"):
        operands.call("attention", v_cache=device.empty((5, 2, 4), np.float16))
    empty = device.empty((0, 2, 4), np.float16)
    with pytest.raises(ox.ShapeError, match="k_cache has no rows"):
        operands.call("attention", k_cache=empty, v_cache=empty)


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("gelu", {"approximate": "erf"}, "approximate must be 'tanh' or 'none', is 'erf'"),
        ("rope", {"mode": "half"}, "mode must be 'normal' or 'neox', is 'half'"),
        ("rms_norm", {"eps": -1e-5}, "eps must be a non-negative number"),
        ("rms_norm", {"eps": float("nan")}, "eps must be a non-negative number"),
    ],
)
def test_parameters_that_do_not_exist_are_refused_with_those_that_do(operands, name, changed, words):
    with pytest.raises(ox.ShapeError, match=words):
        operands.call(name, **changed)


def test_an_output_over_read_only_memory_is_refused(numpy_device):
    array = np.zeros(4, F32)
    array.flags.writeable = False
    out = numpy_device.wrap(array)
    with pytest.raises(ox.ShapeError, match="out wraps read-only memory"):
        ops.silu(out, numpy_device.empty(4, F32))


@pytest.mark.parametrize("operand", ["a", "b", "out"])
def test_operands_of_two_devices_are_refused(operands, numpy_device, operand):
    foreign = numpy_device.empty((2, 3), F32)
    with pytest.raises(ox.ShapeError, match="numpy:0"):
        operands.call("add", **{operand: foreign})


def test_a_closed_operand_is_refused(operands):
    closed = operands.f(5)
    closed.close()
    with pytest.raises(ox.ClosedError):
        operands.call("silu", x=closed)


def test_a_device_without_the_kernel_says_so(register):
    from oxidize_host.testing import MinimalBackend

    device = ox.Device(register(MinimalBackend))
    x = device.empty(3, F32)
    with pytest.raises(ox.UnsupportedOp, match="'silu'"):
        ops.silu(x, x)


def test_an_operation_queues_on_the_stream_that_is_named(deferred):
    stream, x = deferred.create_stream(), deferred.to_device(np.ones(3, F32))
    ops.add(x, x, x, stream=stream)
    assert x.to_host().tolist() == [1, 1, 1], "the default stream does not wait for others"
    stream.synchronize()
    assert x.to_host().tolist() == [2, 2, 2]


def test_sizes_beyond_32_bits_are_refused():
    from oxidize_host.ops.op import scalars

    assert scalars(2**32 - 1) == (np.uint32(2**32 - 1),)
    with pytest.raises(ox.ShapeError, match="4294967296 elements do not fit"):
        scalars(2**32)
