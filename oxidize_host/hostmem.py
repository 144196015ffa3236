"""Memory of the host, for backends that compute in it."""

from __future__ import annotations

import os
from pathlib import Path

from oxidize_host.info import MemoryInfo

__all__ = ["host_memory_info"]

_CGROUP = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def host_memory_info() -> MemoryInfo:
    """Return total and available bytes of this machine, or of the container (cgroup v2 or v1) if that is less.

    On Linux from ``/proc/meminfo``; elsewhere the total from ``sysconf`` and no free figure; all unknown where neither exists.
    """
    total, free, source = _meminfo()
    for limit_file, usage_file in _CGROUP:
        limit, usage = _number(limit_file), _number(usage_file)
        if limit is not None and usage is not None and (total is None or limit < total):
            return MemoryInfo(limit, min(max(limit - usage, 0), free if free is not None else limit), limit_file)
    return MemoryInfo(total, free, source)


def _meminfo() -> tuple[int | None, int | None, str]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), None, "sysconf"
        except (AttributeError, OSError, ValueError):
            return None, None, ""
    fields = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines if len(line.split()) > 1}
    return fields.get("MemTotal"), fields.get("MemAvailable"), "/proc/meminfo"


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # absent, or "max": no limit
        return None
