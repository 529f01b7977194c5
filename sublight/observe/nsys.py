"""This file knows about Nsight Systems exports (`nsys export --type sqlite`): `read_nsys(path) -> (Trace, …)`.

One Trace a process that used a device: correlation ids, streams and device numbers are a process's own. Names come
from StringIds by number; nothing else of what the file says about the machine, its environment or the command line
is read, but for sizes and names of its devices.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shlex import quote

import numpy as np

from sublight.errors import InputError
from sublight.observe.nsys_events import Events, read_calls, read_device, read_ranges
from sublight.observe.nsys_tables import Export, open_export
from sublight.observe.nsys_traces import traces_of
from sublight.observe.source import label
from sublight.trace import I64, Trace

Progress = Callable[[int], None]
RECORDS = {"SYNCHRONIZATION": "synchronisation records", "CUDA_EVENT": "event records"}


def read_nsys(path: str, *, progress: Progress | None = None) -> tuple[Trace, ...]:
    """Read one export into columns: one Trace for each process with device activity, in order of device and process.

    `progress` is called with the part of the file's bytes that was read so far. Damage is repaired or counted in
    `Trace.quality`. Raises InputError when the file is no export, or holds no device activity.
    """
    export = open_export(path)
    size = export.file_bytes
    try:
        events = Events()
        read_device(export, events)
        _say(progress, size // 4)
        read_calls(export, events)
        _say(progress, size // 2)
        read_ranges(export, events, _starts_by_thread(events))
        _say(progress, size)
        for table, words in RECORDS.items():
            if count := export.count(f"CUPTI_ACTIVITY_KIND_{table}"):
                events.ignored[words] += count
        traces = traces_of(export, events)
    finally:
        export.close()
    if not traces:
        raise InputError(_nothing(export))
    return traces


def refuse_report(path: str) -> None:
    """Raise InputError, with the command that exports it, for a report that only Nsight Systems itself can read."""
    if path.lower().endswith((".nsys-rep", ".qdrep")):
        name = label(path)
        raise InputError(f"expected a trace, got a report of NVIDIA Nsight Systems ({name}); export it: "
                         f"nsys export --type sqlite --output {quote(Path(name).stem + '.sqlite')} {quote(name)}")


def _say(progress: Progress | None, done: int) -> None:
    if progress:
        progress(done)


def _nothing(export: Export) -> str:
    if not any(table.startswith(("CUPTI_ACTIVITY", "NVTX_EVENTS", "TARGET_INFO", "META_DATA_")) for table in
               export.tables):
        return (f"{export.name} is an SQLite file, but no export of Nsight Systems: it has none of its tables; "
                "expected what nsys export --type sqlite writes")
    return (f"{export.name} holds no kernels, copies or memsets to account for; record with nsys profile "
            "--trace=cuda,nvtx --cuda-graph-trace=node")


def _starts_by_thread(events: Events) -> dict[int, I64]:
    """Sorted starts of each thread's calls."""
    out: dict[int, I64] = {}
    for table in events.calls.values():
        ts, of = table["ts_ns"].values(), table["thread"].values()
        for number in np.flatnonzero(np.bincount(of)).tolist() if len(of) else ():
            out[number] = ts[of == number]
            out[number].sort()
    return out
