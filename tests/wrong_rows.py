"""Planted bugs of norms, SwiGLU, rotary embedding, routing and cross entropy: the sound form but for one thing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from planted import Compute, Wrong, truncated
from torch.nn.functional import gelu

from sublight.kernels.rope.contract import rotary_of
from sublight.kernels.rounding import DTYPES
from sublight.kernels.row_scales import TOP

Tensor: TypeAlias = Any
Given: TypeAlias = Mapping[str, Tensor]
Outputs: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class Written:
    """The ways in which a row of results can be written wrongly."""

    truncate: bool = False
    scale: str = "own"                   # "own", "stale" (of the row before), "signed" (the largest, not its size)
    top: float = 1.0                     # times the largest number of the format
    clamp: bool = True
    tail: bool = False                   # columns beyond whole blocks of 64 are left as they were: zero

    def out(self, y: Tensor, form: str, quant: str | None) -> Outputs:
        if self.tail:
            y = y.clone()
            y[:, y.shape[1] // 64 * 64 or y.shape[1]:] = 0.0
        if quant is None:
            return {"out": truncated(y, DTYPES[form]) if self.truncate else y.to(DTYPES[form])}
        scale = self._scale(y, TOP[quant] * self.top)
        q = y / scale[:, None]
        if self.clamp:
            q = q.clamp(-TOP[quant], TOP[quant])
        if quant == "int8":
            q = q.trunc() if self.truncate else q.round()
            return {"out": q.to(torch.int16).to(torch.int8), "scale": scale}
        q = _toward_zero_fp8(q) if self.truncate else q
        over = q.abs() > 464                                             # beyond this, e4m3 has NaN
        return {"out": torch.where(over, math.nan, q).to(DTYPES[quant]), "scale": scale}

    def _scale(self, y: Tensor, top: float) -> Tensor:
        largest = y.amax(1) if self.scale == "signed" else y.abs().amax(1)
        scale = largest / top
        scale = scale.roll(1) if self.scale == "stale" else scale
        return scale.where(scale > 0, torch.ones_like(scale))


def _toward_zero_fp8(q: Tensor) -> Tensor:
    near = q.to(torch.float8_e4m3fn)
    bits = near.view(torch.int8)
    less = torch.where((bits & 0x7F) > 0, bits - 1, bits).view(torch.float8_e4m3fn)
    return torch.where(near.float().abs() > q.abs(), less.float(), near.float())


PLAIN = Written()

# ---- norms ----------------------------------------------------------------------------------------------------------


def norm(shape: Any, given: Given, *, written: Written = PLAIN, eps: str = "inside", offset: float = 0.0,
         mean: bool = True, count: Any = None, sums: str = "fp32", one_pass: bool = False, weight: bool = True,
         add: bool = True, summed: str = "sum", half: bool = False) -> Outputs:
    z = given["x"].float()
    if shape.residual and add:
        z = z + given["residual"].float()
    far = z - z.mean(1, keepdim=True) if shape.kind == "layer" and mean else z
    if one_pass and shape.kind == "layer":
        square = z.square().mean(1, keepdim=True) - z.mean(1, keepdim=True).square()
    else:
        square = _mean(far.square(), sums, count(shape.width) if count else shape.width)
    root = {"inside": lambda: (square + shape.eps).rsqrt(), "outside": lambda: 1 / (square.sqrt() + shape.eps),
            "none": lambda: square.rsqrt()}[eps]()
    root = root.bfloat16().float() if half else root
    y = far * root * (given["weight"].float() + offset if weight else 1.0)
    y = y + given["bias"].float() if shape.kind == "layer" else y
    made = written.out(y, shape.form, shape.quant)
    if shape.residual:
        made["summed"] = (z if summed == "sum" else given["x"]).to(DTYPES[shape.form])
    return made


def _mean(x: Tensor, form: str, count: int) -> Tensor:
    if form == "fp32":
        return x.sum(1, keepdim=True) / count
    total = torch.zeros(len(x), 1)
    for at in range(0, x.shape[1], 32):
        total = (total + x[:, at:at + 32].sum(1, keepdim=True)).to(DTYPES[form]).float()
    return total / count


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


NORM: dict[str, Compute] = {
    "eps forgotten": lambda s, g: norm(s, g, eps="none"),
    "eps outside of the root": lambda s, g: norm(s, g, eps="outside"),
    "weight plus one": lambda s, g: norm(s, g, offset=1.0),
    "weight forgotten": lambda s, g: norm(s, g, weight=False),
    "mean not subtracted": lambda s, g: norm(s, g, mean=False),
    "divided by n - 1": lambda s, g: norm(s, g, count=lambda n: max(1, n - 1)),
    "divided by the padded width": lambda s, g: norm(s, g, count=_power_of_two),
    "variance as a difference of means": lambda s, g: norm(s, g, one_pass=True),
    "sum of squares in bf16": lambda s, g: norm(s, g, sums="bf16"),
    "root rounded to bf16": lambda s, g: norm(s, g, half=True),
    "last cast truncates": lambda s, g: norm(s, g, written=Written(truncate=True)),
    "residual not added": lambda s, g: norm(s, g, add=False),
    "sum not written": lambda s, g: norm(s, g, summed="x"),
    "tail not written": lambda s, g: norm(s, g, written=Written(tail=True)),
    "scale of the row before": lambda s, g: norm(s, g, written=Written(scale="stale")),
    "scale of the largest, not of its size": lambda s, g: norm(s, g, written=Written(scale="signed")),
    "scale to half of the range": lambda s, g: norm(s, g, written=Written(top=0.5)),
    "scale to twice the range, not clamped": lambda s, g: norm(s, g, written=Written(top=2.0, clamp=False)),
}

# ---- SwiGLU ---------------------------------------------------------------------------------------------------------


def swiglu(shape: Any, given: Given, *, written: Written = PLAIN, activation: Any = None, swap: bool = False,
           adjacent: bool = False) -> Outputs:
    both = given["gate_up"].float()
    gate, up = (both[:, ::2], both[:, 1::2]) if adjacent else both.split(shape.width, 1)
    gate, up = (up, gate) if swap else (gate, up)
    y = (activation(gate) if activation else gate * gate.sigmoid()) * up
    return written.out(y, shape.form, shape.quant)


SWIGLU: dict[str, Compute] = {
    "gate and up swapped": lambda s, g: swiglu(s, g, swap=True),
    "gate and up interleaved": lambda s, g: swiglu(s, g, adjacent=True),
    "gelu": lambda s, g: swiglu(s, g, activation=gelu),
    "sigmoid alone": lambda s, g: swiglu(s, g, activation=torch.sigmoid),
    "sigmoid rounded to bf16": lambda s, g: swiglu(s, g, activation=lambda x: x * x.sigmoid().bfloat16().float()),
    "sigmoid of a gate rounded to fp8": lambda s, g: swiglu(
        s, g, activation=lambda x: x * x.clamp(-448, 448).to(torch.float8_e4m3fn).float().sigmoid()),
    "exponential of the gate overflows": lambda s, g: swiglu(s, g, activation=lambda x: x * x.exp() / (1 + x.exp())),
    "last cast truncates": lambda s, g: swiglu(s, g, written=Written(truncate=True)),
    "tail not written": lambda s, g: swiglu(s, g, written=Written(tail=True)),
    "scale of the row before": lambda s, g: swiglu(s, g, written=Written(scale="stale")),
    "scale of the largest, not of its size": lambda s, g: swiglu(s, g, written=Written(scale="signed")),
    "scale to half of the range": lambda s, g: swiglu(s, g, written=Written(top=0.5)),
}

# ---- rotary embedding -----------------------------------------------------------------------------------------------


def rope(shape: Any, given: Given, *, sign: float = 1.0, neox: Any = None, later: int = 0, table: str = "fp32",
         products: str = "fp32", tail: bool = True, skip: Any = None, values: bool = True, keys: bool = True,
         offset_first: bool = False, truncate: bool = False, by_slot: bool = False, swap: bool = False) -> Outputs:
    places = (given["slots"].clamp(min=0) if by_slot else given["positions"]) + later
    turns = given["cos_sin"][places.clamp(0, shape.positions - 1)].to(DTYPES[table]).float()
    rounds, rotary = DTYPES[products], rotary_of(shape)
    cos, sin = turns[:, None].chunk(2, -1)
    cos, sin = (sin, cos) if swap else (cos, sin)

    def turned(x: Tensor) -> Tensor:
        first = x[..., :rotary].float()
        paired = shape.neox if neox is None else neox
        a, b = first.chunk(2, -1) if paired else (first[..., ::2], first[..., 1::2])
        ac, bs, bc, as_ = ((one * other).to(rounds).float() for one, other in ((a, cos), (b, sin), (b, cos), (a, sin)))
        new = (ac - sign * bs, bc + sign * as_)
        merged = torch.cat(new, -1) if paired else torch.stack(new, -1).flatten(-2)
        merged = truncated(merged, x.dtype) if truncate else merged.to(x.dtype)
        return torch.cat([merged, x[..., rotary:] if tail else 0 * x[..., rotary:]], -1)

    made = {"q_out": turned(given["q"])}
    slots = given["slots"]
    if offset_first:
        slots = torch.where(slots >= 0, slots % shape.page * shape.pages + slots // shape.page, slots)
    there = slots >= 0 if skip is None else skip(slots)
    for name, new in (("k_cache", turned(given["k"]) if keys else given["k"]),
                      ("v_cache", given["v"] if values else turned(given["v"]))):
        cache = given[name].clone()
        cache.flatten(0, 1)[slots[there]] = new[there]
        made[name] = cache
    return made


ROPE: dict[str, Compute] = {
    "turned the other way": lambda s, g: rope(s, g, sign=-1.0),
    "pairs of the other kind": lambda s, g: rope(s, g, neox=not s.neox),
    "sine and cosine swapped": lambda s, g: rope(s, g, swap=True),
    "position one too far": lambda s, g: rope(s, g, later=1),
    "slot for position": lambda s, g: rope(s, g, by_slot=True),
    "table rounded to bf16": lambda s, g: rope(s, g, table="bf16"),
    "products rounded to bf16": lambda s, g: rope(s, g, products="bf16"),
    "columns beyond rotary are zeroed": lambda s, g: rope(s, g, tail=False),
    "slot -1 written": lambda s, g: rope(s, g, skip=lambda slots: torch.ones_like(slots, dtype=torch.bool)),
    "slot 0 not written": lambda s, g: rope(s, g, skip=lambda slots: slots > 0),
    "offset before page": lambda s, g: rope(s, g, offset_first=True),
    "values turned too": lambda s, g: rope(s, g, values=False),
    "keys written unturned": lambda s, g: rope(s, g, keys=False),
    "last cast truncates": lambda s, g: rope(s, g, truncate=True),
}

# ---- routing --------------------------------------------------------------------------------------------------------


def routing(shape: Any, given: Given, *, renormalise: Any = None, form: str = "fp32", order: str = "falling",
            experts: int = 0, subtract: bool = True, scores: Any = None, weights: str = "fp32") -> Outputs:
    """experts: this many of the last are never chosen."""
    x = given["logits"].to(DTYPES[form]).float()
    far = x - x.amax(1, keepdim=True) if subtract else x
    p = far.exp() / far.exp().sum(1, keepdim=True) if scores is None else scores(x)
    seen = p.shape[1] - experts
    found, ids = p[:, :max(seen, shape.top_k)].topk(shape.top_k, 1)
    found = found.to(DTYPES[weights]).float()
    if shape.renormalise if renormalise is None else renormalise(shape):
        found = found / found.sum(1, keepdim=True)
    if order == "rising":
        found, ids = found.flip(1), ids.flip(1)
    ids = ids.sort(1).values if order == "by index" else ids
    if order == "shifted":
        ids = (ids + 1) % shape.experts
    if order == "twice" and shape.top_k > 1:
        ids[:, 1] = ids[:, 0]
    return {"weights": found, "ids": ids.to(torch.int32)}


ROUTING: dict[str, Compute] = {
    "not renormalised": lambda s, g: routing(s, g, renormalise=lambda shape: False),
    "renormalised though not asked": lambda s, g: routing(s, g, renormalise=lambda shape: True),
    "sigmoid for softmax": lambda s, g: routing(s, g, scores=torch.sigmoid),
    "largest logit not subtracted": lambda s, g: routing(s, g, subtract=False),
    "logits rounded to bf16": lambda s, g: routing(s, g, form="bf16"),
    "weights rounded to bf16": lambda s, g: routing(s, g, weights="bf16"),
    "rising order": lambda s, g: routing(s, g, order="rising"),
    "indices sorted, weights not": lambda s, g: routing(s, g, order="by index"),
    "indices one too far": lambda s, g: routing(s, g, order="shifted"),
    "first expert twice": lambda s, g: routing(s, g, order="twice"),
    "last expert never chosen": lambda s, g: routing(s, g, experts=1),
}

# ---- cross entropy --------------------------------------------------------------------------------------------------


def cross_entropy(shape: Any, given: Given, *, subtract: bool = True, loss: str = "fp32", base: float = 1.0,
                  later: int = 0, classes: Any = None, ignored: str = "zero", sums: str = "fp32",
                  padded: bool = False) -> Outputs:
    x, targets = given["logits"].float(), given["targets"]
    skip = targets == -100
    picked = x.gather(1, ((targets.masked_fill(skip, 0) + later) % shape.classes)[:, None])
    kept = x[:, :classes(shape.classes)] if classes else x
    if padded:                           # classes up to a multiple of 128, of logit zero
        kept = torch.cat([kept, torch.zeros(len(x), -shape.classes % 128)], 1)
    most = kept.amax(1, keepdim=True) if subtract else torch.zeros(len(x), 1)
    each = (kept - most).exp()
    total = each.sum(1, keepdim=True) if sums == "fp32" else _mean(each, sums, 1)
    found = ((total.log() + most - picked) * base)[:, 0].to(DTYPES[loss]).float()
    if ignored == "zero":
        found = found.masked_fill(skip, 0.0)
    return {"loss": found.masked_fill(skip, math.nan) if ignored == "nan" else found}


CROSS_ENTROPY: dict[str, Compute] = {
    "largest logit not subtracted": lambda s, g: cross_entropy(s, g, subtract=False),
    "loss rounded to bf16": lambda s, g: cross_entropy(s, g, loss="bf16"),
    "logarithm to base 2": lambda s, g: cross_entropy(s, g, base=1 / math.log(2)),
    "target one class too far": lambda s, g: cross_entropy(s, g, later=1),
    "classes beyond whole blocks of 128 left out":
        lambda s, g: cross_entropy(s, g, classes=lambda n: n // 128 * 128 or n),
    "padding counted as classes": lambda s, g: cross_entropy(s, g, padded=True),
    "last class left out": lambda s, g: cross_entropy(s, g, classes=lambda n: max(1, n - 1)),
    "sum in bf16": lambda s, g: cross_entropy(s, g, sums="bf16"),
    "ignored rows counted": lambda s, g: cross_entropy(s, g, ignored="counted"),
    "ignored rows give NaN": lambda s, g: cross_entropy(s, g, ignored="nan"),
}

SOUND_FORMS = (Wrong("norm", "sound", norm), Wrong("swiglu", "sound", swiglu), Wrong("rope", "sound", rope),
               Wrong("routing", "sound", routing), Wrong("cross_entropy", "sound", cross_entropy))
FAMILIES = {"norm": NORM, "swiglu": SWIGLU, "rope": ROPE, "routing": ROUTING, "cross_entropy": CROSS_ENTROPY}
WRONG = tuple(Wrong(op, name, compute, name.startswith("scale "))
              for op, forms in FAMILIES.items() for name, compute in forms.items())
