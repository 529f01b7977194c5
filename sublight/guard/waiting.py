"""This file knows about what a run's ranks do inside their collectives: wait for the last of them, or transfer. A
collective that takes longer because a peer came late is no slower collective.

    rank 0    ├─ compute ─┤├────── waiting ──────┤─ transfer ─┤
    rank 1    ├─────────── compute ─────────────┤├─ transfer ─┤
"""

from __future__ import annotations

from dataclasses import dataclass

from sublight.explain.ranks import Ranks, ranks_of
from sublight.guard.member import Member, in_windows
from sublight.guard.typical import Typical


@dataclass(frozen=True, slots=True)
class Inside:
    """Of a typical step of one device: its time inside collectives that all their ranks are known of, which is
    waiting_ns + transfer_ns, hidden or not. collectives: how many of them, a step."""

    waiting_ns: int
    transfer_ns: int
    collectives: float


def inside_collectives(run: Typical) -> Inside | None:
    """Waiting and transfer of a step; None of a single rank, and where clocks or names do not tell (docs/ranks.md)."""
    found = [sums for one in run.recordings or (run,) if (sums := _sums(one)) is not None]
    if len(found) < max(1, len(run.recordings)):
        return None
    waiting, transfer, count = (sum(column) for column in zip(*found, strict=True))
    each = run.repetitions
    return Inside(round(waiting / each), round(transfer / each), count / each) if count else None


def _sums(run: Typical) -> tuple[int, int, int] | None:
    """Waiting, transfer and collectives of one recording, over all its repetitions."""
    ranks = ranks_of([m.view for m in run.members])
    if ranks is None or ranks.refused is not None:
        return None
    of_view = {id(m.view): m for m in run.members}
    waiting, transfer, count = 0, 0, 0
    for number, view in enumerate(ranks.views):
        w, t, n = _of_member(ranks, number, of_view[id(view)])
        waiting, transfer, count = waiting + w, transfer + t, count + n
    return waiting, transfer, count


def _of_member(ranks: Ranks, number: int, member: Member) -> tuple[int, int, int]:
    """Sums over the collectives that begin in a member's repetitions."""
    waiting = transfer = count = 0
    for group in ranks.groups:
        if number not in group.members:
            continue
        at = group.members.index(number)
        starts = member.view.trace.activities.ts_ns[group.rows[:, at]]
        mine = group.agreed & in_windows(starts, member.kept)
        waiting += int(group.waiting_ns[mine, at].sum())
        transfer += int(group.transfer_ns[mine].sum())
        count += int(mine.sum())
    return waiting, transfer, count
