"""Products with weights in any format: out[n, m] = x[n, k] @ w[m, k].T.

Arguments: (out, w, x, m, k) for ``gemv``, with one more, n, for ``gemm``; then, for quantized weights, the records that
`quantize.activations` made of x. All is done in tiles of some rows by some tokens, whose sums stay in registers.
"""
# ruff: noqa: ANN001, ANN202 - numba infers the types of what it compiles
# mypy: disable-error-code="no-untyped-call,no-untyped-def,no-any-return"

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from oxidize_cpu.kernels import formats, simd
from oxidize_cpu.kernels.layout import FORMATS, TILE, tokens_at_a_time
from oxidize_cpu.kernels.ops import (
    inline,
    load_i64,
    load_u8,
    prefetch,
    store,
    store_f32,
    store_u8,
    sum_of,
    zero_f32x16,
    zero_i32x16,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_FEW = 4  # tokens below which gemm takes them one at a time
# Floats are read in four streams. Rows of blocks are shorter: four at once confuse the prefetchers of the hardware, one by one
# they are a single stream, which prefetching in software carries past the ends of pages.
_FLOAT_ROWS = 4
_AHEAD = 4096  # bytes
# Rows and tokens of a tile of gemm: with 16 vector registers of half the width, and with 32 of full width.
_GEMM_TILES = ((2, 4), (2, 8))


@functools.cache
def _tile(fmt: str, rows: int, tokens: int, ahead: int = 0) -> Any:
    """Return the function that computes a tile: ``rows`` rows from ``w`` on, ``tokens`` tokens from ``x`` on.

    Where fewer are left, the last row or token is computed again and again; what it stores is the same.
    """
    form = FORMATS[fmt]
    whole, some = formats.group(fmt)
    pairs = [(row, token) for token in range(tokens) for row in range(rows)]
    prefetches = [f"prefetch(w0 + p + {ahead + at})" for at in range(0, form.group_bytes, 64)] if ahead else []
    lines = [
        "def tile(out, m, w, row_bytes, rows, x, x_bytes, tokens, full, rest):",
        *(f" r{r} = min({r}, rows - 1)" for r in range(rows)),
        *(f" t{t} = min({t}, tokens - 1)" for t in range(tokens)),
        *(f" w{r} = w + r{r} * row_bytes" for r in range(rows)),
        *(f" x{t} = x + t{t} * x_bytes" for t in range(tokens)),
        *(f" a{r}_{t} = zero(0)" for r, t in pairs),
        " for g in range(full):" if some else " for g in range(full + min(rest, 1)):",
        f"  p, q = g * {form.group_bytes}, g * {form.record}",
        "" if some else f"  p = min(p, row_bytes - {form.group_bytes})",  # the last group overlaps the one before it
        *(f"  {prefetch}" for prefetch in prefetches),
        *(f"  a{r}_{t} = whole(a{r}_{t}, w{r} + p, x{t} + q)" for r, t in pairs),
    ]
    if some:
        lines += [" if rest:", f"  p, q = full * {form.group_bytes}, full * {form.record}"]
        lines += [f"  a{r}_{t} = some(a{r}_{t}, w{r} + p, x{t} + q, rest)" for r, t in pairs]
    lines += [f" store_f32(out + (t{t} * m + r{r}) * 4, sum_of(a{r}_{t}))" for r, t in pairs]
    scope: dict[str, Any] = {
        "whole": inline(whole),
        "some": some and inline(some),
        "prefetch": prefetch,
        "zero": zero_f32x16,
        "sum_of": sum_of,
        "store_f32": store_f32,
    }
    exec("\n".join(lines), scope)  # noqa: S102 - numba has no loop that is certain to be unrolled
    return inline(scope["tile"])


def _short_rows(fmt: str, rows: int) -> Any:
    """Return a function that copies rows which are shorter than a group to ``to``, with zeros up to a group."""
    size = FORMATS[fmt].group_bytes

    @inline
    def copy(to, w, row_bytes, count):
        for at in range(0, rows * size, 64):
            store(to + at, zero_i32x16(0))
        for row in range(min(rows, count)):
            for at in range(row_bytes):
                store_u8(to + row * size + at, load_u8(w + row * row_bytes + at))

    return copy


def gemv(fmt: str) -> Callable[[int, int, int], None]:
    """Work item: one row."""
    form = FORMATS[fmt]
    block, block_bytes, group, group_bytes = form.block, form.block_bytes, form.group, form.group_bytes
    quantized = bool(form.order)
    rows, ahead = (1, _AHEAD) if quantized else (_FLOAT_ROWS, 0)
    tile, copy, buffer = _tile(fmt, rows, 1, ahead), _short_rows(fmt, rows), simd.stack(rows * group_bytes + 64)

    def kernel(args, lo, hi):
        out, w, m, k = load_i64(args), load_i64(args + 8), load_i64(args + 24), load_i64(args + 32)
        x = load_i64(args + (40 if quantized else 16))
        row_bytes = k // block * block_bytes
        full, rest, short = k // group, k % group, buffer(0)
        for row in range(lo, hi, rows):
            at, stride = w + row * row_bytes, row_bytes
            if quantized and k < group:
                copy(short, at, row_bytes, hi - row)
                at, stride = short, group_bytes
            tile(out + row * 4, m, at, stride, hi - row, x, 0, 1, full, rest)

    return kernel


def gemm(fmt: str, *, isa: str) -> Callable[[int, int, int], None]:
    """Work item: `TILE` rows times the tokens whose activations fit the cache."""
    form = FORMATS[fmt]
    block, block_bytes, group, group_bytes, record = form.block, form.block_bytes, form.group, form.group_bytes, form.record
    quantized = bool(form.order)
    few_rows, (rows, tokens) = 1 if quantized else _FLOAT_ROWS, _GEMM_TILES[isa == "vnni512"]
    few, many = _tile(fmt, few_rows, 1), _tile(fmt, rows, tokens)
    copy, buffer = _short_rows(fmt, TILE), simd.stack(TILE * group_bytes + 64)
    span_of = inline(tokens_at_a_time)

    def kernel(args, lo, hi):
        out, w, m, k, n = load_i64(args), load_i64(args + 8), load_i64(args + 24), load_i64(args + 32), load_i64(args + 40)
        x = load_i64(args + (48 if quantized else 16))
        row_bytes = k // block * block_bytes
        x_bytes = (k + group - 1) // group * record if quantized else k * 4
        full, rest = k // group, k % group
        tiles, span = (m + TILE - 1) // TILE, span_of(x_bytes, n)
        short = buffer(0)
        for item in range(lo, hi):
            row = item % tiles * TILE
            first = item // tiles * span
            last, count = min(first + span, n), min(TILE, m - row)
            at, stride = w + row * row_bytes, row_bytes
            if quantized and k < group:
                copy(short, at, row_bytes, count)
                at, stride = short, group_bytes
            if n < _FEW:
                for part in range(0, count, few_rows):
                    for token in range(first, last):
                        to = out + (token * m + row + part) * 4
                        few(to, m, at + part * stride, stride, count - part, x + token * x_bytes, 0, 1, full, rest)
            else:
                for part in range(0, count, rows):
                    for token in range(first, last, tokens):
                        to, tx = out + (token * m + row + part) * 4, x + token * x_bytes
                        many(to, m, at + part * stride, stride, count - part, tx, x_bytes, last - token, full, rest)

    return kernel
