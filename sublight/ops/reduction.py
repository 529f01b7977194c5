"""This file knows about reductions, scans and sorting, softmax and cross entropy."""

from __future__ import annotations

from dataclasses import dataclass

from sublight.ops.op import Op, Operand, nbytes, vector_flops
from sublight.work import Work


@dataclass(frozen=True, slots=True)
class Reduction(Op):
    """Combines the elements of an input: `operations` for each of them, less one for each result where 1."""

    source: Operand
    results: tuple[Operand, ...]
    operations: int = 1

    def work(self) -> Work:
        saved = self.results[0].elements if self.results else 0
        return Work.of(
            flops=vector_flops(self.source.form, self.operations * max(0, self.source.elements - saved)),
            bytes_read=self.source.nbytes, bytes_written=nbytes(self.results),
        )


@dataclass(frozen=True, slots=True)
class Softmax(Op):
    """Softmax or its logarithm: subtract, exponential, add, scale: 4 operations an element, backward likewise
    (product, sum, difference, product).

    Source: Milakov, Gimelshein, arXiv 1805.02867, algorithm 2 without the search for the maximum.
    """

    elements: int
    form: str = "bf16"
    out: str = "bf16"
    backward: bool = False               # reads gradient and output, writes the input's gradient

    def work(self) -> Work:
        source = Operand(self.elements, self.form)
        return Work.of(flops=vector_flops(self.form, 4 * self.elements),
                       bytes_read=source.nbytes * (2 if self.backward else 1),
                       bytes_written=Operand(self.elements, self.out).nbytes)


@dataclass(frozen=True, slots=True)
class CrossEntropy(Op):
    """-log softmax(logits)[target], of rows of `classes` logits: 3 operations a logit (subtract, exponential, add).
    Backward writes the gradient of the logits.
    """

    rows: int
    classes: int
    form: str = "bf16"
    target: str = "int64"
    backward: bool = False
    losses: str | None = None            # None: like the logits

    def work(self) -> Work:
        logits = Operand(self.rows * self.classes, self.form)
        losses = Operand(self.rows, self.losses or self.form)
        reads = [logits, Operand(self.rows, self.target), *([losses] if self.backward else [])]
        return Work.of(flops=vector_flops(self.form, 3 * logits.elements), bytes_read=nbytes(reads),
                       bytes_written=(logits if self.backward else losses).nbytes)


@dataclass(frozen=True, slots=True)
class NegativeLogLikelihood(Op):
    """Picks one of `classes` log-probabilities a row, and reduces them to one loss where `reduced`. Backward fills
    the gradient of all of them."""

    rows: int
    classes: int
    form: str = "fp32"
    target: str = "int64"
    reduced: bool = True
    backward: bool = False

    def work(self) -> Work:
        targets, one = Operand(self.rows, self.target), Operand(1 if self.reduced else self.rows, self.form)
        if self.backward:
            return Work.of(bytes_read=nbytes([targets, one]),
                           bytes_written=Operand(self.rows * self.classes, self.form).nbytes)
        return Work.of(bytes_read=nbytes([targets, Operand(self.rows, self.form)]), bytes_written=one.nbytes)
