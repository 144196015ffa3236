"""Fresh environments with the built wheels installed as pip would install them from an index."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("", "plugins/oxidize-cpu", "plugins/oxidize-llm")


@dataclasses.dataclass(frozen=True)
class Environment:
    """A virtual environment without anything but pip and what a test installs."""

    folder: Path
    wheelhouse: Path

    @property
    def bin(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    def install(self, *requirements: str, extra_wheels: Path | None = None) -> None:
        links = ["--find-links", str(self.wheelhouse), *(["--find-links", str(extra_wheels)] if extra_wheels else [])]
        self.run("python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *links, *requirements)

    def run(
        self, program: str, *args: str, check: bool = True, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PYTHON", "OXIDIZE_")) or key == "OXIDIZE_CACHE_DIR"
        }
        env |= {"PATH": f"{self.bin}{os.pathsep}{env.get('PATH', '')}", "PYTHONSAFEPATH": "1", **environment}
        done = subprocess.run(
            [str(self.bin / program), *args],
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd or self.folder,
            env=env,
            timeout=280,
        )
        if check and done.returncode:
            pytest.fail(f"{program} {' '.join(args)} exited with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory) -> Path:
    """The folder of built wheels: the one that nox made, or built here."""
    if (made := os.environ.get("OXIDIZE_WHEELHOUSE")) and any(Path(made).glob("oxidize_host-*.whl")):
        return Path(made)
    folder = tmp_path_factory.mktemp("wheelhouse")
    for package in PACKAGES:
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(REPOSITORY / package)], check=True
        )
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory, wheelhouse) -> Environment:
    """A fresh environment, one a module."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True, symlinks=os.name != "nt")
    return Environment(folder, wheelhouse)
