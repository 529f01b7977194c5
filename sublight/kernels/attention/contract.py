"""This file knows about what attention over a whole sequence must return: softmax(Q·Kᵀ/√dim)·V of the keys that a query
sees. The bound is derived in `softmax_sums`; out is rounded to its format at the end. A row that sees no key is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from sublight.kernels.attention.shape import Shape
from sublight.kernels.contract import Case, Contract, Spec, Tensor, Tensors
from sublight.kernels.rounding import DTYPES, rounded
from sublight.kernels.softmax_sums import Head
from sublight.kernels.token_values import KINDS, shaped
from sublight.ops.attention import Attention, unmasked_pairs
from sublight.ops.op import Op

FORMS = ("bf16", "fp16", "fp32")


def refusal(shape: Shape) -> str | None:
    sizes = (shape.batch, shape.q_length, shape.kv_length, shape.heads, shape.kv_heads, shape.dim)
    if min(sizes) < 1:
        return "all sizes must be at least 1"
    if shape.heads % shape.kv_heads:
        return f"{shape.heads} heads do not share {shape.kv_heads} key heads evenly"
    if shape.window is not None and (shape.window < 1 or not shape.causal):
        return "a window needs causal attention and at least one key"
    return None if shape.form in FORMS else f"form is {shape.form!r}; expected one of {', '.join(FORMS)}"


def inputs(case: Case) -> Tensors:
    shape, random = case.shape, torch.Generator().manual_seed(case.seed)
    q = torch.randn(shape.batch, shape.q_length, shape.heads, shape.dim, generator=random)
    k, v = (torch.randn(shape.batch, shape.kv_length, shape.kv_heads, shape.dim, generator=random) for _ in range(2))
    made = shaped(q, k, v, case.values, random=random)
    return {name: x.to(DTYPES[shape.form]) for name, x in zip("qkv", made, strict=True)}


def outputs(shape: Shape) -> Mapping[str, Spec]:
    return {"out": Spec((shape.batch, shape.q_length, shape.heads, shape.dim), shape.form)}


def seen(shape: Shape) -> Tensor | None:
    """[q_length, kv_length]: which query sees which key; None: each sees all."""
    if not shape.causal:
        return None
    at = torch.arange(shape.q_length)[:, None] + shape.kv_length - shape.q_length
    keys = torch.arange(shape.kv_length)
    return (keys <= at) if shape.window is None else (keys <= at) & (keys > at - shape.window)


def heads(shape: Shape, given: Tensors) -> Iterator[Head]:
    """By sequence and key head; rows are by query, then by the query heads that share it."""
    group, mask = shape.heads // shape.kv_heads, seen(shape)
    mask = None if mask is None else mask.repeat_interleave(group, 0)
    q = given["q"].view(shape.batch, shape.q_length, shape.kv_heads, group, shape.dim)
    for b in range(shape.batch):
        for h in range(shape.kv_heads):
            yield Head(q[b, :, h].reshape(-1, shape.dim), given["k"][b, :, h], given["v"][b, :, h], shape.dim**-0.5,
                       mask)


def joined(shape: Shape, parts: list[Tensor]) -> Tensor:
    """What `heads` took apart."""
    group = shape.heads // shape.kv_heads
    stacked = torch.stack(parts).view(shape.batch, shape.kv_heads, shape.q_length, group, shape.dim)
    return stacked.permute(0, 2, 1, 3, 4).reshape(shape.batch, shape.q_length, shape.heads, shape.dim)


def reference(shape: Shape, given: Tensors) -> Tensors:
    return {"out": joined(shape, [head.exact() for head in heads(shape, given)])}


def bound(shape: Shape, given: Tensors, exact: Tensors) -> Tensors:
    before = joined(shape, [head.error(shape.form) for head in heads(shape, given)])
    return {"out": rounded(exact["out"], before, shape.form)}


def honest(shape: Shape, given: Tensors) -> Tensors:
    return {"out": joined(shape, [head.honest(shape.form) for head in heads(shape, given)]).to(DTYPES[shape.form])}


def op(shape: Shape) -> Op:
    """Keys that no query sees (before the first one's window) are not read."""
    keys = shape.kv_length
    if shape.window is not None:
        keys = min(keys, shape.q_length + shape.window - 1)
    return Attention(
        pairs=shape.batch * _pairs(shape), q_tokens=shape.batch * shape.q_length, kv_tokens=shape.batch * keys,
        heads=shape.heads, kv_heads=shape.kv_heads, d_qk=shape.dim, d_v=shape.dim, q=shape.form, kv=shape.form,
        out=shape.form, sequences=shape.batch, window=shape.window)


def _pairs(shape: Shape) -> int:
    """Of one sequence and head: all that a causal query sees, less those that it would see a window earlier."""
    every = unmasked_pairs(shape.q_length, shape.kv_length, causal="end" if shape.causal else None)
    if shape.window is None:
        return every
    return every - _causal(shape.q_length, shape.kv_length - shape.window)


def _causal(q: int, k: int) -> int:
    """Causal pairs where the last query stands at key k, which may lie before the first."""
    return unmasked_pairs(q, k, causal="end") if k > 0 else 0


def shape_of(op: Op) -> Shape | None:
    """The shape of a dense op of equally long sequences; of keys before every window it knows nothing."""
    if not isinstance(op, Attention) or not op.sequences or op.backward or op.mask or op.chosen or op.kv_width:
        return None
    if op.d_qk != op.d_v or len({op.q, op.kv, op.out}) > 1 or op.q_tokens % op.sequences or op.kv_tokens % op.sequences:
        return None
    for causal in (True, False):
        shape = Shape(op.sequences, op.q_tokens // op.sequences, op.kv_tokens // op.sequences, op.heads, op.kv_heads,
                      op.d_qk, causal, op.window if causal else None, op.q)
        if refusal(shape) is None and op.pairs == op.sequences * _pairs(shape):
            return shape
    return None


def cases() -> tuple[Case, ...]:
    shapes = (
        Shape(1, 1, 1, 1, 1, 64), Shape(2, 1, 37, 4, 4, 64), Shape(1, 7, 7, 4, 1, 64), Shape(1, 31, 31, 8, 2, 128),
        Shape(2, 17, 53, 8, 8, 80), Shape(1, 64, 64, 4, 4, 128), Shape(1, 61, 61, 8, 1, 256),
        Shape(1, 67, 131, 4, 1, 64, False), Shape(1, 37, 11, 2, 2, 64), Shape(2, 29, 1, 4, 2, 80),
        Shape(1, 41, 41, 4, 2, 128, window=1), Shape(1, 41, 97, 4, 2, 64, window=16),
        Shape(1, 53, 19, 2, 1, 64, window=5),
        Shape(1, 16, 64, 4, 2, 64, window=1000), Shape(1, 129, 257, 4, 2, 64), Shape(3, 1, 200, 8, 2, 128, False),
    )
    ordinary = [Case(shape, seed=i) for i, shape in enumerate(shapes)]
    forms = [Case(Shape(1, 33, 65, 4, 2, dim, form=form), seed=20) for form in FORMS[1:] for dim in (64, 80, 128)]
    hard = [Case(Shape(1, 47, 95, 4, 2, 64, form=form), kind, 30) for kind in KINDS[1:] for form in FORMS]
    blind = [Case(Shape(1, 23, 9, 4, 1, 128), kind, 40) for kind in ("peaked", "sunk", "cancelling")]
    wide = [Case(Shape(1, 19, 45, 2, 2, 256), kind, 50) for kind in ("outliers", "equal")]
    return (*ordinary, *forms, *hard, *blind, *wide)


CONTRACT = Contract(
    name="attention", title="attention of whole sequences: causal or not, with a window, with grouped queries",
    shape=Shape, values=KINDS, refusal=refusal, inputs=inputs, outputs=outputs, reference=reference, bound=bound,
    honest=honest, cases=cases, op=op, shape_of=shape_of,
)
