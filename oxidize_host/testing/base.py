"""What the checks share: the device, kernels of the kit, tolerances, and what counts as unsupported."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

import numpy as np
import pytest

from oxidize_host.device import Device
from oxidize_host.errors import UnsupportedOp
from oxidize_host.kernel import LaunchConfig, launch
from oxidize_host.testing.report import UNSUPPORTED
from oxidize_host.testing.sources import SOURCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from oxidize_host.kernel import Kernel, Module
    from oxidize_host.memory import Buffer
    from oxidize_host.stream import Stream

__all__ = ["Checks", "assert_close", "over", "override", "unsupported"]

F = TypeVar("F", bound="Callable[..., Any]")


def override(*, reason: str) -> Callable[[F], F]:
    """Mark a test that replaces one of the kit's; without it the class is refused. ``reason`` says why it must."""
    if not reason.strip():
        raise ValueError("override() needs a reason: why can this backend not take the kit's own check?")

    def mark(function: F) -> F:
        function.__dict__["oxidize_override"] = reason
        return function

    return mark


def unsupported(what: object) -> NoReturn:
    """End the check: the backend does not have this. It is counted apart from passed and failed."""
    pytest.skip(f"{UNSUPPORTED}{what}")


class Checks:
    """Attributes that a subclass sets, and helpers that checks use.

    Attributes
    ----------
    spec : str
        What `Device` takes.
    expected_failures : Mapping[str, str]
        Why, by the name of a check, with its parameters or without: ``{"test_gemv[q4_k-rows=1]": "driver bug 1234"}``. Such a
        check must fail: one that passes is an error, as is a name that no check has.
    tolerances : Mapping[str, float]
        Instead of the kit's: by operation and parameter (``"gemv:q4_k"``) or by operation (``"gemv"``); relative to the largest
        magnitude of the expected result.
    saxpy_source, extent_source, scalars_source : str
        Kernel source in a dialect that the kit does not know; see `oxidize_host.testing.sources`.
    """

    spec: ClassVar[str] = ""
    expected_failures: ClassVar[Mapping[str, str]] = {}
    tolerances: ClassVar[Mapping[str, float]] = {}

    @pytest.fixture(autouse=True)
    def _expected_failure(self, request: pytest.FixtureRequest) -> None:
        """Turn the failures that the author declared into expected ones, which must happen."""
        node = request.node
        reason = self.expected_failures.get(node.name) or self.expected_failures.get(getattr(node, "originalname", ""))
        if reason:
            node.add_marker(pytest.mark.xfail(reason=reason, strict=True))

    @pytest.fixture
    def device(self) -> Device:
        """Return the device under test; closed ones are opened anew."""
        return Device(self.spec)

    @pytest.fixture
    def rng(self) -> np.random.Generator:
        """Return the same random numbers in every run."""
        return np.random.default_rng(20260)

    @pytest.fixture
    def saxpy(self, device: Device) -> Kernel:
        """Return the kernel ``out = a * x + y``."""
        return self.module(device, "saxpy").kernel("saxpy")

    @contextlib.contextmanager
    def optional(self) -> Iterator[None]:
        """In a ``with`` block, `UnsupportedOp` ends the check as unsupported."""
        try:
            yield
        except UnsupportedOp as error:
            unsupported(error)

    def source(self, device: Device, text: str) -> str:
        """Return the kit's source ``text`` for the device, from the test class, the backend's class or the kit."""
        attribute = f"{text}_source"
        for holder in (self, device._core.backend.plugin):
            given = getattr(holder, attribute, None)
            if given is not None:
                return str(given)
        known = SOURCES.get(device.info.dialect, {})
        if text not in known:
            unsupported(f"the kit has no {text} kernel in the dialect {device.info.dialect!r}; set {attribute}")
        return known[text]

    def module(self, device: Device, text: str) -> Module:
        """Return the compiled source ``text`` of the kit."""
        return device.compile(self.source(device, text))

    def tolerance(self, name: str, default: float) -> float:
        """Return the tolerance of ``"operation:parameter"``."""
        return self.tolerances.get(name, self.tolerances.get(name.partition(":")[0], default))

    def run_saxpy(self, kernel: Kernel, stream: Stream, out: Buffer, x: Buffer, y: Buffer, a: float) -> None:
        """Queue ``out = a * x + y``."""
        launch(stream, over(out.size, kernel.device), kernel, out, x, y, np.float32(a), np.uint32(out.size))


def over(items: int, device: Device, block: int = 64) -> LaunchConfig:
    """Return a geometry of at least ``items`` work items along the first axis."""
    if device.info.max_block:
        block = min(block, device.info.max_block)
    return LaunchConfig(-(-items // block), block)


def assert_close(
    actual: NDArray[Any], expected: NDArray[Any], tolerance: float, what: str = "result", *, magnitude: float = 0.0
) -> None:
    """Fail unless each element is within ``tolerance`` times the largest expected magnitude, and NaN where it should be.

    ``magnitude`` counts instead if it is larger: where results are small because terms cancel.
    """
    assert actual.shape == expected.shape, f"{what} has the shape {actual.shape}, not {expected.shape}"
    wanted = expected.astype(np.float64)
    got = actual.astype(np.float64)
    scale = float(np.max(np.abs(wanted), initial=magnitude, where=np.isfinite(wanted)))
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(got - wanted))
    error = np.where(np.isnan(error), np.inf, error)
    worst = int(np.argmax(error)) if error.size else 0
    if error.size and error.flat[worst] > tolerance * scale:
        raise AssertionError(
            f"{what}: element {np.unravel_index(worst, error.shape)} is {got.flat[worst]!r}, not {wanted.flat[worst]!r}: "
            f"off by {error.flat[worst]:.3g}, allowed {tolerance * scale:.3g}; "
            f"{int(np.count_nonzero(error > tolerance * scale))} of {error.size} elements are off"
        )
