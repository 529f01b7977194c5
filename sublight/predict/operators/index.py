"""This file knows about the time of an indexer: the scores of all keys, then the choice of the best.

    scores    fixed + tile·queries/SMs + p-norm(tensor, memory)
    choice    fixed + tile·queries/SMs + scores written and read again; nothing where no more keys are there than chosen

Constants: catalog/operators/index.toml, from DeepGEMM's mqa_logits and SGLang's fused top-k, measured alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sublight.bound import bound
from sublight.device import Limits
from sublight.errors import InputError
from sublight.ops.index import IndexScores
from sublight.ops.op import Op, matrix_unit
from sublight.predict.machine import Machine
from sublight.predict.operators.fitted import Fitted, fitted
from sublight.predict.optime import OpTime, combined, mixed_shares

DRAFTS = 8                               # queries of a sequence up to which a step is a decode


@dataclass(frozen=True, slots=True)
class Load:
    tensor: float                        # seconds at the peak
    memory: float
    scores: float                        # of fp32, written and read again, each query's by one SM's share of the rate
    blocks: float                        # queries over SMs
    least: float


def load(op: IndexScores, limits: Limits) -> Load:
    """Raises InputError where the device has no rate for the format."""
    unit, form = matrix_unit(op.form, op.form)
    peak = limits.flops_per_second(unit, form) or limits.flops_per_second(unit, "bf16")
    rate = limits.memory_bytes_per_second
    if peak is None or rate is None:
        raise InputError(f"index scores in {op.form}: expected a device with a known rate, got one without; add it to "
                         "catalog/devices.toml")
    work, least = op.work(), bound(op.work(), limits)
    tensor = 2 * op.heads * op.d * op.pairs / peak
    scores = 8 * op.pairs / rate * max(1.0, limits.sms / op.queries)     # a thread block chooses for one query
    return Load(tensor, work.bytes_total / rate, scores, op.queries / limits.sms,
                least.seconds if least else 0.0)


def terms(c: Mapping[str, float], x: Load) -> tuple[float, dict[str, float]]:
    return c["fixed"] + c["tile"] * x.blocks, {"tensor": x.tensor / c["tensor"], "memory": x.memory / c["memory"]}


def seconds(c: Mapping[str, float], x: Load) -> float:
    """Of the scores."""
    fixed, parts = terms(c, x)
    p = c["p"]
    body: float = (parts["tensor"] ** p + parts["memory"] ** p) ** (1 / p)
    return fixed + body


def choice_seconds(c: Mapping[str, float], x: Load) -> float:
    return c["fixed"] + c["tile"] * x.blocks + x.scores / c["scores"]


def is_decode(op: IndexScores) -> bool:
    """Few queries for the keys that they see: pairs over keys is how many queries a sequence has."""
    return op.pairs <= DRAFTS * op.keys and op.keys > op.queries


def time(op: Op, where: Machine) -> OpTime:
    assert isinstance(op, IndexScores)
    kind = "decode" if is_decode(op) else "prefill"
    scores = _constants((kind, "prefill"), where)
    x = load(op, where.device.limits)
    fixed, parts = terms(scores.values, x)
    first = combined(parts, where, fixed=fixed, p=scores.values["p"], spread=scores.spread, basis=scores.basis)
    if op.pairs <= op.queries * op.chosen:
        return OpTime(first.seconds, first.shares, scores.spread, scores.basis, x.least)
    c = _constants(("choice",), where)
    second = combined({"memory": x.scores / c.values["scores"]}, where,
                      fixed=c.values["fixed"] + c.values["tile"] * x.blocks, spread=c.spread, basis=c.basis)
    shares = mixed_shares(((first.seconds, first.shares), (second.seconds, second.shares)))
    return OpTime(first.seconds + second.seconds, shares, max(scores.spread, c.spread), scores.basis, x.least)


def _constants(kinds: tuple[str, ...], where: Machine) -> Fitted:
    found = fitted("index", kinds, where)
    if found is None:
        raise InputError("index scores: expected constants in catalog/operators/index.toml, got none; bench/"
                         "fit_recurrent.py writes them")
    return found
