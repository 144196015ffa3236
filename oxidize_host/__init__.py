"""Every compute device behind one small Python API.

Importing this package runs no plugin code and scans nothing; it does not even import numpy. Each name below is loaded
when it is first used, so that `oxidize list` answers quickly on the largest installation and on the most broken one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from oxidize_host.version import __version__

if TYPE_CHECKING:
    from oxidize_host.cache import ArtifactCache, cache_root
    from oxidize_host.device import Device
    from oxidize_host.errors import (
        BackendNotFound,
        BackendUnavailable,
        ClosedError,
        CompileError,
        DeviceLost,
        InvalidBackend,
        LaunchError,
        OutOfMemory,
        OxidizeError,
        OxidizeWarning,
        ShapeError,
        UnsupportedOp,
    )
    from oxidize_host.hookspecs import hookimpl
    from oxidize_host.hostmem import host_memory_info
    from oxidize_host.info import BuildInfo, DeviceInfo, MemoryInfo, Unavailable
    from oxidize_host.kernel import BoundLaunch, Kernel, LaunchConfig, Module, kernel_name, launch
    from oxidize_host.memory import Buffer
    from oxidize_host.registry import register_backend, register_observer, unregister_backend, unregister_observer
    from oxidize_host.select import Selection
    from oxidize_host.stream import Event, Stream
    from oxidize_host.version import API_VERSION

__all__ = [
    "API_VERSION",
    "ArtifactCache",
    "BackendNotFound",
    "BackendUnavailable",
    "BoundLaunch",
    "Buffer",
    "BuildInfo",
    "ClosedError",
    "CompileError",
    "Device",
    "DeviceInfo",
    "DeviceLost",
    "Event",
    "InvalidBackend",
    "Kernel",
    "LaunchConfig",
    "LaunchError",
    "MemoryInfo",
    "Module",
    "OutOfMemory",
    "OxidizeError",
    "OxidizeWarning",
    "Selection",
    "ShapeError",
    "Stream",
    "Unavailable",
    "UnsupportedOp",
    "__version__",
    "cache_root",
    "hookimpl",
    "host_memory_info",
    "kernel_name",
    "launch",
    "register_backend",
    "register_observer",
    "unregister_backend",
    "unregister_observer",
]

_ERRORS = (
    "BackendNotFound BackendUnavailable ClosedError CompileError DeviceLost InvalidBackend LaunchError OutOfMemory OxidizeError "
    "OxidizeWarning ShapeError UnsupportedOp"
)
_HOME = {
    name: module
    for module, names in {
        "cache": "ArtifactCache cache_root",
        "device": "Device",
        "errors": _ERRORS,
        "hookspecs": "hookimpl",
        "hostmem": "host_memory_info",
        "info": "BuildInfo DeviceInfo MemoryInfo Unavailable",
        "kernel": "BoundLaunch Kernel LaunchConfig Module kernel_name launch",
        "memory": "Buffer",
        "registry": "register_backend register_observer unregister_backend unregister_observer",
        "select": "Selection",
        "stream": "Event Stream",
        "version": "API_VERSION",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names and what is loaded."""
    return sorted({*globals(), *__all__})
