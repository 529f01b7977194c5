"""This file knows about what a layer of experts must return, with the routing given:

    g = x·Gᵀ    u = x·Uᵀ    h = silu(g)·u    y = h·Dᵀ    out = Σ wᵢ·yᵢ over the top_k experts of the token

G is the first `inner` rows of gate_up[expert], U the rest, D is down[expert]. Reference: float64 all through.

Intermediate results that may be rounded to the format, as libraries do that keep them in memory (vLLM's fused_moe,
SGLang's): g, u, h, and each y before or after its weight. The sum over experts is in fp32. Derivation of the bound,
with r(z) half a unit in the last place of z, S sums of absolute values, δ errors:

    δg = sum_error(width, Sg) + r(g), δu likewise             both products, rounded
    δh = 1.1·|u|·δg + |silu(g)|·δu + 1.1·δg·δu + e + r(h)     |silu'| is at most 1.0999; e = u32·(8 + 2·|g|)·|h| for the
                                                              exponential (its argument is rounded too)
    δy = Σ |d|·δh + sum_error(inner, Sy) + r(y)
    before = Σ w·δy + sum_error(top_k + 1, Σ w·|y|)           then the output is rounded

That is sure, and far more than happens: the δh of one y are independent of each other. So each of them is taken as a
deviation too (r/√3, uniform; sum_error/8), squares added in place of sizes, and the bound is 8 deviations of `before`
where that is less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from sublight.kernels.contract import Case, Contract, Spec, Tensor, Tensors
from sublight.kernels.moe.shape import Shape
from sublight.kernels.rounding import DEVIATIONS, DTYPES, half_ulp, random_error, rounded, sum_error, unit_roundoff
from sublight.kernels.values import Random, converted, numbers, random
from sublight.ops import Experts, Op
from sublight.ops.moe import Mixture

FORMS = ("bf16", "fp16")
# Kinds of routing: all tokens to the same experts; half of the experts get nothing; most tokens go to a few; weights of
# zero; a NaN in one token. Weights of a token sum to something between 0.5 and 1.5, not to 1.
VALUES = ("normal", "outliers", "tiny", "zeros", "constant", "cancellation", "one_expert", "empty_experts", "skewed",
          "zero_weights", "nan")
SLOPE = 1.1                              # of silu, at most 1.0999 at 2.4
U = unit_roundoff("fp32")


def refusal(shape: Shape) -> str | None:
    sizes = (shape.tokens, shape.experts, shape.top_k, shape.width, shape.inner)
    if min(sizes) < 1:
        return f"tokens, experts, top_k, width and inner are at least 1, not {', '.join(map(str, sizes))}"
    if shape.top_k > shape.experts:
        return f"top_k is at most the number of experts, not {shape.top_k} of {shape.experts}"
    return None if shape.form in FORMS else f"form is one of {', '.join(FORMS)}, not {shape.form!r}"


def inputs(case: Case) -> Tensors:
    s: Shape = case.shape
    rng = random(case)
    kind = case.values if case.values in ("outliers", "constant") else "normal"
    x = numbers(case.values, (s.tokens, s.width), s.form, rng)
    if case.values == "nan":
        x[0, s.width // 2] = torch.nan
    weights = torch.randn(s.tokens, s.top_k, generator=rng).softmax(-1) * (torch.rand(s.tokens, 1, generator=rng) + 0.5)
    if case.values == "zero_weights":
        weights[:, 0] = 0
    return {"x": x, "gate_up": _weights(kind, (s.experts, 2 * s.inner, s.width), s.form, rng),
            "down": _weights(kind, (s.experts, s.width, s.inner), s.form, rng), "ids": _ids(case, rng),
            "weights": weights}


def _weights(kind: str, sizes: tuple[int, ...], form: str, rng: Random) -> Tensor:
    """Of a size, a power of two, that keeps results near 1."""
    return converted(numbers(kind, sizes, "fp32", rng) * 2.0 ** -round(math.log2(sizes[-1]) / 2), form)


def used(shape: Shape) -> int:
    """How many experts get a token: as many as are expected where all are equally likely."""
    missed = (1 - shape.top_k / shape.experts) ** shape.tokens
    return max(shape.top_k, round(shape.experts * (1 - missed)))


def _ids(case: Case, rng: Random) -> Tensor:
    """Different experts for each token. "normal": exactly used(shape) in all, so that work does not hang on luck."""
    s: Shape = case.shape
    experts, count = torch.randperm(s.experts, generator=rng), used(s)
    if case.values == "one_expert":
        return experts[: s.top_k].expand(s.tokens, s.top_k).to(torch.int32).contiguous()
    if case.values == "empty_experts":
        count = min(count, max(s.top_k, s.experts // 2))
    score = torch.rand(s.tokens, count, generator=rng)
    if case.values == "skewed":
        score = score + 1 / torch.arange(1, count + 1)
    else:                                                              # each once, then at random
        once = torch.arange(count)
        score[once // s.top_k, once] += 1
    return experts[score.topk(s.top_k, dim=-1).indices].to(torch.int32)


def outputs(shape: Shape) -> Mapping[str, Spec]:
    return {"out": Spec((shape.tokens, shape.width), shape.form)}


@dataclass(frozen=True, slots=True)
class Share:
    """What one expert does: tokens [r] that it gets, their weights [r, 1], x [r, width], gate_up and down."""

    tokens: Tensor
    weight: Tensor
    x: Tensor
    gate_up: Tensor
    down: Tensor

    def to(self, dtype: torch.dtype) -> Share:
        return Share(self.tokens, self.weight.to(dtype), self.x.to(dtype), self.gate_up.to(dtype), self.down.to(dtype))


def shares(inputs: Tensors) -> Iterator[Share]:
    """Of each expert that gets a token."""
    for expert in inputs["ids"].unique().tolist():
        tokens, place = (inputs["ids"] == expert).nonzero(as_tuple=True)
        yield Share(tokens, inputs["weights"][tokens, place][:, None], inputs["x"][tokens], inputs["gate_up"][expert],
                    inputs["down"][expert])


def _gated(share: Share) -> tuple[Tensor, Tensor]:
    gate, up = (share.x @ share.gate_up.T).chunk(2, dim=-1)
    return gate, up


def reference(shape: Shape, inputs: Tensors) -> Tensors:
    out = torch.zeros(shape.tokens, shape.width, dtype=torch.float64)
    for share in shares(inputs):
        wide = share.to(torch.float64)
        gate, up = _gated(wide)
        out.index_add_(0, share.tokens, wide.weight * ((torch.nn.functional.silu(gate) * up) @ wide.down.T))
    return {"out": out}


def bound(shape: Shape, inputs: Tensors, exact: Tensors) -> Tensors:
    surely, squares, size = (torch.zeros_like(exact["out"]) for _ in range(3))
    for share in shares(inputs):
        wide = share.to(torch.float64)
        error, deviation, y = _expert_error(wide, shape.form)
        surely.index_add_(0, share.tokens, wide.weight * error)
        squares.index_add_(0, share.tokens, (wide.weight * deviation).square())
        size.index_add_(0, share.tokens, (wide.weight * y).abs())
    before = surely.minimum(random_error(squares.sqrt())) + sum_error(shape.top_k + 1, size)
    return {"out": rounded(exact["out"], before, shape.form)}


def _expert_error(share: Share, form: str) -> tuple[Tensor, Tensor, Tensor]:
    """The largest error of y, its deviation, and y [r, width]."""
    gate, up = _gated(share)
    sums = sum_error(share.x.shape[-1], share.x.abs() @ share.gate_up.abs().T)
    halves = half_ulp(torch.cat([gate, up], -1), form)
    error_g, error_u = (sums + halves).chunk(2, dim=-1)
    spread_g, spread_u = ((sums / DEVIATIONS).square() + halves.square() / 3).chunk(2, dim=-1)
    silu = torch.nn.functional.silu(gate)
    h, slope = silu * up, SLOPE * up.abs()
    exponential, half = U * (8 + 2 * gate.abs()) * h.abs(), half_ulp(h, form)
    error_h = slope * error_g + silu.abs() * error_u + SLOPE * error_g * error_u + exponential + half
    spread_h = (slope.square() * spread_g + silu.square() * spread_u + SLOPE**2 * spread_g * spread_u
                + exponential.square() + half.square() / 3)
    y, size = h @ share.down.T, share.down.abs()
    sums, half = sum_error(h.shape[-1], h.abs() @ size.T), half_ulp(y, form)
    spread = spread_h @ size.square().T + (sums / DEVIATIONS).square() + half.square() / 3
    return error_h @ size.T + sums + half, spread.sqrt(), y


def honest(shape: Shape, inputs: Tensors) -> Tensors:
    """Sums in fp32; g, u, h and y rounded to the format."""
    dtype = DTYPES[shape.form]
    out = torch.zeros(shape.tokens, shape.width)
    for share in shares(inputs):
        wide = share.to(torch.float32)
        gate, up = (z.to(dtype).float() for z in _gated(wide))
        h = (torch.nn.functional.silu(gate) * up).to(dtype).float()
        out.index_add_(0, share.tokens, wide.weight * (h @ wide.down.T).to(dtype).float())
    return {"out": out.to(dtype)}


# (tokens, experts, top_k, width, inner): one token; every expert; more experts than tokens; primes and tails.
SIZES = (
    (1, 1, 1, 8, 8), (1, 8, 2, 64, 32), (1, 64, 8, 32, 16), (2, 4, 4, 16, 24), (3, 8, 1, 40, 56), (4, 16, 2, 128, 64),
    (5, 32, 6, 24, 40), (7, 4, 2, 136, 72), (8, 8, 8, 16, 32), (16, 8, 2, 64, 96), (17, 64, 4, 32, 8),
    (31, 16, 3, 72, 40), (33, 2, 1, 64, 128), (64, 8, 2, 48, 64), (65, 5, 3, 40, 24), (128, 16, 2, 32, 32),
    (13, 7, 2, 200, 104), (1, 5, 3, 37, 41), (6, 3, 2, 65, 33), (19, 11, 5, 31, 17), (40, 6, 2, 129, 63),
)


def cases() -> tuple[Case, ...]:
    """Both formats on 21 sizes, each kind of values and of routing on three, in one format or the other."""
    ordinary = [Case(Shape(*size, form), seed=i) for form in FORMS for i, size in enumerate(SIZES)]
    odd = [Case(Shape(*size, form), values) for values in VALUES if values != "normal"
           for form, size in (("bf16", (24, 8, 2, 64, 48)), ("bf16", (9, 6, 3, 47, 29)), ("fp16", (24, 8, 2, 64, 40)))]
    return tuple(ordinary + odd)


def op(shape: Shape) -> Op:
    return Experts(tokens=shape.tokens, top_k=shape.top_k, experts_used=used(shape), width=shape.width,
                   inner=shape.inner, activations=shape.form, weights=shape.form, tokens_form=shape.form,
                   whole=Mixture(tokens=shape.tokens, top_k=shape.top_k, experts=shape.experts))


def shape_of(one: Op) -> Shape | None:
    """Experts that share their layer with other ranks are no layer of their own: None. Nor are those without a gate."""
    if not isinstance(one, Experts) or not one.gated or one.weight_block or not one.activations == one.weights == \
            one.tokens_form:
        return None
    if one.whole is not None and one.whole.groups != 1:
        return None
    experts = one.whole.experts if one.whole else one.experts_used
    shape = Shape(one.tokens, experts, one.top_k, one.width, one.inner, one.weights)
    return shape if refusal(shape) is None else None


CONTRACT = Contract(
    name="moe", title="gated feed-forward layer of experts, with the routing given", shape=Shape, values=VALUES,
    refusal=refusal, inputs=inputs, outputs=outputs, reference=reference, bound=bound, honest=honest, cases=cases,
    op=op, shape_of=shape_of, constant=("gate_up", "down"),
)
