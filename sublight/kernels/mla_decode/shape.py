"""This file knows about the sizes and switches of latent attention over a cache in pages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """q [batch, heads, rank + rope]; cache [pages, page, rank + rope]; table [batch, max_pages] int32;
    lengths [batch] int32; out [batch, heads, rank].
    """

    batch: int
    kv_length: int                       # of the longest sequence; the others are shorter, some are empty
    heads: int
    rank: int = 512                      # columns that are keys and values
    rope: int = 64                       # columns that are keys only
    page: int = 64                       # tokens of a page
    scale: float | None = None           # None: 1/√192, of DeepSeek's 128 + 64 columns before absorption
    form: str = "bf16"                   # of q, the cache and out
