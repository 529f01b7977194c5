"""This file knows about a call of a pass: an operator, how often a stage runs it, what its time is charged to."""

from __future__ import annotations

from dataclasses import dataclass

from sublight.ops.op import Op


@dataclass(frozen=True, slots=True)
class Call:
    """An operator, how often a stage calls it for one micro-batch, and what its time is charged to. top_k: experts of a
    token, of their exchanges."""

    label: str
    op: Op
    count: int
    kind: str
    top_k: int = 0
