"""The arguments that the commands share. Imports nothing heavy: the command line reads them for its help."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_common_arguments"]


def _number(kind: type[float], least: float, most: float, *, open_end: bool = False) -> Callable[[str], float]:
    """Return a converter for argparse that checks a range."""

    def convert(text: str) -> float:
        value = kind(text)
        if not (least < value if open_end else least <= value) or not value <= most:
            limits = f"{'more than' if open_end else 'at least'} {least}" + (f" and at most {most}" if most < 2**31 - 1 else "")
            raise argparse.ArgumentTypeError(f"must be {limits}, is {text}")
        return value

    convert.__name__ = "number"
    return convert


def count(text: str) -> int:
    """Convert a number of tokens."""
    return int(_number(int, 0, 2**31 - 1)(text))


def add_common_arguments(parser: argparse.ArgumentParser, *, temperature: float) -> None:
    """Declare what `run` and `chat` have in common."""
    parser.add_argument("model", metavar="MODEL", help="a .gguf file, or the name of a packaged model: smollm2")
    parser.add_argument("-n", "--tokens", type=count, metavar="N", help="how many tokens to write at most")
    parser.add_argument(
        "--device", metavar="SPEC", help='"backend" or "backend:index"; default: the best one, or OXIDIZE_DEVICE'
    )
    parser.add_argument("--ctx", type=_number(int, 1, 2**31 - 1), metavar="N", help="tokens that fit into the context")
    large = 2**31 - 1
    group = parser.add_argument_group("sampling", "in this order: repeat penalty, top-k, top-p, min-p, temperature")
    group.add_argument(
        "--temp",
        type=_number(float, 0, large),
        default=temperature,
        metavar="T",
        help="0: the likeliest token always (%(default)s)",
    )
    group.add_argument("--top-k", type=_number(int, 0, large), default=40, metavar="K", help="0: all (%(default)s)")
    group.add_argument(
        "--top-p", type=_number(float, 0, 1, open_end=True), default=0.95, metavar="P", help="1: all (%(default)s)"
    )
    group.add_argument("--min-p", type=_number(float, 0, 1), default=0.05, metavar="P", help="0: all (%(default)s)")
    group.add_argument(
        "--repeat-penalty", type=_number(float, 0, large, open_end=True), default=1.0, metavar="X", help="1: none (%(default)s)"
    )
    group.add_argument(
        "--repeat-last",
        type=_number(int, 0, large),
        default=64,
        metavar="N",
        help="tokens that the penalty looks at (%(default)s)",
    )
    group.add_argument("--seed", type=_number(int, 0, 2**64 - 1), metavar="N", help="makes sampling repeatable")
