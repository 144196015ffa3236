"""Probing: whatever a driver does in its own process, the listing completes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from machine import Machine

from oxidize_host import DeviceInfo, MemoryInfo, OxidizeError, probe
from oxidize_host.cli.render import cards
from oxidize_host.info import BuildInfo
from oxidize_host.scan import BackendEntry
from oxidize_host.testing import FaultyBackend


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "site")


def rows(machine, *words, **options):
    return {row["name"]: row for row in json.loads(machine.run("list", "--json", *words, **options).stdout)["plugins"]}


def die(signal):
    return f"import os, signal; os.kill(os.getpid(), signal.{signal}); import time; time.sleep(60)"


def test_a_driver_that_dies_is_a_row_with_the_signal_and_the_rest_is_listed(machine):
    for signal in ("SIGSEGV", "SIGABRT", "SIGILL"):
        machine.plugin(signal.lower(), devices=die(signal))
    machine.plugin("early", head=die("SIGSEGV"))
    machine.plugin("leaves", devices="import os; os._exit(3)")
    machine.plugin("healthy")
    found = rows(machine)
    for signal in ("SIGSEGV", "SIGABRT", "SIGILL"):
        row = found[signal.lower()]
        assert (row["status"], row["stage"], row["reason"]["kind"]) == ("broken", "loads", "ProbeCrashed")
        assert f"crashed: {signal} while backend {signal.lower()!r} (oxidize-{signal.lower()} 1.0)" in row["reason"]["message"]
        assert "listing its devices" in row["reason"]["message"]
    assert "being imported" in found["early"]["reason"]["message"]
    assert "exit status 3" in found["leaves"]["reason"]["message"]
    assert found["healthy"]["status"] == "available"
    assert found["numpy"]["status"] == "available"


def test_a_driver_that_hangs_is_killed_with_what_it_started(machine):
    child = f"{machine.folder}/child"
    hang = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); open({child!r}, 'w').write(str(p.pid));"
        "time.sleep(600)"
    )
    machine.plugin("hangs", devices=hang)
    start = time.monotonic()
    row = rows(machine, OXIDIZE_PROBE_TIMEOUT="2")["hangs"]
    assert time.monotonic() - start < 30
    assert (row["status"], row["reason"]["kind"]) == ("broken", "ProbeTimeout")
    assert "no answer within 2 s" in row["reason"]["message"]
    grandchild = int(Path(child).read_text())
    for _ in range(100):
        try:
            state = Path(f"/proc/{grandchild}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    pytest.fail("what the driver started is still running")


def test_a_child_that_cannot_be_killed_does_not_hold_up_the_listing(monkeypatch):
    """A process stuck in the kernel ignores SIGKILL; here the kill does nothing."""
    monkeypatch.setattr(probe, "_kill_group", lambda process: None)
    monkeypatch.setattr(probe, "_GRACE", 0.2)
    entry = BackendEntry("stuck", "oxidize-stuck", "1.0", "stuck:Backend", None, None)
    real, started = subprocess.Popen, []

    def popen(command, **options):
        process = real([command[0], "-c", "import time; time.sleep(60)"], **options)
        started.append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", popen)
    start = time.monotonic()
    (found,) = probe.probe_all([entry], seconds=0.5)
    assert time.monotonic() - start < 10
    assert found.reason.kind == "ProbeTimeout"
    for process in started:
        process.kill()
        process.wait()


def test_a_plugin_that_leaves_a_process_behind_does_not_hold_up_the_listing(machine):
    leave = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); return [DeviceInfo('A')]"
    machine.plugin("leaver", devices=leave)
    start = time.monotonic()
    assert rows(machine)["leaver"]["status"] == "available"
    assert time.monotonic() - start < 20


def test_what_a_plugin_prints_is_not_taken_for_the_report(machine):
    machine.plugin("talks", head='print(\'{"done": true, "devices": []}\')', devices="print('noise'); return [DeviceInfo('A')]")
    row = rows(machine)["talks"]
    assert (row["status"], len(row["devices"])) == ("available", 1)


def test_installed_loads_and_has_a_device_are_told_apart(machine):
    machine.plugin("good")
    machine.plugin("nodevice", devices="raise BackendUnavailable(Unavailable('NoDevice', 'no card', 'buy one'))")
    machine.plugin("noload", head="import a_module_that_is_not_there")
    found = rows(machine)
    assert {name: (found[name]["stage"], found[name]["status"]) for name in ("good", "nodevice", "noload")} == {
        "good": ("has a device", "available"),
        "nodevice": ("loads", "unavailable"),
        "noload": ("installed", "unavailable"),
    }
    assert found["nodevice"]["reason"] == {"kind": "NoDevice", "message": "no card", "fix": "buy one"}
    assert found["noload"]["reason"]["kind"] == "NotInstalled"
    assert not machine.opened()


def test_a_smoke_test_goes_one_stage_further(machine):
    machine.plugin("unopenable")
    report = json.loads(machine.run("doctor", "--json", status=1).stdout)
    found = {row["name"]: row for row in report["plugins"]}
    assert found["numpy"]["stage"] == "smoke-tested"
    assert (found["unopenable"]["stage"], found["unopenable"]["status"]) == ("has a device", "broken")


def test_a_software_device_is_listed_as_software(machine):
    machine.plugin("soft", devices="return [DeviceInfo('llvmpipe', kind='software')]")
    assert rows(machine)["soft"]["status"] == "software"


def test_a_failed_driver_and_what_it_said_are_shown(machine):
    machine.plugin("fails", devices="raise OSError('libfoo.so.1: version FOO_2 not found')")
    row = rows(machine)["fails"]
    assert (row["status"], row["reason"]["kind"]) == ("broken", "PluginBug")
    assert "oxidize-fails 1.0" in row["reason"]["message"]
    assert "libfoo.so.1: version FOO_2 not found" in row["reason"]["message"]


def test_nonsense_from_a_plugin_is_its_bug(machine):
    machine.plugin("nonsense", devices="return 'two'")
    assert rows(machine)["nonsense"]["status"] == "broken"


def test_too_new_and_duplicate_are_known_without_running_anything(machine):
    machine.plugin("future", head=f"open({str(machine.folder / 'opened-import')!r}, 'w')", api={"future": 99})
    machine.plugin("twice", head=f"open({str(machine.folder / 'opened-import')!r}, 'w')")
    from oxidize_host.testing import make_distribution

    make_distribution(machine.folder, "other-twice", "2.0", {"oxidize.backends": {"twice": "oxidize_twice:Backend"}})
    found = rows(machine)
    assert (found["future"]["status"], found["future"]["reason"]["kind"]) == ("incompatible", "HostTooOld")
    assert found["twice"]["status"] == "duplicate"
    assert "oxidize-twice" in found["twice"]["reason"]["message"]
    assert "other-twice" in found["twice"]["reason"]["message"]
    assert not machine.opened()


def test_a_backend_registered_by_hand_is_asked_in_this_process(register):
    name = register(FaultyBackend("oserror:devices"))
    from oxidize_host import registry

    (found,) = probe.probe_all([registry.entries()[name]])
    assert found.status == "broken"
    assert "libfaulty.so.1" in found.reason.message


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_a_bad_deadline_is_refused_by_name(monkeypatch, text):
    monkeypatch.setenv("OXIDIZE_PROBE_TIMEOUT", text)
    with pytest.raises(OxidizeError, match="OXIDIZE_PROBE_TIMEOUT"):
        probe.deadline()


def seen(name, *devices):
    entry = BackendEntry(name, f"oxidize-{name}", "1.0", "", None, None)
    return probe.Probe(entry, "available", devices=devices)


def card(uuid="", pci="", name="GeForce"):
    return DeviceInfo(name, kind="discrete", uuid=uuid, pci=pci, memory=MemoryInfo(1, 1, "made up"))


def test_one_card_seen_by_two_drivers_is_merged_and_four_equal_cards_stay_four():
    four = [card(uuid=f"GPU-{i}", pci=f"0000:0{i}:00.0") for i in range(4)]
    through_vulkan = [card(uuid=f"gpu-{i}") for i in (1, 0)]
    through_pci = [card(pci="0000:03:00.0", name="NVIDIA GeForce")]
    merged = cards([seen("cuda", *four), seen("vulkan", *through_vulkan), seen("webgpu", *through_pci)])
    assert merged == {"cuda:0": ["vulkan:1"], "cuda:1": ["vulkan:0"], "cuda:2": [], "cuda:3": ["webgpu:0"]}


def test_cards_without_identity_or_of_one_backend_are_never_merged():
    assert len(cards([seen("cuda", *[card() for _ in range(4)]), seen("vulkan", card())])) == 5
    assert len(cards([seen("cuda", card(uuid="x"), card(uuid="x"))])) == 2


def test_build_info_of_a_plugin_is_in_its_row(machine):
    machine.plugin("good")
    info = rows(machine)["good"]["build_info"]
    assert info["driver"] == "made up"
    assert set(BuildInfo.__dataclass_fields__) <= set(info)


def test_the_child_does_not_import_from_the_current_directory(machine, tmp_path):
    machine.plugin("good")
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "oxidize_good.py").write_text("raise SystemExit('from the current directory')")
    (trap / "json.py").write_text("raise SystemExit('from the current directory')")
    assert rows(machine, cwd=trap, PYTHONSAFEPATH="1")["good"]["status"] == "available"
    assert os.listdir(trap)
