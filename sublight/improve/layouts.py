"""This file knows about the layouts that are worth trying: those of powers of two that hold the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sublight.engines import defaults
from sublight.models import Model
from sublight.models.latent import LatentAttention
from sublight.plan import Job, Serving, Traffic, Training
from sublight.predict.machine import Machine
from sublight.predict.validity import problems

MOST_STAGES = 16


def powers(limit: int) -> list[int]:
    """1, 2, 4, … up to limit.

    >>> powers(8), powers(6)
    ([1, 2, 4, 8], [1, 2, 4])
    """
    return [1 << k for k in range(limit.bit_length()) if 1 << k <= limit]


def serving_layouts(model: Model, where: Machine, traffic: Traffic, base: Serving) -> Iterator[Serving]:
    """Every valid plan of one kind of instance: tp within a domain, attention replicas and expert groups where there
    are experts, stages only where one domain does not hold the model; replicas fill the GPUs.

    Plans that hold less than one request's cache are left out, as all that `problems` names.
    """
    gpus, domain = where.cluster.ranks, where.cluster.domain
    experts = has_experts(model)
    found = [plan for plan in _instances(base, gpus, domain, experts, stages=1)
             if not problems(model, plan, where, traffic)]
    if not found:
        stages = powers(min(MOST_STAGES, gpus))[1:]
        found = [plan for pp in stages for plan in _instances(base, gpus, domain, experts, pp)
                 if not problems(model, plan, where, traffic)]
    yield from found


def _instances(base: Serving, gpus: int, domain: int, experts: bool, stages: int) -> Iterator[Serving]:
    for tp in powers(min(domain, gpus // stages)):
        for dp in powers(gpus // (stages * tp)) if experts else [1]:
            ranks = tp * dp
            if gpus % (ranks * stages):
                continue
            for ep in sorted({1, ranks}) if experts else [1]:
                if dp > 1 and ep == 1:           # engines share experts among attention replicas by expert
                    continue
                yield replace(base, tp=tp, dp=dp, ep=ep, pp=stages, replicas=gpus // (ranks * stages))


def filled(plan: Serving, model: Model, where: Machine) -> Serving:
    """The plan with the engine's own token budget, sequences and share of the memory where it names none, so that what
    is predicted is what its launch command starts."""
    latent = any(isinstance(layer.attention, LatentAttention) for layer, _ in model.kinds)
    return defaults(plan, memory_bytes=where.device.memory_bytes, device=where.device.title, latent=latent)


def has_experts(model: Model) -> bool:
    """Whether any layer routes its tokens."""
    return model.parameters().total_by_part["experts"] > 0


def training_layouts(model: Model, where: Machine, job: Job, base: Training) -> Iterator[Training]:
    """Every valid plan: tp within a node, stages, expert groups, interleaving, micro-batches, recompute as little as
    memory allows."""
    gpus, node = where.cluster.ranks, where.cluster.gpus_per_node
    experts = has_experts(model)
    for tp in powers(min(node, gpus)):
        for pp in powers(min(MOST_STAGES, gpus // tp, len(model.layers))):
            if gpus % (tp * pp):
                continue
            dp = gpus // (tp * pp * base.cp)
            if dp < 1 or job.gbs % dp:
                continue
            for ep in [ep for ep in powers(dp * base.cp * tp) if ep == 1 or ep >= 4] if experts else [1]:
                for vpp in (1, 2, 4) if pp > 1 else (1,):
                    for mbs in (1, 2, 4):
                        plan = replace(base, tp=tp, pp=pp, dp=dp, ep=ep, vpp=vpp, mbs=mbs,
                                       schedule="interleaved" if vpp > 1 else "1f1b", sequence_parallel=tp > 1)
                        yield from _least_recompute(model, where, job, plan)


def _least_recompute(model: Model, where: Machine, job: Job, plan: Training) -> Iterator[Training]:
    for recompute in ("none", "selective", "full"):
        tried = replace(plan, recompute=recompute)
        if not problems(model, tried, where, job):
            yield tried
            return
