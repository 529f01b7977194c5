"""This file knows about the device code that quantises rows of registers: one dynamic scale a row.

Only imported by other device code: it needs Triton at once.
"""

# Code of another language: the compiler's constants are in capitals, and types are tiles and pointers.
# ruff: noqa: N803
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

ROUNDS: tl.constexpr = tl.constexpr(12582912.0)   # 1.5·2²³: adding it leaves no bits for a fraction of |x| < 2²²


@triton.jit
def store_quantised(y, out_ptr, at, inside, scale_ptr, row, rows, LARGEST: tl.constexpr):
    """Writes y[row, column] / scale, and scale[row] = the row's largest magnitude / LARGEST (448: fp8, 127: int8).

    y is float32 and zero outside. A row of zeros gets the scale 1.
    """
    scale = tl.max(tl.abs(y), axis=1, keep_dims=True) / LARGEST
    scale = tl.where(scale > 0, scale, 1.0)
    quotient = y / scale
    if LARGEST == 127:
        quotient = (quotient + ROUNDS) - ROUNDS            # to nearest, ties to even: a cast to int8 would cut off
    tl.store(out_ptr + at, tl.clamp(quotient, -LARGEST, LARGEST).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(scale_ptr + row, scale, mask=row < rows)
