"""What the commands share: loading with a progress bar, showing text, errors in one line."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import TYPE_CHECKING

from oxidize_host import Device, OxidizeError
from oxidize_llm.find import find_model
from oxidize_llm.model import Model
from oxidize_llm.sampling import Sampling

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

__all__ = ["INTERRUPTED", "load", "note", "preparing", "run_guarded", "sampling_of", "show"]

INTERRUPTED = 130


def sampling_of(args: argparse.Namespace) -> Sampling:
    """Return the sampling that the arguments ask for."""
    return Sampling(args.temp, args.top_k, args.top_p, args.min_p, args.repeat_penalty, args.repeat_last, args.seed)


def note(*words: object) -> None:
    """Print to stderr."""
    print(*words, file=sys.stderr, flush=True)


def load(args: argparse.Namespace) -> Model:
    """Load the model; say on stderr which device was chosen, if the user did not name one."""
    path = find_model(args.model)  # a misspelt name is an answer at once, without a device
    device = Device(args.device)
    selection = device.selection
    if args.device is None:
        why = next((candidate.why for candidate in selection.candidates if candidate.verdict == "chosen"), "")
        because = f": {why}" if why and why != selection.how else ""
        note(f"device {device.id} ({device.info.name}), {selection.how}{because}")
    with _progress() as progress:
        model = Model.load(path, device, progress=progress)
    if args.ctx is not None and args.ctx > model.config.context:
        note(f"warning: the model was trained for texts of {model.config.context} tokens, not {args.ctx}")
    return model


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on stderr while loading, on a terminal only."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    with Progress(
        TextColumn("loading"), BarColumn(), DownloadColumn(), console=Console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task("loading", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextlib.contextmanager
def preparing() -> Iterator[None]:
    """Say on a terminal that kernels are being prepared: the first time on a machine, a backend may have to compile them."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status("preparing kernels (the first run on a device compiles them)"):
        yield


def show(text: str) -> None:
    """Print generated text at once; on a terminal without control characters, which could command it."""
    if sys.stdout.isatty():
        text = "".join(c for c in text if c in "\n\t" or c.isprintable() or c == " ")
    sys.stdout.write(text)
    sys.stdout.flush()


def run_guarded(name: str, main: Callable[[], int]) -> int:
    """Run a command; turn what can go wrong into one line on stderr and an exit status."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    try:
        return main()
    except BrokenPipeError:  # the reader has seen enough; keep the interpreter from writing at exit
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        note()
        return INTERRUPTED
    except (OxidizeError, OSError, ValueError, MemoryError) as error:
        if os.environ.get("OXIDIZE_DEBUG", "") not in ("", "0"):
            traceback.print_exc()
        words = " ".join(str(error).split()) or type(error).__name__
        note(f"oxidize {name}: error: {words}")
        return 1
