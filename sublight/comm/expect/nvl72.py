"""This file knows about the time of TensorRT-LLM's all-to-all for experts inside one NVL72 domain.

    time     base + copies x row / rate      base and rate by ranks, straight between over log2(ranks)

Copies: one for each distinct rank that a token's experts lie on. Of the prepare kernel a row is one token.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from sublight.cluster import Cluster
from sublight.comm.expect.experts import Exchange, traffic
from sublight.comm.expected import Expected
from sublight.errors import InputError

MEASURED = "gb200"
TOP_K = 8                                # measured, with even loads
LIKE = ("gb200", "gb300")                # devices in such a domain


@dataclass(frozen=True, slots=True)
class Kernel:
    """Constants of one kernel by ranks. Widths are half an 80 % interval, natural logarithms."""

    ranks: tuple[int, ...]
    base_s: tuple[float, ...]
    rate: tuple[float, ...]              # bytes a second
    width: float                         # at ranks that were measured
    between_base: float                  # at others: of the base
    between_rate: float                  # and of the part that moves data


@dataclass(frozen=True, slots=True)
class Domain:
    """Kernels by "dispatch bf16", "dispatch fp8", "dispatch nvfp4", "combine bf16", "prepare"."""

    kernels: Mapping[str, Kernel]
    source: str


@cache
def shipped() -> Domain:
    """The constants of catalog/comm/experts.toml."""
    return parsed(tomllib.loads(resources.files("sublight.catalog").joinpath("comm/experts.toml").read_text("utf-8")))


def parsed(table: Mapping[str, Any]) -> Domain:
    """The constants of a document in the form of catalog/comm/experts.toml."""
    rows = table["nvl72-alltoall"]
    kernels = {
        name: Kernel(tuple(rows["ranks"]), tuple(us * 1e-6 for us in row["base_us"]),
                     tuple(gb * 1e9 for gb in row["gb_per_second"]), row["width"], row["between_base"],
                     row["between_rate"])
        for name, row in rows["kernel"].items()
    }
    return Domain(kernels, rows["source"])


def parts(kernel: Kernel, *, ranks: int, nbytes: float) -> tuple[float, float]:
    """(base, moving) in seconds of a kernel over so many ranks for these bytes of rows."""
    base = math.exp(_between(kernel.ranks, [math.log(s) for s in kernel.base_s], ranks))
    rate = math.exp(_between(kernel.ranks, [math.log(r) for r in kernel.rate], ranks))
    return base, nbytes / rate


def width(kernel: Kernel, *, ranks: int, base: float, moving: float) -> float:
    """Half of the 80 % interval in natural logarithms."""
    if ranks in kernel.ranks:
        return kernel.width
    return math.hypot(kernel.between_base * base, kernel.between_rate * moving) / (base + moving)


def _between(xs: Sequence[int], ys: Sequence[float], at: int) -> float:
    """Straight between neighbours over log2; the end values outside."""
    for (x0, y0), (x1, y1) in zip(zip(xs, ys, strict=True), zip(xs[1:], ys[1:], strict=True), strict=False):
        if at <= x1:
            share = max(0.0, math.log2(at / x0) / math.log2(x1 / x0))
            return y0 + share * (y1 - y0)
    return ys[-1]


def expected(exchange: Exchange, cluster: Cluster, *, domain: Domain | None = None) -> Expected:
    """What this exchange should take, with an 80 % interval. Raises InputError outside an NVL72 domain, for uneven
    routing, and for rows that no such kernel was measured with."""
    constants = domain or shipped()
    if cluster.node.device.key not in LIKE or exchange.nodes > 1:
        raise InputError(f"nvl72-alltoall: expected ranks of one NVL72 domain (GB200, GB300), got {exchange.ranks} "
                         f"ranks of {exchange.per_node} a domain on {cluster.node.key}; for DeepEP say --mode normal")
    if not exchange.routing.even:
        raise InputError("nvl72-alltoall: only even routing was measured")
    name = f"{exchange.phase} {exchange.row_form}"
    if name not in constants.kernels:
        raise InputError(f"nvl72-alltoall: no {name} rows were measured; known: {', '.join(sorted(constants.kernels))}")
    kernel, extra, notes = constants.kernels[name], 0.0, ["even routing"]
    copies = exchange.tokens * traffic(exchange).ranks
    base, moving = parts(kernel, ranks=exchange.ranks, nbytes=copies * exchange.row_bytes)
    if exchange.top_k != TOP_K:
        extra = 0.10
        notes.append(f"top-k {exchange.top_k}: {TOP_K} was measured")
    if cluster.node.device.key != MEASURED:
        extra = math.hypot(extra, 0.08)
        notes.append(f"taken over to {cluster.node.device.title}")
    if exchange.ranks > kernel.ranks[-1]:
        extra = math.hypot(extra, 0.10)
        notes.append(f"{exchange.ranks} ranks: constants of {kernel.ranks[-1]}")
    if exchange.phase == "dispatch":
        before = sum(parts(constants.kernels["prepare"], ranks=exchange.ranks, nbytes=float(exchange.tokens)))
        notes.append(f"the prepare kernel before it takes {before * 1e6:.1f} µs and is not in it")
    seconds, half = base + moving, math.hypot(width(kernel, ranks=exchange.ranks, base=base, moving=moving), extra)
    terms = {"base latency": base, "NVLink": moving}
    return Expected(seconds, seconds * math.exp(-half), seconds * math.exp(half), terms,
                    max(terms, key=lambda term: terms[term]), constants.source, tuple(notes))
