"""This file knows about the time of custom all-reduces inside one NVLink domain: one-shot, two-shot, NVLS.

    one-shot   base + (n-1) S / rate           each rank reads what all others have, and adds it up
    two-shot   base + 2 (n-1)/n S / rate       each adds up its part, then all fetch the parts
    NVLS       base + S / (share x link)       the switch adds up and multicasts
    eager      launched from Python: no faster than the host, which takes longer than small messages do
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from sublight.cluster import Cluster
from sublight.comm.expected import Expected
from sublight.errors import InputError
from sublight.work import Message

LARGEST = 4 << 20                        # bytes; beyond, the libraries hand over to NCCL
FORMS = ("bf16", "fp16", "fp32")         # number formats that the libraries' kernels add up; bf16 was measured


@dataclass(frozen=True, slots=True)
class Shots:
    """Constants of one device; seconds and bytes a second. width: half an 80 % interval, natural logarithms."""

    one_base_s: float
    one_rate: float
    two_base_s: float
    two_rate: float
    eager_s: float                       # the least that an eager launch takes
    width: float
    largest_group: int                   # that was measured


@dataclass(frozen=True, slots=True)
class Custom:
    """Constants by key of the device, and of NVLS by compute capability's generation."""

    shots: Mapping[str, Shots]
    nvls_base_s: Mapping[str, float]
    nvls_share: Mapping[str, float]
    source: str
    nvls_source: str


@cache
def shipped() -> Custom:
    """The constants of catalog/comm/custom.toml."""
    table = tomllib.loads(resources.files("sublight.catalog").joinpath("comm/custom.toml").read_text("utf-8"))
    nvls = table["nvls"]
    return Custom({key: _shots(row) for key, row in table["shots"].items()},
                  {k: v * 1e-6 for k, v in nvls["base_us"].items()}, dict(nvls["share"]), table["source"],
                  nvls["source"])


def _shots(row: Mapping[str, Any]) -> Shots:
    one, two = row["one_shot"], row["two_shot"]
    return Shots(one["base_us"] * 1e-6, one["gb_per_second"] * 1e9, two["base_us"] * 1e-6, two["gb_per_second"] * 1e9,
                 row["eager_us"] * 1e-6, row["width"], row["largest_group"])


def parts(shots: Shots, *, kind: str, ranks: int, nbytes: float) -> tuple[float, float]:
    """(base, moving) in seconds under a CUDA graph."""
    if kind == "one-shot":
        return shots.one_base_s, (ranks - 1) * nbytes / shots.one_rate
    return shots.two_base_s, 2 * (ranks - 1) / ranks * nbytes / shots.two_rate


def custom(
    message: Message, cluster: Cluster, *, kind: str, graph: bool = True, dtype: str = "bf16",
    constants: Custom | None = None,
) -> Expected:
    """What a custom all-reduce should take: seconds with an 80 % interval.

    kind: "one-shot", "two-shot", "nvls". Raises InputError for other collectives, boxes without NVLink, and devices,
    groups or sizes that were not measured.
    """
    known = constants or shipped()
    node = cluster.node
    if message.collective != "all_reduce":
        raise InputError(f"{kind} is an all-reduce, got {message.collective}; expected --kind nccl")
    if dtype not in FORMS:
        raise InputError(f"{kind} adds up {', '.join(FORMS)}, got '{dtype}'; expected --kind nccl")
    if kind == "nvls":
        return _nvls(message, cluster, known, graph)
    shots = known.shots.get(node.device.key)
    if shots is None:
        raise InputError(f"{kind}: no custom all-reduce was measured on {node.key}; known: {', '.join(known.shots)}")
    if message.group > shots.largest_group:
        raise InputError(f"{kind}: {message.group} ranks, but on {node.key} at most {shots.largest_group} measured")
    if message.nbytes > LARGEST:
        raise InputError(f"{kind}: {message.nbytes} bytes; beyond {LARGEST} libraries hand over to NCCL: --kind nccl")
    base, moving = parts(shots, kind=kind, ranks=message.group, nbytes=message.nbytes)
    return _said(base, moving, shots.width, known.source, graph, shots.eager_s)


def _nvls(message: Message, cluster: Cluster, known: Custom, graph: bool) -> Expected:
    node = cluster.node
    capability, rate = node.device.capability or (0, 0), node.device.limits.link_bytes_per_second
    if node.nvlink != "switch" or capability < (9, 0) or not rate:
        raise InputError(f"nvls: {node.key} has no NVSwitch that reduces; it needs Hopper or newer on a switch")
    generation = "hopper" if capability < (10, 0) else "blackwell"
    base, moving = known.nvls_base_s[generation], message.nbytes / (rate * known.nvls_share[generation])
    shots = known.shots.get(node.device.key, known.shots["h100-sxm"])
    return _said(base, moving, 0.30, known.nvls_source, graph, shots.eager_s)


def _said(base: float, moving: float, width: float, source: str, graph: bool, eager_s: float) -> Expected:
    seconds, terms, notes = base + moving, {"base latency": base, "NVLink": moving}, ["launched by a CUDA graph"]
    if not graph:
        notes = ["launched eagerly: the host's launch takes at least as long as written under host"]
        terms["host"], seconds, width = eager_s, max(seconds, eager_s), math.hypot(width, 0.20)
    return Expected(seconds, seconds * math.exp(-width), seconds * math.exp(width), terms,
                    max(terms, key=lambda name: terms[name]), source, tuple(notes))
