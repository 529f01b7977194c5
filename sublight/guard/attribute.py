"""This file knows about the difference of two runs' typical steps: attributed to the nanosecond, against the bounds of
both devices, with what changed.

    B's step − A's step = sum over parts = sum over keys (part, operator, kernel) = sum over changes
                        = what the bounds explain (other hardware, other work) + what is left
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sublight.budget import PARTS
from sublight.device import Device
from sublight.guard.changes import Change, changes
from sublight.guard.config import Setting, settings
from sublight.guard.member import Key
from sublight.guard.typical import Entry, Typical, typical
from sublight.guard.waiting import Inside, inside_collectives
from sublight.trace import Trace
from sublight.verdict import Verdict


@dataclass(frozen=True, slots=True)
class PartChange:
    """One part of the budget in both typical steps. bound: of what is known of it; known: the time that has one."""

    name: str
    a: Entry
    b: Entry

    @property
    def ns(self) -> int:
        return self.b.ns - self.a.ns

    @property
    def explained_ns(self) -> int:
        """What the bounds of both explain: other hardware, other work."""
        return self.b.bound_ns - self.a.bound_ns

    @property
    def left_ns(self) -> int:
        return self.ns - self.explained_ns


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key in both typical steps."""

    key: Key
    a: Entry
    b: Entry

    @property
    def ns(self) -> int:
        return self.b.ns - self.a.ns


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Difference:
    """B against A."""

    a: Typical
    b: Typical
    parts: tuple[PartChange, ...]        # in the order of the budget
    keys: tuple[KeyChange, ...]          # by size, largest first
    changes: tuple[Change, ...]          # by size, largest first; what is small is put together
    settings: tuple[Setting, ...]
    verdict: Verdict                     # on the length of a step: what the recordings of each side can tell
    inside: tuple[Inside | None, Inside | None]     # of both, waiting and transfer inside collectives

    @property
    def ns(self) -> int:
        return self.b.step_ns - self.a.step_ns

    @property
    def bounded(self) -> bool:
        """Are bounds known on both sides?"""
        return self.a.bounded and self.b.bounded


def diff(a: Sequence[Trace], b: Sequence[Trace], *, device: Device | None = None) -> Difference:
    """What changed from run A to run B. Raises InputError where a run has nothing to account for.

    `a`, `b`: the traces of each run, one a rank. `device` overrides what the traces say about their devices. Several
    recordings of a side: `difference(pooled([typical(one), …]), …)`.
    """
    return difference(typical(a, device=device), typical(b, device=device))


def difference(a: Typical, b: Typical, *, paired: bool = False) -> Difference:
    """Two typical steps against each other. paired: of several recordings, i of B was made beside i of A."""
    from sublight.guard.results import recordings, steps

    several = a.recordings or b.recordings
    judged = recordings(a.recordings or (a,), b.recordings or (b,), paired=paired) if several else steps(a, b)

    keys = [KeyChange(key, a[key], b[key]) for key in sorted({*a.entries, *b.entries})]
    parts = [PartChange(name, _sum(a, name), _sum(b, name)) for name in PARTS]
    out = Difference(
        a, b, tuple(part for part in parts if part.a.ns or part.b.ns),
        tuple(sorted(keys, key=lambda row: (-abs(row.ns), row.key))), changes(a, b), settings(a, b), judged,
        (inside_collectives(a), inside_collectives(b)))
    for what, rows in (("parts", out.parts), ("keys", out.keys), ("changes", out.changes)):
        assert sum(row.ns for row in rows) == out.ns, f"the {what} do not sum to the difference"
    return out


def _sum(run: Typical, part: str) -> Entry:
    mine = [entry for key, entry in run.entries.items() if key.part == part]
    return Entry(
        sum(e.ns for e in mine), sum(e.spent_ns for e in mine), sum(e.runs for e in mine),
        sum(e.bound_ns for e in mine), sum(e.known_ns for e in mine))
