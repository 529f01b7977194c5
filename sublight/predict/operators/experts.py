"""This file knows about the time of experts: distinct experts' weights, rows in whole tiles, floors of the kernels.

    rows, used, tiles      of the busiest rank, from how tokens choose experts: routing.py

    fixed + local·experts of the rank + p-norm(memory, tensor)
    memory                 weights of the used experts, and rows between the products as they pass through memory
    tensor                 products of whole tiles, no less than one expert's on its share of the SMs

Constants, and tables that are rejected (doubtful.slow_format): catalog/operators/experts.toml, by bench/fit_experts.py.
For a rejected table stand in other versions of the library, else the next library's table and constants of the format.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from math import ceil, exp, hypot, log

from sublight.device import Limits, by_key
from sublight.errors import InputError
from sublight.ops.gemm import GroupedGemm
from sublight.ops.moe import Experts, Mixture
from sublight.ops.op import Op, matrix_unit
from sublight.predict.machine import Machine
from sublight.predict.operators import measured, silicon
from sublight.predict.operators.doubtful import MOST_STEPS
from sublight.predict.operators.fitted import ANOTHER, LIBRARIES, Fitted, fitted, nearest, shipped
from sublight.predict.operators.routing import Routing, Rows, rows
from sublight.predict.operators.surface import Curve
from sublight.predict.optime import OpTime, combined
from sublight.work import BYTES

COLUMNS = 128                            # of a tile


@dataclass(frozen=True, slots=True)
class Load:
    """What experts ask of a device: seconds at its peaks."""

    local: float                         # experts of the rank
    weights: float
    moved: float
    tensor: float
    narrow: float                        # the same on no more SMs than there are tiles
    used: float
    rows: float


def form_of(op: Experts) -> str:
    """The tables' name of the number formats, and of the layer where it has no gate."""
    a, w, block = op.activations, op.weights, op.weight_block
    if w == "fp8":
        name = "fp8" if block is None else "mxfp8" if block <= 32 else "fp8_block"
    elif w == "fp4":
        name = {"fp4": "nvfp4", "fp8": "w4a8_mxfp4_mxfp8"}.get(a, "w4a16_mxfp4")
    elif w == "int4":
        name = "int4_wo" if a != "fp8" else "w4afp8"
    else:
        name = {"fp16": "bfloat16", "bf16": "bfloat16"}.get(w, w)
    return name if op.gated else f"{name} nongated"


# The nearest format of another name, where one was not measured.
LIKE = {"mxfp8": "fp8_block", "w4a8_mxfp4_mxfp8": "nvfp4", "w4a16_mxfp4": "int4_wo", "int4_wo": "w4a16_mxfp4",
        "w4afp8": "int4_wo", "nvfp4": "w4a8_mxfp4_mxfp8", "fp8": "fp8_block", "fp8_block": "fp8"}


def kinds(op: Experts) -> tuple[str, ...]:
    name = form_of(op)
    plain = name.removesuffix(" nongated")
    like = LIKE.get(plain, "bfloat16")
    return tuple(dict.fromkeys((name, plain, like, "fp8_block", "bfloat16")))


def spread_of(op: Experts, routing: Routing) -> tuple[Mixture, Routing, float]:
    """(the layer, how its rows fall, tokens that stand for the imbalance that the op itself states)."""
    if op.whole is None:
        return Mixture(op.tokens, op.top_k, max(op.experts_used, op.top_k)), "balanced", float(op.tokens)
    whole = op.whole
    mean = whole.tokens * whole.top_k / whole.groups
    if op.tokens * op.top_k - 1 > 1.02 * mean:       # Split.imbalance says it
        return whole, "balanced", op.tokens * op.top_k / mean * whole.tokens
    return whole, routing, float(whole.tokens)


def load(op: Experts, limits: Limits, fall: Rows, local: int) -> Load:
    """Raises InputError where the device does not multiply the format."""
    peak, rate = _rates(op, limits)
    into = op.inner * (2 if op.gated else 1)
    each = op.width * (into + op.inner)
    stored = each * BYTES[op.weights] + (each / op.weight_block if op.weight_block else 0.0)
    narrow = BYTES[op.activations]
    moved = fall.rows * (op.width * (2 + 2 * narrow + 2) + 2 * into + op.inner * 2 * narrow)
    flops = 2 * fall.padded * each
    tiles = fall.tiles * (ceil(into / COLUMNS) + ceil(op.width / COLUMNS)) / 2
    return Load(local, fall.used * stored / rate, moved / rate, flops / peak,
                flops / peak * max(1.0, limits.sms / max(tiles, 1.0)), fall.used, fall.rows)


