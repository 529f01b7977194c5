"""This file knows about the processes of an Nsight Systems export: its events, process by process, as Traces.

    calls          ├ cudaLaunchKernel ┤       an activity belongs to the innermost operator around its launch: that
    operators    ├───── aten::addmm ─────┤    one's number is its external id, as in Kineto's traces
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from sublight.observe import cleaning, metadata
from sublight.observe.nsys_events import THREAD_BITS, WHOLE_GRAPH, Events, Table, narrowed, taken
from sublight.observe.nsys_tables import Export
from sublight.trace import (
    I32,
    I64,
    NO_ID,
    WHOLE_GRAPHS,
    Activities,
    Calls,
    Ops,
    Quality,
    Ranges,
    Recording,
    Trace,
    in_order,
)

UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
NUMBER = (1 << THREAD_BITS) - 1
UNIX_NS = 10**17                           # time stamps beyond are absolute already (nsys export --ts-normalize)
UNMERGED = "a write-ahead log (-wal) lies beside the file, and what is in it alone was not read: is it still written?"
PAINTED_AT_ONCE = 1 << 17                  # pairs of an operator and a call inside it


def traces_of(export: Export, events: Events) -> tuple[Trace, ...]:
    """One Trace for each process with device activity, in order of its first device and its id."""
    return _Split(export, events).traces()


class _Split:
    """The events of a file, process by process. The pieces that they were read in are dropped as they are joined."""

    def __init__(self, export: Export, events: Events) -> None:
        self.export, self.events = export, events
        self.base = _base(export, events)
        texts = [UNPRINTABLE.sub("\ufffd", text.decode("utf-8", "replace")) for text in events.texts]
        self.names = tuple(sorted(set(texts)))
        place = {name: i for i, name in enumerate(self.names)}
        self.renamed: I32 = narrowed(np.array([place[text] for text in texts] or [0], np.int32))
        self.is_operator = np.zeros(len(self.names) + 1, bool)
        self.is_operator[self.renamed[list(events.operators)]] = True
        self.whole_graph = place.get(WHOLE_GRAPH, -1)
        if self._callers() == 1 and 0 in events.device:          # old exports do not say whose an activity is
            caller = next(process for process in events.calls if process)
            for key, column in events.device.pop(0).items():
                events.device[caller][key].append(column.values())

    def _callers(self) -> int:
        return sum(process != 0 for process in self.events.calls)

    def traces(self) -> tuple[Trace, ...]:
        events = self.events
        used = [process for process, table in events.device.items() if len(table["ts_ns"])]
        if not used:
            return ()
        first = {process: int(events.device[process]["device"].values().min()) for process in used}
        ordered = sorted(used, key=lambda process: (first[process], process))
        left_out = sum(len(table["ts_ns"]) for tables in (events.calls, events.ranges, events.overhead)
                       for process, table in tables.items() if process not in first)
        return _accounted([self._trace(p, alone=len(ordered) == 1) for p in ordered], self.export, events, left_out)

    def _trace(self, process: int, *, alone: bool) -> Trace:
        untimed: Counter[str] = Counter()
        threads, rethreaded = self._threads(process)

        def host(tables: defaultdict[int, Table]) -> dict[str, Any]:
            rows = self._common(tables[process])
            return rows | {"thread": rethreaded[taken(tables[process], "thread")]}

        call_rows, calls_of = host(self.events.calls), self.events.calls[process]
        calls = _ordered(cleaning.forward_only(
            Calls(**call_rows, correlation=taken(calls_of, "correlation")), untimed))
        ops, annotations = self._ranges(host(self.events.ranges), untimed)
        overhead = _ordered(cleaning.forward_only(Ranges(**host(self.events.overhead)), untimed))
        activities, clipped = self._activities(self.events.device[process], untimed)
        activities = _with_operators(activities, calls, ops, self.names)
        kept = {"device activities": len(activities.ts_ns), "runtime calls": len(calls.ts_ns),
                "operators": len(ops.ts_ns), "annotations": len(annotations.ts_ns),
                "profiler overhead": len(overhead.ts_ns)}
        if graphs := int((activities.name == self.whole_graph).sum()):
            kept[WHOLE_GRAPHS] = graphs
        rank, source, _, _ = metadata.rank_of(None, self.export.name if alone else "")
        return Trace(
            rank=rank, rank_source=source, world_size=None, devices=_devices(self.export, process & NUMBER),
            names=self.names, threads=threads, op_args=(), collectives=(), activities=activities, calls=calls, ops=ops,
            annotations=annotations, overhead=overhead, recording=Recording(shapes=False, stacks=False, tool="nsys"),
            quality=Quality(
                files=(self.export.name,), text_bytes=0,
                events=sum(untimed.values()) + sum(n for table, n in kept.items() if table != WHOLE_GRAPHS), kept=kept,
                ignored={}, lost=0, untimed=dict(sorted(untimed.items())), cut_short=False, clock_ns=1,
                repaired={"duration ran past its successors on one stream": clipped} if clipped else {},
            ),
        )

    def _common(self, table: Table) -> dict[str, Any]:
        """Start, duration and name: absolute, and numbered as the Trace numbers names."""
        return {"ts_ns": np.add(taken(table, "ts_ns"), self.base, dtype=np.int64), "dur_ns": taken(table, "dur_ns"),
                "name": self.renamed[taken(table, "name")]}

    def _threads(self, process: int) -> tuple[tuple[str, ...], I32]:
        """The process's threads as "process/thread", and where each thread of the file is among them."""
        labels = {number: f"{process & NUMBER}/{thread & NUMBER}"
                  for thread, number in self.events.threads.items() if thread >> THREAD_BITS == process}
        threads = tuple(sorted(set(labels.values())))
        place = {text: i for i, text in enumerate(threads)}
        moved = np.zeros(len(self.events.threads) + 1, np.int32)
        for number, text in labels.items():
            moved[number] = place[text]
        return threads, narrowed(moved)

    def _ranges(self, rows: dict[str, Any], untimed: Counter[str]) -> tuple[Ops, Ranges]:
        operator = self.is_operator[rows["name"]]
        others = {key: column[~operator] for key, column in rows.items()}
        mine = {key: rows.pop(key)[operator] for key in list(rows)}
        count = len(mine["ts_ns"])
        ops = _ordered(cleaning.forward_only(
            Ops(**mine, external_id=_same(NO_ID, count, np.int64), args=_same(-1, count, np.int32)), untimed))
        ops = replace(ops, external_id=narrowed(np.arange(1, len(ops.ts_ns) + 1)))
        return ops, _ordered(cleaning.forward_only(Ranges(**others), untimed))

    def _activities(self, table: Table, untimed: Counter[str]) -> tuple[Activities, int]:
        rows = self._common(table)
        count = len(rows["ts_ns"])
        rows |= {key: taken(table, key) for key in (
            "kind", "device", "grid", "block", "stream", "correlation", "graph_node", "nbytes")}
        rows |= {"external_id": _same(NO_ID, count, np.int64), "collective": _same(-1, count, np.int32)}
        activities = cleaning.usable_times(Activities(**rows), self.base, untimed)
        return cleaning.clip_overruns(_ordered(activities))


