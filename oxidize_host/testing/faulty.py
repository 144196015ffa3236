"""A backend whose hooks misbehave on request: what a host must survive, in one place."""

from __future__ import annotations

import functools
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from oxidize_host.hookspecs import hookimpl
from oxidize_host.info import BuildInfo, DeviceInfo, MemoryInfo
from oxidize_host.reference.backend import NumpyBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["FAULTS", "FaultyBackend"]

FAULTS: dict[str, str] = {
    "raise": "raise RuntimeError",
    "oserror": "raise OSError, as a missing shared library does",
    "exit": "raise SystemExit, as a careless plugin does",
    "hang": "never return",
    "none": "return None",
    "nonsense": "return a value of a wrong type",
    "segv": "die by SIGSEGV",
    "abort": "die by SIGABRT",
    "ill": "die by SIGILL",
    "oom": "raise MemoryError",
    "full": "alloc: raise MemoryError when more than 1 MiB would be held",
    "flip": "copy: flip one bit of every copy to the device",
    "zero": "launch: write zeros instead of the result",
    "nan": "launch: write NaN instead of the result",
    "leak": "free: do nothing",
}
"""The kinds of fault, and what each does to a hook."""

_LIMIT = 2**20
_SIGNALS = {"segv": "SIGSEGV", "abort": "SIGABRT", "ill": "SIGILL"}


def _hook(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a hook that notes the call and then misbehaves, if that is wanted; the signature stays for pluggy to see."""
    name = function.__name__

    @functools.wraps(function)
    def hook(self: FaultyBackend, *args: Any) -> Any:
        self.calls.append(name)
        kind = self.faults.get(name)
        if kind is None or kind in ("full", "flip", "zero", "nan", "leak"):
            return function(self, *args)
        return misbehave(kind, name)

    return hookimpl(hook)


def misbehave(kind: str, where: str) -> object:
    """Raise, hang, die or return nonsense, as `FAULTS` says of ``kind``."""
    if kind in _SIGNALS:
        os.kill(os.getpid(), getattr(signal, _SIGNALS[kind]))
    while kind in ("hang", *_SIGNALS):  # a signal may take a moment to arrive
        time.sleep(3600)
    if kind == "raise":
        raise RuntimeError(f"injected fault in {where}")
    if kind == "oserror":
        raise OSError(f"libfaulty.so.1: cannot open shared object file: injected fault in {where}")
    if kind == "exit":
        raise SystemExit(f"injected fault in {where}")
    if kind == "oom":
        raise MemoryError(f"injected fault in {where}")
    return None if kind == "none" else 42


class FaultyBackend:
    """Works like the reference backend, except where it is told not to.

    Parameters
    ----------
    fault
        ``"KIND:HOOK"``, or several with commas: ``"hang:devices"``, ``"raise:open,leak:free"``; `FAULTS` lists the kinds.
        Without it the class attribute `fault` counts, so that an entry point can name a subclass.

    Attributes
    ----------
    calls : list[str]
        The hooks called so far: a test can assert that a driver was never reached.
    held : int
        Bytes allocated and not freed.

    Raises
    ------
    ValueError
        Unknown kind or hook.
    """

    api_version = 1
    fault = ""

    def __init__(self, fault: str | None = None) -> None:
        self.faults: dict[str, str] = {}
        for item in filter(None, (self.fault if fault is None else fault).split(",")):
            kind, _, hook = item.partition(":")
            if kind not in FAULTS or not hasattr(FaultyBackend, hook):
                raise ValueError(f"unknown fault {item!r}; kinds are {', '.join(FAULTS)}, then a colon and a hook")
            self.faults[hook] = kind
        self.calls: list[str] = []
        self.held = 0
        self._inner = NumpyBackend()

    @_hook
    def build_info(self) -> BuildInfo:
        """Return a record."""
        return BuildInfo("faulty", "1.0", driver="injected faults")

    @_hook
    def devices(self) -> Sequence[DeviceInfo]:
        """Return one device."""
        return [DeviceInfo("Faulty", kind="other", memory=MemoryInfo(2**30, 2**30, "made up"), dialect="python")]

    @_hook
    def open(self, index: int) -> str:
        """Return a state."""
        return f"faulty {index}"

    @_hook
    def alloc(self, device: str, nbytes: int) -> NDArray[np.uint8]:
        """Return memory."""
        if self.faults.get("alloc") == "full" and self.held + nbytes > _LIMIT:
            raise MemoryError(f"{nbytes} bytes asked, {_LIMIT - self.held} free")
        memory = np.zeros(nbytes, np.uint8)
        self.held += nbytes
        return memory

    @_hook
    def free(self, device: str, handle: NDArray[np.uint8]) -> None:
        """Account for the memory."""
        if self.faults.get("free") != "leak":
            self.held -= handle.nbytes

    @_hook
    def memory_info(self, device: str) -> MemoryInfo:
        """Return a made-up size."""
        return MemoryInfo(2**30, 2**30 - self.held, "made up")

    @_hook
    def argument(self, device: str, handle: NDArray[np.uint8], offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return the slice."""
        return self._inner.argument(handle, offset, nbytes)

    @_hook
    def copy(self, device: str, dst: Any, dst_offset: int, src: Any, src_offset: int, nbytes: int, stream: None) -> None:
        """Copy, perhaps wrongly."""
        self._inner.copy(dst, dst_offset, src, src_offset, nbytes)
        if self.faults.get("copy") == "flip" and not isinstance(dst, memoryview):
            dst[dst_offset + nbytes // 2] ^= 0x10

    @_hook
    def compile(self, device: str, source: str | bytes, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Compile Python."""
        return self._inner.compile(source)

    @_hook
    def find_kernel(self, device: str, name: str, params: Mapping[str, str]) -> Callable[..., None] | None:
        """Return the reference implementation."""
        return self._inner.find_kernel(name, params)

    @_hook
    def launch(
        self, device: str, kernel: Callable[..., None], grid: Any, block: Any, args: Sequence[Any], stream: None
    ) -> None:
        """Launch, and perhaps spoil the first buffer, which is where kernels write."""
        kernel(grid, block, *args)
        if (kind := self.faults.get("launch")) in ("zero", "nan"):
            args[0].view(np.float32)[:] = 0 if kind == "zero" else np.nan

    @_hook
    def sync(self, device: str, stream: None) -> None:
        """Do nothing: all work is done."""

    @_hook
    def close(self, device: str) -> None:
        """Do nothing."""
