"""This file knows about number formats of weights: bytes of an element with its scales, and what multiplies it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from sublight.work import BYTES


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """How a weight lies in memory, and the format of the activations that it meets in a product.

    >>> NVFP4.nbytes(1024), FP8_BLOCK.nbytes(128 * 128)
    (576, 16388)
    """

    name: str
    weights: str = "bf16"
    activations: str = "bf16"
    per_scale_byte: int | None = None    # weights for each byte of scales; None: one scale a tensor, or none

    def nbytes(self, elements: int) -> int:
        scales = elements // self.per_scale_byte if self.per_scale_byte else 0
        return ceil(elements * BYTES[self.weights]) + scales


BF16 = NumberFormat("bf16")
FP16 = NumberFormat("fp16", "fp16", "fp16")
FP32 = NumberFormat("fp32", "fp32", "fp32")
FP8 = NumberFormat("fp8", "fp8", "fp8")
FP8_BLOCK = NumberFormat("fp8_block", "fp8", "fp8", 128 * 128 // 4)       # fp32 scale, DeepSeek-V3 report, 3.3.2
INT8 = NumberFormat("int8", "int8", "int8")
# Block formats: OCP Microscaling Formats 1.0, table 1 (32 elements, one e8m0 byte); NVFP4: 16 elements, one e4m3 byte.
MXFP8 = NumberFormat("mxfp8", "fp8", "fp8", 32)
MXFP4 = NumberFormat("mxfp4", "fp4", "bf16", 32)          # weights only, as gpt-oss runs where fp4 is not multiplied
NVFP4 = NumberFormat("nvfp4", "fp4", "fp4", 16)
NVFP4_WEIGHTS = NumberFormat("w4a16_nvfp4", "fp4", "bf16", 16)
MXFP4_FP8 = NumberFormat("mxfp4_fp8", "fp4", "fp8", 32)   # DeepSeek-V4 experts: fp4 weights, fp8 activations


def fp8_block(rows: int, columns: int) -> NumberFormat:
    """fp8 with one fp32 scale for each block of weights."""
    if (rows, columns) == (128, 128):
        return FP8_BLOCK
    return NumberFormat(f"fp8_block_{rows}x{columns}", "fp8", "fp8", max(1, rows * columns // 4))


def int4(group: int) -> NumberFormat:
    """int4 weights in groups with one 16-bit scale each, multiplied in 16 bits (AWQ, GPTQ, compressed-tensors)."""
    return NumberFormat(f"w4a16_int4_g{group}", "int4", "bf16", max(1, group // 2))


# By name, for what a recipe or an engine does to a model: "fp8_block", "nvfp4", …
FORMATS = {form.name: form for form in (
    BF16, FP16, FP32, FP8, FP8_BLOCK, INT8, MXFP8, MXFP4, NVFP4, NVFP4_WEIGHTS, MXFP4_FP8, int4(32), int4(128),
)}
