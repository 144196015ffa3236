"""``oxidize why``: which device would be chosen, and why not the others; asks child processes and opens nothing here."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from oxidize_host import registry, select
from oxidize_host.errors import BackendUnavailable, OxidizeError
from oxidize_host.select import Candidate, Selection

if TYPE_CHECKING:
    import argparse

    from oxidize_host.probe import Probe

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--device", metavar="SPEC", help="backend[:index|:uuid] instead of the automatic choice")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(args: argparse.Namespace) -> int:
    """Run the command."""
    spec, how = args.device, "named by the caller"
    if not spec and (spec := os.environ.get("OXIDIZE_DEVICE")):
        how = "OXIDIZE_DEVICE"
    error: OxidizeError | None = None
    try:
        selection = _named(spec, how) if spec else _automatic()
    except BackendUnavailable as caught:
        error = caught
        selection = Selection("", how, (Candidate(spec or "", "", "unavailable", str(caught), caught.reason),))
    else:
        if not selection.device:
            error = select.nothing_usable(selection)
    if args.json:
        print(json.dumps(selection.as_dict(), indent=2))
    elif error is None:
        print(selection)
    if error is not None:
        print(f"oxidize why: error: {error}", file=sys.stderr)
    return int(error is not None)


def _named(spec: str, how: str) -> Selection:
    from oxidize_host.probe import probe_all

    name, which = select.parse(spec, how)
    entry = registry.entries().get(name)
    if entry is None:
        raise registry.not_found(name)
    (probe,) = probe_all([entry])
    if probe.reason is not None:
        raise BackendUnavailable(probe.reason)
    index = select.pick(name, which, probe.devices)
    return Selection(f"{name}:{index}", how, (Candidate(f"{name}:{index}", probe.devices[index].name, "chosen", how),))


def _automatic() -> Selection:
    from oxidize_host.probe import probe_all

    probes = probe_all(registry.entries().values())
    found = [
        (probe.entry.name, index, info) for probe in probes for index, info in enumerate(probe.devices) if not probe.reason
    ]
    return select.weigh(found, [_rejected(probe) for probe in probes if probe.reason], lambda *_: None)


def _rejected(probe: Probe) -> Candidate:
    return Candidate(probe.entry.name, probe.entry.label, "unavailable", str(probe.reason), probe.reason)
