"""``oxidize doctor``: check this machine, with a fix for each finding; ``--bundle`` writes a report to send to somebody."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import platform
import re
import socket
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from oxidize_host import API_VERSION, __version__, registry
from oxidize_host.cache import cache_root
from oxidize_host.cli.list import plugin_row
from oxidize_host.errors import OxidizeError
from oxidize_host.hostmem import host_memory_info
from oxidize_host.probe import deadline, probe_all

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from oxidize_host.probe import Probe

__all__ = ["Check", "add_arguments", "main", "redact"]

# What decides which devices are seen. Nothing else of the environment is read or written down.
_ENVIRONMENT = re.compile(
    r"OXIDIZE_\w+|(CUDA|HIP|ROCR|GPU|ZE)_(VISIBLE_DEVICES|DEVICE_ORDINAL|AFFINITY_MASK)|CUDA_(HOME|PATH|DEVICE_ORDER)"
    r"|VK_(ICD_FILENAMES|DRIVER_FILES|LOADER_DRIVERS_\w+)|WGPU_\w+|LD_LIBRARY_PATH|PYTHONPATH|PYTHONSAFEPATH|NO_COLOR"
)
_SECRET = re.compile(r"(?i)(token|secret|password|passwd|credential|api_?key|access_?key)")


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One finding: what was looked at, the verdict, what was seen, and what to do about it."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    seen: str
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--bundle", metavar="FILE", type=Path, help="also write a report as JSON, without names, folders and secrets of yours"
    )


def main(args: argparse.Namespace) -> int:
    """Run the command; exit with 1 if a check failed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        entries = registry.entries()
    checks = [*_host(), *(Check("installation records", "warn", str(warning.message)) for warning in caught)]
    try:
        deadline()
        probes = probe_all(entries.values(), smoke_test=True)
    except OxidizeError as error:
        checks.append(Check("environment", "fail", str(error), "unset it"))
        probes = []
    checks += [*map(_plugin, probes), *_usable(probes), *_environment()]
    report = {
        "schema": 1,
        "host": {"version": __version__, "api_version": API_VERSION},
        "checks": [dataclasses.asdict(check) for check in checks],
        "plugins": [plugin_row(probe) | {"log": probe.log} for probe in probes],
    }
    if args.bundle:
        _write(args.bundle, report)
    if args.json:
        print(json.dumps(report, indent=2, default=str))
    else:
        _show(checks)
        if args.bundle:
            print(f"wrote {args.bundle}: read it before you send it")
    return int(any(check.verdict == "fail" for check in checks))


def _host() -> Iterator[Check]:
    yield Check("python", "ok", f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}")
    yield Check("oxidize-host", "ok", f"{__version__}, contract version {API_VERSION}, in {Path(__file__).parents[1]}")
    memory = host_memory_info()
    if memory.total:
        free = memory.free if memory.free is not None else memory.total
        verdict: Literal["ok", "warn"] = "ok" if free > 2**30 else "warn"
        fix = "" if verdict == "ok" else "close other programs: a model and its context must fit"
        yield Check("memory", verdict, f"{memory.total / 2**30:.1f} GiB, {free / 2**30:.1f} free ({memory.source})", fix)
    yield _cache()


def _cache() -> Check:
    folder = cache_root()
    fix = "set OXIDIZE_CACHE_DIR to a folder that can be written; without one, kernels are compiled at each start"
    try:
        # Only looked at: making the folder is left to whoever has something to put there.
        with tempfile.TemporaryFile(dir=next(path for path in (folder, *folder.parents) if path.exists())):
            pass
    except OSError as error:
        return Check("cache", "warn", f"{folder} cannot be written: {error}", fix)
    files = [path for path in folder.rglob("*") if path.is_file()]
    damaged = [path for path in files if path.suffix == ".damaged"]
    size = sum(path.stat().st_size for path in files)
    if damaged:
        return Check(
            "cache", "warn", f"{len(damaged)} damaged entries were put aside in {folder}", "check the disk, then delete them"
        )
    return Check("cache", "ok", f"{folder}, {len(files)} entries, {size / 2**20:.1f} MiB")


