"""This file knows about the passes of one training stage: the operators of a micro-batch's forward and backward pass.

    t      tokens of a micro-batch on one rank: mbs · seq / cp
    kind   what an operator's time is charged to: KINDS
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sublight.models import Batch, Model, layer_ops
from sublight.models.backward import WEIGHT, backward_of
from sublight.models.block import Labelled, norm, product
from sublight.models.feedforward import Mixture
from sublight.models.model import Layer
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
    IndexScores,
    Normalisation,
    Recurrence,
    ScaledGemm,
    ShortConvolution,
    Softmax,
)
from sublight.ops.op import Op, Operand
from sublight.plan import Job, Training
from sublight.predict.training.call import Call
from sublight.predict.training.layout import expert_split, in_precision, stage_of
from sublight.predict.training.recompute import recomputed

KINDS = ("gemm", "quantised", "attention", "experts", "recurrent", "small", "tp", "ep", "cp")
# Which norms lie between blocks: with sequence parallelism a rank has 1/tp of their tokens (Korthikanti et al.,
# arXiv 2205.05198, section 4.2.2)
BETWEEN = ("attention.norm", "mlp.norm", "layer.norm", "head.norm")


@dataclass(frozen=True, slots=True)
class Passes:
    """Of one stage and one micro-batch. recomputed: forward operators that the backward pass repeats."""

    forward: tuple[Call, ...]
    backward: tuple[Call, ...]
    recomputed: tuple[Call, ...]

    @property
    def weight(self) -> tuple[Call, ...]:
        """The part of the backward pass that makes weights' gradients: zero-bubble schedules put it off."""
        return tuple(call for call in self.backward if call.label.endswith(WEIGHT))


