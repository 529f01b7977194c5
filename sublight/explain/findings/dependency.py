"""SL206: the device idles although its next work was launched in time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sublight.budget import DEPENDENCY
from sublight.explain.view import View
from sublight.explain.words import ms, number, of_window, percent
from sublight.finding import Finding

CODE, TITLE = "SL206", "waiting for work that was launched in time"
SMALLEST_SHARE = 0.01


def find(view: View) -> Iterable[Finding]:
    """Fires where at least 1 % of the window is idle before activities that were launched before it began."""
    stalled = view.budget[DEPENDENCY]
    if view.links is None or view.share(stalled) < SMALLEST_SHARE:
        return
    starts, ends = view.timeline.stretches(DEPENDENCY, view.windows)
    gaps = ends - starts
    evidence = [f"{number(len(gaps), 'stretch')}, median {ms(float(np.median(gaps)))}, longest {ms(int(gaps.max()))}"]
    if view.links.graph_launches:
        launches = number(view.links.graph_launches, "CUDA-graph launch")
        evidence.append(f"{launches}: gaps inside a replay are counted here")
    if int(gaps.max()) > stalled // 2:
        evidence.append(f"one stretch makes up {percent(int(gaps.max()) / stalled)} of it: a first replay, "
                        "a lazy load, or work that the file does not show?")
    yield Finding(
        CODE, TITLE,
        f"the device idles for {of_window(view, stalled)} before work that had been launched in time",
        tuple(evidence),
        "Look at what that work waits for: an event of another stream, a copy, a peer; for short gaps between "
        "dependent kernels, programmatic dependent launch or fusion",
        "medium", stalled,
        ("the file does not say what a kernel waits for: kernels of other processes on the device are not in it",),
    )
