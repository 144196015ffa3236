"""Compiled artefacts on disk: atomic, checked, and never a reason to fail.

An entry is one file: a header line with the format and the SHA-256 of the payload, then the payload.
The key is hashed into the file's name *and* stored in the header, so that neither a hash collision nor
a file copied from another machine can hand foreign bytes to a driver. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ArtifactCache", "cache_root"]

_MAGIC = b"oxidize-artifact-1\n"


def cache_root() -> Path:
    """Return the folder that holds every oxidize cache.

    ``OXIDIZE_CACHE_DIR`` if it is set, else the platform's own place for caches
    (``XDG_CACHE_HOME``, ``~/Library/Caches`` or ``%LOCALAPPDATA%``).
    """
    if override := os.environ.get("OXIDIZE_CACHE_DIR"):
        return Path(override)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "oxidize"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "oxidize"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oxidize"


class ArtifactCache:
    """A folder of compiled artefacts, for one backend.

    Parameters
    ----------
    name
        The backend's name; the artefacts lie in ``cache_root() / name``.
    root
        Another folder to use instead of ``cache_root()``.

    Notes
    -----
    Reading and writing never raise on a full, read-only or damaged disk: a cache that does not work is a
    slow start, not an error. ``problems`` keeps what went wrong, for ``oxidize doctor``.
    """

    def __init__(self, name: str, *, root: Path | None = None) -> None:
        self.folder = (root or cache_root()) / name
        self.problems: list[str] = []

    def path(self, key: Mapping[str, object]) -> Path:
        """Return where the artefact of ``key`` lies, whether or not it exists."""
        return self.folder / f"{hashlib.sha256(_canonical(key)).hexdigest()[:40]}.bin"

    def get(self, key: Mapping[str, object]) -> bytes | None:
        """Return the payload stored under ``key``, or None; a damaged entry is put aside and is a miss."""
        path = self.path(key)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self.problems.append(f"cannot read {path}: {error}")
            return None
        header, _, payload = raw.removeprefix(_MAGIC).partition(b"\n")
        digest, _, stored_key = header.partition(b" ")
        if raw.startswith(_MAGIC) and stored_key == _canonical(key) and digest == _digest(payload):
            return payload
        self._put_aside(path)
        return None

    def put(self, key: Mapping[str, object], payload: bytes) -> None:
        """Store ``payload`` under ``key``; of two writers at once, the last one wins and both succeed."""
        path = self.path(key)
        temporary = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".tmp", delete=False) as file:
                temporary = file.name
                file.write(_MAGIC + _digest(payload) + b" " + _canonical(key) + b"\n" + payload)
            Path(temporary).replace(path)
        except OSError as error:
            self.problems.append(f"cannot write {path}: {error}")
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)

    def _put_aside(self, path: Path) -> None:
        """Keep a damaged entry for inspection under another name, so that the next read is a plain miss."""
        aside = path.with_suffix(".damaged")
        try:
            path.replace(aside)
        except OSError as error:
            self.problems.append(f"cannot put aside {path}: {error}")
        else:
            self.problems.append(f"damaged cache entry, put aside as {aside}")


def _canonical(key: Mapping[str, object]) -> bytes:
    return json.dumps(dict(key), sort_keys=True, separators=(",", ":")).encode()


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(payload).hexdigest().encode()
