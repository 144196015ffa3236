"""Choose a device: parse what the user named, or rank what there is; and say why."""

from __future__ import annotations

import dataclasses
import os
import warnings
from typing import TYPE_CHECKING, Any, Literal, Self

from oxidize_host import registry
from oxidize_host.errors import BackendNotFound, BackendUnavailable, InvalidBackend, OxidizeError, OxidizeWarning
from oxidize_host.info import DeviceInfo, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oxidize_host.backend import Backend
    from oxidize_host.core import Core

__all__ = [
    "Candidate",
    "Found",
    "Selection",
    "choose",
    "device_infos",
    "named",
    "nothing_usable",
    "parse",
    "pick",
    "rank",
    "weigh",
]

Found = tuple[str, int, DeviceInfo]
Verdict = Literal["chosen", "usable", "software", "unavailable"]

_SPECIFIC = ("cuda", "strix", "metal", "mlx", "", "vulkan", "webgpu")  # "" stands for everybody else's
_EXPECTED = ("NoDevice", "DriverMissing", "SoftwareOnly")  # what any machine may say about hardware that it lacks


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """What was considered: a device (``"vulkan:0"``), or a backend that offers none (``"cuda"``).

    Parameters
    ----------
    id
        As `Device` takes it.
    name
        What the vendor calls the device; the distribution for a backend without one.
    verdict
        ``chosen``; ``usable``, but ranked behind; ``software``, which is never chosen automatically; ``unavailable``.
    why
        In words.
    reason
        Typed, where it is unavailable.
    """

    id: str
    name: str
    verdict: Verdict
    why: str
    reason: Unavailable | None = None

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.id} ({self.name}): {self.verdict}: {self.why}"


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """How a device came to be the one.

    Parameters
    ----------
    device
        Its id; empty if there was none.
    how
        ``"chosen automatically"``, ``"named by the caller"``, ``"OXIDIZE_DEVICE"``, ``"already open"``.
    candidates
        What was considered, best first.
    """

    device: str
    how: str
    candidates: tuple[Candidate, ...] = ()

    @classmethod
    def already_open(cls, device: str) -> Self:
        """Return the selection of a device reached through one of its buffers, streams or kernels."""
        return cls(device, "already open")

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """Return the choice, and a line for each candidate."""
        return "\n  ".join([f"{self.device or 'no device'}, {self.how}", *map(str, self.candidates)])


def rank(backend: str, info: DeviceInfo) -> tuple[int, int, str]:
    """Return the place of a device in the automatic choice: smaller is better, equal only for devices of one backend."""
    if backend == "numpy":
        kind = 9
    elif info.kind == "cpu":
        kind = 2 if backend == "cpu" else 3
    else:
        kind = {"discrete": 0, "integrated": 1, "other": 4, "software": 8}[info.kind]
    return kind, _SPECIFIC.index(backend if backend in _SPECIFIC else ""), backend


