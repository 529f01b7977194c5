"""SL001: the file lacks events that it should have."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.explain.view import View
from sublight.finding import Finding

CODE, TITLE = "SL001", "incomplete trace"


def find(view: View) -> Iterable[Finding]:
    """Fires on launches without kernels, steps without activity, unreadable events or a file that ends early."""
    q, links = view.trace.quality, view.links
    evidence = []
    if q.cut_short:
        evidence.append("the file ends in the middle")
    if q.lost:
        evidence.append(f"{q.lost} events could not be read")
    if q.untimed:
        evidence += [f"{count} events: {reason}" for reason, count in q.untimed.items()]
    if links is not None and links.launches_without_activity:
        evidence.append(f"{links.launches_without_activity} of {links.launches} launches have no kernel in the file")
    missing = int((links.call[view.rows] < 0).sum()) if links is not None else 0
    if missing:
        evidence.append(f"{missing} of {len(view.rows)} activities in the window have no launch in the file")
    empty = sum(step.window is None for step in view.steps)
    if empty:
        evidence.append(f"{empty} of {len(view.steps)} marked steps have no activity on this device")
    if not evidence:
        return
    yield Finding(
        CODE, TITLE, "the file lacks events, so that some of the figures here are of what is left",
        tuple(evidence),
        "Record a few steps after warm-up in a fresh process (schedule(wait=1, warmup=1, active=3)), synchronise "
        "before the profiler starts and stops, and copy the file only after it was closed",
        "high",
    )
