"""This file knows about which host call launched which device activity, and how far that can be told."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from sublight.explain.columns import among, present
from sublight.trace import I32, I64, KERNEL, NO_ID, B, Trace


@cache
def runtime_catalog() -> dict[str, Any]:
    """catalog/runtime.toml."""
    return tomllib.loads(resources.files("sublight.catalog").joinpath("runtime.toml").read_text("utf-8"))


def calls_matching(trace: Trace, pattern: str) -> B:
    """Which calls of the trace have a name that the pattern of catalog/runtime.toml finds. Shape: calls."""
    search = re.compile(runtime_catalog()["calls"][pattern]).search
    used = present(trace.calls.name)
    table = np.zeros(len(trace.names) + 1, bool)
    table[[i for i in used if search(trace.names[i])]] = True
    out: B = table[trace.calls.name]
    return out


@dataclass(frozen=True, eq=False, slots=True)
class Links:
    """Launches of one trace's device activities. Counts are events."""

    call: I32                        # per activity: index into Trace.calls, or -1
    launch_ns: I64                   # per activity: start of that call (undefined where call is -1)
    before_recording: B              # per activity: launched before the file's first call
    activities: int
    linked: int                      # to a runtime or driver call
    linked_to_op: int                # to a framework operator
    launches: int                    # calls that should have device activity
    launches_without_activity: int
    captured_launches: int           # recorded into a CUDA graph: nothing ran yet
    lost_launch: B                   # per call: should have had device activity, has none
    graph_launches: int
    partial_replays: int             # of them, with under half of the kernels that others like them have
    graph_ns: int                    # summed duration of kernels under CUDA-graph launches
    kernel_ns: int                   # summed duration of kernels
    before_launch: int               # activities that start before their launch does
    largest_lead_ns: int             # by how much at most

    @property
    def complete(self) -> bool:
        """Every activity has its launch, and every launch its activity."""
        return self.linked == self.activities and self.launches_without_activity == 0


def link(trace: Trace) -> Links:
    """Join activities to calls by correlation id, and to operators by External id."""
    a, c = trace.activities, trace.calls
    call = _by_correlation(a.correlation, a.ts_ns, c.correlation, c.ts_ns)
    found = call >= 0
    launch_ns = np.where(found, c.ts_ns[call] if len(c.ts_ns) else 0, 0)
    lead = np.where(found, launch_ns - a.ts_ns, 0)
    kernels = a.kind == KERNEL
    launching, captured = calls_matching(trace, "launching"), _captured(trace)
    captured_launches = int((launching & captured).sum())
    launching &= ~captured
    lost = launching.copy()
    lost[launching] = ~among(c.correlation[launching], a.correlation)
    graph_call = calls_matching(trace, "graph_launching")
    under_graph = found & (graph_call[call] if len(c.ts_ns) else False) & kernels
    # Correlation ids count up. One below all those of the file's calls was launched before the recording began.
    known = c.correlation[c.correlation != NO_ID]
    before = ~found & (a.correlation > 0) & (a.correlation < known.min() if len(known) else False)
    return Links(
        call=call, launch_ns=launch_ns, before_recording=before, activities=len(call), linked=int(found.sum()),
        linked_to_op=int(among(a.external_id, trace.ops.external_id).sum()),
        launches=int(launching.sum()), launches_without_activity=int(lost.sum()),
        captured_launches=captured_launches, lost_launch=lost,
        graph_launches=int(graph_call.sum()), partial_replays=_partial_replays(a.name, call, under_graph),
        graph_ns=int(a.dur_ns[under_graph].sum()),
        kernel_ns=int(a.dur_ns[kernels].sum()),
        before_launch=int((lead > 0).sum()), largest_lead_ns=int(max(lead.max(initial=0), 0)),
    )


def _partial_replays(name: I32, call: I32, under_graph: B) -> int:
    """Graph launches that show under half of the kernels of another launch that begins with the same kernel: replays
    of one graph run the same kernels, so that the rest were lost (Hyperloom PR#1047)."""
    rows = np.flatnonzero(under_graph)
    _, first, counts = np.unique(call[rows], return_index=True, return_counts=True)
    most: dict[int, int] = {}
    firsts = name[rows[first]].tolist()
    for kernel, count in zip(firsts, counts.tolist(), strict=True):
        most[kernel] = max(most.get(kernel, 0), count)
    return sum(2 * count < most[kernel] for kernel, count in zip(firsts, counts.tolist(), strict=True))


def _by_correlation(ids: I64, ts_ns: I64, call_ids: I64, call_ts_ns: I64) -> I32:
    """For each activity the call with its id; of several (a reused id), the last that began before it did."""
    valid = np.flatnonzero(call_ids != NO_ID)
    order = valid[np.lexsort((call_ts_ns[valid], call_ids[valid]))]
    sorted_ids = call_ids[order]
    low, high = np.searchsorted(sorted_ids, ids, "left"), np.searchsorted(sorted_ids, ids, "right")
    out = np.full(len(ids), -1, np.int32)
    some = high > low
    out[some] = order[low[some]]
    for i in np.flatnonzero(high - low > 1).tolist():
        several = order[low[i] : high[i]]
        before = several[call_ts_ns[several] <= ts_ns[i]]
        out[i] = before[-1] if len(before) else several[0]
    return out


def _captured(trace: Trace) -> B:
    """Calls made while their thread captures a CUDA graph: they launch nothing yet."""
    c = trace.calls
    inside = np.zeros(len(c.ts_ns), bool)
    begins = np.flatnonzero(calls_matching(trace, "begins_capture"))
    ends = np.flatnonzero(calls_matching(trace, "ends_capture"))
    for begin in begins.tolist():
        thread = c.thread[begin]
        later = [end for end in ends.tolist() if c.thread[end] == thread and c.ts_ns[end] >= c.ts_ns[begin]]
        stop = c.ts_ns[later[0]] if later else np.iinfo(np.int64).max
        inside |= (c.thread == thread) & (c.ts_ns >= c.ts_ns[begin]) & (c.ts_ns < stop)
    return inside
