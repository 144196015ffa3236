"""Ask a backend what it is and has, in a child process with a deadline: a crash or a hang in a driver is one row.

The child writes a line of JSON for each stage that it reaches, so that its row can say where it died. Plugins print what they
like: the child keeps a copy of its standard output for its report and gives plugins the error stream in its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
from typing import IO, TYPE_CHECKING, Any, Literal

from oxidize_host import registry
from oxidize_host.errors import BackendUnavailable, OxidizeError
from oxidize_host.info import DeviceInfo, MemoryInfo, Unavailable

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable

    from oxidize_host.scan import BackendEntry

__all__ = ["Probe", "Stage", "Status", "deadline", "probe_all", "unprobed"]

Status = Literal["available", "software", "unavailable", "broken", "incompatible", "duplicate", "not-probed"]
Stage = Literal["installed", "loads", "has a device", "smoke-tested"]

_DOING = {"import": "being imported", "devices": "listing its devices", "smoke": "being smoke-tested"}
_GRACE = 2.0  # seconds that a killed child has to go; what is stuck in the kernel may never


@dataclasses.dataclass(frozen=True, slots=True)
class Probe:
    """What was found out about one backend.

    Parameters
    ----------
    entry
        Its installation.
    status
        In one word.
    reason
        Why it cannot be used; None if it can.
    stage
        How far it came: ``installed``, ``loads``, ``has a device``, ``smoke-tested``.
    build_info
        The fields of its `BuildInfo`; None if it did not come so far.
    devices
        In index order.
    milliseconds
        How long it took; None where nothing was run.
    log
        The end of what a child that failed wrote to its error stream.
    """

    entry: BackendEntry
    status: Status
    reason: Unavailable | None = None
    stage: Stage = "installed"
    build_info: dict[str, Any] | None = None
    devices: tuple[DeviceInfo, ...] = ()
    milliseconds: float | None = None
    log: str = ""


def deadline() -> float:
    """Return the seconds that a probe may take: ``OXIDIZE_PROBE_TIMEOUT``, or 5.

    Raises
    ------
    OxidizeError
        The variable is not a positive number.
    """
    text = os.environ.get("OXIDIZE_PROBE_TIMEOUT", "") or "5"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise OxidizeError(f"OXIDIZE_PROBE_TIMEOUT={text!r} must be a positive number of seconds")
    return seconds


def unprobed(entry: BackendEntry) -> Probe:
    """Return what metadata alone shows."""
    try:
        registry.check_entry(entry)
    except OxidizeError as error:
        reason = _reason(error)
        return Probe(entry, _status(reason), reason)
    return Probe(entry, "not-probed")


def probe_all(entries: Iterable[BackendEntry], *, smoke_test: bool = False, seconds: float | None = None) -> list[Probe]:
    """Probe each backend, at most one child per processor at a time.

    Parameters
    ----------
    entries
        From `registry.entries`. Those registered by hand exist only here, and are asked in this process.
    smoke_test
        Also open each device and check that it computes; the deadline is then at least a minute, for compilers.
    seconds
        Deadline of each; default: `deadline`.
    """
    from concurrent.futures import ThreadPoolExecutor  # here: `list --no-probe` needs none of this

    limit = deadline() if seconds is None else seconds
    if smoke_test:
        limit = max(limit, 60.0)

    def probe(entry: BackendEntry) -> Probe:
        known = unprobed(entry)
        if known.status != "not-probed":
            return known
        if entry.target is not None:
            return _probe_here(entry, smoke_test=smoke_test)
        return _probe_child(entry, limit, smoke_test=smoke_test)

    with ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 2)) as pool:
        return list(pool.map(probe, entries))


def _probe_here(entry: BackendEntry, *, smoke_test: bool) -> Probe:
    lines: list[dict[str, Any]] = []
    start = time.perf_counter()
    _tell(entry.name, lines.append, smoke_test=smoke_test)
    return _assemble(entry, lines, start, None, "")


def _probe_child(entry: BackendEntry, limit: float, *, smoke_test: bool) -> Probe:
    import json
    import subprocess
    import tempfile

    # The child searches where this process does, but never in the current directory.
    code = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from oxidize_host.probe import child; child()"
    path = json.dumps([folder for folder in sys.path if folder])
    command = [sys.executable, "-P", "-c", code, path, entry.name, "smoke" if smoke_test else ""]
    start = time.perf_counter()
    # Files, not pipes: whatever a driver leaves running holds the end of a pipe open, and reading it would wait.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(  # noqa: S603 - this interpreter, and names from metadata as arguments
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True
        )
        late = ""
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            late = f"no answer within {limit:g} s"
        finally:
            _kill_group(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
        lines = []
        for line in _read(out):
            with contextlib.suppress(ValueError):  # cut off by the death of the child
                lines.append(json.loads(line))
        log = "\n".join(_read(errors))[-2000:]
    return _assemble(entry, lines, start, late or _death(process.returncode), log)


def _read(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read().decode(errors="replace").splitlines()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the child and whatever it started."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        elif process.poll() is None:
            process.kill()


def _death(status: int | None) -> str:
    """Return how a child ended, for one that did not say that it was done."""
    if status is not None and status < 0:
        try:
            return f"crashed: {signal.Signals(-status).name}"
        except ValueError:
            return f"crashed: signal {-status}"
    return f"crashed: exit status {status}"


def _assemble(entry: BackendEntry, lines: list[dict[str, Any]], start: float, death: str | None, log: str) -> Probe:
    """Put together what a probe told; ``death`` says how it ended, in case it did not finish."""
    told: dict[str, Any] = {}
    for line in lines:
        told.update(line)
    milliseconds = round((time.perf_counter() - start) * 1000, 1)
    devices = tuple(_device(fields) for fields in told.get("devices", ()))
    stage: Stage = "installed"
    if "build_info" in told:
        stage = "loads"
    if devices:
        stage = "smoke-tested" if told.get("smoke") else "has a device"
    reason = Unavailable(**told["reason"]) if "reason" in told else None
    if not told.get("done"):
        kind: Literal["ProbeTimeout", "ProbeCrashed"] = (
            "ProbeTimeout" if death and death.startswith("no answer") else "ProbeCrashed"
        )
        doing = _DOING[told.get("doing", "import")]
        last = log.strip().splitlines()[-1:] if log.strip() else []
        said = "".join(f" ({line[:200]})" for line in last)
        reason = Unavailable(
            kind,
            f"{death} while backend {entry.name!r} ({entry.label}) was {doing}{said}",
            f"update its driver, or pip uninstall {entry.distribution}",
        )
    status = _status(reason) if reason else "software" if all(d.kind == "software" for d in devices) else "available"
    return Probe(entry, status, reason, stage, told.get("build_info"), devices, milliseconds, log if reason else "")


def _device(fields: dict[str, Any]) -> DeviceInfo:
    return DeviceInfo(**{**fields, "memory": MemoryInfo(**fields["memory"])})


def _status(reason: Unavailable) -> Status:
    if reason.kind in ("HostTooOld", "HostTooNew"):
        return "incompatible"
    if reason.kind == "Duplicate":
        return "duplicate"
    if reason.kind in ("PluginBug", "ProbeTimeout", "ProbeCrashed", "WrongResults"):
        return "broken"
    return "unavailable"


def _reason(error: BaseException) -> Unavailable:
    if isinstance(error, BackendUnavailable):
        return error.reason
    said = str(error) if isinstance(error, OxidizeError) else f"{type(error).__name__}: {error}"
    return Unavailable("PluginBug", said)


def child() -> None:
    """Probe the backend named on the command line and report on standard output."""
    import json

    name, smoke = sys.argv[2:4]
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(line: dict[str, Any]) -> None:
        report.write(json.dumps(line, default=str) + "\n")
        report.flush()

    _tell(name, tell, smoke_test=bool(smoke))
    report.close()
    sys.stdout.flush()
    os._exit(0)  # what a driver does at exit is not part of the answer, and may hang


def _tell(name: str, tell: Callable[[dict[str, Any]], None], *, smoke_test: bool) -> None:
    """Load the backend and tell each stage as it is reached."""
    from oxidize_host import select

    try:
        tell({"doing": "import"})
        backend = registry.load(name)
        info = backend.build_info()
        if not dataclasses.is_dataclass(info) or isinstance(info, type):
            raise OxidizeError(
                f"backend {name!r} ({backend.distribution}): build_info() must return a BuildInfo, not {info!r:.80}"
            )
        tell({"build_info": {**dataclasses.asdict(info), "type": type(info).__name__}, "doing": "devices"})
        devices = select.device_infos(backend)
        tell({"devices": [dataclasses.asdict(device) for device in devices], "doing": "smoke"})
        if smoke_test:
            from oxidize_host.device import Device

            for index in range(len(devices)):
                Device(f"{name}:{index}").close()
            tell({"smoke": True})
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit too: whatever happens is this backend's row
        tell({"reason": dataclasses.asdict(_reason(error))})
    tell({"done": True})
