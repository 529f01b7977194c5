"""This file knows about how unevenly ranks spend their time: compute by step, and each rank's window as a strip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

import numpy as np

from sublight.budget import COMMUNICATION, PART_INDEX
from sublight.explain.steps import REPETITION, union
from sublight.explain.view import View, inside
from sublight.trace import I64

EXPOSED = [PART_INDEX[part] for part in COMMUNICATION.values()]
EXPOSED_WAITING = PART_INDEX[COMMUNICATION["communication: wait"]]


@dataclass(frozen=True, slots=True)
class Imbalance:
    """Compute time of each member in one step, in nanoseconds; None where a member does not show the step."""

    label: str                              # of the step; "window" where no steps can be compared
    compute_ns: tuple[int | None, ...]

    @property
    def known(self) -> tuple[int, ...]:
        return tuple(ns for ns in self.compute_ns if ns is not None)

    @property
    def min_ns(self) -> int:
        return min(self.known)

    @property
    def median_ns(self) -> int:
        """Of an even number, the smaller of the middle two."""
        return median_low(self.known)

    @property
    def max_ns(self) -> int:
        return max(self.known)

    @property
    def slowest(self) -> int:
        """The member that computes longest; of several the lowest."""
        return self.compute_ns.index(self.max_ns)

    @property
    def excess_ns(self) -> int:
        """Longest less mean, rounded down: what an even spread of the same work would save."""
        return self.max_ns - -(-sum(self.known) // len(self.known))


@dataclass(frozen=True, slots=True)
class RankRow:
    """One member's window; the parts sum to it. waiting_ns is exposed waiting, also that of kernels which only wait;
    None where it cannot be told from moving data, and then it is in exposed_communication_ns."""

    member: int
    window_ns: int
    compute_ns: int
    exposed_communication_ns: int
    waiting_ns: int | None
    copies_ns: int
    idle_ns: int

    def share(self, ns: int) -> float:
        """Of the window."""
        return ns / self.window_ns if self.window_ns else 0.0


def compute_of_steps(views: Sequence[View]) -> tuple[Imbalance, ...]:
    """Compute time by step and member. Steps are the same where their labels are, else by their order where every
    member has equally many. Without steps, in an interval that was asked for, and where steps were found, not marked
    (each rank's may be cut elsewhere), the window counts as one."""
    steps = [_steps(view) for view in views]
    if any(view.window == "A:B" or view.step_kind == REPETITION for view in views) or not all(steps):
        return (Imbalance("window", tuple(view.budget.group_ns("compute") for view in views)),)
    labelled = all(view.step_kind == "torch.profiler schedule" for view in views)
    if labelled:
        labels = list(dict.fromkeys(label for of_view in steps for label in of_view))
        out = [Imbalance(label, tuple(of_view.get(label) for of_view in steps)) for label in labels]
        return tuple(sorted(out, key=lambda row: int(row.label)))
    if len({len(of_view) for of_view in steps}) > 1:
        return (Imbalance("window", tuple(view.budget.group_ns("compute") for view in views)),)
    return tuple(Imbalance(str(i), row) for i, row in enumerate(zip(*(s.values() for s in steps), strict=True)))


def _steps(view: View) -> dict[str, int]:
    """Compute time of each step on a device, by label."""
    out: dict[str, int] = {}
    numbered = view.step_kind == "torch.profiler schedule"
    for i, step in enumerate(view.steps):
        if step.window is not None:
            label = step.label if numbered else str(i)
            out[label] = out.get(label, 0) + view.timeline.budget([step.window]).group_ns("compute")
    return out


def rank_rows(views: Sequence[View], waits: Sequence[I64] | None) -> tuple[RankRow, ...]:
    """One row a member. `waits`: the stretches in which each waits inside collectives; None if that is unknown."""
    out = []
    for member, view in enumerate(views):
        budget = view.budget
        exposed = budget.group_ns("communication")
        waiting = None if waits is None else _exposed_waiting(view, waits[member])
        out.append(RankRow(
            member=member, window_ns=budget.window_ns, compute_ns=budget.group_ns("compute"),
            exposed_communication_ns=exposed - (waiting or 0), waiting_ns=waiting,
            copies_ns=budget.group_ns("copies"), idle_ns=budget.idle_ns,
        ))
    return tuple(out)


def _exposed_waiting(view: View, waits: I64) -> int:
    """How much of the window's exposed communication is waiting."""
    stretches = union([(start, end) for start, end in waits.tolist()])
    total = 0
    for low, high in view.windows:
        lengths, owner, _ = view.timeline.cut([(low, high)])
        edges = low + np.concatenate([[0], np.cumsum(lengths)])
        waited = inside(edges[:-1], edges[1:], stretches)
        total += int(np.where(owner == EXPOSED_WAITING, lengths, waited)[np.isin(owner, EXPOSED)].sum())
    return total
