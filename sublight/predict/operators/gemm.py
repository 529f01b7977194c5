"""This file knows about the time of dense matrix products: bf16, fp8, fp4, int8, and weights alone in 8 or 4 bits.

The form is tiles.py's, its constants catalog/operators/dense.toml's; measured tables correct it where they are there.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from math import hypot

from sublight import ops
from sublight.bound import bound
from sublight.device import Limits
from sublight.errors import InputError
from sublight.ops.op import Op, matrix_unit
from sublight.predict.machine import Machine
from sublight.predict.operators.constants import SMALL, SPREAD, Dense, batched, dense
from sublight.predict.operators.curves import SPREAD_BETWEEN, SPREAD_EXACT, Curves, curves
from sublight.predict.operators.tiles import Product, parts
from sublight.predict.optime import OpTime, combined, mixed_shares
from sublight.work import BYTES

NARROW = {"fp8": "int8_weights", "fp4": "int4_weights", "int4": "int4_weights", "int8": "int8_weights"}
# Formats of A and B that were measured, and from how many elements for a byte of B's scales on.
MEASURED = {("bf16", "bf16"): 1, ("fp16", "fp16"): 1, ("fp8", "fp8"): 1024, ("fp4", "fp4"): 16, ("int8", "int8"): 1,
            ("bf16", "int4"): 32, ("bf16", "int8"): 1}
WIDE = ("bf16", "fp16", "tf32", "fp32", "fp64")


@cache
def _fused() -> dict[str, tuple[str, ...]]:
    """Engine -> number formats whose activations are quantised by the kernel before the product."""
    text = resources.files("sublight.catalog").joinpath("operators/engines.toml").read_text("utf-8")
    return {engine: tuple(row["fused"]) for engine, row in tomllib.loads(text).items()}


def kind(op: ops.Gemm | ops.ScaledGemm, limits: Limits) -> tuple[str, str, str]:
    """(form of constants.py, unit, number format that is multiplied)."""
    math = getattr(op, "math", None)
    a, b = ((math or form) if form == "fp32" else form for form in (op.a, op.b))
    unit, form = matrix_unit(a, b)
    if limits.flops_per_second(unit, form) is None and form in NARROW:      # weights only, as engines run them there
        return NARROW[b], "tensor", "bf16"
    if form in WIDE:
        return NARROW.get(b, "bf16"), unit, form
    if form == "fp4":
        return "nvfp4", unit, form
    if form == "fp8":
        return ("fp8" if isinstance(op, ops.Gemm) else "fp8_block"), unit, form
    return "int8", unit, form


def _was_measured(a: str, b: str, block: int) -> bool:
    least = MEASURED.get((a, b))
    return least is not None and (not block or block >= least)


def time(op: Op, where: Machine) -> OpTime:
    """Of a Gemm or ScaledGemm. Raises InputError where the device cannot multiply its number formats."""
    assert isinstance(op, ops.Gemm | ops.ScaledGemm)
    found = single(op, where)
    if getattr(op, "batch", 1) == 1:
        return found
    more = where.memo.get("batched")
    if more is None:
        more = where.memo["batched"] = batched(where.device, where.library)
    body, fixed = found.seconds * more.slower, more.fixed / where.factor("fixed")
    return OpTime(body + fixed, mixed_shares([(body, found.shares), (fixed, {"fixed": 1.0})]), found.spread,
                  found.basis, found.least)


def single(op: ops.Gemm | ops.ScaledGemm, where: Machine) -> OpTime:
    """As if the products of a batch were more tiles of one."""
    limits = where.device.limits
    form, unit, multiplied = kind(op, limits)
    rate, memory = limits.flops_per_second(unit, multiplied), limits.memory_bytes_per_second
    if rate is None or memory is None:
        raise InputError(f"the catalog has no {unit} rate in {multiplied}, or no memory rate, for {where.device.key}; "
                         "name another device or number format, or give a device file with that rate")
    work = op.work()
    block = getattr(op, "b_block", 0)
    product = Product(op.m, op.n, op.k, getattr(op, "batch", 1), BYTES[op.a],
                      BYTES[op.b] + (1 / block if block else 0.0), float(work.bytes_total), limits.sms, rate, memory)
    constants, table = _known(form, where)
    least = bound(work, limits)
    ratio, spread, basis = _measured(table, product, constants)
    if not _was_measured(op.a, op.b, block) or (form in NARROW.values() and op.a not in WIDE):
        spread, basis = hypot(spread, SPREAD["format"]), "transfer"
    return _timed(product, constants, where, unit, ratio, spread, basis, least.seconds if least else 0.0)


def _known(form: str, where: Machine) -> tuple[Dense, Curves | None]:
    """Constants and curves of a number format on a machine."""
    key = ("dense", form)
    if key not in where.memo:
        constants = dense(where.device, where.library, form)
        where.memo[key] = constants, (curves(constants, where.device.key) if where.tables else None)
    found: tuple[Dense, Curves | None] = where.memo[key]
    return found


def _measured(table: Curves | None, product: Product, constants: Dense) -> tuple[float, float, str]:
    """(ratio, spread, basis)."""
    if table is not None and product.batch == 1 and product.m > 0:
        ratio, exact = table.ratio(product.m, product.n, product.k)
        spread = SPREAD_EXACT if exact else SPREAD_BETWEEN
        if constants.basis == "transfer":                        # another library's table of this device
            return ratio, hypot(spread, SPREAD["library"]), "transfer"
        return ratio, spread, "table"
    return 1.0, constants.spread_small if product.m <= SMALL else constants.spread_large, constants.basis


def _timed(
    product: Product, constants: Dense, where: Machine, unit: str, ratio: float, spread: float, basis: str,
    least: float,
) -> OpTime:
    found, tiled = parts(constants.tiled, product), constants.tiled
    terms = {"tensor": found.tensor, "vector": found.on_chip, "memory": found.memory} if unit == "tensor" else {
        "vector": found.tensor + found.on_chip, "memory": found.memory}
    body = combined(terms, where, fixed=found.fixed, p=tiled.p, ratio=ratio, spread=spread, basis=basis, least=least)
    if not tiled.quantise_fixed + tiled.quantise or constants.form in _fused().get(where.library, ()):
        return body
    rows = product.m * product.batch
    moved = rows * (3 * product.k + tiled.quantise_row) * tiled.quantise / product.bytes_per_second
    before = combined({"memory": moved}, where, fixed=tiled.quantise_fixed, ratio=ratio, spread=spread, basis=basis)
    shares = mixed_shares([(body.seconds, body.shares), (before.seconds, before.shares)])
    return OpTime(body.seconds + before.seconds, shares, spread, basis, least)
