"""SL101: communication in flight while no compute kernel runs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sublight.budget import COMMUNICATION
from sublight.explain.view import View
from sublight.explain.words import ms, of_window, percent, top
from sublight.finding import Finding

CODE, TITLE = "SL101", "exposed communication"
SMALLEST_SHARE = 0.01
GAP_NS, NOTABLE = 3_000, 0.1    # from one kernel's end to the next one's start on a busy stream


def find(view: View) -> Iterable[Finding]:
    """Fires where at least 1 % of the window is exposed communication."""
    c = view.budget.communication
    if view.share(c.exposed_ns) < SMALLEST_SHARE:
        return
    parts = [(p, view.budget[p]) for p in COMMUNICATION.values() if view.budget[p]]
    hidden = percent(c.hidden_ns / c.union_ns)
    yield Finding(
        CODE, TITLE,
        f"{of_window(view, c.exposed_ns)} is communication with no compute kernel beside it",
        (*_in_gaps(view, c.exposed_ns),
         f"{of_window(view, c.union_ns)} has communication in flight, {hidden} of it hidden by compute",
         *([", ".join(f"{name.removeprefix('exposed communication: ')} {ms(ns)}" for name, ns in parts)]
           if len(parts) > 1 else []),
         *top(view.communication_kernels)),
        "Start it earlier or split it, so that independent compute runs beside it; fuse or shrink what is "
        "latency-bound; check that its stream is not held back by an event wait",
        "high", c.exposed_ns,
        ("an upper limit: compute that is slower beside communication takes part of it back",),
    )


def _in_gaps(view: View, exposed_ns: int) -> tuple[str, ...]:
    """Exposed time in stretches so short that they are gaps between kernels, which hiding would not close."""
    pieces = [view.timeline.stretches(part, view.windows) for part in COMMUNICATION.values()]
    lengths = np.concatenate([ends - starts for starts, ends in pieces])
    short = int(lengths[lengths <= GAP_NS].sum())
    if short < NOTABLE * exposed_ns:
        return ()
    return (f"{ms(short)} of it is in stretches of at most {ms(GAP_NS)}: gaps between kernels beside communication",)
