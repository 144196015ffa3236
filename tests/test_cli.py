"""The command line: an answer on any machine, one clear line for what fails, the right exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from machine import Machine

from oxidize_host.cli.doctor import redact
from oxidize_host.testing import make_distribution


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "site")


def test_list_has_the_documented_schema(machine):
    listing = json.loads(machine.run("list", "--json").stdout)
    assert listing["schema"] == 1
    assert set(listing["host"]) == {"version", "api_version"}
    fields = {
        "name",
        "distribution",
        "version",
        "api_version",
        "entry_point",
        "status",
        "reason",
        "build_info",
        "probe_ms",
        "devices",
    }
    for row in listing["plugins"]:
        assert fields <= set(row)
        for device in row["devices"]:
            assert set(device) == {"id", "uuid", "pci", "name", "kind", "memory"}
            assert set(device["memory"]) == {"total", "free", "source"}


def test_a_plugin_that_crashes_on_import_breaks_neither_help_nor_list_and_strict_fails(machine):
    machine.plugin("bad", head="raise ZeroDivisionError('on import')")
    assert "commands:" in machine.run("--help").stdout
    done = machine.run("list")
    assert "bad    broken" in done.stdout
    assert "ZeroDivisionError: on import" in done.stdout
    assert "numpy  available" in done.stdout
    machine.run("list", "--strict", status=1)
    machine.run("list", "--strict", "--no-probe")


def test_no_probe_imports_no_plugin_and_no_numpy(machine):
    machine.plugin("bad", head="raise ZeroDivisionError('on import')")
    code = (
        "import sys; from oxidize_host.cli import main; status = main(['list', '--no-probe']);"
        "print({'numpy', 'rich', 'pluggy', 'oxidize_bad'} & set(sys.modules)); sys.exit(status)"
    )
    done = machine.run(code=code)
    assert "bad    not-probed" in done.stdout
    assert done.stdout.splitlines()[-1] in ("set()", "{'pluggy'}")


def test_a_stale_install_and_a_broken_record_are_named_and_the_rest_is_found(machine):
    make_distribution(machine.folder, "oxidize-stale", "1.0", {"oxidize.backends": {"stale": "oxidize_stale:Backend"}})
    make_distribution(machine.folder, "hollow", "1.0", metadata="")
    done = machine.run("list")
    assert "stale install of oxidize-stale 1.0" in done.stdout
    assert "numpy  available" in done.stdout
    assert done.stderr.startswith("warning: skipped the broken installation record")
    assert "hollow-1.0.dist-info" in done.stderr
    assert "Warning" not in done.stderr
    machine.run("list", "--no-probe", "--strict", status=1)


def test_the_plain_listing_has_no_control_characters_and_is_not_cut(machine):
    machine.plugin("long", devices=f"raise BackendUnavailable(Unavailable('NoDevice', {'word ' * 60!r}, 'the fix'))")
    out = machine.run("list", COLUMNS="40").stdout
    assert "\x1b" not in out
    assert ("word " * 60).strip() in out
    assert "fix: the fix" in out


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_no_color_means_no_colour_on_a_terminal(machine):
    import pty

    def on_a_terminal(**variables):
        main, end = pty.openpty()
        env = {**os.environ, "PYTHONPATH": str(machine.folder), "TERM": "xterm-256color", "COLUMNS": "100", **variables}
        env.pop("NO_COLOR", None) if "NO_COLOR" not in variables else None
        process = subprocess.Popen(
            [sys.executable, "-m", "oxidize_host", "list", "--no-probe"], stdout=end, stderr=end, env=env
        )
        os.close(end)
        out = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:
                break
            if not part:
                break
            out += part
        process.wait()
        os.close(main)
        return out.decode()

    assert "numpy" in on_a_terminal()
    assert "\x1b[2m" in on_a_terminal()
    assert "\x1b[3" not in on_a_terminal(NO_COLOR="1")


def test_an_unknown_command_and_a_missing_one_say_what_to_type(machine):
    assert "did you mean 'list'" in machine.run("lits", status=2).stderr
    assert "`oxidize --help`" in machine.run("xyzzy", status=2).stderr
    code = (
        "import sys, oxidize_host.scan as scan; scan.command_entries = dict;"
        "from oxidize_host.cli import main; sys.exit(main(['run', 'x.gguf']))"
    )
    assert 'pip install "oxidize-host[llm]"' in machine.run(code=code, status=2).stderr


def test_a_command_of_a_plugin_is_found_and_a_broken_one_says_so(machine):
    source = (
        "class Hello:\n    help = 'greets'\n    def add_arguments(self, parser): parser.add_argument('name')\n"
        "    def main(self, args): print('hello', args.name); return 7\n"
    )
    make_distribution(
        machine.folder, "oxidize-hello", "1.0", {"oxidize.commands": {"hello": "oxidize_hello:Hello.it"}},
        {"oxidize_hello": source + "Hello.it = Hello()\n"},
    )  # fmt: skip
    make_distribution(machine.folder, "oxidize-gone", "1.0", {"oxidize.commands": {"gone": "oxidize_gone:IT"}})
    assert machine.run("hello", "you", status=7).stdout == "hello you\n"
    assert "greets" in machine.run("hello", "--help").stdout
    assert "hello" in machine.run("--help").stdout
    done = machine.run("gone", status=1)
    assert "pip install --force-reinstall oxidize-gone" in done.stderr
    assert "Traceback" not in done.stderr


def test_usage_errors_are_two_and_the_version_is_printed(machine):
    machine.run("list", "--wrong", status=2)
    machine.run(status=2)
    machine.run("bench", "--formats", "q9_9", status=2)
    machine.run("bench", "--columns", "100", status=2)
    assert machine.run("--version").stdout.startswith("oxidize 0.")


def test_an_error_is_one_message_and_a_traceback_only_for_debugging(machine):
    done = machine.run("bench", "--device", "numpy:9", status=1)
    assert done.stderr.startswith("oxidize bench: error: there is no device 'numpy:9'")
    assert "Traceback" not in done.stderr
    assert "Traceback" in machine.run("bench", "--device", "numpy:9", status=1, OXIDIZE_DEBUG="1").stderr


def test_a_reader_that_leaves_is_no_error(machine):
    code = "import sys; from oxidize_host.cli import main; sys.exit(main(['list', '--json']))"
    env = {**os.environ, "PYTHONPATH": str(machine.folder)}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    process.stdout.close()
    stderr = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait() == 0
    assert "BrokenPipe" not in stderr


def test_an_interrupt_is_130_without_a_traceback(machine):
    code = "import sys; from oxidize_host import cli\ndef stop(words): raise KeyboardInterrupt\ncli._run = stop; sys.exit(cli.main(['list']))"
    assert machine.run(code=code, status=130).stderr == ""


def test_doctor_finds_what_is_wrong_and_says_how_to_mend_it(machine, tmp_path):
    machine.plugin("bad", head="raise ZeroDivisionError('on import')")
    (tmp_path / "file").write_text("")
    done = machine.run(
        "doctor", "--json", status=1, OXIDIZE_CACHE_DIR=str(tmp_path / "file" / "cache"), CUDA_VISIBLE_DEVICES="", OXIDIZE_DEVCE="cpu",
        OXIDIZE_DEVICE="nothing",
    )  # fmt: skip
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["plugin bad"]["verdict"] == "fail"
    assert checks["plugin numpy"]["verdict"] == "ok"
    assert checks["cache"]["verdict"] == "warn"
    assert "OXIDIZE_CACHE_DIR" in checks["cache"]["fix"]
    assert checks["CUDA_VISIBLE_DEVICES"]["verdict"] == "warn"
    assert checks["OXIDIZE_DEVCE"]["fix"] == "check its spelling"
    assert checks["OXIDIZE_DEVICE"]["verdict"] == "fail"


def test_the_bundle_holds_no_secrets(machine, tmp_path):
    bundle = tmp_path / "bundle.json"
    machine.plugin("chatty", devices="raise OSError('https://user:hunter2@host/x?token=abc123 failed')")
    machine.run(
        "doctor", "--bundle", str(bundle), status=1,
        OXIDIZE_API_TOKEN="s3cret-value", GITHUB_TOKEN="ghp_other", LD_LIBRARY_PATH=os.path.expanduser("~/lib"),
    )  # fmt: skip
    text = bundle.read_text()
    for secret in ("hunter2", "abc123", "s3cret-value", "ghp_other"):
        assert secret not in text
    report = json.loads(text)
    assert report["environment"]["LD_LIBRARY_PATH"] == "~/lib"
    assert "numpy" in report["packages"]
    assert "GITHUB_TOKEN" not in text
    done = machine.run("doctor", "--bundle", str(tmp_path / "no" / "folder.json"), status=1)
    assert "cannot write the bundle" in done.stderr


def test_redaction_keeps_what_is_no_secret():
    assert redact("libcuda.so.1: cannot open shared object file") == "libcuda.so.1: cannot open shared object file"
    assert "pass" not in redact("ftp://me:pass@host/file")
    assert redact('api_key="abc"').count("abc") == 0


def test_bench_measures_and_notices_a_wrong_kernel(machine, tmp_path):
    small = ("bench", "--device", "numpy", "--rows", "64", "--columns", "256", "--megabytes", "1", "--rounds", "2", "--json")
    report = json.loads(machine.run(*small, "--formats", "f32,q4_k").stdout)
    assert [row["format"] for row in report["gemv"]] == ["f32", "q4_k"]
    assert all(row["error"] < 1e-5 and not row["wrong"] and row["copies"] >= 1 for row in report["gemv"])
    assert report["launch"]["launch_ns"] > 0
    code = (
        "import sys, numpy as np; from oxidize_host.reference import kernels; from oxidize_host.cli import main\n"
        "right = kernels._BY_WEIGHT['gemv']\n"
        "def wrong(fmt, grid, block, out, *rest):\n    right(fmt, grid, block, out, *rest); out.view(np.float32)[5] *= 1.5\n"
        f"kernels._BY_WEIGHT['gemv'] = wrong; sys.exit(main({list(small)!r} + ['--op', 'gemv', '--formats', 'f32']))"
    )
    assert json.loads(machine.run(code=code, status=1).stdout)["gemv"][0]["wrong"]


def test_bench_draws_a_picture(machine, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "bench.png"
    words = (
        "bench",
        "--device",
        "numpy",
        "--op",
        "gemv",
        "--formats",
        "f32",
        "--rows",
        "8",
        "--columns",
        "256",
        "--megabytes",
        "1",
    )
    machine.run(*words, "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "cannot write the picture" in machine.run(*words, "--plot", str(tmp_path / "no" / "x.png"), status=1).stderr


def test_verify_without_a_device_says_why_and_fails(machine):
    machine.plugin("nocard", devices="raise BackendUnavailable(Unavailable('NoDevice', 'no card here'))")
    report = json.loads(machine.run("verify", "nocard", "--json", status=1).stdout)
    assert (report["ok"], report["reason"]["message"]) == (False, "no card here")