def _plugin(probe: Probe) -> Check:
    name = f"plugin {probe.entry.name}"
    if probe.reason is None:
        devices = ", ".join(f"{probe.entry.name}:{index} {info.name}" for index, info in enumerate(probe.devices))
        return Check(name, "ok", f"{probe.stage}: {devices}")
    verdict: Literal["warn", "fail"] = "warn" if probe.status == "unavailable" else "fail"
    return Check(name, verdict, f"{probe.status}: {probe.reason.message}", probe.reason.fix)


def _usable(probes: Sequence[Probe]) -> Iterator[Check]:
    usable = [probe.entry.name for probe in probes if probe.status == "available"]
    if set(usable) <= {"numpy"}:
        yield Check("devices", "fail", "nothing but the slow reference is usable", 'pip install "oxidize-host[cpu]"')


def _environment() -> Iterator[Check]:
    spec = os.environ.get("OXIDIZE_DEVICE")
    if spec and spec.partition(":")[0] not in registry.entries():
        yield Check("OXIDIZE_DEVICE", "fail", f"it names {spec!r}, which is not installed", "unset it, or install that backend")
    for name, value in sorted(_variables().items()):
        if name.endswith("VISIBLE_DEVICES"):
            yield Check(name, "warn" if value in ("", "-1") else "ok", f"{value!r} hides all other cards of its kind")
    known = {"DEVICE", "STRICT", "DEBUG", "CACHE_DIR", "NUM_THREADS", "CPU_ISA", "CPU_DUMP", "PROBE_TIMEOUT"}
    for name in sorted(_variables()):
        if name.startswith("OXIDIZE_") and name.removeprefix("OXIDIZE_") not in known | {"WHEELHOUSE", "REPOSITORY"}:
            backends = tuple(f"OXIDIZE_{entry.upper()}_" for entry in registry.entries())
            if not name.startswith(backends):
                yield Check(name, "warn", "nothing reads this variable", "check its spelling")


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if _ENVIRONMENT.fullmatch(name)}


def _show(checks: Sequence[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{check.verdict:4}  {check.name:{width}}  {check.seen}")
        if check.fix:
            print(f"{'':4}  {'':{width}}  fix: {check.fix}")


def _write(path: Path, report: dict[str, Any]) -> None:
    from importlib_metadata import distributions

    wanted = re.compile(
        r"(?i)oxidize|numpy|pluggy|importlib.metadata|numba|llvmlite|pycuda|cuda|wgpu|vulkan|kp|mlx|metal|gguf|tokenizers"
    )
    installed = {str(dist.name): dist.version for dist in distributions() if dist.name and wanted.match(dist.name)}
    document = report | {
        "environment": {name: "(removed)" if _SECRET.search(name) else value for name, value in _variables().items()},
        "packages": dict(sorted(installed.items())),
        "python": {"version": sys.version, "executable": sys.executable, "platform": platform.platform()},
    }
    try:
        path.write_text(json.dumps(_redacted(document), indent=2, default=str) + "\n")
    except OSError as error:
        raise OxidizeError(f"cannot write the bundle {path}: {error}") from error


def _redacted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _redacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item) for item in value]
    return redact(value) if isinstance(value, str) else value


def redact(text: str) -> str:
    """Return ``text`` without credentials, home folder, user and host name."""
    text = re.sub(r"(\w+://)[^/\s:@]+(:[^/\s@]*)?@", r"\1(removed)@", text)
    text = re.sub(_SECRET.pattern + r"([\"']?\s*[=:]\s*[\"']?)[^\s\"'&;,]+", r"\1\2(removed)", text)
    personal = [(str(Path.home()), "~"), (_user(), "(user)"), (socket.gethostname(), "(host)")]
    for secret, stand_in in personal:
        if len(secret) > 2:  # "/" or a one-letter name would tear other words apart
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])", stand_in, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run under a number that has no name
        return ""
