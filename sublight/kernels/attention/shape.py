"""This file knows about the sizes and switches of attention over a whole sequence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """q [batch, q_length, heads, dim]; k, v [batch, kv_length, kv_heads, dim]; out like q. Scale 1/√dim.

    Positions are aligned at the end: query i stands at key i + kv_length - q_length.
    """

    batch: int
    q_length: int
    kv_length: int
    heads: int
    kv_heads: int                        # heads is a multiple; query head h reads key head h // (heads / kv_heads)
    dim: int
    causal: bool = True                  # a query sees the keys up to its own position
    window: int | None = None            # and of those the last `window`; None: all
    form: str = "bf16"                   # of q, k, v and out
