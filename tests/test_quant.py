"""GGUF formats: bit by bit what the format's own package decodes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxidize_host import ShapeError, quant
from oxidize_host.testing import oracle

NAMES = sorted(quant.FORMATS)
QUANTIZED = [name for name in NAMES if quant.FORMATS[name].quantized]


def reference(data, name):
    kind = gguf.GGMLQuantizationType(quant.FORMATS[name].ggml_type)
    if name in ("f32", "f16"):
        return data.view("<f4" if name == "f32" else "<f2").astype(np.float32)
    return gguf.quants.dequantize(data, kind)


@pytest.mark.parametrize("name", NAMES)
def test_layouts_are_those_of_gguf(name):
    layout = quant.FORMATS[name]
    kind = gguf.GGMLQuantizationType(layout.ggml_type)
    assert kind.name.lower() == name
    assert gguf.GGML_QUANT_SIZES[kind] == (layout.block, layout.nbytes)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_decoding_random_bytes_is_bit_equal_to_gguf(name, data):
    layout = quant.FORMATS[name]
    rows, blocks = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    size = rows * blocks * layout.nbytes
    raw = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8).reshape(rows, -1)
    with np.errstate(all="ignore"):  # random scales are sometimes NaN and infinite, and so are products with them
        ours, theirs = quant.decode(raw, name), reference(raw, name)
    assert ours.dtype == np.float32
    assert ours.shape == (rows, blocks * layout.block)
    same = (ours.view(np.uint32) == np.ascontiguousarray(theirs).view(np.uint32)) | (np.isnan(ours) & np.isnan(theirs))
    assert same.all()


@pytest.mark.parametrize("name", NAMES)
def test_many_random_blocks_are_bit_equal_to_gguf(name):
    """All 65536 halves as scales, random packed bits."""
    layout = quant.FORMATS[name]
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 256, (65536 if layout.quantized else 4096, layout.nbytes), dtype=np.uint8)
    for at in layout.scales:
        raw[:, at : at + 2] = rng.permutation(65536).astype("<u2").view(np.uint8).reshape(-1, 2)
    with np.errstate(all="ignore"):
        ours, theirs = quant.decode(raw, name), np.ascontiguousarray(reference(raw, name))
    assert ((ours.view(np.uint32) == theirs.view(np.uint32)) | (np.isnan(ours) & np.isnan(theirs))).all()


@pytest.mark.parametrize("name", NAMES)
def test_leading_axes_and_memory_order_do_not_matter(name):
    rng = np.random.default_rng(2)
    raw = oracle.random_weight(rng, name, 12, 2 * max(quant.FORMATS[name].block, 1))
    whole = quant.decode(raw, name)
    assert np.array_equal(quant.decode(raw.reshape(3, 4, -1), name).reshape(whole.shape), whole)
    assert np.array_equal(quant.decode(np.asfortranarray(raw), name), whole)
    assert np.array_equal(quant.decode(raw[::2], name), whole[::2])


@pytest.mark.parametrize("name", QUANTIZED)
def test_bad_scales_are_counted_and_packed_bits_are_not(name):
    layout = quant.FORMATS[name]
    raw = oracle.random_weight(np.random.default_rng(3), name, 5, layout.block * 4)
    assert quant.bad_scales(raw, name) == 0
    blocks = raw.reshape(-1, layout.nbytes)
    for count, bits in enumerate((0x7C00, 0xFC00, 0x7E01, 0xFFFF), 1):
        for at in layout.scales:
            blocks[count, at : at + 2] = np.array([bits], "<u2").view(np.uint8)
        assert quant.bad_scales(raw, name) == count * len(layout.scales)
    spoilt = np.full_like(raw, 255)
    spoilt.reshape(-1, layout.nbytes)[:, [at + i for at in layout.scales for i in (0, 1)]] = 0
    assert quant.bad_scales(spoilt, name) == 0


@pytest.mark.parametrize(("name", "dtype"), [("f32", np.float32), ("f16", np.float16)])
def test_bad_weights_of_plain_formats_are_counted(name, dtype):
    values = np.array([[1, np.inf, -np.inf, np.nan, 65504, -0.0]], dtype)
    assert quant.bad_scales(values.view(np.uint8), name) == 3


def test_bad_weights_of_bf16_are_counted():
    values = (np.array([[1, np.inf, np.nan, -3e38]], np.float32).view(np.uint32) >> 16).astype("<u2")
    assert quant.bad_scales(values.view(np.uint8), "bf16") == 2


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_row_that_is_no_whole_number_of_blocks_is_refused(name):
    layout = quant.FORMATS[name]
    assert quant.row_bytes(name, 3 * layout.block) == 3 * layout.nbytes
    with pytest.raises(ShapeError, match=f"{name} blocks of {layout.block}"):
        quant.row_bytes(name, layout.block + 1)
    with pytest.raises(ShapeError, match=str(layout.nbytes)):
        quant.decode(np.zeros((2, layout.nbytes + 1), np.uint8), name)


def test_an_unknown_format_is_refused_with_those_there_are():
    for use in (lambda: quant.row_bytes("iq2_xxs", 256), lambda: quant.decode(np.zeros(66, np.uint8), "iq2_xxs")):
        with pytest.raises(ShapeError, match="iq2_xxs.*q4_k"):
            use()


def test_data_that_is_not_bytes_is_refused():
    with pytest.raises(ShapeError, match="float32"):
        quant.decode(np.zeros((1, 34), np.float32), "q8_0")
