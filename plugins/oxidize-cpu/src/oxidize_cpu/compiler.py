"""Kernels from Python source, compiled by numba when they are first launched."""

from __future__ import annotations

import os
import threading
import traceback
import types
from typing import TYPE_CHECKING, Any

import numpy as np

from oxidize_host import CompileError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["SourceKernel", "compile_source"]


class SourceKernel:
    """One function of a source text: compiled for the argument types of its first launch, and again for others."""

    __slots__ = ("_compiled", "_lock", "_python", "name")

    def __init__(self, name: str, python: Callable[..., None]) -> None:
        self.name, self._python = name, python
        self._compiled: Any = None
        self._lock = threading.Lock()

    def __call__(self, grid: tuple[int, int, int], block: tuple[int, int, int], args: Sequence[Any]) -> None:
        """Run it; raises `CompileError` if numba cannot compile it for these types."""
        with self._lock:
            if self._compiled is None:
                self._compiled = _jit(self._python)
        try:
            self._compiled(grid, block, *args)
        except _numba_error() as error:
            raise CompileError(f"kernel {self.name!r} does not compile for these arguments", log=str(error)) from error


def compile_source(source: str | bytes) -> dict[str, SourceKernel]:
    """Return the public functions of ``source``, which may use ``np`` and what numba supports of Python and numpy.

    Raises
    ------
    CompileError
        The text is not Python, or raises while it is executed.
    """
    try:
        text = source.decode() if isinstance(source, bytes) else source
        namespace: dict[str, Any] = {"np": np}
        exec(compile(text, "<oxidize kernel>", "exec"), namespace)  # noqa: S102 - running the caller's code is the purpose
    except Exception as error:
        raise CompileError(f"not a Python kernel: {error}", log=traceback.format_exc(limit=-2)) from error
    functions = {name: value for name, value in namespace.items() if isinstance(value, types.FunctionType)}
    for name, function in functions.items():
        if name.startswith("_"):  # helpers: kernels call them, so they must be compiled too
            namespace[name] = _jit(function)
    return {name: SourceKernel(name, function) for name, function in functions.items() if not name.startswith("_")}


def _jit(function: Callable[..., Any]) -> Any:
    import numba

    check_bounds = os.environ.get("OXIDIZE_DEBUG", "") not in ("", "0")
    return numba.njit(nogil=True, error_model="numpy", boundscheck=check_bounds)(function)


def _numba_error() -> type[Exception]:
    from numba.core.errors import NumbaError

    return NumbaError
