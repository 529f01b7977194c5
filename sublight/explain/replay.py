"""This file knows about a Replay: a window played again from its dependencies, and how well that reproduces it.

Every node starts as soon as its dependencies allow, and lasts as long as was measured. Played without the delays
that no dependency explains, the window gets shorter by the replay's error; played with them, it is measured exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sublight.explain.critical import critical_path
from sublight.explain.dependencies import Dependencies, dependencies
from sublight.explain.play import Change, play
from sublight.explain.view import View

ERROR_AT_MOST = 0.05               # of the window: above it, gains are refused
UNEXPLAINED_AT_MOST = 0.10


@dataclass(frozen=True, slots=True)
class Replay:
    """One device's windows, played again without unexplained delays. replayed_ns = the sum of `critical`."""

    measured_ns: int
    replayed_ns: int
    error: float                       # |replayed - measured| / measured
    unexplained_delay_ns: int          # summed over activities, on the critical path or not
    unexplained_share: float           # of measured_ns
    inferred_edges: int                # from times alone: between streams, and hosts that poll for a kernel
    event_edges: int                   # between streams, from event calls of the host
    launch_latency_ns: int             # from a launch call to its activity, as the smallest one seen
    turnaround_ns: int                 # between queued activities of a stream, as the smallest one seen
    critical: Mapping[str, int]        # part -> ns on the critical path, largest first

    @property
    def refused(self) -> str | None:
        """Why no gain may be concluded from this replay, or None."""
        if self.error > ERROR_AT_MOST:
            return f"the replay misses the measured time by more than {ERROR_AT_MOST:.0%}".replace("%", " %")
        if self.unexplained_share > UNEXPLAINED_AT_MOST:
            return f"delays without a cause make up more than {UNEXPLAINED_AT_MOST:.0%} of it".replace("%", " %")
        return None


def replay(view: View, *, deps: Dependencies | None = None) -> Replay:
    """Play a view's windows again. `deps` saves finding the dependencies again.

    Raises InputError for a CPU-only trace.
    """
    deps = dependencies(view) if deps is None else deps
    change = Change(deps.end_ns - deps.start_ns)
    played = play(deps, change)
    measured = deps.measured_ns
    return Replay(
        measured_ns=measured, replayed_ns=played.total_ns,
        error=abs(played.total_ns - measured) / measured if measured else 0.0,
        unexplained_delay_ns=deps.unexplained_ns,
        unexplained_share=deps.unexplained_ns / measured if measured else 0.0,
        inferred_edges=deps.inferred_joins + deps.points.polls, event_edges=deps.event_joins,
        launch_latency_ns=deps.latency_ns, turnaround_ns=deps.turnaround_ns,
        critical=critical_path(deps, change, played),
    )
