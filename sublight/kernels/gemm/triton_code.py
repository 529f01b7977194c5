"""This file knows about the device code of matrix products: persistent blocks that take tile after tile of the output.

    out[m, n] = a[m, k] · b[n, k]ᵀ, scaled

Only imported where it is compiled or interpreted: it needs Triton at once.
"""

# Code of another language: the compiler's constants are in capitals, and types are tiles and pointers.
# ruff: noqa: N803
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(a, b, out, a_scale_ptr, b_scale_ptr, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
            GROUP: tl.constexpr, SCALED: tl.constexpr, DESCRIPTORS: tl.constexpr):
    """Tiles of M x N, K columns of a and b a step. a, b, out: descriptors (tensor memory accelerator) or pointers.

    SCALED: "no", "tensor" (one scale for a, one for b), "row" (one a row of a and of b), "block" (a: 1 x 128 elements,
    b: 128 x 128; then K is 128 and N divides 128).
    """
    rows, columns, steps = tl.cdiv(m, M), tl.cdiv(n, N), tl.cdiv(k, K)
    for tile in tl.range(tl.program_id(0), rows * columns, tl.num_programs(0)):
        row, column = _place(tile, rows, columns, GROUP)
        row, column = row * M, column * N
        if SCALED == "block":
            total = _sum_of_blocks(a, b, a_scale_ptr, b_scale_ptr, m, n, k, row, column, steps, M, N, K, DESCRIPTORS)
        else:
            total = _sum(a, b, m, n, k, row, column, steps, M, N, K, SCALED == "row", DESCRIPTORS)
        total = _scaled(total, a_scale_ptr, b_scale_ptr, m, n, row, column, M, N, SCALED)
        if DESCRIPTORS:
            out.store([row, column], total.to(out.dtype))
        else:
            i, j = row + tl.arange(0, M)[:, None], column + tl.arange(0, N)[None, :]
            at = out + i.to(tl.int64) * n + j
            tl.store(at, total.to(out.dtype.element_ty), mask=(i < m) & (j < n))


@triton.jit
def _place(tile, rows, columns, GROUP: tl.constexpr):
    """Row and column of a tile, in tiles: GROUP rows are walked down before the next column, so that blocks which run
    at one time share columns of b and rows of a in the L2 cache."""
    first = tile // (GROUP * columns) * GROUP
    height = tl.minimum(rows - first, GROUP)
    inside = tile % (GROUP * columns)
    return first + inside % height, inside // height


@triton.jit
def _tile(x, start, step, size, k, HEIGHT: tl.constexpr, K: tl.constexpr, DESCRIPTORS: tl.constexpr):
    """HEIGHT rows from `start`, K columns from step·K, zero beyond the matrix of `size` rows and k columns."""
    if DESCRIPTORS:
        found = x.load([start, step * K])
    else:
        i, j = start + tl.arange(0, HEIGHT)[:, None], step * K + tl.arange(0, K)[None, :]
        found = tl.load(x + i.to(tl.int64) * k + j, mask=(i < size) & (j < k), other=0.0)
    return found


@triton.jit
def _sum(a, b, m, n, k, row, column, steps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, INTEGER: tl.constexpr,
         DESCRIPTORS: tl.constexpr):
    total = tl.zeros([M, N], tl.int32 if INTEGER else tl.float32)
    for step in tl.range(steps):
        left = _tile(a, row, step, m, k, M, K, DESCRIPTORS)
        right = _tile(b, column, step, n, k, N, K, DESCRIPTORS)
        total = tl.dot(left, right.T, total, out_dtype=total.dtype)
    return total


@triton.jit
def _sum_of_blocks(a, b, a_scale_ptr, b_scale_ptr, m, n, k, row, column, steps, M: tl.constexpr, N: tl.constexpr,
                   K: tl.constexpr, DESCRIPTORS: tl.constexpr):
    """Each step of 128 columns has its own scales: one multiply-add an element, beside the tensor cores."""
    i = row + tl.arange(0, M)
    total = tl.zeros([M, N], tl.float32)
    for step in tl.range(steps):
        left = _tile(a, row, step, m, k, M, K, DESCRIPTORS)
        right = _tile(b, column, step, n, k, N, K, DESCRIPTORS)
        scale = tl.load(a_scale_ptr + i * steps + step, mask=i < m, other=0.0)
        scale *= tl.load(b_scale_ptr + column // 128 * steps + step)
        total += tl.dot(left, right.T) * scale[:, None]
    return total


@triton.jit
def _scaled(total, a_scale_ptr, b_scale_ptr, m, n, row, column, M: tl.constexpr, N: tl.constexpr,
            SCALED: tl.constexpr):
    if SCALED == "tensor":
        total *= tl.load(a_scale_ptr) * tl.load(b_scale_ptr)
    elif SCALED == "row":
        i, j = row + tl.arange(0, M), column + tl.arange(0, N)
        total = total.to(tl.float32) * tl.load(a_scale_ptr + i, mask=i < m, other=0.0)[:, None]
        total *= tl.load(b_scale_ptr + j, mask=j < n, other=0.0)[None, :]
    return total
