"""This file knows about host points: the moments at which a thread's later calls begin to depend on something else.

Between two points a thread's calls keep their measured spacing: what the host does between them is work.

    thread 1  launch launch [synchronise    ]● launch …       ● it waited: no earlier than the work it waited for
    thread 2                                     ● launch …   ● hand-over: a silent thread begins as another stops
    thread 3  launch A … silent, polling memory …    ● launch   ● it polled: A has just ended
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from sublight.explain.columns import present
from sublight.explain.links import calls_matching
from sublight.explain.view import View
from sublight.trace import I32, I64, MEMCPY, Trace

HANDOVER_NS = 100_000              # silence on both sides that makes one thread's start another's end
POLLING_NS = 1_000_000             # silence from a launch to just after its activity's end that makes it a wait
RETURN_AT_MOST_NS = 100_000        # a synchronising call that returns later than this waited for something else


@dataclass(frozen=True, eq=False, slots=True)
class HostPoints:
    """Points in time order. Lists, because the replay walks them one by one."""

    at_ns: list[int]               # measured: a waiting call's end, or the first call after a hand-over
    thread: list[int]
    window: list[int]
    called_ns: list[int]           # a waiting call's start; the silent thread's call before a hand-over
    previous: list[int]            # last point of the same thread in the same window, or -1
    source: list[int | None]       # hand-over: last point of the other thread, or -1; None for a waiting call
    waited: list[tuple[int, ...]]  # nodes that a waiting call waited for
    return_ns: list[int]           # from the later of its start and their ends to its own end, without the delay
    delay_ns: list[int]            # what it took beyond RETURN_AT_MOST_NS although it had waited
    polls: int                     # waiting calls that no call shows: inferred from times alone

    def __len__(self) -> int:
        return len(self.at_ns)

    def before(self, call: I32, trace: Trace, at_ns: I64, window: I64) -> I64:
        """For each launch (its call, or -1): the last point of its thread and window at or before `at_ns`, or -1."""
        out = np.full(len(call), -1, np.int64)
        if not self.at_ns:
            return out
        thread = np.where(call >= 0, trace.calls.thread[call], -1)
        threads, windows = np.array(self.thread), np.array(self.window)
        at = np.array(self.at_ns, np.int64)
        for t in sorted(set(self.thread)):
            mine = np.flatnonzero(threads == t)
            nodes = np.flatnonzero(thread == t)
            place = np.searchsorted(at[mine], at_ns[nodes], "right") - 1
            found = mine[np.maximum(place, 0)]
            out[nodes] = np.where((place >= 0) & (windows[found] == window[nodes]), found, -1)
        return out


def host_points(view: View, activity: I64, window: I64, start_ns: I64, end_ns: I64) -> HostPoints:
    """The host points inside the view's windows; nodes are given by activity, window and measured times."""
    c = view.trace.calls
    call_end = c.end_ns
    waits = _waits(view, activity, window, start_ns, end_ns)
    handovers = _handovers(view, np.array(sorted({call for call, _, _ in waits}), np.int64))
    # (measured time, kind, thread, call it begins with, window, other thread of a hand-over, nodes waited for)
    found: list[tuple[int, int, int, int, int, int | None, tuple[int, ...]]] = [
        (int(call_end[call]), 0, int(c.thread[call]), int(c.ts_ns[call]), w, None, nodes) for call, w, nodes in waits
    ]
    for call, previous, giver in handovers:
        inside = _window_of(view, int(c.ts_ns[call]))
        if inside is not None:
            begins = int(c.ts_ns[previous]) if previous >= 0 else view.windows[inside][0]
            found.append((int(c.ts_ns[call]), 1, int(c.thread[call]), begins, inside, giver, ()))
    taken = {call for call, _, _ in handovers}
    for previous, call, node in _polls(view, activity, window, end_ns):
        if call not in taken:
            found.append((int(c.ts_ns[call]), 2, int(c.thread[call]), int(call_end[previous]), int(window[node]), None,
                          (node,)))
    found.sort(key=lambda f: (f[0], f[1], f[2], f[3]))

    points = HostPoints([], [], [], [], [], [], [], [], [], sum(f[1] == 2 for f in found))
    last: dict[tuple[int, int], int] = {}
    ends = end_ns.tolist()
    for i, (at, _, thread, begins, w, other, nodes) in enumerate(found):
        points.at_ns.append(at)
        points.thread.append(thread)
        points.window.append(w)
        points.called_ns.append(begins)
        points.previous.append(last.get((thread, w), -1))
        points.source.append(None if other is None else last.get((other, w), -1))
        points.waited.append(nodes)
        until = max((ends[j] for j in nodes), default=begins)
        took = at - max(begins, until)
        late = max(took - RETURN_AT_MOST_NS, 0) if other is None and until > begins else 0
        points.return_ns.append(took - late if other is None else 0)
        points.delay_ns.append(late)
        last[thread, w] = i
    return points


def _window_of(view: View, at_ns: int) -> int | None:
    """The window that a moment lies in, its start left out."""
    k = bisect_left(view.windows, (at_ns,)) - 1
    return k if k >= 0 and at_ns <= view.windows[k][1] else None


