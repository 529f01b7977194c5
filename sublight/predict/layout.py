"""This file knows about the layout that is taken where none was named: the fewest ranks that hold the model."""

from __future__ import annotations

from dataclasses import replace

from sublight.errors import InputError
from sublight.models import Model, problems
from sublight.plan import Serving
from sublight.predict.answer import split_of
from sublight.predict.machine import Machine

ROOM_FOR_CACHE = 0.25                    # of a GPU's memory: judgement; less than that starves most traffic


def usual(model: Model, where: Machine, plan: Serving) -> Serving:
    """`plan` with the smallest tp that divides the model and leaves a quarter of the memory to the cache, and as many
    replicas as the GPUs allow.

    Raises InputError where no tp within one NVLink domain holds it.
    """
    gpus, fraction = where.cluster.ranks, plan.memory_fraction or 0.9
    capacity = where.device.memory_bytes * fraction
    tp = 1
    while tp <= where.cluster.domain:
        ep = plan.ep if tp * plan.dp % plan.ep == 0 else 1
        tried = replace(plan, tp=tp, ep=ep)
        if gpus % (tp * plan.pp * plan.dp) == 0 and not problems(model, split_of(tried)):
            weights = max(model.bytes_on_rank(replace(split_of(tried), stage=stage)) for stage in {0, plan.pp - 1})
            if weights <= capacity - ROOM_FOR_CACHE * where.device.memory_bytes:
                return replace(tried, replicas=gpus // (tp * plan.pp * plan.dp))
        tp *= 2
    raise InputError(f"{model.name} ({model.weight_bytes / 2**30:,.0f} GiB of weights) does not fit {gpus} x "
                     f"{where.device.title} with tp up to {where.cluster.domain}; say --pp, --dp and --ep, or more GPUs")
