"""Products with weights in any GGUF format, and row lookup."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oxidize_host.errors import ShapeError
from oxidize_host.ops.op import Call, check, check_out, find, op, scalars
from oxidize_host.ops.weight import Weight

if TYPE_CHECKING:
    from oxidize_host.memory import Buffer

__all__ = ["gemm", "gemv", "get_rows"]


def _weight(weight: object) -> Weight:
    if not isinstance(weight, Weight):
        raise ShapeError(f"weight must be an ops.Weight, not {type(weight).__name__}; make it with ops.Weight.upload()")
    return weight


@op
def gemv(out: Buffer, weight: Weight, x: Buffer) -> Call:
    """out[m] = weight[m, k] @ x[k].

    Kernel ``gemv`` {weight: format}, extent (m,), arguments (out, weight, x, m, k).
    """
    w = _weight(weight)
    check_out(out, w.rows)
    check("x", x, np.float32, w.columns)
    return Call(find(out, "gemv", weight=w.format), (w.rows,), (out, w.buffer, x, *scalars(w.rows, w.columns)))


@op
def gemm(out: Buffer, weight: Weight, x: Buffer) -> Call:
    """out[n, m] = x[n, k] @ weight[m, k].T, for n rows of activations at once.

    Kernel ``gemm`` {weight: format}, extent (m, n), arguments (out, weight, x, m, k, n).
    """
    w = _weight(weight)
    n, _ = check("x", x, np.float32, None, w.columns)
    check_out(out, n, w.rows)
    return Call(find(out, "gemm", weight=w.format), (w.rows, n), (out, w.buffer, x, *scalars(w.rows, w.columns, n)))


@op
def get_rows(out: Buffer, weight: Weight, ids: Buffer) -> Call:
    """out[i] = weight[ids[i]], decoded: the embedding lookup. A row of NaN for an id that is out of range.

    Kernel ``get_rows`` {weight: format}, extent (n,), arguments (out[n, d], weight, ids i32[n], n, d, rows).
    """
    w = _weight(weight)
    (n,) = check("ids", ids, np.int32, None)
    check_out(out, n, w.columns)
    return Call(find(out, "get_rows", weight=w.format), (n,), (out, w.buffer, ids, *scalars(n, w.columns, w.rows)))
