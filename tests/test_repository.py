"""One shape for every plugin, and one way into the host."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

import oxidize_host

REPOSITORY = Path(__file__).parents[1]
PLUGINS = sorted(path for path in (REPOSITORY / "plugins").iterdir() if path.is_dir())
BACKENDS = [path for path in PLUGINS if path.name != "oxidize-llm"]
PUBLIC_MODULES = {"ops", "quant", "testing", "trace"}


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_has_metadata_a_readme_and_tests(plugin):
    project = tomllib.loads((plugin / "pyproject.toml").read_text())
    assert project["project"]["name"] == plugin.name
    assert set(project) <= {"build-system", "project", "tool"}
    assert set(project.get("tool", {})) <= {"hatch"}, "tools are configured once, in the root pyproject"
    assert (plugin / "README.md").stat().st_size > 200
    assert list((plugin / "tests").glob("test_*.py"))


@pytest.mark.parametrize("plugin", BACKENDS, ids=lambda path: path.name)
def test_a_backend_has_the_shape_of_all_backends(plugin):
    package = plugin / "src" / plugin.name.replace("-", "_")
    for part in ("__init__.py", "backend.py", "compiler.py", "kernels", "py.typed"):
        assert (package / part).exists(), part
    assert (package / "driver.py").exists() or (package / "driver").is_dir()
    assert (plugin / "tests" / "test_conformance.py").exists()
    entries = tomllib.loads((plugin / "pyproject.toml").read_text())["project"]["entry-points"]
    assert entries["oxidize.backends"] == {plugin.name.removeprefix("oxidize-"): f"{package.name}.backend:{_class(package)}"}
    assert entries["oxidize.api"] == {plugin.name.removeprefix("oxidize-"): f"v{oxidize_host.API_VERSION}"}


def _class(package: Path) -> str:
    tree = ast.parse((package / "backend.py").read_text())
    (name,) = (node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name.endswith("Backend"))
    return name


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_uses_only_public_names_of_the_host(plugin):
    for path in plugin.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "oxidize_host":
                module = node.module.partition(".")[2].partition(".")[0]
                public = PUBLIC_MODULES | set(oxidize_host.__all__)
                names = {alias.name for alias in node.names}
                assert module in PUBLIC_MODULES or (not module and names <= public), f"{path}: {ast.unparse(node)}"


def test_every_public_name_exists_and_has_a_docstring():
    for name in oxidize_host.__all__:
        value = getattr(oxidize_host, name)
        assert value.__doc__ if not isinstance(value, int | str) else value, name
