"""This file knows about an expected time: what a message should take on a cluster, how sure that is, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Expected:
    """Seconds with an 80 % interval: of comparable systems that were measured, 8 in 10 lie inside."""

    seconds: float
    low: float
    high: float
    terms: Mapping[str, float]           # seconds by part ("base latency", "NVLink", "rail", "spine", …)
    limiter: str                         # the largest term
    basis: str                           # what the constants were fitted on, or from what they were transferred
    notes: tuple[str, ...] = ()          # assumptions, in words
