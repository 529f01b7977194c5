"""SL202: the device idles while the host waits in a synchronising call."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sublight.budget import BLOCKED, IDLE, PART_INDEX, STARVED
from sublight.explain.links import calls_matching
from sublight.explain.view import View, inside
from sublight.explain.words import ms, number, of_window, recording_caveats
from sublight.finding import Finding
from sublight.trace import I64

CODE, TITLE = "SL202", "blocking synchronisation"
SMALLEST_SHARE = 0.005
FIRST_IDLE = PART_INDEX[IDLE[0]]


def find(view: View) -> Iterable[Finding]:
    """Fires where what the calls can cost at most is 0.5 % of the window."""
    if view.links is None:
        return
    blocked = view.budget[BLOCKED]
    if not blocked:
        return
    calls = view.trace.calls
    low, high = view.windows[0][0], view.windows[-1][1]
    rows = np.flatnonzero(calls_matching(view.trace, "synchronising") & (calls.end_ns > low) & (calls.ts_ns < high))
    gain, behind = _gain(view, rows, blocked), _until_ahead(view)
    if view.share(gain) < SMALLEST_SHARE:
        return
    evidence = []
    for i in np.unique(calls.name[rows]).tolist():
        mine = rows[calls.name[rows] == i]
        on_host = ms(int(inside(calls.ts_ns[mine], calls.end_ns[mine], view.windows).sum()))
        evidence.append(f"{view.trace.names[i]}: {number(len(mine), 'call')}, {on_host} on the host")
    evidence.insert(0, f"{ms(blocked)} idle inside such calls, {ms(behind)} launch-starved after them until the host "
                    "was ahead of the device again")
    yield Finding(
        CODE, TITLE,
        f"the device idles for {of_window(view, blocked)} in calls that make the host wait, and for {ms(behind)} "
        "until the host is ahead again",
        tuple(evidence),
        "Look for .item(), .cpu(), nonzero, print or a shape that depends on data; move it out of the step, make the "
        "copy asynchronous from pinned memory, or read it a step later. Where the time after the call is long, look at "
        "the Python there",
        "high" if behind < 10 * blocked else "medium", gain, recording_caveats(view),
    )


def _gain(view: View, calls: I64, blocked_ns: int) -> int:
    """What the window would lose at most without these calls: no more than the host spent in them, and no more than all
    that was idle in them and launch-starved after the first of them."""
    on_host = int(inside(view.trace.calls.ts_ns[calls], view.trace.calls.end_ns[calls], view.windows).sum())
    line = view.timeline
    blocked = np.flatnonzero(line.owner == PART_INDEX[BLOCKED])
    first = int(blocked[_inside(view, blocked) > 0][0])
    late = first + np.flatnonzero(line.owner[first:] == PART_INDEX[STARVED])
    return min(max(on_host, blocked_ns), blocked_ns + int(_inside(view, late).sum()))


def _inside(view: View, stretches: I64) -> I64:
    """How much of each stretch lies inside the windows."""
    edges_ns = view.timeline.edges_ns
    return inside(edges_ns[stretches], edges_ns[stretches + 1], view.windows)


def _until_ahead(view: View) -> int:
    """Launch-starved time after blocked gaps, until the host is ahead: until a gap that ends in time, or work that
    follows without any gap."""
    owner, back_to_back = view.timeline.owner, _starts_without_gap(view)
    gap = (owner >= FIRST_IDLE) & ~back_to_back
    blocked, starved = gap & (owner == PART_INDEX[BLOCKED]), gap & (owner == PART_INDEX[STARVED])
    ahead = back_to_back | (gap & ~blocked & ~starved)
    told = np.flatnonzero(blocked | ahead)
    late = np.flatnonzero(starved)
    last = np.searchsorted(told, late) - 1                  # of those before it that tell where the host is
    behind = last >= 0
    behind[behind] = blocked[told[last[behind]]]
    return int(_inside(view, late[behind]).sum())


def _starts_without_gap(view: View) -> np.ndarray:
    """Stretches at whose start an activity begins while, or just as, another ends: the host was ahead."""
    a, line = view.trace.activities, view.timeline
    mine = np.flatnonzero((a.device == view.device) & (a.dur_ns > 0))
    ts, reached = a.ts_ns[mine], np.maximum.accumulate(a.end_ns[mine])
    ahead = ts[1:][ts[1:] <= reached[:-1]]
    out = np.zeros(len(line.owner), bool)
    out[np.searchsorted(line.edges_ns[:-1], ahead)] = True
    return out
