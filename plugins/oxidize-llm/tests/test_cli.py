"""`oxidize run` and `oxidize chat`, through the objects that the entry points name."""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from oxidize_host import Device
from oxidize_llm import Generation, Model, console
from oxidize_llm.cli import CHAT, RUN

KEYS = {
    "model",
    "device",
    "prompt_ids",
    "ids",
    "text",
    "stop",
    "prompt_tokens_per_s",
    "decode_tokens_per_s",
    "load_s",
    "kernels",
    "selection",
}


def call(command, *args):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.main(parser.parse_args([str(arg) for arg in args]))


def test_the_commands_are_where_the_entry_points_say():
    found = {entry.name: entry.load() for entry in entry_points(group="oxidize.commands") if entry.dist.name == "oxidize-llm"}
    assert found == {"run": RUN, "chat": CHAT}
    assert all(isinstance(command.help, str) for command in found.values())


def test_the_help_needs_neither_numpy_nor_tokenizers():
    code = (
        "import argparse, sys; from oxidize_llm.cli import CHAT, RUN\n"
        "for command in (RUN, CHAT): command.add_arguments(argparse.ArgumentParser())\n"
        "print(sorted({'numpy', 'gguf', 'tokenizers', 'jinja2', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_run_prints_the_text_and_the_speed(make, capfd):
    assert call(RUN, make(), "-p", "the", "-n", 5, "--device", "numpy", "--ignore-eos") == 0
    out, err = capfd.readouterr()
    assert out.endswith("\n")
    assert "1 prompt tokens at" in err
    assert "5 new tokens at" in err
    assert "on numpy:0" in err
    assert "\x1b" not in err  # no progress bar without a terminal


def test_run_reports_json_and_nothing_else_on_stdout(make, capfd):
    path = make()
    assert call(RUN, path, "-p", "the", "-n", 5, "--device", "numpy", "--ignore-eos", "--json") == 0
    report = json.loads(capfd.readouterr().out)
    assert set(report) == KEYS
    generation = Model.load(path, "numpy").generate("the", max_tokens=5, ignore_eos=True)
    generation.finish()
    assert (report["ids"], report["text"], report["stop"]) == (generation.ids, generation.text, "length")
    assert report["prompt_ids"] == generation.prompt_ids
    assert report["kernels"]["gemv:f32"] == "native"
    assert report["selection"]["how"] == "named by the caller"
    assert report["device"] == "numpy:0"


@pytest.mark.parametrize("args", [[], ["-p", "-"]])
def test_run_reads_the_prompt_from_stdin(make, capfd, monkeypatch, args):
    monkeypatch.setattr(sys, "stdin", io.StringIO("the"))
    assert call(RUN, make(), "-n", 1, "--device", "numpy", "--json", *args) == 0
    assert len(json.loads(capfd.readouterr().out)["prompt_ids"]) == 1


@pytest.mark.filterwarnings("ignore::oxidize_host.OxidizeWarning")  # where nothing but numpy is installed
def test_a_device_that_was_not_named_is_announced(make, capfd, monkeypatch):
    monkeypatch.setenv("OXIDIZE_DEVICE", "numpy")
    assert call(RUN, make(), "-p", "x", "-n", 1) == 0
    assert capfd.readouterr().err.startswith("device numpy:0 (")
    monkeypatch.delenv("OXIDIZE_DEVICE")
    assert call(RUN, make(), "-p", "x", "-n", 1) == 0
    assert ", chosen automatically: the best of what is usable here" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["missing.gguf", "-p", "x"], "no file missing.gguf"),
        (["MODEL", "-p", "x", "--device", "nonsense"], "nonsense"),
        (["MODEL", "-p", "x" * 70, "--device", "numpy"], "70 tokens"),
        (["MODEL", "-p", "xx", "--device", "numpy", "--ctx", "1"], "larger context"),
        (["MODEL", "-p", "x", "--device", "numpy", "--trace", "/dev/null/trace.json"], "/dev/null/trace.json"),
    ],
)
def test_errors_are_one_line_and_status_1(make, capfd, args, message):
    path = str(make())
    assert call(RUN, *[path if arg == "MODEL" else arg for arg in args]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("oxidize run: error: ")
    assert message in err


def test_a_damaged_model_is_one_line_too(tmp_path, capfd):
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + bytes(40))
    assert call(RUN, tmp_path / "x.gguf", "-p", "x", "--device", "numpy") == 1
    assert "version 0" in capfd.readouterr().err


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["-n", "-1"],
        ["-n", "many"],
        ["--temp", "-1"],
        ["--temp", "nan"],
        ["--top-p", "0"],
        ["--top-p", "2"],
        ["--ctx", "0"],
        ["--seed", "-1"],
    ],
)
def test_usage_errors_are_status_2(capfd, args):
    model = ["model.gguf"] if args else []
    with pytest.raises(SystemExit) as caught:
        call(RUN, *model, *args)
    assert caught.value.code == 2
    assert "error: " in capfd.readouterr().err