def _rates(op: Experts, limits: Limits) -> tuple[float, float]:
    """Products and bytes a second. Where the device does not multiply a narrow format, engines widen its weights."""
    unit, form = matrix_unit(op.activations, op.weights)
    peak = limits.flops_per_second(unit, form)
    if peak is None and BYTES[op.weights] <= 1:
        peak = limits.flops_per_second(unit, "bf16")
    if peak is None or limits.memory_bytes_per_second is None:
        raise InputError(f"experts in {form}: expected a device with a known rate of it, got one without; give another "
                         "number format or add the rate to catalog/devices.toml")
    return peak, limits.memory_bytes_per_second


def terms(c: Mapping[str, float], x: Load) -> tuple[float, dict[str, float]]:
    fixed = c["fixed"] + c["local"] * x.local + c["row"] * x.rows
    memory = x.weights / c["weights"] + x.moved / c["moved"]
    tensor = (x.tensor ** 4 + (x.narrow * c["narrow"]) ** 4) ** 0.25 / c["tensor"]
    return fixed, {"memory": memory, "tensor": tensor}


def seconds(c: Mapping[str, float], x: Load) -> float:
    fixed, parts = terms(c, x)
    p = c["p"]
    body: float = (parts["memory"] ** p + parts["tensor"] ** p) ** (1 / p)
    return fixed + body


