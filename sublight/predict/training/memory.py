"""This file knows about the memory of one GPU in training: what a stage holds, by part, at its peak.

    tokens    of a micro-batch on this rank: mbs · seq / cp

The peak is the worse of two moments: at the loss (logits), or in the backward pass of the last layer (gradients of its
widest block, and the layer that is computed again). In both, the activations of all micro-batches in flight are there.
What a layer saves: saved.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sublight.errors import InputError
from sublight.models import Layer, Model, Split
from sublight.models.block import Weight
from sublight.models.feedforward import Dense, Mixture
from sublight.models.grouped import GroupedAttention
from sublight.models.latent import LatentAttention
from sublight.plan import Job, Training
from sublight.predict.machine import Machine
from sublight.predict.memory import GIB, Ledger, usable
from sublight.predict.training.saved import Kept, saved_bytes

# Bytes of a parameter: as it is held, its gradient, and master, first and second moment. Sources: Megatron-LM,
# docs/source/api-guide/dist_optimizer.md (2 + 4 + 12 with fp32 gradients); torchtitan and llm-foundry hold parameters
# in fp32 and let FSDP cast what it gathers (4 + 4 + 8).
MEGATRON, FSDP = (2.0, 4.0, 12.0), (4.0, 4.0, 8.0)
STATES = {"megatron": MEGATRON, "torchtitan": FSDP, "llm-foundry": FSDP}
# Bytes of a logit at the loss: bf16, its gradient written over it (Transformer Engine's fused cross entropy); PyTorch's
# own casts it to fp32 and keeps that, the log-softmax and the gradient.
LOGIT = {"megatron": 2.0, "torchtitan": 14.0, "llm-foundry": 14.0}
EIGHT_BITS = {"fp8": 2.0, "fp8_block": 2.0, "mxfp8": 2.0 + 2 / 32}       # both orders of a weight, with their scales
RUNTIME = int(2.0 * GIB)                 # CUDA, NCCL's communicators, cuBLAS: judgement (1 to 3 GiB)
# Reserved over allocated, less 1, of what comes and goes: judgement. Megatron's reports have 2 to 4 %; torchtitan's
# eager blocks of many sizes leave more holes.
ALLOCATOR = {"megatron": 0.04}
OTHERS = 0.15


@dataclass(frozen=True)
class Stage:
    """What one rank of a pipeline stage holds."""

    kinds: tuple[tuple[Layer, int], ...]     # different layers of each of its chunks, and how many there are
    first: bool
    last: bool


def training_memory(model: Model, plan: Training, job: Job, where: Machine, *, stage: int = 0) -> Ledger:
    """What one GPU of a stage holds at its peak.

    Parts that PyTorch's allocator gives out: "parameters", "gradients", "optimizer", "activations" (saved, of all
    micro-batches in flight), "loss" (logits and what goes with them), "working tensors" (gradients in flight, gathered
    tensors, stand-ins of weight gradients). Beside them: "allocator" (held, not given out), "runtime" (CUDA, NCCL).

    extra of a plan: ("attention", "unfused") and ("dropout", "yes") as papers of 2022 train, ("recompute_modules",
    "core_attn,moe_act,…") of "selective", ("moments", "bf16"), ("gradients", "bf16"), ("offloaded_layers", "20") of a
    stage, whose activations wait in the CPU's memory.
    """
    held = held_layers(model, plan, stage)
    parameters, gradients, optimizer = _states(model, plan, held)
    tokens = plan.mbs * job.seq // plan.cp
    loss, working = _around(model, plan, job, held, tokens)
    parts = {"parameters": parameters, "gradients": gradients, "optimizer": optimizer,
             "activations": _activations(model, plan, job, held, stage, tokens), "loss": loss,
             "working tensors": working}
    margin = ALLOCATOR.get(plan.framework, OTHERS)
    parts["allocator"] = int(margin * (sum(parts.values()) - parameters - gradients - optimizer))
    parts["runtime"] = RUNTIME
    return Ledger(parts, usable(where))


def allocated(ledger: Ledger) -> int:
    """What torch.cuda.max_memory_allocated says: without the allocator's own and what lies outside of it."""
    return sum(size for part, size in ledger.parts.items() if part not in ("allocator", "runtime"))


