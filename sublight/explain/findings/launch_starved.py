"""SL201: the device idles because the host issued the next launch too late."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sublight.budget import PART_INDEX, STARVED
from sublight.explain.view import View, inside
from sublight.explain.words import ms, number, of_window, percent, recording_caveats
from sublight.finding import Finding

CODE, TITLE = "SL201", "launch-starved"
SMALLEST_SHARE = 0.01


def find(view: View) -> Iterable[Finding]:
    """Fires where at least 1 % of the window is idle time whose end had to wait for its launch."""
    starved = view.budget[STARVED]
    if view.share(starved) < SMALLEST_SHARE:
        return
    lengths, owner, _ = view.timeline.cut(view.windows)
    gaps = lengths[owner == PART_INDEX[STARVED]]
    evidence = [f"{number(len(gaps), 'stretch')}, median {ms(float(np.median(gaps)))}, longest {ms(int(gaps.max()))}",
                f"{percent(starved / view.budget.idle_ns)} of all idle time ({ms(view.budget.idle_ns)})"]
    overhead = view.trace.overhead
    edges = view.timeline.edges_ns
    idle = np.flatnonzero(view.timeline.owner == PART_INDEX[STARVED])
    recorder = int(sum(
        inside(edges[idle], edges[idle + 1], [(int(s), int(e))]).sum()
        for s, e in zip(overhead.ts_ns, overhead.end_ns, strict=True)
    )) if len(overhead.ts_ns) < 10_000 else 0
    if recorder:
        evidence.append(f"{ms(recorder)} of it coincides with the profiler's own work (buffers, lazy loading)")
    yield Finding(
        CODE, TITLE,
        f"the device idles for {of_window(view, starved)} because the next launch was issued after it had gone idle",
        tuple(evidence),
        "Take the host off the path: CUDA graphs (vLLM: drop --enforce-eager; torch.compile mode=\"reduce-overhead\"), "
        "fewer and larger kernels, no Python work between launches",
        "high" if not recording_caveats(view) else "medium", starved, recording_caveats(view),
    )
