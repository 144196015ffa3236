"""Weight: a matrix in one of the GGUF formats, in device memory."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from oxidize_host import quant
from oxidize_host.errors import ShapeError, UnsupportedOp
from oxidize_host.memory import check_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxidize_host.device import Device
    from oxidize_host.memory import Buffer
    from oxidize_host.stream import Stream

__all__ = ["Weight"]


@dataclasses.dataclass(frozen=True, slots=True)
class Weight:
    """A row-major matrix of ``rows`` x ``columns`` weights, each row a run of blocks as it lies in a GGUF file.

    Attributes
    ----------
    buffer : Buffer
        uint8, shape (rows, bytes per row).
    format : str
        A name of `oxidize_host.quant.FORMATS`.
    rows, columns : int
    """

    buffer: Buffer
    format: str
    rows: int
    columns: int

    @classmethod
    def upload(
        cls,
        device: Device,
        data: NDArray[Any],
        format: str,  # noqa: A002 - the field's word for it
        shape: tuple[int, int],
        *,
        stream: Stream | None = None,
        zero_copy: bool = True,
    ) -> Self:
        """Put a matrix on a device.

        Parameters
        ----------
        device
            Where to.
        data
            The rows as they lie in the file: any dtype, ``rows * row_bytes(format, columns)`` bytes in all.
        format
            ``"f32"``, ``"f16"``, ``"bf16"``, ``"q4_0"``, ``"q4_1"``, ``"q5_0"``, ``"q5_1"``, ``"q8_0"``, ``"q4_k"``,
            ``"q5_k"`` or ``"q6_k"``.
        shape
            (rows, columns).
        zero_copy
            Use the array's own memory where the device can (the array is kept alive); else, and by default elsewhere, copy.

        Raises
        ------
        ShapeError
            Unknown format, a row that is not a whole number of blocks, a wrong number of bytes, or an infinite or NaN
            scale factor, which would spread over every result.
        """
        sizes = check_shape(shape)
        if len(sizes) != 2:
            raise ShapeError(f"weight: the shape is (rows, columns), got {shape!r}")
        rows, columns = sizes
        per_row = quant.row_bytes(format, columns)
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if flat.nbytes != rows * per_row:
            raise ShapeError(f"weight: {rows} x {columns} in {format} is {rows * per_row} bytes, got {flat.nbytes}")
        raw = flat.reshape(rows, per_row)
        if count := quant.bad_scales(raw, format):
            what = "scale factors" if quant.FORMATS[format].quantized else "weights"
            raise ShapeError(
                f"weight: {count} {what} of the {rows} x {columns} {format} matrix are infinite or NaN; the file is damaged"
            )
        if zero_copy:
            try:
                return cls(device.wrap(raw), format, rows, columns)
            except UnsupportedOp:
                pass  # this device has memory of its own: the copy below is the documented other way
        return cls(device.to_device(raw, stream=stream), format, rows, columns)

    def check(self, name: str, rows: int | None = None, columns: int | None = None) -> None:
        """Raise `ShapeError` naming the operand unless it has this many rows and columns."""
        for what, want, have in (("rows", rows, self.rows), ("columns", columns, self.columns)):
            if want is not None and want != have:
                raise ShapeError(f"{name} must have {want} {what}, has {have} ({self.rows} x {self.columns} {self.format})")
