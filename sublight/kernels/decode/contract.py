"""This file knows about what attention of one new token a sequence must return, over a KV cache in pages.

The bound is derived in `softmax_sums`; out is rounded to its format at the end. A sequence without tokens gives zero.
Of its values those named "ragged" have lengths that differ, some zero; the operator's work is that of full ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from sublight.kernels.contract import Case, Contract, Spec, Tensor, Tensors
from sublight.kernels.decode.shape import Shape
from sublight.kernels.pages import EMPTY, FULL, RAGGED, Pages, rows_of
from sublight.kernels.rounding import DTYPES, rounded
from sublight.kernels.softmax_sums import Head
from sublight.kernels.token_values import KINDS, shaped
from sublight.ops.attention import Attention
from sublight.ops.op import Op

FORMS = ("bf16", "fp16", "fp32")
VALUES = (*KINDS, RAGGED, EMPTY, *(f"ragged {kind}" for kind in KINDS[1:]))


def refusal(shape: Shape) -> str | None:
    if min(shape.batch, shape.kv_length, shape.heads, shape.kv_heads, shape.dim, shape.page) < 1:
        return "all sizes must be at least 1"
    if shape.heads % shape.kv_heads:
        return f"{shape.heads} heads do not share {shape.kv_heads} key heads evenly"
    return None if shape.form in FORMS else f"form is {shape.form!r}; expected one of {', '.join(FORMS)}"


def inputs(case: Case) -> Tensors:
    shape, random = case.shape, torch.Generator().manual_seed(case.seed)
    q = torch.randn(shape.batch, 1, shape.heads, shape.dim, generator=random)
    k, v = (torch.randn(shape.batch, shape.kv_length, shape.kv_heads, shape.dim, generator=random) for _ in range(2))
    kind, how = kind_and_lengths(case.values)
    q, k, v = (x.to(DTYPES[shape.form]) for x in shaped(q, k, v, kind, random=random))
    pages = Pages.drawn(batch=shape.batch, kv_length=shape.kv_length, page=shape.page, how=how, random=random)
    return {"q": q[:, 0].contiguous(), "k_cache": pages.filled(k), "v_cache": pages.filled(v), "table": pages.table,
            "lengths": pages.lengths}


def kind_and_lengths(values: str) -> tuple[str, str]:
    """What a case's values say of the numbers and of the lengths.

    >>> kind_and_lengths("ragged peaked"), kind_and_lengths("ragged"), kind_and_lengths("peaked")
    (('peaked', 'ragged'), ('normal', 'ragged'), ('peaked', 'full'))
    """
    if values in (RAGGED, EMPTY):
        return "normal", values
    return (values.removeprefix("ragged "), RAGGED) if values.startswith("ragged ") else (values, FULL)


def outputs(shape: Shape) -> Mapping[str, Spec]:
    return {"out": Spec((shape.batch, shape.heads, shape.dim), shape.form)}


def heads(shape: Shape, given: Tensors) -> Iterator[Head]:
    """By sequence and key head; rows are the query heads that share it."""
    q = given["q"].view(shape.batch, shape.kv_heads, -1, shape.dim)
    for b, length in enumerate(given["lengths"].tolist()):
        k, v = (rows_of(given[name], given["table"][b], length) for name in ("k_cache", "v_cache"))
        for h in range(shape.kv_heads):
            yield Head(q[b, h], k[:, h], v[:, h], shape.dim**-0.5)


def _joined(shape: Shape, parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).view(shape.batch, shape.heads, shape.dim)


def reference(shape: Shape, given: Tensors) -> Tensors:
    return {"out": _joined(shape, [head.exact() for head in heads(shape, given)])}


def bound(shape: Shape, given: Tensors, exact: Tensors) -> Tensors:
    return {"out": rounded(exact["out"], _joined(shape, [head.error(shape.form) for head in heads(shape, given)]),
                           shape.form)}


def honest(shape: Shape, given: Tensors) -> Tensors:
    return {"out": _joined(shape, [head.honest(shape.form) for head in heads(shape, given)]).to(DTYPES[shape.form])}


def op(shape: Shape) -> Op:
    """All sequences as long as the longest. Table and lengths are not counted: they are small."""
    tokens = shape.batch * shape.kv_length
    return Attention(pairs=tokens, q_tokens=shape.batch, kv_tokens=tokens, heads=shape.heads, kv_heads=shape.kv_heads,
                     d_qk=shape.dim, d_v=shape.dim, q=shape.form, kv=shape.form, out=shape.form, sequences=shape.batch)


def shape_of(op: Op) -> Shape | None:
    """The shape of an op of one query a sequence; of pages it knows nothing, and takes 16 tokens each."""
    if not isinstance(op, Attention) or not op.sequences or op.backward or op.mask or op.chosen or op.kv_width:
        return None
    if op.d_qk != op.d_v or len({op.q, op.kv, op.out}) > 1 or op.q_tokens != op.sequences or op.kv_tokens != op.pairs:
        return None
    if op.kv_tokens % op.sequences:
        return None
    shape = Shape(op.sequences, op.kv_tokens // op.sequences, op.heads, op.kv_heads, op.d_qk, form=op.q)
    return shape if refusal(shape) is None else None


def cases() -> tuple[Case, ...]:
    shapes = (
        Shape(1, 1, 1, 1, 64), Shape(1, 1, 8, 2, 128), Shape(2, 17, 4, 4, 64), Shape(3, 64, 8, 1, 128),
        Shape(1, 333, 8, 2, 128), Shape(2, 101, 4, 1, 80), Shape(1, 257, 4, 4, 256, 64), Shape(2, 37, 16, 2, 64, 1),
        Shape(1, 1021, 8, 1, 64, 16), Shape(2, 128, 32, 4, 128, 64), Shape(2, 96, 16, 4, 256, 32),
        Shape(1, 16, 5, 5, 64, 16), Shape(1, 129, 7, 1, 128, 64), Shape(1, 2048, 4, 1, 64, 16),
    )
    full = [Case(shape, seed=i) for i, shape in enumerate(shapes)]
    ragged = [Case(shape, RAGGED, 20 + i) for i, shape in enumerate((
        Shape(7, 67, 4, 1, 64), Shape(6, 129, 8, 2, 128, 64), Shape(5, 33, 8, 8, 80, 1), Shape(9, 80, 4, 2, 256, 16),
        Shape(6, 100, 8, 1, 64, 16, "fp16"), Shape(6, 100, 8, 2, 64, 16, "fp32"), Shape(5, 40, 20, 4, 128, 8),
        Shape(3, 5, 4, 1, 64, 64)))]
    hard = [Case(Shape(2, 91, 8, 2, 64, form=form), kind, 40) for kind in KINDS[1:] for form in FORMS]
    both = [Case(Shape(6, 77, 8, 2, 128, 16), f"ragged {kind}", 50) for kind in KINDS[1:]]
    return (*full, *ragged, *hard, *both, Case(Shape(3, 20, 4, 2, 64), EMPTY), Case(Shape(1, 9, 2, 2, 64, 4), EMPTY))


CONTRACT = Contract(
    name="decode", title="attention of one new token a sequence over a KV cache in pages, with grouped queries",
    shape=Shape, values=VALUES, refusal=refusal, inputs=inputs, outputs=outputs, reference=reference, bound=bound,
    honest=honest, cases=cases, op=op, shape_of=shape_of,
)
