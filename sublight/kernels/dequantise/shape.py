"""This file knows about the sizes and formats of numbers that are to be brought back from 8 bits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """q [rows, width] in `by` ("fp8": e4m3, "int8") times its scale becomes x in `form` ("bf16", "fp16", "fp32").

    block says what shares a scale: the "tensor", a "row", or "128" elements of a row.
    """

    rows: int
    width: int
    by: str = "fp8"
    block: str = "row"
    form: str = "bf16"
