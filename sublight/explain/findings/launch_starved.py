"""SL201: the device idles because the host issued the next launch too late."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sublight.budget import STARVED
from sublight.explain.steps import union
from sublight.explain.view import View, inside
from sublight.explain.words import graphs, ms, number, of_window, percent, recording_caveats
from sublight.finding import Finding
from sublight.trace import I64

CODE, TITLE = "SL201", "launch-starved"
SMALLEST_SHARE = 0.01
NOTABLE = 0.1                # share of it after the launch returned, from which on it is said


def find(view: View) -> Iterable[Finding]:
    """Fires where at least 1 % of the window is idle time whose end had to wait for its launch."""
    starved = view.budget[STARVED]
    if view.share(starved) < SMALLEST_SHARE:
        return
    starts, ends = view.timeline.stretches(STARVED, view.windows)
    gaps = ends - starts
    evidence = [f"{number(len(gaps), 'stretch')}, median {ms(float(np.median(gaps)))}, longest {ms(int(gaps.max()))}"]
    calling, after = _since_launch(view, starts, ends)
    if calling > SMALLEST_SHARE * starved:
        evidence.append(f"{ms(calling)} of it passes inside the launch calls themselves (lazy loading, a full queue)")
    if after > NOTABLE * starved:
        evidence.append(f"{ms(after)} of it passes after the launch call had returned: something else held it back")
    recorder = _while_recording(view, starts, ends)
    if recorder:
        evidence.append(f"{ms(recorder)} of it coincides with the profiler's own work (buffers, lazy loading)")
    evidence.append(f"{percent(starved / view.budget.idle_ns)} of all idle time ({ms(view.budget.idle_ns)})")
    yield Finding(
        CODE, TITLE,
        f"the device idles for {of_window(view, starved)} because the next launch was issued after it had gone idle",
        tuple(evidence),
        f"Take the host off the path: {graphs(view)}, fewer and larger kernels, no Python work between launches",
        "high" if not recording_caveats(view) else "medium", starved, recording_caveats(view),
    )


def _since_launch(view: View, starts: I64, ends: I64) -> tuple[int, int]:
    """Of the stretches: time inside the launch call that ended each, and time after that call had returned."""
    a, links, calls = view.trace.activities, view.links, view.trace.calls
    if links is None:
        return 0, 0
    mine = np.flatnonzero((a.device == view.device) & (a.dur_ns > 0))
    following = np.minimum(np.searchsorted(a.ts_ns[mine], ends, "left"), len(mine) - 1)
    call = links.call[mine[following]]
    begun, returned = calls.ts_ns[call], calls.ts_ns[call] + calls.dur_ns[call]
    inside_call = np.clip(np.minimum(ends, returned) - np.maximum(starts, begun), 0, None)
    after = np.clip(ends - np.maximum(starts, returned), 0, None)
    return int(inside_call[call >= 0].sum()), int(after[call >= 0].sum())


def _while_recording(view: View, starts: I64, ends: I64) -> int:
    """Of the stretches: time during which the profiler was at work."""
    overhead = view.trace.overhead
    if not len(overhead.ts_ns):
        return 0
    at_work = union(list(zip(overhead.ts_ns.tolist(), overhead.end_ns.tolist(), strict=True)))
    return int(inside(starts, ends, at_work).sum())
