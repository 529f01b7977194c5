"""The floor under the reader: decode a Kineto trace to the columns sublight keeps, and do nothing else.

    python bench/bare_decode.py TRACE.json

No repair, no links, no quality block: the fastest straightforward way through msgspec and numpy, for files
in Kineto's own layout (two-space indent, as the profiler and `repeat_trace.py` write them). What a reader
spends beyond this is the price of being right about other files.
"""

import argparse
import gc
import json
import resource
import time
from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import chain
from operator import or_
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from msgspec import Raw, Struct, ValidationError, defstruct, field
from msgspec.json import Decoder
from numpy.typing import DTypeLike, NDArray

CHUNK_BYTES = 512 << 10     # about 2,400 events, within the CPU's cache: 4 MiB is 10 to 20 % slower
EVENTS_START = b'"traceEvents": ['
EVENT_END = b"\n  },\n"
EVENTS_END = b"\n  ]"
ABSENT = np.iinfo(np.int64).min
NOTHING = Raw(b"")

Column = NDArray[Any]
Columns = dict[str, Column]

# One struct per category, told apart by `cat`: each names only what it keeps, the rest is skipped as text.
# gc=False because these objects form no cycles: letting the collector look at them costs 15 to 25 %.


class DeviceArgs(Struct, gc=False):
    device: int
    stream: int
    correlation: int
    external_id: int = field(name="External id", default=ABSENT)
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    bytes: int = 0
    graph_id: int = field(name="graph id", default=ABSENT)
    graph_node_id: int = field(name="graph node id", default=ABSENT)
    collective: str = field(name="Collective name", default="")
    dtype: str = ""
    elements_in: int = field(name="In msg nelems", default=0)
    elements_out: int = field(name="Out msg nelems", default=0)
    group_size: int = field(name="Group size", default=0)
    group: str = field(name="Process Group Name", default="")


class DeviceActivity(Struct, gc=False):
    kind: ClassVar[int]
    name: str
    ts: float           # microseconds; whole ones below 2^53 arrive exactly
    dur: float
    args: DeviceArgs


class Kernel(DeviceActivity, tag_field="cat", tag="kernel", gc=False):
    kind: ClassVar[int] = 0


class Memcpy(DeviceActivity, tag_field="cat", tag="gpu_memcpy", gc=False):
    kind: ClassVar[int] = 1


class Memset(DeviceActivity, tag_field="cat", tag="gpu_memset", gc=False):
    kind: ClassVar[int] = 2


class Overhead(Struct, tag_field="cat", tag="overhead", gc=False):
    ts: float
    dur: float


class Annotation(Struct, tag_field="cat", tag="user_annotation", gc=False):
    name: str
    ts: float
    dur: float
    pid: int
    tid: int


class OpArgs(Struct, gc=False):
    """Arguments stay text: few are distinct."""

    external_id: int = field(name="External id", default=ABSENT)
    dims: Raw = field(name="Input Dims", default=NOTHING)
    types: Raw = field(name="Input type", default=NOTHING)
    strides: Raw = field(name="Input Strides", default=NOTHING)
    concrete: Raw = field(name="Concrete Inputs", default=NOTHING)


class CpuOp(Struct, tag_field="cat", tag="cpu_op", gc=False):
    name: str
    ts: float
    dur: float
    pid: int
    tid: int
    args: OpArgs


class CallArgs(Struct, gc=False):
    correlation: int


class Call(Struct, gc=False):
    name: str
    ts: float
    dur: float
    pid: int
    tid: int
    args: CallArgs


class RuntimeCall(Call, tag_field="cat", tag="cuda_runtime", gc=False):
    pass


class DriverCall(Call, tag_field="cat", tag="cuda_driver", gc=False):
    pass


KEPT: tuple[type[Struct], ...] = (
    Kernel, Memcpy, Memset, RuntimeCall, DriverCall, CpuOp, Annotation, Overhead)
DROPPED = tuple(
    defstruct(f"Dropped_{cat}", [], tag_field="cat", tag=cat, gc=False)
    for cat in ("ac2g", "fwdbwd", "python_function", "gpu_user_annotation", "cpu_instant_event", "Trace"))
EVENT: Any = reduce(or_, KEPT + DROPPED)


class NameIds(dict[Any, int]):
    """The id of a name, of arguments or of a collective: the position at which it was first seen."""

    def __missing__(self, name: Any) -> int:
        return self.setdefault(name, len(self))


def event_chunks(path: Path) -> Iterator[memoryview]:
    """JSON arrays of whole events, about CHUNK_BYTES each; one is valid until the next is asked for.

    Made in place, not copied: the byte before the first event becomes `[`, the comma after the last one `]`.
    """
    text = bytearray(2 * CHUNK_BYTES)
    view = memoryview(text)
    with path.open("rb", buffering=0) as file:
        size = file.readinto(view)
        start = text.index(EVENTS_START, 0, size) + len(EVENTS_START)
        while True:
            size -= start
            text[:size] = text[start:start + size]
            text[0] = ord("[")
            if size == len(text):
                raise ValueError(f"no end of an event, {EVENT_END!r}, in {size} bytes: another layout?")
            if not (read := file.readinto(view[size:size + CHUNK_BYTES])):
                break
            size += read
            start = text.rfind(EVENT_END, 0, size) + len(EVENT_END) - 1  # at the newline before the next
            if start < len(EVENT_END):
                start = 0
                continue
            text[start - 1] = ord("]")
            yield view[:start]
        end = text.rindex(EVENTS_END, 0, size)
        text[end + 1] = ord("]")
        yield view[:end + 2]


