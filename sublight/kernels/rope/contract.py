"""This file knows about what rotary embedding with the write to the KV cache must return. u = 2⁻²⁴.

    neox        (a, b) = columns (i, i + rotary/2); otherwise columns (2i, 2i + 1), i < rotary/2
    rotated     (a·cos − b·sin, b·cos + a·sin), cos and sin of the token's position, column i of the table

Derivation. Two products and a sum in fp32, in any order or fused: 2·u·(|a·cos| + |b·sin|), then one rounding. Columns
beyond `rotary` and all values are copies: no error. Slots that no token has stay as they were, bit by bit: half of them
hold NaN. A slot of -1 is not written; slots are never given twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, nan

import torch

from sublight.kernels.contract import Case, Contract, Spec, Tensor, Tensors
from sublight.kernels.rope.shape import Shape
from sublight.kernels.rounding import DTYPES, rounded, unit_roundoff
from sublight.kernels.values import numbers, random
from sublight.ops.fused import RotaryWrite
from sublight.ops.op import Op

FORMS = ("bf16", "fp16", "fp32")
U = unit_roundoff("fp32")
BASE = 10000.0                           # of the angles (Su et al., arXiv 2104.09864, section 3.2.2)

# Besides those of `values`: skipped, every third slot is -1; unwritten, all are; last, all positions are the table's
# last; first, all are 0: nothing turns; cancelling, a·cos and b·sin are nearly the same.
VALUES = ("normal", "outliers", "tiny", "zeros", "skipped", "unwritten", "last", "first", "cancelling")


def refusal(shape: Shape) -> str | None:
    if min(shape.tokens, shape.heads, shape.kv_heads, shape.dim, shape.pages, shape.page, shape.positions) < 1:
        return "all sizes must be at least 1"
    rotary = rotary_of(shape)
    if rotary % 2 or not 2 <= rotary <= shape.dim:
        return f"rotary is {rotary}; expected an even number up to {shape.dim}"
    if shape.tokens > shape.pages * shape.page:
        return f"{shape.tokens} tokens need more than {shape.pages} pages of {shape.page}"
    return None if shape.form in FORMS else f"form is {shape.form!r}; expected one of {', '.join(FORMS)}"


def rotary_of(shape: Shape) -> int:
    return shape.dim if shape.rotary is None else shape.rotary


def table(shape: Shape) -> Tensor:
    """[positions, rotary] fp32: cosines, then sines."""
    half = rotary_of(shape) // 2
    angles = torch.arange(shape.positions).double()[:, None] * BASE ** (-torch.arange(half).double() / half)
    return torch.cat([angles.cos(), angles.sin()], 1).float()


def inputs(case: Case) -> Tensors:
    shape, rng, kind = case.shape, random(case), case.values
    plain = kind if kind in ("outliers", "tiny", "zeros") else "normal"
    q, k, v = (numbers(plain, (shape.tokens, heads, shape.dim), shape.form, rng)
               for heads in (shape.heads, shape.kv_heads, shape.kv_heads))
    places = torch.randint(0, shape.positions, (shape.tokens,), generator=rng)
    places = places * 0 if kind == "first" else places * 0 + shape.positions - 1 if kind == "last" else places
    slots = torch.randperm(shape.pages * shape.page, generator=rng)[:shape.tokens]
    if kind in ("skipped", "unwritten"):
        slots[torch.arange(shape.tokens) % 3 == 1 if kind == "skipped" else slots >= 0] = -1
    turns = table(shape)
    if kind == "cancelling":
        q, k = (_cancelling(shape, x, turns[places]) for x in (q, k))
    return {"q": q, "k": k, "v": v, "positions": places, "cos_sin": turns, "slots": slots,
            "k_cache": _cache(shape, rng), "v_cache": _cache(shape, rng)}


def _cache(shape: Shape, rng: torch.Generator) -> Tensor:
    cache = torch.randn(shape.pages * shape.page, shape.kv_heads, shape.dim, generator=rng)
    cache[::2] = nan
    return cache.view(shape.pages, shape.page, shape.kv_heads, shape.dim).to(DTYPES[shape.form])


def _cancelling(shape: Shape, x: Tensor, turns: Tensor) -> Tensor:
    """a = sin, b = cos, but for their rounding: a·cos − b·sin is what that leaves."""
    cos, sin = turns[:, None].expand(-1, x.shape[1], -1).chunk(2, -1)
    return _merged(shape, x, sin.to(x.dtype), cos.to(x.dtype))


def outputs(shape: Shape) -> Mapping[str, Spec]:
    cache = Spec((shape.pages, shape.page, shape.kv_heads, shape.dim), shape.form)
    return {"q_out": Spec((shape.tokens, shape.heads, shape.dim), shape.form), "k_cache": cache, "v_cache": cache}


def _pairs(shape: Shape, x: Tensor) -> tuple[Tensor, Tensor]:
    """a and b [.., rotary/2]."""
    rotary = rotary_of(shape)
    turned = x[..., :rotary]
    if shape.neox:
        return turned[..., :rotary // 2], turned[..., rotary // 2:]
    return turned[..., ::2], turned[..., 1::2]


def _merged(shape: Shape, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x with a and b in the place of its pairs."""
    turned = torch.cat([a, b], -1) if shape.neox else torch.stack([a, b], -1).flatten(-2)
    return torch.cat([turned.to(x.dtype), x[..., rotary_of(shape):]], -1)


