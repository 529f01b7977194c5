"""This file knows about several ranks of one run: who came last to each collective, who waited, and for how long.

    rank 0    ├─ compute ─┤├────── waiting ──────┤─ transfer ─┤
    rank 1    ├───── compute ─────┤├── waiting ──┤─ transfer ─┤
    rank 2    ├─────────── compute ─────────────┤├─ transfer ─┤     the last: nobody waits beyond its arrival
                          |←─ start spread ─────→|

docs/ranks.md defines every figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sublight.explain.clocks import FAR_APART_NS, Clock, Residual, clocks, residual
from sublight.explain.imbalance import Imbalance, RankRow, compute_of_steps, rank_rows
from sublight.explain.matching import ENDS_DISAGREE, Matched, match, what
from sublight.explain.view import View
from sublight.explain.words import ms, number
from sublight.trace import I64, B

ENDS_AGREE_NS = 50_000           # what may or may not synchronise is taken for a collective up to this spread of ends


@dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Members that run the same collectives, in order. Shapes: (collectives, members) or (collectives,).

    start_ns and end_ns are on the clock of the members' reference; rows index each member's Trace.activities.
    """

    label: str                   # "process group 3" or "stream 84"
    size: int                    # ranks that the group has as its records say; 0 if they do not
    members: tuple[int, ...]
    rows: I64
    start_ns: I64
    end_ns: I64
    agreed: B                    # whether the aligned ends agree; where they do not, nobody can say who waited
    counted: I64                 # positions of those that do, and that lie inside every member's window

    @property
    def arrivals_ns(self) -> I64:
        """Starts in order of time, the last in the last column."""
        out: I64 = np.sort(self.start_ns, axis=1)
        return out

    @property
    def last(self) -> I64:
        """The member that came last to each; of several at once the lowest."""
        out: I64 = np.array(self.members, np.int64)[np.argmax(self.start_ns, axis=1)]
        return out

    @property
    def spread_ns(self) -> I64:
        """Last minus first arrival."""
        return _spread(self.start_ns)

    @property
    def alone_ns(self) -> I64:
        """Last minus second-to-last arrival: what each would be spared if the last had come with the one before."""
        arrivals = self.arrivals_ns
        return arrivals[:, -1] - arrivals[:, -2]

    @property
    def transfer_ns(self) -> I64:
        """The shortest duration: of who came last, up to the residual. It depends on no clock."""
        out: I64 = (self.end_ns - self.start_ns).min(axis=1)
        return out

    @property
    def waiting_ns(self) -> I64:
        """Each member's duration less the transfer, so that the two sum to it exactly."""
        return self.end_ns - self.start_ns - self.transfer_ns[:, None]

    @property
    def late_ns(self) -> I64:
        """How much of the time from the median arrival to the last each member answers for.

        The time between two arrivals is shared among the ranks that have not come yet; what no division by whole
        nanoseconds can share goes to the last. With an even number, the median is the earlier of the middle two.
        """
        order = np.argsort(self.start_ns, axis=1, kind="stable")
        arrivals = np.take_along_axis(self.start_ns, order, axis=1)
        n = arrivals.shape[1]
        gaps = np.diff(arrivals, axis=1)
        gaps[:, : (n - 1) // 2] = 0
        missing = np.arange(n - 1, 0, -1)
        owed = np.concatenate([np.zeros((len(gaps), 1), np.int64), np.cumsum(gaps // missing, axis=1)], axis=1)
        owed[:, -1] += (gaps % missing).sum(axis=1)
        out = np.empty_like(owed)
        np.put_along_axis(out, order, owed, axis=1)
        return out


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One collective. Members are indices into Ranks.views; per-member figures are in the order of `members`."""

    name: str
    kind: str | None             # "all-reduce" …; None where its name does not say
    group: str
    members: tuple[int, ...]
    counted: bool                # its ends agree, and it lies inside every member's window
    end_ns: int                  # the last end, on the reference's clock
    last: int                    # the member that came last
    spread_ns: int
    alone_ns: int
    transfer_ns: int
    waiting_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Straggler:
    """One member over the counted collectives: its time in them, and what its late arrivals cost the others.

    waiting_ns + transfer_ns is the summed duration of its kernels.
    """

    member: int
    collectives: int             # that it takes part in
    waiting_ns: int
    transfer_ns: int
    last_in: int                 # collectives that it came last to
    late_ns: int                 # its part of the time from the median arrival to the last
    alone_ns: int                # last minus second-to-last arrival, where it was the last


@dataclass(frozen=True, eq=False, slots=True)
class Ranks:
    """Several ranks of one run. A member is an index into `views`, which are in order of rank and device."""

    views: tuple[View, ...]
    labels: tuple[str, ...]                        # "rank 3"
    clocks: tuple[Clock, ...]
    residual: Residual | None                      # None where no collective is matched
    refused: str | None                            # why waiting and stragglers are not told; None if they are
    groups: tuple[Group, ...]
    communication_kernels: tuple[int, ...]         # of each member
    unmatched: tuple[Mapping[str, int], ...]       # of each member, kernels in no collective, by reason
    ranks_not_given: int                           # of the world, as the files say
    stragglers: tuple[Straggler, ...]              # worst first; of every member; empty if refused
    imbalance: tuple[Imbalance, ...]               # by step
    rows: tuple[RankRow, ...]                      # one a member, for a strip

    @property
    def counted(self) -> int:
        """Collectives whose ends agree, inside every member's window."""
        return sum(len(group.counted) for group in self.groups)

    @property
    def steps(self) -> int | None:
        """Steps that the windows are made of; None if they are not made of steps."""
        return max(len(v.steps) for v in self.views) if all(v.window == "step" for v in self.views) else None

    @property
    def window_ns(self) -> int:
        """The longest of the members' windows."""
        return max(view.budget.window_ns for view in self.views)

    def collectives(self) -> tuple[CollectiveRow, ...]:
        """Every matched collective, in order of its end."""
        out = []
        for group in self.groups:
            trace = self.views[group.members[0]].trace
            counted = set(group.counted.tolist())
            columns = zip(group.rows[:, 0].tolist(), group.end_ns.max(axis=1).tolist(), group.last.tolist(),
                          group.spread_ns.tolist(), group.alone_ns.tolist(), group.transfer_ns.tolist(),
                          group.waiting_ns.tolist(), strict=True)
            for i, (row, end, last, spread, alone, transfer, waiting) in enumerate(columns):
                kind, name = what(trace, row)
                out.append(CollectiveRow(name, kind, group.label, group.members, i in counted, end, last, spread,
                                         alone, transfer, tuple(waiting)))
        return tuple(sorted(out, key=lambda c: c.end_ns))


def ranks_of(views: Sequence[View]) -> Ranks | None:
    """What several ranks of a run tell together; None for a single rank, and for CPU-only recordings."""
    several = sorted((v for v in views if not v.cpu_only), key=lambda v: (v.trace.rank or 0, str(v.device)))
    if len({id(view.trace) for view in several}) < 2:
        return None
    matched, unmatched = match(several)
    kernels = tuple(sum(unmatched[m].values()) + sum(len(x.rows) for x in matched if m in x.members)
                    for m in range(len(several)))
    ends = [_column(several, lane, "end_ns") for lane in matched]
    # Of what need not synchronise, that whose ends agree; it then speaks about the clocks too.
    first = clocks(matched, ends, len(several))
    kept = [_agreeing(lane, end, first) for lane, end in zip(matched, ends, strict=True)]
    for lane, keep in zip(matched, kept, strict=True):
        for member in lane.members:
            unmatched[member][ENDS_DISAGREE] += int((~keep).sum())
    matched = tuple(Matched(x.key, x.size, x.members, x.rows[keep], np.ones(int(keep.sum()), bool))
                    for x, keep in zip(matched, kept, strict=True) if keep.any())
    ends = [end[keep] for end, keep in zip(ends, kept, strict=True) if keep.any()]
    clock = clocks(matched, ends, len(several))
    in_window = [_in_window(view) for view in several]
    groups = tuple(_group(several, lane, clock, in_window) for lane in matched)
    left = residual(np.concatenate([np.zeros(0, np.int64), *(_spread(g.end_ns) for g in groups)]))
    refused = _refusal(left, max(kernels))
    return Ranks(
        views=tuple(several), labels=_labels(several), clocks=clock, residual=left, refused=refused,
        groups=groups, communication_kernels=kernels, unmatched=tuple(+counter for counter in unmatched),
        ranks_not_given=max(max(v.trace.world_size or 0 for v in several) - len({v.trace.rank for v in several}), 0),
        stragglers=() if refused else _stragglers(groups, len(several)),
        imbalance=compute_of_steps(several),
        rows=rank_rows(several, None if refused else _waits(several, groups)),
    )


def _labels(views: Sequence[View]) -> tuple[str, ...]:
    ranks = [view.trace.rank if view.trace.rank is not None else i for i, view in enumerate(views)]
    return tuple(f"rank {rank}" + (f" (device {view.device})" if ranks.count(rank) > 1 else "")
                 for rank, view in zip(ranks, views, strict=True))


def _column(views: Sequence[View], lane: Matched | Group, column: str) -> I64:
    """A column of the activities of each member's trace, of a lane's rows."""
    columns = [getattr(views[member].trace.activities, column)[lane.rows[:, at]]
               for at, member in enumerate(lane.members)]
    return np.stack(columns, axis=1)


def _spread(times_ns: I64) -> I64:
    out: I64 = times_ns.max(axis=1) - times_ns.min(axis=1)
    return out


def _agreeing(lane: Matched, ends_ns: I64, clock: Sequence[Clock]) -> B:
    """Which of a lane are collectives: those that synchronise, and those whose aligned ends agree all the same."""
    out: B = lane.firm | (_spread(ends_ns - _offsets(lane, clock)) <= ENDS_AGREE_NS)
    return out


def _offsets(lane: Matched, clock: Sequence[Clock]) -> I64:
    return np.array([clock[m].offset_ns for m in lane.members], np.int64)


def _group(views: Sequence[View], lane: Matched, clock: Sequence[Clock], in_window: Sequence[B]) -> Group:
    offsets = _offsets(lane, clock)
    start, end = (_column(views, lane, column) - offsets for column in ("ts_ns", "end_ns"))
    inside = np.ones(len(lane.rows), bool)
    for at, member in enumerate(lane.members):
        inside &= in_window[member][lane.rows[:, at]]
    label = f"{'process group' if lane.key[0] == 'group' else lane.key[0]} {lane.key[1]}"
    agreed = _spread(end) <= FAR_APART_NS
    return Group(label, lane.size, lane.members, lane.rows, start, end, agreed, np.flatnonzero(inside & agreed))


def _in_window(view: View) -> B:
    """Which activities of the trace lie at least partly in the view's window."""
    out = np.zeros(len(view.trace.activities.ts_ns), bool)
    out[view.rows] = True
    return out


def _refusal(left: Residual | None, kernels: int) -> str | None:
    if left is None:
        return ("no rank runs communication kernels" if not kernels else
                "no collective that synchronises was found on more than one rank")
    if 2 * left.apart > left.collectives:
        return (f"the ends of {left.apart} of {number(left.collectives, 'collective')} are still more than "
                f"{ms(FAR_APART_NS)} apart after their clocks were aligned (median {ms(left.median_ns)}, at most "
                f"{ms(left.max_ns)})")
    return None


def _stragglers(groups: Sequence[Group], members: int) -> tuple[Straggler, ...]:
    count, waiting, transfer, last_in, late, alone = np.zeros((6, members), np.int64)
    for group in groups:
        its, counted = list(group.members), group.counted
        count[its] += len(counted)
        waiting[its] += group.waiting_ns[counted].sum(axis=0)
        transfer[its] += group.transfer_ns[counted].sum()
        np.add.at(last_in, group.last[counted], 1)
        np.add.at(alone, group.last[counted], group.alone_ns[counted])
        late[its] += group.late_ns[counted].sum(axis=0)
    columns = zip(*(c.tolist() for c in (count, waiting, transfer, last_in, late, alone)), strict=True)
    out = [Straggler(member, *figures) for member, figures in enumerate(columns)]
    return tuple(sorted(out, key=lambda s: (-s.late_ns, s.member)))


def _waits(views: Sequence[View], groups: Sequence[Group]) -> list[I64]:
    """For each member the stretches (start, end), on its own clock, in which it waits inside collectives."""
    out: list[Any] = [[np.zeros((0, 2), np.int64)] for _ in views]
    for group in groups:
        starts, waiting = _column(views, group, "ts_ns"), group.waiting_ns
        for at, member in enumerate(group.members):
            stretches = np.stack([starts[:, at], starts[:, at] + waiting[:, at]], axis=1)
            out[member].append(stretches[group.agreed])
    return [np.concatenate(parts) for parts in out]
