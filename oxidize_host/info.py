"""What a backend says about itself: plain frozen records, without any logic of selection."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

__all__ = ["BuildInfo", "DeviceInfo", "DeviceKind", "MemoryInfo", "ReasonKind", "Unavailable"]

DeviceKind = Literal["cpu", "integrated", "discrete", "software", "other"]

ReasonKind = Literal[
    "NotInstalled",  # no distribution, or a dependency of it is missing
    "DriverMissing",  # a shared library or kernel driver is missing
    "DriverTooOld",
    "NoDevice",  # all is installed, and there is no device (or none with that index)
    "SoftwareOnly",  # only a software rasterizer answers
    "PermissionDenied",
    "HostTooOld",
    "HostTooNew",
    "ProbeTimeout",
    "ProbeCrashed",
    "PluginBug",  # the plugin raised what no rule allows, or breaks the contract
    "Duplicate",  # two distributions claim the name
    "WrongResults",  # the smoke test computed something else
]


@dataclasses.dataclass(frozen=True, slots=True)
class Unavailable:
    """Why something cannot be used.

    Parameters
    ----------
    kind
        One of `ReasonKind`.
    message
        What happened, with the value that caused it.
    fix
        What the user can do, as a command where there is one; empty when nothing helps.
    """

    kind: ReasonKind
    message: str
    fix: str = ""

    def __post_init__(self) -> None:
        """Refuse a kind that no reader would know."""
        if self.kind not in get_args(ReasonKind):
            raise ValueError(f"unknown kind of reason {self.kind!r}; one of {', '.join(get_args(ReasonKind))}")

    def __str__(self) -> str:
        """Return the message and, after a dash, the remedy."""
        return f"{self.message} - {self.fix}" if self.fix else self.message


@dataclasses.dataclass(frozen=True, slots=True)
class BuildInfo:
    """What a plugin was built against and what it found, without opening a device.

    Plugins subclass it (``CudaBuildInfo``) to add their own fields.

    Parameters
    ----------
    backend
        The plugin's name.
    version
        The plugin's version.
    driver
        The library or driver in use and its version, such as ``"numba 0.68"``; empty when none was found.
    usable
        Whether all that the plugin needs was found. It does not say that there is a device.
    details
        Further facts as (name, value) pairs, in the order to show them.
    """

    backend: str
    version: str
    driver: str = ""
    usable: bool = True
    details: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Memory of a device in bytes, and where the figures come from (``"/proc/meminfo"``); None is unknown."""

    total: int | None = None
    free: int | None = None
    source: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device of a backend.

    Parameters
    ----------
    name
        What the vendor calls it.
    kind
        ``software`` is a software rasterizer: never chosen automatically.
    uuid, pci
        Identity across backends and processes (``0000:65:00.0`` for PCI); empty when unknown.
    memory
        Total and free bytes, with their source.
    max_block
        The largest product of ``block``, or 0 for no limit.
    dialect
        What ``compile`` takes: ``"python"``, ``"cuda"``, ``"hip"``, ``"msl"``, ``"spirv"``, ``"wgsl"``; empty for none.
    """

    name: str
    kind: DeviceKind = "other"
    uuid: str = ""
    pci: str = ""
    memory: MemoryInfo = MemoryInfo()
    max_block: int = 0
    dialect: str = ""

    def __post_init__(self) -> None:
        """Refuse a kind that the selector cannot rank."""
        if self.kind not in get_args(DeviceKind):
            raise ValueError(f"unknown kind of device {self.kind!r}; one of {', '.join(get_args(DeviceKind))}")
