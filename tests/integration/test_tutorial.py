"""The backend of docs/tutorial.md, outside the repository: built, installed, listed, verified, as its text says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"


def files() -> dict[str, str]:
    """Return the tutorial's files by the name in the first line of their block."""
    blocks = re.findall(r"```(?:toml|python)\n# (\S+)\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    return dict(blocks)


def test_the_tutorials_backend_is_under_sixty_lines():
    assert set(files()) == {"pyproject.toml", "oxidize_toy.py", "tests/test_conformance.py"}
    assert len(files()["oxidize_toy.py"].splitlines()) < 60


def test_the_tutorials_backend_passes_verify_after_pip_install(environment, tmp_path):
    for name, text in files().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    environment.install(str(tmp_path), "oxidize-host[test]")
    listing = json.loads(environment.run("oxidize", "list", "--json").stdout)
    (row,) = (row for row in listing["plugins"] if row["name"] == "toy")
    assert (row["status"], row["distribution"]) == ("available", "oxidize-toy")
    report = json.loads(environment.run("oxidize", "verify", "toy", "--json").stdout)
    assert report["ok"]
    assert report["passed"] > 30
    assert report["unsupported"] > 0
    done = environment.run("pytest", "-q", str(tmp_path / "tests"), "-p", "no:cacheprovider", cwd=tmp_path)
    assert " passed" in done.stdout
