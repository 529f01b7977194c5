"""This file knows about the estimate of a training step: its time, rates and MFU, with an interval and a limiter."""

from __future__ import annotations

from dataclasses import replace
from math import exp

from sublight.errors import InputError
from sublight.models import Model
from sublight.plan import Job, Training
from sublight.predict.estimate import Estimate
from sublight.predict.machine import Machine
from sublight.predict.step import Row, StepTime
from sublight.predict.training.call import Call
from sublight.predict.training.constants import constants, tags
from sublight.predict.training.flops import model_flops
from sublight.predict.training.joined import Joined, factor, joined
from sublight.predict.training.layout import experts_of
from sublight.predict.training.passes import passes
from sublight.predict.training.spent import call_time, pieces
from sublight.result import Result

EIGHTY = 1.2816                          # standard deviations of an 80 % interval of a normal variable
PEAKS = {"fp8": "fp8", "fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "fp16": "fp16"}


def estimate(
    model: Model, plan: Training, job: Job, where: Machine, *, definition: str = "megatron",
    without: str | None = None,
) -> Estimate:
    """What one step of a training job takes.

    definition   which FLOPs "model FLOP/s/GPU" and "MFU" count: flops.DEFINITIONS. The peak of MFU is the dense one of
                 plan.precision at the device's maximum clock
    without      a model family: constants fitted without any row of it (bench/training_accuracy.py)

    Raises InputError where the plan does not divide the model or the job.
    """
    check(plan, job)
    known = constants(plan.framework, without)
    step = joined(pieces(model, plan, job, where), plan, known, tags(plan, where.device),
                  fixed=where.factor("fixed"))
    shares = step.shares
    flops, peak = model_flops(model, job.seq, definition), peak_of(plan, where)
    tokens = job.gbs * job.seq / plan.gpus
    wide = exp(EIGHTY * (known.spread_experts if experts_of(model)[0] else known.spread))
    rate = tokens / step.seconds
    results = {
        "step time": _result("step time", "s", step.seconds, wide),
        "tokens/s/GPU": _result("tokens/s/GPU", "tokens/s", rate, wide),
        "model FLOP/s/GPU": _result("model FLOP/s/GPU", "FLOP/s", rate * flops, wide),
    }
    if peak is not None:
        results["MFU"] = _result("MFU", "1", rate * flops / peak, wide)
    return Estimate(results, shares, _limiter(step, shares), known.basis,
                    _notes(step, plan, job, definition, peak))


def check(plan: Training, job: Job) -> None:
    """Raises InputError where the job does not fill the plan's replicas."""
    if job.seq < 1 or job.gbs < 1 or job.seq % plan.cp:
        raise InputError(f"seq = {job.seq} and gbs = {job.gbs}: expected 1 or more, and cp = {plan.cp} to divide seq")
    if job.gbs % (plan.mbs * plan.dp):
        raise InputError(f"gbs = {job.gbs} is not a multiple of mbs x dp = {plan.mbs} x {plan.dp}; choose one that is")


def peak_of(plan: Training, where: Machine) -> float | None:
    """Dense FLOP/s of the plan's precision at the maximum clock; None where the catalog has none."""
    return where.device.limits.flops_per_second("tensor", PEAKS.get(plan.precision, "bf16"))


def _result(name: str, unit: str, value: float, wide: float) -> Result:
    return Result(name, unit, (value,), low=value / wide, high=value * wide)


def _limiter(step: Joined, shares: dict[str, float]) -> str:
    """The largest rate, or what makes a third of the step and is none: waiting for stages, the host."""
    for name, words in (("waiting", "pipeline bubble"), ("host", "host")):
        if name in step.parts and step.parts[name].seconds > step.seconds / 3:
            return words
    return max(shares, key=lambda rate: shares[rate])


def _notes(step: Joined, plan: Training, job: Job, definition: str, peak: float | None) -> tuple[str, ...]:
    total = step.seconds
    parts = sorted(step.parts.items(), key=lambda item: -item[1].seconds)
    spent = ", ".join(f"{name} {100 * part.seconds / total:.0f} %" for name, part in parts
                      if part.seconds > 0.005 * total)
    count = job.gbs // (plan.mbs * plan.dp)
    peaks = "" if peak is None else f", of {peak / 1e12:,.0f} TFLOP/s dense {PEAKS.get(plan.precision, 'bf16')}"
    return (f"step: {spent}", f"{count} micro-batches on {plan.pp} stages, {plan.schedule}",
            f"model FLOPs: definition {definition}{peaks}")


def typical_step(model: Model, plan: Training, job: Job, where: Machine) -> StepTime:
    """One micro-batch, forward and backward, on the first stage: its operators, each with its time under the
    framework's constants; host: what the host adds to it."""
    known, met = constants(plan.framework), tags(plan, where.device)
    made = passes(model, plan, job, stage=0)
    rows = tuple(_row(way, call, plan, where, factor(call.kind, plan, known, met))
                 for way, calls in (("forward", made.forward), ("recompute", made.recomputed),
                                    ("backward", made.backward)) for call in calls)
    stages = joined(pieces(model, plan, job, where), plan, known, met, fixed=where.factor("fixed")).stages
    return StepTime(rows, max(0.0, stages[0].both - sum(row.seconds for row in rows)))


def _row(way: str, call: Call, plan: Training, where: Machine, factor: float) -> Row:
    time = call_time(call, plan, where)
    return Row(f"{way}.{call.label}", call.op, call.count, replace(time, seconds=time.seconds * factor))
