"""Sizes of the tiny operator that the arena is tested with; the kernel's process imports no more than this."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """x [rows, width] bf16, weight [width] bf16 (constant); out [rows, width] bf16 = 2·x·weight, positive [rows] int32:
    how many of a row are."""

    rows: int
    width: int
    form: str = "bf16"
