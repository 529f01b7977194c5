"""This file knows about a Trace: what one rank did, as columns of events in int64 nanoseconds.

Shapes: every column of a table has one entry an event. Times are absolute (Unix epoch) where the file says so.
Names are indices into `Trace.names`, which is sorted, so that equal runs give equal columns whatever the order in
which their events were written.

I64 and I32 say how wide a column may be. A reader of large files makes those other than ts_ns half as wide where all
their numbers fit: two of them are not added or multiplied before one of them is int64 (a sum is, by itself).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sublight.device import DeviceInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

    I64 = NDArray[np.int64]
    I32 = NDArray[np.int32]
    B = NDArray[np.bool_]
else:                                          # importing numpy.typing costs as much as a small trace
    I64 = I32 = B = np.ndarray

KERNEL, MEMCPY, MEMSET = 0, 1, 2               # Activities.kind
NO_ID = np.int64(-(1 << 62))                   # an id column's "the file does not say"
WHOLE_GRAPHS = "CUDA graphs recorded as a whole"   # in Quality.kept: activities that stand for all kernels of a graph
FARTHEST_NS = 1 << 62                          # no time stamp of a trace lies farther from the epoch


@dataclass(frozen=True, eq=False, slots=True)
class Activities:
    """Kernels, copies and memsets on device streams, sorted by (start, device, stream, name)."""

    ts_ns: I64
    dur_ns: I64
    name: I32
    kind: I32
    device: I32
    stream: I64
    correlation: I64                           # joins to Calls.correlation; NO_ID where absent
    external_id: I64                           # joins to Ops.external_id; NO_ID where absent
    graph_node: I64                            # CUDA-graph node; NO_ID outside of graphs or where unknown
    nbytes: I64                                # of copies and memsets, else 0
    collective: I32                            # index into Trace.collectives, or -1
    grid: I32                                  # (n, 3) thread blocks; zeros where absent
    block: I32                                 # (n, 3) threads

    @property
    def end_ns(self) -> I64:
        return self.ts_ns + self.dur_ns


@dataclass(frozen=True, eq=False, slots=True)
class Calls:
    """Runtime and driver API calls on host threads, sorted by (start, thread, name)."""

    ts_ns: I64
    dur_ns: I64
    name: I32
    thread: I32                                # index into Trace.threads
    correlation: I64

    @property
    def end_ns(self) -> I64:
        return self.ts_ns + self.dur_ns


@dataclass(frozen=True, eq=False, slots=True)
class Ops:
    """Framework operators on host threads, sorted by (start, thread, longest first)."""

    ts_ns: I64
    dur_ns: I64
    name: I32
    thread: I32
    external_id: I64
    args: I32                                  # index into Trace.op_args, or -1

    @property
    def end_ns(self) -> I64:
        return self.ts_ns + self.dur_ns


@dataclass(frozen=True, eq=False, slots=True)
class Ranges:
    """Named ranges on host threads: annotations of the user or the engine, or the profiler's own overhead."""

    ts_ns: I64
    dur_ns: I64
    name: I32
    thread: I32

    @property
    def end_ns(self) -> I64:
        return self.ts_ns + self.dur_ns


Table = Activities | Calls | Ops | Ranges


@dataclass(frozen=True, slots=True, order=True)
class OpArgs:
    """Arguments of an operator as the file wrote them: JSON texts, empty where they were not recorded."""

    dims: str                                  # "[[16, 1024], [1024, 4096]]"
    types: str                                 # "[\"c10::BFloat16\", \"c10::BFloat16\"]"
    strides: str
    concrete: str                              # values of arguments that are no tensors


@dataclass(frozen=True, slots=True, order=True)
class Collective:
    """What a communication kernel's record says of its collective. Empty or 0 where it does not say."""

    name: str                                  # "allreduce", "_allgather_base", "all_to_allv" …
    dtype: str                                 # "BFloat16", "Float" …
    elements_in: int
    elements_out: int
    group_size: int
    group: str                                 # number of the process group
    ranks: tuple[int, ...] = ()                # of the world, where the record lists them all


@dataclass(frozen=True, slots=True)
class Quality:
    """What was read, repaired and lost, before anything is concluded from it. Counts are events."""

    files: tuple[str, ...]                     # last parts of names only
    text_bytes: int
    events: int                                # read, whatever became of them
    kept: Mapping[str, int]                    # by table
    ignored: Mapping[str, int]                 # by category: read, and not needed for time accounting
    lost: int                                  # unreadable
    untimed: Mapping[str, int]                 # counted, but kept out of the time line, by reason
    repaired: Mapping[str, int]                # by kind of repair
    cut_short: bool                            # the file ends early
    clock_ns: int                              # resolution of the file's time stamps
    notes: tuple[str, ...] = ()

    @property
    def damaged(self) -> bool:
        return bool(self.lost or self.repaired or self.cut_short)


@dataclass(frozen=True, slots=True)
class Recording:
    """How the run was recorded, from an allow-list of metadata. None: the file does not say."""

    shapes: bool | None = None
    stacks: bool | None = None
    memory: bool | None = None
    backend: str | None = None                 # of torch.distributed
    tool: str = "torch.profiler"               # or "nsys": what to capture next is said in its words
    versions: tuple[tuple[str, str], ...] = () # (what, version): CUDA, its driver, CUPTI, NCCL