def _rotated(shape: Shape, x: Tensor, turns: Tensor) -> Tensor:
    """In the format of x; turns [tokens, rotary]."""
    cos, sin = turns[:, None].to(x.dtype).chunk(2, -1)
    a, b = _pairs(shape, x)
    return _merged(shape, x, a * cos - b * sin, b * cos + a * sin)


def _written(shape: Shape, cache: Tensor, tokens: Tensor, slots: Tensor) -> Tensor:
    flat, there = cache.clone().flatten(0, 1), slots >= 0
    flat[slots[there]] = tokens[there].to(cache.dtype)
    return flat.view(cache.shape)


def reference(shape: Shape, given: Tensors) -> Tensors:
    turns = given["cos_sin"][given["positions"]].double()
    q, k = (_rotated(shape, given[name].double(), turns) for name in "qk")
    return {"q_out": q, "k_cache": _written(shape, given["k_cache"].double(), k, given["slots"]),
            "v_cache": _written(shape, given["v_cache"].double(), given["v"], given["slots"])}


def bound(shape: Shape, given: Tensors, exact: Tensors) -> Tensors:
    turns = given["cos_sin"][given["positions"]].double()
    q, k = (_error(shape, given[name].double(), turns) for name in "qk")
    nothing = torch.zeros_like(exact["k_cache"])
    return {"q_out": q, "k_cache": _written(shape, nothing, k, given["slots"]), "v_cache": nothing}


def _error(shape: Shape, x: Tensor, turns: Tensor) -> Tensor:
    cos, sin = turns[:, None].abs().chunk(2, -1)
    a, b = _pairs(shape, x)
    exact_a, exact_b = _pairs(shape, _rotated(shape, x, turns))
    errors = (rounded(exact, 2 * U * magnitude, shape.form) for exact, magnitude in (
        (exact_a, a.abs() * cos + b.abs() * sin), (exact_b, b.abs() * cos + a.abs() * sin)))
    return _merged(shape, torch.zeros_like(x), *errors)


def honest(shape: Shape, given: Tensors) -> Tensors:
    turns = given["cos_sin"][given["positions"]]
    q, k = (_rotated(shape, given[name].float(), turns).to(DTYPES[shape.form]) for name in "qk")
    return {"q_out": q, "k_cache": _written(shape, given["k_cache"], k, given["slots"]),
            "v_cache": _written(shape, given["v_cache"], given["v"], given["slots"])}


def op(shape: Shape) -> Op:
    """All tokens are written."""
    return RotaryWrite(shape.tokens, shape.heads, shape.kv_heads, shape.dim, rotary_of(shape), shape.form)


def shape_of(op: Op) -> Shape | None:
    """Of pages, the table and the pairs an op knows nothing: as many pages of 16 as hold the tokens, and the usual."""
    if not isinstance(op, RotaryWrite) or (op.table, op.positions) != ("fp32", "int64"):
        return None
    rotary = None if op.rotary == op.dim else op.rotary
    shape = Shape(op.tokens, op.heads, op.kv_heads, op.dim, ceil(op.tokens / 16), rotary, form=op.form)
    return shape if refusal(shape) is None else None


def cases() -> tuple[Case, ...]:
    shapes = (
        Shape(1, 1, 1, 64, 1), Shape(1, 32, 8, 128, 3), Shape(7, 8, 2, 128, 2), Shape(37, 4, 1, 64, 5),
        Shape(64, 4, 4, 80, 4), Shape(17, 3, 3, 256, 2), Shape(33, 8, 2, 128, 40, page=1),
        Shape(53, 8, 1, 64, 2, page=64), Shape(29, 4, 2, 128, 3, rotary=64),
        Shape(31, 4, 2, 80, 3, rotary=32), Shape(13, 5, 1, 64, 2, rotary=2),
    )
    ordinary = [Case(replaced, seed=i) for i, shape in enumerate(shapes) for replaced in (shape, _adjacent(shape))]
    forms = [Case(Shape(23, 6, 2, 128, 3, rotary, neox=neox, form=form), seed=30) for form in FORMS[1:]
             for neox in (True, False) for rotary in (None, 96)]
    hard = [Case(Shape(41, 6, 2, 64, 4, form=form, positions=131, neox=neox), values, 40) for values in VALUES[1:]
            for form, neox in (("bf16", True), ("bf16", False), ("fp16", True))]
    ends = [Case(Shape(48, 2, 1, 64, 3), seed=50), Case(Shape(5, 2, 2, 64, 9, positions=1), seed=51)]
    return (*ordinary, *forms, *hard, *ends)


def _adjacent(shape: Shape) -> Shape:
    return Shape(shape.tokens, shape.heads, shape.kv_heads, shape.dim, shape.pages, shape.rotary, shape.page,
                 shape.positions, False, shape.form)


CONTRACT = Contract(
    name="rope", title="rotary embedding of queries and keys, and the write of keys and values to a cache in pages",
    shape=Shape, values=VALUES, refusal=refusal, inputs=inputs, outputs=outputs, reference=reference, bound=bound,
    honest=honest, cases=cases, op=op, shape_of=shape_of, constant=("cos_sin",),
)
