"""Planted bugs of products, experts, quantisation and dequantisation. Each is the sound form but for one thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from planted import Compute, Wrong, truncated

from sublight.kernels.products import unscaled
from sublight.kernels.quantise.contract import LARGEST, most, widened
from sublight.kernels.rounding import DTYPES

Tensor: TypeAlias = Any
Given: TypeAlias = Mapping[str, Tensor]


def cast(x: Tensor, form: str, truncate: bool) -> Tensor:
    return truncated(x, DTYPES[form]) if truncate else x.to(DTYPES[form])


# ---- one product --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class How:
    """The ways in which a scaled product of a [m, k] and b [n, k] can go wrong."""

    a_scale: Callable[[Tensor], Tensor] = lambda scale: scale
    b_scale: Callable[[Tensor], Tensor] = lambda scale: scale
    before: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda a, b: (a, b)     # of operands, in fp32
    sums: str = "fp32"                   # of the accumulator, rounded every 16 terms
    middle: str = "fp32"                 # of sums before they are scaled (one scale for a row)
    truncate: bool = False               # the last cast
    after: Callable[[Tensor], Tensor] = lambda out: out
    read: Callable[[Tensor], Tensor] = lambda x: x                                      # of fp8 operands

    def multiply(self, form: str, a: Tensor, b: Tensor, a_scale: Tensor | None, b_scale: Tensor | None,
                 out: str) -> Tensor:
        if a_scale is not None and b_scale is not None:
            a_scale, b_scale = self.a_scale(a_scale), self.b_scale(b_scale)
        a, b = (self.read(x) if x.element_size() == 1 and x.is_floating_point() else x for x in (a, b))
        if form in ("int8", "fp8") and a_scale is not None and b_scale is not None:
            sums = self._sum(*self.before(a.double(), b.double())).float().to(DTYPES[self.middle]).float()
            result = sums * (a_scale[:, None] if form == "int8" else a_scale) * b_scale
        else:
            wide = unscaled(form, a, b, a_scale, b_scale, torch.float32)
            result = self._sum(*self.before(*wide)).to(DTYPES[self.middle]).float()
        return self.after(cast(result, out, self.truncate))

    def _sum(self, a: Tensor, b: Tensor) -> Tensor:
        if self.sums == "fp32":
            return a @ b.T
        out = a.new_zeros(len(a), len(b))
        for at in range(0, a.shape[1], 16):
            out = (out + a[:, at:at + 16] @ b[:, at:at + 16].T).to(DTYPES[self.sums]).to(out.dtype)
        return out


SOUND = How()


def gemm(shape: Any, given: Given, *, how: How = SOUND) -> dict[str, Tensor]:
    return {"out": how.multiply(shape.form, given["a"], given["b"], given.get("a_scale"), given.get("b_scale"),
                                shape.out)}


def whole_tiles(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    k = a.shape[1] // 64 * 64 if a.shape[1] > 64 else a.shape[1]
    return a[:, :k], b[:, :k]


def next_rows(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """k rounded up to 32, by what follows in memory."""
    more = -a.shape[1] % 32
    longer = (torch.cat([x, torch.roll(x, -1, 0).tile(1, 1 + 32 // x.shape[1])[:, :more]], 1) for x in (a, b))
    first, second = longer
    return first, second


def twice(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return torch.cat([a, a[:, :1]], 1), torch.cat([b, b[:, :1]], 1)


def last_column(out: Tensor) -> Tensor:
    """Where a second tile of 128 has but one column, that is not written."""
    if out.shape[1] % 128 == 1 and out.shape[1] > 128:
        out[:, -1] = 0
    return out


def tail_transposed(out: Tensor) -> Tensor:
    size = min(out.shape[0] % 16, out.shape[1] % 16)
    if size:
        out[-size:, -size:] = out[-size:, -size:].T.clone()
    return out


def clipped(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return a.clamp(min=-127), b.clamp(min=-127)


def one_block_off(scale: Tensor) -> Tensor:
    return scale.roll(1, -1) if scale.dim() else scale


def zero_is_one(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 1.0, scale)


def as_e5m2(x: Tensor) -> Tensor:
    return x.view(torch.float8_e5m2)


def no_nan(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return a.nan_to_num(0.0), b.nan_to_num(0.0)


HOWS = {
    "scale of b forgotten": How(b_scale=torch.ones_like),
    "scale of a from the block before": How(a_scale=one_block_off),
    "scale of b from the block before": How(b_scale=one_block_off),
    "scales kept in fp16": How(a_scale=lambda s: s.half().float(), b_scale=lambda s: s.half().float()),
    "a scale of zero taken for one": How(a_scale=zero_is_one, b_scale=zero_is_one),
    "tail of k left out": How(before=whole_tiles),
    "tail of k not masked, the next row read": How(before=next_rows),
    "one term of a split of k counted twice": How(before=twice),
    "sums in bf16": How(sums="bf16"),
    "sums rounded to bf16 before they are scaled": How(middle="bf16"),
    "last cast truncates": How(truncate=True),
    "last column of a second tile not written": How(after=last_column),
    "tail of rows transposed": How(after=tail_transposed),
    "NaN taken for zero": How(before=no_nan),
    "fp8 read as e5m2": How(read=as_e5m2),
    "integers clipped at -127": How(before=clipped),
}


# ---- products of groups -------------------------------------------------------------------------------------------


def grouped(shape: Any, given: Given, *, how: How = SOUND, offsets: Any = None, matrix: Any = None,
            scale: Any = None, after: Any = None) -> dict[str, Tensor]:
    """offsets(list); matrix(group, offsets) and scale(group): which are used; after(out, given)."""
    out = torch.zeros(shape.rows, shape.n, dtype=DTYPES[shape.out])
    found = given["offsets"].tolist()
    found = offsets(found) if offsets else found
    for group, (start, end) in enumerate(pairwise(found)):
        at = matrix(group, found) if matrix else group
        if end > start:
            a_scale, b_scale = given.get("a_scale"), given.get("b_scale")
            out[start:end] = how.multiply(
                shape.form, given["a"][start:end], given["b"][at], None if a_scale is None else a_scale[start:end],
                None if b_scale is None else b_scale[scale(group) if scale else at], shape.out)
    return {"out": after(out, given) if after else out}


def in_tiles(offsets: list[int]) -> list[int]:
    """Groups begin at multiples of 4: rows before that go to the group before."""
    return [offsets[0], *(min(offsets[-1], -(-at // 4) * 4) for at in offsets[1:-1]), offsets[-1]]


def rank_of(group: int, offsets: list[int]) -> int:
    """The matrix is counted among groups that have rows."""
    return sum(offsets[g + 1] > offsets[g] for g in range(group))


def padding_leaks(out: Tensor, given: Given) -> Tensor:
    """A tile reads beyond the last row, and multiplies what it found there by zero."""
    used = int(given["offsets"][-1])
    if 0 < used < len(out):
        out[used - 1] += 0 * given["a"][used].float().sum().to(out.dtype)
    return out


def last_rows(out: Tensor, given: Given) -> Tensor:
    """The last row of a group that has more than a tile of 16 is not written."""
    for start, end in pairwise(given["offsets"].tolist()):
        if end - start > 16 and (end - start) % 16 == 1:
            out[end - 1] = 0
    return out


GROUPED: dict[str, dict[str, Any]] = {
    "groups begin at tiles": {"offsets": in_tiles},
    "groups without rows not counted": {"matrix": rank_of},
    "padding multiplied by zero": {"after": padding_leaks},
    "last row of a second tile not written": {"after": last_rows},
    "scales of the first group for all": {"scale": lambda group: 0},
    "scale of a from the block before": {"how": HOWS["scale of a from the block before"]},
    "tail of k left out": {"how": HOWS["tail of k left out"]},
    "tail of k not masked, the next row read": {"how": HOWS["tail of k not masked, the next row read"]},
    "sums in bf16": {"how": HOWS["sums in bf16"]},
    "last cast truncates": {"how": HOWS["last cast truncates"]},
    "last column of a second tile not written": {"how": HOWS["last column of a second tile not written"]},
    "NaN taken for zero": {"how": HOWS["NaN taken for zero"]},
}


# ---- experts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """The ways in which a layer of experts can go wrong."""

    swap: bool = False                   # gate and up
    expert: Callable[[int, int], int | None] = lambda expert, experts: expert           # whose weights; None: dropped
    weights: Callable[[Tensor], Tensor] = lambda weights: weights
    capacity: float | None = None        # tokens of an expert, over the mean: more are dropped
    truncate: bool = False               # all casts
    h_form: str | None = None
    sums: str = "fp32"                   # of both products
    inner: Callable[[int], int] = lambda inner: inner
    add: bool = True                     # or the last expert's output alone
    smooth: Callable[[Tensor], Tensor] = torch.nn.functional.silu

    def compute(self, shape: Any, given: Given) -> dict[str, Tensor]:
        out = torch.zeros(shape.tokens, shape.width)
        weights, how = self.weights(given["weights"]), How(sums=self.sums)
        for expert in given["ids"].unique().tolist():
            tokens, place = (given["ids"] == expert).nonzero(as_tuple=True)
            at = self.expert(expert, shape.experts)
            if self.capacity is not None:
                kept = max(1, int(self.capacity * shape.tokens * shape.top_k / shape.experts))
                tokens, place = tokens[:kept], place[:kept]
            if at is None:
                continue
            y = self._expert(shape, how, given["x"][tokens], given["gate_up"][at], given["down"][at])
            y = y * weights[tokens, place][:, None]
            out[tokens] = out[tokens] + y if self.add else y
        return {"out": cast(out, shape.form, self.truncate)}

    def _expert(self, shape: Any, how: How, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        both = cast(how._sum(x.float(), gate_up.float()), shape.form, self.truncate).float()
        gate, up = reversed(both.chunk(2, -1)) if self.swap else both.chunk(2, -1)
        h = cast(self.smooth(gate) * up, self.h_form or shape.form, self.truncate and self.h_form is None).float()
        kept = self.inner(shape.inner)
        return cast(how._sum(h[:, :kept], down[:, :kept].float()), shape.form, self.truncate).float()


def quick(gate: Tensor) -> Tensor:
    """silu with a sigmoid of 1.702 times the gate, which belongs to GELU."""
    return gate * torch.sigmoid(1.702 * gate)


def hard(gate: Tensor) -> Tensor:
    return torch.nn.functional.hardswish(gate)


LAYERS = {
    "gate and up swapped": Layer(swap=True),
    "last expert dropped": Layer(expert=lambda expert, experts: None if expert == experts - 1 > 0 else expert),
    "weights of the next expert": Layer(expert=lambda expert, experts: (expert + 1) % experts),
    "routing weights of the token's other expert": Layer(weights=lambda w: w.roll(1, 1)),
    "routing weights renormalised": Layer(weights=lambda w: w / w.sum(1, keepdim=True).clamp(min=1e-6)),
    "routing weights in steps of 2^-8": Layer(weights=lambda w: (w * 256).round() / 256),
    "tokens above twice the mean dropped": Layer(capacity=2.0),
    "all casts truncate": Layer(truncate=True),
    "silu(gate)·up kept in fp8": Layer(h_form="fp8"),
    "sums in bf16": Layer(sums="bf16"),
    "tail of inner left out": Layer(inner=lambda inner: inner // 16 * 16 or inner),
    "the last expert's output instead of the sum": Layer(add=False),
    "sigmoid of 1.702 times the gate": Layer(smooth=quick),
    "hard swish": Layer(smooth=hard),
}


# ---- quantisation -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """The ways in which a quantisation can go wrong."""

    largest: float | None = None         # instead of 448 or 127
    size: Callable[[Tensor, str], Tensor] = most                       # of a block
    zero: float = 1.0                    # scale of a block of zeros
    least: float = 0.0                   # the smallest scale
    returned: Callable[[Tensor], Tensor] = lambda scale: scale
    used: Callable[[Tensor], Tensor] = lambda scale: scale
    toward_zero: bool = False
    form: str | None = None              # of the division
    skip: bool = False                   # the last column of odd widths

    def compute(self, shape: Any, given: Given) -> dict[str, Tensor]:
        x, end = given["x"].float(), LARGEST[shape.to]
        scale = self.size(x, shape.block) / (self.largest or end)
        scale = torch.where(scale > 0, scale, self.zero).clamp(min=self.least)
        wide = x / widened(self.used(scale), shape.width, shape.block)
        if self.form:
            wide = wide.to(DTYPES[self.form]).float()
        if self.skip and shape.width % 2:
            wide[:, -1] = 0
        q = self._rounded(wide.clamp(-end, end), shape.to)
        return {"q": q, "scale": self.returned(scale)}

    def _rounded(self, wide: Tensor, to: str) -> Tensor:
        if to == "int8":
            return (wide.trunc() if self.toward_zero else wide.round()).to(torch.int8)
        near = wide.to(torch.float8_e4m3fn)
        if not self.toward_zero:
            return near
        bits = near.view(torch.int8)
        above = (near.float().abs() > wide.abs()) & ((bits & 0x7F) > 0)
        return torch.where(above, bits - 1, bits).view(torch.float8_e4m3fn)


def without_sign(x: Tensor, block: str) -> Tensor:
    return most(x.clamp(min=0), block)


def without_tail(x: Tensor, block: str) -> Tensor:
    whole = x.shape[-1] // 16 * 16 or x.shape[-1]
    kept = x.clone()
    kept[:, whole:] = 0
    return most(kept, block)


def of_all(x: Tensor, block: str) -> Tensor:
    one = most(x, block)
    return one.max().expand_as(one).clone()


GRIDS = {
    "the range of another fp8 (240), or 128": Grid(largest=240.0),
    "the largest value, not the largest size": Grid(size=without_sign),
    "tail of the width not in the largest": Grid(size=without_tail),
    "one scale of all rows": Grid(size=of_all),
    "zeros divided by zero": Grid(zero=0.0),
    "scales no smaller than 1e-10": Grid(least=1e-10),
    "cast toward zero": Grid(toward_zero=True),
    "scale returned in bf16": Grid(returned=lambda scale: scale.bfloat16().float()),
    "reciprocal returned": Grid(returned=lambda scale: 1 / scale),
    "scale of the row before": Grid(used=lambda scale: scale.roll(1, 0) if scale.dim() else scale),
    "divided in bf16": Grid(form="bf16"),
    "last column of odd widths not written": Grid(skip=True),
}


# ---- dequantisation -----------------------------------------------------------------------------------------------


def dequantise(shape: Any, given: Given, *, scale: Any = None, read: Any = None, form: str = "fp32",
               truncate: bool = False, after: Any = None) -> dict[str, Tensor]:
    """scale(scale), read(q): how they are taken; form: of the product; after(x)."""
    used = scale(given["scale"]) if scale else given["scale"]
    q = (read(given["q"]) if read else given["q"]).float()
    x = (q * widened(used, shape.width, shape.block)).to(DTYPES[form]).float()
    x = cast(x, shape.form, truncate)
    return {"x": after(x) if after else x}


def unsigned(q: Tensor) -> Tensor:
    return q.view(torch.uint8) if q.dtype == torch.int8 else q


def e5m2(q: Tensor) -> Tensor:
    return q if q.dtype == torch.int8 else q.view(torch.float8_e5m2)


DEQUANTISED: dict[str, dict[str, Any]] = {
    "scale of the block before": {"scale": one_block_off},
    "scale in bf16": {"scale": lambda scale: scale.bfloat16().float()},
    "scale in fp16": {"scale": lambda scale: scale.half().float()},
    "a scale of zero taken for one": {"scale": zero_is_one},
    "last cast truncates": {"truncate": True},
    "product in bf16, then cast": {"form": "bf16"},
    "int8 read as uint8": {"read": unsigned},
    "fp8 read as e5m2": {"read": e5m2},
    "NaN taken for zero": {"after": lambda x: x.nan_to_num(0.0)},
    "last column of a second tile not written": {"after": last_column},
}


def _bound(function: Any, options: Mapping[str, Any]) -> Compute:
    def compute(shape: Any, given: Given) -> Mapping[str, Tensor]:
        made: Mapping[str, Tensor] = function(shape, given, **options)
        return made

    return compute


SOUND_FORMS = (Wrong("gemm", "", gemm), Wrong("grouped_gemm", "", grouped), Wrong("moe", "", Layer().compute),
               Wrong("quantise", "", Grid().compute), Wrong("dequantise", "", dequantise))
WRONG = (
    *(Wrong("gemm", name, _bound(gemm, {"how": how})) for name, how in HOWS.items()),
    *(Wrong("grouped_gemm", name, _bound(grouped, options)) for name, options in GROUPED.items()),
    *(Wrong("moe", name, layer.compute) for name, layer in LAYERS.items()),
    *(Wrong("quantise", name, replace(grid).compute) for name, grid in GRIDS.items()),
    *(Wrong("dequantise", name, _bound(dequantise, options)) for name, options in DEQUANTISED.items()),
)
