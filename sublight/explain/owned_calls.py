"""This file knows about the operator calls of a view's window: what each of them owns, and what runs beside it.

    window         ├──────────────────────────────┤
    call 1    ├────────┤                               the part of a call inside the window counts
    call 2              ├─────────┤                    owned: less what kernels of higher rank beside it own
    communication            ├──────────┤              beside: where communication is in flight
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sublight.device import Limits
from sublight.explain.calls import OpCall, OpCalls
from sublight.explain.columns import joined
from sublight.explain.view import View, inside
from sublight.trace import I64


@dataclass(frozen=True, eq=False, slots=True)
class OwnedCalls:
    """The calls of a trace, and what each activity does in one device's window. Shapes: activities."""

    limits: Limits
    joined: OpCalls
    owned: I64                           # ns of the window
    inside: I64                          # ns of its duration inside the window

    def calls(self) -> Iterator[tuple[OpCall, int]]:
        """Calls that own time of the window, with that time in ns, in the order of their first activity."""
        mine = self.joined.of_activity >= 0
        total = np.bincount(self.joined.of_activity[mine], weights=self.owned[mine]).astype(np.int64).tolist()
        for call, ns in zip(self.joined.calls, total, strict=False):         # trailing calls may have no activity
            if ns:
                yield call, ns


def owned_calls(view: View) -> OwnedCalls | None:
    """None where the view has no bounds."""
    if view.bounds is None:
        return None
    within = np.zeros(len(view.trace.activities.ts_ns), np.int64)
    within[view.rows] = view.inside_ns
    return OwnedCalls(view.bounds.limits, view.bounds.joined, view.bounds.owned_ns, within)


def beside_communication(view: View) -> I64:
    """How much of each activity inside the window has communication in flight beside it, in ns. Shape: activities."""
    line, a = view.timeline, view.trace.activities
    flying = np.flatnonzero(line.communicating)
    starts, ends = joined(line.edges_ns[flying], line.edges_ns[flying + 1])
    cut = [(max(s, low), min(e, high)) for low, high in view.windows
           for s, e in zip(starts.tolist(), ends.tolist(), strict=True) if s < high and e > low]
    out = np.zeros(len(a.ts_ns), np.int64)
    out[view.rows] = inside(a.ts_ns[view.rows], a.end_ns[view.rows], cut)
    return out
