"""The forward pass against one in float64 that shares nothing with it."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from oxidize_llm import ContextFull, GGUFError, Model, UnsupportedModel

Q = gguf.GGMLQuantizationType
IDS = [5, 200, 17, 261, 3, 99, 128]


def oracle(weights, ids, *, heads=4, kv_heads=2, head_dim=8, layers=2, base=500.0, rotated=8, scale=1.0, factors=1.0, eps=1e-5):
    """Return the logits of every position: Touvron et al. 2023, arXiv:2302.13971, written down plainly."""
    w = {name: values.astype(np.float64) for name, values in weights.items()}
    positions = np.arange(len(ids))

    def norm(x, weight):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight

    def rotate(x):
        angles = positions[:, None] * base ** (-np.arange(0, rotated, 2) / rotated) / scale / factors
        z = (x[..., 0:rotated:2] + 1j * x[..., 1:rotated:2]) * np.exp(1j * angles)[:, None, :]
        turned = np.stack([z.real, z.imag], -1).reshape(*x.shape[:2], rotated)
        return np.concatenate([turned, x[..., rotated:]], -1)

    x = w["token_embd.weight"][ids]
    for i in range(layers):
        b = f"blk.{i}."
        h = norm(x, w[f"{b}attn_norm.weight"])
        q, k, v = (h @ w[f"{b}attn_{n}.weight"].T + w.get(f"{b}attn_{n}.bias", 0) for n in "qkv")
        q, k = rotate(q.reshape(-1, heads, head_dim)), rotate(k.reshape(-1, kv_heads, head_dim))
        v = v.reshape(-1, kv_heads, head_dim)
        out = np.empty_like(q)
        for head in range(heads):
            scores = q[:, head] @ k[:, head // (heads // kv_heads)].T / np.sqrt(head_dim)
            scores[positions[:, None] < positions[None, :]] = -np.inf
            p = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = p / p.sum(-1, keepdims=True) @ v[:, head // (heads // kv_heads)]
        x = x + out.reshape(len(ids), -1) @ w[f"{b}attn_output.weight"].T
        h = norm(x, w[f"{b}ffn_norm.weight"])
        gate = h @ w[f"{b}ffn_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[f"{b}ffn_up.weight"].T)) @ w[f"{b}ffn_down.weight"].T
    return norm(x, w["output_norm.weight"]) @ w.get("output.weight", w["token_embd.weight"]).T


def check(path, device, weights, ids=IDS, **options):
    """Feed the ids one by one, all at once, and in two parts: each must give the oracle's logits."""
    model = Model.load(path, device)
    wanted = oracle(weights, ids, **options)
    tolerance = {"rtol": 0, "atol": 5e-3 * np.abs(wanted).max()}  # keys and values are kept in float16
    session = model.session(len(ids))
    for i, token in enumerate(ids):
        session.feed([token])
        np.testing.assert_allclose(session.logits(), wanted[i], **tolerance)
    for cut in (0, 3):
        session.truncate(cut)
        session.feed(ids[cut:])
        np.testing.assert_allclose(session.logits(), wanted[-1], **tolerance)
        assert session.greedy() == wanted[-1].argmax()
    return model


@pytest.mark.parametrize("tied", [True, False])
def test_logits_agree_with_float64(make, device, tied):
    weights = make.tensors(tied=tied)
    check(make(weights), device, weights)


def test_logits_agree_with_weights_in_several_formats(make, device):
    weights = make.tensors()
    formats = {
        "token_embd.weight": Q.Q8_0,
        "q.weight": Q.Q4_0,
        "k.weight": Q.Q4_1,
        "v.weight": Q.Q5_0,
        "gate.weight": Q.Q5_1,
        "down.weight": Q.F16,
        "up.weight": Q.BF16,
    }
    stored = {}
    for name, values in weights.items():
        kind = next((kind for end, kind in formats.items() if name.endswith(end)), None)
        stored[name] = values if kind is None else gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
    model = check(make(weights, formats=formats), device, stored)
    assert {"gemv:q8_0", "gemv:q4_0", "gemm:q4_1", "gemm:q5_0", "gemv:q5_1", "gemv:f16", "gemm:bf16"} <= set(
        model.device.kernels_used
    )


def test_logits_agree_with_attention_biases(make, device):
    weights = make.tensors(bias=True)
    check(make(weights), device, weights)


def test_rope_variants(make, device):
    weights = make.tensors()
    check(make(weights, llama__rope__dimension_count=4), device, weights, rotated=4)
    linear = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    check(make(weights, **linear), device, weights, scale=4.0)
    factors = np.array([1, 2, 4, 8], np.float32)
    check(make(weights | {"rope_freqs.weight": factors}), device, weights, factors=factors)
    check(make(weights, llama__rope__freq_base=None), device, weights, base=10000.0)


