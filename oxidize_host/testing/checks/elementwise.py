"""Operations on each element, and the largest one, against float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from oxidize_host import ops
from oxidize_host.testing import oracle
from oxidize_host.testing.base import Checks, assert_close

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxidize_host.device import Device

__all__ = ["Elementwise"]

F32 = np.float32
SIZES = (1, 3, 31, 32, 257, 4099)
UNARY: dict[str, tuple[Any, dict[str, str], Any]] = {
    "silu": (ops.silu, {}, oracle.silu),
    "sigmoid": (ops.sigmoid, {}, oracle.sigmoid),
    "gelu:tanh": (ops.gelu, {"approximate": "tanh"}, lambda x: oracle.gelu(x, "tanh")),
    "gelu:none": (ops.gelu, {"approximate": "none"}, lambda x: oracle.gelu(x, "none")),
}
EXTREMES = np.array([0.0, -0.0, 1e-38, -1e-38, 1e-6, 1, -1, 5, -5, 20, -20, 88, -88, 100, -100, 1000, -1000, 3e10, -3e10], F32)
TOLERANCE = 2e-6
"""Of the largest result; a few roundings."""


class Elementwise(Checks):
    """Operations on each element, and the largest one, against float64."""

    @pytest.mark.parametrize("in_place", [False, True], ids=["out", "in place"])
    @pytest.mark.parametrize("name", UNARY)
    def test_functions(self, device: Device, rng: np.random.Generator, name: str, in_place: bool) -> None:
        """silu, sigmoid, gelu: any size; the output may be the input."""
        op, params, expected = UNARY[name]
        for size in SIZES:
            x = (rng.standard_normal(size) * 3).astype(F32)
            dx = device.to_device(x)
            out = dx if in_place else device.to_device(np.full(size, np.nan, F32))
            with self.optional():
                op(out, dx, **params)
            assert_close(out.to_host(), expected(x), self.tolerance(name, TOLERANCE), name)
            if not in_place:
                assert np.array_equal(dx.to_host(), x)

    @pytest.mark.parametrize("name", UNARY)
    def test_functions_of_extremes(self, device: Device, name: str) -> None:
        """Each on its own, so that none hides behind a larger one; results too small for a normal float may be zero."""
        op, params, expected = UNARY[name]
        for value in EXTREMES:
            out, x = device.empty(1, F32), np.array([value], F32)
            with self.optional():
                op(out, device.to_device(x), **params)
            got, want = out.to_host(), expected(x)
            if abs(want[0]) < 1e-30:
                assert abs(got[0]) < 1e-30, f"{name}({value}) is {got[0]}, not {want[0]}"
                continue
            # 1 + erf and 1 + tanh cancel for negative arguments: there the error is relative to the argument.
            magnitude = abs(float(value)) if value < 0 else 0.0
            assert_close(got, want, self.tolerance(name, TOLERANCE), f"{name}({value})", magnitude=magnitude)

    @pytest.mark.parametrize("out_is", ["new", "first", "second"])
    @pytest.mark.parametrize("name", ["add", "mul", "swiglu"])
    def test_functions_of_two(self, device: Device, rng: np.random.Generator, name: str, out_is: str) -> None:
        """Any size; the output may be either input."""
        for size in SIZES:
            a, b = rng.standard_normal((2, size), F32)
            da, db = device.to_device(a), device.to_device(b)
            out = {"new": device.empty(size, F32), "first": da, "second": db}[out_is]
            with self.optional():
                getattr(ops, name)(out, da, db)
            wide = b.astype(np.float64)
            expected = a + wide if name == "add" else (a if name == "mul" else oracle.silu(a)) * wide
            assert_close(out.to_host(), expected, self.tolerance(name, TOLERANCE), name)

    @pytest.mark.parametrize("shapes", [((4, 8), (8,)), ((3, 5, 7), (5, 7)), ((2, 33), (1, 33)), ((6, 1), (1,))], ids=str)
    @pytest.mark.parametrize("name", ["add", "mul"])
    def test_the_second_operand_repeats(
        self, device: Device, rng: np.random.Generator, name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> None:
        """Over leading axes that it lacks."""
        a, b = (rng.standard_normal(shape, F32) for shape in shapes)
        if b.ndim == a.ndim:
            a = np.ascontiguousarray(a[:1])
        out = device.empty(a.shape, F32)
        with self.optional():
            getattr(ops, name)(out, device.to_device(a), device.to_device(b))
        assert_close(out.to_host(), a + b if name == "add" else a * b, self.tolerance(name, TOLERANCE), name)

    @pytest.mark.parametrize("name", ["add", "mul", "silu", "sigmoid", "gelu", "swiglu"])
    def test_no_elements(self, device: Device, name: str) -> None:
        """Nothing to do is not an error."""
        operands = [device.empty((0, 3), F32) for _ in range(2 if name in ("silu", "sigmoid", "gelu") else 3)]
        with self.optional():
            getattr(ops, name)(*operands)
        device.synchronize()

    @pytest.mark.parametrize("d", [1, 2, 31, 32, 1000, 49152])
    def test_argmax(self, device: Device, rng: np.random.Generator, d: int) -> None:
        """Of each row."""
        self._argmax(device, rng.standard_normal((3, d), F32))

    @pytest.mark.parametrize(
        "row",
        [
            [1, 3, 3, 3, 2],
            [0.0, -0.0, 0.0],
            [-np.inf, -np.inf],
            [1, np.inf, np.inf],
            [1, np.nan, 5, np.nan],
            [np.nan, np.inf],
            [-1e-45, 0, 1e-45],
            [2.0] * 100,
        ],
        ids=str,
    )
    def test_argmax_of_ties_and_extremes(self, device: Device, row: list[float]) -> None:
        """The first of equals; NaN is the largest."""
        self._argmax(device, np.array([row, row[::-1]], F32))

    def _argmax(self, device: Device, x: NDArray[np.float32]) -> None:
        out = device.to_device(np.full(len(x), -7, np.int32))
        with self.optional():
            ops.argmax(out, device.to_device(x))
        assert out.to_host().tolist() == np.argmax(x, axis=-1).tolist()
