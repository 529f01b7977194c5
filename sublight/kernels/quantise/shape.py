"""This file knows about the sizes and formats of a quantisation that is to be computed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """x [rows, width] in `form` ("bf16", "fp16", "fp32") becomes q in `to` ("fp8": e4m3, "int8"), and scales in fp32.

    block says what shares a scale: the "tensor", a "row", or "128" elements of a row.
    """

    rows: int
    width: int
    to: str = "fp8"
    block: str = "row"
    form: str = "bf16"
