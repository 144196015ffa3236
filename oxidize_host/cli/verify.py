"""``oxidize verify``: the conformance kit against an installed backend."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("backend", metavar="BACKEND", help="backend[:index|:uuid]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-v", "--verbose", action="store_true", help="also name what is unsupported")


def main(args: argparse.Namespace) -> int:
    """Run the command."""
    from oxidize_host.testing import verify

    live = sys.stderr.isatty()

    def progress(name: str, outcome: str) -> None:
        if live:
            print(f"\r\x1b[K{name[:60]:60} {outcome}", end="", file=sys.stderr, flush=True)

    report = verify(args.backend, progress=progress)
    if live:
        print("\r\x1b[K", end="", file=sys.stderr)
    if args.json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        print(report)
        if args.verbose:
            print(*(f"  unsupported: {check.name}: {check.message}" for check in report.unsupported_checks), sep="\n")
    return 0 if report.ok else 1
