"""This file knows about drawing a window as lanes of marks: who owns the time, and what each stream runs.

A picture cannot show half a million stretches, and a page must not carry them. Marks at least as long as the grain are
kept to the nanosecond; shorter ones that begin in the same grain become one mark that says how many it stands for and
how much of it is theirs. The grain is 0 where everything fits.

    exact   ├──a──┤ ├a┤├b┤├a┤  ├───b───┤
    grain   ├──a──┤ ├─3×, a──┤ ├───b───┤
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sublight.budget import COMMUNICATION, GROUPS, PART_INDEX, PARTS
from sublight.explain.view import View
from sublight.trace import I32, I64, B

HIDDEN = len(PARTS)                        # key of communication with compute beside it, behind those of PARTS
KEYS = (*PARTS, "hidden communication")
MOST_STREAMS = 8
FINEST = 1 << 20                           # parts of the span: where thinning begins
KINDS = ("kernel", "memcpy", "memset")


@dataclass(frozen=True, eq=False, slots=True)
class Marks:
    """Marks of one lane in start order. Times in ns. busy_ns and count differ from a mark's own where it is a group."""

    start_ns: I64
    end_ns: I64
    key: I32                               # of an owner lane: index into KEYS; of a stream: row of View.kernels
    count: I64
    busy_ns: I64

    @classmethod
    def of(cls, start_ns: I64, end_ns: I64, key: I32) -> Marks:
        return cls(start_ns, end_ns, key, np.ones(len(key), np.int64), end_ns - start_ns)

    def thinned(self, grain_ns: int) -> Marks:
        """With marks shorter than the grain put together where they begin in the same one."""
        small = self.busy_ns < grain_ns
        if grain_ns <= 0 or not small.any():
            return self
        start, end, busy, key = self.start_ns[small], self.end_ns[small], self.busy_ns[small], self.key[small]
        grain = start // grain_ns
        first = np.flatnonzero(np.diff(grain, prepend=grain[0] - 1))
        group = np.cumsum(np.diff(grain, prepend=grain[0]) != 0)
        together = Marks(
            start[first], np.maximum.reduceat(end, first), _longest_key(group, key, busy),
            np.diff(np.append(first, len(start))), np.add.reduceat(busy, first),
        )
        joined = [np.concatenate([getattr(self, c)[~small], getattr(together, c)])
                  for c in ("start_ns", "end_ns", "key", "count", "busy_ns")]
        order = np.argsort(joined[0], kind="stable")
        return Marks(*(column[order] for column in joined))

    def packed(self, origin_ns: int) -> dict[str, Any]:
        """For a script: starts as differences, lengths, keys; counts and busy times of groups by position."""
        groups = np.flatnonzero(self.count > 1)
        return {
            "s": np.diff(self.start_ns, prepend=origin_ns).tolist(), "d": (self.end_ns - self.start_ns).tolist(),
            "k": self.key.tolist(),
            "g": [groups.tolist(), self.count[groups].tolist(), self.busy_ns[groups].tolist()],
        }


def _longest_key(group: I64, key: I32, busy: I64) -> I32:
    """For each group the key that has most of its time."""
    pair, at = np.unique(group * (int(key.max()) + 1) + key, return_inverse=True)
    ns = np.bincount(at, weights=busy)
    owner = pair // (int(key.max()) + 1)
    order = np.lexsort((ns, owner))
    last = order[np.append(np.diff(owner[order]) != 0, True)]
    out: I32 = (pair[last] % (int(key.max()) + 1)).astype(np.int32)
    return out


def stretches(view: View) -> tuple[I64, I64, I32, B]:
    """(start, end, owner, communicating) of every stretch inside the windows, neighbours of one kind joined."""
    line = view.timeline
    at, start, end = line.pieces(view.windows)
    return _joined(start, end, line.owner[at], line.communicating[at])


def _joined(start: I64, end: I64, owner: I32, communicating: B) -> tuple[I64, I64, I32, B]:
    if not len(start):
        return start, end, owner, communicating
    new = np.ones(len(start), bool)
    new[1:] = (start[1:] != end[:-1]) | (owner[1:] != owner[:-1]) | (communicating[1:] != communicating[:-1])
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(start)) - 1
    return start[first], end[last], owner[first], communicating[first]


def owner_lanes(view: View) -> list[tuple[str, Marks]]:
    """Compute by category, communication in flight (hidden or exposed), copies, and the causes of idle time."""
    start, end, owner, communicating = stretches(view)
    group = np.array([("compute", "communication", "copies", "idle").index(GROUPS[p]) for p in PARTS])[owner]
    key = np.where(communicating & (group == 0), HIDDEN, owner).astype(np.int32)
    undivided = PART_INDEX[COMMUNICATION["communication"]]
    key = np.where(communicating & (group > 1), undivided, key).astype(np.int32)
    out = []
    for name, mask, keys in (
        ("compute, by category", group == 0, owner), ("communication in flight", communicating, key),
        ("exposed copies", group == 2, owner), ("idle, by cause", group == 3, owner),
    ):
        if mask.any():
            s, e, k, _ = _joined(start[mask], end[mask], keys[mask].astype(np.int32), np.zeros(mask.sum(), bool))
            out.append((name, Marks.of(s, e, k)))
    return out


def stream_lanes(view: View) -> tuple[list[tuple[str, Marks]], int]:
    """What each of the busiest streams runs, and how many streams are left out. Keys are rows of View.kernels."""
    if view.cpu_only or not len(view.rows):
        return [], 0
    a = view.trace.activities
    low, high = view.windows[0][0], view.windows[-1][1]
    key = a.name[view.rows].astype(np.int64) * 4 + a.kind[view.rows]
    index = {(row.name, row.kind): i for i, row in enumerate(view.kernels)}
    distinct, at = np.unique(key, return_inverse=True)
    row_of = np.array([index[view.trace.names[k // 4], KINDS[k % 4]] for k in distinct.tolist()], np.int32)[at]
    streams, which = np.unique(a.stream[view.rows], return_inverse=True)
    busiest = np.argsort(-np.bincount(which, weights=view.inside_ns), kind="stable")
    out = []
    for i in sorted(busiest[:MOST_STREAMS].tolist()):
        mine = which == i
        rows = view.rows[mine]
        out.append((f"stream {streams[i]}", Marks.of(np.clip(a.ts_ns[rows], low, high),
                                                    np.clip(a.end_ns[rows], low, high), row_of[mine])))
    return out, len(streams) - len(out)


def thinned(lanes: list[tuple[str, Marks]], span_ns: int, most: int) -> tuple[list[tuple[str, Marks]], int]:
    """The lanes with at most so many marks together, and the grain in ns that this took."""
    def at(grain_ns: int) -> list[tuple[str, Marks]] | None:
        """None where they are still too many, and a coarser grain would help."""
        out = [(name, marks.thinned(grain_ns)) for name, marks in lanes]
        return out if sum(len(marks.key) for _, marks in out) <= most or grain_ns >= span_ns else None

    grain, out = 0, at(0)
    while out is None:                     # double until they fit, then look for a finer one in between
        grain = max(2 * grain, span_ns // FINEST, 1)
        out = at(grain)
    for finer in (grain * 5 // 8, grain * 6 // 8, grain * 7 // 8) if grain > 8 else ():
        if (better := at(finer)) is not None:
            return better, finer
    return out, grain
