"""This file knows about the speed of light of a window: how much of each part is at its bound, how much above it, and
how much has no known bound.

    kernel of a call   ├───────────────────────┤   the time that it owns
    bound of the call  ├─────┤                     charged in proportion to the time that each of its kernels owns
    part               │at its bound│  above it  │
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from sublight.budget import COMPUTE, EXPOSED_COPIES, PARTS
from sublight.device import Limits
from sublight.explain.calls import OpCall, OpCalls, op_calls
from sublight.explain.links import Links
from sublight.explain.timeline import Timeline
from sublight.ops.elementwise import Elementwise
from sublight.ops.op import Op
from sublight.trace import I32, I64, B, Trace

FORMATS = ("a", "b", "q", "form", "activations", "weights")


@dataclass(frozen=True, slots=True)
class PartBound:
    """One part of the budget against its bound, in ns. The three sum to the part. inferred_ns is the share of the first
    two whose work was concluded from names and grids."""

    name: str
    at_bound_ns: int
    above_ns: int
    unknown_ns: int
    inferred_ns: int


@dataclass(frozen=True, slots=True)
class CallRow:
    """All calls of one operator with the same ops inside the window."""

    name: str
    ops: str                             # what they compute, on which sizes
    category: str
    count: int
    owned_ns: int
    bound_ns: int
    streamed_ns: int                     # its bytes at the memory's rate: no bound, since L2 may hold them
    limiter: str
    inferred: bool


@dataclass(frozen=True, eq=False, slots=True)
class Bounds:
    """A window against the limits of its device."""

    device_key: str                      # of the catalog
    parts: tuple[PartBound, ...]
    calls: tuple[CallRow, ...]           # by time above the bound, largest first
    known_share: float                   # of summed kernel time in the window, from what the file records
    inferred_share: float                # with inferred bounds
    faster_than_bound: tuple[str, ...]   # calls measured below their bound by more than a clock tick: our error
    of_activity_ns: I64                  # per activity of the trace: its share of its call's bound by duration, owned
                                         # or not; -1 where unknown
    owned_ns: I64                        # per activity of the trace: what it owns of the window
    joined: OpCalls                      # the operator calls behind all this
    limits: Limits


def owned_ns(trace: Trace, line: Timeline, device: int, part: I32, windows: Sequence[tuple[int, int]]) -> I64:
    """How much of the windows each activity owns: what its part owns while it runs and none of its part that began
    before it (ties by stream and name) still runs. Shape: activities. The sum over a part's activities is the part.
    """
    a = trace.activities
    out = np.zeros(len(a.ts_ns), np.int64)
    at, starts, ends = line.pieces(windows)
    inside = np.zeros(len(line.owner), np.int64)
    np.add.at(inside, at, ends - starts)                 # two windows may share a stretch
    here = np.flatnonzero((a.device == device) & (a.dur_ns > 0))
    for p in np.flatnonzero(np.bincount(part[here], minlength=len(PARTS))).tolist():
        mine = here[part[here] == p]
        ts, end = a.ts_ns[mine], a.end_ns[mine]
        reached = np.maximum.accumulate(end)
        begin = np.maximum(ts, np.concatenate([ts[:1], reached[:-1]]))
        elapsed = np.concatenate([[0], np.cumsum(np.where(line.owner == p, inside, 0))])
        from_ns, to_ns = (np.searchsorted(line.edges_ns, t) for t in (np.minimum(begin, end), end))
        out[mine] = elapsed[to_ns] - elapsed[from_ns]
    return out


def bounds(
    trace: Trace, links: Links, line: Timeline, device: int, part: I32, windows: Sequence[tuple[int, int]],
    limits: Limits, device_key: str,
) -> Bounds:
    """How far from the speed of light a device's window is. `part` is part_of_activity(trace)."""
    joined = op_calls(trace, links, limits)
    a = trace.activities
    whole = owned_ns(trace, line, device, part, [line.span])
    owned = owned_ns(trace, line, device, part, windows)
    least = np.array([math.floor(c.bound.seconds * 1e9) if c.bound else -1 for c in joined.calls], np.int64)
    charged = _charged(joined, least, whole)
    known = charged >= 0
    # A window that cuts a kernel takes its share of the kernel's bound along.
    bound_ns = np.where(known & (whole > 0), charged * owned // np.maximum(whole, 1), 0)
    at_bound = np.minimum(bound_ns, owned)
    recorded, bounded = joined.known(), joined.bounded()
    inferred = bounded & ~recorded
    rows = []
    for p in range(len(COMPUTE)):
        mine = (part == p) & (a.device == device)
        total = int(owned[mine].sum())
        if total:
            at, seen = int(at_bound[mine & known].sum()), int(owned[mine & known].sum())
            rows.append(PartBound(PARTS[p], at, seen - at, total - seen, int(owned[mine & known & inferred].sum())))
    clock = trace.quality.clock_ns
    in_window = (owned > 0) & (a.device == device)
    spent = int(a.dur_ns[in_window].sum())
    return Bounds(
        device_key=device_key, parts=tuple(rows), calls=_call_rows(joined, limits, owned, bound_ns, part, in_window),
        known_share=int(a.dur_ns[in_window & recorded].sum()) / spent if spent else 0.0,
        inferred_share=int(a.dur_ns[in_window & bounded].sum()) / spent if spent else 0.0,
        faster_than_bound=tuple(_faster(trace, joined, least, clock, device)),
        of_activity_ns=_charged(joined, least, a.dur_ns), owned_ns=owned, joined=joined, limits=limits,
    )


def _charged(joined: OpCalls, least: I64, spent: I64) -> I64:
    """Per activity its share of its call's bound (`least`, -1 where it has none), in proportion to what it spent, in
    whole ns rounded down; -1 where there is no bound."""
    out = np.full(len(spent), -1, np.int64)
    some = np.flatnonzero(joined.of_activity >= 0)
    some = some[least[joined.of_activity[some]] >= 0]
    call = joined.of_activity[some]
    total = np.bincount(call, weights=spent[some], minlength=len(least)).astype(np.int64)
    out[some] = spent[some] * least[call] // np.maximum(total[call], 1)
    return out


def _call_rows(
    joined: OpCalls, limits: Limits, owned: I64, bound_ns: I64, part: I32, in_window: B,
) -> tuple[CallRow, ...]:
    grouped: dict[tuple[str, str], list[OpCall]] = {}
    words: dict[int, str] = {}                 # by the tuple of ops, which calls that are alike share
    inside = in_window.tolist()
    for call in joined.calls:
        if call.bound is not None and any(inside[i] for i in call.activities):
            if id(call.ops) not in words:
                words[id(call.ops)] = "; ".join(dict.fromkeys(map(said, call.ops)))
            grouped.setdefault((call.name, words[id(call.ops)]), []).append(call)
    out = []
    for (name, ops), calls in grouped.items():
        members = np.array([activity for call in calls for activity in call.activities])
        longest = int(members[np.argmax(owned[members])])
        if PARTS[int(part[longest])] == EXPOSED_COPIES:      # over the host's link, whose rate is not in the catalog
            continue
        bound_of = calls[0].bound
        assert bound_of is not None
        out.append(CallRow(
            name=name, ops=ops, category=PARTS[int(part[longest])], count=len(calls),
            owned_ns=int(owned[members].sum()), bound_ns=int(bound_ns[members].sum()),
            streamed_ns=sum(_streamed(call, limits) for call in calls), limiter=bound_of.limiter,
            inferred=calls[0].inferred,
        ))
    return tuple(sorted(out, key=lambda row: (row.bound_ns - row.owned_ns, row.name, row.ops)))


def _streamed(call: OpCall, limits: Limits) -> int:
    rate = limits.memory_bytes_per_second
    return round(call.work.bytes_total / rate * 1e9) if call.work is not None and rate else 0


def said(op: Op) -> str:
    """An op on its sizes, short: "Gemm m=8944 n=2816 k=1024 bf16"."""
    if isinstance(op, Elementwise):
        return f"Elementwise {sum(o.elements for o in op.writes):,} elements"
    told = [type(op).__name__]
    for f in fields(op):  # type: ignore[arg-type]   # every op is a dataclass
        value = getattr(op, f.name)
        if f.name in FORMATS:
            told += [value] if isinstance(value, str) and value not in told else []
        elif isinstance(value, int) and not isinstance(value, bool) and value != f.default:
            told.append(f"{f.name}={value}")
        elif isinstance(value, str) and f.name in ("kind", "collective"):
            told.append(value)
    return " ".join(told)


def _faster(trace: Trace, joined: OpCalls, least: I64, clock_ns: int, device: int) -> list[str]:
    """Calls on the device that were measured below their bound by more than one tick of the file's clock a kernel: an
    error in our work or in our catalog."""
    a = trace.activities
    mine = np.flatnonzero((joined.of_activity >= 0) & (a.device == device))
    call = joined.of_activity[mine]
    first = np.full(len(joined.calls), np.iinfo(np.int64).max)
    last = np.full(len(joined.calls), np.iinfo(np.int64).min)
    np.minimum.at(first, call, a.ts_ns[mine])
    np.maximum.at(last, call, a.end_ns[mine])
    kernels = np.bincount(call, minlength=len(joined.calls))
    return [
        f"{joined.calls[i].name}: {last[i] - first[i]} ns measured, {least[i]} ns at least"
        for i in np.flatnonzero((kernels > 0) & (last - first + clock_ns * kernels < least)).tolist()
    ]
