"""This file knows about what a log says: steps, and facts of the start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """One line about steps. kind: "interval" (means of seconds), "iteration", "prefill", "decode" or "step".

    values by our own names, in base units: seconds, bytes, tokens/s, FLOP/s, shares.
    """

    kind: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Log:
    """Lines of one engine. facts: kv_tokens, kv_bytes, max_length, weight_bytes … of one rank (the least of several).

    arguments: allow-listed settings that the log prints at the start, by the engine's names. lines: how many were read.
    """

    engine: str                          # "vllm", "sglang", "trtllm", "megatron", "torchtitan"
    version: str | None = None
    steps: tuple[Step, ...] = ()
    facts: Mapping[str, float] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    lines: int = 0

    def values(self, name: str, kind: str | None = None) -> list[float]:
        """All values of a name, in the order of the lines."""
        return [step.values[name] for step in self.steps if name in step.values and kind in (None, step.kind)]
