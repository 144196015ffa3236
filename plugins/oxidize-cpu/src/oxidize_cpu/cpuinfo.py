"""What the processor is called."""

from __future__ import annotations

import platform
import re
from pathlib import Path

__all__ = ["cpu_name"]


def cpu_name() -> str:
    """Return the vendor's name of the processor, or its architecture where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    match = re.search(r"^(?:model name|Hardware|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()
