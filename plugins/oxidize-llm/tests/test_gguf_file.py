"""Whatever a file holds: a typed error, or a model."""

from __future__ import annotations

import os
import struct

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oxidize_host import OxidizeError
from oxidize_llm import GGUFError, GGUFFile, Model, ModelError, ModelNotFound, UnsupportedModel

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


def text(value):
    return u64(len(value)) + value.encode()


def header(tensors=0, fields=0, version=3):
    return b"GGUF" + u32(version) + u64(tensors) + u64(fields)


def tensor(name="t", dims=(32,), kind=0, offset=0):
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def test_reads_what_ggufs_writer_wrote(make):
    path = make(formats={"q.weight": gguf.GGMLQuantizationType.Q8_0})
    ours, theirs = GGUFFile.open(path), gguf.GGUFReader(path)
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    for wanted in theirs.tensors:
        found = ours.tensors[wanted.name]
        assert found.shape == tuple(int(n) for n in reversed(wanted.shape))
        assert found.ggml_type == wanted.tensor_type
        assert ours.array(found).tobytes() == wanted.data.tobytes()
    for key, field in theirs.fields.items():
        if key.startswith("GGUF."):
            continue
        value = ours.metadata[key]
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            value = list(value.strings()) if field.types[1] == gguf.GGUFValueType.STRING else value.numbers().tolist()
        assert value == field.contents(), key


def test_the_weights_are_not_copied(make):
    file = GGUFFile.open(make())
    array = file.array(file.tensors["token_embd.weight"])
    assert not array.flags.owndata
    assert not array.flags.writeable
    file.close()
    assert array[:4].tobytes()  # the array keeps the mapping


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty; download it again"),
        (b"GGUF", "less than the header"),
        (b"PK\x03\x04" + bytes(40), "zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html>" + bytes(40), "web page"),
        (b"tjgg" + bytes(40), "before August 2023"),
        (bytes(64), "not a GGUF file"),
        (header(version=1), "version 1; supported: 2 and 3"),
        (header(version=4), "version 4"),
        (header(tensors=2**60), f"{2**60} tensors do not fit"),
        (header(fields=2**60), f"{2**60} metadata fields do not fit"),
        (header(fields=1) + u64(2**40) + bytes(9), "its key is a string of"),
        (header(fields=1) + u64(5) + b"\xff\xfe\xfd\xfc\xfb" + bytes(40), "not UTF-8"),
        (header(fields=1) + text("k") + u32(99) + bytes(8), "'k' has the value type 99"),
        (header(fields=1) + text("k") + u32(8) + u64(2**62), "'k' is a string of"),
        (header(fields=1) + text("k") + u32(9) + u32(4) + u64(2**61), "'k' is an array of"),
        (header(fields=1) + text("k") + u32(9) + u32(8) + u64(2**61), "'k' is an array of"),
        (header(fields=1) + text("k") + u32(9) + u32(8) + u64(2) + text("a") + u64(99), "number 1 of 2"),
        (header(fields=1) + text("k") + u32(9) + u32(9) + u64(1) + bytes(30), "array of arrays"),
        (header(fields=1) + text("k") + u32(10) + bytes(4), "'k' is cut off"),
        (header(fields=2) + (text("k") + u32(4) + u32(1)) * 2, "'k' appears twice"),
        (header(fields=1) + text("general.alignment") + u32(4) + u32(24), "alignment is 24"),
        (header(tensors=1) + tensor(dims=()) + bytes(40), "0 dimensions"),
        (header(tensors=1) + text("t") + u32(2**31) + bytes(60), "dimensions"),
        (header(tensors=1) + tensor(dims=(0,)) + bytes(99), "the shape"),
        (header(tensors=1) + tensor(dims=(2**40, 2**40)) + bytes(99), "the shape"),
        (header(tensors=1) + tensor(kind=77) + bytes(200), "the type 77"),
        (header(tensors=1) + tensor(kind=8, dims=(33,)) + bytes(200), "blocks of 32"),
        (header(tensors=1) + tensor(offset=7) + bytes(200), "multiple of the alignment 32"),
        (header(tensors=1) + tensor(offset=2**40) + bytes(200), "after the end of the file"),
        (header(tensors=1) + tensor() + bytes(100), "ends at byte"),
        (header(tensors=2) + tensor("a") + tensor("b") + bytes(400), "'b'.*overlaps"),
        (header(tensors=2) + tensor("a") + tensor("a", offset=128) + bytes(400), "appears twice"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_the_field(tmp_path, content, message):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=message) as caught:
        GGUFFile.open(path)
    assert str(path) in str(caught.value)


def test_paths_that_are_no_files(tmp_path, monkeypatch):
    with pytest.raises(ModelNotFound, match="no file"):
        GGUFFile.open(tmp_path / "missing.gguf")
    with pytest.raises(GGUFError, match="is a directory"):
        GGUFFile.open(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GGUFError, match="not a regular file"):
        GGUFFile.open(tmp_path / "pipe")
    (tmp_path / "secret.gguf").write_bytes(header())

    def denied(*args, **options):  # root, as which tests may run, is never denied
        raise PermissionError("denied")

    monkeypatch.setattr("pathlib.Path.open", denied)
    with pytest.raises(GGUFError, match="permissions"):
        GGUFFile.open(tmp_path / "secret.gguf")


def test_files_of_other_kinds_are_told_apart(tmp_path, make):
    path = tmp_path / "big.gguf"
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    with pytest.raises(UnsupportedModel, match="big-endian"):
        GGUFFile.open(path)
    with pytest.raises(UnsupportedModel, match="one of 3 parts"):
        GGUFFile.open(make(split__count=3))


def test_a_format_that_no_backend_knows_is_named(make, device):
    shape = make.shape | {"hidden": 256}
    path = make(shape=shape, formats={"ffn_down.weight": gguf.GGMLQuantizationType.TQ2_0})
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.ffn_down\.weight has the type TQ2_0.*q4_k"):
        Model.load(path, device)


@FUZZ
@given(cut=st.integers(0, 2**20))
def test_any_truncation_is_a_typed_error(tmp_path, make, cut):
    data = fuzz_base(make)
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: cut % len(data)])
    with pytest.raises(GGUFError):
        GGUFFile.open(path)


@FUZZ
@given(flips=st.lists(st.tuples(st.integers(0, 12000), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes_give_a_typed_error_or_a_model(tmp_path, make, device, flips):
    """The first 12000 bytes are all of the header, where every byte steers the reader."""
    data = bytearray(fuzz_base(make))
    for at, change in flips:
        data[at % len(data)] ^= change
    path = tmp_path / "flipped.gguf"
    path.write_bytes(data)
    try:
        model = Model.load(path, device)
    except ModelError as error:
        assert str(path) in str(error)
    except OxidizeError as error:
        raise AssertionError(f"not typed as the model's fault: {error!r}") from error
    else:
        session = model.session(4)
        session.feed([1, 2])
        assert session.logits().shape == (model.config.vocabulary,)


_base = {}


def fuzz_base(make):
    """Return the bytes of one small model, written once."""
    if not _base:
        _base["data"] = make().read_bytes()
        assert np.frombuffer(_base["data"], np.uint8).any()
    return _base["data"]
