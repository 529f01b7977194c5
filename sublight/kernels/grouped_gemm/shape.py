"""This file knows about the sizes and formats of a grouped matrix product that is to be computed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """out[r] = a[r] · b[group of row r]ᵀ with a [rows, k], sorted by group, and b [groups, n, k].

    form: "bf16", or "fp8_block" (e4m3; scales of a for 1 x 128 elements, of b for 128 x 128). out: "bf16", "fp16" or
    "fp32". How many rows each group has is not in the shape: it is the input `offsets`.
    """

    rows: int
    groups: int
    n: int
    k: int
    form: str = "bf16"
    out: str = "bf16"
