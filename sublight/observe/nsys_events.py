"""This file knows about the events of an Nsight Systems export: device activities, runtime calls and NVTX ranges of all
its processes, as columns.

    globalPid, globalTid   machine (16 bits) | process (24 bits) | thread (24 bits): the upper two name a process
    NVTX_EVENTS            push/pop and start/end ranges; those that PyTorch's emit_nvtx wrote are operators:
                           "aten::mm, seq = 12, op_id = 345"
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sublight.observe.nsys_tables import STRING_ID, Chunk, Export
from sublight.trace import FARTHEST_NS, I32, I64, KERNEL, MEMCPY, MEMSET, NO_ID, B

TABLE = "CUPTI_ACTIVITY_KIND_"
WHOLE_GRAPH = "whole_CUDA_graph"              # the name of an activity that stands for all kernels of a graph
THREAD_BITS = 24
NONE = int(NO_ID)
# eventType of NVTX_EVENTS, as ENUM_NSYS_EVENT_TYPE lists them: ranges that were joined from their two ends.
RANGES = (59, 60, 70, 71)                     # push/pop, start/end, and both imported
EMPTY = "''"                                    # of SQL
NVTX = r"NVTX_EVENTS(_V\d+)?"
# What PyTorch's emit_nvtx puts behind an operator's name (torch/csrc/autograd/profiler_legacy.cpp).
COMMA, SEQUENCE, OPERATOR = b", ", b", seq = ", b", op_id = "
OPERATOR_NAME = re.compile(rb"[A-Za-z_][\w.]*::[\w.:~ ()<>\[\]-]{1,200}")
REGISTERED = re.compile(STRING_ID + rb"\d{1,18}")
API_VERSION = re.compile(rb"_v\d{4,5}$")          # cudaLaunchKernel_v7000: the version of the runtime that brought it
# copyKind and memory kinds as ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND number them; named as Kineto names copies.
COPIES = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
          11: "HtoD", 12: "DtoH", 13: "DtoD"}
MEMORIES = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}

NO_NAME = b"(no name)"
LEAST_ROOM = 4096                                # rows
HALF: dict[int, Any] = {8: np.int32, 4: np.int16}   # by bytes
PLACE = {"start": None, "end": None, "deviceId": 0, "streamId": 0, "correlationId": NONE, "globalPid": 0}
GRID = {f"{what}{axis}": 0 for what in ("grid", "block") for axis in "XYZ"}


class Ids(dict[Any, int]):
    """Numbers things in the order in which they are first asked for."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class Column:
    """A column that grows, and is as narrow as its numbers allow. Room is made by doubling: memory that was never
    written takes none, and large pieces are given back to the system, as many small ones are not."""

    __slots__ = ("_data", "_rows")

    def __init__(self) -> None:
        self._data: Any = None
        self._rows = 0

    def append(self, part: Any) -> None:
        rows, part = self._rows + len(part), narrowed(part)
        width = part.dtype if self._data is None else np.promote_types(part.dtype, self._data.dtype)
        if self._data is None or rows > len(self._data) or width != self._data.dtype:
            grown = np.empty((max(2 * rows, LEAST_ROOM), *part.shape[1:]), width)
            if self._data is not None:
                grown[: self._rows] = self._data[: self._rows]
            self._data = grown
        self._data[self._rows : rows] = part
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def values(self) -> Any:
        return np.zeros(0, np.int64) if self._data is None else self._data[: self._rows]


def narrowed(values: Any) -> Any:
    """The same numbers in half of the bytes, where all of them fit: int64 as int32, int32 as int16."""
    half = HALF.get(values.dtype.itemsize)
    if half is None:
        return values
    limits = np.iinfo(half)
    fits = not values.size or (values.min() >= limits.min and values.max() <= limits.max)
    return values.astype(half) if fits else values


Table = defaultdict[str, Column]


def _tables() -> defaultdict[int, Table]:
    return defaultdict(lambda: defaultdict(Column))


