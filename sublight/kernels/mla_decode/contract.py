"""This file knows about what latent attention (MLA, absorbed) of one new token a sequence must return, over pages.

All query heads share one key of rank + rope columns, of which the first `rank` are the value. The bound is derived in
`softmax_sums`; out is rounded to its format at the end. A sequence without tokens gives zero. Of its values those named
"ragged" have lengths that differ, some zero; the operator's work is that of full ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from sublight.kernels.contract import Case, Contract, Spec, Tensors
from sublight.kernels.decode.contract import VALUES, kind_and_lengths
from sublight.kernels.mla_decode.shape import Shape
from sublight.kernels.pages import EMPTY, RAGGED, Pages, rows_of
from sublight.kernels.rounding import DTYPES, rounded
from sublight.kernels.softmax_sums import Head
from sublight.kernels.token_values import KINDS, shaped
from sublight.ops.attention import Attention
from sublight.ops.op import Op

FORMS = ("bf16", "fp16", "fp32")
UNABSORBED = 192                         # 128 + 64 columns of a key before absorption (arXiv 2412.19437, 4.2)


def refusal(shape: Shape) -> str | None:
    if min(shape.batch, shape.kv_length, shape.heads, shape.rank, shape.page) < 1 or shape.rope < 0:
        return "all sizes must be at least 1, and rope at least 0"
    if shape.scale is not None and not 0 < shape.scale < float("inf"):
        return f"scale is {shape.scale}; expected a positive number"
    return None if shape.form in FORMS else f"form is {shape.form!r}; expected one of {', '.join(FORMS)}"


def scale_of(shape: Shape) -> float:
    return UNABSORBED**-0.5 if shape.scale is None else shape.scale


def inputs(case: Case) -> Tensors:
    """Keys and values are one tensor: where a kind shapes values, keys are those."""
    shape, random = case.shape, torch.Generator().manual_seed(case.seed)
    width = shape.rank + shape.rope
    q = torch.randn(shape.batch, 1, shape.heads, width, generator=random)
    tokens = torch.randn(shape.batch, shape.kv_length, 1, width, generator=random)
    kind, how = kind_and_lengths(case.values)
    q, k, v = shaped(q, tokens, tokens, kind, random=random)
    q, k = (x.to(DTYPES[shape.form]) for x in (q, v if kind in ("cancelling", "tiny") else k))
    pages = Pages.drawn(batch=shape.batch, kv_length=shape.kv_length, page=shape.page, how=how, random=random)
    return {"q": q[:, 0].contiguous(), "cache": pages.filled(k[:, :, 0]), "table": pages.table,
            "lengths": pages.lengths}


def outputs(shape: Shape) -> Mapping[str, Spec]:
    return {"out": Spec((shape.batch, shape.heads, shape.rank), shape.form)}


def heads(shape: Shape, given: Tensors) -> Iterator[Head]:
    """By sequence; rows are its query heads."""
    for b, length in enumerate(given["lengths"].tolist()):
        k = rows_of(given["cache"], given["table"][b], length)
        yield Head(given["q"][b], k, k[:, :shape.rank], scale_of(shape))


def reference(shape: Shape, given: Tensors) -> Tensors:
    return {"out": torch.stack([head.exact() for head in heads(shape, given)])}


def bound(shape: Shape, given: Tensors, exact: Tensors) -> Tensors:
    before = torch.stack([head.error(shape.form) for head in heads(shape, given)])
    return {"out": rounded(exact["out"], before, shape.form)}


def honest(shape: Shape, given: Tensors) -> Tensors:
    return {"out": torch.stack([head.honest(shape.form) for head in heads(shape, given)]).to(DTYPES[shape.form])}


def op(shape: Shape) -> Op:
    """All sequences as long as the longest. Table and lengths are not counted: they are small."""
    tokens, width = shape.batch * shape.kv_length, shape.rank + shape.rope
    return Attention(pairs=tokens, q_tokens=shape.batch, kv_tokens=tokens, heads=shape.heads, kv_heads=1, d_qk=width,
                     d_v=shape.rank, q=shape.form, kv=shape.form, out=shape.form, kv_width=width,
                     sequences=shape.batch)


def shape_of(op: Op) -> Shape | None:
    """The shape of an absorbed op of one query a sequence; of pages and scale it knows nothing, and takes the usual."""
    if not isinstance(op, Attention) or not op.sequences or op.backward or op.mask or op.chosen or op.kv_heads != 1:
        return None
    if op.kv_width != op.d_qk or op.d_qk < op.d_v or len({op.q, op.kv, op.out}) > 1:
        return None
    if op.q_tokens != op.sequences or op.kv_tokens != op.pairs or op.kv_tokens % op.sequences:
        return None
    shape = Shape(op.sequences, op.kv_tokens // op.sequences, op.heads, op.d_v, op.d_qk - op.d_v, form=op.q)
    return shape if refusal(shape) is None else None


def cases() -> tuple[Case, ...]:
    shapes = (
        Shape(1, 1, 1), Shape(1, 1, 16), Shape(2, 65, 16), Shape(1, 64, 4), Shape(1, 333, 8), Shape(2, 37, 5, page=1),
        Shape(1, 129, 16, page=16), Shape(1, 257, 3, page=32), Shape(2, 50, 7, rank=128, rope=32, page=16),
        Shape(1, 101, 4, rank=64, rope=0, page=16), Shape(1, 63, 4, rank=96, rope=17, page=8),
        Shape(1, 90, 16, scale=0.1), Shape(1, 1021, 2, rank=128, rope=64),
    )
    full = [Case(shape, seed=i) for i, shape in enumerate(shapes)]
    ragged = [Case(shape, RAGGED, 20 + i) for i, shape in enumerate((
        Shape(6, 70, 16), Shape(7, 67, 4, page=16), Shape(5, 33, 8, page=1),
        Shape(9, 80, 4, rank=128, rope=32, page=16), Shape(6, 100, 4, form="fp16"), Shape(6, 100, 4, form="fp32")))]
    small = {form: Shape(2, 91, 6, rank=128, rope=64, page=16, form=form) for form in FORMS}
    hard = [Case(small[form], kind, 40) for kind in KINDS[1:] for form in FORMS]
    both = [Case(Shape(6, 77, 5, page=64), f"ragged {kind}", 50) for kind in KINDS[1:]]
    return (*full, *ragged, *hard, *both, Case(Shape(3, 20, 4), EMPTY))


CONTRACT = Contract(
    name="mla_decode", title="latent attention of one new token a sequence over a cache in pages", shape=Shape,
    values=VALUES, refusal=refusal, inputs=inputs, outputs=outputs, reference=reference, bound=bound, honest=honest,
    cases=cases, op=op, shape_of=shape_of,
)
