"""The standard operations (`oxidize_host.ops`) as native kernels. Importing this compiles and loads nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oxidize_cpu.native import NativeKernel

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NativeKernel", "find"]


def find(name: str, params: Mapping[str, str]) -> NativeKernel | None:
    """Return the kernel of this name and parameters, or None if there is none."""
    from oxidize_cpu.kernels import catalogue

    spec = catalogue.find_spec(name, params)
    if spec is None:
        from oxidize_cpu.kernels import standard

        spec = standard.find_spec(name, params)
    return None if spec is None else NativeKernel(name, spec)
