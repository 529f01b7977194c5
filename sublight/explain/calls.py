"""This file knows about operator calls: which kernels carry out which call, its work, and the least time for it.

    kernel ── External id, or host call and time ──▶ operator ── up, until a rule knows it ──▶ one call
                                                                                                 │ once
    aten::linear           no kernel of its own                                                  ▼
      └ aten::addmm        2 kernels (split-K and its sum)                              Ops, Work, Bound

One call is one or more ops and all kernels that carry it out. A kernel whose innermost operator no rule knows belongs
to the nearest enclosing one that has a rule; then what that one encloses is part of its call too, since its work is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np

from sublight.bound import Bound, bound
from sublight.device import Limits
from sublight.explain.columns import present
from sublight.explain.links import Links, calls_matching
from sublight.observe.kernel_name import classify
from sublight.ops.annotation import StepLoad, step_load
from sublight.ops.context import Context, KernelHint
from sublight.ops.engine_calls import APART
from sublight.ops.from_call import has_rule, ops_of_call, strides_recorded
from sublight.ops.op import Op
from sublight.trace import I32, I64, KERNEL, MEMCPY, NO_ID, B, Trace
from sublight.work import Work

MOST_NESTED = 8                          # annotations of steps around each other


_Kernel = tuple[int, tuple[int, int, int]]               # name and grid
# Indices of name, arguments and record; the kernels; the step; the names of copies, where nothing else ran.
_Question = tuple[int, int, int, frozenset[_Kernel], StepLoad | None, frozenset[int]]
_Answer = tuple[tuple[Op, ...], Work | None, Bound | None]


@dataclass(frozen=True, eq=False, slots=True)
class OpCall:
    """One call. work None: no rule knows it, or its arguments do not tell. bound None: that, or the catalog lacks a
    rate, or the device is not known."""

    name: str
    row: int | None                      # in Trace.ops; None: only a collective's record tells of it
    ops: tuple[Op, ...]
    work: Work | None
    bound: Bound | None
    activities: tuple[int, ...]          # in Trace.activities

    @property
    def inferred(self) -> bool:
        return self.work is not None and self.work.inferred


@dataclass(frozen=True, eq=False, slots=True)
class OpCalls:
    """All calls of a trace in the order of their first activity."""

    calls: tuple[OpCall, ...]
    of_activity: I32                     # index into calls, or -1: no operator is known to have launched it

    def known(self) -> B:
        """Per activity: its call has a bound that only rests on what the file records."""
        return self._where(lambda call: call.bound is not None and not call.inferred)

    def bounded(self) -> B:
        """Per activity: its call has a bound, be it inferred."""
        return self._where(lambda call: call.bound is not None)

    def _where(self, holds: Callable[[OpCall], bool]) -> B:
        table = np.array([*map(holds, self.calls), False], bool)
        out: B = table[self.of_activity]
        return out


def op_calls(trace: Trace, links: Links, limits: Limits | None = None) -> OpCalls:
    """Join the activities of a trace to operator calls; bounds are those of a device with these limits."""
    a = trace.activities
    if not len(a.ts_ns) or not ((trace.ops.args >= 0).any() or (a.collective >= 0).any()):
        return OpCalls((), np.full(len(a.ts_ns), -1, np.int32))          # nothing recorded that a rule could read
    parent = _parents(trace)
    innermost = _innermost(trace, links, parent)
    rules = _Rules(trace, limits)
    home = _homes(innermost, parent, rules)
    members: dict[tuple[int, int], list[int]] = {}
    for activity, (row, record) in enumerate(zip(home.tolist(), a.collective.tolist(), strict=True)):
        if row >= 0:
            members.setdefault((row, -1), []).append(activity)
        elif record >= 0:                # a communication kernel without an operator is a call of its own
            members.setdefault((-1, activity), []).append(activity)
    of_activity = np.full(len(home), -1, np.int32)
    calls: list[OpCall] = []
    for (row, _), activities in members.items():
        of_activity[activities] = len(calls)
        calls.append(rules.call(row, tuple(activities)))
    return OpCalls(tuple(calls), of_activity)


def innermost_operators(trace: Trace, links: Links) -> I32:
    """Per activity the innermost operator that launched it, as a row of Trace.ops; -1 where none is known."""
    return _innermost(trace, links, _parents(trace))


# ---- which operator ---------------------------------------------------------------------------------------------


def _parents(trace: Trace) -> I32:
    """Per operator the one that encloses it on its thread, or -1. Crossing ranges enclose nothing."""
    o = trace.ops
    parent = np.full(len(o.ts_ns), -1, np.int32)
    for thread in present(o.thread):
        mine = np.flatnonzero(o.thread == thread)
        ends = np.append(o.end_ns[mine], np.iinfo(np.int64).max)         # the last stands for "nobody", at index -1
        # The nearest one before that ends no earlier. All between an operator and its candidate end before it, so that
        # a candidate that ends too early hands over its own.
        above = np.arange(-1, len(mine))
        while (early := np.flatnonzero(ends[above[:-1]] < ends[:-1])).size:
            above[early] = above[above[early]]
        above = above[:-1]
        parent[mine] = np.where(above >= 0, mine[above], -1)
    return parent


def _innermost(trace: Trace, links: Links, parent: I32) -> I32:
    """Per activity the innermost operator that launched it, or -1.

    By External id, where that operator runs on the launching thread at the time of the launch; else by that time:
    old files number kernels otherwise (in 2023 External id was the correlation). What a graph launched has none.
    """
    a, c = trace.activities, trace.calls
    found = _by_external_id(a.external_id, trace.ops.external_id)
    launched = np.flatnonzero(links.call >= 0)
    if not len(launched):
        return found
    graph = calls_matching(trace, "graph_launching")[links.call[launched]]
    found[launched[graph]] = -1
    timed = launched[~graph]
    stale = timed[~_runs_at(trace, found[timed], links.call[timed])]
    found[stale] = -1
    threads = c.thread[links.call[stale]]
    for thread in present(threads):
        mine = stale[threads == thread]
        found[mine] = _at(trace, parent, thread, c.ts_ns[links.call[mine]])
    return found


def _by_external_id(ids: I64, of_ops: I64) -> I32:
    if not len(of_ops):
        return np.full(len(ids), -1, np.int32)
    order = np.argsort(of_ops, kind="stable")
    known = of_ops[order]
    at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where((known[at] == ids) & (ids != NO_ID), order[at], -1).astype(np.int32)


def _runs_at(trace: Trace, row: I32, call: I32) -> B:
    """Does the operator run when the call is made, on its thread?"""
    o, c = trace.ops, trace.calls
    if not len(o.ts_ns):
        return np.zeros(len(row), bool)
    out: B = ((row >= 0) & (o.thread[row] == c.thread[call]) & (o.ts_ns[row] <= c.ts_ns[call])
              & (c.ts_ns[call] <= o.end_ns[row]))
    return out


def _at(trace: Trace, parent: I32, thread: int, times: I64) -> I32:
    """The innermost operator of a thread at each time: the last that began by then, or one that encloses it."""
    o = trace.ops
    mine = np.flatnonzero(o.thread == thread)
    row = np.full(len(times), -1, np.int32)
    if not len(mine):
        return row
    at = np.searchsorted(o.ts_ns[mine], times, "right") - 1
    row = np.where(at >= 0, mine[np.maximum(at, 0)], -1).astype(np.int32)
    while (over := (row >= 0) & (o.end_ns[row] < times)).any():
        row[over] = parent[row[over]]
    return row


def _homes(innermost: I32, parent: I32, rules: _Rules) -> I32:
    """Per activity the operator whose call it is part of: the innermost that a rule knows, then the outermost of
    those above it that are homes too. Where no rule knows any, the innermost."""
    launched: dict[int, list[int]] = {}
    for activity, row in enumerate(innermost.tolist()):
        if row >= 0:
            launched.setdefault(row, []).append(activity)
    own: dict[int, int] = {}
    for row, activities in launched.items():
        at = row
        while at >= 0 and not rules.know(at, tuple(activities)):
            at = int(parent[at])
        own[row] = at
    rows_of_homes = np.unique(np.array([home for home in own.values() if home >= 0], np.int64))
    is_home = np.zeros(len(parent) + 1, bool)                            # the last stands for "nobody", at index -1
    is_home[rows_of_homes] = True
    top = rows_of_homes.copy()
    up = np.array([-1 if rules.apart(home) else parent[home] for home in rows_of_homes.tolist()], np.int64)
    while (up >= 0).any():
        top = np.where(is_home[up], up, top)
        up = np.where(up >= 0, parent[up] if len(parent) else -1, -1)
    final = dict(zip(rows_of_homes.tolist(), top.tolist(), strict=True))
    out = innermost.copy()
    for row, activities in launched.items():
        if own[row] >= 0:
            out[activities] = final[own[row]]
    return out


# ---- what it does -----------------------------------------------------------------------------------------------


class _Rules:
    """What the rules say of a trace's operators; each different question is asked once."""

    def __init__(self, trace: Trace, limits: Limits | None) -> None:
        self.trace, self.limits = trace, limits
        self.tf32 = limits is None or "tf32" in limits.tensor_flops_per_clock
        groups = {c.group_size for c in trace.collectives if c.group_size > 1}
        self.group = min(groups) if groups else None
        self.loads = _loads(trace)
        a = trace.activities             # as lists: they are asked for one at a time
        self.kernel_name: list[int] = a.name.tolist()
        self.record: list[int] = a.collective.tolist()
        self.kind: list[int] = a.kind.tolist()
        self.grid: list[tuple[int, int, int]] = list(map(tuple, a.grid.tolist()))
        self.op_name: list[int] = trace.ops.name.tolist()
        self.op_args: list[int] = trace.ops.args.tolist()
        self.ruled = {i for i in present(trace.ops.name) if has_rule(trace.names[i])}
        self.set_apart = {i for i in present(trace.ops.name) if trace.names[i] in APART}
        self._answers: dict[_Question, _Answer] = {}
        self._alike: dict[tuple[int, int, int, int, int], _Answer] = {}     # of calls with one activity
        self._shape = _numbers(zip(self.kernel_name, self.kind, self.grid, strict=True))
        self._load_of = self._loads_of_ops()

    def know(self, row: int, activities: tuple[int, ...]) -> bool:
        """Does a rule know this operator, with these kernels?"""
        if (self.op_name[row] not in self.ruled or self.op_args[row] < 0) and self._record(activities) < 0:
            return False
        return self._ask(row, activities)[1] is not None

    def apart(self, row: int) -> bool:
        """Is this operator never a part of one that encloses it?"""
        return self.op_name[row] in self.set_apart

    def call(self, row: int, activities: tuple[int, ...]) -> OpCall:
        index = self.op_name[row] if row >= 0 else self.kernel_name[activities[0]]
        ops, work, least = self._ask(row, activities)
        return OpCall(self.trace.names[index], row if row >= 0 else None, ops, work, least, activities)

    def _record(self, activities: tuple[int, ...]) -> int:
        return max(self.record[i] for i in activities)

    def _ask(self, row: int, activities: tuple[int, ...]) -> _Answer:
        if len(activities) > 1 or row < 0:
            return self._ask_all(row, activities)
        only = activities[0]
        alike = (self.op_name[row], self.op_args[row], self.record[only], self._shape[only], self._load_of[row])
        found = self._alike.get(alike)
        if found is None:
            found = self._alike[alike] = self._ask_all(row, activities)
        return found

    def _ask_all(self, row: int, activities: tuple[int, ...]) -> _Answer:
        kernels = frozenset((self.kernel_name[i], self.grid[i]) for i in activities if self.kind[i] == KERNEL)
        copies = frozenset(self.kernel_name[i] for i in activities if self.kind[i] == MEMCPY)
        name, args = (self.op_name[row], self.op_args[row]) if row >= 0 else (-1, -1)
        question = (name, args, self._record(activities), kernels, self._load(row) if row >= 0 else None,
                    frozenset() if kernels else copies)
        if question not in self._answers:
            self._answers[question] = self._answer(*question)
        return self._answers[question]

    def _answer(
        self, name: int, arguments: int, record: int, kernels: frozenset[_Kernel], load: StepLoad | None,
        copies: frozenset[int],
    ) -> _Answer:
        args = self.trace.op_args[arguments] if arguments >= 0 else None
        collective = self.trace.collectives[record] if record >= 0 else None
        if args is None and collective is None:
            return (), None, None
        hints = tuple(_hint(self.trace.names[kernel], grid) for kernel, grid in sorted(kernels))
        ops = ops_of_call(self.trace.names[name] if name >= 0 else "", args,
                          context=Context(load, collective, self.group, hints, self.tf32))
        if not ops:
            return (), None, None
        works = [op.work() for op in ops]
        ways = [self.trace.names[copy] for copy in copies]
        if ways and all("HtoD" in way for way in ways):                  # only one side is the device's memory
            works = [Work.of(bytes_written=w.bytes_written) for w in works]
        elif ways and all("DtoH" in way or "PtoP" in way for way in ways):
            works = [Work.of(bytes_read=w.bytes_read) for w in works]
        work = reduce(add, works)
        if collective is None and not strides_recorded(args):
            work = replace(work, inferred=True)
        bounds = [bound(w, self.limits) if self.limits else None for w in works]
        return ops, work, _sum([b for b in bounds if b]) if None not in bounds else None

    def _loads_of_ops(self) -> list[int]:
        """Per operator the number of its step's load, -1 for none."""
        o = self.trace.ops
        if not self.loads:
            return [-1] * len(o.ts_ns)
        out = np.full(len(o.ts_ns), -1, np.int64)
        numbers: dict[StepLoad, int] = {}
        for thread, steps in self.loads.items():
            mine = np.flatnonzero(o.thread == thread)
            starts, ends = np.array([s[0] for s in steps]), np.array([s[1] for s in steps])
            number = np.array([numbers.setdefault(load, len(numbers)) for _, _, load in steps])
            last = np.searchsorted(starts, o.ts_ns[mine], "right") - 1
            inside = (last >= 0) & (o.ts_ns[mine] < ends[last])
            out[mine[inside]] = number[last[inside]]
            for row in mine[~inside & (last > 0)].tolist() if len(steps) > 1 and (ends[:-1] > starts[1:]).any() else ():
                load = self._load(row)           # steps lie in each other: look further out
                out[row] = numbers[load] if load is not None else -1
        return out.tolist()

    def _load(self, row: int) -> StepLoad | None:
        """The engine step around an operator on its thread; of nested ones the innermost."""
        start_ns = int(self.trace.ops.ts_ns[row])
        steps = self.loads.get(int(self.trace.ops.thread[row]), [])
        last = bisect_right(steps, start_ns, key=lambda step: step[0])
        around = (step for step in reversed(steps[max(0, last - MOST_NESTED):last]) if start_ns < step[1])
        return next((load for _, _, load in around), None)


