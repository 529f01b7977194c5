"""This file knows about the sizes and switches of normalisation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """x [rows, width]; weight [width]; bias [width] (layer); residual [rows, width] (with one); out [rows, width];
    scale [rows] fp32 (quantised); summed [rows, width] (with a residual).
    """

    rows: int
    width: int
    kind: str = "rms"                    # "rms" or "layer"
    form: str = "bf16"                   # of x, weight, bias, residual, summed, and out where it is not quantised
    residual: bool = False               # adds it first and writes the sum too
    quant: str | None = None             # "fp8" (e4m3) or "int8", one dynamic scale a row
    eps: float = 1e-6                    # inside the root
