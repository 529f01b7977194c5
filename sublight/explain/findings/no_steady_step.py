"""SL004: the recording holds no step that repeats."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from sublight.explain.view import View
from sublight.explain.words import ms, percent
from sublight.finding import Finding

CODE, TITLE = "SL004", "no steady step"
UNEVEN = 2.0                 # longest step over the median one
ALMOST_IDLE = 0.02


def find(view: View) -> Iterable[Finding]:
    """Fires where marked steps differ by more than twice, most are empty, or the device hardly works at all."""
    windows = [row.window_ns for row in view.step_rows if row.window_ns is not None]
    evidence = []
    empty = len(view.step_rows) - len(windows)
    if view.step_rows and empty * 2 > len(view.step_rows):
        evidence.append(f"{empty} of {len(view.step_rows)} marked steps have no activity")
    if len(windows) >= 3 and max(windows) > UNEVEN * median(windows):
        evidence.append(f"the longest step takes {ms(max(windows))}, the median {ms(median(windows))}")
    counts = [row.activities for row in view.step_rows if row.activities]
    if len(counts) >= 3 and max(counts) > UNEVEN * median(counts):
        evidence.append(f"the largest step has {max(counts)} activities, the median {median(counts):g}")
    if not view.cpu_only and view.budget.busy_ns < ALMOST_IDLE * view.budget.window_ns:
        evidence.append(f"the device works during {percent(view.share(view.budget.busy_ns))} of the window: "
                        "start-up, teardown or waiting for requests")
    if view.links is not None and view.links.captured_launches > view.links.launches:
        evidence.append(f"{view.links.captured_launches} launches were recorded into CUDA graphs, which runs nothing: "
                        "a recording of graph capture")
    if not evidence:
        return
    yield Finding(
        CODE, TITLE, "the recording has no step that repeats, so that its averages describe nothing in particular",
        tuple(evidence),
        "Record under steady load, after warm-up and compilation: schedule(wait=5, warmup=2, active=3), or start the "
        "engine's profiler while a benchmark runs",
        "medium",
    )