def test_an_asynchronous_device_gets_each_step_as_it_was_meant(make, deferred):
    weights = make.tensors()
    model = check(make(weights), deferred, weights)
    session = model.session(20)
    session.feed(IDS[:3])
    for token in IDS[3:]:
        session.feed([token])  # queued, with nothing waiting between the steps
    wanted = oracle(weights, IDS)[-1]
    np.testing.assert_allclose(session.logits(), wanted, rtol=0, atol=5e-3 * np.abs(wanted).max())


def test_a_prompt_longer_than_a_batch(make, device, monkeypatch):
    monkeypatch.setattr("oxidize_llm.session.BATCH", 3)
    weights = make.tensors()
    check(make(weights), device, weights)


def test_greedy_decoding_on_the_device_follows_the_oracle(make, device):
    weights = make.tensors()
    session = Model.load(make(weights), device).session(20)
    session.feed(IDS)
    ids = [*IDS, session.greedy()]
    while len(ids) < 20:
        assert ids[-1] == oracle(weights, ids[:-1])[-1].argmax()
        ids.append(session.feed_greedy())
    assert session.ids == ids[:-1]


def test_a_full_context_is_an_error_before_anything_is_computed(make, device):
    session = Model.load(make(), device).session(4)
    with pytest.raises(ContextFull, match="the context of 4 holds 0"):
        session.feed(IDS)
    session.feed(IDS[:4])
    with pytest.raises(ContextFull, match="context of 4 holds 4"):
        session.feed([1])
    session.greedy()
    with pytest.raises(ContextFull, match="4 tokens is full"):
        session.feed_greedy()
    assert session.ids == IDS[:4]


def test_missing_misshapen_and_unknown_tensors_are_named(make, device):
    weights = make.tensors()
    less = {name: values for name, values in weights.items() if name != "blk.1.ffn_up.weight"}
    with pytest.raises(GGUFError, match=r"blk\.1\.ffn_up\.weight is missing"):
        Model.load(make(less), device)
    with pytest.raises(GGUFError, match=r"blk\.0\.attn_k\.weight has the shape \(16, 16\).*\(16, 32\)"):
        Model.load(make(weights | {"blk.0.attn_k.weight": np.zeros((16, 16), np.float32)}), device)
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.attn_q_norm\.weight"):
        Model.load(make(weights | {"blk.0.attn_q_norm.weight": np.ones(8, np.float32)}), device)
    with pytest.raises(GGUFError, match=r"output_norm\.weight holds infinite or NaN"):
        Model.load(make(weights | {"output_norm.weight": np.full(32, np.nan, np.float32)}), device)
    with pytest.raises(GGUFError, match=r"blk\.0\.attn_q\.weight.*NaN.*download"):
        Model.load(make(weights | {"blk.0.attn_q.weight": np.full((32, 32), np.nan, np.float32)}), device)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "qwen2"}, "'qwen2' is not supported; supported: llama"),
        ({"llama__expert_count": 8}, "experts"),
        ({"llama__rope__scaling__type": "yarn"}, "yarn"),
        ({"llama__attention__value_length": 4}, "values of 4"),
        ({"llama__attention__head_count_kv": [1, 2]}, "differs between layers"),
    ],
)
def test_what_is_not_supported_is_said(make, device, changes, message):
    with pytest.raises(UnsupportedModel, match=message):
        Model.load(make(**changes), device)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", 0),
        ("llama.embedding_length", "wide"),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.head_count_kv", "two"),
        ("llama.rope.dimension_count", 7),
        ("llama.rope.freq_base", -1.0),
        ("llama.attention.layer_norm_rms_epsilon", float("nan")),
        ("llama.context_length", None),
        ("tokenizer.ggml.tokens", None),
        ("tokenizer.ggml.token_type", [1, 2]),
        ("tokenizer.ggml.eos_token_id", 10**6),
        ("tokenizer.ggml.merges", ["ab"]),
        ("tokenizer.ggml.merges", ["zz qq"]),
    ],
)
def test_fields_that_make_no_sense_are_named(make, device, key, value):
    with pytest.raises(GGUFError, match=key.replace(".", r"\.")):
        Model.load(make(**{key.replace(".", "__"): value}), device)


def test_a_vocabulary_of_another_size_than_the_embedding_is_an_error(make, device):
    with pytest.raises(GGUFError, match=r"tokenizer\.ggml\.tokens has 268 entries, but token_embd\.weight 267 rows"):
        Model.load(make(tokenizer__ggml__tokens=[*make.tokens, "more"], tokenizer__ggml__token_type=None), device)


def test_equal_numbers_for_each_layer_are_fine(make, device):
    assert Model.load(make(llama__attention__head_count_kv=[2, 2]), device).config.kv_heads == 2
