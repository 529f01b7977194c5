"""This file knows about what a grouped matrix product must return: out[r] = a[r] · b[group of r]ᵀ, scaled.

Rows are sorted by group: group g has rows offsets[g] to offsets[g + 1]. Rows from offsets[-1] on are padding: whatever
lies there (NaN, in scales too) must not reach another row, and what comes out there is not judged. "normal" has no
padding: its work is that of the operator; every other kind has some.
Bound: that of one product for each group (derivation in `products`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import torch

from sublight.kernels.contract import Case, Contract, Spec, Tensor, Tensors
from sublight.kernels.grouped_gemm.shape import Shape
from sublight.kernels.products import BLOCK, blocks, honest_product, product, product_bound, unscaled
from sublight.kernels.rounding import DTYPES
from sublight.kernels.values import Random, numbers, random, scales, second_operand
from sublight.ops import GroupedGemm, Op

FORMS = ("bf16", "fp8_block")
OUT = ("bf16", "fp16", "fp32")
# Kinds of routing: an eighth is padding; groups without rows, all rows in one group, one that has half of them, no row.
ROUTING = ("padded", "empty_groups", "one_group", "skewed", "no_rows")
VALUES = ("normal", "outliers", "tiny", "zeros", "constant", "cancellation", "largest", "not_finite", "tiny_scales",
          "zero_scales", "wide_scales", *ROUTING)


def refusal(shape: Shape) -> str | None:
    if min(shape.rows, shape.groups, shape.n, shape.k) < 1:
        return f"rows, groups, n and k are at least 1, not {shape.rows}, {shape.groups}, {shape.n}, {shape.k}"
    if shape.form not in FORMS:
        return f"form is one of {', '.join(FORMS)}, not {shape.form!r}"
    if shape.out not in OUT:
        return f"out is one of {', '.join(OUT)}, not {shape.out!r}"
    return None


def inputs(case: Case) -> Tensors:
    s: Shape = case.shape
    rng, element = random(case), s.form.removesuffix("_block")
    counts = _counts(case, rng)
    made = {"a": numbers(case.values, (s.rows, s.k), element, rng),
            "b": second_operand(case.values, (s.groups, s.n, s.k), element, rng),
            "offsets": torch.cat([torch.zeros(1), counts.cumsum(0)]).to(torch.int32)}
    if s.form == "fp8_block":
        made["a_scale"] = scales(case.values, (s.rows, blocks(s.k)), rng)
        made["b_scale"] = scales("normal" if case.values == "tiny_scales" else case.values,
                                 (s.groups, blocks(s.n), blocks(s.k)), rng)
        made["a_scale"][int(counts.sum()):] = torch.nan
    made["a"][int(counts.sum()):] = torch.nan
    return made


def _counts(case: Case, rng: Random) -> Tensor:
    """Rows of each group. "normal": each has one, if there are enough, so that the work is the same for each seed."""
    s: Shape = case.shape
    used = s.rows - (max(1, s.rows // 8) if case.values != "normal" and s.rows > 1 else 0)
    if case.values == "no_rows":
        return torch.zeros(s.groups)
    if case.values == "one_group":
        return torch.eye(s.groups)[s.groups // 2] * used
    groups = torch.arange(s.groups)
    if case.values == "empty_groups":                                  # every second one, the first and the last too
        groups = groups[1:-1:2] if s.groups > 2 else groups[:1]
    first = groups[: min(used, len(groups))]
    chosen = groups[torch.randint(len(groups), (used - len(first),), generator=rng)]
    if case.values == "skewed":
        chosen[: len(chosen) // 2] = groups[-1]
    return torch.bincount(torch.cat([first, chosen]), minlength=s.groups).float()


def outputs(shape: Shape) -> Mapping[str, Spec]:
    return {"out": Spec((shape.rows, shape.n), shape.out)}


def each_group(inputs: Tensors) -> Iterator[tuple[slice, tuple[Tensor, Tensor, Tensor | None, Tensor | None]]]:
    """(rows, (a, b, a_scale, b_scale)) of each group that has rows."""
    offsets = inputs["offsets"].tolist()
    for group, (start, end) in enumerate(pairwise(offsets)):
        if end > start:
            rows = slice(start, end)
            a_scale, b_scale = inputs.get("a_scale"), inputs.get("b_scale")
            yield rows, (inputs["a"][rows], inputs["b"][group], None if a_scale is None else a_scale[rows],
                         None if b_scale is None else b_scale[group])


def reference(shape: Shape, inputs: Tensors) -> Tensors:
    out = torch.zeros(shape.rows, shape.n, dtype=torch.float64)
    for rows, operands in each_group(inputs):
        out[rows] = product(shape.form, *operands)
    return {"out": out}


def bound(shape: Shape, inputs: Tensors, exact: Tensors) -> Tensors:
    """Infinite for rows of padding."""
    out = torch.full((shape.rows, shape.n), torch.inf, dtype=torch.float64)
    for rows, operands in each_group(inputs):
        out[rows] = product_bound(shape.form, *unscaled(shape.form, *operands), exact["out"][rows], shape.out)
    return {"out": out}


def honest(shape: Shape, inputs: Tensors) -> Tensors:
    out = torch.zeros(shape.rows, shape.n, dtype=DTYPES[shape.out])
    for rows, operands in each_group(inputs):
        out[rows] = honest_product(shape.form, *operands, shape.out)
    return {"out": out}


# (rows, groups, n, k): one row; fewer rows than groups; many small groups; primes; tails of 16, 64 and 128.
SIZES = (
    (1, 1, 16, 32), (1, 8, 64, 128), (2, 2, 8, 8), (3, 8, 32, 64), (5, 3, 40, 136), (8, 8, 16, 16), (9, 4, 136, 72),
    (16, 4, 64, 96), (24, 2, 56, 120), (31, 5, 128, 128), (45, 6, 24, 264), (64, 8, 128, 128), (100, 7, 24, 256),
    (129, 2, 96, 136), (130, 64, 16, 40), (256, 4, 40, 64), (17, 3, 8, 1032), (63, 9, 72, 56),
    (3, 8, 33, 64), (17, 3, 47, 129), (40, 5, 65, 200), (61, 16, 31, 333), (7, 3, 130, 257), (33, 2, 72, 521),
    (12, 12, 1, 1),
)


def cases() -> tuple[Case, ...]:
    """Each format on 25 sizes, each kind of values and of routing on two, outputs in other formats."""
    ordinary = [Case(Shape(*size, form), values, i) for form in FORMS for i, size in enumerate(SIZES)
                for values in (("normal", "padded") if form == "bf16" else (("normal", "padded")[i % 2],))]
    odd = [Case(Shape(*size, form), values) for form in FORMS for values in VALUES
           if values not in ("normal", "padded")
           and not (form == "bf16" and (values.endswith("_scales") or values == "largest"))
           for size in ((45, 6, 40, 136), (50, 5, 129, 71))]
    others = [Case(Shape(37, 4, 48, 264, form, out), values) for form in FORMS for out in ("fp16", "fp32")
              for values in ("normal", "skewed")]
    return tuple(ordinary + odd + others)


def op(shape: Shape) -> Op:
    """Of all rows, in as many groups as may have one. Scales of b: fp32 for 128 x 128, a byte for 4096."""
    form = shape.form.removesuffix("_block")
    return GroupedGemm(rows=shape.rows, n=shape.n, k=shape.k, groups=min(shape.groups, shape.rows), a=form, b=form,
                       out=shape.out, b_block=BLOCK * BLOCK // 4 if shape.form == "fp8_block" else None)


def shape_of(one: Op) -> Shape | None:
    """The groups of a GroupedGemm are those that have rows: where there are more, the shape is one without them."""
    if not isinstance(one, GroupedGemm):
        return None
    shape = Shape(one.rows, one.groups, one.n, one.k, "fp8_block" if one.b_block else one.a, one.out)
    return shape if refusal(shape) is None and op(shape) == one else None


CONTRACT = Contract(
    name="grouped_gemm", title="matrix product of rows with the matrix of their group, in bf16 and block-scaled fp8",
    shape=Shape, values=VALUES, refusal=refusal, inputs=inputs, outputs=outputs, reference=reference, bound=bound,
    honest=honest, cases=cases, op=op, shape_of=shape_of, constant=("b",),
)
