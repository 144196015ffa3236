"""A machine with plugins of every kind, written as installed distributions, and the command line run on it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from oxidize_host.testing import make_distribution

if TYPE_CHECKING:
    from pathlib import Path

PLUGIN = """
from oxidize_host import BackendUnavailable, BuildInfo, DeviceInfo, MemoryInfo, Unavailable, hookimpl

{head}

class Backend:
    @hookimpl
    def build_info(self):
        return BuildInfo("{name}", "1.0", driver="made up")

    @hookimpl
    def devices(self):
        {devices}

    @hookimpl
    def open(self, index):
        open("{folder}/opened-{name}", "w").close()
        raise RuntimeError("opened")

    @hookimpl
    def alloc(self, nbytes): ...

    @hookimpl
    def copy(self, dst, src): ...

    @hookimpl
    def compile(self, source): ...

    @hookimpl
    def launch(self, kernel): ...
"""


class Machine:
    """Plugins in a folder of their own, beside those of this environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def plugin(self, name, devices="return [DeviceInfo('Card', kind='discrete')]", head="", **options):
        source = PLUGIN.format(name=name, devices=devices, head=head, folder=self.folder)
        entry_points = {"oxidize.backends": {name: f"oxidize_{name}:Backend"}}
        make_distribution(self.folder, f"oxidize-{name}", "1.0", entry_points, {f"oxidize_{name}": source}, **options)

    def run(self, *words, code=None, status=0, cwd=None, **variables):
        """Run ``oxidize WORDS``, or Python code; returns the finished process."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("OXIDIZE_") or key == "OXIDIZE_CACHE_DIR"}
        env |= {"PYTHONPATH": str(self.folder), "PYTHONSAFEPATH": "1", **variables}
        command = [sys.executable, *(["-c", code] if code else ["-m", "oxidize_host", *words])]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=env, cwd=cwd or self.folder.parent, timeout=120
        )
        assert status is None or done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def opened(self) -> list[str]:
        """Return the plugins of which a device was opened."""
        return [path.name for path in self.folder.glob("opened-*")]