@dataclass(slots=True)
class Events:
    """All that was read, by process: globalPid without its lowest bits."""

    texts: Ids = field(default_factory=Ids)                       # of bytes
    threads: Ids = field(default_factory=Ids)                     # of globalTid
    device: defaultdict[int, Table] = field(default_factory=_tables)
    calls: defaultdict[int, Table] = field(default_factory=_tables)
    ranges: defaultdict[int, Table] = field(default_factory=_tables)
    overhead: defaultdict[int, Table] = field(default_factory=_tables)
    operators: set[int] = field(default_factory=set)              # texts that are operators of PyTorch
    ignored: Counter[str] = field(default_factory=Counter)
    untimed: Counter[str] = field(default_factory=Counter)


def taken(table: Table, key: str) -> Any:
    """A whole column, taken out of its table. A column that is the same everywhere takes no memory."""
    values = table.pop(key, Column()).values()
    if values.size and (values == values.flat[0]).all():
        return np.broadcast_to(np.array(values.flat[0]), values.shape)
    return values


def process_of(ids: I64) -> I64:
    """The process part of globalPid or globalTid."""
    return ids >> THREAD_BITS


class StringNames:
    """Numbers of StringIds as numbers of texts."""

    def __init__(self, export: Export, texts: Ids, *, calls: bool = False) -> None:
        self._export, self._texts, self._calls = export, texts, calls
        self._known: dict[int, int] = {}

    def of(self, ids: I64) -> I32:
        numbers, at = _distinct(ids)
        wanted = numbers.tolist()
        if new := [number for number in wanted if number not in self._known]:
            strings = self._export.strings(new)
            for number in new:
                text = strings.get(number, NO_NAME)
                if self._calls:
                    text = API_VERSION.sub(b"", text)
                self._known[number] = self._texts[text]
        out: I32 = np.array([self._known[number] for number in wanted], np.int32)[at]
        return out


def read_device(export: Export, out: Events) -> None:
    """Kernels, copies, memsets, and graphs that were recorded as a whole."""
    for name in ("KERNEL", "CONCURRENT_KERNEL"):
        if export.has(TABLE + name, "start", "end"):
            known = export.tables[TABLE + name]
            text = next((c for c in ("demangledName", "shortName", "mangledName") if c in known), "demangledName")
            strings = StringNames(export, out.texts)
            for chunk in export.chunks(TABLE + name, PLACE | {"graphNodeId": NONE} | GRID | {text: NONE}):
                _put(out, chunk, KERNEL, strings.of(chunk.columns[text]))
    for name, kind, more in (("MEMCPY", MEMCPY, ("copyKind", "srcKind", "dstKind")), ("MEMSET", MEMSET, ("memKind",))):
        if export.has(TABLE + name, "start", "end"):
            wanted = PLACE | {"graphNodeId": NONE, "bytes": 0} | dict.fromkeys(more, -1)
            for chunk in export.chunks(TABLE + name, wanted):
                _put(out, chunk, kind, _copy_names(out, [chunk.columns[key] for key in more], kind))
    if export.has(TABLE + "GRAPH_TRACE", "start", "end"):
        for chunk in export.chunks(TABLE + "GRAPH_TRACE", PLACE):
            _put(out, chunk, KERNEL, np.full(len(chunk.columns["start"]), out.texts[WHOLE_GRAPH.encode()], np.int32))


def _put(out: Events, chunk: Chunk, kind: int, names: I32) -> None:
    c = chunk.columns
    keep = _usable(c, out.untimed)
    processes = process_of(c["globalPid"])

    def below(key: str, rows: Any, limit: int) -> I32:
        values = c[key][rows] if key in c else np.zeros(len(rows), np.int64)
        return np.where((values >= 0) & (values < limit), values, 0).astype(np.int32)

    for process in _distinct(processes)[0].tolist():
        rows = np.flatnonzero(keep & (processes == process))
        table = out.device[process]
        table["ts_ns"].append(c["start"][rows])
        table["dur_ns"].append(c["end"][rows] - c["start"][rows])
        table["name"].append(names[rows])
        table["kind"].append(np.full(len(rows), kind, np.int32))
        table["device"].append(below("deviceId", rows, 1 << 16))
        table["stream"].append(c["streamId"][rows])
        table["correlation"].append(c["correlationId"][rows])
        table["graph_node"].append(c["graphNodeId"][rows] if "graphNodeId" in c else np.full(len(rows), NONE))
        table["nbytes"].append(np.maximum(c["bytes"][rows], 0) if "bytes" in c else np.zeros(len(rows), np.int64))
        for what in ("grid", "block"):
            table[what].append(np.stack([below(what + axis, rows, 1 << 31) for axis in "XYZ"], axis=1))


