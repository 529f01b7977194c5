"""This file knows about the device code of cross entropy.

Only imported where it is compiled or interpreted: it needs Triton at once.
"""

# Code of another language: the compiler's constants are in capitals, and types are tiles and pointers.
# ruff: noqa: N803
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cross_entropy(logits_ptr, targets_ptr, loss_ptr, classes, LANES: tl.constexpr, EACH: tl.constexpr):
    """loss = log Σ exp(x) - x[target], one row a block, in one pass.

    Each lane keeps the largest of its own logits and the sum of their exponentials relative to it, EACH of them a step:
    the block meets once, at the end of the row.
    """
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row)
    lane = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    largest = tl.full([LANES], float("-inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    if target != -100:
        for start in range(0, classes, LANES * EACH):
            column = start + lane
            x = tl.load(logits_ptr + row * classes + column, mask=column < classes, other=float("-inf")).to(tl.float32)
            larger = tl.maximum(largest, tl.max(x, axis=1))
            finite = tl.where(larger == float("-inf"), 0.0, larger)     # -inf less -inf would be NaN
            total = total * tl.exp(largest - finite) + tl.sum(tl.exp(x - finite[:, None]), axis=1)
            largest = larger
        most = tl.max(largest, axis=0)
        log_sum = most + tl.log(tl.sum(total * tl.exp(largest - most), axis=0))
        tl.store(loss_ptr + row, log_sum - tl.load(logits_ptr + row * classes + target).to(tl.float32))
    else:
        tl.store(loss_ptr + row, 0.0)