def events(path: Path) -> Iterator[list[Any]]:
    decoder, one = Decoder(list[EVENT]), Decoder(EVENT)
    for chunk in event_chunks(path):
        try:
            yield decoder.decode(chunk)
        except ValidationError:     # an event without a category, such as a thread's name: one chunk of all
            texts = Decoder(list[Raw]).decode(chunk)
            yield [one.decode(text) for text in texts if b'"cat":' in bytes(text)]


def column(values: Iterable[int], count: int, dtype: DTypeLike = np.int64) -> Column:
    return np.fromiter(values, dtype, count)


def nanoseconds(micros: list[float]) -> Column:
    """Exact where the float is within half a nanosecond of the text: up to 2^43 µs, and for whole µs."""
    values = np.fromiter(micros, np.float64, len(micros))
    whole = np.floor(values)
    return whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)


def times(events: list[Any]) -> Columns:
    return {"ts_ns": nanoseconds([e.ts for e in events]), "dur_ns": nanoseconds([e.dur for e in events])}


def threads(events: list[Any]) -> Columns:
    n = len(events)
    return {"pid": column([e.pid for e in events], n), "tid": column([e.tid for e in events], n)}


def device_columns(events: list[DeviceActivity], names: NameIds) -> Columns:
    n, args = len(events), [e.args for e in events]
    grid = column(chain.from_iterable([a.grid for a in args]), 3 * n, np.int32).reshape(n, 3)
    block = column(chain.from_iterable([a.block for a in args]), 3 * n, np.int32).reshape(n, 3)
    return times(events) | {
        "device": column([a.device for a in args], n, np.int32),
        "stream": column([a.stream for a in args], n, np.int32),
        "name": column([names[e.name] for e in events], n, np.int32),
        "kind": column([e.kind for e in events], n, np.int8),
        "correlation": column([a.correlation for a in args], n),
        "external_id": column([a.external_id for a in args], n),
        "grid": grid,
        "block": block,
        "bytes": column([a.bytes for a in args], n),
        "graph_id": column([a.graph_id for a in args], n),
        "graph_node_id": column([a.graph_node_id for a in args], n),
        "collective": column([
            names[a.collective, a.dtype, a.elements_in, a.elements_out, a.group_size, a.group] for a in args
        ], n, np.int32),
    }


def call_columns(events: list[Call], names: NameIds) -> Columns:
    n = len(events)
    return times(events) | threads(events) | {
        "name": column([names[e.name] for e in events], n, np.int32),
        "correlation": column([e.args.correlation for e in events], n),
    }


def op_columns(events: list[CpuOp], names: NameIds) -> Columns:
    n = len(events)
    return times(events) | threads(events) | {
        "name": column([names[e.name] for e in events], n, np.int32),
        "external_id": column([e.args.external_id for e in events], n),
        "args": column([
            names[bytes(a.dims), bytes(a.types), bytes(a.strides), bytes(a.concrete)] for e in events for a in (e.args,)
        ], n, np.int32),
    }


def annotation_columns(events: list[Annotation], names: NameIds) -> Columns:
    return times(events) | threads(events) | {
        "name": column([names[e.name] for e in events], len(events), np.int32)}


def overhead_columns(events: list[Overhead], names: NameIds) -> Columns:
    return times(events)


TABLES: dict[str, tuple[Any, tuple[type[Struct], ...]]] = {
    "device": (device_columns, (Kernel, Memcpy, Memset)),
    "calls": (call_columns, (RuntimeCall, DriverCall)),
    "ops": (op_columns, (CpuOp,)),
    "annotations": (annotation_columns, (Annotation,)),
    "overhead": (overhead_columns, (Overhead,)),
}


def joined(pieces: list[Columns]) -> Columns:
    """One array per column; a column's pieces are freed before the next one is joined."""
    return {name: np.concatenate([piece.pop(name) for piece in pieces]) for name in list(pieces[0])}


def decode(path: Path) -> tuple[dict[str, Columns], list[str], int]:
    """(columns by table, names by id, events read)."""
    names, count = NameIds(), 0
    pieces: dict[str, list[Columns]] = {table: [] for table in TABLES}
    rows: dict[str, list[Any]] = {table: [] for table in TABLES}
    dropped: list[Any] = []
    put = dict.fromkeys(DROPPED, dropped.append)
    put |= {cls: rows[table].append for table, (_, classes) in TABLES.items() for cls in classes}
    for chunk in events(path):
        count += len(chunk)
        for event in chunk:
            put[type(event)](event)
        for table, (columns, _) in TABLES.items():
            if rows[table]:
                pieces[table].append(columns(rows[table], names))
                rows[table].clear()
        dropped.clear()
    return {table: joined(p) for table, p in pieces.items() if p}, list(names), count


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", type=Path, metavar="TRACE", help="plain JSON in Kineto's own layout")
    path: Path = parser.parse_args().trace

    gc.disable()    # the tuples and lists of a chunk would set it off thousands of times, to find nothing
    start = time.process_time()
    tables, names, count = decode(path)
    cpu_s = time.process_time() - start
    print(json.dumps({
        "events": count,
        "rows": {table: len(columns["ts_ns"]) for table, columns in tables.items()},
        "names": len(names),
        "column_bytes": sum(c.nbytes for columns in tables.values() for c in columns.values()),
        "cpu_s": round(cpu_s, 3),
        "megabytes_per_cpu_s": round(path.stat().st_size / 1e6 / cpu_s, 1),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),    # KiB on Linux
    }))


if __name__ == "__main__":
    main()