def _usable(c: Mapping[str, I64], untimed: Counter[str]) -> B:
    """Which rows have time stamps that can be subtracted."""
    keep: B = (np.abs(c["start"]) < FARTHEST_NS) & (np.abs(c["end"]) < FARTHEST_NS)
    if not keep.all():
        untimed["no usable time stamp"] += int((~keep).sum())
    return keep


def _copy_names(out: Events, kinds: list[I64], kind: int) -> I32:
    """Numbers of texts such as "Memcpy HtoD (Pageable -> Device)"."""
    distinct, at = np.unique(np.stack(kinds, axis=1), axis=0, return_inverse=True)

    def memory(number: int) -> str:
        return MEMORIES.get(number, "Unknown")

    texts = [f"Memset ({memory(row[0])})" if kind == MEMSET
             else f"Memcpy {COPIES.get(row[0], 'Unknown')} ({memory(row[1])} -> {memory(row[2])})"
             for row in distinct.tolist()]
    numbers: I32 = np.array([out.texts[text.encode()] for text in texts], np.int32)[at.reshape(-1)]
    return numbers


def read_calls(export: Export, out: Events) -> None:
    """Runtime and driver calls, and the profiler's own overhead."""
    for table in (TABLE + "RUNTIME", TABLE + "DRIVER"):
        if export.has(table, "start", "end"):
            wanted = {"start": None, "end": None, "globalTid": 0, "correlationId": NONE, "nameId": NONE}
            strings = StringNames(export, out.texts, calls=True)
            for chunk in export.chunks(table, wanted):
                _put_calls(out, out.calls, chunk.columns, strings)
    for table in ("PROFILER_OVERHEAD", TABLE + "OVERHEAD"):
        if export.has(table, "start", "end"):
            strings = StringNames(export, out.texts)
            for chunk in export.chunks(table, {"start": None, "end": None, "globalTid": 0, "nameId": NONE}):
                _put_calls(out, out.overhead, chunk.columns, strings)


def _put_calls(out: Events, tables: defaultdict[int, Table], c: Mapping[str, I64], strings: StringNames) -> None:
    _put_host(out, tables, c, strings.of(c["nameId"]), _usable(c, out.untimed), _threads(out, c["globalTid"]))


def _put_host(
    out: Events, tables: defaultdict[int, Table], c: Mapping[str, I64], names: I32, keep: B, threads: I32,
) -> None:
    """Put those events of host threads that are to be kept."""
    processes = process_of(c["globalTid"])
    for process in _distinct(processes[keep])[0].tolist():
        rows = np.flatnonzero(keep & (processes == process))
        table = tables[process]
        table["ts_ns"].append(c["start"][rows])
        table["dur_ns"].append(c["end"][rows] - c["start"][rows])
        table["name"].append(names[rows])
        table["thread"].append(threads[rows])
        if "correlationId" in c:
            table["correlation"].append(c["correlationId"][rows])


def _threads(out: Events, ids: I64) -> I32:
    numbers, at = _distinct(ids)
    found: I32 = np.array([out.threads[number] for number in numbers.tolist()] or [0], np.int32)[at]
    return found


def _distinct(ids: I64 | I32) -> tuple[Any, I64]:
    """The distinct ids in order, and where each id is among them. As np.unique, which takes twice the time."""
    ordered = np.sort(ids)
    out = ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered
    return out, np.searchsorted(out, ids) if len(out) > 1 else np.zeros(len(ids), np.int64)


