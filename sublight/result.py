"""This file knows about results: what was measured of one quantity, and what it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sublight.work import Message


@dataclass(frozen=True, slots=True)
class Placement:
    """Who took part. hosts: as the file names them, in the order of ranks; empty where it does not say."""

    nodes: int
    gpus_per_node: int
    hosts: tuple[str, ...] = ()
    device: str | None = None            # as the driver names it
    library: str | None = None           # "NCCL 2.29.2"


@dataclass(frozen=True, slots=True)
class Result:
    """Samples of one quantity in one unit. No samples: it was tried and failed, and `failure` says how."""

    name: str                            # "time", "bus bandwidth", "transmit time" …
    unit: str                            # "s", "B/s"
    samples: tuple[float, ...]
    message: Message | None = None       # of a collective
    placement: Placement | None = None
    variant: str = ""                    # "in-place", "out-of-place", "dispatch", "combine", …
    failure: str | None = None
    source: str = ""                     # the file's name without its folders
    low: float | None = None             # of a prediction: an 80 % interval of the mean (samples hold one value)
    high: float | None = None
    # of the distribution: {50: …, 99: …}
    percentiles: Mapping[float, float] = field(default_factory=dict, hash=False)
    # Workload, plan and environment that the file says, by allow-listed names: {"tool": …, "model": …}
    about: Mapping[str, Any] = field(default_factory=dict, hash=False)
