"""Make small wheels by hand, for stand-ins of plugins that are not written yet."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

STAND_IN = """
from oxidize_host import BackendUnavailable, BuildInfo, Unavailable, hookimpl


class Backend:
    @hookimpl
    def build_info(self):
        return BuildInfo("{name}", "0.1.0", usable=False)

    @hookimpl
    def devices(self):
        raise BackendUnavailable(Unavailable("DriverMissing", "lib{name}.so.1 not found", "install the driver of {name}"))

    @hookimpl
    def open(self, index): ...

    @hookimpl
    def alloc(self, nbytes): ...

    @hookimpl
    def copy(self, dst, src): ...

    @hookimpl
    def compile(self, source): ...

    @hookimpl
    def launch(self, kernel): ...
"""


def stand_in(folder: Path, name: str) -> Path:
    """Write a wheel ``oxidize-NAME`` 0.1.0 whose backend finds no driver."""
    package, info = f"oxidize_{name}", f"oxidize_{name}-0.1.0.dist-info"
    files = {
        f"{package}/__init__.py": "",
        f"{package}/backend.py": STAND_IN.format(name=name),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: oxidize-{name}\nVersion: 0.1.0\nRequires-Dist: oxidize-host\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[oxidize.backends]\n{name} = {package}.backend:Backend\n",
    }
    lines = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(text.encode())}")
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""])
    wheel = folder / f"oxidize_{name}-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel
