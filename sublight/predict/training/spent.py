"""This file knows about the seconds of a training step's pieces, before a framework's constants meet them.

    pieces   passes of each stage by kind of operator, collectives of a step, the optimizer
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sublight.models import Model, Split
from sublight.models.backward import WEIGHT
from sublight.models.block import Weight
from sublight.ops import Communication, Elementwise, Gemm, GroupedGemm, OptimizerStep
from sublight.ops.op import Op, Operand
from sublight.plan import Job, Training
from sublight.predict.machine import Machine
from sublight.predict.optime import OpTime, mixed_shares
from sublight.predict.training.call import Call
from sublight.predict.training.kernels import kernel_time
from sublight.predict.training.layout import stage_of
from sublight.predict.training.overlap import Group, collective, placed
from sublight.predict.training.passes import Passes, passes
from sublight.work import BYTES

ONCE = ("deepep", "hybridep")            # dispatchers that send a token to each NVLink domain once
# Bytes of a gradient as it is reduced: Megatron-LM and torchtitan in fp32 unless told otherwise (defaults), DeepSpeed
# and llm-foundry ("PURE" mixed precision) in 16 bits
REDUCED = {"llm-foundry": 2, "megatron-deepspeed": 2}
MULTIPLIED = {"fp8": 1, "fp8_block": 1, "mxfp8": 1, "nvfp4": 1}


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds with their shares of machine.RATES."""

    seconds: float
    shares: Mapping[str, float] = field(default_factory=lambda: {"fixed": 1.0})


@dataclass(frozen=True, slots=True)
class PassSpent:
    """One pass of one micro-batch on one stage. by_kind: passes.KINDS; weight: of it, what makes weights' gradients."""

    by_kind: Mapping[str, Spent]
    calls: int                           # kernels that the host launches, but for those of experts
    experts: int                         # layers with experts
    products: int                        # of single experts: grouped ones are launched one by one
    weight: float = 0.0                  # share of the pass's compute that a zero-bubble schedule may put off


@dataclass(frozen=True, slots=True)
class Pieces:
    """Everything that a step is made of."""

    stages: tuple[tuple[PassSpent, PassSpent, int], ...]     # forward, backward (with what is recomputed), layers
    micro_batches: int
    hop: Spent                           # activations of a micro-batch from stage to stage
    gradients: Spent                     # reduced over replicas, once a step (FSDP: once a micro-batch)
    parameters: Spent                    # gathered after the optimizer (FSDP: in a pass)
    optimizer: Spent


def pieces(model: Model, plan: Training, job: Job, where: Machine) -> Pieces:
    """Raises InputError where the plan does not divide the model."""
    micro_batches = max(1, round(job.gbs / (plan.mbs * plan.dp)))
    known: dict[object, tuple[PassSpent, PassSpent, int]] = {}
    stages = []
    for stage in range(plan.pp):
        split = stage_of(model, plan, stage)
        key = (model.stage_kinds(split), split.first, split.last)
        if key not in known:
            layers = sum(count for _, count in model.stage_kinds(split))
            known[key] = (*_stage(passes(model, plan, job, stage=stage), plan, where), layers)
        stages.append(known[key])
    t = plan.mbs * job.seq / plan.cp
    sent = t * model.width * 2 / (plan.tp if plan.sequence_parallel else 1)
    hop = collective("send_recv", Group(2, plan.tp * plan.cp * plan.dp), sent if plan.pp > 1 else 0, where)
    gradients, parameters, optimizer = _replicas(model, plan, where)
    return Pieces(tuple(stages), micro_batches, _spent([hop]), gradients, parameters, optimizer)


def _spent(times: Iterable[OpTime]) -> Spent:
    listed = list(times)
    seconds = sum(time.seconds for time in listed)
    return Spent(seconds, mixed_shares((time.seconds, time.shares) for time in listed))


def _stage(made: Passes, plan: Training, where: Machine) -> tuple[PassSpent, PassSpent]:
    return _pass(made.forward, plan, where), _pass((*made.recomputed, *made.backward), plan, where)


