"""Every error oxidize raises on purpose.

::

    OxidizeError
     ├─ BackendUnavailable (RuntimeError)   this backend or device cannot be used here; `.reason` says why
     │   └─ BackendNotFound (LookupError)   no installed distribution provides the name
     ├─ InvalidBackend (TypeError)          a plugin breaks the hook contract
     ├─ CompileError (ValueError)           kernel source did not compile; `.log` has the compiler's words
     ├─ LaunchError (RuntimeError)          a kernel could not be started, or failed while it ran
     ├─ OutOfMemory (MemoryError)           device, asked, free, total, own bytes, largest allocation
     ├─ DeviceLost (RuntimeError)           the device is gone; open it again
     ├─ UnsupportedOp (NotImplementedError) the backend says that it cannot do this
     ├─ ShapeError (ValueError)             an operand has the wrong shape, dtype, format or contents
     └─ ClosedError (ValueError)            a buffer, stream or device was used after close()

    OxidizeWarning (UserWarning)            something was skipped or replaced, and is named

An error of a vendor library is always chained (``raise ... from error``). A message says what happened,
with which value, and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oxidize_host.info import Unavailable

__all__ = [
    "BackendNotFound",
    "BackendUnavailable",
    "ClosedError",
    "CompileError",
    "DeviceLost",
    "InvalidBackend",
    "LaunchError",
    "OutOfMemory",
    "OxidizeError",
    "OxidizeWarning",
    "ShapeError",
    "UnsupportedOp",
]


class OxidizeError(Exception):
    """Base class of every error that oxidize raises on purpose."""


class OxidizeWarning(UserWarning):
    """Something was skipped or replaced; the message names it."""


class BackendUnavailable(OxidizeError, RuntimeError):
    """A backend or a device cannot be used here.

    A backend raises it from ``devices`` or ``open``; the host raises it to the user.

    Parameters
    ----------
    reason
        Why, typed; a plain string stands for ``Unavailable("NoDevice", string)``.
    others
        The reasons of every other candidate, when an automatic choice found none.
    """

    def __init__(self, reason: Unavailable | str, others: tuple[Unavailable, ...] = ()) -> None:
        from oxidize_host.info import Unavailable

        self.reason = reason if isinstance(reason, Unavailable) else Unavailable("NoDevice", reason)
        self.others = others
        super().__init__("\n  ".join([str(self.reason), *(str(other) for other in others)]))


class BackendNotFound(BackendUnavailable, LookupError):
    """No installed distribution provides the named backend."""


class InvalidBackend(OxidizeError, TypeError):
    """A plugin breaks the hook contract; the message names plugin, distribution and hook."""


class CompileError(OxidizeError, ValueError):
    """Kernel source did not compile.

    Attributes
    ----------
    log : str
        The compiler's own words.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log
        if log:
            self.add_note(log)


class LaunchError(OxidizeError, RuntimeError):
    """A kernel could not be started, or failed while it ran."""


class OutOfMemory(OxidizeError, MemoryError):
    """A device could not provide an allocation.

    Attributes (sizes in bytes, None where the backend does not know)
    ----------
    device : str
    asked : int
    free, total : int | None
    own : int
        What this process holds on the device through oxidize.
    largest : int
        The largest single allocation among those.
    """

    def __init__(
        self,
        message: str = "out of memory",
        *,
        device: str = "",
        asked: int = 0,
        free: int | None = None,
        total: int | None = None,
        own: int = 0,
        largest: int = 0,
    ) -> None:
        self.device, self.asked, self.free, self.total, self.own, self.largest = device, asked, free, total, own, largest
        super().__init__(message)


class DeviceLost(OxidizeError, RuntimeError):
    """The device is gone (reset, unplugged, driver crash); every later call on it fails at once."""


class UnsupportedOp(OxidizeError, NotImplementedError):
    """The backend says that it cannot do this; the message says what would."""


class ShapeError(OxidizeError, ValueError):
    """An operand has the wrong shape, dtype, format or contents; the message names the operand."""


class ClosedError(OxidizeError, ValueError):
    """A buffer, stream or device was used after it was closed."""