def device_infos(backend: Backend) -> Sequence[DeviceInfo]:
    """Return the devices of a backend, at least one.

    Raises
    ------
    BackendUnavailable
        There is none; what the backend raised that no rule allows has the kind ``PluginBug`` and is chained.
    InvalidBackend
        It returned something else than records of devices.
    """
    who = f"backend {backend.name!r} ({backend.distribution} {backend.version})"
    try:
        found = backend.devices()
    except (BackendUnavailable, InvalidBackend, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit and OSError too: one bad driver must stay one row
        said = f"{who}: listing its devices failed: {type(error).__name__}: {error}"
        raise BackendUnavailable(
            Unavailable("PluginBug", said, f"report it to the authors of {backend.distribution}")
        ) from error
    if not isinstance(found, list | tuple) or not all(isinstance(info, DeviceInfo) for info in found):
        raise InvalidBackend(f"{who}: devices() must return a list of DeviceInfo, not {found!r:.80}")
    if not found:
        raise BackendUnavailable(Unavailable("NoDevice", f"{who} finds no device"))
    return found


def parse(spec: str, how: str) -> tuple[str, str]:
    """Return the backend's name and the index or uuid (or an empty string) of ``"backend[:index|:uuid]"``.

    Raises
    ------
    BackendNotFound
        It is neither.
    """
    if not isinstance(spec, str):
        raise TypeError(f'a device is named by a string such as "cpu" or "cuda:1", not {type(spec).__name__}')
    name, colon, which = spec.strip().partition(":")
    if not name or (colon and not which):
        raise BackendNotFound(
            Unavailable(
                "NotInstalled", f"{how}: {spec!r} names no device", 'write "backend", "backend:index" or "backend:uuid"'
            )
        )
    return name, which


def pick(name: str, which: str, infos: Sequence[DeviceInfo]) -> int:
    """Return the index of the device that ``which`` means: an index, a uuid, or empty for the first that is not software.

    Raises
    ------
    BackendUnavailable
        There is no such device; those there are get listed.
    """
    if not which:
        return min(range(len(infos)), key=lambda i: (infos[i].kind == "software", i))
    if which.isascii() and which.isdigit() and int(which) < len(infos):
        return int(which)
    for index, info in enumerate(infos):
        if info.uuid and info.uuid.lower() == which.lower():
            return index
    there = "; ".join(f"{name}:{i} is {info.name}{f', uuid {info.uuid}' if info.uuid else ''}" for i, info in enumerate(infos))
    reason = Unavailable("NoDevice", f"there is no device '{name}:{which}': {there}", "`oxidize list` shows all")
    raise BackendUnavailable(reason)


def named(spec: str, how: str) -> tuple[str, int, Selection]:
    """Return backend, index and selection for ``"backend[:index|:uuid]"``: exactly that device or an exception.

    Raises
    ------
    BackendNotFound, BackendUnavailable, InvalidBackend
        As `parse`, `registry.load`, `device_infos` and `pick`.
    """
    name, which = parse(spec, how)
    infos = device_infos(registry.load(name))
    index = pick(name, which, infos)
    chosen = Candidate(f"{name}:{index}", infos[index].name, "chosen", how)
    return name, index, Selection(chosen.id, how, (chosen,))


def choose(open_core: Callable[[str, int], Core]) -> tuple[Selection, Core]:
    """Open the best usable device; the next one when that fails.

    With ``OXIDIZE_STRICT=1`` a plugin that does not work is an error; else it is skipped with an `OxidizeWarning`, unless it
    only says that this machine has no such hardware.

    Raises
    ------
    BackendUnavailable
        None is usable; every reason is listed.
    """
    found: list[Found] = []
    rejected: list[Candidate] = []
    for name, entry in registry.entries().items():
        try:
            infos = device_infos(registry.load(name))
        except OxidizeError as error:
            rejected.append(_unavailable(name, entry.label, error))
        else:
            found += [(name, index, info) for index, info in enumerate(infos)]
    opened: list[Core] = []

    def attempt(name: str, index: int, info: DeviceInfo) -> Candidate | None:
        try:
            opened.append(open_core(name, index))
        except (OxidizeError, MemoryError) as error:
            return _unavailable(f"{name}:{index}", info.name, error)
        return None

    selection = weigh(found, rejected, attempt)
    if not opened:
        raise nothing_usable(selection)
    if opened[0].backend.name == "numpy":
        _warn_of_the_reference(selection)
    return selection, opened[0]


def weigh(
    found: Sequence[Found],
    rejected: Sequence[Candidate],
    attempt: Callable[[str, int, DeviceInfo], Candidate | None],
) -> Selection:
    """Return the automatic choice: the best ranked device that is not software and that ``attempt`` does not turn down.

    Parameters
    ----------
    found
        Backend, index and record of every device.
    rejected
        Backends that offer none.
    attempt
        Called with the devices in order until it returns None; else it says why the device cannot be used.
    """
    chosen = ""
    considered: list[Candidate] = []
    for name, index, info in sorted(found, key=lambda item: (rank(item[0], item[2]), item[1])):
        device = f"{name}:{index}"
        if info.kind == "software":
            considered.append(
                Candidate(device, info.name, "software", "software is never chosen automatically; name it to use it")
            )
        elif chosen:
            considered.append(Candidate(device, info.name, "usable", f"ranked behind {chosen}"))
        elif (refusal := attempt(name, index, info)) is not None:
            considered.append(refusal)
        else:
            chosen = device
            considered.append(
                Candidate(device, info.name, "chosen", f"the best of what is usable here: {_describe(name, info)}")
            )
    return Selection(chosen, "chosen automatically", (*considered, *rejected))


def nothing_usable(selection: Selection) -> BackendUnavailable:
    """Return the error for a selection without a device, with every reason."""
    reasons = [candidate.reason or Unavailable("SoftwareOnly", str(candidate)) for candidate in selection.candidates]
    fix = 'pip install "oxidize-host[cpu]"; `oxidize doctor` checks this machine'
    return BackendUnavailable(Unavailable("NoDevice", "no usable device", fix), tuple(reasons))


def _unavailable(device: str, name: str, error: OxidizeError | MemoryError) -> Candidate:
    reason = error.reason if isinstance(error, BackendUnavailable) else Unavailable("PluginBug", str(error))
    if reason.kind not in _EXPECTED:
        if os.environ.get("OXIDIZE_STRICT", "") not in ("", "0"):
            raise error
        cause = f"; cause: {type(error.__cause__).__name__}: {error.__cause__}" if error.__cause__ else ""
        warnings.warn(
            f"skipped {device} ({name}) while choosing a device: {reason}{cause}; OXIDIZE_STRICT=1 makes this an error",
            OxidizeWarning,
            stacklevel=5,
        )
    return Candidate(device, name, "unavailable", str(reason), reason)


def _warn_of_the_reference(selection: Selection) -> None:
    rest = [str(candidate) for candidate in selection.candidates if candidate.verdict != "chosen"]
    others = "; ".join(rest) or "nothing else is installed"
    warnings.warn(
        f"nothing but the slow reference backend 'numpy' is usable: {others}; "
        'pip install "oxidize-host[cpu]", or name Device("numpy") to be rid of this warning',
        OxidizeWarning,
        stacklevel=4,
    )


def _describe(backend: str, info: DeviceInfo) -> str:
    kinds = {"discrete": "a discrete GPU", "integrated": "an integrated GPU", "cpu": "the processor", "other": "an accelerator"}
    return "the reference backend" if backend == "numpy" else kinds[info.kind]
