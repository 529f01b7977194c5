"""This file knows about the trace of an explanation: Chrome JSON for ui.perfetto.dev, cut to the window, with tracks
of our own beside those of the file.

    host      threads: operators and calls of the window, and of the time when what runs in it was launched
    device    streams: every activity of the window, to the nanosecond, never cut
    sublight  steps; owner of each nanosecond; gaps, by cause; exposed communication

Of the file's words only names of kernels, operators and calls get in, and annotations where they mark steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from sublight.budget import COMMUNICATION, COMPUTE, GROUPS, PARTS
from sublight.errors import InputError
from sublight.explain import Explanation
from sublight.explain.columns import among, present
from sublight.explain.steps import marks, union
from sublight.explain.view import View, inside
from sublight.show.lanes import stretches
from sublight.trace import I64, KERNEL, NO_ID, Activities, B, Calls, Ops, Ranges, Trace

MOST_BYTES = 48_000_000                  # Perfetto's page wants less than about 100 MB; mail and issues less than 50
KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
OURS = "sublight"                        # category of the events that we add: readers of traces pass them by
# Text of an event without its name and its numbers, and the numbers of a time.
ACTIVITY_BYTES, HOST_BYTES, OWN_BYTES, TIME_BYTES = 175, 115, 130, 6
OWNERS = "owners"
DISPENSABLE = ("operators", "calls", OWNERS)
APART = 1 << 40                          # between the ids of two ranks


def perfetto(explanation: Explanation) -> Iterator[str]:
    """The file in pieces. Raises InputError, before the first piece, where even the device activities of the window
    alone would make it too large."""
    parts = _parts(explanation)
    dropped = _dropped(parts)
    return _pieces(explanation, parts, dropped)


class _Part:
    """One rank: its views, which rows of its host tables belong to the window, and where its numbers begin."""

    def __init__(self, trace: Trace, views: list[View], rank: int, first_device: int) -> None:
        self.trace, self.views, self.rank, self.first_device = trace, views, rank, first_device
        windows = list(union([w for view in views for w in (*view.windows, *_launching(view))]))
        rows = np.unique(np.concatenate([v.rows for v in views])) if not trace.cpu_only else np.zeros(0, np.int64)
        self.activities: I64 = rows.astype(np.int64)
        a = trace.activities
        self.calls = _touching(trace.calls, windows) | among(trace.calls.correlation, a.correlation[rows])
        self.ops = _touching(trace.ops, windows) | among(trace.ops.external_id, a.external_id[rows])
        names = [len(json.dumps(name)) for name in trace.names]
        self.name_bytes = np.array([*names, 0], np.int64)
        self.own = [(view, stretches(view)) for view in views]

    def bytes_of(self, what: str) -> int:
        """At most so much text for one kind of event: every number as long as the longest of its column."""
        t, span = self.trace, max(v.timeline.span[1] for v in self.views) - min(v.timeline.span[0] for v in self.views)
        times = 2 * (TIME_BYTES + len(str(span)))
        if what in (OWNERS, "gaps"):
            return (OWN_BYTES + times) * self.count(what)
        kinds: dict[str, tuple[Activities | Calls | Ops, I64, tuple[str, ...], int]] = {
            "activities": (t.activities, self.activities, ("stream", "stream", "correlation", "external_id", "nbytes",
                                                           "graph_node"), ACTIVITY_BYTES),
            "operators": (t.ops, np.flatnonzero(self.ops), ("external_id",), HOST_BYTES),
            "calls": (t.calls, np.flatnonzero(self.calls), ("correlation",), HOST_BYTES),
        }
        table, rows, ids, fixed = kinds[what]
        longest = sum(_digits(getattr(table, column)[rows]) for column in ids) + (14 * len(ids) if self.rank else 0)
        return int(self.name_bytes[table.name[rows]].sum()) + (fixed + times + longest) * len(rows)

    def count(self, what: str) -> int:
        """How many events of one kind there are, or at most are."""
        if what == "operators":
            return int(self.ops.sum())
        if what == "calls":
            return int(self.calls.sum())
        if what == OWNERS:
            bounded = sum(int((view.bounds.of_activity_ns[view.rows] > 0).sum())
                          for view, _ in self.own if view.bounds is not None)
            return bounded + sum(len(owner) for _, (_, _, owner, _) in self.own)
        return sum(int((owner >= len(COMPUTE)).sum()) + len(view.steps) for view, (_, _, owner, _) in self.own)


def _digits(column: I64) -> int:
    """Of the longest number; ids that are absent are not written."""
    there = column[column != NO_ID]
    return len(str(int(np.abs(there).max()))) if len(there) else 0


def _parts(explanation: Explanation) -> list[_Part]:
    out: list[_Part] = []
    first_device = 0
    for trace in explanation.traces:
        views = [d.view for d in explanation.devices if d.view.trace is trace]
        if views:
            out.append(_Part(trace, views, len(out), first_device))
            first_device += 1 + max((int(v.device) for v in views if not v.cpu_only), default=-1)
    return out


def _dropped(parts: list[_Part]) -> dict[str, int]:
    """What has to go for the file to stay small, in this order: operators, calls, our track of owners."""
    size = {what: sum(p.bytes_of(what) for p in parts) for what in ("activities", "gaps", *DISPENSABLE)}
    total, dropped = sum(size.values()), {}
    for what in DISPENSABLE:
        if total > MOST_BYTES:
            dropped[what] = sum(p.count(what) for p in parts)
            total -= size[what]
    if total > MOST_BYTES:
        view = max((v for p in parts for v in p.views), key=lambda v: v.budget.window_ns)
        low, _ = view.timeline.span
        start = (view.windows[0][0] - low) / 1e6
        wide = (view.windows[-1][1] - view.windows[0][0]) / 1e6 * MOST_BYTES / total * 0.9
        raise InputError(
            f"the window holds {sum(len(p.activities) for p in parts):,} device activities, {total / 1e6:,.0f} MB as "
            f"text; expected at most {MOST_BYTES / 1e6:.0f} MB, which Perfetto opens at ease; ask for a shorter "
            f"window, such as --window {start:.0f}ms:{start + max(wide, 1):.0f}ms"
        )
    return dropped


def _pieces(explanation: Explanation, parts: list[_Part], dropped: dict[str, int]) -> Iterator[str]:
    from sublight import __version__

    base = min(_first_ns(p, dropped) for p in parts)
    head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": _device_properties(parts)}
    if len(parts) == 1 and parts[0].trace.rank is not None:
        t = parts[0].trace
        head["distributedInfo"] = {k: v for k, v in (("rank", t.rank), ("world_size", t.world_size),
                                                     ("backend", t.recording.backend)) if v is not None}
    said = [f"{n:,} {what}" for what, n in dropped.items()]
    head |= {
        "displayTimeUnit": "ns", "baseTimeNanoseconds": base,
        "sublight": {
            "version": __version__, "clock_ns": max(p.trace.quality.clock_ns for p in parts),
            "window": parts[0].views[0].window,
            "window_reason": parts[0].views[0].window_reason, "dropped": dropped,
            "note": f"dropped to stay below 50 MB: {', '.join(said)}" if said else "nothing was dropped",
        },
    }
    yield _json(head)[:-1] + ',"traceEvents":[\n'
    comma = ""
    for event in _events(parts, base, dropped):
        yield comma + event
        comma = ",\n"
    yield "\n]}\n"


def _events(parts: list[_Part], base: int, dropped: dict[str, int]) -> Iterator[str]:
    several = len(parts) > 1
    ours = 1 + max((_number(t.split("/")[0]) for p in parts for t in p.trace.threads), default=0)
    ours = max(ours, 1 + sum(len(p.views) for p in parts), 100_000)
    hosts = ours + sum(len(p.views) for p in parts)
    for part in parts:
        host = hosts + part.rank if several else None
        yield from _activities(part, base)
        if "calls" not in dropped:
            yield from _host(part, part.trace.calls, part.calls, "calls", base, host)
        if "operators" not in dropped:
            yield from _host(part, part.trace.ops, part.ops, "operators", base, host)
        yield from _step_marks(part, base, host)
        rank = f"rank {part.trace.rank} \u00b7 " if part.trace.rank is not None else ""
        for view in {v.device: v for v in part.views if not v.cpu_only}.values():
            yield _named("process_name", _pid(part, view), 0, f"{rank}{view.title}")
        if several:
            yield _named("process_name", int(host or 0), 0, f"{rank}host")
    for part in parts:
        rank = f"rank {part.trace.rank} \u00b7 " if part.trace.rank is not None else ""
        for view, (start, end, owner, _) in part.own:
            yield _named("process_name", ours, 0, f"sublight \u00b7 {rank}{view.title}")
            yield from _tracks(view, start, end, owner, ours, base, owners=OWNERS not in dropped)
            ours += 1


# ---------------------------------------------------------------- what the file had


def _activities(part: _Part, base: int) -> Iterator[str]:
    """Device activities, whole, with what links them to calls, operators and graphs."""
    t, a = part.trace, part.trace.activities
    names = _texts(t, a.name[part.activities])
    shift = part.rank * APART
    columns = (a.ts_ns, a.dur_ns, a.name, a.kind, a.device, a.stream, a.correlation, a.external_id, a.graph_node,
               a.nbytes, a.grid, a.block)
    rows = part.activities
    for ts, dur, name, kind, device, stream, correlation, op, node, nbytes, grid, block in zip(
            *(c[rows].tolist() for c in columns), strict=True):
        device += part.first_device
        more = f'"device":{device},"stream":{stream}'
        if correlation != NO_ID:
            more += f',"correlation":{correlation + shift}'
        if op != NO_ID:
            more += f',"External id":{op + shift}'
        if node != NO_ID:
            more += f',"graph node id":{node}'
        if kind == KERNEL:
            if any(grid):
                more += f',"grid":{_triple(grid)},"block":{_triple(block)}'
        elif nbytes:
            more += f',"bytes":{nbytes}'
        yield _span(KINDS[kind], names[name], device, stream, ts - base, dur, more)


def _host(part: _Part, table: Calls | Ops, keep: B, what: str, base: int, host: int | None) -> Iterator[str]:
    """Calls or operators, on their own threads."""
    t, rows = part.trace, np.flatnonzero(keep)
    names, shift = _texts(t, table.name[rows]), part.rank * APART
    ids, key = ((table.correlation, "correlation") if isinstance(table, Calls) else (table.external_id, "External id"))
    driver = {i: not n.startswith(("cuda", "hip")) for i in present(table.name[rows]) for n in [t.names[i]]}
    columns = (table.ts_ns, table.dur_ns, table.name, table.thread, ids)
    for ts, dur, name, thread, number in zip(*(c[rows].tolist() for c in columns), strict=True):
        category = "cpu_op" if what == "operators" else "cuda_driver" if driver[name] else "cuda_runtime"
        pid, tid = _thread(t, thread, host)
        more = "" if number == NO_ID else f'"{key}":{number + shift}'
        yield _span(category, names[name], pid, tid, ts - base, dur, more)


def _step_marks(part: _Part, base: int, host: int | None) -> Iterator[str]:
    """Annotations that mark the steps, as the file wrote them."""
    table: Ranges = part.trace.annotations
    wanted = {(m.start_ns, m.end_ns) for m in marks(part.trace)[1]}
    names = _step_names(part.trace)
    for ts, dur, name, thread in zip(*(c.tolist() for c in (table.ts_ns, table.dur_ns, table.name, table.thread)),
                                     strict=True):
        if name in names and (ts, ts + dur) in wanted:
            pid, tid = _thread(part.trace, thread, host)
            yield _span("user_annotation", names[name], pid, tid, ts - base, dur, "")


def _step_names(trace: Trace) -> dict[int, str]:
    """Names that mark steps of the kind that the trace has."""
    import re

    from sublight.explain.links import runtime_catalog

    kind, _ = marks(trace)
    patterns = [rule["match"] for rule in runtime_catalog()["step"] if rule["kind"] == kind]
    return {i: _json(trace.names[i]) for i in present(trace.annotations.name)
            if any(re.match(pattern, trace.names[i]) for pattern in patterns)}


# ---------------------------------------------------------------- what we add


def _tracks(
    view: View, start: I64, end: I64, owner: Any, pid: int, base: int, *, owners: bool
) -> Iterator[str]:
    """Steps, owners, gaps by cause and exposed communication of one device."""
    steps: list[list[tuple[int, int, str]]] = []
    for step in view.steps:
        if step.window is not None:                # overlapping steps get a track each: slices of a track must nest
            track = next((s for s in steps if s[-1][1] <= step.window[0]), None)
            if track is None:
                steps.append(track := [])
            track.append((*step.window, f"step {step.label}"))
    exposed = [i for i, p in enumerate(PARTS) if p in COMMUNICATION.values()]
    idle = [i for i, p in enumerate(PARTS) if GROUPS[p] == "idle"]
    owned = list(zip(start.tolist(), end.tolist(), owner.tolist(), strict=True))
    tracks: list[tuple[str, list[tuple[int, int, str]]]] = [
        *((f"steps{f' ({i})' if i else ''}", track) for i, track in enumerate(steps)),
        *([("owner", [(s, e, PARTS[o]) for s, e, o in owned])] if owners else []),
        ("gaps, by cause", [(s, e, PARTS[o]) for s, e, o in owned if o in idle]),
        ("exposed communication", [(s, e, PARTS[o]) for s, e, o in owned if o in exposed]),
        *(_bounds(view) if owners else []),
    ]
    for tid, (name, spans) in enumerate(tracks, 1):
        yield _named("thread_name", pid, tid, name)
        order = {"name": "thread_sort_index", "args": {"sort_index": tid}}
        yield _json({"ph": "M", "pid": pid, "tid": tid, "ts": 0, **order})
        for s, e, label in _together(spans):
            yield _span(OURS, _json(label), pid, tid, s - base, e - s, f'"ns":{e - s}')


def _bounds(view: View) -> list[tuple[str, list[tuple[int, int, str]]]]:
    """A track a stream: how long each kernel of a known bound would have run at it, from its own start on."""
    if view.bounds is None:
        return []
    a, bound_ns = view.trace.activities, view.bounds.of_activity_ns
    rows = view.rows[bound_ns[view.rows] > 0]
    out = []
    for stream in sorted(set(a.stream[rows].tolist())):
        mine = rows[a.stream[rows] == stream]
        start = a.ts_ns[mine]
        until = np.append(start[1:], np.iinfo(np.int64).max)         # slices of a track must not cross
        end = np.minimum(np.minimum(start + bound_ns[mine], a.end_ns[mine]), until)
        spans = [(s, e, "at its bound") for s, e in zip(start.tolist(), end.tolist(), strict=True) if e > s]
        out.append((f"bounds, stream {stream}", spans))
    return out


def _together(spans: list[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """Neighbours of one label as one."""
    held: tuple[int, int, str] | None = None
    for s, e, label in spans:
        if held is not None and held[1] == s and held[2] == label and not label.startswith("step "):
            held = (held[0], e, label)
            continue
        if held is not None:
            yield held
        held = (s, e, label)
    if held is not None:
        yield held


# ---------------------------------------------------------------- text


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def _texts(trace: Trace, indices: Any) -> dict[int, str]:
    """Names as JSON, each made once."""
    return {i: _json(trace.names[i]) for i in present(indices)}


def _us(ns: int) -> str:
    """Microseconds with three decimals: exact."""
    whole, part = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{whole}.{part:03d}"


def _span(category: str, name: str, pid: int, tid: int, start_ns: int, dur_ns: int, args: str) -> str:
    return (f'{{"ph":"X","cat":"{category}","name":{name},"pid":{pid},"tid":{tid},"ts":{_us(start_ns)},'
            f'"dur":{_us(dur_ns)},"args":{{{args}}}}}')


def _named(kind: str, pid: int, tid: int, name: str) -> str:
    return _json({"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}})


def _triple(values: list[int]) -> str:
    return f"[{values[0]},{values[1]},{values[2]}]"


def _number(text: str) -> int:
    return int(text) if text.lstrip("-").isdecimal() else 0


def _thread(trace: Trace, index: int, host: int | None) -> tuple[int, int]:
    """(process, thread) of a host thread; of several ranks, each rank's host is a process of its own."""
    pid, _, tid = trace.threads[index].partition("/")
    return (_number(pid) if host is None else host), _number(tid)