def _pass(calls: tuple[Call, ...], plan: Training, where: Machine) -> PassSpent:
    by_kind: dict[str, list[tuple[float, Mapping[str, float]]]] = {}
    count = layers = products = 0
    weight = compute = 0.0
    for call in calls:
        time = call_time(call, plan, where)
        seconds = call.count * time.seconds
        by_kind.setdefault(call.kind, []).append((seconds, time.shares))
        if call.kind == "experts":
            products += call.count * _products(call.op)
            layers += call.count if call.label in ("moe.experts.up", "moe.experts.up.input_grad") else 0
        else:
            count += call.count
        compute += seconds if call.kind not in ("tp", "ep", "cp") else 0.0
        weight += seconds if call.label.endswith(WEIGHT) else 0.0
    spent = {kind: Spent(sum(seconds for seconds, _ in rows), mixed_shares(rows)) for kind, rows in by_kind.items()}
    return PassSpent(spent, count, layers, products, weight / compute if compute else 0.0)


def _products(op: Op) -> int:
    """Matrix products that one call is, where each expert has its own."""
    return op.groups if isinstance(op, GroupedGemm) else op.batch if isinstance(op, Gemm) else 1


def call_time(call: Call, plan: Training, where: Machine) -> OpTime:
    """Of one call: operators by kernels, collectives by where the plan puts their ranks."""
    if not isinstance(call.op, Communication):
        return kernel_time(call.op, where)
    op = call.op
    group = {"tp": Group(plan.tp), "cp": Group(plan.cp, plan.tp), "ep": Group(op.group)}[call.kind]
    sent = op.elements * BYTES[op.form]
    if call.kind == "ep" and dict(plan.extra).get("dispatcher") in ONCE:
        sent *= copies(call.top_k, placed(group, where.cluster).nodes)
    return collective(op.collective, group, sent, where)


def copies(top_k: int, domains: int) -> float:
    """Share of a token's top_k copies that leave where a domain gets each token once: distinct domains of top_k experts
    drawn alike, over top_k.

    >>> copies(8, 1), round(copies(8, 8), 2)
    (1.0, 0.66)
    """
    if domains < 2 or top_k < 2:
        return 1.0
    return domains * (1 - (1 - 1 / domains) ** top_k) / top_k


def _replicas(model: Model, plan: Training, where: Machine) -> tuple[Spent, Spent, Spent]:
    """Gradients, parameters and optimizer of the fullest stage: the first or the last, which have a table each."""
    stages = {0, plan.pp - 1}
    dense, experts = max((parameters_on_rank(model, plan, stage) for stage in stages), key=sum)
    shared = Group(plan.dp * plan.cp, plan.tp)
    own = Group(max(1, plan.tp * plan.cp * plan.dp // (plan.ep * plan.etp)), plan.ep * plan.etp)
    held = ((dense, shared), (experts, own))
    reduce = "all_reduce" if plan.zero == 0 else "reduce_scatter"
    each = 2 if dict(plan.extra).get("gradients") == "bf16" else REDUCED.get(plan.framework, 4)
    gradients = _spent(collective(reduce, group, each * count, where) for count, group in held)
    gathered = 0 if plan.zero == 0 else MULTIPLIED.get(plan.precision, 2) if plan.zero < 3 else 2
    parameters = _spent(collective("all_gather", group, gathered * count, where) for count, group in held)
    split = [count if plan.zero == 0 else -(-count // group.size) for count, group in held]
    return gradients, parameters, _spent(_update(sum(split), where))


def _update(count: int, where: Machine) -> Iterable[OpTime]:
    """Adam on fp32 states, and the copy of the result in 16 bits."""
    yield kernel_time(OptimizerStep(count), where)
    yield kernel_time(Elementwise((Operand(count, "fp32"),), (Operand(count, "bf16"),)), where)


def parameters_on_rank(model: Model, plan: Training, stage: int) -> tuple[int, int]:
    """(shared by tensor parallel ranks, of experts): elements that one rank of a stage holds."""
    split, split_tp = stage_of(model, plan, stage), Split(tp=plan.tp)
    dense = experts = 0
    for layer, count in model.stage_kinds(split):
        for weight in layer.weights(model.width):
            d, e = _held(weight, plan, split_tp)
            dense, experts = dense + count * d, experts + count * e
    table = -(-model.vocabulary // plan.tp) * model.width
    if split.first:
        dense += table + model.positions * model.width
    if split.last:
        dense += model.width + (0 if model.tied and split.first else table)
        for weight in model.draft_weights():
            d, e = _held(weight, plan, split_tp)
            dense, experts = dense + d, experts + e
    return dense, experts


def _held(weight: Weight, plan: Training, split: Split) -> tuple[int, int]:
    if weight.shared_by == "experts":
        return 0, -(-weight.elements // (plan.ep * plan.etp))
    return weight.on_rank(split), 0
