"""This file knows about the sizes and switches of cross entropy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """logits [rows, classes]; targets [rows] int64, -100: ignored; loss [rows] fp32, 0 where ignored."""

    rows: int
    classes: int
    form: str = "bf16"                   # of the logits
