"""This file knows about launch commands as input: the plan and workload that they and the options make."""

from __future__ import annotations

import argparse
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

    from sublight.cli.predict import recast_model, traffic_of
    from sublight.cluster import parse
    from sublight.engines import defaults
    from sublight.engines import parse as parse_command
    from sublight.errors import InputError
    from sublight.improve.layouts import has_experts
    from sublight.plan import Job, Training
    from sublight.predict.machine import Machine

    launch = parse_command(options.model)
    if options.gpus is None:
        raise InputError("the command does not say which GPUs; add --gpus, as 8xH200")
    if launch.model is None:
        raise InputError("the command names no model that we can read; predict MODEL with options instead")
    cluster, model = parse(options.gpus), recast_model(launch.model, options.weights)
    given = {f.name: getattr(options, f.name) for f in fields(launch.plan)
             if getattr(options, f.name, None) is not None}
    plan = replace(launch.plan, **given)
    notes = (*launch.notes, *(f"{flag} is not understood, and not counted" for flag, _ in launch.unknown))
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
        where = Machine(cluster, launch.engine, launch.version, tables=not options.no_tables)
        if plan.dp > 1 and not has_experts(model):
            plan = replace(plan, dp=1, replicas=plan.replicas * plan.dp)
            notes += ("without experts, data parallel ranks are replicas",)
        plan = defaults(plan, memory_bytes=where.device.memory_bytes, device=where.device.title)
    return model, plan, workload, where, notes
