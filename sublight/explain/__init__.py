"""Trace -> Budget and Findings: where the time of a run went, for each device of each rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sublight.budget import BLOCKED, COMMUNICATION, PART_INDEX, STARVED
from sublight.cluster import Cluster
from sublight.device import Device, DeviceInfo, find
from sublight.errors import InputError
from sublight.explain import host
from sublight.explain.bounds import bounds
from sublight.explain.columns import present
from sublight.explain.dependencies import dependencies
from sublight.explain.fabric import fabric
from sublight.explain.findings import FINDINGS
from sublight.explain.frames import Frames
from sublight.explain.links import link
from sublight.explain.model_setting import Asked, exchange_of
from sublight.explain.model_terms import against
from sublight.explain.notebook import notebook
from sublight.explain.rank_findings import find_ranks
from sublight.explain.ranks import Ranks, ranks_of
from sublight.explain.refusals import refusals
from sublight.explain.replay import Replay, replay
from sublight.explain.steps import (
    REPETITION,
    Mark,
    Step,
    Steps,
    marks,
    operator_repetitions,
    repetitions_on,
    steps_on,
    union,
)
from sublight.explain.timeline import Timeline, part_of_activity, timeline
from sublight.explain.view import StepRow, View, inside, kernel_rows, operator_rows, with_bounds
from sublight.explain.whatif import WhatIf, what_if
from sublight.explain.window import OutsideError, Window, chosen
from sublight.finding import Finding
from sublight.trace import Trace

__all__ = ["Asked", "Explained", "Explanation", "Finding", "View", "explain", "views_of"]


USUAL_WHAT_IFS_UP_TO = 20_000        # activities: each question replays the window
WORTH_ASKING = 0.01                  # share of the window


@dataclass(frozen=True, eq=False, slots=True)
class Explained(Frames):
    """One device: its view and what was found."""

    view: View
    findings: tuple[Finding, ...]            # by what they could save, largest first
    replay: Replay | None = None             # None: a CPU-only trace, or one without linked launches
    what_ifs: tuple[WhatIf, ...] = ()

    def views_and_findings(self) -> Iterable[tuple[View, tuple[Finding, ...]]]:
        return ((self.view, self.findings),)

    def _repr_html_(self) -> str:
        return notebook((self,))


@dataclass(frozen=True, eq=False, slots=True)
class Explanation(Frames):
    """A whole run."""

    devices: tuple[Explained, ...]
    traces: tuple[Trace, ...]
    ranks: Ranks | None = None               # what several ranks tell together; None for one
    rank_findings: tuple[Finding, ...] = ()

    def views_and_findings(self) -> Iterable[tuple[View, tuple[Finding, ...]]]:
        return ((d.view, d.findings) for d in self.devices)

    def _repr_html_(self) -> str:
        return notebook(self.devices)


def explain(
    traces: Trace | Sequence[Trace], *, window: Window | str = "default", device: Device | None = None,
    what_ifs: Sequence[str] | None = None, cluster: Cluster | None = None,
    exchange: Mapping[str, int | str] | None = None, model: Asked | None = None,
) -> Explanation:
    """Account for every nanosecond of each device of each rank.

    `window`: "step", "all", "A:B" in milliseconds from the device's first activity (units ns, us, ms, s may be
    written), or "default": the steps where every step has its launches linked, else all.
    `device` overrides what the trace says about its devices. `what_ifs` are answered by replaying the window's
    dependencies (docs/replay.md); None asks the usual ones of windows that are not too long for it.
    `cluster` is what communication is held against (docs/fabric.md), `exchange` sizes of expert exchanges that traces
    do not tell: tokens, top_k, hidden, experts, group_limit, form. `model` is what the trace runs, so that a file
    without shapes is held against the model's operators (docs/explain-model.md).
    Raises InputError where a trace has nothing to account for, or lacks the window that was asked for.
    """
    several = (traces,) if isinstance(traces, Trace) else tuple(traces)
    views = views_of(several, window=window, device=device)
    ranks = ranks_of(views) if len(several) > 1 else None
    explained = []
    for view in views:
        transfers_ns = {} if ranks is None or ranks.refused else _transfers(view, ranks)
        exchange_sizes = exchange if model is None else {**exchange_of(model), **(exchange or {})}
        held = replace(view, fabric=fabric(view, cluster=cluster, exchange=exchange_sizes, transfers_ns=transfers_ns))
        if model is not None:
            held = replace(held, model=against(model, held, held.fabric))
        found = [f for module in FINDINGS for f in module.find(held)]
        found.sort(key=lambda f: (-(f.gain_ns_at_most or 0), f.code))
        played, answers = _replayed(held, what_ifs)
        explained.append(Explained(held, tuple(found), played, answers))
    return Explanation(tuple(explained), several, ranks, find_ranks(ranks) if ranks is not None else ())


def views_of(
    traces: Sequence[Trace], *, window: Window | str = "default", device: Device | None = None,
) -> list[View]:
    """Each device's view, before anything is found in it. Raises InputError as explain does."""
    wanted = Window.parse(window) if isinstance(window, str) else window
    views: list[View] = []
    outside: list[OutsideError] = []
    for trace in traces:
        try:
            views += (
                _thread_views(trace, wanted, len(traces)) if trace.cpu_only
                else _device_views(trace, wanted, device, len(traces))
            )
        except OutsideError as error:              # other ranks may have been at work for longer
            outside.append(error)
    if outside and not views:
        raise outside[0]
    if not views:
        names = ", ".join(f for t in traces for f in t.quality.files)
        raise InputError(
            f"{names}: no device activity and no operators to account for; record with "
            "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
        )
    return views


