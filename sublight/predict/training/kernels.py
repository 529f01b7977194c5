"""This file knows about the times of training kernels: cuBLAS, Transformer Engine and FlashAttention at training sizes.

They are other kernels, at other sizes, than the serving engines' that predict.operators is fitted on, and each
framework runs its own; so a form with the physics of the size is kept here, and how far a framework is from it is
fitted end to end (catalog/training/constants.toml):

    seconds = fixed + ((operations / (rate · filled))^p + (bytes / memory rate)^p)^(1/p)

    filled   share of the SMs that the last wave of tiles leaves busy, of the best of three tile sizes
"""

from __future__ import annotations

from math import ceil

from sublight.bound import bound
from sublight.errors import InputError
from sublight.ops import Attention, Experts, Gemm, GroupedGemm, ScaledGemm
from sublight.ops.op import Op
from sublight.predict.machine import Machine
from sublight.predict.optime import OpTime, combined

FIXED = 3e-6                             # seconds from one kernel to the next on a busy stream: judgement
SHARP = 2.0                              # p: judgement, near what single GEMMs of predict.operators have
# (rows, columns, rate of its main loop against the largest's): CUTLASS' usual tiles; rates are judgement
TILES = ((256, 128, 1.0), (128, 128, 0.92), (128, 64, 0.75))
SPREAD = 0.25


def kernel_time(op: Op, where: Machine) -> OpTime:
    """What one call takes at the catalog's rates, before a framework's constants. Raises InputError for a number format
    of which the device has no rate."""
    key = ("training kernel", op)
    if key not in where.memo:
        where.memo[key] = _time(op, where)
    known: OpTime = where.memo[key]
    return known


def _time(op: Op, where: Machine) -> OpTime:
    least = bound(op.work(), where.device.limits)
    if least is None:
        formats = ", ".join(sorted({form for _, form in op.work().flops}))
        raise InputError(f"{where.device.title} has no stated rate for {formats}; choose another precision")
    terms: dict[str, float] = {}
    for name, seconds in least.terms.items():
        rate = name.split()[0]
        terms[rate] = terms.get(rate, 0.0) + seconds
    if "tensor" in terms:
        terms["tensor"] /= filled(op, where.device.sms)
    return combined(terms, where, fixed=FIXED, p=SHARP, spread=SPREAD, basis="judgement", least=least.seconds)


def filled(op: Op, sms: int) -> float:
    """Share of the tensor rate that whole waves of tiles leave.

    >>> from sublight.ops import Gemm
    >>> round(filled(Gemm(m=4096, n=4096, k=4096), 132), 2), round(filled(Gemm(m=128, n=1024, k=4096), 132), 2)
    (0.97, 0.09)
    """
    match op:
        case Gemm(m=m, n=n, batch=batch):
            grids = [(m, n, batch)]
        case ScaledGemm(m=m, n=n):
            grids = [(m, n, 1)]
        case GroupedGemm(rows=rows, n=n, groups=groups):
            grids = [(ceil(rows / max(1, groups)), n, groups)]
        case Experts(tokens=tokens, top_k=top_k, experts_used=used, inner=inner, width=width, gated=gated):
            each = ceil(tokens * top_k / max(1, used))
            grids = [(each, inner * (2 if gated else 1), used), (each, width, used)]
        case Attention(q_tokens=q, heads=heads):
            return min(1.0, ceil(q / 128) * heads / sms)
        case _:
            return 1.0
    return min(max(_of_tile(grid, tile, sms) for tile in TILES) for grid in grids)


def _of_tile(grid: tuple[int, int, int], tile: tuple[int, int, float], sms: int) -> float:
    m, n, batch = grid
    rows, columns, rate = tile
    tiles = ceil(m / rows) * ceil(n / columns) * batch
    useful = m * n * batch / (tiles * rows * columns)
    return rate * useful * tiles / (ceil(tiles / sms) * sms)
