"""CPU backend for oxidize: numba kernels with LLVM vector instructions. Importing this imports neither."""

from __future__ import annotations

import dataclasses
import importlib.util
import platform
from typing import TYPE_CHECKING

import importlib_metadata

from oxidize_host import BuildInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CpuBuildInfo", "__version__", "cpu_build_info"]

__version__ = "0.1.0"


@dataclasses.dataclass(frozen=True, slots=True)
class CpuBuildInfo(BuildInfo):
    """What the CPU backend found.

    Parameters
    ----------
    numba, llvmlite
        Installed versions; empty when missing.
    machine
        The processor's architecture, ``"x86_64"``.
    threads
        Threads that kernels will use.
    """

    numba: str = ""
    llvmlite: str = ""
    machine: str = ""
    threads: int = 1


def cpu_build_info() -> CpuBuildInfo:
    """Return what was found, without importing numba or LLVM.

    Raises
    ------
    ValueError
        ``OXIDIZE_NUM_THREADS`` is not a positive integer.
    """
    from oxidize_cpu.threads import thread_count

    numba, llvmlite = (_installed(name) for name in ("numba", "llvmlite"))
    driver = f"numba {numba}, llvmlite {llvmlite}" if numba and llvmlite else ""
    return CpuBuildInfo(
        backend="cpu",
        version=__version__,
        driver=driver,
        usable=bool(driver),
        numba=numba,
        llvmlite=llvmlite,
        machine=platform.machine(),
        threads=thread_count(),
    )


def _installed(name: str) -> str:
    if importlib.util.find_spec(name) is None:
        return ""
    try:
        return str(importlib_metadata.version(name))
    except importlib_metadata.PackageNotFoundError:  # vendored or frozen: present, of unknown version
        return "unknown"


def _missing(found: CpuBuildInfo) -> Sequence[str]:
    return [name for name, version in (("numba", found.numba), ("llvmlite", found.llvmlite)) if not version]