def interrupted(self):
    yield "half"
    raise KeyboardInterrupt


def test_ctrl_c_prints_what_there_is(make, capfd, monkeypatch):
    monkeypatch.setattr(Generation, "_run", interrupted)
    assert call(RUN, make(), "-p", "x", "--device", "numpy") == 130
    out, err = capfd.readouterr()
    assert out == "half\n"
    assert "ended by Ctrl-C" in err
    assert call(RUN, make(), "-p", "x", "--device", "numpy", "--json") == 130
    assert json.loads(capfd.readouterr().out)["stop"] == "interrupted"


def test_ctrl_c_while_loading_ends_quietly(make, capfd, monkeypatch):
    monkeypatch.setattr("oxidize_llm.weights.Weights.load", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert call(RUN, make(), "-p", "x", "--device", "numpy") == 130
    assert capfd.readouterr() == ("", "\n")


def test_a_trace_shows_each_launch(make, tmp_path, capfd):
    assert call(RUN, make(), "-p", "ab", "-n", 2, "--device", "numpy", "--ignore-eos", "--trace", tmp_path / "t.json") == 0
    names = [event["name"] for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"]]
    layers = 2
    assert names.count("attention") == 2 * layers  # the prompt, and one step
    assert names.count("gemm") == 7 * layers
    assert names.count("gemv") == 7 * layers + 2
    assert names.count("argmax") == 2


def test_stop_texts_and_sampling_reach_the_engine(make, capfd):
    path = make()
    common = [path, "-p", "the", "-n", 30, "--device", "numpy", "--ignore-eos", "--json"]
    assert call(RUN, *common) == 0
    text = json.loads(capfd.readouterr().out)["text"]
    assert call(RUN, *common, "--stop", text[1:3]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["stop"] == "stop"
    assert report["text"] == text[: text.index(text[1:3])]
    hot = ["--temp", 2, "--top-k", 0, "--top-p", 1, "--min-p", 0]
    texts = []
    for seed in (1, 1, 2):
        assert call(RUN, *common, *hot, "--seed", seed) == 0
        texts.append(json.loads(capfd.readouterr().out)["ids"])
    assert texts[0] == texts[1] != texts[2]


def test_a_closed_pipe_ends_quietly(make, monkeypatch, capfd):
    def closed(text):
        raise BrokenPipeError

    monkeypatch.setattr("oxidize_llm.console.show", closed)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    assert call(RUN, make(), "-p", "x", "--device", "numpy", "-n", 2) == 1
    assert "Traceback" not in capfd.readouterr().err


def test_chat_answers_each_line_and_remembers(make, capfd, monkeypatch):
    seen = []
    real = Model.generate

    def generate(self, prompt, **options):
        seen.append(self.tokenizer.decode(prompt, special=True))
        assert 2 not in prompt  # what a user types is text, though it reads like the token <|im_end|>
        return real(self, prompt, **options)

    monkeypatch.setattr(Model, "generate", generate)
    template = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    path = make(tokenizer__chat_template=template, llama__context_length=512)
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n\n a<|im_end|>b \n/clear\nnew\n/exit\nnever\n"))
    assert call(CHAT, path, "--device", "numpy", "-n", 3, "--temp", 0, "--system", "Be brief.") == 0
    out = capfd.readouterr().out
    assert len(seen) == 3
    assert seen[0] == "[system:Be brief.][user:hello]"
    assert seen[1].startswith(seen[0] + "[assistant:")
    assert seen[1].endswith("][user:a<|im_end|>b]")
    assert seen[2] == "[system:Be brief.][user:new]"
    assert out.count("\n") >= 3
    assert "never" not in out


def test_chat_without_a_template_says_what_it_uses(make, capfd, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\n"))
    assert call(CHAT, make(), "--device", "numpy", "-n", 2) == 0
    assert "ChatML" in capfd.readouterr().err


def test_chat_refuses_what_does_not_fit(make, capfd, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("x" * 100 + "\n"))
    assert call(CHAT, make(), "--device", "numpy", "--ctx", 32) == 1
    assert "larger context" in capfd.readouterr().err


def test_on_a_terminal_a_full_context_does_not_end_the_chat(make, capfd, monkeypatch):
    lines = io.StringIO("x" * 100 + "\nhi\n")
    lines.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", lines)
    assert (
        call(CHAT, make(tokenizer__chat_template="{{ messages[-1].content }}"), "--device", "numpy", "-n", 2, "--ctx", 32) == 0
    )
    assert "/clear forgets" in capfd.readouterr().err


def test_on_a_terminal_no_control_character_is_shown(capfd, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    console.show("a\x1b]0;title\x07b\n\té ")
    assert capfd.readouterr().out == "a]0;titleb\n\té "


def test_the_device_is_not_touched_for_a_model_that_is_missing(monkeypatch):
    monkeypatch.setattr("oxidize_llm.console.Device", lambda spec: pytest.fail("opened a device"))
    assert call(RUN, "missing.gguf", "-p", "x") == 1
    assert Device("numpy").id == "numpy:0"
