"""This file knows about the clocks of several ranks: how far they are apart, from the ends of collectives.

    rank 0    ├──── all-reduce ────┤            a collective that synchronises ends everywhere within microseconds,
    rank 1         ├──── all-reduce ────┤       so what its ends differ by is what the clocks differ by
                                   |←──→| offset

The offset of a rank is the median over the collectives that it shares with its reference. A trace's own times are
never moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sublight.explain.matching import Matched
from sublight.trace import I64

FAR_APART_NS = 100_000           # ends so far apart are not those of one collective, or the clocks do not hold


@dataclass(frozen=True, slots=True)
class Clock:
    """How far one rank's clock is ahead of its reference's: its time minus offset_ns is the reference's time."""

    offset_ns: int
    reference: int               # member whose clock this is relative to; itself where nothing joins it to a lower one
    collectives: int             # that the offset is the median of; 0 for a reference


@dataclass(frozen=True, slots=True)
class Residual:
    """How far the ends of collectives are still apart after the alignment: last minus first end of each."""

    collectives: int
    median_ns: int
    max_ns: int
    apart: int                   # collectives whose ends are further apart than FAR_APART_NS


def clocks(matched: Sequence[Matched], ends_ns: Sequence[I64], members: int) -> tuple[Clock, ...]:
    """The clock of each member, from the collectives that synchronise. `ends_ns`: of each lane, shape (collectives,
    members of the lane).

    Members that share no collective with the reference are aligned through one that does: always along the pair
    that shares most.
    """
    shared = np.zeros((members, members), np.int64)
    for lane in matched:
        shared[np.ix_(lane.members, lane.members)] += int(lane.firm.sum())
    out: dict[int, Clock] = {}
    while len(out) < members:
        waiting = [m for m in range(members) if m not in out]
        count, known, new = max(((int(shared[k, m]), -k, -m) for k in out for m in waiting), default=(0, 0, 0))
        if count:
            parent = out[-known]
            step = median_ns(_differences(matched, ends_ns, -known, -new))
            out[-new] = Clock(parent.offset_ns + step, parent.reference, count)
        else:
            out[waiting[0]] = Clock(0, waiting[0], 0)
    return tuple(out[m] for m in range(members))


def _differences(matched: Sequence[Matched], ends_ns: Sequence[I64], known: int, new: int) -> I64:
    """Of every synchronising collective that both members show: the end on `new` minus that on `known`."""
    return np.concatenate([
        ends[lane.firm][:, lane.members.index(new)] - ends[lane.firm][:, lane.members.index(known)]
        for lane, ends in zip(matched, ends_ns, strict=True) if known in lane.members and new in lane.members
    ])


def median_ns(values: I64) -> int:
    """The median in whole nanoseconds, rounded down. Doubles would lose some: clocks may be an epoch apart."""
    ordered = np.sort(values)
    low, high = int(ordered[(len(ordered) - 1) // 2]), int(ordered[len(ordered) // 2])
    return low + (high - low) // 2


def residual(spreads_ns: I64) -> Residual | None:
    """The residual of collectives whose aligned ends spread so far; None if there are none."""
    if not len(spreads_ns):
        return None
    return Residual(len(spreads_ns), median_ns(spreads_ns), int(spreads_ns.max()),
                    int((spreads_ns > FAR_APART_NS).sum()))
