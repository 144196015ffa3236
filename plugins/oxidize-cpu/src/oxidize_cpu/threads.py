"""How many threads kernels use."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["thread_count"]

VARIABLE = "OXIDIZE_NUM_THREADS"


def thread_count() -> int:
    """Return ``OXIDIZE_NUM_THREADS``, else the CPUs that this process may run on, within its cgroup's quota.

    Raises
    ------
    ValueError
        The variable is not a positive integer.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if text:
        if not (text.isascii() and text.isdigit() and int(text)):
            raise ValueError(f"{VARIABLE}={text!r} must be a positive integer")
        return int(text)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return allowed if quota is None else max(1, min(allowed, quota))


def _quota() -> int | None:
    """Return the CPUs that a cgroup (v2, then v1) grants, rounded up; None if it sets no limit."""
    try:
        granted, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        folder = Path("/sys/fs/cgroup/cpu")
        try:
            granted, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            return None
    try:
        return math.ceil(int(granted) / int(period)) if int(granted) > 0 else None
    except ValueError:  # "max"
        return None
