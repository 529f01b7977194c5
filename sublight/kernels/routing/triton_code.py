"""This file knows about the device code of routing: softmax over the experts, then the largest.

Only imported where it is compiled or interpreted: it needs Triton at once.
"""

# Code of another language: the compiler's constants are in capitals, and types are tiles and pointers.
# ruff: noqa: N803
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def routed(logits_ptr, weights_ptr, ids_ptr, tokens, experts, TOP: tl.constexpr, ROWS: tl.constexpr,
           COLUMNS: tl.constexpr, PLACES: tl.constexpr, RENORMALISE: tl.constexpr):
    """ROWS tokens a block, all experts of each in registers; TOP passes take the largest that is left.

    Logits are ordered, not their exponentials, which may coincide. The order of a logit and its expert are one integer
    of 64 bits, so that one reduction finds both: the float's bits as an ordered int32, then the expert, the first of
    equals the larger.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < tokens) & (column < experts)
    x = tl.load(logits_ptr + row.to(tl.int64) * experts + column, mask=inside, other=float("-inf")).to(tl.float32)

    largest = tl.max(x, axis=1, keep_dims=True)
    power = tl.exp(x - largest)
    total = tl.sum(power, axis=1, keep_dims=True)
    bits = x.to(tl.int32, bitcast=True)
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) * 4096 + (4095 - column)
    order = tl.where(column < experts, order, -(1 << 62))

    place = tl.arange(0, PLACES)[None, :]
    ids = tl.zeros([ROWS, PLACES], tl.int32)
    weights = tl.zeros([ROWS, PLACES], tl.float32)
    for taken in tl.static_range(TOP):
        first = tl.max(order, axis=1, keep_dims=True)
        expert = (4095 - (first & 4095)).to(tl.int32)
        chosen = column == expert
        weight = tl.sum(tl.where(chosen, power, 0.0), axis=1, keep_dims=True)
        ids = tl.where(place == taken, expert, ids)
        weights = tl.where(place == taken, weight, weights)
        order = tl.where(chosen, -(1 << 62), order)
    weights /= tl.sum(weights, axis=1, keep_dims=True) if RENORMALISE else total

    out = row.to(tl.int64) * TOP + place
    wanted = (row < tokens) & (place < TOP)
    tl.store(weights_ptr + out, weights, mask=wanted)
    tl.store(ids_ptr + out, ids, mask=wanted)
