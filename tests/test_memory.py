"""Buffers: views and slices against numpy, copies that are refused, host views, DLPack."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oxidize_host as ox
from oxidize_host.testing import FaultyBackend

SETTINGS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)


@SETTINGS
@given(data=st.data())
def test_slices_and_views_are_those_of_numpy(deferred, data):
    """A chain of row slices, indices and reinterpretations reads and writes what the same chain on an array does."""
    shape = data.draw(st.tuples(st.integers(0, 6), st.integers(1, 4), st.sampled_from([2, 4])))
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    root = buffer = deferred.to_device(array)
    model = whole = array.copy()
    for _ in range(data.draw(st.integers(0, 4))):
        if data.draw(st.booleans()) and model.ndim and model.shape[0]:
            index = data.draw(st.integers(-model.shape[0], model.shape[0] - 1))
            buffer, model = buffer[index], model[index, ...]
        elif model.ndim:
            bound = st.none() | st.integers(-8, 8)
            key = slice(data.draw(bound), data.draw(bound))
            buffer, model = buffer[key], model[key]
        if data.draw(st.booleans()) and model.ndim and model.shape[-1] % 2 == 0:
            dtype = data.draw(st.sampled_from([np.int16, np.uint8, np.int32]))
            buffer, model = buffer.view(model.view(dtype).shape, dtype), model.view(dtype)
    assert (buffer.shape, buffer.dtype, buffer.nbytes, buffer.size) == (model.shape, model.dtype, model.nbytes, model.size)
    assert np.array_equal(buffer.to_host(), model)
    values = np.full(model.shape, 7, model.dtype)
    buffer.copy_from(values)
    model[...] = values
    assert np.array_equal(root.to_host(), whole)


@SETTINGS
@given(size=st.integers(0, 40), offset=st.integers(-3, 45), nbytes=st.integers(0, 45))
def test_a_view_is_within_its_buffer_or_refused(deferred, size, offset, nbytes):
    buffer = deferred.empty(60, np.uint8).view(size, offset=10)
    if offset >= 0 and offset + nbytes <= size:
        view = buffer.view(nbytes, offset=offset)
        assert (view.offset, view.nbytes) == (10 + offset, nbytes)
    else:
        with pytest.raises(ox.ShapeError, match="does not fit"):
            buffer.view(nbytes, offset=offset)


def test_offsets_of_views_of_views_add_up(deferred):
    buffer = deferred.to_device(np.arange(100, dtype=np.uint8))
    assert buffer.view(50, offset=20).view(10, offset=5).to_host().tolist() == list(range(25, 35))


@pytest.mark.parametrize("key", [slice(None, None, 2), slice(None, None, -1), slice(3, 0, -1)], ids=str)
def test_slices_with_a_step_are_refused(deferred, key):
    with pytest.raises(ox.ShapeError, match="contiguous"):
        deferred.empty(10, np.uint8)[key]


@pytest.mark.parametrize("index", [5, -6, 100])
def test_an_index_out_of_bounds_is_an_index_error(deferred, index):
    with pytest.raises(IndexError, match=f"index {index} .* 5"):
        deferred.empty((5, 2), np.uint8)[index]


def test_a_buffer_can_be_iterated_like_an_array(deferred):
    assert [row.to_host().tolist() for row in deferred.to_device(np.arange(4).reshape(2, 2))] == [[0, 1], [2, 3]]


def test_a_buffer_without_dimensions_cannot_be_sliced(deferred):
    with pytest.raises(ox.ShapeError, match="cannot be sliced"):
        deferred.to_device(np.float32(3))[0]


@pytest.mark.parametrize("shape", [-1, (2, -3), 1.5, (2.0,), True, (1, "x")], ids=str)
def test_a_shape_that_is_none_is_refused(deferred, shape):
    with pytest.raises((ox.ShapeError, TypeError)):
        deferred.empty(shape, np.uint8)


def test_sizes_do_not_overflow(deferred):
    with pytest.raises(ox.OutOfMemory) as caught:
        deferred.empty((2**40, 2**40), np.float64)
    assert caught.value.asked == 2**83
    buffer = deferred.empty(8, np.uint8)
    with pytest.raises(ox.ShapeError):
        buffer.view((2**33, 2**33))


def test_objects_cannot_live_on_a_device(deferred):
    with pytest.raises(ox.ShapeError, match="object"):
        deferred.empty(3, object)
    with pytest.raises(ox.ShapeError, match="object"):
        deferred.to_device(np.array(["a", None]))


def test_buffers_are_made_by_devices():
    with pytest.raises(TypeError, match=r"Device\.empty"):
        ox.Buffer()


def test_what_does_not_fit_is_refused_with_both_sides_named(deferred, numpy_device):
    buffer = deferred.empty((2, 3), np.float32)
    for source, words in (
        (np.zeros(6, np.float64), "float64, the buffer float32"),
        (np.zeros(5, np.float32), "20 bytes, the buffer 24"),
        (deferred.empty(6, np.int32), "int32, the buffer float32"),
        (numpy_device.empty(6, np.float32), "numpy:0"),
    ):
        with pytest.raises(ox.ShapeError, match=words):
            buffer.copy_from(source)
    with pytest.raises(ox.ShapeError, match="C-contiguous"):
        buffer.copy_to(np.zeros((3, 2), np.float32).T)
    with pytest.raises(ox.ShapeError, match="bytes"):
        buffer.copy_to(np.zeros(7, np.float32))


def test_refused_copies_never_reach_the_backend(register):
    backend = FaultyBackend()
    device = ox.Device(register(backend), smoke_test=False)
    buffer = device.empty(4, np.float32)
    backend.calls.clear()
    for source in (np.zeros(3, np.float32), np.zeros(4, np.int32)):
        with pytest.raises(ox.ShapeError):
            buffer.copy_from(source)
    buffer[1:1].copy_from(np.zeros(0, np.float32))
    assert "copy" not in backend.calls


def test_a_closed_buffer_says_so(deferred):
    with deferred.to_device(np.arange(3)) as buffer:
        assert not buffer.closed
    assert buffer.closed
    assert "closed" in repr(buffer)
    for use in (buffer.to_host, lambda: buffer.view(1), lambda: buffer.copy_from(np.arange(3)), lambda: buffer.handle):
        with pytest.raises(ox.ClosedError, match=deferred.id):
            use()
    other = deferred.empty(3, np.int64)
    with pytest.raises(ox.ClosedError):
        other.copy_from(buffer)
    buffer.close()


def test_a_slice_lives_on_when_its_buffer_is_closed(deferred):
    buffer = deferred.to_device(np.arange(10))
    part = buffer[3:5]
    buffer.close()
    assert part.to_host().tolist() == [3, 4]


# -- host memory -----------------------------------------------------------------------------------------------


def test_a_host_view_keeps_the_memory_when_buffer_and_device_are_gone(register):
    from oxidize_host.reference.backend import NumpyBackend

    device = ox.Device(register(NumpyBackend()))
    buffer = device.to_device(np.arange(1000))
    view = buffer[100:200].host_view()
    buffer.close()
    del buffer
    gc.collect()
    assert device.live_allocations == 1
    assert view[0] == 100
    row = view[5:6]
    del view
    gc.collect()
    assert device.live_allocations == 1
    assert row[0] == 105
    del row
    gc.collect()
    assert device.live_allocations == 0


def test_dlpack_to_numpy_shares_memory_and_keeps_it_alive(numpy_device):
    before = numpy_device.live_allocations
    buffer = numpy_device.to_device(np.arange(12, dtype=np.float32).reshape(3, 4))
    array = np.from_dlpack(buffer[1:])
    assert array.tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
    buffer[1].copy_from(np.zeros(4, np.float32))
    assert array[0].tolist() == [0, 0, 0, 0]
    buffer.close()
    gc.collect()
    assert array[1].tolist() == [8, 9, 10, 11]
    del array
    gc.collect()
    assert numpy_device.live_allocations == before


def test_dlpack_from_numpy_shares_memory_where_the_device_can(numpy_device, deferred):
    array = np.arange(6, dtype=np.float32)
    shared = numpy_device.from_dlpack(array)
    array[0] = 9
    assert shared.to_host()[0] == 9
    copied = deferred.from_dlpack(array)
    array[0] = 1
    assert copied.to_host()[0] == 9


def test_dlpack_of_memory_that_the_host_cannot_see_is_a_buffer_error(deferred):
    with pytest.raises(BufferError, match=r"to_host\(\)"):
        np.from_dlpack(deferred.empty(3, np.float32))
    with pytest.raises(BufferError):
        deferred.empty(3, np.float32).__dlpack__()


def test_the_buffer_protocol_shares_memory(numpy_device, deferred):
    buffer = numpy_device.to_device(np.arange(4, dtype=np.int16))
    if sys.version_info >= (3, 12):
        assert memoryview(buffer).tolist() == [0, 1, 2, 3]
    assert buffer.__buffer__(0).tolist() == [0, 1, 2, 3]
    with pytest.raises(BufferError):
        deferred.empty(3, np.uint8).__buffer__(0)


def test_a_wrapped_array_is_kept_alive_and_used_in_place(numpy_device):
    array = np.arange(5000)
    buffer = numpy_device.wrap(array)
    array[1] = 77
    del array
    gc.collect()
    assert buffer.to_host()[:3].tolist() == [0, 77, 2]


def test_wrapping_read_only_memory_makes_it_read_only_everywhere(numpy_device):
    array = np.arange(5)
    array.flags.writeable = False
    buffer = numpy_device.wrap(array)
    assert buffer.readonly
    assert buffer[1:3].readonly
    assert not buffer.host_view().flags.writeable
    with pytest.raises(ox.ShapeError, match="read-only"):
        buffer[1:3].copy_from(np.zeros(2, np.int64))
    with pytest.raises(ox.ShapeError, match="read-only"):
        numpy_device.empty(5, np.int64).copy_to(buffer)


def test_what_cannot_be_wrapped_is_refused_with_the_other_way(numpy_device, deferred):
    with pytest.raises(ox.ShapeError, match=r"to_device\(\)"):
        numpy_device.wrap(np.zeros((4, 4))[:, ::2])
    with pytest.raises(ox.UnsupportedOp, match=r"to_device\(\)"):
        deferred.wrap(np.zeros(4))
    with pytest.raises(ox.ShapeError, match="object"):
        numpy_device.wrap(np.array([object()]))


@pytest.mark.parametrize("shape", [None, 3.0, "3", (2, -1), (True,), [[1]]])
def test_what_is_no_shape_is_refused_as_such(numpy_device, shape):
    with pytest.raises(ox.ShapeError, match="a shape is"):
        numpy_device.empty(shape, np.float32)


def test_arguments_of_another_type_are_named(numpy_device):
    buffer = numpy_device.empty(4, np.float32)
    with pytest.raises(TypeError, match="not str"):
        buffer["x"]
    with pytest.raises(TypeError, match="not list"):
        buffer.copy_to([1, 2, 3, 4])
    with pytest.raises(TypeError, match="stream must be a Stream, not str"):
        buffer.copy_from(np.zeros(4, np.float32), stream="x")
    with pytest.raises(TypeError, match="not int"):
        ox.Device(5)
