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

__all__ = ["Candidate", "Selection", "choose", "device_infos", "named", "rank"]

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


def named(spec: str, how: str) -> tuple[str, int, Selection]:
    """Return backend, index and selection for ``"backend"``, ``"backend:index"`` or ``"backend:uuid"``: that or an exception.

    Without an index it is the backend's first device that is not software, else its first.

    Raises
    ------
    BackendNotFound, BackendUnavailable, InvalidBackend
        As `registry.load` and `device_infos`; also when no device has this index or uuid (those there are get listed).
    """
    name, colon, which = spec.strip().partition(":")
    if not name or (colon and not which):
        raise BackendNotFound(
            Unavailable(
                "NotInstalled", f"{how}: {spec!r} names no device", 'write "backend", "backend:index" or "backend:uuid"'
            )
        )
    infos = device_infos(registry.load(name))
    if not colon:
        index: int | None = min(range(len(infos)), key=lambda i: (infos[i].kind == "software", i))
    elif which.isascii() and which.isdigit():
        index = int(which) if int(which) < len(infos) else None
    else:
        found = [i for i, info in enumerate(infos) if info.uuid and info.uuid.lower() == which.lower()]
        index = found[0] if found else None
    if index is None:
        there = "; ".join(
            f"{name}:{i} is {info.name}{f', uuid {info.uuid}' if info.uuid else ''}" for i, info in enumerate(infos)
        )
        raise BackendUnavailable(Unavailable("NoDevice", f"there is no device {spec!r}: {there}", "`oxidize list` shows all"))
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
    ranked, rejected = _candidates()
    best: Core | None = None
    considered: list[Candidate] = []
    for _, name, index, info in ranked:
        device = f"{name}:{index}"
        if info.kind == "software":
            considered.append(
                Candidate(device, info.name, "software", "software is never chosen automatically; name it to use it")
            )
        elif best is not None:
            considered.append(Candidate(device, info.name, "usable", f"ranked behind {best.id}"))
        else:
            try:
                best = open_core(name, index)
            except (OxidizeError, MemoryError) as error:
                considered.append(_unavailable(device, info.name, error))
            else:
                considered.append(
                    Candidate(device, info.name, "chosen", f"the best of what is usable here: {_describe(name, info)}")
                )
    considered += rejected
    if best is None:
        reasons = [candidate.reason or Unavailable("SoftwareOnly", str(candidate)) for candidate in considered]
        fix = 'pip install "oxidize-host[cpu]"; `oxidize doctor` checks this machine'
        raise BackendUnavailable(Unavailable("NoDevice", "no usable device", fix), tuple(reasons))
    if best.backend.name == "numpy":
        _warn_of_the_reference(considered)
    return Selection(best.id, "chosen automatically", tuple(considered)), best


def _candidates() -> tuple[list[tuple[tuple[int, int, str], str, int, DeviceInfo]], list[Candidate]]:
    """Return the devices of all backends, best first, and the backends without one."""
    ranked, rejected = [], []
    for name, entry in registry.entries().items():
        try:
            infos = device_infos(registry.load(name))
        except OxidizeError as error:
            rejected.append(_unavailable(name, entry.label, error))
        else:
            ranked += [(rank(name, info), name, index, info) for index, info in enumerate(infos)]
    return sorted(ranked, key=lambda item: (item[0], item[2])), rejected


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


def _warn_of_the_reference(considered: list[Candidate]) -> None:
    others = (
        "; ".join(str(candidate) for candidate in considered if candidate.verdict != "chosen") or "nothing else is installed"
    )
    warnings.warn(
        f"nothing but the slow reference backend 'numpy' is usable: {others}; "
        'pip install "oxidize-host[cpu]", or name Device("numpy") to be rid of this warning',
        OxidizeWarning,
        stacklevel=4,
    )


def _describe(backend: str, info: DeviceInfo) -> str:
    kinds = {"discrete": "a discrete GPU", "integrated": "an integrated GPU", "cpu": "the processor", "other": "an accelerator"}
    return "the reference backend" if backend == "numpy" else kinds[info.kind]