def passes(model: Model, plan: Training, job: Job, *, stage: int) -> Passes:
    """The operators of one micro-batch on a stage's rank. Raises InputError where the plan does not divide the
    model."""
    model = in_precision(model, plan.precision)
    pipeline = stage_of(model, plan, stage)
    step = Batch(plan.mbs, max(1, job.seq // plan.cp)), Batch(plan.mbs, job.seq)
    first = list(_counted(_into(model, plan, step[0]), 1)) if pipeline.first else []
    layers = [call for layer, count in model.stage_kinds(pipeline)
              for call in _of_layer(layer, model.width, plan, step, count)]
    last = list(_last(model, plan, step)) if pipeline.last else []
    forward = (*first, *layers, *last)
    behind = tuple(Call(label, op, call.count, _kind(label, op), call.top_k) for call in reversed(forward)
                   for label, op in _behind(call, plan))
    if dict(plan.extra).get("adapters"):
        behind = tuple(call for call in behind if not call.label.endswith(WEIGHT))
    again = recomputed([one for call in layers for one in _products(call)], plan)
    return Passes(tuple(one for call in forward for one in _products(call)), behind, again)


def _products(call: Call) -> Iterator[Call]:
    """Experts as training runs them: two grouped products and the activation between them, through memory."""
    op = call.op
    if not isinstance(op, Experts):
        yield call
        return
    rows, into = op.tokens * op.top_k, op.inner * (2 if op.gated else 1)
    a, w, block = op.activations, op.weights, op.weight_block
    up = GroupedGemm(rows, into, op.width, op.experts_used, a, w, b_block=block)
    down = GroupedGemm(rows, op.width, op.inner, op.experts_used, a, w, b_block=block)
    between = Elementwise((Operand(rows * into, "bf16"),), (Operand(rows * op.inner, "bf16"),), 2)
    yield replace(call, label="moe.experts.up", op=up)
    yield replace(call, label="moe.experts.activation", op=between, kind="small")
    yield replace(call, label="moe.experts.down", op=down)


def _counted(made: Iterator[Labelled], count: int) -> Iterator[Call]:
    for label, op in made:
        yield Call(label, op, count, _kind(label, op))


def _of_layer(
    layer: Layer, width: int, plan: Training, step: tuple[Batch, Batch], count: int,
) -> Iterator[Call]:
    top_k = layer.mlp.top_k if isinstance(layer.mlp, Mixture) else 0
    for call in _counted(_layer(layer, width, plan, step), count):
        yield replace(call, top_k=top_k) if call.kind == "ep" else call


def _kind(label: str, op: Op) -> str:
    if isinstance(op, Communication):
        if label.startswith(("moe.dispatch", "moe.combine")):
            return "ep"
        return "cp" if label.startswith("attention.keys") else "tp"
    if label.startswith("moe.experts") and not isinstance(op, Elementwise):
        return "experts"
    if isinstance(op, Attention | IndexScores) or label.startswith("attention.core"):
        return "attention"
    if isinstance(op, Recurrence):
        return "recurrent"
    if isinstance(op, ScaledGemm) or (isinstance(op, Gemm) and op.a in ("fp8", "fp4")):
        return "quantised"
    return "gemm" if isinstance(op, Gemm) else "small"


def _into(model: Model, plan: Training, step: Batch) -> Iterator[Labelled]:
    t = step.rows
    yield "embedding", Gather(t * model.width, "bf16", Operand(t, "int64"), model.width)
    if model.positions:
        row = Operand(t * model.width, "bf16")
        yield "positions", Elementwise((row, row), (row,), 1)
    if plan.tp > 1:
        yield from _both(plan, "embedding", t * model.width)


def _last(model: Model, plan: Training, step: tuple[Batch, Batch]) -> Iterator[Call]:
    """Norm, head, loss; then each layer that predicts a further token, with a head of its own pass."""
    yield from _counted(_loss(model, plan, step[0]), 1)
    for layer in model.drafts:
        t = step[0].rows
        yield from _counted(iter([("draft.join", product(t, model.width, model.draft_inputs * model.width,
                                                         model.embedding))]), 1)
        yield from _of_layer(layer, model.width, plan, step, 1)
        yield from _counted(_loss(model, plan, step[0]), 1)


def _loss(model: Model, plan: Training, step: Batch) -> Iterator[Labelled]:
    """Logits of every token (training, unlike serving, needs all), and their cross entropy in fp32."""
    t, share = step.rows, -(-model.vocabulary // plan.tp)
    yield "head.norm", _between(norm(t, model.width, residual=True, kind=model.layers[-1].norm), plan)
    yield "head", Gemm(t, share, model.width)
    yield "loss", CrossEntropy(t, share, "fp32")
    if plan.tp > 1:
        yield from _both(plan, "head", t * model.width)


def _layer(layer: Layer, width: int, plan: Training, step: tuple[Batch, Batch]) -> Iterator[Labelled]:
    """A layer's forward operators in training: no cache, collectives of the plan, attention over the whole sequence."""
    split = expert_split(plan)
    short = layer_ops(layer, width, (step[0],), split)
    whole = layer_ops(layer, width, (step[1],), split) if plan.cp > 1 else None
    for label, op in short:
        full = next(whole)[1] if whole is not None else op
        if isinstance(op, CacheWrite):
            continue
        if isinstance(op, Communication):
            yield from _collective(label, op, plan)
        elif isinstance(op, Attention):
            assert isinstance(full, Attention)
            yield from _attention(label, op, full, plan, step[1])
        elif isinstance(op, Normalisation) and label in BETWEEN:
            yield label, _between(op, plan)
        else:
            yield from _cast(label, op)
            yield label, op
        if isinstance(op, Experts):
            yield from _permuted(op, fused=dict(plan.extra).get("dispatcher") == "hybridep")


def _between(op: Op, plan: Training) -> Op:
    if not isinstance(op, Normalisation) or plan.tp == 1 or not plan.sequence_parallel:
        return op
    return replace(op, elements=max(op.channels, op.elements // plan.tp))


def _cast(label: str, op: Op) -> Iterator[Labelled]:
    """Activations to eight or four bits, in rows and in columns, since the weight's gradient reads them transposed."""
    if isinstance(op, Gemm | ScaledGemm) and op.a in ("fp8", "fp4"):
        x = op.m * op.k
        yield f"{label}.cast", Elementwise((Operand(x, "bf16"),), (Operand(x, op.a), Operand(x, op.a)), 2)


def _permuted(op: Experts, *, fused: bool) -> Iterator[Labelled]:
    """Rows to their experts and back, where the exchange does not do it (HybridEP), and casts between the products."""
    rows = Operand(op.tokens * op.top_k * op.width, "bf16")
    inner = Operand(op.tokens * op.top_k * op.inner, "bf16")
    if not fused:
        yield "moe.permute", Elementwise((rows,), (rows,))
        yield "moe.unpermute", Elementwise((rows,), (rows,), 1)
    if op.activations in ("fp8", "fp4"):
        yield "moe.cast", Elementwise((rows, inner), (Operand(2 * rows.elements, op.activations),
                                                      Operand(2 * inner.elements, op.activations)), 2)


def _collective(label: str, op: Communication, plan: Training) -> Iterator[Labelled]:
    """An all-reduce of tensor parallelism is a gather and a scatter with sequence parallelism (Korthikanti et al.,
    section 4.2.2): as many bytes. Tokens of experts are split over tp ranks already, so that none are gathered."""
    if label == "moe.all_gather":
        return
    if op.collective == "all_reduce":
        yield from _both(plan, label, op.elements)
    else:
        yield label, op


def _both(plan: Training, label: str, elements: int) -> Iterator[Labelled]:
    if plan.sequence_parallel:
        yield f"{label}.gather", Communication("all_gather", plan.tp, elements, "bf16")
        yield f"{label}.scatter", Communication("reduce_scatter", plan.tp, elements, "bf16")
    else:
        yield f"{label}.reduce", Communication("all_reduce", plan.tp, elements, "bf16")


def _attention(label: str, op: Attention, full: Attention, plan: Training, step: Batch) -> Iterator[Labelled]:
    """Over the whole sequence: with context parallelism a rank has 1/cp of the queries, balanced over the causal mask,
    and keys and values go round the ring (Liu et al., Ring attention, arXiv 2310.01889)."""
    if plan.cp > 1:
        width = full.kv_heads * (full.d_qk + full.d_v)
        yield "attention.keys", Communication("all_gather", plan.cp, full.kv_tokens * width, "bf16")
        full = replace(full, pairs=full.pairs // plan.cp, q_tokens=full.q_tokens // plan.cp)
    if ("attention", "unfused") not in plan.extra:
        yield label, full
        return
    square = Operand(step.sequences * full.heads * step.tokens * step.tokens // plan.cp, "bf16")
    batch, queries = step.sequences * full.heads, step.tokens // plan.cp
    yield "attention.core.scores", Gemm(queries, step.tokens, full.d_qk, batch)
    yield "attention.core.softmax", Softmax(square.elements)
    mask = Operand(square.elements, "bool")
    yield "attention.core.dropout", Elementwise((square,), (square, mask), 1)
    yield "attention.core.values", Gemm(queries, full.d_v, step.tokens, batch)


def _behind(call: Call, plan: Training) -> Iterator[Labelled]:
    """Backward of one call: gradients are cast too, and a gathered input is gathered again for the weight's gradient
    (Megatron-LM, tensor_parallel/layers.py: sequence parallelism saves the scattered input)."""
    op = call.op
    if isinstance(op, Gemm | ScaledGemm) and op.a in ("fp8", "fp4"):
        dy = op.m * op.n
        yield f"{call.label}.gradient cast", Elementwise((Operand(dy, "bf16"),),
                                                         (Operand(dy, op.a), Operand(dy, op.a)), 2)
    yield from _gradients(call.label, op)
    if isinstance(op, Communication) and op.collective == "all_gather" and call.kind == "tp":
        yield f"{call.label}.again", op


def _gradients(label: str, op: Op) -> Iterator[Labelled]:
    """models.backward, and what it refuses: a recurrence is walked back once for its inputs and once for keys, values
    and gates (twice the forward work: Dao, Gu, arXiv 2405.21060, section 6); an indexer has a loss of its own, which is
    not counted."""
    if isinstance(op, CrossEntropy):
        yield f"{label}.grad", replace(op, backward=True)
    elif isinstance(op, Recurrence | ShortConvolution):
        yield f"{label}.input_grad", op
        yield f"{label}.{WEIGHT}", op
    elif not isinstance(op, IndexScores):
        yield from backward_of(label, op)
