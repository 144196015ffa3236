"""Tables: with colour and borders on a terminal, plain lines in a pipe."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oxidize_host.info import DeviceInfo
    from oxidize_host.probe import Probe

__all__ = ["cards", "device_text", "show"]

_COLOURS = {"available": "green", "software": "yellow", "unavailable": "yellow", "not-probed": "dim"}


def cards(probes: Sequence[Probe]) -> dict[str, list[str]]:
    """Return, by the id of the first device that shows it, the ids under which other backends show the same physical card.

    The same is what has the same UUID or PCI address; a name is no identity, so four equal cards stay four. Two devices of one
    backend are never the same.
    """
    groups: list[list[tuple[str, DeviceInfo]]] = []
    for probe in probes:
        for index, info in enumerate(probe.devices):
            name = probe.entry.name
            for group in groups:
                strangers = all(device.partition(":")[0] != name for device, _ in group)
                if strangers and any(_same(info, other) for _, other in group):
                    group.append((f"{name}:{index}", info))
                    break
            else:
                groups.append([(f"{name}:{index}", info)])
    return {group[0][0]: [device for device, _ in group[1:]] for group in groups}


def _same(a: DeviceInfo, b: DeviceInfo) -> bool:
    if a.uuid and b.uuid:
        return a.uuid.lower() == b.uuid.lower()
    return bool(a.pci) and a.pci.lower() == b.pci.lower()


def device_text(device: str, info: DeviceInfo, also: Sequence[str] = ()) -> str:
    """Return one line for a device."""
    parts = [f"{device}  {info.name}", info.kind]
    if info.memory.total is not None:
        free = "" if info.memory.free is None else f", {info.memory.free / 2**30:.1f} free"
        parts.append(f"{info.memory.total / 2**30:.1f} GiB{free}")
    parts += [f"{label} {value}" for label, value in (("uuid", info.uuid), ("pci", info.pci)) if value]
    if also:
        parts.append(f"also {', '.join(also)}")
    return "  ".join(parts)


def show(probes: Sequence[Probe]) -> None:
    """Print the plugins."""
    if not probes:
        print('no plugins, not even the built-in one: pip install --force-reinstall "oxidize-host[cpu]"')
        return
    rows = [(probe, _lines(probe, cards(probes))) for probe in probes]
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _show_table(rows)
    else:
        width = max(len(probe.entry.name) for probe in probes)
        for probe, lines in rows:
            print(f"{probe.entry.name:{width}}  {probe.status:12}  {probe.entry.label}")
            for line in lines:
                print(f"{'':{width}}  {line}")


def _lines(probe: Probe, same: dict[str, list[str]]) -> list[str]:
    lines = []
    for index, info in enumerate(probe.devices):
        device = f"{probe.entry.name}:{index}"
        first = next((first for first, others in same.items() if device in others), "")
        lines.append(f"{device}  the same card as {first}" if first else device_text(device, info, same.get(device, ())))
    if probe.reason is not None:
        lines.append(f"{probe.reason.kind}: {probe.reason.message}")
        if probe.reason.fix:
            lines.append(f"fix: {probe.reason.fix}")
    return lines


def _show_table(rows: Sequence[tuple[Probe, list[str]]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("backend", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("package")
    table.add_column("devices, or why not", overflow="fold")
    for probe, lines in rows:
        status = Text(probe.status, style=_COLOURS.get(probe.status, "red"))
        table.add_row(Text(probe.entry.name), status, Text(probe.entry.label), Text("\n".join(lines)))
    Console(no_color=bool(os.environ.get("NO_COLOR")), highlight=False).print(table)
