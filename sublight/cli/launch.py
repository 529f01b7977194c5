"""This file knows about launch commands as input: the plan and workload that they and the options make."""

from __future__ import annotations

import argparse
from typing import Any


def is_command(text: str) -> bool:
    """A launch command has words; a model's name has none.

    >>> is_command("vllm serve meta-llama/Llama-3.1-8B -tp 8"), is_command("meta-llama/Llama-3.1-8B")
    (True, False)
    """
    return len(text.split()) > 1


def from_command(options: argparse.Namespace) -> tuple[Any, Any, Any, Any, tuple[str, ...]]:
    """As cli.predict.asked. Options that are given win over the command's flags."""
    from dataclasses import fields, replace

    from sublight.cli.predict import traffic_of
    from sublight.cluster import parse
    from sublight.engines import parse as parse_command
    from sublight.errors import InputError
    from sublight.models import find
    from sublight.plan import Job, Training
    from sublight.predict.machine import Machine
    from sublight.predict.validity import problems

    launch = parse_command(options.model)
    if options.gpus is None:
        raise InputError("the command does not say which GPUs; add --gpus, as 8xH200")
    if launch.model is None:
        raise InputError("the command names no model that we can read; predict MODEL with options instead")
    cluster, model = parse(options.gpus), find(launch.model)
    given = {f.name: getattr(options, f.name) for f in fields(launch.plan)
             if getattr(options, f.name, None) is not None}
    plan = replace(launch.plan, **given)
    unknown = tuple(f"flag not understood, and not counted: {flag.split('=')[0].split()[0]}" for flag in launch.unknown)
    if isinstance(plan, Training):
        job = launch.job or Job(options.seq or 0, options.gbs or 0)
        where = Machine(cluster, "torch", tables=not options.no_tables)
        wrong = problems(model, plan, where, job)
        if wrong:
            raise InputError("; ".join(wrong))
        return model, plan, job, where, unknown
    if options.isl is None or options.osl is None:
        raise InputError("predict needs --isl and --osl: a launch command does not say what is asked of it")
    where = Machine(cluster, launch.engine, launch.version, tables=not options.no_tables)
    if cluster.ranks % plan.gpus == 0 and options.replicas is None and plan.replicas == 1:
        unknown += (() if cluster.ranks == plan.gpus else
                    (f"the command takes {plan.gpus} of {cluster.ranks} GPUs",))
    traffic = traffic_of(options)
    wrong = problems(model, plan, where, traffic)
    if wrong:
        raise InputError("; ".join(wrong))
    return model, plan, traffic, where, unknown
