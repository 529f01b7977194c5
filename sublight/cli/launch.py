"""This file knows about launch commands as input: the plan and workload that they and the options make."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sublight.models import Model
    from sublight.plan import Plan, Workload
    from sublight.predict.machine import Machine


def is_command(text: str) -> bool:
    """A launch command has words; a model's name has none.

    >>> is_command("vllm serve meta-llama/Llama-3.1-8B -tp 8"), is_command("meta-llama/Llama-3.1-8B")
    (True, False)
    """
    return len(text.split()) > 1


def from_command(options: argparse.Namespace) -> tuple[Model, Plan, Workload, Machine, tuple[str, ...]]:
    """As cli.predict.asked. Options that are given win over the command's flags."""
    from dataclasses import fields, replace

    from sublight.cli.predict import recast_model, refuse_other_kind, traffic_of, with_acceptance
    from sublight.cluster import parse
    from sublight.engines import parse as parse_command
    from sublight.errors import InputError
    from sublight.improve.layouts import filled, has_experts
    from sublight.models import recast
    from sublight.plan import Job, Training
    from sublight.predict.machine import Machine

    launch = parse_command(options.model)
    if options.gpus is None:
        raise InputError("the command does not say which GPUs; add --gpus, as 8xH200")
    if launch.model is None:
        raise InputError("the command names no model that we can read; predict MODEL with options instead")
    train = isinstance(launch.plan, Training)
    if options.train and not train:
        raise InputError(f"--train with a command of {launch.engine}, which serves")
    refuse_other_kind(options, train=train)
    if options.engine not in (None, launch.engine):
        raise InputError(f"--engine {options.engine} with a command of {launch.engine}; "
                         "predict MODEL with options instead")
    version = options.engine_version or launch.version
    weights, quantization = options.weights, _quantization(launch.unknown)
    cluster, model = parse(options.gpus), recast_model(launch.model, weights)
    if weights is None and quantization and not is_quantized(model):
        model = recast(model, attention="fp8", mlp="fp8", experts="fp8")
    given = {f.name: getattr(options, f.name) for f in fields(launch.plan)
             if getattr(options, f.name, None) is not None}
    plan = replace(launch.plan, version=version, **given)
    notes = (*launch.notes, *(_uncounted(flag, plan) for flag, _ in launch.unknown if flag != quantization))
    workload: Any
    if isinstance(plan, Training):
        job = launch.job
        seq, gbs = options.seq or (job.seq if job else None), options.gbs or (job.gbs if job else None)
        if seq is None or gbs is None:
            raise InputError("the command does not say the sequence length and the global batch; add --seq and --gbs")
        workload, where = Job(seq, gbs), Machine(cluster, "torch", tables=not options.no_tables)
    else:
        if options.isl is None or options.osl is None:
            raise InputError("predict needs --isl and --osl: a launch command does not say what is asked of it")
        workload = traffic_of(options)
        where = Machine(cluster, launch.engine, version, tables=not options.no_tables)
        if plan.dp > 1 and not has_experts(model):
            plan = replace(plan, dp=1, replicas=plan.replicas * plan.dp)
            notes += ("without experts, data parallel ranks are replicas",)
        plan, more = with_acceptance(plan) if options.acceptance is None else (plan, ())
        plan, notes = filled(plan, model, where), (*notes, *more)
    return model, plan, workload, where, notes


def _uncounted(flag: str, plan: Plan) -> str:
    """A flag that no field of the plan holds, or not all of it."""
    from sublight.plan import Serving

    if "spec" in flag and isinstance(plan, Serving) and plan.drafts:
        return f"{flag}: the number of drafts is counted, and nothing else of it"
    return f"{flag} is not understood, and not counted"


def _quantization(flags: Sequence[tuple[str, str]]) -> str | None:
    """The flag that asks vLLM or SGLang to multiply a 16-bit checkpoint in fp8, by tensor."""
    return next((flag for flag, value in flags if flag in ("--quantization", "-q") and value == "fp8"), None)


def is_quantized(model: Model) -> bool:
    """Whether the checkpoint itself holds a product in fewer than 16 bits: a flag then only says so again."""
    return any(weight.form.nbytes(1024) < 2048
               for weight, _ in model.weights() if weight.multiplied and weight.elements)
