"""Write installed distributions by hand: a ``.dist-info`` folder and its modules, as pip would leave them.

For tests of discovery: put the folder on ``sys.path`` (or in a child's ``PYTHONPATH``) and the entry points are found.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["make_distribution"]


def make_distribution(
    folder: str | os.PathLike[str],
    name: str,
    version: str = "1.0",
    entry_points: Mapping[str, Mapping[str, str]] | None = None,
    modules: Mapping[str, str] | None = None,
    *,
    api: Mapping[str, int] | None = None,
    metadata: str | None = None,
) -> Path:
    """Write a distribution into ``folder`` and return the path of its ``.dist-info``.

    Parameters
    ----------
    folder
        A site folder; made if it is missing.
    name, version
        Of the distribution.
    entry_points
        By group, then by name: ``{"oxidize.backends": {"mydev": "oxidize_mydev:Backend"}}``.
    modules
        Source text by path relative to ``folder``: ``{"oxidize_mydev/__init__.py": "..."}``, or by dotted module name for
        a single-file module: ``{"oxidize_mydev": "..."}``.
    api
        The contract stated per backend, as the group ``oxidize.api``.
    metadata
        The whole text of METADATA instead of the minimal one; ``""`` makes a broken installation.
    """
    site = Path(folder)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    written = [_write(site / _file_name(module), source) for module, source in (modules or {}).items()]
    if metadata is None:
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    groups = {group: dict(entries) for group, entries in (entry_points or {}).items()}
    if api:
        groups["oxidize.api"] = {backend: f"v{number}" for backend, number in api.items()}
    written.append(_write(info / "METADATA", metadata))
    written.append(_write(info / "INSTALLER", "oxidize_host.testing\n"))
    if groups:
        written.append(_write(info / "entry_points.txt", "\n".join(_section(*item) for item in groups.items())))
    record = [_record_line(site, path) for path in written]
    record.append(f"{(info / 'RECORD').relative_to(site).as_posix()},,")
    _write(info / "RECORD", "\n".join(record) + "\n")
    return info


def _file_name(module: str) -> str:
    return module if "/" in module or module.endswith(".py") else module.replace(".", "/") + ".py"


def _section(group: str, entries: Mapping[str, str]) -> str:
    return "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), ""])


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _record_line(site: Path, path: Path) -> str:
    content = path.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path.relative_to(site).as_posix()},sha256={digest},{len(content)}"
