"""This file knows about the device code of normalisation: a whole row in the registers of one block.

Only imported where it is compiled or interpreted: it needs Triton at once.
"""

# Code of another language: the compiler's constants are in capitals, and types are tiles and pointers.
# ruff: noqa: N803
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from sublight.kernels.launch.quantised_code import store_quantised


@triton.jit
def normalised(x_ptr, weight_ptr, bias_ptr, residual_ptr, out_ptr, scale_ptr, summed_ptr, rows, width, eps,
               ROWS: tl.constexpr, COLUMNS: tl.constexpr, LAYER: tl.constexpr, LARGEST: tl.constexpr):
    """ROWS rows a block. Absent tensors are None. LARGEST: of the quantised format, 0 where out is not quantised."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < width)
    at = row.to(tl.int64) * width + column

    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        x += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(summed_ptr + at, x.to(summed_ptr.dtype.element_ty), mask=inside)
    if LAYER:
        mean = tl.sum(x, axis=1, keep_dims=True) / width
        x = tl.where(inside, x - mean, 0.0)
    y = x * tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / width + eps)
    y *= tl.load(weight_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + column, mask=column < width, other=0.0).to(tl.float32)

    if LARGEST:
        store_quantised(y, out_ptr, at, inside, scale_ptr, row, rows, LARGEST)
    else:
        tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=inside)