def _same(value: Any, count: int, dtype: Any) -> Any:
    """A column of one value, which takes no memory."""
    return np.broadcast_to(np.array(value, dtype), count)


def _accounted(traces: list[Trace], export: Export, events: Events, left_out: int) -> tuple[Trace, ...]:
    """With the file's own counts. What belongs to no process stands in the first Trace; the file's bytes are shared
    out by events, so that they sum to its size."""
    ignored = dict(events.ignored)
    if left_out:
        ignored["events of processes without device activity"] = left_out
    total = sum(trace.quality.events for trace in traces)
    shares = [export.file_bytes * trace.quality.events // max(total, 1) for trace in traces]
    shares[0] += export.file_bytes - sum(shares)
    out = []
    for i, (trace, share) in enumerate(zip(traces, shares, strict=True)):
        notes = (UNMERGED,) if export.has_log else ()
        q = replace(trace.quality, text_bytes=share, cut_short=export.damage.cut_short, notes=notes)
        if i == 0:
            untimed = Counter(q.untimed) + events.untimed
            q = replace(
                q, lost=export.damage.lost, ignored=dict(sorted(ignored.items())),
                untimed=dict(sorted(untimed.items())),
                events=q.events + export.damage.lost + sum(ignored.values()) + sum(events.untimed.values()))
        out.append(replace(trace, quality=q))
    return tuple(out)


def _base(export: Export, events: Events) -> int:
    """What makes a time stamp absolute: the epoch at the start of the session, less the time stamp of that start."""
    starts = [int(table["ts_ns"].values().min()) for table in events.device.values() if len(table["ts_ns"])]
    if not starts or min(starts) > UNIX_NS or not export.has("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
        return 0
    epoch = _number(export, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    if epoch is None or not UNIX_NS < epoch < 1 << 61:
        return 0
    for table, column in (("ANALYSIS_DETAILS", "startTime"), ("TARGET_INFO_SESSION_START_TIME", "systemClockNs")):
        start = _number(export, table, column) if export.has(table, column) else None
        if start is not None and 0 <= start < UNIX_NS:
            return epoch - start
    return epoch


def _number(export: Export, table: str, column: str) -> int | None:
    found = export.rows(f'SELECT "{column}" FROM "{table}" LIMIT 1')
    return found[0][0] if found and isinstance(found[0][0], int) else None


def _devices(export: Export, process: int) -> Any:
    """The process's devices by their number in it. A file without TARGET_INFO_CUDA_DEVICE is taken to number them as
    the machine does."""
    if not export.has("TARGET_INFO_GPU", "id"):
        return {}
    known = export.tables["TARGET_INFO_GPU"]
    keys = {"name": "name", "numSms": "smCount", "totalGlobalMem": "totalMemory", "computeMajor": "computeMajor",
            "computeMinor": "computeMinor"}
    there = {key: column for key, column in keys.items() if column in known}
    columns = ", ".join(f'"{column}"' for column in there.values())
    gpus: dict[Any, dict[str, Any]] = {}
    for number, *values in export.rows(f"SELECT id, {columns or 'NULL'} FROM TARGET_INFO_GPU"):
        said = dict(zip(there, values, strict=False))
        if isinstance(said.get("name"), bytes):
            said["name"] = said["name"].decode("utf-8", "replace")
        gpus[number] = said
    numbers = {number: number for number in gpus}
    if export.has("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId"):
        pid = "pid" if export.has("TARGET_INFO_CUDA_DEVICE", "pid") else "0"
        rows = export.rows(f"SELECT cudaId, gpuId, {pid} FROM TARGET_INFO_CUDA_DEVICE")
        mine = {cuda: gpu for cuda, gpu, of in rows if of == process}
        numbers = mine or {cuda: gpu for cuda, gpu, _ in rows} or numbers
    return metadata.devices([{"id": number, **gpus[gpu]} for number, gpu in numbers.items() if gpu in gpus])


def _ordered(table: Any) -> Any:
    """As trace.in_order, for rows that mostly are in order already: the other columns decide only between rows that
    start at the same time."""
    starts = table.ts_ns
    if len(starts) < 2:
        return table
    columns = [column for f in fields(table) if (column := getattr(table, f.name)).flags.writeable]
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        for column in columns:                         # in place: a second table would double the peak
            column[:] = column[order]
    same = starts[1:] == starts[:-1]
    if same.any():
        tied = np.flatnonzero(np.concatenate([same, [False]]) | np.concatenate([[False], same]))
        ties = in_order(type(table)(**{f.name: getattr(table, f.name)[tied] for f in fields(table)}))
        for f in fields(table):
            if (column := getattr(table, f.name)).flags.writeable:
                column[tied] = getattr(ties, f.name)
    return table


def _with_operators(activities: Activities, calls: Calls, ops: Ops, names: tuple[str, ...]) -> Activities:
    """Each activity with the number of its innermost operator as external id; what a CUDA graph launched has none."""
    if not len(ops.ts_ns) or not len(calls.ts_ns):
        return activities
    by_id = np.flatnonzero(calls.correlation != NO_ID)
    by_id = by_id[np.argsort(calls.correlation[by_id], kind="stable")]
    ids = calls.correlation[by_id]
    at = np.searchsorted(ids, activities.correlation)
    found = (at < len(ids)) & (activities.correlation != NO_ID)
    found[found] = ids[at[found]] == activities.correlation[found]
    call = by_id[at[found]]
    wanted = np.zeros(len(calls.ts_ns), bool)
    wanted[call] = True
    graph = np.array(["GraphLaunch" in name for name in names])
    wanted &= ~graph[calls.name]
    operator = _innermost(calls, ops, np.flatnonzero(wanted))
    external = activities.external_id.copy()
    external[found] = np.where(operator[call] >= 0, ops.external_id[operator[call]], NO_ID)
    return replace(activities, external_id=narrowed(external))


def _innermost(calls: Calls, ops: Ops, wanted: I64) -> I32:
    """For each call the last operator to begin on its thread of those that run when it begins; -1 where there is none,
    and for calls that are not wanted.

    Operators paint the calls inside them, in order of their starts: the last to paint a call is its innermost one.
    """
    out = np.full(len(calls.ts_ns), -1, np.int32)
    for thread in np.unique(ops.thread).tolist():
        mine = wanted[calls.thread[wanted] == thread]
        its_ops = np.flatnonzero(ops.thread == thread)
        low = np.searchsorted(calls.ts_ns[mine], ops.ts_ns[its_ops], "left")
        high = np.searchsorted(calls.ts_ns[mine], ops.end_ns[its_ops], "right")
        for some in _pieces(high - low):
            count = high[some] - low[some]
            ends = np.cumsum(count)
            place = np.repeat(low[some] - (ends - count), count) + np.arange(ends[-1] if len(ends) else 0)
            out[mine[place]] = np.repeat(its_ops[some], count)
    return out


def _pieces(counts: I64) -> Iterator[slice]:
    """Slices of rows whose counts together are about PAINTED_AT_ONCE."""
    ends = np.cumsum(counts)
    first = 0
    while first < len(counts):
        done = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, done + PAINTED_AT_ONCE, "right")), first + 1)
        yield slice(first, last)
        first = last
