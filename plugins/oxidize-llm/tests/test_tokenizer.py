"""Text to ids and back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxidize_llm import GGUFFile, Tokenizer, UnsupportedModel
from oxidize_llm.tokenizer import Decoder

SPM_TOKENS = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    *"\u2581abcdeht",
    "th",
    "the",
    "\u2581the",
    "\u2581t",
    "he",
    "ab",
    "bc",
]
SPM = {
    "tokenizer__ggml__model": "llama",
    "tokenizer__ggml__pre": None,
    "tokenizer__ggml__merges": None,
    "tokenizer__ggml__tokens": SPM_TOKENS,
    "tokenizer__ggml__token_type": [2, 3, 3, *[6] * 256, *[1] * 15],
    # The higher the score the earlier the merge: "ab" before "bc", so "abc" is ab + c.
    "tokenizer__ggml__scores": [*[0.0] * 267, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0],
    "tokenizer__ggml__bos_token_id": 1,
    "tokenizer__ggml__eos_token_id": 2,
    "tokenizer__ggml__add_bos_token": None,
}

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.fixture
def tokenizer(make):
    return Tokenizer(GGUFFile.open(make()))


@pytest.fixture
def spm(make):
    return Tokenizer(GGUFFile.open(make(**SPM)))


def spelled(tokenizer, text, **options):
    return [tokenizer.token(i) for i in tokenizer.encode(text, **options)]


def test_merges_apply_within_words_and_digits_stand_alone(tokenizer):
    assert spelled(tokenizer, "the then") == ["the", "Ġthe", "n"]
    assert spelled(tokenizer, "123") == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("pre", "wanted"),
    [
        ("gpt-2", ["123", "4", "5", "Ġ", "6", "!", "Ċ", "Ċ"]),
        ("smollm", ["1", "2", "3", "4", "5", "Ġ", "6", "!", "Ċ", "Ċ"]),
        ("qwen2", ["1", "2", "3", "4", "5", "Ġ", "6", "!", "Ċ", "Ċ"]),
        ("llama-bpe", ["123", "4", "5", "Ġ", "6", "!", "Ċ", "Ċ"]),
        ("default", ["123", "4", "5", "Ġ", "6", "!", "Ċ", "Ċ"]),
    ],
)
def test_pre_tokenizers_cut_digits_each_in_its_way(make, pre, wanted):
    tokenizer = Tokenizer(GGUFFile.open(make(tokenizer__ggml__pre=pre)))
    assert spelled(tokenizer, "12345 6!\n\n", bos=False) == wanted
    four = [tokenizer.token(i) for i in tokenizer.encode("4123", bos=False)]
    # Three digits at a time from the left: 412, 3; GPT-2 takes all digits as one word, in which 123 is a token.
    assert four == {"gpt-2": ["4", "123"]}.get(pre, ["4", "12", "3"] if pre in ("llama-bpe", "default") else list("4123"))


def test_a_word_that_is_a_token_needs_no_merges_for_llama_3(make):
    options = {"tokenizer__ggml__merges": ["t h"]}
    assert spelled(Tokenizer(GGUFFile.open(make(tokenizer__ggml__pre="llama-bpe", **options))), "the", bos=False) == ["the"]
    assert spelled(Tokenizer(GGUFFile.open(make(tokenizer__ggml__pre="qwen2", **options))), "the") == ["th", "e"]


def test_bos_comes_where_the_file_says_so(make):
    assert Tokenizer(GGUFFile.open(make(tokenizer__ggml__add_bos_token=True))).encode("a")[0] == 0
    assert Tokenizer(GGUFFile.open(make(tokenizer__ggml__add_bos_token=True))).encode("a", bos=False)[0] != 0
    assert Tokenizer(GGUFFile.open(make(tokenizer__ggml__add_bos_token=False))).encode("a")[0] != 0
    unsaid = {"tokenizer__ggml__add_bos_token": None}
    assert Tokenizer(GGUFFile.open(make(**unsaid))).encode("a")[0] != 0
    assert Tokenizer(GGUFFile.open(make(tokenizer__ggml__pre="llama-bpe", **unsaid))).encode("a")[0] == 0
    assert Tokenizer(GGUFFile.open(make(**SPM))).encode("a")[0] == 1


def test_control_tokens_are_recognized_only_where_wanted(tokenizer):
    text = "a<|im_end|>b"
    assert 2 not in tokenizer.encode(text)
    assert tokenizer.encode(text, special=True)[1] == 2
    assert 2 not in tokenizer.encode(tokenizer.guard(text), special=True)
    assert tokenizer.encode(tokenizer.guard(text), special=True) == tokenizer.encode(text)
    assert spelled(tokenizer, "a<user>b") == ["a", "<user>", "b"]  # the file's own words are always whole


def test_of_tokens_that_begin_alike_the_longest_is_taken(make):
    options = {
        "tokenizer__ggml__tokens": [*make.tokens, "<user>s"],
        "tokenizer__ggml__token_type": [4] * (len(make.tokens) + 1),
    }
    assert spelled(Tokenizer(GGUFFile.open(make(**options))), "<user>s<user>") == ["<user>s", "<user>"]


def test_control_tokens_are_not_text(tokenizer):
    assert tokenizer.decode([0, *tokenizer.encode("the"), 2]) == "the"
    assert tokenizer.decode([2], special=True) == "<|im_end|>"


def test_every_token_that_ends_an_answer_is_known(tokenizer, make):
    assert tokenizer.ends == {0, 2}
    assert Tokenizer(GGUFFile.open(make(tokenizer__ggml__eot_token_id=9))).ends == {0, 2, 9}


def test_spm_merges_by_score_and_falls_back_to_bytes(spm):
    assert spelled(spm, "the the") == ["<s>", "\u2581the", "\u2581the"]
    assert spelled(spm, "he", bos=False) == ["\u2581", "he"]
    assert spelled(spm, "abc", bos=False) == ["\u2581", "ab", "c"]
    assert spelled(spm, "é", bos=False) == ["\u2581", "<0xC3>", "<0xA9>"]
    assert spelled(spm, "a</s>b", special=True, bos=False) == ["\u2581", "a", "</s>", "\u2581", "b"]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_any_text_survives_the_round_trip(tokenizer, spm, kind):
    subject = {"gpt2": tokenizer, "llama": spm}[kind]

    @settings(max_examples=200, deadline=None)
    @given(text=ANY_TEXT)
    def round_trip(text):
        decoder = Decoder(subject)
        ids = subject.encode(text, bos=False)
        assert subject.decode(ids) == text
        streamed = "".join(map(decoder.push, ids)) + decoder.finish()
        assert streamed.removeprefix(" " if kind == "llama" else "") == text

    round_trip()


def test_characters_are_held_until_they_are_complete(tokenizer):
    decoder = Decoder(tokenizer)
    ids = tokenizer.encode("é🎉")
    assert len(ids) == 6
    assert [decoder.push(i) for i in ids] == ["", "é", "", "", "", "🎉"]
    assert decoder.finish() == ""
    assert [decoder.push(i) for i in ids[2:4]] == ["", ""]
    assert decoder.finish() == "\ufffd"


def test_a_surrogate_does_not_stop_the_encoder(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


def test_other_tokenizers_are_refused_by_name(make):
    with pytest.raises(UnsupportedModel, match="'bert' is not supported; supported: gpt2, llama"):
        Tokenizer(GGUFFile.open(make(tokenizer__ggml__model="bert")))
    with pytest.raises(UnsupportedModel, match=r"'new-thing' \(tokenizer.ggml.pre\).*smollm"):
        Tokenizer(GGUFFile.open(make(tokenizer__ggml__pre="new-thing")))


def test_repeated_padding_tokens_do_not_stop_loading(make):
    tokens = [*make.tokens, "<pad>", "<pad>"]
    tokenizer = Tokenizer(GGUFFile.open(make(tokenizer__ggml__tokens=tokens, tokenizer__ggml__token_type=None)))
    assert tokenizer.size == len(tokens)
    assert tokenizer.decode([len(tokens) - 2, len(tokens) - 1]) == "<pad><pad>"


@pytest.mark.model
def test_the_ids_of_smollm2_are_those_of_llama_cpp(smollm2):
    tokenizer = Tokenizer(GGUFFile.open(smollm2))
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert tokenizer.encode("311 million") == [35, 33, 33, 2215]
    assert tokenizer.decode([216, 35, 33, 33, 2215, 701, 30, 198, 198]) == " 311 million people.\n\n"
    assert tokenizer.encode(" ".join(["the"] * 128)) == [1195, *[260] * 127]
