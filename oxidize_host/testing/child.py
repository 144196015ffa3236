"""The child process of `verify`: opens the device, runs the kit, says a line of JSON for each event.

Backends and kernels may print; so the lines go to a copy of the standard output, and everything else to the error output.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys

from oxidize_host.errors import BackendUnavailable, OxidizeError
from oxidize_host.info import Unavailable

__all__ = ["main"]


def main(spec: str) -> int:
    """Verify ``spec``; return 0 if the kit ran to its end, whatever it found."""
    report = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def say(**message: object) -> None:
        report.write(json.dumps(message) + "\n")

    from oxidize_host.device import Device

    try:
        Device(spec)
    except BackendUnavailable as error:
        say(reason=dataclasses.asdict(error.reason))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it becomes the reason
        said = str(error) if isinstance(error, OxidizeError) else f"opening {spec!r} raised {type(error).__name__}: {error}"
        say(reason=dataclasses.asdict(Unavailable("PluginBug", said)))
    else:
        from oxidize_host.testing.collector import Outcome, run_checks

        def finished(outcome: Outcome) -> None:
            say(**dataclasses.asdict(outcome))

        run_checks(spec, finished, started=lambda name: say(started=name))
    say(done=True)
    report.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