def _transfers(view: View, ranks: Ranks) -> dict[int, int]:
    """By activity, the transfer of the collectives that several ranks were matched in: of who came last."""
    out: dict[int, int] = {}
    for group in ranks.groups:
        for at, member in enumerate(group.members):
            if ranks.views[member] is view:
                rows, transfer = group.rows[:, at][group.agreed], group.transfer_ns[group.agreed]
                out.update(zip(rows.tolist(), transfer.tolist(), strict=True))
    return out


def _replayed(view: View, texts: Sequence[str] | None) -> tuple[Replay | None, tuple[WhatIf, ...]]:
    if view.links is None or not view.links.linked or not view.budget.window_ns:
        if texts:
            raise InputError(f"no what-if for {view.device_label}: its launches are not in the file, so that nothing "
                             "can be replayed")
        return None, ()
    found = dependencies(view)
    base = replay(view, deps=found)
    if texts is None:
        texts = _usual_what_ifs(view) if len(view.rows) <= USUAL_WHAT_IFS_UP_TO else ()
    bound_ns = view.bounds.of_activity_ns if view.bounds is not None else None
    return base, tuple(what_if(view, text, bound_ns, deps=found, base=base) for text in texts)


def _usual_what_ifs(view: View) -> list[str]:
    """Communication hidden, no launch cost, and the largest compute part twice as fast, where each has a share."""
    out = []
    if view.share(view.budget.communication.exposed_ns) >= WORTH_ASKING:
        out.append("communication=hidden")
    if view.share(view.budget[STARVED] + view.budget[BLOCKED]) >= WORTH_ASKING:
        out.append("launch=0")
    compute = [part for part in view.budget.parts if part.group == "compute" and part.name != "unclassified"]
    if compute:
        out.append(f"{max(compute, key=lambda part: part.ns).name}=2x")
    return out


def _device_views(trace: Trace, wanted: Window, override: Device | None, ranks: int) -> list[View]:
    links = link(trace)
    kind, step_marks = marks(trace)
    part = part_of_activity(trace)
    views = []
    for device in present(trace.activities.device):
        known = (repetitions_on(trace, device) if kind is None else
                 _marked(kind, steps_on(trace, links, step_marks, device)))
        steps = known.steps
        step_windows = union([s.window for s in steps if s.window])
        line = timeline(trace, links, device, part, () if known.found else step_windows)
        if line is None:
            continue
        name, reason, windows = chosen(wanted, known, step_windows, line.span, links)
        a = trace.activities
        here = np.flatnonzero(a.device == device)
        inside_ns = inside(a.ts_ns[here], a.end_ns[here], windows)
        instant = np.zeros(len(here), bool)
        for start, end in windows if (a.dur_ns[here] == 0).any() else ():
            instant |= (a.dur_ns[here] == 0) & (a.ts_ns[here] >= start) & (a.ts_ns[here] <= end)
        keep = (inside_ns > 0) | instant
        rows, inside_ns = here[keep], inside_ns[keep]
        wait_ns, undivided_ns = _waiting(inside_ns, part[rows])
        info = trace.devices.get(device, DeviceInfo())
        if override:
            info = DeviceInfo(override.title, override.sms, override.memory_bytes, override.capability)
        catalogued = override or find(info)
        limits = None if catalogued is None else bounds(
            trace, links, line, device, part, windows, catalogued.limits, catalogued.key)
        kernels = kernel_rows(trace, rows, inside_ns, part[rows])
        views.append(View(
            trace=trace, device=device, info=info, catalogued=catalogued, links=links,
            bounds=limits, timeline=line,
            step_kind=known.kind, steps=steps, step_rows=_step_rows(line, steps),
            window=name, window_reason=reason, windows=windows,
            budget=line.budget(windows, wait_ns, undivided_ns),
            kernels=kernels if limits is None else with_bounds(
                kernels, trace, rows, inside_ns, limits.of_activity_ns),
            rows=rows, inside_ns=inside_ns, part=part[rows],
            refusals=refusals(
                trace, links, known, unlinked=int((links.call[rows] < 0).sum()), activities=len(rows),
                undivided_ns=undivided_ns, ranks=ranks,
            ),
        ))
    return views


