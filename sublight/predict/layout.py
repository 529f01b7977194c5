"""This file knows about the layout that is taken where none was named: the fewest ranks that hold the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sublight.errors import InputError
from sublight.models import Model, problems
from sublight.plan import Serving
from sublight.predict.machine import Machine
from sublight.predict.memory import serving_memory, splits

ROOM_FOR_CACHE = 0.25                    # of a GPU's memory: judgement; less than that starves most traffic


def usual(model: Model, where: Machine, plan: Serving) -> Serving:
    """`plan` with the smallest tp that divides the model and leaves a quarter of the memory to the cache, and as many
    replicas as the GPUs allow; where none leaves so much, the largest tp that leaves anything.

    Raises InputError where no tp within one NVLink domain holds it.
    """
    tight: Serving | None = None
    for tried in _layouts(model, where, plan):
        ledger = serving_memory(model, tried, where)
        if ledger.parts["KV cache"] >= ROOM_FOR_CACHE * where.device.memory_bytes:
            return tried
        tight = tried if ledger.fits and ledger.parts["KV cache"] else tight
    if tight is not None:
        return tight
    raise InputError(f"{model.name} ({model.weight_bytes / 2**30:,.0f} GiB of weights) does not fit "
                     f"{where.cluster.ranks} x {where.device.title} with tp up to "
                     f"{min(where.cluster.domain, where.cluster.ranks)}; say --pp, --dp and --ep, or more GPUs")


def _layouts(model: Model, where: Machine, plan: Serving) -> Iterator[Serving]:
    """Those of tp = 1, 2, 4 … that fill the GPUs and divide the model."""
    gpus, tp = where.cluster.ranks, 1
    while tp <= where.cluster.domain:
        tried = replace(plan, tp=tp, replicas=1)
        if gpus % tried.gpus == 0 and tp * plan.dp % plan.ep == 0 and not problems(model, splits(tried)[0]):
            yield replace(tried, replicas=gpus // tried.gpus)
        tp *= 2
