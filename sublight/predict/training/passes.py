"""This file knows about the passes of one training stage: the operators of a micro-batch's forward and backward pass.

    t      tokens of a micro-batch on one rank: mbs · seq / cp
    kind   what an operator's time is charged to: KINDS
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from sublight.models import Batch, Model, Split, layer_ops, recast
from sublight.models.backward import WEIGHT, backward_of
from sublight.models.block import Labelled, norm, product
from sublight.models.feedforward import Mixture
from sublight.models.model import Layer
from sublight.models.recurrent import Mamba2
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

KINDS = ("gemm", "quantised", "attention", "experts", "recurrent", "small", "tp", "ep", "cp")
FP8_PRECISIONS = {"fp8": "fp8", "fp8_block": "fp8_block", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}
# Which norms lie between blocks: with sequence parallelism a rank has 1/tp of their tokens (Korthikanti et al.,
# arXiv 2205.05198, section 4.2.2)
BETWEEN = ("attention.norm", "mlp.norm", "layer.norm", "head.norm")


@dataclass(frozen=True, slots=True)
class Call:
    """An operator, how often a stage calls it for one micro-batch, and what its time is charged to. top_k: experts of a
    token, of their exchanges."""

    label: str
    op: Op
    count: int
    kind: str
    top_k: int = 0


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


_RECAST: dict[tuple[int, str], tuple[Model, Model]] = {}   # by identity: hashing a model costs more than a step


def in_precision(model: Model, precision: str) -> Model:
    """The model as it is multiplied in training: linear layers of blocks in `precision`, the rest in 16 bits.

    Embedding and head, attention itself and the router stay in bf16 (NVIDIA Transformer Engine's recipes; DeepSeek-V3
    report, arXiv 2412.19437, section 3.3.1). Hybrids in NVFP4 keep their mixers in wider formats: in mxfp8 here
    (Nemotron 3 white paper, arXiv 2512.20856: Mamba's output in MXFP8, attention's products in bf16).
    """
    key = (id(model), precision)
    if key not in _RECAST or _RECAST[key][0] is not model:
        if len(_RECAST) > 64:
            _RECAST.clear()
        _RECAST[key] = (model, _in_precision(model, precision))
    return _RECAST[key][1]


def _in_precision(model: Model, precision: str) -> Model:
    form = FP8_PRECISIONS.get(precision, "bf16")
    mixers = "mxfp8" if form == "nvfp4" and any(isinstance(layer.attention, Mamba2) for layer in model.layers) else form
    return recast(model, attention=mixers, mlp=form, experts=form, head="bf16", kv="bf16")


def expert_split(plan: Training) -> Split:
    """Ranks that share experts, as models.Split counts them: tp ranks, and replicas of attention beside them."""
    shared = plan.ep * plan.etp
    dp = shared // plan.tp if shared > plan.tp and shared % plan.tp == 0 else 1
    ep = plan.ep if (plan.tp * dp) % plan.ep == 0 else 1
    return Split(tp=plan.tp, ep=ep, dp=dp, imbalance=min(plan.imbalance, float(ep)))


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
    again = _recomputed([one for call in layers for one in _products(call)], plan)
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


def stage_of(model: Model, plan: Training, stage: int) -> Split:
    """The layers of a pipeline's stage. Evenly where stages divide them; else, and where layers that predict further
    tokens follow the last, the last stage has fewer by what head and drafts weigh (as Megatron-Bridge's layouts of
    DeepSeek-V3 do: 8, 8, 8, 8, 8, 8, 8, 5).

    >>> from sublight.models import named
    >>> v3 = named("deepseek-ai/DeepSeek-V3")
    >>> [len(stage_of(v3, Training(pp=8), stage).layers(61)) for stage in range(8)]
    [9, 8, 8, 8, 8, 8, 8, 4]
    """
    count = len(model.layers)
    if plan.pp == 1 or (count % plan.pp == 0 and not model.drafts):
        return Split(pp=plan.pp, stage=stage)
    head = model.vocabulary * model.width
    each = (model.multiplied() - head) / count
    extra = head / each + len(model.drafts) * (1 + head / each)
    last = max(1, min(count - plan.pp + 1, round((count + extra) / plan.pp - extra)))
    others, rest = divmod(count - last, plan.pp - 1)
    stages = tuple(others + (index < rest) for index in range(plan.pp - 1))
    return Split(pp=plan.pp, stage=stage, stages=(*stages, last))


# What recomputes a module: the labels of its operators begin so (Megatron-LM, --recompute-modules)
MODULES: dict[str, tuple[str, ...]] = {
    "core_attn": ("attention.core", "attention.prefill"), "mla_up_proj": ("attention.q_b", "attention.kv_b"),
    "layernorm": ("attention.norm", "mlp.norm"), "mlp": ("mlp.up", "mlp.activation", "mlp.down"),
    "moe_act": ("moe.experts.activation",), "shared_experts": ("shared.",), "moe": ("moe.", "shared."),
}


def _recomputed(layers: list[Call], plan: Training) -> tuple[Call, ...]:
    """Of the layers' forward operators those that the backward pass repeats.

    Selective without names of modules repeats unfused attention's scores (Korthikanti et al., section 5). extra of a
    plan: ("recompute_modules", "mla_up_proj,mlp"), and ("whole_layers", "5") of full recomputation in some layers.
    """
    extra = dict(plan.extra)
    if plan.recompute == "full":
        whole = int(extra.get("whole_layers", "0"))
        held = sum(call.count for call in layers if call.label == "attention.norm")
        share = min(1.0, whole / held) if whole and held else 1.0
        return tuple(replace(call, count=round(share * call.count)) for call in layers if share * call.count >= 0.5)
    if plan.recompute != "selective":
        return ()
    modules = extra.get("recompute_modules", "core_attn" if extra.get("attention") == "unfused" else "").split(",")
    starts = tuple(start for module in modules for start in MODULES.get(module, ()))
    return tuple(call for call in layers if starts and call.label.startswith(starts))


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


@cache
def experts_of(model: Model) -> tuple[int, int, int]:
    """(experts, top_k, layers that have them); zeros for a dense model."""
    found = [layer.mlp for layer in model.layers if isinstance(layer.mlp, Mixture)]
    return (found[0].experts, found[0].top_k, len(found)) if found else (0, 0, 0)
