"""This file knows about the typical steps of serving: the prefill of a prompt, a decode step of the mean batch."""

from __future__ import annotations

from dataclasses import replace

from sublight.models import Batch, Model
from sublight.plan import Disaggregated, Serving, Traffic
from sublight.predict.machine import Machine
from sublight.predict.memory import kv_tokens
from sublight.predict.serving.closed_form import closed_form
from sublight.predict.serving.host import engine, rules
from sublight.predict.serving.pace import exposed, pace, split
from sublight.predict.step import StepTime, step_time


def typical_steps(
    model: Model, plan: Serving | Disaggregated, traffic: Traffic, where: Machine,
) -> dict[str, StepTime]:
    """"prefill": one prompt, or as much of it as a step takes; "decode": the mean batch in the middle of its answers.

    Operators of one rank of the first stage, with what the host adds. Constants of catalog/serving that were fitted end
    to end are not in them.
    """
    if isinstance(plan, Disaggregated):
        one = replace(traffic, concurrency=_at_once(traffic, plan.decode_workers * plan.decode.replicas))
        return {"prefill": prompt_step(model, plan.prefill, traffic, where),
                "decode": _decode(model, plan.decode, one, where)}
    one = (replace(traffic, rate=traffic.rate / plan.replicas) if traffic.rate is not None
           else replace(traffic, concurrency=_at_once(traffic, plan.replicas)))
    return {"prefill": prompt_step(model, plan, traffic, where), "decode": _decode(model, plan, one, where)}


def _at_once(traffic: Traffic, workers: int) -> int:
    return max(1, -(-(traffic.concurrency or 1) // workers))


def prompt_step(model: Model, plan: Serving, traffic: Traffic, where: Machine) -> StepTime:
    """The prefill of one prompt, or of as much of it as a step takes."""
    limits, host = rules(plan), engine(plan.engine).host
    hit = int(traffic.isl * traffic.prefix_hit)
    new = max(1, traffic.isl - hit)
    tokens = min(new, limits.token_budget) if limits.chunked else new
    step = step_time(model, (Batch(1, tokens, hit),), split(plan), where)
    return replace(step, host=(host.step + host.prompt) / where.factor("fixed") + exposed(step, plan, where))


def _decode(model: Model, plan: Serving, traffic: Traffic, where: Machine) -> StepTime:
    host = engine(plan.engine).host
    room = kv_tokens(model, plan, where) * plan.dp
    means = closed_form(pace(model, plan, where, host), rules(plan), traffic, kv_tokens=room)
    each = max(1, round(means.b / plan.dp))
    batch = Batch(each, 1 + plan.drafts, max(1, round(means.length)), decode=True)
    step = step_time(model, (batch,), split(plan), where, drafts=plan.drafts)
    return replace(step, host=(host.step + host.sequence * each) / where.factor("fixed")
                   + exposed(step, plan, where))
