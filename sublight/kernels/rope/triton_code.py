"""This file knows about the device code of rotary embedding with the write to the KV cache.

Only imported where it is compiled or interpreted: it needs Triton at once.
"""

# Code of another language: the compiler's constants are in capitals, and types are tiles and pointers.
# ruff: noqa: N803, N806
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rotated(q_ptr, k_ptr, v_ptr, positions_ptr, cos_sin_ptr, slots_ptr, q_out_ptr, k_cache_ptr, v_cache_ptr,
            heads, kv_heads, DIM: tl.constexpr, ROTARY: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
            REST: tl.constexpr, WIDE: tl.constexpr, NEOX: tl.constexpr):
    """A block is HEADS heads of one token: first the blocks of q, then those of k and v.

    A slot counts tokens of the cache, whatever its pages: page index and offset are adjacent in memory.
    """
    token = tl.program_id(0).to(tl.int64)
    q_blocks = tl.cdiv(heads, HEADS)
    pair = tl.arange(0, PAIRS)
    table = cos_sin_ptr + tl.load(positions_ptr + token) * ROTARY + pair
    cos = tl.load(table, mask=pair < ROTARY // 2, other=0.0)[None, :]
    sin = tl.load(table + ROTARY // 2, mask=pair < ROTARY // 2, other=0.0)[None, :]

    if tl.program_id(1) < q_blocks:
        head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
        start = (token * heads + head) * DIM
        _rotate(q_ptr + start, q_out_ptr + start, head < heads, cos, sin, DIM, ROTARY, PAIRS, REST, NEOX)
    else:
        head = (tl.program_id(1) - q_blocks) * HEADS + tl.arange(0, HEADS)[:, None]
        start = (token * kv_heads + head) * DIM
        slot = tl.load(slots_ptr + token)
        if slot >= 0:
            to = (slot * kv_heads + head) * DIM
            _rotate(k_ptr + start, k_cache_ptr + to, head < kv_heads, cos, sin, DIM, ROTARY, PAIRS, REST, NEOX)
            column = tl.arange(0, WIDE)[None, :]
            _copy(v_ptr + start + column, v_cache_ptr + to + column, (head < kv_heads) & (column < DIM))


@triton.jit
def _rotate(source, to, present, cos, sin, DIM: tl.constexpr, ROTARY: tl.constexpr, PAIRS: tl.constexpr,
            REST: tl.constexpr, NEOX: tl.constexpr):
    """Heads of one token, from `source` to `to`, pointers [HEADS, 1]: pairs are rotated, the rest is copied."""
    HALF: tl.constexpr = ROTARY // 2
    if NEOX:
        pair = tl.arange(0, PAIRS)[None, :]
        inside = present & (pair < HALF)
        x = tl.load(source + pair, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(source + HALF + pair, mask=inside, other=0.0).to(tl.float32)
        tl.store(to + pair, (x * cos - y * sin).to(to.dtype.element_ty), mask=inside)
        tl.store(to + HALF + pair, (y * cos + x * sin).to(to.dtype.element_ty), mask=inside)
    else:                                # pairs are neighbours: read whole, so that accesses stay wide
        column = tl.arange(0, 2 * PAIRS)[None, :]
        inside = present & (column < ROTARY)
        both = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
        x, y = tl.split(tl.reshape(both, [both.shape[0], PAIRS, 2]))
        turned = tl.join(x * cos - y * sin, y * cos + x * sin)
        tl.store(to + column, tl.reshape(turned, both.shape).to(to.dtype.element_ty), mask=inside)
    if REST:
        column = ROTARY + tl.arange(0, REST)[None, :]
        _copy(source + column, to + column, present & (column < DIM))


@triton.jit
def _copy(source, to, inside):
    tl.store(to, tl.load(source, mask=inside), mask=inside)
