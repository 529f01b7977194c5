"""This file knows about the sizes and switches of rotary embedding with the write to the KV cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """q [tokens, heads, dim]; k, v [tokens, kv_heads, dim]; positions [tokens] int64; cos_sin [positions, rotary] fp32,
    cosines first; slots [tokens] int64, page·index + offset, -1: not written; k_cache, v_cache
    [pages, page, kv_heads, dim], written in place; q_out like q.
    """

    tokens: int
    heads: int
    kv_heads: int
    dim: int
    pages: int                           # of the cache
    rotary: int | None = None            # the first columns of a head are rotated, the others copied; None: all
    page: int = 16                       # tokens of a page
    positions: int = 2048                # rows of the table of cosines and sines
    neox: bool = True                    # pairs (i, i + rotary/2); otherwise (2i, 2i + 1)
    form: str = "bf16"                   # of q, k, v and both caches
