"""``oxidize bench``: GEMV for each weight format against the machine's read limit, and what the host adds to a launch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxidize_host.errors import OxidizeError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["add_arguments", "main"]

_FORMATS = "f32,f16,bf16,q8_0,q5_1,q5_0,q4_1,q4_0,q6_k,q5_k,q4_k"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--device", metavar="SPEC", help="backend[:index|:uuid]; default: the automatic choice")
    parser.add_argument("--op", choices=["all", "gemv", "launch"], default="all")
    parser.add_argument("--formats", default=_FORMATS, help="weight formats for gemv, with commas between")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument(
        "--megabytes", type=int, default=600, help="memory over which weights rotate, so that no cache holds them"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of read test and GEMV in turn; the median counts")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", metavar="FILE.png", type=Path, help="draw the figures against the read limit")


def main(args: argparse.Namespace) -> int:
    """Run the command; exit with 1 if a kernel computes something wrong."""
    formats = [name for name in args.formats.split(",") if name]
    if problem := _problem(args, formats):
        print(f"oxidize bench: error: {problem}", file=sys.stderr)
        return 2
    if args.plot:
        _need_matplotlib()
    result = _measure(args, formats)
    if args.json:
        print(json.dumps(result, indent=2))
    if args.plot and "gemv" in result:
        _plot(args.plot, result)
    return int(any(row["wrong"] for row in result.get("gemv", ())))


def _problem(args: argparse.Namespace, formats: Sequence[str]) -> str:
    """Return what is wrong with the arguments, or an empty string."""
    from oxidize_host import quant

    if unknown := [name for name in formats if name not in quant.FORMATS]:
        return f"unknown format {unknown[0]!r}; there are {', '.join(quant.FORMATS)}"
    if min(args.rows, args.columns, args.megabytes, args.rounds) < 1 or args.columns % 256:
        return "sizes must be positive, and --columns a multiple of 256, the longest block"
    return ""


def _measure(args: argparse.Namespace, formats: Sequence[str]) -> dict[str, Any]:
    """Measure, and print each figure when it is there unless all is wanted as JSON."""
    from oxidize_host.cli import measure
    from oxidize_host.device import Device

    device = Device(args.device)
    result: dict[str, Any] = {"device": device.id, "name": device.info.name, "selection": device.selection.as_dict()}
    if not args.json:
        print(f"{device.id} ({device.info.name}), {device.selection.how}")
    if args.op != "launch":
        result["gemv"] = []
        if not args.json:
            print(
                f"gemv {args.rows} x {args.columns}, weights rotated over {args.megabytes} MB, median of {args.rounds} rounds"
            )
            print("  format     ms   GB/s  of read limit  error")
        for row in measure.gemv(device, formats, args.rows, args.columns, args.megabytes, args.rounds):
            result["gemv"].append(row)
            if not args.json:
                _show_gemv(row)
    if args.op != "gemv":
        result["launch"] = measure.launches(device)
        if not args.json:
            _show_launch(result["launch"])
    return result


def _show_gemv(row: dict[str, Any]) -> None:
    if row["unsupported"]:
        print(f"  {row['format']:6} unsupported: {row['unsupported']}")
        return
    ratio = "unknown" if row["ratio"] is None else f"{row['ratio']:.2f} of {row['read_gb_per_s']:.1f}"
    wrong = "  WRONG" if row["wrong"] else ""
    print(f"  {row['format']:6} {row['ms']:6.3f} {row['gb_per_s']:6.1f}  {ratio:>13}  {row['error']:.1e}{wrong}", flush=True)


def _show_launch(row: dict[str, Any]) -> None:
    print("launch of a kernel that does nothing (3 buffers, 1 scalar), median of many, ns")
    print(f"  the backend's own launch hook, called directly  {row['hook_ns']:7.0f}")
    print(
        f"  launch()                                        {row['launch_ns']:7.0f}  the host adds {row['launch_added_ns']:.0f}"
    )
    if row["bind_hook_ns"] is not None:
        print(f"  the backend's own bound launch                  {row['bind_hook_ns']:7.0f}")
    print(
        f"  BoundLaunch                                     {row['bound_ns']:7.0f}  the host adds {row['bound_added_ns']:.0f}"
    )


def _need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401, ICN001
    except ImportError as error:
        raise OxidizeError('--plot needs matplotlib: pip install "oxidize-host[plot]"') from error


def _plot(path: Path, result: dict[str, Any]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows: Sequence[dict[str, Any]] = [row for row in result["gemv"] if not row["unsupported"]]
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    bars = axes.bar([row["format"] for row in rows], [row["gb_per_s"] for row in rows], color="#4878a8")
    axes.bar_label(bars, [f"{row['ms']:.2f} ms" for row in rows], fontsize=8)
    limits = [row["read_gb_per_s"] for row in rows if row["read_gb_per_s"] is not None]
    if limits:
        axes.axhline(sorted(limits)[len(limits) // 2], color="#a04040", linestyle="--", label="read limit, same run")
        axes.legend()
    axes.set_ylabel("GB of weights per second")
    axes.set_title(f"GEMV on {result['device']} ({result['name']})")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise OxidizeError(f"cannot write the picture {path}: {error}") from error