def _pid(part: _Part, view: View) -> int:
    return int(view.device) + part.first_device


def _device_properties(parts: list[_Part]) -> list[dict[str, Any]]:
    out = []
    for part in parts:
        for index, info in sorted(part.trace.devices.items()):
            row = {"id": index + part.first_device, "name": info.name, "numSms": info.sms,
                   "totalGlobalMem": info.memory_bytes}
            if info.capability:
                row |= {"computeMajor": info.capability[0], "computeMinor": info.capability[1]}
            out.append({key: value for key, value in row.items() if value is not None})
    return out


# ---------------------------------------------------------------- which host events


def _touching(table: Calls | Ops, windows: list[tuple[int, int]]) -> B:
    """Events that overlap the windows, or are an instant inside one."""
    out: B = inside(table.ts_ns, np.maximum(table.end_ns, table.ts_ns + 1), windows) > 0
    return out


def _launching(view: View) -> list[tuple[int, int]]:
    """When the host launched what the device runs in its windows: before them, where it runs ahead."""
    if view.links is None:
        return []
    launched = view.links.launch_ns[view.rows][view.links.call[view.rows] >= 0]
    return [(int(launched.min()), int(launched.max()) + 1)] if len(launched) else []


def _first_ns(part: _Part, dropped: dict[str, int]) -> int:
    """Where the earliest event that is written begins."""
    t = part.trace
    starts = [view.windows[0][0] for view in part.views] + [m.start_ns for m in marks(t)[1]]
    columns = [t.activities.ts_ns[part.activities]]
    columns += [] if "calls" in dropped else [t.calls.ts_ns[part.calls]]
    columns += [] if "operators" in dropped else [t.ops.ts_ns[part.ops]]
    return min([*starts, *(int(c.min()) for c in columns if len(c))])
