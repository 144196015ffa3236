"""The code blocks of README and docs run, and the links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PAGES = [
    REPOSITORY / "README.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
    *sorted((REPOSITORY / "plugins").glob("*/README.md")),
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_python_blocks_run(page, tmp_path):
    # Blocks that begin with a file name are that file: tests/integration/test_tutorial.py installs them.
    code = [block for block in blocks(page, "python") if not re.match(r"# \S+\.py\n", block)]
    if not code:
        return
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(code))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_commands_exist(page):
    """Every ``oxidize ...`` line of a shell block is understood by the command line: its ``--help`` answers."""
    for block in blocks(page, "sh"):
        for line in re.findall(r"^oxidize (\S+)", block, re.MULTILINE):
            done = subprocess.run(
                [sys.executable, "-m", "oxidize_host", line, "--help"], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{line}: {done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
