"""This file knows about the cache of keys and values: how many tokens of it one attention replica can hold."""

from __future__ import annotations

from math import inf

from sublight.models import Model
from sublight.plan import Serving
from sublight.predict.machine import Machine
from sublight.predict.serving.pace import split

RESERVED_BYTES = 3 << 30                 # activations, graphs, library buffers: judgement


def kv_tokens(model: Model, plan: Serving, where: Machine, *, length: int, fraction: float) -> float:
    """Tokens of sequences of `length`; at least one sequence is taken to fit."""
    layout = split(plan)
    each = model.kv_bytes_per_token(layout, length=length) + model.state_bytes(layout) / length
    if each <= 0:
        return inf
    free = where.device.memory_bytes * fraction - model.bytes_on_rank(layout, drafts=plan.drafts > 0) - RESERVED_BYTES
    return max(free / each, float(length))
