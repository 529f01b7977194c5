"""This file knows about the backward pass: which operators each forward one becomes, in the order in which they run.

    Y = X·W          dX = dY·Wᵀ (the gradient that goes on), dW = Xᵀ·dY (the weight's own, added to what is there)
    attention        one call, two and a half times the forward's products
    experts          both products of each expert, twice; the activation between them
    dispatch         a combine of gradients; combine: a dispatch of gradients; all-gather: a reduce-scatter, and back

    >>> from sublight.ops import Gemm
    >>> for label, op in backward_ops([("mlp.up", Gemm(m=4096, n=2048, k=1024))]):
    ...     print(label, op.m, op.n, op.k, op.out)
    mlp.up.input_grad 4096 1024 2048 bf16
    mlp.up.weight_grad 2048 1024 4096 fp32
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from sublight.errors import InputError
from sublight.models.block import Labelled, product, rows
from sublight.models.model import Model
from sublight.models.rank import ordered_ops
from sublight.models.step import Batch, Split
from sublight.ops import (
    Attention,
    CacheWrite,
    Communication,
    CrossEntropy,
    Elementwise,
    Experts,
    Gather,
    Gemm,
    GroupedGemm,
    Normalisation,
    Permute,
    Rotary,
    Routing,
    ScaledGemm,
    Softmax,
)
from sublight.ops.op import Op, Operand

INPUT, WEIGHT = "input_grad", "weight_grad"
TURNED = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}    # others are their own counterpart


def backward_ops(
    forward: Iterable[Labelled], *, gradients: str = "fp32", accumulate: bool = True,
) -> Iterator[Labelled]:
    """The backward pass of a forward one: its operators' counterparts, last first.

    gradients   number format of the weights' gradients
    accumulate  they are added to those of earlier micro-batches, which are read
    Raises InputError, naming it, for an operator whose backward is not known (recurrent layers, indexers).
    """
    for label, op in reversed(list(forward)):
        yield from backward_of(label, op, gradients=gradients, accumulate=accumulate)


def backward_of(label: str, op: Op, *, gradients: str = "fp32", accumulate: bool = True) -> Iterator[Labelled]:
    """The counterparts of one operator. None of a cache write, nor of an addition, whose gradient is its own."""
    if isinstance(op, Gemm | ScaledGemm):
        yield f"{label}.{INPUT}", _input_grad(op)
        yield f"{label}.{WEIGHT}", _weight_grad(op, gradients, accumulate)
    elif isinstance(op, Experts):
        yield from _experts(label, op, gradients, accumulate)
    elif isinstance(op, Communication):
        yield f"{label}.grad", _communication(label, op)
    elif not isinstance(op, CacheWrite) and not label.endswith(".add"):
        rule = RULES.get(type(op))
        if rule is None:
            raise InputError(f"no backward rule for {type(op).__name__} ({label}); expected one of "
                             f"{', '.join(sorted(kind.__name__ for kind in RULES))}, products, experts, collectives")
        yield f"{label}.grad", rule(op)


def _input_grad(op: Gemm | ScaledGemm) -> Op:
    """In the formats of the forward product: gradients are quantised as activations are."""
    if isinstance(op, Gemm):
        return Gemm(op.m, op.k, op.n, batch=op.batch, a=op.a, b=op.b, out="bf16")
    return ScaledGemm(op.m, op.k, op.n, op.a, op.b, op.b_block)


def _weight_grad(op: Gemm | ScaledGemm, gradients: str, accumulate: bool) -> Op:
    """Both factors are activations; of a product over a batch each has a weight of its own."""
    batch = op.batch if isinstance(op, Gemm) else 1
    there = Operand(batch * op.n * op.k, gradients) if accumulate else None
    return Gemm(op.n, op.k, op.m, batch=batch, a=op.a, b=op.a, out=gradients, addend=there)


def _experts(label: str, op: Experts, gradients: str, accumulate: bool) -> Iterator[Labelled]:
    """down first. Rows are taken to fall on the used experts alike, rounded down."""
    pairs, into = op.tokens * op.top_k, op.inner * (2 if op.gated else 1)
    a, used = op.activations, op.experts_used

    def input_grad(n: int, k: int) -> Op:
        return GroupedGemm(pairs, n, k, used, a, op.weights, b_block=op.weight_block)

    def weight_grad(n: int, k: int) -> Op:
        there = Operand(used * n * k, gradients) if accumulate else None
        return Gemm(n, k, pairs // used, batch=used, a=a, b=a, out=gradients, addend=there)

    yield f"{label}.down.{INPUT}", input_grad(op.inner, op.width)
    yield f"{label}.down.{WEIGHT}", weight_grad(op.width, op.inner)
    both = Operand(pairs * into, "bf16")
    yield f"{label}.activation.grad", Elementwise((both, Operand(pairs * op.inner, "bf16")), (both,), operations=2)
    yield f"{label}.up.{INPUT}", input_grad(op.width, into)
    yield f"{label}.up.{WEIGHT}", weight_grad(into, op.width)


def _communication(label: str, op: Communication) -> Op:
    """What went out comes back. Gradients of a dispatch return in bf16; those of a combine are sent as tokens are
    (DeepSeek-V3, arXiv 2412.19437, section 3.3.3: in fp8), which `label` cannot say: they are taken in its own form."""
    form = "bf16" if label.endswith("dispatch") else op.form
    return replace(op, collective=TURNED.get(op.collective, op.collective), form=form)


def _elementwise(op: Elementwise) -> Op:
    """Reads the inputs and the result's gradient, writes the inputs' gradients; as many operations, at least."""
    return Elementwise((*op.reads, *op.writes), op.reads, operations=op.operations)


def _gather(op: Gather) -> Op:
    """Adds each row's gradient to its place in the table's."""
    return Gather(op.picked, "fp32", op.indices, op.picked)


RULES: dict[type[Op], Callable[..., Op]] = {
    Attention: lambda op: replace(op, backward=True),
    Normalisation: lambda op: replace(op, backward=True),
    Softmax: lambda op: replace(op, backward=True),
    CrossEntropy: lambda op: replace(op, backward=True),
    Permute: lambda op: replace(op, combine=not op.combine),
    Elementwise: _elementwise,
    Gather: _gather,
    Rotary: lambda op: op,               # the same rotation, the other way
    Routing: lambda op: op,              # weights' gradients in, scores' gradients out: as many bytes
}


def training_ops(
    model: Model, step: tuple[Batch, ...], split: Split | None = None, *, gradients: str = "fp32",
    accumulate: bool = True,
) -> Iterator[Labelled]:
    """One micro-batch of one rank in order: forward, loss, backward. Every token has a logit; nothing is cached."""
    split = split or Split()
    forward = [labelled for labelled in ordered_ops(model, step, split) if not isinstance(labelled[1], CacheWrite)]
    if split.last:
        forward = [labelled for labelled in forward if labelled[0] not in ("head", "head.all_gather")]
        forward += _loss(model, step, split)
    yield from forward
    yield from backward_ops(forward, gradients=gradients, accumulate=accumulate)


def _loss(model: Model, step: tuple[Batch, ...], split: Split) -> Iterator[Labelled]:
    """The head on all rows, and the cross entropy of this rank's columns of the vocabulary."""
    t, share = rows(step), -(-model.vocabulary // split.tp)
    yield "head", product(t, share, model.width, model.embedding if model.tied else model.head)
    yield "loss", CrossEntropy(t, share)
