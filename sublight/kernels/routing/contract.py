"""This file knows about what routing must return: softmax over all experts, the top k, renormalised or not. u = 2⁻²⁴.

Weights. The exponential of xⱼ − max has a relative error of rⱼ = (8 + 4·|xⱼ − max|)·u: the difference, an argument in
powers of two, and 2 units in the last place and one more for each unit of the argument (CUDA C++ Programming Guide,
__expf). The sum has that of its terms and sum_error(experts + 2, 1); where weights are renormalised, the same again
over the chosen:

    E = w·(rᵢ + Σ pⱼrⱼ + Σ wⱼrⱼ + 2·sum_error(experts + 2, 1) + 4u) + 2⁻¹²⁰

Indices have no error. They must be in range, none twice, and the one at each rank must have the logit of that rank; a
kernel that chooses by weights may see a tie where two logits differ by less than their r together, or where both
weights are below what fp32 holds (2⁻¹²⁶), and which of them it takes is free.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sublight.kernels.contract import Case, Contract, Spec, Tensor, Tensors
from sublight.kernels.rounding import rounded, sum_error, unit_roundoff
from sublight.kernels.routing.shape import Shape
from sublight.kernels.values import converted, numbers, random
from sublight.ops.moe import Routing
from sublight.ops.op import Op

FORMS = ("fp32", "bf16", "fp16")
U = unit_roundoff("fp32")
LOST = 2.0**-126

# Besides those of `values`: equal, all logits the same; ties, seven different ones; masked, two thirds are -inf;
# single, all but one are; steep, 100 times as large; lifted, all by 200, so that their exponentials overflow; close,
# the chosen differ by one unit in the last place of fp32.
VALUES = ("normal", "outliers", "tiny", "equal", "ties", "masked", "single", "steep", "lifted", "close")


def refusal(shape: Shape) -> str | None:
    if min(shape.tokens, shape.experts) < 1 or not 1 <= shape.top_k <= shape.experts:
        return f"top_k is {shape.top_k} of {shape.experts} experts; expected 1 to all of them, and at least one token"
    return None if shape.form in FORMS else f"form is {shape.form!r}; expected one of {', '.join(FORMS)}"


def inputs(case: Case) -> Tensors:
    shape, rng, kind = case.shape, random(case), case.values
    sizes = (shape.tokens, shape.experts)
    if kind in ("outliers", "tiny"):
        return {"logits": numbers(kind, sizes, shape.form, rng)}
    x = 2 * torch.randn(sizes, generator=rng)
    if kind == "equal":
        x[:] = 0.75
    elif kind == "ties":
        x = torch.randint(-3, 4, sizes, generator=rng).float()
    elif kind == "masked":
        x[torch.rand(sizes, generator=rng) < 2 / 3] = -torch.inf
        x[:, shape.experts // 2] = 0.0
    elif kind == "single":
        x[:, torch.arange(shape.experts) != shape.experts // 2] = -torch.inf
    elif kind in ("steep", "lifted"):
        x = x * 100 if kind == "steep" else x + 200
    elif kind == "close":
        x = 1.0 + torch.randint(0, 5, sizes, generator=rng) * 2.0**-23
    return {"logits": converted(x, shape.form)}


def outputs(shape: Shape) -> Mapping[str, Spec]:
    sizes = (shape.tokens, shape.top_k)
    return {"weights": Spec(sizes, "fp32"), "ids": Spec(sizes, "int32")}


def reference(shape: Shape, given: Tensors) -> Tensors:
    """ids are one of the orders that are right."""
    weights, ids = given["logits"].double().softmax(1).topk(shape.top_k, 1)
    return {"weights": weights / weights.sum(1, keepdim=True) if shape.renormalise else weights, "ids": ids}


def _relative(logits: Tensor) -> Tensor:
    """r [tokens, experts]; of -inf that of the smallest weight that is not zero."""
    far = logits.amax(1, keepdim=True) - logits
    return (8 + 4 * far.clamp(max=750.0)) * U


def bound(shape: Shape, given: Tensors, exact: Tensors) -> Tensors:
    logits, weights = given["logits"].double(), exact["weights"]
    each, p = _relative(logits), logits.softmax(1)
    chosen = each.gather(1, exact["ids"].long())
    sums = 2 * sum_error(shape.experts + 2, torch.ones((), dtype=torch.float64)) + 4 * U
    share = (p * each).sum(1, keepdim=True) + (weights * chosen).sum(1, keepdim=True)
    return {"weights": rounded(weights, weights * (chosen + share + sums) + 2.0**-120, "fp32")}


def honest(shape: Shape, given: Tensors) -> Tensors:
    weights, ids = given["logits"].float().softmax(1).topk(shape.top_k, 1)
    weights = weights / weights.sum(1, keepdim=True) if shape.renormalise else weights
    return {"weights": weights, "ids": ids.to(torch.int32)}


def judged(shape: Shape, given: Tensors, outputs: Tensors) -> Tensors:
    return {"weights": outputs["weights"]}


def discrete(shape: Shape, given: Tensors, outputs: Tensors) -> tuple[str, ...]:
    """Indices out of range, twice, or of an expert that is not the one of this rank."""
    ids = outputs["ids"].long()
    outside = (ids < 0) | (ids >= shape.experts)
    if bool(outside.any()):
        return (f"ids: {int(outside.sum())} are not from 0 to {shape.experts - 1}",)
    ordered = ids.sort(1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(1)
    wrong = [f"ids: an expert is chosen twice in {int(twice.sum())} tokens"] if bool(twice.any()) else []
    away = _misplaced(given["logits"].double(), ids)
    if bool(away.any()):
        token, rank = away.nonzero()[0].tolist()
        wrong.append(f"ids: {int(away.sum())} are not the expert of their rank (first: token {token}, rank {rank}, "
                     f"expert {int(ids[token, rank])})")
    return tuple(wrong)


def _misplaced(logits: Tensor, ids: Tensor) -> Tensor:
    """Which ids have another logit than that of their rank, by more than their errors."""
    each, p = _relative(logits), logits.softmax(1)
    right = logits.topk(ids.shape[1], 1).indices
    same = logits.gather(1, ids) == logits.gather(1, right)              # -inf and -inf too
    apart = (logits.gather(1, ids) - logits.gather(1, right)).abs()
    lost = p.gather(1, ids).maximum(p.gather(1, right)) <= LOST
    return ~(same | lost | (apart <= each.gather(1, ids) + each.gather(1, right)))


def op(shape: Shape) -> Op:
    return Routing(shape.tokens, shape.experts, shape.top_k, shape.form)


def shape_of(op: Op) -> Shape | None:
    """Whether weights are renormalised an op does not say; most models do."""
    if not isinstance(op, Routing) or (op.weights, op.indices) != ("fp32", "int32"):
        return None
    shape = Shape(op.tokens, op.experts, op.top_k, form=op.form)
    return shape if refusal(shape) is None else None


def cases() -> tuple[Case, ...]:
    sizes = ((1, 1, 1), (1, 8, 2), (7, 8, 8), (37, 64, 8), (64, 128, 4), (5, 256, 8), (13, 257, 6), (129, 60, 4),
             (3, 384, 8), (17, 33, 1), (2, 512, 10))
    either = (True, False)
    ordinary = [Case(Shape(*size, renormalise), seed=i) for i, size in enumerate(sizes) for renormalise in either]
    forms = [Case(Shape(31, 128, 8, renormalise, form), seed=30) for form in FORMS[1:] for renormalise in either]
    hard = [Case(Shape(29, 61, 7, renormalise, form), values, 40) for values in VALUES[1:]
            for renormalise, form in ((True, "fp32"), (False, "fp32"), (True, "bf16"))]
    return (*ordinary, *forms, *hard)


CONTRACT = Contract(
    name="routing", title="routing: softmax over all experts, top k, renormalised or not", shape=Shape, values=VALUES,
    refusal=refusal, inputs=inputs, outputs=outputs, reference=reference, bound=bound, honest=honest, cases=cases,
    op=op, shape_of=shape_of, judged=judged, discrete=discrete,
)
