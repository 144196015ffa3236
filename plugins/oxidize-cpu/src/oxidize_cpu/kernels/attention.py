"""Causal attention over a KV cache, in one pass over the cache with a running maximum; `oxidize_host.ops` has the arguments.

Running softmax: Milakov and Gimelshein 2018, arXiv:1805.02867; in tiles: Dao et al. 2022, arXiv:2205.14135.

The queries of one KV head are numbered token by token, head by head; a work item is 32 of them. It takes the cache in tiles
of rows, which are converted once for all its queries. What it computes for a query depends on no other one: not on how many
tokens there are, nor on who does what, nor, since `ops.fma` rounds once everywhere, on the CPU. Rows that a query does not see are never multiplied, whatever they hold.
"""
# mypy: disable-error-code="no-untyped-call,no-untyped-def,no-any-return"
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types

from oxidize_cpu.kernels import simd
from oxidize_cpu.kernels.mathfn import exp
from oxidize_cpu.kernels.ops import (
    f32,
    float_of_bits,
    fma,
    half_to_float,
    inline,
    load_f32,
    load_f32x16,
    load_f64,
    load_first_f32x16,
    load_first_i16x16,
    load_i16x16,
    load_i32,
    load_i64,
    max_of,
    select,
    splat_f32x16,
    splat_i32x16,
    store,
    store_f32,
    store_f64,
    store_first,
    store_i64,
    sum_of,
    zero_f32x16,
)

if TYPE_CHECKING:
    from collections.abc import Callable

QUERIES = 32  # as in standard
ROWS = 32  # of a tile
PIECE = 128  # dimensions of a head that a tile holds

_tile_memory = simd.stack(ROWS * PIECE * 4)
_query_memory = simd.stack(PIECE * 4)
_score_memory = simd.stack(QUERIES * ROWS * 4)
# For each query: where it starts in q and out (bytes), how many rows it sees, the sum of its weights (f64), the largest score
# (f32), and what the sums so far must be multiplied with (f32).
_STATE, _OFFSET, _SEEN, _SUM, _LARGEST, _CORRECTION = 32, 0, 8, 16, 24, 28
_state_memory = simd.stack(QUERIES * _STATE)

_lanes, _lowest = simd.const("i32x16", list(range(16))), simd.const("f32x16", float("-inf"))
_minus_infinity = f32(float("-inf"))
_first_of = simd._as(types.float32, lambda b, _sig, x: b.extract_element(x, ir.Constant(simd.I32, 0)))


def _fold(unit: int, pattern: list[int]) -> Any:
    """Make f(a, b) that adds lanes of two vectors: ``pattern`` names 16 of the 32, in runs of ``unit``, then 16 others."""
    lanes = [lane * unit + at for lane in pattern for at in range(unit)]
    low, high = simd.shuffle(lanes[:16]), simd.shuffle(lanes[16:])
    return inline(lambda a, b: low(a, b) + high(a, b))


