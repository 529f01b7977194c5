"""This file knows about the memory of one GPU: what a plan puts there, by part, and what is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ledger:
    """Bytes of one GPU by part, and the bytes that there are."""

    parts: Mapping[str, int]
    capacity: int

    @property
    def used(self) -> int:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.used <= self.capacity