@dataclass(frozen=True, eq=False, slots=True)
class Trace:
    """One rank of a run."""

    rank: int | None
    rank_source: str                           # "metadata", "file name" or "order"
    world_size: int | None
    devices: Mapping[int, DeviceInfo]          # as the file describes them, by index
    names: tuple[str, ...]
    threads: tuple[str, ...]                   # "process/thread", made of numbers only
    op_args: tuple[OpArgs, ...]
    collectives: tuple[Collective, ...]
    activities: Activities
    calls: Calls
    ops: Ops
    annotations: Ranges
    overhead: Ranges
    recording: Recording
    quality: Quality

    @property
    def cpu_only(self) -> bool:
        return len(self.activities.ts_ns) == 0

    def name_of(self, index: int) -> str:
        return self.names[index]


def merge(parts: list[Trace]) -> Trace:
    """One rank that was written in several files, as one Trace."""
    if len(parts) == 1:
        return parts[0]
    names = tuple(sorted({name for part in parts for name in part.names}))
    threads = tuple(sorted({thread for part in parts for thread in part.threads}))
    op_args = tuple(sorted({args for part in parts for args in part.op_args}))
    collectives = tuple(sorted({c for part in parts for c in part.collectives}))
    name_index = {name: i for i, name in enumerate(names)}
    thread_index = {thread: i for i, thread in enumerate(threads)}

    def joined(attribute: str) -> Any:
        tables: list[Table] = []
        for part in parts:
            table: Table = getattr(part, attribute)
            new_name = np.array([name_index[n] for n in part.names] or [0], np.int32)
            changes: dict[str, Any] = {"name": new_name[table.name]}
            if isinstance(table, Activities):
                changes["collective"] = _moved(table.collective, part.collectives, collectives)
            if isinstance(table, Ops):
                changes["args"] = _moved(table.args, part.op_args, op_args)
            if not isinstance(table, Activities):
                new_thread = np.array([thread_index[t] for t in part.threads] or [0], np.int32)
                changes["thread"] = new_thread[table.thread]
            tables.append(replace(table, **changes))
        kind = type(tables[0])
        return in_order(kind(**{
            f.name: np.concatenate([getattr(t, f.name) for t in tables]) for f in fields(kind)
        }))

    first = parts[0]
    return replace(
        first,
        names=names, threads=threads, op_args=op_args, collectives=collectives,
        devices={i: d for part in reversed(parts) for i, d in part.devices.items()},
        activities=joined("activities"), calls=joined("calls"), ops=joined("ops"),
        annotations=joined("annotations"), overhead=joined("overhead"),
        recording=_joint_recording([part.recording for part in parts]),
        quality=_sum_quality([part.quality for part in parts]),
    )


def _moved(column: I32, old: tuple[Any, ...], new: tuple[Any, ...]) -> I32:
    """Indices into `old` as indices into `new`; -1 stays."""
    place = {value: i for i, value in enumerate(new)}
    table = np.array([*(place[value] for value in old), -1], np.int32)
    out: I32 = table[column]
    return out


def _joint_recording(parts: list[Recording]) -> Recording:
    """What any of the files says was recorded was; None only where none of them says."""
    def flag(attribute: str) -> bool | None:
        said = [getattr(part, attribute) for part in parts if getattr(part, attribute) is not None]
        return any(said) if said else None

    return Recording(flag("shapes"), flag("stacks"), flag("memory"),
                     next((part.backend for part in parts if part.backend), None), parts[0].tool,
                     next((part.versions for part in parts if part.versions), ()))


def in_order(table: Any) -> Any:
    """The table's rows in their one order: start first, then what else tells rows apart. Names are sorted, so
    their index orders as they do."""
    keys: tuple[Any, ...]
    if isinstance(table, Activities):
        keys = (table.correlation, table.dur_ns, table.name, table.stream, table.device, table.ts_ns)
    elif isinstance(table, Calls):
        keys = (table.correlation, table.dur_ns, table.name, table.thread, table.ts_ns)
    elif isinstance(table, Ops):
        keys = (table.args, table.external_id, table.name, -table.dur_ns, table.thread, table.ts_ns)
    else:
        keys = (table.name, -table.dur_ns, table.thread, table.ts_ns)
    order = np.lexsort(keys)
    return type(table)(**{f.name: getattr(table, f.name)[order] for f in fields(table)})


def _sum_quality(parts: list[Quality]) -> Quality:
    def added(attribute: str) -> dict[str, int]:
        total: dict[str, int] = {}
        for part in parts:
            for key, count in getattr(part, attribute).items():
                total[key] = total.get(key, 0) + count
        return total

    return Quality(
        files=tuple(f for p in parts for f in p.files), text_bytes=sum(p.text_bytes for p in parts),
        events=sum(p.events for p in parts), kept=added("kept"), ignored=added("ignored"),
        lost=sum(p.lost for p in parts), untimed=added("untimed"), repaired=added("repaired"),
        cut_short=any(p.cut_short for p in parts), clock_ns=min(p.clock_ns for p in parts),
        notes=tuple(n for p in parts for n in p.notes),
    )
