"""This file knows about one device's View: everything that findings and reports read of it, computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from sublight.budget import COMMUNICATION, PARTS, Budget
from sublight.device import Device, DeviceInfo
from sublight.explain.bounds import Bounds
from sublight.explain.columns import present
from sublight.explain.links import Links
from sublight.explain.steps import Step
from sublight.explain.timeline import Timeline
from sublight.observe.kernel_name import classify
from sublight.trace import I32, I64, KERNEL, Trace

if TYPE_CHECKING:
    from sublight.explain.fabric import Fabric
    from sublight.explain.model_terms import AgainstModel

AT_ONCE = 1 << 16            # intervals that are cut to windows at a time


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All runs of one name inside the window. ns is their summed duration, clipped to the window."""

    name: str
    short: str
    kind: str                    # "kernel", "memcpy", "memset" or "operator"
    part: str                    # category that owns its time
    category: str
    library: str | None
    family: str | None
    number_format: str | None
    count: int
    ns: int
    grid_blocks: int | None      # thread blocks of the grid it ran longest with
    bound_ns: int | None = None  # least time of those of its runs whose bound is known, summed; None: of none
    bound_share: float | None = None     # bound over time of those runs

    @property
    def origin(self) -> str:
        """"cuBLAS · nvjet"; empty where neither library nor family is known."""
        return " · ".join(dict.fromkeys(x for x in (self.library, self.family) if x))


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step on this device, accounted on its own. window_ns is None where its launches are not in the file."""

    label: str
    window_ns: int | None
    busy_ns: int | None
    exposed_communication_ns: int | None
    idle_ns: int | None
    activities: int
    lost_launches: int           # launches within it whose activity is not in the file


@dataclass(frozen=True, slots=True)
class Refusal:
    """A verdict that this file cannot support, why, and what to capture instead."""

    what: str
    why: str
    capture: str


@dataclass(frozen=True, eq=False, slots=True)
class View:
    """One device of one rank, over the window that was asked for."""

    trace: Trace
    device: int | str                        # device index, or "cpu thread N" in a CPU-only trace
    info: DeviceInfo                         # as the file describes it
    catalogued: Device | None                # the catalog's entry, if one agrees
    links: Links | None                      # None in a CPU-only trace
    timeline: Timeline
    step_kind: str | None
    steps: tuple[Step, ...]
    step_rows: tuple[StepRow, ...]
    window: str                              # "step", "all" or "A:B"
    window_reason: str
    windows: tuple[tuple[int, int], ...]     # disjoint, ns
    budget: Budget
    kernels: tuple[KernelRow, ...]           # by summed duration, longest first
    rows: I64                                # Trace.activities (or stretches) inside the window
    inside_ns: I64                           # of each of `rows`: duration inside the windows
    part: I32                                # of each of `rows`: index into budget.PARTS
    bounds: Bounds | None = None             # None: the device is not in the catalog, or a CPU-only trace
    refusals: tuple[Refusal, ...] = field(default=())
    fabric: Fabric | None = None             # None: no communication, or no cluster to hold it against
    model: AgainstModel | None = None        # None: no model was given

    @property
    def cpu_only(self) -> bool:
        return self.links is None

    @property
    def amd(self) -> bool:
        """Is the device AMD's? Told by its name, else by the names of the runtime's calls."""
        if self.info.name:
            return any(word in self.info.name for word in ("AMD", "Instinct", "Radeon", "gfx"))
        calls = self.trace.calls
        return bool(len(calls.name)) and self.trace.names[int(calls.name[len(calls.name) // 2])].startswith("hip")

    @property
    def engine(self) -> str | None:
        """The serving engine whose step marks the trace has: "vLLM" or "SGLang"."""
        for i in present(self.trace.annotations.name):
            name = self.trace.names[i]
            if name.startswith("step["):
                return "SGLang"
            if name.startswith("execute_") and "context_" in name:
                return "vLLM"
        return None

    @property
    def span_ns(self) -> int:
        start, end = self.timeline.span
        return end - start

    @property
    def sms(self) -> int | None:
        return self.info.sms or (self.catalogued.sms if self.catalogued else None)

    @property
    def device_label(self) -> str:
        """"device 0", or "cpu thread 3"."""
        return str(self.device) if self.cpu_only else f"device {self.device}"

    @property
    def title(self) -> str:
        if self.cpu_only:
            return str(self.device)
        name = self.info.name or (self.catalogued.title if self.catalogued else "unknown device")
        return f"{name} (device {self.device})"

    @property
    def kernel_ns(self) -> int:
        return sum(row.ns for row in self.kernels if row.kind in ("kernel", "operator"))

    @property
    def unclassified_ns(self) -> int:
        return sum(row.ns for row in self.kernels if row.category == "unclassified")

    @property
    def unclassified_share(self) -> float:
        return self.unclassified_ns / self.kernel_ns if self.kernel_ns else 0.0

    def share(self, ns: int) -> float:
        """Of the window."""
        return ns / self.budget.window_ns if self.budget.window_ns else 0.0

    def of_parts(self, parts: Sequence[str]) -> tuple[KernelRow, ...]:
        return tuple(row for row in self.kernels if row.part in parts)

    @property
    def communication_kernels(self) -> tuple[KernelRow, ...]:
        return self.of_parts(tuple(COMMUNICATION.values()))


def inside(ts_ns: I64, end_ns: I64, windows: Sequence[tuple[int, int]]) -> I64:
    """How much of each interval lies inside disjoint windows in order. Shape: as the intervals."""
    if not windows:
        return np.zeros(len(ts_ns), np.int64)
    starts, ends = np.array([w[0] for w in windows]), np.array([w[1] for w in windows])
    before = np.concatenate([[0], np.cumsum(ends - starts)])             # window time before each window

    def elapsed(t: I64) -> I64:
        i = np.searchsorted(starts, t, "right")
        last = np.maximum(i - 1, 0)
        out: I64 = np.where(i > 0, before[last] + np.minimum(t, ends[last]) - starts[last], 0)
        return out

    out = np.empty(len(ts_ns), np.int64)
    for low in range(0, len(ts_ns), AT_ONCE):                # a dozen arrays as long as all intervals would be large
        some = slice(low, low + AT_ONCE)
        out[some] = elapsed(end_ns[some]) - elapsed(ts_ns[some])
    return out


def kernel_rows(trace: Trace, rows: I64, inside_ns: I64, part: I32) -> tuple[KernelRow, ...]:
    """The device activities collapsed by name."""
    if not len(rows):
        return ()
    a = trace.activities
    kinds = ("kernel", "memcpy", "memset")
    blocks = np.prod(a.grid[rows].astype(np.int64), axis=1)
    key = a.name[rows].astype(np.int64) * 4 + a.kind[rows]
    order = np.argsort(key, kind="stable")
    edges = np.flatnonzero(np.diff(key[order], prepend=-1))
    out = []
    for low, high in zip(edges.tolist(), [*edges[1:].tolist(), len(order)], strict=True):
        members = order[low:high]
        first = members[0]
        name, kind = trace.names[int(a.name[rows[first]])], kinds[int(a.kind[rows[first]])]
        sizes, which = np.unique(blocks[members], return_inverse=True)
        longest = int(sizes[np.argmax(np.bincount(which, weights=inside_ns[members]))])
        known = classify(name) if kind == "kernel" else None
        out.append(KernelRow(
            name=name, short=known.short if known else name, kind=kind, part=PARTS[int(part[first])],
            category=known.category if known else "copy engine", library=known.library if known else None,
            family=known.family if known else None, number_format=known.number_format if known else None,
            count=len(members), ns=int(inside_ns[members].sum()),
            grid_blocks=longest if kind == "kernel" and longest > 0 else None,
        ))
    return tuple(sorted(out, key=lambda row: (-row.ns, row.name, row.kind)))


def with_bounds(
    kernels: Sequence[KernelRow], trace: Trace, rows: I64, inside_ns: I64, bound_ns: I64,
) -> tuple[KernelRow, ...]:
    """The kernels with what is known of their bounds; `bound_ns` is of all activities, -1 where unknown."""
    a = trace.activities
    duration = np.maximum(a.dur_ns[rows], 1)
    known = (bound_ns[rows] >= 0) & (a.kind[rows] == KERNEL)
    least = np.where(known, bound_ns[rows] * inside_ns // duration, 0)
    size = len(trace.names)
    total = np.bincount(a.name[rows][known], weights=least[known], minlength=size)
    spent = np.bincount(a.name[rows][known], weights=inside_ns[known], minlength=size)
    found = {trace.names[i]: (int(total[i]), int(spent[i])) for i in np.flatnonzero(spent).tolist()}
    return tuple(
        replace(row, bound_ns=found[row.name][0], bound_share=found[row.name][0] / found[row.name][1])
        if row.kind == "kernel" and row.name in found else row
        for row in kernels
    )


def operator_rows(trace: Trace, rows: I64, inside_ns: I64, part: I32) -> tuple[KernelRow, ...]:
    """A thread's stretches collapsed by operator: self time. `rows` index Trace.ops, once a stretch."""
    out = []
    for i in present(trace.ops.name[rows]):
        mine = trace.ops.name[rows] == i
        label = PARTS[int(part[mine][0])]
        category = next((c for c, p in COMMUNICATION.items() if p == label), label)
        out.append(KernelRow(
            name=trace.names[i], short=trace.names[i], kind="operator", part=label, category=category,
            library=None, family=None, number_format=None, count=len(np.unique(rows[mine])),
            ns=int(inside_ns[mine].sum()), grid_blocks=None,
        ))
    return tuple(sorted(out, key=lambda row: (-row.ns, row.name)))


def is_kernel(view: View) -> I64:
    """Positions in view.rows that are kernels."""
    if view.cpu_only:
        return np.zeros(0, np.int64)
    return np.flatnonzero(view.trace.activities.kind[view.rows] == KERNEL)
