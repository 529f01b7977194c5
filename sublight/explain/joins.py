"""This file knows about joins: dependencies between streams, which a Kineto file does not record and times betray.

    stream 7   ├──── A ────┤            ├──── A ────┤              ├──── A ────┤
    stream 20     waiting   ├── B ──┤      waiting ├── B ──┤            ├── B ──┤
               B starts as A ends       B starts in A's tail       no join: B does not wait
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sublight.explain.columns import distinct, present
from sublight.trace import I32, I64, B, Trace

# An event of another stream lets an activity start within so much of its end. Between two streams it takes 1 to 3 µs
# (V100 to H800, measured on real traces).
JOIN_TOLERANCE_NS = 5_000
# A kernel that fills the device frees its SMs over the last part of its run, while its last wave drains; another that
# waits for SMs starts then: up to 42 µs before the end of grouped GEMMs of 700 µs on an H800.
TAIL_SHARE, TAIL_AT_MOST_NS = 10, 50_000


@dataclass(frozen=True, eq=False, slots=True)
class Nodes:
    """What joins are found from. Shapes: one entry a node, in start order."""

    window: I64
    stream: I64
    start_ns: I64
    end_ns: I64
    kernel: B

    def may_join(self, later: I64, earlier: I64) -> B:
        """Which pairs are on two streams of one window, in order."""
        out: B = ((earlier < later) & (self.stream[earlier] != self.stream[later])
                  & (self.window[earlier] == self.window[later]))
        return out


def event_joins(trace: Trace, call: I32, at: Nodes, tick: int) -> tuple[I64, I64]:
    """Pairs (later, earlier) that event calls of a thread suggest. The file names neither event nor stream:

        launch X on stream A … record … wait … launch Y on stream B        Y depends on X

    Without a record in the file, the wait itself takes its place (torch's wait_stream records right before it).
    A pair that the measured times contradict is dropped.
    """
    c = trace.calls
    pairs: set[tuple[int, int]] = set()
    names = trace.names
    kinds = {kind: np.array([i for i in present(c.name) if kind in names[i]], np.int32)
             for kind in ("StreamWaitEvent", "EventRecord")}
    if not len(kinds["StreamWaitEvent"]):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    waits = np.flatnonzero(np.isin(c.name, kinds["StreamWaitEvent"]))
    records = np.flatnonzero(np.isin(c.name, kinds["EventRecord"]))
    node = np.flatnonzero(call >= 0)
    node = node[np.argsort(call[node], kind="stable")]       # calls are in time order
    thread = c.thread[call[node]]
    for t in present(c.thread[waits]):
        launched = node[thread == t]
        if not len(launched):
            continue
        calls, its_waits, its_records = call[launched], waits[c.thread[waits] == t], records[c.thread[records] == t]
        place = np.searchsorted(its_records, its_waits) - 1
        since = np.where(place >= 0, its_records[np.maximum(place, 0)], its_waits) if len(its_records) else its_waits
        later = np.searchsorted(calls, its_waits)
        earlier = np.searchsorted(calls, since) - 1
        some = (later < len(calls)) & (earlier >= 0)
        pairs.update(zip(launched[later[some]].tolist(), launched[earlier[some]].tolist(), strict=True))
    chosen = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    i, j = chosen[:, 0], chosen[:, 1]
    keep = at.may_join(i, j) & (at.end_ns[j] <= at.start_ns[i] + tick)
    return i[keep], j[keep]


def ended_joins(at: Nodes, allowed: I64, tick: int) -> tuple[I64, I64]:
    """Pairs (later, earlier): `later` starts after all that is known allows, just as `earlier` has ended on another
    stream. Of several, the one that ended last."""
    late = np.flatnonzero(at.start_ns > allowed)
    by_end = np.argsort(at.end_ns, kind="stable")
    place = np.searchsorted(at.end_ns[by_end], at.start_ns[late] + tick, "right") - 1
    partner = np.full(len(late), -1, np.int64)
    seeking = np.arange(len(late))
    while len(seeking):
        seeking = seeking[place[seeking] >= 0]
        j, i = by_end[place[seeking]], late[seeking]
        near = (at.end_ns[j] >= at.start_ns[i] - JOIN_TOLERANCE_NS) & (at.end_ns[j] > allowed[i])
        fits = near & at.may_join(i, j)
        partner[seeking[fits]] = j[fits]
        seeking = seeking[near & ~fits]
        place[seeking] -= 1
    found = partner >= 0
    return late[found], partner[found]


def tail_joins(at: Nodes, allowed: I64, tick: int) -> tuple[I64, I64]:
    """Pairs (later, earlier) of kernels: `later` starts in the last tenth of `earlier` (and its last 50 µs), having
    waited for longer than that takes. Of several, the one that ends first."""
    if len(distinct(at.stream)) < 2:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    late = np.flatnonzero((at.start_ns > allowed) & at.kernel)
    by_end = np.argsort(at.end_ns, kind="stable")
    place = np.searchsorted(at.end_ns[by_end], at.start_ns[late], "right")
    partner = np.full(len(late), -1, np.int64)
    seeking = np.arange(len(late))
    while len(seeking):
        seeking = seeking[place[seeking] < len(by_end)]
        j, i = by_end[place[seeking]], late[seeking]
        lead = at.end_ns[j] - at.start_ns[i]
        near = lead <= TAIL_AT_MOST_NS
        fits = (near & at.may_join(i, j) & at.kernel[j] & (at.start_ns[i] - allowed[i] > lead)
                & (lead <= (at.end_ns[j] - at.start_ns[j]) // TAIL_SHARE + tick))
        partner[seeking[fits]] = j[fits]
        seeking = seeking[near & ~fits]
        place[seeking] += 1
    found = partner >= 0
    return late[found], partner[found]
