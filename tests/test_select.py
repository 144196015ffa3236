"""Selection: exactly what was named, or the best with the reasons; never something else in silence."""

from __future__ import annotations

import itertools
import json

import pytest
from machine import Machine

import oxidize_host as ox
from oxidize_host import DeviceInfo, OxidizeWarning, select
from oxidize_host.select import Candidate


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "site")


def order(*found):
    chosen = select.weigh(found, [], lambda *_: None)
    return [candidate.id for candidate in chosen.candidates]


def test_the_ranking_is_discrete_integrated_cpu_other_cpus_numpy():
    kinds = [
        ("numpy", "cpu"),
        ("mlx", "cpu"),
        ("cpu", "cpu"),
        ("vulkan", "integrated"),
        ("vulkan", "discrete"),
        ("npu", "other"),
    ]
    found = [(name, i, DeviceInfo("x", kind=kind)) for i, (name, kind) in enumerate(kinds)]
    assert order(*found) == ["vulkan:4", "vulkan:3", "cpu:2", "mlx:1", "npu:5", "numpy:0"]


def test_the_more_specific_backend_comes_first_on_one_card():
    names = ["webgpu", "vulkan", "third", "mlx", "metal", "strix", "cuda"]
    found = [(name, 0, DeviceInfo("x", kind="discrete")) for name in names]
    wanted = ["cuda:0", "strix:0", "metal:0", "mlx:0", "third:0", "vulkan:0", "webgpu:0"]
    for shuffled in itertools.islice(itertools.permutations(found), 50):
        assert order(*shuffled) == wanted


def test_a_software_device_is_never_chosen_and_works_by_name():
    chosen = select.weigh([("vulkan", 0, DeviceInfo("llvmpipe", kind="software"))], [], lambda *_: None)
    assert chosen.device == ""
    assert chosen.candidates[0].verdict == "software"
    assert select.pick("vulkan", "", [DeviceInfo("llvmpipe", kind="software")]) == 0
    assert select.pick("vulkan", "", [DeviceInfo("llvmpipe", kind="software"), DeviceInfo("Arc", kind="discrete")]) == 1


def test_the_next_device_is_taken_when_the_best_refuses():
    found = [("cuda", 0, DeviceInfo("a", kind="discrete")), ("cpu", 0, DeviceInfo("b", kind="cpu"))]
    refusal = Candidate("cuda:0", "a", "unavailable", "wrong results")
    chosen = select.weigh(found, [], lambda name, index, info: refusal if name == "cuda" else None)
    assert chosen.device == "cpu:0"
    assert chosen.candidates[0] is refusal


def test_the_choice_is_the_same_under_twenty_hash_seeds(machine):
    for name in ("zeta", "alpha", "mid"):
        machine.plugin(name)
    code = (
        "from oxidize_host import registry, select; found = [(n, 0, select.device_infos(registry.load(n))[0]) "
        "for n in set(registry.entries())]; print(select.weigh(found, [], lambda *_: None).candidates)"
    )
    said = {machine.run(code=code, PYTHONHASHSEED=str(seed)).stdout for seed in range(20)}
    assert len(said) == 1
    assert "alpha:0" in said.pop()[:60]


def test_a_plugin_that_fails_is_named_in_a_warning_and_strict_fails(machine):
    machine.plugin("bad", head="raise ZeroDivisionError('on import')")
    code = "import oxidize_host as ox; print(ox.Device().selection.as_dict())"
    done = machine.run(code=code)
    for part in ("'bad'", "oxidize-bad 1.0", "ZeroDivisionError: on import", "OXIDIZE_STRICT=1"):
        assert part in done.stderr, part
    assert "'bad'" in done.stdout
    strict = machine.run(code=code, OXIDIZE_STRICT="1", status=1)
    assert "InvalidBackend" in strict.stderr


def test_missing_hardware_is_normal_and_only_in_the_explanation(machine):
    machine.plugin("nocard", devices="raise BackendUnavailable(Unavailable('NoDevice', 'no card here'))")
    done = machine.run(code="import oxidize_host as ox; print(ox.Device().selection)", OXIDIZE_STRICT="1")
    assert "nocard" not in done.stderr
    assert "nocard (oxidize-nocard 1.0): unavailable: no card here" in done.stdout


def test_a_named_device_never_becomes_another(machine):
    machine.plugin("nocard", devices="raise BackendUnavailable(Unavailable('NoDevice', 'no card here', 'buy one'))")
    for variables, code in (
        ({}, "import oxidize_host as ox; ox.Device('nocard')"),
        ({"OXIDIZE_DEVICE": "nocard"}, "import oxidize_host as ox; ox.Device()"),
    ):
        done = machine.run(code=code, status=1, **variables)
        assert "BackendUnavailable: no card here - buy one" in done.stderr


def test_the_reference_backend_says_that_it_is_the_last_resort(monkeypatch):
    from oxidize_host import registry

    monkeypatch.setattr(registry, "scan", lambda real=registry.scan: {k: v for k, v in real().items() if k == "numpy"})
    with pytest.warns(OxidizeWarning, match=r"slow reference backend.*pip install"):
        device = ox.Device()
    assert device.id == "numpy:0"
    assert "the reference backend" in str(device.selection)


def test_none_usable_lists_every_reason(monkeypatch, register):
    from oxidize_host import registry

    monkeypatch.setattr(registry, "scan", dict)
    monkeypatch.setattr(registry, "_registered", {})
    with pytest.raises(ox.BackendUnavailable, match="no usable device"):
        ox.Device()


def test_why_names_the_choice_and_opens_nothing(machine):
    machine.plugin("nocard", devices="raise BackendUnavailable(Unavailable('NoDevice', 'no card here'))")
    machine.plugin("card")
    done = machine.run("why", "--json")
    why = json.loads(done.stdout)
    assert why["device"] == "card:0"
    assert {candidate["id"]: candidate["verdict"] for candidate in why["candidates"]}["nocard"] == "unavailable"
    assert not machine.opened()


def test_why_agrees_with_the_real_choice(machine):
    machine.plugin("nocard", devices="raise BackendUnavailable(Unavailable('NoDevice', 'no card here'))")
    why = json.loads(machine.run("why", "--json").stdout)
    chosen = json.loads(
        machine.run(code="import json, oxidize_host as ox; print(json.dumps(ox.Device().selection.as_dict()))").stdout
    )
    assert why == chosen


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "numpy:7"], "numpy:0 is NumPy"),
        (["--device", "nothing"], "installed: "),
        (["--device", "numpy:"], "names no device"),
        (["--device", "cuda"], 'pip install "oxidize-host[cuda]"'),
    ],
)
def test_why_an_unknown_device_lists_what_there_is(machine, words, said):
    assert said in machine.run("why", *words, status=1).stderr


def test_the_environment_variable_is_named_in_the_answer(machine):
    why = json.loads(machine.run("why", "--json", OXIDIZE_DEVICE="numpy").stdout)
    assert (why["device"], why["how"]) == ("numpy:0", "OXIDIZE_DEVICE")
