"""This file knows about the device code of SwiGLU.

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
def gated(gate_up_ptr, out_ptr, scale_ptr, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
          LARGEST: tl.constexpr):
    """silu(gate)·up of a tile. LARGEST: of the quantised format, then a tile has whole rows; 0: not quantised."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < width)
    start = row.to(tl.int64) * width

    gate = tl.load(gate_up_ptr + 2 * start + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + 2 * start + width + column, mask=inside, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up                  # exp overflows to infinity: gate / infinity is the limit, 0
    if LARGEST:
        store_quantised(y, out_ptr, start + column, inside, scale_ptr, row, rows, LARGEST)
    else:
        tl.store(out_ptr + start + column, y.to(out_ptr.dtype.element_ty), mask=inside)
