"""Weight: what does not fit or is damaged is refused before it reaches a device."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import oxidize_host as ox
from oxidize_host import ops, quant
from oxidize_host.testing import oracle

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("name", quant.FORMATS)
def test_every_format_is_uploaded_as_it_lies_in_the_file(deferred, name):
    columns = 2 * max(quant.FORMATS[name].block, 16)
    raw = oracle.random_weight(RNG, name, 3, columns)
    weight = ops.Weight.upload(deferred, raw, name, (3, columns))
    assert (weight.rows, weight.columns, weight.format) == (3, columns, name)
    assert weight.buffer.shape == (3, quant.row_bytes(name, columns))
    assert np.array_equal(weight.buffer.to_host(), raw)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int8, np.uint16])
def test_any_dtype_of_the_same_bytes_will_do(deferred, dtype):
    values = RNG.standard_normal((4, 8)).astype(np.float32)
    weight = ops.Weight.upload(deferred, values.view(dtype), "f32", (4, 8))
    assert weight.buffer.to_host().tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("name", "shape", "nbytes", "words"),
    [
        ("q4_0", (2, 33), 36, "row of 33 weights is not a whole number of q4_0 blocks of 32"),
        ("q4_k", (1, 128), 72, "row of 128 weights .* q4_k blocks of 256"),
        ("q8_0", (2, 32), 67, "2 x 32 in q8_0 is 68 bytes, got 67"),
        ("iq4_nl", (1, 32), 18, "unknown weight format 'iq4_nl'; one of f32"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_figures(deferred, name, shape, nbytes, words):
    with pytest.raises(ox.ShapeError, match=words):
        ops.Weight.upload(deferred, np.zeros(nbytes, np.uint8), name, shape)
    assert deferred.live_allocations == 0


@pytest.mark.parametrize("name", [name for name, layout in quant.FORMATS.items() if layout.quantized])
def test_a_scale_that_would_spread_over_every_result_is_refused(deferred, name):
    columns = quant.FORMATS[name].block * 2
    raw = oracle.random_weight(RNG, name, 4, columns)
    at = quant.FORMATS[name].scales[-1]
    raw.reshape(-1, quant.FORMATS[name].nbytes)[5, at : at + 2] = (0x00, 0x7E)
    with pytest.raises(ox.ShapeError, match=rf"1 scale factors of the 4 x {columns} {name} matrix are infinite or NaN"):
        ops.Weight.upload(deferred, raw, name, (4, columns))


def test_a_weight_that_is_infinite_is_refused(deferred):
    with pytest.raises(ox.ShapeError, match="2 weights of the 1 x 4 f32 matrix"):
        ops.Weight.upload(deferred, np.array([1, np.inf, 2, np.nan], np.float32), "f32", (1, 4))


def test_where_the_device_can_it_uses_the_arrays_own_memory(numpy_device):
    raw = oracle.random_weight(RNG, "q8_0", 2, 32)
    raw.flags.writeable = False
    before = numpy_device.live_allocations
    weight = ops.Weight.upload(numpy_device, raw, "q8_0", (2, 32))
    assert np.shares_memory(weight.buffer.host_view(), raw)
    copied = ops.Weight.upload(numpy_device, raw, "q8_0", (2, 32), zero_copy=False)
    assert not np.shares_memory(copied.buffer.host_view(), raw)
    assert weight.buffer.readonly
    assert not copied.buffer.readonly
    alive = weakref.ref(raw)
    del raw
    gc.collect()
    assert alive() is not None
    del weight, copied
    gc.collect()
    assert numpy_device.live_allocations == before


def test_check_names_the_operand(deferred):
    weight = ops.Weight.upload(deferred, np.zeros((2, 3), np.float32), "f32", (2, 3))
    weight.check("attn_q", rows=2, columns=3)
    weight.check("attn_q")
    with pytest.raises(ox.ShapeError, match=r"attn_q must have 4 rows, has 2 \(2 x 3 f32\)"):
        weight.check("attn_q", rows=4)
    with pytest.raises(ox.ShapeError, match="attn_q must have 5 columns, has 3"):
        weight.check("attn_q", columns=5)


@pytest.mark.parametrize("shape", [32, (-1, -32), (1, 32, 1), "ab"])
def test_a_shape_that_is_no_matrix_is_refused(numpy_device, shape):
    with pytest.raises(ox.ShapeError):
        ops.Weight.upload(numpy_device, np.zeros(18, np.uint8), "q4_0", shape)
