"""This file knows about the typical steps of serving: the prefill of a prompt, a decode step of the mean batch."""

from __future__ import annotations

from dataclasses import replace

from sublight.models import Batch, Model
from sublight.plan import Disaggregated, Serving, Traffic
from sublight.predict.machine import Machine
from sublight.predict.memory import kv_tokens
from sublight.predict.serving.closed_form import Means, closed_form
from sublight.predict.serving.host import engine, rules
from sublight.predict.serving.pace import Pace, exposed, pace, split
from sublight.predict.step import StepTime, step_time


def typical_steps(
    model: Model, plan: Serving | Disaggregated, traffic: Traffic, where: Machine,
) -> dict[str, StepTime]:
    """"prefill": one prompt, or as much of it as a step takes; "decode": the mean batch in the middle of its answers.

    Operators of one rank of the first stage, with what the host adds. Constants of catalog/serving that were fitted end
    to end are not in them.
    """
    if isinstance(plan, Disaggregated):
        first, second, workers = plan.prefill, plan.decode, plan.decode_workers * plan.decode.replicas
    else:
        first, second, workers = plan, plan, plan.replicas
    return {"prefill": prompt_step(model, first, traffic, where),
            "decode": _decode(model, second, share_of(traffic, workers), where)}


def share_of(traffic: Traffic, replicas: int) -> Traffic:
    """What one of the replicas sees."""
    if replicas == 1:
        return traffic
    count = None if traffic.requests is None else max(1, traffic.requests // replicas)
    if traffic.rate is not None:
        return replace(traffic, rate=traffic.rate / replicas, requests=count)
    return replace(traffic, concurrency=max(1, -(-(traffic.concurrency or 1) // replicas)), requests=count)


def prompt_step(model: Model, plan: Serving, traffic: Traffic, where: Machine) -> StepTime:
    """The prefill of one prompt, or of as much of it as a step takes."""
    limits, host = rules(plan), engine(plan.engine).host
    hit = int(traffic.isl * traffic.prefix_hit)
    new = max(1, traffic.isl - hit)
    tokens = min(new, limits.token_budget) if limits.chunked else new
    step = step_time(model, (Batch(1, tokens, hit),), split(plan), where)
    return replace(step, host=(host.step + host.prompt) / where.factor("fixed") + exposed(step, plan, where))


def _decode(model: Model, plan: Serving, traffic: Traffic, where: Machine) -> StepTime:
    room = kv_tokens(model, plan, where) * plan.dp
    steps = pace(model, plan, where, engine(plan.engine).host)
    return decode_step(model, plan, where, closed_form(steps, rules(plan), traffic, kv_tokens=room), steps)


def decode_step(model: Model, plan: Serving, where: Machine, means: Means, steps: Pace) -> StepTime:
    """One decode step of a run's mean batch, halfway through its answers."""
    each = max(1, round(means.b / plan.dp))
    batch = Batch(each, steps.rows, max(1, round(means.length)), decode=True)
    step = step_time(model, (batch,), split(plan), where, drafts=plan.drafts)
    return replace(step, host=steps.host.step + steps.host.sequence * each + exposed(step, plan, where))