# Sixteen sums of 16 lanes each, in the lanes of one vector: shuffles within quarters (128 bits) first, which are cheap.
_quarters = range(0, 16, 4)
_fold_1 = _fold(1, [q + at for first in (0, 2) for q in _quarters for at in (first, first + 16, first + 1, first + 17)])
_fold_2 = _fold(2, [q // 2 + at for first in (0, 1) for q in _quarters for at in (first, first + 8)])
_fold_3 = _fold(4, [0, 1, 4, 5, 2, 3, 6, 7])
_fold_4 = _fold(4, [0, 2, 4, 6, 1, 3, 5, 7])


def attention(cache: str) -> Callable[[int, int, int], None]:
    """Arguments (out, q, k_cache, v_cache, positions, n, heads, kv_heads, head_dim, capacity, scale)."""
    each, tile = {"f32": (4, _tile_f32), "f16": (2, _tile_f16)}[cache]
    score, mix = _stages(each, tile)

    def kernel(args, lo, hi):
        out, q, keys, values = load_i64(args), load_i64(args + 8), load_i64(args + 16), load_i64(args + 24)
        positions, n = load_i64(args + 32), load_i64(args + 40)
        heads, kv_heads, head_dim = load_i64(args + 48), load_i64(args + 56), load_i64(args + 64)
        capacity, scale = load_i64(args + 72), float_of_bits(load_i64(args + 80))
        group = heads // kv_heads
        blocks = (n * group + QUERIES - 1) // QUERIES
        row_bytes = kv_heads * head_dim * each
        memory, scores, states = _tile_memory(0), _score_memory(0), _state_memory(0)
        for item in range(lo, hi):
            # Late tokens see most: they come first, so that no thread is left with the longest work at the end.
            kv, first = item % kv_heads, (blocks - 1 - item // kv_heads) * QUERIES
            count, most = min(n * group - first, QUERIES), 0
            for i in range(count):
                token, head = (first + i) // group, kv * group + (first + i) % group
                seen = min(load_i32(positions + token * 4), capacity - 1) + 1
                most = max(most, seen)
                _begin(states + i * _STATE, out, (token * heads + head) * head_dim * 4, head_dim, seen)
            for row in range(0, most, ROWS):
                rows, start = min(most - row, ROWS), row * row_bytes + kv * head_dim * each
                score(scores, states, count, q, memory, keys + start, rows, row_bytes, head_dim)
                for i in range(count):
                    state = states + i * _STATE
                    if row < load_i64(state + _SEEN):
                        _weigh(scores + i * ROWS * 4, state, min(load_i64(state + _SEEN) - row, rows), scale)
                mix(scores, states, count, out, memory, values + start, row, rows, row_bytes, head_dim)
            for i in range(count):
                _end(states + i * _STATE, out, head_dim)

    return kernel


def _stages(each: int, tile: Any) -> Any:
    """Return what is done for a tile before and after its scores become weights; ``each`` value of the cache has so many bytes."""

    @inline
    def score(scores, states, count, q, memory, keys, rows, row_bytes, head_dim):
        """Write the products of all queries with all rows."""
        for at in range(0, head_dim, PIECE):
            size = min(head_dim - at, PIECE)
            tile(memory, keys + at * each, rows, row_bytes, size)
            for i in range(count):
                query = _padded(q + load_i64(states + i * _STATE + _OFFSET) + at * 4, size)
                _products(scores + i * ROWS * 4, query, memory, rows, size, at > 0)

    @inline
    def mix(scores, states, count, out, memory, values, row, rows, row_bytes, head_dim):
        """Add the weighted rows that each query sees to its output."""
        for at in range(0, head_dim, PIECE):
            size = min(head_dim - at, PIECE)
            tile(memory, values + at * each, rows, row_bytes, size)
            for i in range(count):
                state = states + i * _STATE
                target, seen = out + load_i64(state + _OFFSET) + at * 4, min(load_i64(state + _SEEN) - row, rows)
                if seen > 0:
                    _mix(target, scores + i * ROWS * 4, memory, seen, size, load_f32(state + _CORRECTION))

    return score, mix


@inline
def _begin(state, out, offset, head_dim, seen):
    store_i64(state + _OFFSET, offset)
    store_i64(state + _SEEN, seen)
    store_f64(state + _SUM, 0.0)
    store_f32(state + _LARGEST, _minus_infinity)
    whole, at = head_dim // 16 * 16, out + offset
    for i in range(0, whole, 16):
        store(at + i * 4, zero_f32x16(0))
    if whole < head_dim:
        store_first(at + whole * 4, zero_f32x16(0), head_dim - whole)


@inline
def _end(state, out, head_dim):
    """Divide by the sum of the weights; what sees no row stays zero."""
    if load_i64(state + _SEEN) > 0:
        at, factor = out + load_i64(state + _OFFSET), splat_f32x16(f32(1.0 / load_f64(state + _SUM)))
        whole = head_dim // 16 * 16
        for i in range(0, whole, 16):
            store(at + i * 4, load_f32x16(at + i * 4) * factor)
        if whole < head_dim:
            left, at = head_dim - whole, at + whole * 4
            store_first(at, load_first_f32x16(at, left) * factor, left)


def _tile(load: Any, load_first: Any, convert: Any, each: int) -> Any:
    @inline
    def tile(memory, source, rows, row_bytes, size):
        """Convert ``size`` dimensions of some rows to float32, each followed by zeros up to a multiple of 16."""
        whole, stride = size // 16 * 16, (size + 15) // 16 * 64
        for row in range(rows):
            to, of = memory + row * stride, source + row * row_bytes
            for i in range(0, whole, 16):
                store(to + i * 4, convert(load(of + i * each)))
            if whole < size:
                store(to + whole * 4, convert(load_first(of + whole * each, size - whole)))

    return tile


_same = inline(lambda v: v)
_tile_f32 = _tile(load_f32x16, load_first_f32x16, _same, 4)
_tile_f16 = _tile(load_i16x16, load_first_i16x16, half_to_float, 2)


@inline
def _padded(query, size):
    """Return the address of the query, or of a copy of it that ends in zeros."""
    if size % 16 == 0:
        return query
    copy = _query_memory(0)
    for i in range(0, size, 16):
        store(copy + i * 4, load_first_f32x16(query + i * 4, size - i))
    return copy


@inline
def _four(query, tile, stride):
    """Return the products of the query with 4 rows: each quarter of the result holds parts of the four sums, in order."""
    a = b = c = d = zero_f32x16(0)
    for i in range(0, stride, 64):
        x, w = load_f32x16(query + i), tile + i
        a, b = fma(load_f32x16(w), x, a), fma(load_f32x16(w + stride), x, b)
        w += 2 * stride
        c, d = fma(load_f32x16(w), x, c), fma(load_f32x16(w + stride), x, d)
    ab, cd = _fold_1(a, b), _fold_1(c, d)
    return _fold_2(ab, cd)


@inline
def _products(scores, query, tile, rows, size, more):
    """Write (add, if ``more``) the products with all rows of the tile; those past the last row mean nothing."""
    stride = (size + 15) // 16 * 64
    for row in range(0, rows, 16):
        at = tile + row * stride
        v01 = _fold_3(_four(query, at, stride), _four(query, at + 4 * stride, stride))
        v23 = _fold_3(_four(query, at + 8 * stride, stride), _four(query, at + 12 * stride, stride))
        v = _fold_4(v01, v23)
        if more:
            v = v + load_f32x16(scores + row * 4)
        store(scores + row * 4, v)


@inline
def _weigh(scores, state, seen, scale):
    """Replace the first ``seen`` products by weights exp(scale * product - largest); update the state."""
    top = _lowest(0)
    for i in range(0, seen, 16):
        v = select(_lanes(0) < splat_i32x16(seen - i), load_f32x16(scores + i * 4) * splat_f32x16(scale), _lowest(0))
        store(scores + i * 4, v)
        top = select(v > top, v, top)
    before, now = load_f32(state + _LARGEST), max_of(top)
    now = max(before, now)
    # Scores that are all minus infinity so far weigh nothing; if that remains so, the result is 0 / 0.
    base = splat_f32x16(now if now > _minus_infinity else f32(0.0))
    total = zero_f32x16(0)
    for i in range(0, seen, 16):
        weight = exp(load_f32x16(scores + i * 4) - base)
        store(scores + i * 4, weight)
        total = total + weight
    correction = _first_of(exp(splat_f32x16(before) - base))
    store_f32(state + _LARGEST, now)
    store_f32(state + _CORRECTION, correction)
    store_f64(state + _SUM, load_f64(state + _SUM) * correction + sum_of(total))


@inline
def _mix(out, weights, tile, seen, size, correction):
    """Set out = out * correction + weights @ tile."""
    stride, factor = (size + 15) // 16 * 64, splat_f32x16(correction)
    fours = size // 64 * 64
    for i in range(0, fours, 64):
        z = zero_f32x16(0)
        a0, a1, a2, a3 = z, z, z, z
        for row in range(seen):
            weight, v = splat_f32x16(load_f32(weights + row * 4)), tile + row * stride + i * 4
            a0, a1 = fma(load_f32x16(v), weight, a0), fma(load_f32x16(v + 64), weight, a1)
            a2, a3 = fma(load_f32x16(v + 128), weight, a2), fma(load_f32x16(v + 192), weight, a3)
        to = out + i * 4
        store(to, fma(load_f32x16(to), factor, a0))
        store(to + 64, fma(load_f32x16(to + 64), factor, a1))
        store(to + 128, fma(load_f32x16(to + 128), factor, a2))
        store(to + 192, fma(load_f32x16(to + 192), factor, a3))
    for i in range(fours, size, 16):
        a, to = zero_f32x16(0), out + i * 4
        for row in range(seen):
            a = fma(load_f32x16(tile + row * stride + i * 4), splat_f32x16(load_f32(weights + row * 4)), a)
        store_first(to, fma(load_first_f32x16(to, size - i), factor, a), size - i)