def _marked(kind: str, steps: tuple[Step, ...]) -> Steps:
    return Steps(kind, steps, f"{len(steps)} step{'s' if len(steps) != 1 else ''} ({kind})")


def _waiting(inside_ns: np.ndarray, part: np.ndarray) -> tuple[int | None, int]:
    """(summed time of kernels that only wait or None, summed time of those that wait and move data in one)."""
    of = {c: int(inside_ns[part == PART_INDEX[p]].sum()) for c, p in COMMUNICATION.items()}
    undivided, waiting = of["communication"], of["communication: wait"]
    return (None if undivided and not waiting else waiting), undivided


def _thread_views(trace: Trace, wanted: Window, ranks: int) -> list[View]:
    kind, step_marks = marks(trace)
    threads = host.busy_threads(trace)
    words = ""
    if kind is None and threads:
        step_marks, words = operator_repetitions(trace, threads[0])
        kind = REPETITION if step_marks else None
    marked = set(trace.annotations.thread.tolist()) if step_marks and kind != REPETITION else set()
    views = []
    for ordinal, thread in enumerate(threads):
        made = host.thread_timeline(trace, thread, step_marks, thread in marked)
        if made is None:
            continue
        line, start_ns, end_ns, op = made
        low, high = line.span
        steps = tuple(_thread_step(m, low, high, start_ns) for m in step_marks)
        step_windows = union([s.window for s in steps if s.window])
        known = Steps(kind, steps, words) if words else _marked(str(kind), steps)
        name, reason, windows = chosen(wanted, known, step_windows, line.span, None)
        inside_ns = inside(start_ns, end_ns, windows)
        keep = inside_ns > 0
        rows, inside_ns = op[keep].astype(np.int64), inside_ns[keep]
        at = np.searchsorted(line.edges_ns, start_ns[keep], "right") - 1
        part = line.owner[np.maximum(at, 0)]
        budget = line.budget(windows)
        undivided_ns = budget.communication.union_ns         # an operator's time tells no waiting from transfer
        views.append(View(
            trace=trace, device=f"cpu thread {ordinal}", info=DeviceInfo("CPU"), catalogued=None, links=None,
            timeline=line, step_kind=kind, steps=steps, step_rows=_step_rows(line, steps),
            window=name, window_reason=reason, windows=windows,
            budget=replace(budget, communication=replace(
                budget.communication, wait_ns=None if undivided_ns else 0, undivided_ns=undivided_ns)),
            kernels=operator_rows(trace, rows, inside_ns, part), rows=rows, inside_ns=inside_ns, part=part,
            refusals=refusals(trace, None, known, unlinked=0, activities=0, undivided_ns=undivided_ns, ranks=ranks),
        ))
    return views


def _thread_step(mark: Mark, low: int, high: int, stretches: np.ndarray) -> Step:
    """A step on a host thread: what was marked, as far as the thread's span goes."""
    start, end = max(mark.start_ns, low), min(mark.end_ns, high)
    count = int(np.searchsorted(stretches, end) - np.searchsorted(stretches, start)) if end > start else 0
    return Step(mark.label, (start, end) if end > start else None, count, 0)


def _step_rows(line: Timeline, steps: tuple[Step, ...]) -> tuple[StepRow, ...]:
    out = []
    for step in steps:
        if step.window is None:
            out.append(StepRow(step.label, None, None, None, None, step.activities, step.lost_launches))
            continue
        budget = line.budget([step.window])
        out.append(StepRow(step.label, budget.window_ns, budget.busy_ns, budget.communication.exposed_ns,
                           budget.idle_ns, step.activities, step.lost_launches))
    return tuple(out)