def read_ranges(export: Export, out: Events, calls_of: Mapping[int, I64]) -> None:
    """NVTX ranges. Operators that made no runtime call launched nothing: they are counted, and not kept.

    `calls_of` has the sorted starts of each thread's calls, by the number of the thread.
    """
    table = export.first(NVTX)
    if table is None or not export.has(table, "start", "end"):
        return
    columns = export.tables[table]
    parts = [part for part in ("text", f"x'{STRING_ID.hex()}' || textId") if part.split()[-1] in columns]
    text = f"coalesce({', '.join([*parts, *[EMPTY] * 2])})"                     # of at least two
    ranges = " OR ".join(f"eventType = {kind}" for kind in RANGES)            # IN looks them up in a table of its own
    names = _RangeNames(export, out)
    read = 0
    for chunk in export.chunks(table, {"start": None, "end": NONE, "globalTid": 0}, text,
                               ranges if "eventType" in columns else None):
        c = chunk.columns
        read += len(c["start"])
        open_ended = c["end"] == NONE
        if open_ended.any():
            out.untimed["range without an end"] += int(open_ended.sum())
            c = {**c, "end": np.where(open_ended, c["start"], c["end"])}
        keep = ~open_ended & _usable(c, out.untimed)
        name, threads = names.of(chunk), _threads(out, c["globalTid"])
        idle = keep & names.operator(name) & ~_called(c["start"], c["end"], threads, calls_of)
        if idle.any():
            out.ignored["operators that made no runtime call"] += int(idle.sum())
        _put_host(out, out.ranges, c, name, keep & ~idle, threads)
    others = export.count(table) - read
    if others > 0:
        out.ignored["NVTX marks, domains and categories"] += others


def _called(start: I64, end: I64, thread: I32, calls_of: Mapping[int, I64]) -> B:
    """Which ranges saw a runtime call begin on their thread."""
    out = np.zeros(len(start), bool)
    for number in _distinct(thread)[0].tolist():
        calls = calls_of.get(number)
        if calls is not None and len(calls):
            mine = slice(None) if (thread == number).all() else np.flatnonzero(thread == number)
            at = np.searchsorted(calls, start[mine], "left")
            out[mine] = (at < len(calls)) & (calls[np.minimum(at, len(calls) - 1)] <= end[mine])
    return out


class _RangeNames:
    """Texts of NVTX rows as numbers of texts; an operator's without its sequence and call numbers."""

    def __init__(self, export: Export, out: Events) -> None:
        self._export, self._out = export, out
        self._seen = Ids()                               # texts as the rows have them, cut
        self._number = np.zeros(0, np.int32)             # of the text, for each of those seen
        self._is_operator = np.zeros(0, bool)            # for each text

    def of(self, chunk: Chunk) -> I32:
        seen, texts, whole = self._seen, chunk.texts, chunk.joined
        before = len(seen)
        if whole is not None and whole.count(COMMA) == whole.count(OPERATOR) + whole.count(SEQUENCE):
            cut = [seen[text.partition(COMMA)[0]] for text in texts]         # half of the time
        else:
            cut = [seen[text.partition(OPERATOR)[0].partition(SEQUENCE)[0]] for text in texts]
        places = np.fromiter(cut, np.int32, len(texts))
        if len(seen) > before:
            new, rows = np.unique(places, return_index=True)
            first = {place: texts[row] for place, row in zip(new.tolist(), rows.tolist(), strict=True)
                     if place >= before}
            self._learn(first, before)
        out: I32 = self._number[places]
        return out

    def operator(self, numbers: I32) -> B:
        out: B = self._is_operator[numbers]
        return out

    def _learn(self, texts: dict[int, bytes], before: int) -> None:
        """Number new texts, given as a row has them; look up registered strings by their number in StringIds."""
        wanted = {place: int(text[1:]) for place, text in texts.items() if REGISTERED.fullmatch(text)}
        strings = self._export.strings(sorted(wanted.values()))
        numbers = []
        for place in range(before, len(self._seen)):
            text = strings.get(wanted[place], NO_NAME) if place in wanted else texts[place]
            name = text.partition(OPERATOR)[0].partition(SEQUENCE)[0]
            number = self._out.texts[name]
            if len(name) < len(text) and (SEQUENCE in text or OPERATOR_NAME.fullmatch(name)):
                self._out.operators.add(number)
            numbers.append(number)
        self._number = np.concatenate([self._number, np.array(numbers, np.int32)])
        self._is_operator = np.zeros(len(self._out.texts), bool)
        self._is_operator[list(self._out.operators)] = True
