"""SL202: the device idles while the host waits in a synchronising call."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sublight.budget import BLOCKED, PART_INDEX, STARVED
from sublight.explain.links import calls_matching
from sublight.explain.view import View
from sublight.explain.words import ms, number, of_window, recording_caveats
from sublight.finding import Finding

CODE, TITLE = "SL202", "blocking synchronisation"
SMALLEST_SHARE = 0.005


def find(view: View) -> Iterable[Finding]:
    """Fires where blocked idle time, with the launch-starved time that follows it, is 0.5 % of the window."""
    if view.links is None:
        return
    blocked = view.budget[BLOCKED]
    lengths, owner, _ = view.timeline.cut(view.windows)
    after = (owner[1:] == PART_INDEX[STARVED]) & (owner[:-1] == PART_INDEX[BLOCKED])
    refill = int(lengths[1:][after].sum())
    if not blocked or view.share(blocked + refill) < SMALLEST_SHARE:
        return
    calls = view.trace.calls
    low, high = view.windows[0][0], view.windows[-1][1]
    rows = np.flatnonzero(calls_matching(view.trace, "synchronising") & (calls.end_ns > low) & (calls.ts_ns < high))
    evidence = []
    for i in np.unique(calls.name[rows]).tolist():
        mine = rows[calls.name[rows] == i]
        on_host = ms(int(calls.dur_ns[mine].sum()))
        evidence.append(f"{view.trace.names[i]}: {number(len(mine), 'call')}, {on_host} on the host")
    evidence.append(f"{ms(blocked)} idle inside such calls, and {ms(refill)} more until the next launch arrived")
    yield Finding(
        CODE, TITLE,
        f"the device idles for {of_window(view, blocked + refill)} in and right after calls that make the host wait",
        tuple(evidence),
        "Look for .item(), .cpu(), nonzero, print or a shape that depends on data; move it out of the step, make the "
        "copy asynchronous from pinned memory, or read it a step later",
        "high", blocked + refill, recording_caveats(view),
    )
