"""This file knows about the device code of attention over a whole sequence: softmax in one pass over the keys.

For a block of queries and block after block of keys (Dao, FlashAttention-2, algorithm 1; Milakov and Gimelshein 2018):

    largest' = max(largest, scores)         total' = total · 2^(largest − largest') + Σ 2^(scores − largest')
    out'     = out · 2^(largest − largest') + 2^(scores − largest') · v

Only imported where it is compiled or interpreted: it needs Triton at once.
"""

# Code of another language: the compiler's constants are in capitals, and types are tiles and pointers.
# ruff: noqa: N803
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attended(q_ptr, k_ptr, v_ptr, out_ptr, q_length, kv_length, heads, kv_heads, scale, window,
             QUERIES: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, COLUMNS: tl.constexpr,
             CAUSAL: tl.constexpr):
    """QUERIES queries of one head a block. scale: 1/√dim · log2 e, so that 2^x is e^x. window None: all keys.

    Query i stands at key i + kv_length - q_length and, causal, sees the keys up to there, the last `window` of them.
    Blocks of keys that all queries of the block see whole need no mask; those before and behind do.
    """
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    kv_head = head // (heads // kv_heads)
    # Long blocks first: the last queries see the most keys.
    query = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES + tl.arange(0, QUERIES)
    column = tl.arange(0, COLUMNS)
    at = (batch.to(tl.int64) * q_length + query[:, None]) * heads + head
    at = at * DIM + column[None, :]
    inside = (query[:, None] < q_length) & (column[None, :] < DIM)
    q = tl.load(q_ptr + at, mask=inside, other=0.0)
    kv = (batch.to(tl.int64) * kv_length * kv_heads + kv_head) * DIM

    position = query + (kv_length - q_length)
    first = position - position                             # the keys that a query sees: from `first` …
    last = first + kv_length - 1                            # … to `last`
    if CAUSAL:
        last = tl.minimum(position, last)
        if window is not None:
            first = tl.maximum(position - window + 1, 0)
    begin, end = tl.maximum(tl.min(first), 0) // KEYS * KEYS, tl.max(last) + 1
    whole_begin = tl.minimum(tl.cdiv(tl.max(first), KEYS) * KEYS, tl.maximum(end, begin))
    whole_end = tl.maximum((tl.min(last) + 1) // KEYS * KEYS, whole_begin)

    largest = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    out = tl.zeros([QUERIES, COLUMNS], tl.float32)
    if window is not None:
        largest, total, out = _over(q, k_ptr + kv, v_ptr + kv, largest, total, out, first, last, begin, whole_begin,
                                    kv_length, kv_heads, scale, KEYS, DIM, COLUMNS, True)
    largest, total, out = _over(q, k_ptr + kv, v_ptr + kv, largest, total, out, first, last, whole_begin, whole_end,
                                kv_length, kv_heads, scale, KEYS, DIM, COLUMNS, False)
    largest, total, out = _over(q, k_ptr + kv, v_ptr + kv, largest, total, out, first, last, whole_end, end,
                                kv_length, kv_heads, scale, KEYS, DIM, COLUMNS, True)
    out = out / tl.where(total > 0, total, 1.0)[:, None]    # a query that sees no key: 0
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _over(q, k_ptr, v_ptr, largest, total, out, first, last, begin, end, kv_length, kv_heads, scale,
          KEYS: tl.constexpr, DIM: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr):
    """One more stretch of keys, from `begin` to `end`."""
    column = tl.arange(0, COLUMNS)[None, :]
    for start in tl.range(begin, end, KEYS):
        key = start + tl.arange(0, KEYS)
        at = key[:, None].to(tl.int64) * (kv_heads * DIM) + column
        inside = column < DIM
        if MASKED:
            inside = inside & (key[:, None] < kv_length)
        if MASKED or COLUMNS != DIM:
            k = tl.load(k_ptr + at, mask=inside, other=0.0)
            v = tl.load(v_ptr + at, mask=inside, other=0.0)
        else:
            k, v = tl.load(k_ptr + at), tl.load(v_ptr + at)
        scores = tl.dot(q, k.T)
        if MASKED:
            seen = (key[None, :] >= first[:, None]) & (key[None, :] <= last[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        base = tl.where(larger == float("-inf"), 0.0, larger) * scale   # no key yet: -inf less -inf would be NaN
        power = tl.exp2(scores * scale - base[:, None])
        shrink = tl.exp2(largest * scale - base)
        total = total * shrink + tl.sum(power, axis=1)
        out = tl.dot(power.to(v.dtype), v, out * shrink[:, None])
        largest = larger
    return largest, total, out
