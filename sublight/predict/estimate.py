"""This file knows about an estimate: what a prediction says, as Results with intervals, and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sublight.result import Result


@dataclass(frozen=True)
class Estimate:
    """Results by name. Serving: "TTFT", "TPOT", "ITL", "latency", "tokens/s/GPU", "tokens/s/user", "requests/s";
    training: "step time", "tokens/s/GPU", "model FLOP/s/GPU", "MFU"; each in base units (s, tokens/s, FLOP/s).

    shares: of machine.RATES, of the typical step, summing to 1. limiter: the largest, or "KV capacity", "host" ….
    """

    results: Mapping[str, Result]
    shares: Mapping[str, float]
    limiter: str
    basis: str                           # what the constants were fitted on, in words
    notes: tuple[str, ...] = field(default=())

    def value(self, name: str) -> float:
        """The predicted value of a result, in its unit."""
        return self.results[name].samples[0]
