"""Operator times: bound × learned efficiency, by family; measured tables where they are installed."""

from __future__ import annotations

from sublight.bound import bound
from sublight.ops.op import Op
from sublight.predict.machine import Machine
from sublight.predict.optime import OpTime, combined

__all__ = ["op_time"]

GENERIC_FIXED = 3e-6
GENERIC_EFFICIENCY = 0.75


def op_time(op: Op, where: Machine) -> OpTime:
    """What one call of an operator should take on a machine. Raises InputError where the device's limits do not know
    its number format."""
    return _generic(op, where)


def _generic(op: Op, where: Machine) -> OpTime:
    """Until a family has constants: a fixed part, and a share of every peak."""
    least = bound(op.work(), where.device.limits)
    terms: dict[str, float] = {}
    for name, seconds in (least.terms if least else {}).items():
        rate = name.split()[0] if name != "link" else "nvlink"
        terms[rate] = terms.get(rate, 0.0) + seconds / GENERIC_EFFICIENCY
    return combined(terms, where, fixed=GENERIC_FIXED, spread=0.6, basis="judgement",
                    least=least.seconds if least else 0.0)
