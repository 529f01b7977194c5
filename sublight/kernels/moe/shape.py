"""This file knows about the sizes and the format of a layer of experts that is to be computed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """Each of `tokens` goes to top_k of `experts`: width -> 2·inner (gate, then up), silu(gate)·up, inner -> width."""

    tokens: int
    experts: int
    top_k: int
    width: int
    inner: int
    form: str = "bf16"                   # or "fp16"
