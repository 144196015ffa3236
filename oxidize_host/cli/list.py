"""``oxidize list``: every plugin, its status, the reason and the fix, and the devices."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

from oxidize_host import registry

if TYPE_CHECKING:
    import argparse

    from oxidize_host.info import DeviceInfo
    from oxidize_host.probe import Probe

__all__ = ["add_arguments", "device_row", "main", "plugin_row"]

_BAD = ("broken", "incompatible", "duplicate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--no-probe", action="store_true", help="only what metadata shows: run no plugin code")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a plugin or an installation record is broken")


def main(args: argparse.Namespace) -> int:
    """Run the command."""
    from oxidize_host.probe import probe_all, unprobed

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        entries = registry.entries()
    for warning in caught:
        warnings.showwarning(warning.message, warning.category, "", 0)
    probes = [unprobed(entry) for entry in entries.values()] if args.no_probe else probe_all(entries.values())
    if args.json:
        import json

        from oxidize_host import API_VERSION, __version__

        host = {"version": __version__, "api_version": API_VERSION}
        print(json.dumps({"schema": 1, "host": host, "plugins": [plugin_row(probe) for probe in probes]}, indent=2))
    else:
        from oxidize_host.cli.render import show

        show(probes)
    return int(args.strict and (bool(caught) or any(probe.status in _BAD for probe in probes)))


def plugin_row(probe: Probe) -> dict[str, Any]:
    """Return a plugin as ``list --json`` shows it."""
    entry = probe.entry
    return {
        "name": entry.name,
        "distribution": entry.distribution,
        "version": entry.version,
        "api_version": entry.api_version,
        "entry_point": entry.value,
        "status": probe.status,
        "stage": probe.stage,
        "reason": dataclasses.asdict(probe.reason) if probe.reason else None,
        "build_info": probe.build_info,
        "probe_ms": probe.milliseconds,
        "devices": [device_row(f"{entry.name}:{index}", info) for index, info in enumerate(probe.devices)],
    }


def device_row(device: str, info: DeviceInfo) -> dict[str, Any]:
    """Return a device as ``list --json`` shows it."""
    memory = dataclasses.asdict(info.memory)
    return {"id": device, "uuid": info.uuid, "pci": info.pci, "name": info.name, "kind": info.kind, "memory": memory}
