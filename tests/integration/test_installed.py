"""What a user gets from pip: extras, plugins, commands, in an environment that has nothing else."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest
from wheels import stand_in

pytestmark = pytest.mark.integration

BACKENDS = ("cuda", "metal", "mlx", "strix", "vulkan", "webgpu")


@pytest.fixture(scope="module")
def cpu(environment):
    environment.install("oxidize-host[cpu]")
    return environment


def rows(environment, *args, **variables):
    listing = json.loads(environment.run("oxidize", "list", "--json", *args, **variables).stdout)
    assert listing["schema"] == 1
    return {row["name"]: row for row in listing["plugins"]}


def test_the_cpu_extra_brings_the_cpu_backend_and_it_is_chosen(cpu):
    listing = rows(cpu)
    assert {name: row["status"] for name, row in listing.items()} == {"cpu": "available", "numpy": "available"}
    assert listing["cpu"]["distribution"] == "oxidize-cpu"
    why = json.loads(cpu.run("oxidize", "why", "--json").stdout)
    assert "cpu:0" in json.dumps(why)
    assert cpu.run("python", "-c", "import oxidize_host; print(oxidize_host.Device().id)").stdout.strip() == "cpu:0"


def test_a_package_that_is_not_installed_is_named_with_the_command_that_brings_it(cpu):
    done = cpu.run("python", "-c", "import oxidize_host; oxidize_host.Device('cuda')", check=False)
    assert done.returncode == 1
    assert 'pip install "oxidize-host[cuda]"' in done.stderr
    done = cpu.run("oxidize", "run", "model.gguf", "-p", "x", check=False)
    assert done.returncode != 0
    assert "oxidize-host[llm]" in done.stderr
    assert "Traceback" not in done.stderr


def test_verify_passes_on_the_installed_backends(cpu):
    cpu.install("oxidize-host[test]")
    for name in ("numpy", "cpu"):
        report = json.loads(cpu.run("oxidize", "verify", name, "--json").stdout)
        assert report["ok"]
        assert report["passed"] > 100
        assert report["failed"] == 0


def test_the_example_runs_on_each_backend(cpu):
    example = Path(__file__).parents[2] / "examples" / "saxpy.py"
    for name in ("numpy", "cpu"):
        assert f"on {name}:0" in cpu.run("python", str(example), OXIDIZE_DEVICE=name).stdout


def test_two_extras_in_one_environment_and_every_extra_resolves(cpu, tmp_path):
    """The plugins of later releases are stood in for by wheels of the same name: what is tested is the host's metadata."""
    for name in BACKENDS:
        stand_in(tmp_path, name)
    cpu.install("oxidize-host[cuda,vulkan]", extra_wheels=tmp_path)
    listing = rows(cpu)
    assert {"cpu", "cuda", "numpy", "vulkan"} == set(listing)
    assert listing["cuda"]["reason"]["kind"] == "DriverMissing"
    assert listing["vulkan"]["reason"]["fix"] == "install the driver of vulkan"
    cpu.install("oxidize-host[all]", extra_wheels=tmp_path)
    # Metal is left out on Linux by its marker: it cannot serve any Linux machine.
    assert set(rows(cpu, "--no-probe")) == {"cpu", "numpy", *BACKENDS} - {"metal"}


def test_a_current_directory_with_a_folder_of_the_same_name_is_not_the_backend(cpu, tmp_path):
    (tmp_path / "oxidize_cpu").mkdir()
    (tmp_path / "oxidize_cpu" / "__init__.py").write_text("raise SystemExit('imported from the current directory')")
    done = cpu.run(
        "python", "-c", "import oxidize_host; print(oxidize_host.Device('cpu'))", cwd=tmp_path, check=False, PYTHONSAFEPATH=""
    )
    assert "would be imported from the current directory" in done.stderr
    assert "cpu" in json.dumps(rows(cpu, "--no-probe"))


def test_each_wheel_owns_one_import_package_and_is_typed(wheelhouse):
    owners: dict[str, str] = {}
    wheels = list(wheelhouse.glob("oxidize_*.whl"))
    assert len(wheels) >= 3
    for wheel in wheels:
        names = zipfile.ZipFile(wheel).namelist()
        packages = {name.partition("/")[0] for name in names if not re.match(r"[^/]+\.dist-info/", name)}
        assert len(packages) == 1, f"{wheel.name} has {packages}"
        (package,) = packages
        assert owners.setdefault(package, wheel.name) == wheel.name
        assert f"{package}/py.typed" in names
        assert not [name for name in names if "/tests/" in name]
