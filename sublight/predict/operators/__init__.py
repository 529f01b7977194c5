"""Operator times: bound × learned efficiency, by family; measured tables where they are installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from sublight import ops
from sublight.bound import bound
from sublight.ops.op import Op
from sublight.predict.machine import Machine
from sublight.predict.optime import OpTime, combined

__all__ = ["FAMILIES", "op_time"]

# Which file knows the time of which operators: each has `time(op, where) -> OpTime`.
FAMILIES: tuple[tuple[str, tuple[type[Op], ...]], ...] = (
    ("gemm", (ops.Gemm, ops.ScaledGemm)),
    ("small", (ops.Normalisation, ops.Elementwise, ops.Gather, ops.Rotary, ops.CacheWrite, ops.Reduction, ops.Softmax,
               ops.CrossEntropy, ops.NegativeLogLikelihood, ops.Routing, ops.Permute, ops.OptimizerStep)),
    ("collective", (ops.Communication,)),
    ("attention", (ops.Attention,)),                                # latent attention too
    ("index", (ops.IndexScores,)),
    ("experts", (ops.Experts, ops.GroupedGemm)),
    ("recurrent", (ops.Recurrence, ops.ShortConvolution)),
)
KEPT = 200_000                           # times that a machine remembers, at most

GENERIC_FIXED = 3e-6
GENERIC_EFFICIENCY = 0.75


def op_time(op: Op, where: Machine) -> OpTime:
    """What one call of an operator should take on a machine. Raises InputError where the device's limits do not know
    its number format."""
    known = where.memo.get(op)
    if known is None:
        if len(where.memo) > KEPT:
            where.memo.clear()
        known = where.memo[op] = _family(type(op))(op, where)
    return known


@cache
def _family(kind: type[Op]) -> Callable[[Op, Machine], OpTime]:
    for name, kinds in FAMILIES:
        if kind in kinds:
            timer: Callable[[Op, Machine], OpTime] = import_module(f"{__name__}.{name}").time
            return timer
    return generic


def generic(op: Op, where: Machine) -> OpTime:
    """Where no family has constants: a fixed part, and a share of every peak."""
    least = bound(op.work(), where.device.limits)
    terms: dict[str, float] = {}
    for name, seconds in (least.terms if least else {}).items():
        rate = name.split()[0] if name != "link" else "nvlink"
        terms[rate] = terms.get(rate, 0.0) + seconds / GENERIC_EFFICIENCY
    return combined(terms, where, fixed=GENERIC_FIXED, spread=0.6, basis="judgement",
                    least=least.seconds if least else 0.0)
