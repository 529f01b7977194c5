"""This file knows about the sizes and switches of attention over a KV cache in pages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """q [batch, heads, dim]; k_cache, v_cache [pages, page, kv_heads, dim]; table [batch, max_pages] int32;
    lengths [batch] int32; out like q. Scale 1/√dim.
    """

    batch: int
    kv_length: int                       # of the longest sequence; the others are shorter, some are empty
    heads: int
    kv_heads: int                        # heads is a multiple; query head h reads key head h // (heads / kv_heads)
    dim: int
    page: int = 16                       # tokens of a page
    form: str = "bf16"                   # of q, both caches and out
