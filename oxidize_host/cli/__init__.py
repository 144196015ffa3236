"""The command line, ``oxidize``: one module per command, imported when it is used.

``oxidize list`` must answer on the largest and on the most broken installation, so nothing here imports numpy, a plugin or a
table library.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Command", "main"]

COMMANDS = {
    "list": "plugins: what each is, what it found, or why not and what to do",
    "why": "which device would be chosen, and why not the others",
    "doctor": "check this machine, with a fix for each finding",
    "verify": "run the conformance kit against an installed backend",
    "bench": "measure GEMV against the read bandwidth, and the cost of a launch",
}
_FROM_LLM = ("run", "chat")


class Command(Protocol):
    """A sub-command: a module of this package, or the object that an entry point of ``oxidize.commands`` names."""

    help: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    def main(self, args: argparse.Namespace) -> int:
        """Run; return the exit status."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 1 for what failed, 2 for a wrong usage, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        status = _run(words)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `oxidize list | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return 130


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        from oxidize_host import API_VERSION, __version__

        print(f"oxidize {__version__}, contract version {API_VERSION}")
        return 0
    name = words[0]
    from oxidize_host.errors import OxidizeError

    try:
        command = _find(name)
        if command is None:
            return 2
        parser = argparse.ArgumentParser(prog=f"oxidize {name}", description=command.help)
        command.add_arguments(parser)
        status: int = command.main(parser.parse_args(words[1:]))
        return status
    except OxidizeError as error:
        if os.environ.get("OXIDIZE_DEBUG", "") not in ("", "0"):
            raise
        print(f"oxidize {name}: error: {error}", file=sys.stderr)
        return 1


def _find(name: str) -> Any:
    """Return the command, or None after saying why there is none."""
    if name in COMMANDS:
        module = importlib.import_module(f"oxidize_host.cli.{name}")
        module.help = COMMANDS[name]  # type: ignore[attr-defined]
        return module
    from oxidize_host.errors import OxidizeError
    from oxidize_host.scan import command_entries

    entries = command_entries()
    if name in entries:
        try:
            return entries[name].load()
        except Exception as error:
            dist = entries[name].value.partition(":")[0].partition(".")[0].replace("_", "-")
            said = f"{type(error).__name__}: {error}"
            raise OxidizeError(f"the command cannot be imported: {said}; pip install --force-reinstall {dist}") from error
    if name in _FROM_LLM:
        print(f'oxidize: error: {name!r} comes with oxidize-llm: pip install "oxidize-host[llm]"', file=sys.stderr)
        return None
    import difflib

    close = difflib.get_close_matches(name, [*COMMANDS, *entries, *_FROM_LLM], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    print(f"oxidize: error: there is no command {name!r}{hint} `oxidize --help` lists them", file=sys.stderr)
    return None


def _help() -> str:
    from oxidize_host.scan import command_entries

    lines = ["usage: oxidize COMMAND [...]", "", "Every compute device behind one small API.", "", "commands:"]
    lines += [f"  {name:8} {text}" for name, text in COMMANDS.items()]
    for name, entry in sorted(command_entries().items()):
        lines.append(f"  {name:8} from {entry.value.partition(':')[0].partition('.')[0].replace('_', '-')}")
    lines += ["", "`oxidize COMMAND --help` says more; `oxidize --version` says which this is."]
    return "\n".join(lines)


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Print a warning as one line: a user of a command line has no use for the line of code that warned."""
    del category
    print(f"warning: {message}", file=sys.stderr)