def _waits(
    view: View, activity: I64, window: I64, start_ns: I64, end_ns: I64
) -> list[tuple[int, int, tuple[int, ...]]]:
    """(call, window, nodes it waited for) of every call inside a window that waits for the device.

    A copy that the call itself launched is what it waited for; a call that synchronises the device waits for the
    last activity of each stream; any other for the last of all: which stream or event it names is not in the file.
    """
    assert view.links is not None
    trace, c, links = view.trace, view.trace.calls, view.links
    call_end = c.end_ns
    call = links.call[activity]
    synchronising = calls_matching(trace, "synchronising")
    own: dict[int, int] = {}
    copies = (trace.activities.kind[activity] == MEMCPY) & (call >= 0)
    if len(c.ts_ns):
        blocking = copies & (end_ns <= call_end[call]) & (start_ns >= c.ts_ns[call])
        own = dict(zip(call[blocking].tolist(), np.flatnonzero(blocking).tolist(), strict=True))
    whole = np.array(["Device" in name or "Ctx" in name for name in trace.names] or [False])

    launched = np.where(call >= 0, links.launch_ns[activity], np.iinfo(np.int64).min)
    stream = trace.activities.stream[activity]
    synchronous = np.flatnonzero(synchronising)
    out: list[tuple[int, int, tuple[int, ...]]] = []
    for k, (low, high) in enumerate(view.windows):
        calls = synchronous[(call_end[synchronous] > low) & (call_end[synchronous] <= high)]
        if not len(calls):
            continue
        waited: list[list[int]] = [[] for _ in calls]
        first, stop = np.searchsorted(window, [k, k + 1])              # nodes come window by window
        for s in np.unique(stream[first:stop]).tolist():
            nodes = first + np.flatnonzero(stream[first:stop] == s)
            count = np.minimum(
                np.searchsorted(np.maximum.accumulate(launched[nodes]), c.ts_ns[calls], "right"),
                np.searchsorted(np.maximum.accumulate(end_ns[nodes]), call_end[calls], "right"))
            for place in np.flatnonzero(count > 0).tolist():
                node = int(nodes[count[place] - 1])
                if start_ns[node] < call_end[calls[place]]:
                    waited[place].append(node)
        for place, wait in enumerate(calls.tolist()):
            some = waited[place]
            if wait in own:
                some = [own.pop(wait)]
            elif some and not whole[c.name[wait]]:
                some = [max(some, key=lambda j: (end_ns[j], j))]
            if some:
                out.append((wait, k, tuple(some)))
    for wait, node in own.items():
        k = int(window[node])
        if view.windows[k][0] < call_end[wait] <= view.windows[k][1] and start_ns[node] < call_end[wait]:
            out.append((wait, k, (node,)))
    return out


def _handovers(view: View, waiting: I64) -> list[tuple[int, int, int]]:
    """(first call of a thread, its call before that or -1, the other thread) of each hand-over.

        thread A  launch launch launch ............ at least 100 µs of silence
        thread B  .......... at least 100 µs .......● launch launch

    Only launches and waiting calls count: threads that poll events are never silent, and hand nothing over.
    """
    assert view.links is not None
    c = view.trace.calls
    used = np.zeros(len(c.ts_ns), bool)
    used[view.links.call[view.links.call >= 0]] = True
    used[waiting] = True
    calls = np.flatnonzero(used)
    thread, ts = c.thread[calls], c.ts_ns[calls]
    if len(present(thread)) < 2:
        return []
    order = np.argsort(thread, kind="stable")
    adjacent = thread[order[1:]] == thread[order[:-1]]
    previous, following = np.full(len(calls), -1), np.full(len(calls), -1)
    previous[order[1:][adjacent]] = order[:-1][adjacent]
    following[order[:-1][adjacent]] = order[1:][adjacent]
    before = np.flatnonzero(thread[1:] != thread[:-1])               # last call before a switch; the first is the next
    first = before + 1
    rests = (following[before] < 0) | (ts[following[before]] - ts[before] >= HANDOVER_NS)
    rested = (previous[first] < 0) | (ts[first] - ts[previous[first]] >= HANDOVER_NS)
    over = ts[before] + c.dur_ns[calls[before]] <= ts[first]
    return [(int(calls[f]), int(calls[previous[f]]) if previous[f] >= 0 else -1, int(thread[b]))
            for b, f in zip(before[rests & rested & over].tolist(), first[rests & rested & over].tolist(),
                            strict=True)]


def _polls(view: View, activity: I64, window: I64, end_ns: I64) -> list[tuple[int, int, int]]:
    """(last call, next call, node) of each silence in which a thread seems to have waited without a call.

        thread    launch A ............. at least 1 ms of silence ............● launch
        device        ├──────────────────── A ────────────────────┤ ≤ 100 µs

    DeepEP's dispatch polls a counter in host memory that its notify kernel writes. Calls that query events and
    streams do not break a silence: others make them while they wait.
    """
    assert view.links is not None
    c = view.trace.calls
    call_end = c.end_ns
    query = np.array(["Query" in name for name in view.trace.names] or [False])
    calls = np.flatnonzero(~query[c.name])
    calls = calls[np.argsort(c.thread[calls], kind="stable")]
    last, first = calls[:-1], calls[1:]
    silent = (c.thread[last] == c.thread[first]) & (c.ts_ns[first] - call_end[last] >= POLLING_NS)
    last, first = last[silent], first[silent]
    node = np.flatnonzero(view.links.call[activity] >= 0)
    by_call = node[np.argsort(view.links.call[activity[node]], kind="stable")]
    place = np.searchsorted(view.links.call[activity[by_call]], last, "right") - 1
    out = []
    for p, q, at in zip(last.tolist(), first.tolist(), place.tolist(), strict=True):
        if at < 0 or view.links.call[activity[by_call[at]]] != p:
            continue
        j, begins = int(by_call[at]), int(c.ts_ns[q])
        low, high = view.windows[int(window[j])]
        waited = call_end[p] < end_ns[j] <= begins <= end_ns[j] + RETURN_AT_MOST_NS
        if waited and low < begins <= high:
            out.append((p, q, j))
    return out
