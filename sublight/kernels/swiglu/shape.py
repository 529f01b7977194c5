"""This file knows about the sizes and switches of SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """gate_up [rows, 2·width], the gate first; out [rows, width]; scale [rows] fp32 (quantised)."""

    rows: int
    width: int
    form: str = "bf16"                   # of gate_up, and of out where it is not quantised
    quant: str | None = None             # "fp8" (e4m3) or "int8", one dynamic scale a row
