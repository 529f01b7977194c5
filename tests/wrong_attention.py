"""Planted bugs of attention, decode and latent decode. Each is the sound form but for one thing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from planted import Compute, Wrong, truncated

from sublight.kernels.attention.contract import seen
from sublight.kernels.mla_decode.contract import scale_of
from sublight.kernels.pages import rows_of
from sublight.kernels.rounding import DTYPES

Tensor: TypeAlias = Any
Given: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True)
class How:
    """The ways in which a softmax-weighted sum can go wrong."""

    subtract: bool = True                # the largest score
    scores: str = "fp32"                 # number format of scores
    sums: str = "fp32"                   # of the accumulator, rounded every 16 keys
    rescale: bool = True                 # what was added, when a larger score comes (keys in two halves)
    truncate: bool = False               # the last cast
    blind: str = "zero"                  # rows that see no key: "zero" or "mean" of the values
    weights: str = "form"                # number format of weights

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None = None) -> Tensor:
        """q [rows, d], k [keys, d], v [keys, d_v] -> [rows, d_v] in the format of q."""
        form = q.dtype
        if not len(k):
            return torch.zeros(len(q), v.shape[1], dtype=form)
        scores = (q.float() @ k.float().T * scale).to(DTYPES[self.scores]).float()
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf if self.blind == "zero" else -1e30)
        most = scores.amax(1, keepdim=True)
        most = most.where(most.isfinite(), torch.zeros_like(most)) if self.subtract else torch.zeros_like(most)
        weights = (scores - most).exp()
        if not self.rescale:
            half = (len(k) + 1) // 2
            first = scores[:, :half].amax(1, keepdim=True).nan_to_num(neginf=0.0)
            weights = torch.cat([(scores[:, :half] - first).exp(), weights[:, half:]], 1)
        total = weights.sum(1, keepdim=True)
        rounded = weights.to(DTYPES.get(self.weights, form)).float()
        total = total.where(total > 0, torch.ones_like(total)) if self.subtract else total
        out = self._sum(rounded, v.float()) / total
        return truncated(out, form) if self.truncate else out.to(form)

    def _sum(self, weights: Tensor, v: Tensor) -> Tensor:
        if self.sums == "fp32":
            return weights @ v
        out = torch.zeros(len(weights), v.shape[1])
        for at in range(0, len(v), 16):
            out = (out + weights[:, at:at + 16] @ v[at:at + 16]).to(DTYPES[self.sums]).float()
        return out


SOUND = How()


# ---- attention ------------------------------------------------------------------------------------------------------


def attention(shape: Any, given: Given, *, how: How = SOUND, mask: Any = seen, scale: Any = None, head: Any = None,
              keys: Any = None) -> dict[str, Tensor]:
    """mask(shape); head(h, shape): the key head of a query head; keys(kv_length): how many are read."""
    out = torch.zeros_like(given["q"])
    allowed, read = mask(shape), keys(shape.kv_length) if keys else shape.kv_length
    allowed = None if allowed is None else allowed[:, :read]
    group = shape.heads // shape.kv_heads
    for b in range(shape.batch):
        for h in range(shape.heads):
            at = head(h, shape) if head else h // group
            out[b, :, h] = how.attend(given["q"][b, :, h], given["k"][b, :read, at], given["v"][b, :read, at],
                                      scale=scale(shape) if scale else shape.dim**-0.5, mask=allowed)
    return {"out": out}


def _moved(by: int) -> Any:
    """The mask of queries that stand `by` keys further on."""
    def mask(shape: Any) -> Tensor | None:
        if not shape.causal:
            return None
        at = torch.arange(shape.q_length)[:, None] + shape.kv_length - shape.q_length
        keys = torch.arange(shape.kv_length)
        ends = keys <= at + by
        return ends if shape.window is None else ends & (keys > at - shape.window)

    return mask


def _window(by: int) -> Any:
    return lambda shape: seen(shape if shape.window is None else replace(shape, window=max(1, shape.window + by)))


def _at_the_start(shape: Any) -> Tensor | None:
    """Query 0 stands at key 0 (scaled_dot_product_attention's is_causal)."""
    return torch.arange(shape.kv_length) <= torch.arange(shape.q_length)[:, None] if shape.causal else None


ATTENTION: dict[str, Compute] = {
    "no mask": lambda s, g: attention(s, g, mask=lambda shape: None),
    "mask lets one key more through": lambda s, g: attention(s, g, mask=_moved(1)),
    "mask hides the query's own key": lambda s, g: attention(s, g, mask=_moved(-1)),
    "mask aligned at the start": lambda s, g: attention(s, g, mask=_at_the_start),
    "window one key too wide": lambda s, g: attention(s, g, mask=_window(1)),
    "window one key too narrow": lambda s, g: attention(s, g, mask=_window(-1)),
    "scale 1/dim": lambda s, g: attention(s, g, scale=lambda shape: 1 / shape.dim),
    "largest score not subtracted": lambda s, g: attention(s, g, how=How(subtract=False)),
    "earlier sums not rescaled": lambda s, g: attention(s, g, how=How(rescale=False)),
    "scores rounded to bf16": lambda s, g: attention(s, g, how=How(scores="bf16")),
    "sums in bf16": lambda s, g: attention(s, g, how=How(sums="bf16")),
    "weights in fp8": lambda s, g: attention(s, g, how=How(weights="fp8")),
    "last cast truncates": lambda s, g: attention(s, g, how=How(truncate=True)),
    "rows that see nothing get the mean": lambda s, g: attention(s, g, how=How(blind="mean")),
    "heads of a group interleaved": lambda s, g: attention(s, g, head=lambda h, shape: h % shape.kv_heads),
    "keys beyond whole blocks of 16 left out": lambda s, g: attention(s, g, keys=lambda n: n // 16 * 16 or n),
}


# ---- decode ---------------------------------------------------------------------------------------------------------


def decode(shape: Any, given: Given, *, how: How = SOUND, head: Any = None, length: Any = None, split: Any = None,
           filled: bool = False, contiguous: bool = False, empty: str = "zero") -> dict[str, Tensor]:
    """length(n, shape): tokens that are taken. filled: what was never written reads as zeros. split(outs, sums, most)
    joins partial results of 32 keys each."""
    out = torch.zeros_like(given["q"])
    group = shape.heads // shape.kv_heads
    for b, n in enumerate(given["lengths"].tolist()):
        k, v = (_rows(given, name, b, length(n, shape) if length else n, contiguous) for name in ("k_cache", "v_cache"))
        if filled:
            k, v = k.nan_to_num(0.0), v.nan_to_num(0.0)
        for h in range(shape.heads):
            at = head(h, shape) if head else h // group
            out[b, h] = _one(given["q"][b, h][None], k[:, at], v[:, at], shape.dim**-0.5, how, split)[0]
        if not n and empty == "nan":
            out[b] = math.nan
    return {"out": out}


def _rows(given: Given, name: str, b: int, n: int, contiguous: bool) -> Tensor:
    cache, table = given[name], given["table"][b]
    n = min(n, len(table) * cache.shape[1])
    if contiguous:
        return cache.flatten(0, 1).roll(-int(table[0]) * cache.shape[1], 0)[:n]
    return rows_of(cache, table, n)


def _one(q: Tensor, k: Tensor, v: Tensor, scale: float, how: How, split: Any) -> Tensor:
    if split is None or not len(k):
        return how.attend(q, k, v, scale=scale)
    outs, sums, most = [], [], []
    for at in range(0, len(k), 32):
        scores = q.float() @ k[at:at + 32].float().T * scale
        largest = scores.amax(1, keepdim=True)
        weights = (scores - largest).exp()
        outs.append(weights.to(v.dtype).float() @ v[at:at + 32].float())
        sums.append(weights.sum(1, keepdim=True))
        most.append(largest)
    return split(torch.stack(outs), torch.stack(sums), torch.stack(most), q.dtype)


def _joined(outs: Tensor, sums: Tensor, most: Tensor, form: Any) -> Tensor:
    factor = (most - most.amax(0)).exp()
    return ((outs * factor).sum(0) / (sums * factor).sum(0)).to(form)


def _last_dropped(outs: Tensor, sums: Tensor, most: Tensor, form: Any) -> Tensor:
    keep = max(1, len(outs) - 1)
    return _joined(outs[:keep], sums[:keep], most[:keep], form)


def _not_rescaled(outs: Tensor, sums: Tensor, most: Tensor, form: Any) -> Tensor:
    return (outs.sum(0) / sums.sum(0)).to(form)


def _in_bf16(outs: Tensor, sums: Tensor, most: Tensor, form: Any) -> Tensor:
    """Partial results are normalised and written in bf16, and joined from there."""
    factor = sums * (most - most.amax(0)).exp()
    return (((outs / sums).bfloat16().float() * factor).sum(0) / factor.sum(0)).to(form)


def _mean_of_parts(outs: Tensor, sums: Tensor, most: Tensor, form: Any) -> Tensor:
    return (outs / sums).mean(0).to(form)


def _whole_pages(n: int, shape: Any) -> int:
    pages = math.ceil(n / int(shape.page))
    return pages * int(shape.page)


DECODE: dict[str, Compute] = {
    "last page's tail read": lambda s, g: decode(s, g, length=_whole_pages),
    "last page's tail taken for zeros": lambda s, g: decode(s, g, length=_whole_pages, filled=True),
    "last token left out": lambda s, g: decode(s, g, length=lambda n, shape: max(0, n - 1)),
    "partly filled page left out": lambda s, g: decode(s, g, length=lambda n, shape: n // shape.page * shape.page),
    "table ignored": lambda s, g: decode(s, g, contiguous=True, filled=True),
    "all as long as the longest": lambda s, g: decode(s, g, length=lambda n, shape: shape.kv_length, filled=True),
    "heads of a group interleaved": lambda s, g: decode(s, g, head=lambda h, shape: h % shape.kv_heads),
    "last split dropped": lambda s, g: decode(s, g, split=_last_dropped),
    "splits joined without rescaling": lambda s, g: decode(s, g, split=_not_rescaled),
    "splits joined by their mean": lambda s, g: decode(s, g, split=_mean_of_parts),
    "splits written in bf16": lambda s, g: decode(s, g, split=_in_bf16),
    "empty sequences give NaN": lambda s, g: decode(s, g, empty="nan"),
    "largest score not subtracted": lambda s, g: decode(s, g, how=How(subtract=False)),
    "scores rounded to bf16": lambda s, g: decode(s, g, how=How(scores="bf16")),
    "sums in bf16": lambda s, g: decode(s, g, how=How(sums="bf16")),
    "last cast truncates": lambda s, g: decode(s, g, how=How(truncate=True)),
}


# ---- latent decode --------------------------------------------------------------------------------------------------


def mla(shape: Any, given: Given, *, how: How = SOUND, scale: Any = None, rope: bool = True, first: int = 0,
        length: Any = None, split: Any = None, filled: bool = False) -> dict[str, Tensor]:
    out = torch.zeros_like(given["q"][..., :shape.rank])
    width = shape.rank + shape.rope if rope else shape.rank
    for b, n in enumerate(given["lengths"].tolist()):
        k = _rows(given, "cache", b, length(n, shape) if length else n, False)
        k = k.nan_to_num(0.0) if filled else k
        at = min(first, shape.rope) if first >= 0 else shape.rope
        for h in range(shape.heads):
            out[b, h] = _one(given["q"][b, h][None, :width], k[:, :width], k[:, at:at + shape.rank],
                             scale(shape) if scale else scale_of(shape), how, split)[0]
    return {"out": out}


MLA: dict[str, Compute] = {
    "scores without the rope columns": lambda s, g: mla(s, g, rope=False),
    "scale of the absorbed width": lambda s, g: mla(s, g, scale=lambda shape: (shape.rank + shape.rope)**-0.5),
    "values from the last columns": lambda s, g: mla(s, g, first=-1),
    "values one column off": lambda s, g: mla(s, g, first=1),
    "last page's tail read": lambda s, g: mla(s, g, length=_whole_pages),
    "last page's tail taken for zeros": lambda s, g: mla(s, g, length=_whole_pages, filled=True),
    "last token left out": lambda s, g: mla(s, g, length=lambda n, shape: max(0, n - 1)),
    "last split dropped": lambda s, g: mla(s, g, split=_last_dropped),
    "splits joined without rescaling": lambda s, g: mla(s, g, split=_not_rescaled),
    "splits written in bf16": lambda s, g: mla(s, g, split=_in_bf16),
    "largest score not subtracted": lambda s, g: mla(s, g, how=How(subtract=False)),
    "scores rounded to bf16": lambda s, g: mla(s, g, how=How(scores="bf16")),
    "sums in bf16": lambda s, g: mla(s, g, how=How(sums="bf16")),
    "last cast truncates": lambda s, g: mla(s, g, how=How(truncate=True)),
}

SOUND_FORMS = (
    Wrong("attention", "sound", attention), Wrong("decode", "sound", decode), Wrong("mla_decode", "sound", mla),
    Wrong("decode", "sound, split", lambda s, g: decode(s, g, split=_joined)),
    Wrong("mla_decode", "sound, split", lambda s, g: mla(s, g, split=_joined)),
)
FAMILIES = {"attention": ATTENTION, "decode": DECODE, "mla_decode": MLA}
WRONG = tuple(Wrong(op, name, compute) for op, forms in FAMILIES.items() for name, compute in forms.items())
