"""This file knows about PyTorch's normalisation, reductions, softmax and losses: recorded arguments -> Ops."""

from __future__ import annotations

from math import prod

from sublight.ops.answer import Answer, Rule
from sublight.ops.arguments import Arguments, Tensor
from sublight.ops.context import Context
from sublight.ops.elementwise import Elementwise
from sublight.ops.normalisation import Normalisation
from sublight.ops.op import Operand, vector_flops
from sublight.ops.reduction import CrossEntropy, NegativeLogLikelihood, Reduction, Softmax

# ---- normalisation -------------------------------------------------------------------------------------------------


def norm(kind: str, *, weight_at: int, bias_at: int | None, channels_at: int | None = None) -> Rule:
    """Forward. Channels: of the weight, else of dimension `channels_at`."""
    def rule(a: Arguments, c: Context) -> Answer:
        x, weight = a.tensor(0), a.tensor(weight_at)
        bias = a.tensor(bias_at) if bias_at is not None else None
        if not (x and x.dims and x.form):
            return None
        channels = prod((weight or bias or Tensor(x.dims[channels_at:][:1] if channels_at else (), None)).dims)
        return (Normalisation(x.elements, channels, kind, x.form, weight.form if weight else None,
                              bias.form if bias else None),)
    return rule


def norm_back(kind: str, *, x_at: int, weight_at: int, bias_at: int | None) -> Rule:
    def rule(a: Arguments, c: Context) -> Answer:
        x, weight = a.tensor(x_at), a.tensor(weight_at)
        bias = a.tensor(bias_at) if bias_at is not None else None
        if not (x and x.dims and x.form):
            return None
        return (Normalisation(x.elements, prod(weight.dims) if weight else 0, kind, x.form,
                              weight.form if weight else None, bias.form if bias else None, backward=True),)
    return rule


# ---- reductions ----------------------------------------------------------------------------------------------------


def _kept(source: Tensor, over: tuple[int, ...] | None) -> int:
    """Results of reducing over these dimensions; an empty list means all, an unrecorded one leaves one at least."""
    if not over or any(not -len(source.dims) <= d < len(source.dims) for d in over):
        return 1
    gone = {d % len(source.dims) for d in over}
    return prod(n for i, n in enumerate(source.dims) if i not in gone)


def reduce(*, over_at: int | None = 1, one: bool = False, dtype_at: int | None = None, out: str | None = None,
            also: str | None = None, operations: int = 1) -> Rule:
    """one: a single dimension is given, not a list; also: format of a second result (the indices of maxima)."""
    def rule(a: Arguments, c: Context) -> Answer:
        source = a.tensor(0)
        if not source or not source.form:
            return None
        over: tuple[int, ...] | None = None
        if over_at is not None:
            single = a.integer(over_at) if one else None
            over = a.integers(over_at) if single is None else (single,)
        form = (a.dtype(dtype_at) if dtype_at is not None else None) or out or source.form
        kept = _kept(source, over)
        results = [Operand(kept, form), *([Operand(kept, also)] if also and over else [])]
        return (Reduction(Operand(source.distinct if source.dims else 0, source.form), tuple(results), operations),)
    return rule


def scan(a: Arguments, c: Context) -> Answer:
    source = a.tensor(0)
    if not source or not source.form:
        return None
    operations = 1 if vector_flops(source.form, 1) else 0
    return (Elementwise((source.operand(),), (Operand(prod(source.dims), source.form),), operations),)


def sort(a: Arguments, c: Context) -> Answer:
    source = a.tensor(0)
    if not source or not source.form:
        return None
    n = prod(source.dims)
    return (Elementwise((source.operand(),), (Operand(n, source.form), Operand(n, "int64"))),)


def topk(a: Arguments, c: Context) -> Answer:
    """self, k, dim, …"""
    source, k = a.tensor(0), a.integer(1)
    if not (source and source.form and source.dims) or k is None or k < 0:
        return None
    dim = a.integer(2)
    if dim is None or not -len(source.dims) <= dim < len(source.dims):
        return None
    kept = prod(n for i, n in enumerate(source.dims) if i != dim % len(source.dims)) * min(k, source.dims[dim])
    return (Reduction(source.operand(), (Operand(kept, source.form), Operand(kept, "int64")), 0),)


def softmax(a: Arguments, c: Context) -> Answer:
    """self, dim, half_to_float (or dtype)"""
    x = a.tensor(0)
    if not (x and x.form):
        return None
    return (Softmax(x.elements, x.form, "fp32" if a.flag(2) else x.form),)


def softmax_back(a: Arguments, c: Context) -> Answer:
    """grad_output, output, dim, input_dtype"""
    gradient, form = a.tensor(0), a.dtype(3)
    if not (gradient and gradient.form):
        return None
    return (Softmax(gradient.elements, gradient.form, form or gradient.form, backward=True),)


def cross_entropy(a: Arguments, c: Context) -> Answer:
    x, target = a.tensor(0), a.tensor(1)
    if not (x and target and x.form and target.form) or len(x.dims) != 2 or len(target.dims) != 1:
        return None
    return (CrossEntropy(x.dims[0], x.dims[1], x.form, target.form),)


def nll(*, backward: bool) -> Rule:
    """nll_loss_forward: self, target, weight, reduction (0: none); backward: grad_output, self, target, weight, …"""
    def rule(a: Arguments, c: Context) -> Answer:
        at = 1 if backward else 0
        x, target = a.tensor(at), a.tensor(at + 1)
        if not (x and target and x.form and target.form) or len(x.dims) != 2:
            return None
        return (NegativeLogLikelihood(x.dims[0], x.dims[1], x.form, target.form, a.text(at + 3) != "0",
                                      backward=backward),)
    return rule
