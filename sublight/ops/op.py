"""This file knows about the Op: an operator on concrete sizes and number formats, which must say its own work.

Two conventions hold in every family:

* Floating-point operations of matrix hardware ("tensor") are counted in the number format of the inputs; of two
  formats, in the wider one. Everything else is "vector", and 16-bit values are computed there in fp32, as the
  frameworks do (PyTorch: at::opmath_type). Integer arithmetic, comparisons and casts count nothing.
* Bytes are compulsory ones: each distinct element of an input once, each element of an output once. Two inputs of
  the same sizes are taken to be two tensors, since a recorded call does not tell that they are one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, prod

from sublight.work import BYTES, Unit, Work

# From narrow to wide: the order in which matrix hardware that is fed two formats chooses one.
MATRIX_FORMATS = ("fp4", "int4", "int8", "fp8", "bf16", "fp16", "tf32", "fp32", "fp64")
VECTOR_FORMATS = {"fp64": "fp64", "fp32": "fp32", "tf32": "fp32", "bf16": "fp32", "fp16": "fp32", "fp8": "fp32",
                  "fp4": "fp32", "complex64": "fp32"}


class Op(ABC):
    """An operator on concrete sizes. Families are frozen dataclasses below it."""

    @abstractmethod
    def work(self) -> Work:
        """What it has to do, whatever machine it runs on: a lower bound of what any implementation does."""


@dataclass(frozen=True, slots=True)
class Operand:
    """So many distinct elements of one number format."""

    elements: int
    form: str

    @property
    def nbytes(self) -> int:
        return ceil(self.elements * BYTES[self.form])


def nbytes(operands: Iterable[Operand]) -> int:
    return sum(operand.nbytes for operand in operands)


def matrix_unit(a: str, b: str) -> Unit:
    """The unit that multiplies matrices of these formats: fp32 without tf32 has no matrix hardware."""
    form = max(a, b, key=lambda f: MATRIX_FORMATS.index(f) if f in MATRIX_FORMATS else len(MATRIX_FORMATS))
    return ("vector", "fp32") if form == "fp32" else ("tensor", form)


def vector_flops(form: str, operations: int) -> dict[Unit, int]:
    """Operations of the vector unit; none for formats that are not floating-point."""
    return {("vector", VECTOR_FORMATS[form]): operations} if form in VECTOR_FORMATS else {}


def distinct_elements(dims: tuple[int, ...], strides: tuple[int, ...] | None) -> int:
    """How many different addresses a strided tensor touches: expanded (stride 0) dimensions count once.

    Exact where dimensions do not overlap, at most that many where they do (windows of `unfold`): each step along an
    overlapping dimension adds one new element at least. Without strides every element is its own.

    >>> distinct_elements((16, 559, 64), (0, 64, 1)), distinct_elements((10, 3), (1, 1))
    (35776, 12)
    """
    if strides is None or 0 in dims:
        return prod(dims)
    count, reach = 1, 1                                # distinct elements so far, and the addresses they lie within
    for stride, size in sorted((abs(s), d) for s, d in zip(strides, dims, strict=True) if s != 0 and d > 1):
        count = count * size if stride >= reach else count + size - 1
        reach += stride * (size - 1)
    return count
