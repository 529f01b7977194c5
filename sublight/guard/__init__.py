"""A against B: what changed between two runs, and by how much."""

from __future__ import annotations

from sublight.guard.attribute import Difference, diff

__all__ = ["Difference", "diff"]