def time(op: Op, where: Machine) -> OpTime:
    """Of the experts of one layer on the busiest rank, or of one grouped product."""
    if isinstance(op, GroupedGemm):
        return grouped(op, where)
    assert isinstance(op, Experts)
    whole, routing, tokens = spread_of(op, where.routing)
    fall = rows(tokens, whole.top_k, whole.experts, whole.groups, routing)
    key = (form_of(op), op.width, op.inner, whole.top_k, whole.experts, whole.groups, routing, op.weight_block)
    ours = where.memo.get(key)
    if ours is None:
        ours = where.memo[key] = _ours(op, where, whole, routing)
    constants, near = ours
    x = load(op, where.device.limits, fall, whole.experts // whole.groups)
    fixed, parts = terms(constants.values, x)
    least = _least(op, where.device.limits, fall)
    ratio, spread, basis = 1.0, constants.spread, constants.basis
    if near is not None:
        ratio, spread, basis = exp(near.curve.at(log(max(tokens, 1.0)))), near.spread, near.basis
    ratio = max(ratio, least / seconds(constants.values, x))
    return combined(parts, where, fixed=fixed, p=constants.values["p"], ratio=ratio, spread=spread, basis=basis,
                    least=least)


def _least(op: Experts, limits: Limits, fall: Rows) -> float:
    """The bound (a test holds it to op.work(), which is slower to ask) of the rows and used experts that the routing
    gives, as the time has them: skewed tokens use fewer experts than op.experts_used, which says what even ones do."""
    peak, rate = _rates(op, limits)
    each = op.width * op.inner * (3 if op.gated else 2)
    stored = fall.used * each
    token = fall.rows / op.top_k * op.width * BYTES[op.tokens_form]
    read = token + stored * BYTES[op.weights] + (stored / op.weight_block if op.weight_block else 0.0)
    charged = max(0.0, read - limits.l2_bytes) + max(0.0, token - limits.l2_bytes)
    return max(2 * fall.rows * each / peak, charged / rate)


def grouped(op: GroupedGemm, where: Machine) -> OpTime:
    """Half of a layer without a gate: the product alone, with the layer's constants."""
    like = Experts(op.rows, 1, op.groups, op.k, max(1, op.n // 2), op.a, op.b, op.b_block, gated=False,
                   whole=Mixture(op.rows, 1, op.groups))
    constants = fitted("experts", kinds(like), where)
    if constants is None:
        raise InputError("experts: catalog/operators/experts.toml has no constants; expected those of bench/"
                         "fit_experts.py")
    x = load(like, where.device.limits, rows(float(op.rows), 1, op.groups, 1, "balanced"), op.groups)
    fixed, parts = terms(constants.values, x)
    return combined(parts, where, fixed=fixed / 2, p=constants.values["p"], spread=constants.spread * 1.5,
                    basis="transfer")


# ---- tables --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Near:
    curve: Curve
    spread: float
    basis: str = "table"                 # "transfer": of another library


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a curve of the tables: what stays the same along the tokens."""

    form: str
    width: int
    inner: int                           # columns of an expert on a rank
    top_k: int
    experts: int
    groups: int
    routing: str

    def apart(self, other: Shape) -> float:
        """Distance of two shapes, of which the ratio of measured to modelled is likely the same."""
        def far(a: float, b: float) -> float:
            return abs(log(a / b))

        return ((self.form != other.form) * 3 + (self.routing != other.routing) * 0.5
                + far(self.width, other.width) * 0.5 + far(self.inner, other.inner) * 0.5
                + far(self.experts / self.groups, other.experts / other.groups) * 0.5
                + far(self.groups, other.groups) * 0.3 + far(self.top_k, other.top_k) * 0.5)


KEYS = ("moe_dtype", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size", "distribution",
        "kernel_source")
FARTHEST = 1.5                           # a curve beyond this says nothing: constants then


def _ours(op: Experts, where: Machine, whole: Mixture, routing: Routing) -> tuple[Fitted, Near | None]:
    form = form_of(op)
    other = stand_in(where.device.key, where.library, form)
    constants = (nearest("experts", kinds(op), where.device, other) if other else fitted("experts", kinds(op), where))
    if constants is None:
        raise InputError("experts: catalog/operators/experts.toml has no constants; expected those of bench/"
                         "fit_experts.py")
    if other:
        constants = replace(constants, spread=hypot(constants.spread, ANOTHER), basis="transfer")
    if not where.tables or op.whole is None or not silicon.available():
        return constants, None
    column = routing if isinstance(routing, str) and routing.startswith("power_law") else "balanced"
    shape = Shape(form, op.width, op.inner, whole.top_k, whole.experts, whole.groups, column)
    library, version = (other, None) if other else (where.library, where.version)
    near = _curve(where.device.key, library, version, shape, op.weight_block, where.experts)
    if near and other:
        near = replace(near, spread=hypot(near.spread, ANOTHER), basis="transfer")
    return constants, near


@cache
def rejected() -> Mapping[tuple[str, str, str, str], str]:
    """(device, library, version, format) of tables that are not used -> why."""
    text = resources.files("sublight.catalog").joinpath("operators/experts.toml").read_text("utf-8")
    return {(row["device"], row["library"], row["version"], row["kind"]): row["reason"]
            for row in tomllib.loads(text).get("rejected", ())}


@cache
def stand_in(device: str, library: str, form: str) -> str | None:
    """The library that stands in where all that was measured of a format is rejected; None where that is not so."""
    if shipped("experts", device, library, form) or not any(
            key[:2] == (device, library) and key[3] == form for key in rejected()):
        return None
    return next((other for other in LIBRARIES if shipped("experts", device, other, form)), None)


@lru_cache(maxsize=1024)
def _curve(device: str, library: str, version: str | None, wanted: Shape, block: int | None,
           kernel: str | None) -> Near | None:
    """Of the nearest shape: exact ones of any version go before near ones. Of a kernel that is asked for and that the
    library's tables lack, those of another library that runs it."""
    form = ("moe_dtype", wanted.form.removesuffix(" nongated"))
    best = (_nearest(device, library, version, wanted, kernel, (form, ("hidden_size", wanted.width)))
            or _nearest(device, library, version, wanted, kernel, (form,)))
    if best is None:
        return None
    apart, shape, points = best
    ratios = {tokens: value / model(shape, tokens, device, library, block) for tokens, value in points.items()}
    holds = 1.0 if apart == 0 else measured.HOLDS
    return Near(Curve.of({tokens: ratio ** holds for tokens, ratio in ratios.items()}),
                measured.EXACT + measured.APART * apart)


Found = tuple[float, Shape, Mapping[float, float]]       # distance, whose curve, tokens -> seconds


def _nearest(
    device: str, library: str, version: str | None, wanted: Shape, kernel: str | None,
    only: tuple[tuple[str, object], ...],
) -> Found | None:
    sources = list(all_curves(device, library, version, kernel, only))
    if kernel and not any(shape.form == wanted.form for curves in sources for shape in curves):
        sources = [curves for other in silicon.BACKENDS for curves in all_curves(device, other, None, kernel, only)]
        if not any(shape.form == wanted.form for curves in sources for shape in curves):
            sources = list(all_curves(device, library, version, None, only))
    best: Found | None = None
    for curves in sources:
        for shape in curves:
            apart = wanted.apart(shape)
            if apart <= FARTHEST and (best is None or apart < best[0] - 1e-9):
                kept = possible(shape, curves[shape], device)
                if len(kept) >= (1 - MOST_STEPS) * len(curves[shape]):
                    best = apart, shape, kept
        if best and best[0] == 0.0:
            break
    return best


@lru_cache(maxsize=96)
def all_curves(
    device: str, library: str, version: str | None, kernel: str | None = None,
    only: tuple[tuple[str, object], ...] = (),
) -> tuple[Mapping[Shape, Mapping[float, float]], ...]:
    """Of each version: shape -> tokens -> seconds, less what is rejected. Of several kernels that were measured for a
    shape the fastest stands, at each number of tokens: that is what recipes and tuners choose (TensorRT-LLM, nvfp4 on
    B200: CUTLASS takes three times what trtllm-gen takes)."""
    def good(table: measured.Table) -> dict[Shape, dict[float, float]]:
        curves = curves_of(table, KERNELS[kernel] if kernel else ())
        return {shape: points for shape, points in curves.items()
                if (device, library, table.version, shape.form) not in rejected()}

    return tuple(good(table) for table in measured.tables(device, "moe", library, "moe_perf", version, KEYS, only))


# Kernels of experts that an engine can be told to run, by what the tables' kernel_source calls them.
KERNELS: Mapping[str, tuple[str, ...]] = {
    "cutlass": ("cutlass",), "deepgemm": ("deepgemm",), "trtllm-gen": ("min_latency", "flashinfer_trtllm"),
}


def curves_of(table: measured.Table, kernels: tuple[str, ...] = ()) -> dict[Shape, dict[float, float]]:
    out: dict[Shape, dict[float, float]] = {}
    for key, at in table.groups.items():
        form, width, inner, top_k, experts, tp, ep, routing, kernel = key
        if kernels and not any(name in kernel for name in kernels):
            continue
        name = f"{form} nongated" if "nongated" in kernel else form
        shape = Shape(name, width, max(1, inner // tp), top_k, experts, ep, routing)
        tokens, latency = (table.columns[c][at].tolist() for c in ("num_tokens", "latency"))
        found = {float(t): value * silicon.MILLISECOND for t, value in zip(tokens, latency, strict=True) if value > 0}
        known = out.setdefault(shape, {})
        known.update({t: min(value, known.get(t, value)) for t, value in found.items()})
    return out


# What the tables call formats: (activations, weights, weights for each byte of scales).
FORMS: Mapping[str, tuple[str, str, int | None]] = {
    "bfloat16": ("bf16", "bf16", None), "fp8": ("fp8", "fp8", None), "fp8_block": ("fp8", "fp8", 4096),
    "nvfp4": ("fp4", "fp4", 16), "w4a16_mxfp4": ("bf16", "fp4", 32), "w4a8_mxfp4_mxfp8": ("fp8", "fp4", 32),
    "int4_wo": ("bf16", "int4", 64), "w4afp8": ("fp8", "int4", 64),
}


def as_op(shape: Shape, tokens: float) -> Experts | None:
    """The operator of a row of the tables; None for a format that is not known."""
    plain = shape.form.removesuffix(" nongated")
    if plain not in FORMS:
        return None
    a, w, block = FORMS[plain]
    whole = Mixture(round(tokens), shape.top_k, shape.experts, shape.groups)
    pairs = tokens * shape.top_k / shape.groups
    used = max(1, round(min(shape.experts / shape.groups, pairs)))
    count, top_k = (round(tokens), shape.top_k) if shape.groups == 1 else (ceil(pairs), 1)
    return Experts(count, top_k, used, shape.width, shape.inner, a, w, block, gated=plain == shape.form, whole=whole)


def model(shape: Shape, tokens: float, device: str, library: str, block: int | None = None) -> float:
    """Seconds of the form with the constants of a device and a library."""
    op = as_op(shape, tokens)
    assert op is not None
    of = by_key(device)
    c = nearest("experts", kinds(op), of, library)
    assert c is not None
    op = op if block is None else replace(op, weight_block=block)
    fall = rows(tokens, shape.top_k, shape.experts, shape.groups, shape.routing)
    return seconds(c.values, load(op, of.limits, fall, shape.experts // shape.groups))


def possible(shape: Shape, points: Mapping[float, float], device: str) -> dict[float, float]:
    """Less those faster than the bound: they did not do what their name says (likely layers without a gate under
    their gated name, vLLM's and SGLang's of 512 experts; draws that left experts out)."""
    op, limits, kept = as_op(shape, 1), by_key(device).limits, {}
    assert op is not None
    for tokens, value in points.items():
        fall = rows(tokens, shape.top_k, shape.experts, shape.groups, shape.routing)
        if value >= _least(op, limits, fall):
            kept[tokens] = value
    return kept