def _numbers(values: Iterable[object]) -> list[int]:
    """For each value the number of its first occurrence among the distinct ones."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def _hint(name: str, grid: tuple[int, int, int]) -> KernelHint:
    known = classify(name)
    return KernelHint(known.name, known.category, known.number_format, known.tile, grid)


def _loads(trace: Trace) -> dict[int, list[tuple[int, int, StepLoad]]]:
    """(start, end, load) of annotated steps, by thread, in the order of their starts."""
    n = trace.annotations
    known = {i: load for i in present(n.name) if (load := step_load(trace.names[i]))}
    out: dict[int, list[tuple[int, int, StepLoad]]] = {}
    for row in np.flatnonzero(np.isin(n.name, list(known))).tolist():
        out.setdefault(int(n.thread[row]), []).append((int(n.ts_ns[row]), int(n.end_ns[row]), known[int(n.name[row])]))
    return out


def _sum(bounds: Sequence[Bound]) -> Bound:
    """Ops of one call, one after the other: their bounds add; the limiter is that of the longest."""
    if len(bounds) == 1:
        return bounds[0]
    longest = max(bounds, key=lambda b: b.seconds)
    resources = sorted({r for b in bounds for r in b.terms})
    return Bound(sum(b.seconds for b in bounds), longest.limiter,
                 {r: sum(b.terms.get(r, 0.0) for b in bounds) for r in resources})
