"""This file knows about the sizes and formats of a matrix product that is to be computed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """out[m, n] = a[m, k] · b[n, k]ᵀ, scaled.

    form: "bf16", "fp16"; "fp8" (e4m3; a scale for a, one for b); "fp8_block" (scales of a for 1 x 128 elements, of b
    for 128 x 128); "int8" (scales of a's rows and b's rows). out: "bf16", "fp16" or "fp32".
    """

    m: int
    n: int
    k: int
    form: str = "bf16"
    out: str = "bf16"
