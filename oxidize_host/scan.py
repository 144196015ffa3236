"""Read the entry points of installed distributions, each guarded: one broken dist-info must not hide the others."""

from __future__ import annotations

import configparser
import dataclasses
import re
import site
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import importlib_metadata

from oxidize_host.errors import OxidizeWarning
from oxidize_host.info import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["API_GROUP", "BACKEND_GROUP", "COMMAND_GROUP", "BackendEntry", "command_entries", "scan"]

BACKEND_GROUP = "oxidize.backends"
API_GROUP = "oxidize.api"
COMMAND_GROUP = "oxidize.commands"

Groups = dict[str, dict[str, str]]
"""Entry points: value by name, by group."""


@dataclasses.dataclass(frozen=True, slots=True)
class BackendEntry:
    """One named backend as metadata shows it; nothing of it has been imported.

    Parameters
    ----------
    name
        What the user types.
    distribution, version
        Who provides it.
    value
        The entry point, ``"module:attribute"``; empty for one registered by hand.
    api_version
        The contract stated in the metadata (group ``oxidize.api``), or None.
    location
        The folder that holds the distribution.
    target
        The object, for one registered by hand.
    problem
        Why it cannot be loaded, when metadata alone shows that.
    editable
        Installed as a link to a source tree.
    """

    name: str
    distribution: str
    version: str
    value: str
    api_version: int | None
    location: Path | None
    target: object = None
    problem: Unavailable | None = None
    editable: bool = False

    @property
    def label(self) -> str:
        """Return distribution and version, as messages show them."""
        return f"{self.distribution} {self.version}".strip()


def scan() -> dict[str, BackendEntry]:
    """Return the backends that installed distributions name; warns (`OxidizeWarning`) about unreadable ones."""
    found: dict[str, BackendEntry] = {}
    for dist, groups in _distributions():
        distribution, version = _identity(dist)
        apis = groups.get(API_GROUP, {})
        for name, value in groups.get(BACKEND_GROUP, {}).items():
            record = BackendEntry(
                name,
                distribution,
                version,
                value,
                _api_version(apis.get(name)),
                Path(str(dist.locate_file(""))).resolve(),
                editable=_editable(dist),
            )
            if (other := found.get(name)) is not None:
                record = dataclasses.replace(other, problem=_duplicate(other, record))
            found[name] = record
    return found


def command_entries() -> dict[str, importlib_metadata.EntryPoint]:
    """Return the CLI sub-commands that installed distributions add, by name."""
    return {
        name: importlib_metadata.EntryPoint(name, value, COMMAND_GROUP)
        for _, groups in _distributions()
        for name, value in groups.get(COMMAND_GROUP, {}).items()
    }


def _duplicate(first: BackendEntry, second: BackendEntry) -> Unavailable:
    names = sorted({first.distribution, second.distribution} | set(re.findall(r"`(.+?)`", str(first.problem or ""))))
    return Unavailable(
        "Duplicate",
        f"backend {first.name!r} is claimed by " + " and ".join(f"`{name}`" for name in names),
        "pip uninstall one of them",
    )


def _distributions() -> Iterator[tuple[Any, Groups]]:
    """Yield each distribution that mentions an oxidize group, once, with its entry points.

    The first of a name on the path shadows later ones, as it does for imports; so the same one reached twice
    through a linked lib64 counts once. Metadata is parsed only where the text mentions us: parsing all of a
    large environment costs more than everything else in `oxidize list`.
    """
    seen: set[str] = set()
    for dist in importlib_metadata.distributions(path=_search_path()):
        where = getattr(dist, "_path", None) or dist.locate_file("")
        try:
            text = dist.read_text("entry_points.txt") or ""
            if "oxidize." not in text:
                if _looks_broken(dist, where):
                    raise ValueError("it has no readable metadata")
                continue
            groups = _parse(text)
            name = re.sub(r"[-_.]+", "-", _identity(dist)[0]).lower()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the others must be found
            warnings.warn(
                f"skipped the broken installation record {where}: {type(error).__name__}: {error}; "
                "delete it or reinstall its package",
                OxidizeWarning,
                stacklevel=4,
            )
            continue
        if name not in seen:
            seen.add(name)
            yield dist, groups


def _looks_broken(dist: Any, where: object) -> bool:
    """Tell an empty dist-info from a healthy one without parsing it; an egg-link or a bare .egg-info file is healthy."""
    if not str(where).endswith(".dist-info"):
        return False
    return not (dist.read_text("METADATA") or "").strip()


def _identity(dist: Any) -> tuple[str, str]:
    """Return name and version from the head of the metadata; parsing all of it as mail takes longer than the whole scan."""
    text = dist.read_text("METADATA") or dist.read_text("PKG-INFO") or ""
    head = re.split(r"\r?\n\r?\n", text, maxsplit=1)[0]
    fields = {
        key.lower(): value.strip() for key, value in re.findall(r"^(Name|Version):(.*)$", head, re.MULTILINE | re.IGNORECASE)
    }
    if not fields.get("name") or not fields.get("version"):
        raise ValueError("its metadata names no package or no version")
    return fields["name"], fields["version"]


def _parse(text: str) -> Groups:
    """Return name and value of each entry point by group; the file is an INI file by the packaging specification."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # names are case-sensitive
    parser.read_string(text)
    return {group: dict(parser.items(group)) for group in parser.sections() if group.startswith("oxidize.")}


def _api_version(value: str | None) -> int | None:
    match = re.fullmatch(r"v(\d+)", value or "")
    return int(match[1]) if match else None


def _editable(dist: Any) -> bool:
    import json

    try:
        origin = json.loads(dist.read_text("direct_url.json") or "{}")
    except ValueError:
        return False
    return bool(origin.get("dir_info", {}).get("editable"))


def _search_path() -> list[str]:
    """Return ``sys.path`` without the current directory: a backend is an installed package, never a stray folder."""
    here = Path.cwd().resolve()
    installed = {Path(folder).resolve() for folder in (*site.getsitepackages(), site.getusersitepackages())}
    return [folder for folder in sys.path if folder and (Path(folder).resolve() != here or here in installed)]