def peak(model: Model, plan: Training, job: Job, where: Machine) -> Ledger:
    """Of the stage that allocates most."""
    return max((training_memory(model, plan, job, where, stage=stage) for stage in range(plan.pp)), key=allocated)


def held_layers(model: Model, plan: Training, stage: int) -> Stage:
    """Layers of a stage: its chunk of each round of vpp, split as models.Split does."""
    count, chunks = len(model.layers), plan.pp * plan.vpp
    if not 0 <= stage < plan.pp:
        raise InputError(f"stage {stage} of {plan.pp}: stages count from 0")
    mine = [round_ * plan.pp + stage for round_ in range(plan.vpp)]
    if plan.schedule == "dualpipe":      # each rank holds a stage of both directions (DeepSeek-V3 report, 3.2.1)
        mine.append(plan.pp - 1 - stage)
    if chunks > count:
        raise InputError(f"pp x vpp = {plan.pp} x {plan.vpp} chunks are more than the {count} layers")
    kinds = (kind for chunk in mine for kind in model.stage_kinds(Split(pp=chunks, stage=chunk)))
    return Stage(tuple(kinds), stage == 0, stage == plan.pp - 1)


def in_flight(plan: Training, job: Job, stage: int) -> float:
    """Micro-batches whose activations a stage holds at its peak, in units of all its layers."""
    count = max(1, job.gbs // (plan.mbs * plan.dp))
    if plan.schedule == "gpipe":
        return count
    if plan.schedule == "dualpipe":
        return min(count, plan.pp + 1) / 2           # of the two halves that it holds
    if plan.vpp > 1:                                 # chunks that are forward before the first backward, and that one
        return min(count * plan.vpp, 2 * (plan.pp - stage - 1) + (plan.vpp - 1) * plan.pp + 1) / plan.vpp
    return min(count, plan.pp - stage)


def _states(model: Model, plan: Training, held: Stage) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and optimizer states."""
    extra = dict(plan.extra)
    states = STATES.get(plan.framework, MEGATRON)
    weight = max(states[0], EIGHT_BITS.get(plan.precision, 2.0))
    gradient = 2.0 if extra.get("gradients") == "bf16" else states[1]
    kept = states[2] - (4.0 if extra.get("moments") == "bf16" else 0.0)
    sums = [0.0, 0.0, 0.0]
    for count, copies in _counts(model, plan, held):
        ways = [copies if plan.zero >= least else 1 for least in (3, 2, 1)]
        for i, size in enumerate((weight, gradient, kept)):
            sums[i] += count * size / ways[i]
    return int(sums[0]), int(sums[1]), int(sums[2])


def _counts(model: Model, plan: Training, held: Stage) -> tuple[tuple[int, int], tuple[int, int]]:
    """Parameters of a rank and ranks that hold the same: of what is dense, of experts."""
    dense = experts = 0
    for weight, times in _weights(model, held):
        if weight.shared_by == "experts":
            experts += times * _share(weight, plan)
        else:
            dense += times * _share(weight, plan)
    return (dense, plan.dp * plan.cp), (experts, max(1, plan.dp * plan.cp * plan.tp // (plan.ep * plan.etp)))


def _weights(model: Model, held: Stage) -> Iterator[tuple[Weight, int]]:
    for layer, count in held.kinds:
        yield from ((weight, count) for weight in layer.weights(model.width))
    if held.first:
        yield Weight("embedding", "embedding", model.vocabulary * model.width), 1
        if model.positions:
            yield Weight("embedding", "positions", model.positions * model.width, shared_by="none"), 1
    if held.last:
        yield Weight("norms", "norm", model.width, shared_by="none", multiplied=False), 1
        if not (model.tied and held.first):
            yield Weight("head", "lm_head", model.vocabulary * model.width), 1
        yield from ((weight, 1) for weight in model.draft_weights())


def _share(weight: Weight, plan: Training) -> int:
    ways = {"none": 1, "heads": plan.tp, "experts": plan.ep * plan.etp}[weight.shared_by]
    return -(-weight.elements // (ways if weight.limit is None else min(ways, weight.limit)))


def _activations(model: Model, plan: Training, job: Job, held: Stage, stage: int, tokens: int) -> int:
    """Saved for the backward pass, of the micro-batches in flight."""
    kept = Kept.of(plan, job)
    each = sum(count * saved_bytes(layer, model.width, kept) for layer, count in held.kinds)
    total = tokens * in_flight(plan, job, stage) * each * _on_gpu(plan, held)
    if held.last:
        total += tokens * sum(saved_bytes(layer, model.width, kept) for layer in model.drafts)
    return int(total)


def _on_gpu(plan: Training, held: Stage) -> float:
    """Share of a stage's layers whose activations stay on the GPU while others wait in the CPU's memory; two are on
    their way."""
    away, count = int(dict(plan.extra).get("offloaded_layers", 0)), sum(count for _, count in held.kinds)
    return max(0, count - max(0, away - 2)) / count if away else 1.0


def _around(model: Model, plan: Training, job: Job, held: Stage, tokens: int) -> tuple[int, int]:
    """Bytes at the loss, and of tensors that come and go: the larger of the two moments of the peak counts."""
    always = _stand_ins(model, plan, held) + _gathered(model, plan, held)
    backward = tokens * (_in_backward(model, plan, held) + _again(model, plan, job, held))
    if not held.last:
        return 0, int(always + backward)
    vocabulary, width = -(-model.vocabulary // plan.tp), model.width
    sequence = plan.tp if plan.sequence_parallel else 1
    normed = 4.0 * tokens * width / sequence + (2.0 * tokens * width if sequence > 1 else 0.0)
    logits = LOGIT.get(plan.framework, 2.0) * tokens * vocabulary
    head = 2.0 * vocabulary * width if plan.framework == "megatron" else 0.0     # stand-in of the head's gradient
    loss = (1 + len(model.drafts)) * (logits + normed) + head
    return int(loss), int(always + max(0.0, backward - loss))


def _stand_ins(model: Model, plan: Training, held: Stage) -> float:
    """Weight gradients are added to fp32 ones where they are; autograd gets an empty bf16 tensor of each shape instead,
    which Transformer Engine keeps (module/base.py, get_dummy_wgrad)."""
    if plan.framework != "megatron":
        return 0.0
    shapes: dict[tuple[str, int], float] = {}
    for layer, _ in held.kinds:
        for block in layer.blocks():
            for weight in block.weights():
                if weight.multiplied and weight.part not in ("router", "norms"):
                    one = weight.elements // block.experts if weight.shared_by == "experts" and isinstance(
                        block, Mixture) else _share(weight, plan)
                    shapes[weight.name, one] = 2.0 * one
    return sum(shapes.values())


def _in_backward(model: Model, plan: Training, held: Stage) -> float:
    """Bytes a token of gradients of the widest block: its input's, its output's, and what lies between."""
    widest = max((_between(block, plan) for layer, _ in held.kinds for block in layer.blocks()), default=0.0)
    return widest + 2 * 2.0 * model.width


def _again(model: Model, plan: Training, job: Job, held: Stage) -> float:
    """Bytes a token of a layer that is computed again, beyond what it saved."""
    if plan.recompute == "none" or not held.kinds:
        return 0.0
    kept = Kept.of(plan, job)
    return max(saved_bytes(layer, model.width, kept.whole()) - saved_bytes(layer, model.width, kept)
               for layer, _ in held.kinds)


def _between(block: Any, plan: Training) -> float:
    if isinstance(block, Dense):
        return 2.0 * block.inner * (2 if block.is_gated else 1) / plan.tp
    if isinstance(block, Mixture):
        inner = block.inner * (2 if block.is_gated else 1) / plan.etp
        return 2.0 * block.top_k * plan.imbalance * (inner + (block.latent or block.width))
    if isinstance(block, LatentAttention):
        return 2.0 * block.heads * (2 * (block.nope + block.rope) + block.d_v) / plan.tp
    if isinstance(block, GroupedAttention):
        return 2.0 * (block.heads * block.d_qk + block.kv_heads * (block.d_qk + block.d_v)) / plan.tp
    return 0.0


def _gathered(model: Model, plan: Training, held: Stage) -> float:
    """What FSDP gathers: the layer that runs and the next one in 16 bits, and one layer's gradients."""
    if plan.zero < 3:
        return 0.0
    layer = max((sum(_share(weight, plan) for weight in one.weights(model.width)) for one, _ in held.kinds), default=0)
    table = model.vocabulary * model.width / plan.tp if held.first or held.last else 0.0
    return max(3 * 2.0 * layer, 2.0 * table + 2 * 2.0 * layer)
