"""A builder of small hand-written Nsight Systems exports.

Times are integer nanoseconds in the export's own time. Tables without rows are not made, as nsys does it.

    n = Nsys()
    p = n.process(pid=144)
    p.kernel("gemm", 1_000, 4_000, launch=(200, 300))
    p.range("step 1", 100, 5_000)
    path = n.write(tmp_path / "t.sqlite")

`schema` may be changed before writing: columns by table, as other versions have them.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

CUPTI = "CUPTI_ACTIVITY_KIND_"
PUSH_POP, START_END, MARK, DOMAIN = 59, 60, 34, 75
PLACE = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
SCHEMA: dict[str, tuple[str, ...]] = {
    CUPTI + "KERNEL": (*PLACE, "demangledName", "shortName", "graphNodeId", "gridX", "gridY", "gridZ", "blockX",
                       "blockY", "blockZ"),
    CUPTI + "MEMCPY": (*PLACE, "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId"),
    CUPTI + "MEMSET": (*PLACE, "value", "bytes", "memKind", "graphNodeId"),
    CUPTI + "GRAPH_TRACE": (*PLACE, "graphId"),
    CUPTI + "RUNTIME": ("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue"),
    CUPTI + "SYNCHRONIZATION": (*PLACE, "syncType", "eventId", "eventSyncId"),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "textId", "globalTid", "domainId"),
    "PROFILER_OVERHEAD": ("start", "end", "globalTid", "nameId", "overheadType"),
    "TARGET_INFO_GPU": ("id", "name", "smCount", "totalMemory"),
    "TARGET_INFO_CUDA_DEVICE": ("gpuId", "cudaId", "pid"),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs", "systemClockNs"),
    "TARGET_INFO_SYSTEM_ENV": ("name", "value"),
    "META_DATA_CAPTURE": ("name", "value"),
    "META_DATA_EXPORT": ("name", "value"),
}
TEXTS = {"text", "name", "value"}


class Nsys:
    """Rows by table."""

    def __init__(self) -> None:
        self.schema = dict(SCHEMA)
        self.rows: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self._strings: dict[str, int] = {}

    def process(self, pid: int = 100, machine: int = 1) -> Process:
        return Process(self, pid, machine << 48 | pid << 24)

    def string(self, text: str) -> int:
        """Its number in StringIds; they do not begin at 0."""
        return self._strings.setdefault(text, 70_000 + len(self._strings))

    def row(self, table: str, **values: Any) -> None:
        self.rows[table].append(values)

    def gpu(self, number: int, name: str, sms: int, memory_bytes: int) -> None:
        self.row("TARGET_INFO_GPU", id=number, name=name, smCount=sms, totalMemory=memory_bytes)

    def write(self, path: Path) -> Path:
        path.unlink(missing_ok=True)
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, text) for text, i in self._strings.items()])
        for table, rows in self.rows.items():
            columns = self.schema[table]
            kinds = ", ".join(f'"{c}" {"TEXT" if c in TEXTS else "INTEGER"}' for c in columns)
            db.execute(f'CREATE TABLE "{table}" ({kinds})')
            marks = ", ".join("?" * len(columns))
            db.executemany(f'INSERT INTO "{table}" VALUES ({marks})', [[r.get(c) for c in columns] for r in rows])
        db.commit()
        db.close()
        return path


class Process:
    """Events of one process. Its main thread has its own number."""

    def __init__(self, export: Nsys, pid: int, number: int) -> None:
        self.export, self.pid, self.global_pid = export, pid, number
        self._last = 0

    def _tid(self, thread: int | None) -> int:
        return self.global_pid | (self.pid if thread is None else thread)

    def call(self, name: str, start: int, end: int, *, thread: int | None = None) -> int:
        """A runtime call; its correlation id, which no other call of this process has."""
        self._last += 1
        self.export.row(CUPTI + "RUNTIME", start=start, end=end, eventClass=0, globalTid=self._tid(thread),
                        correlationId=self._last, nameId=self.export.string(name), returnValue=0)
        return self._last

    def _device(
        self, table: str, start: int, end: int, launch: tuple[int, int] | int | None, api: str, **more: Any,
    ) -> int:
        """`launch` is a new call's start and end, or an id that several activities share."""
        given = launch if isinstance(launch, int) else None
        correlation = self.call(api, *launch) if isinstance(launch, tuple) else given
        values = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": self.global_pid} | more
        self.export.row(CUPTI + table, start=start, end=end, correlationId=correlation, **values)
        return correlation or 0

    def kernel(self, name: str, start: int, end: int, *, launch: tuple[int, int] | int | None = None, stream: int = 7,
               device: int = 0, grid: tuple[int, int, int] = (132, 1, 1), api: str = "cudaLaunchKernel_v7000",
               **more: Any) -> int:
        number = self.export.string(name)
        dims = dict(zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), (*grid, 128, 1, 1), strict=True))
        return self._device("KERNEL", start, end, launch, api, streamId=stream, deviceId=device, demangledName=number,
                            shortName=self.export.string(name.split("<")[0]), **dims | more)

    def copy(self, kind: int, start: int, end: int, nbytes: int, *, launch: tuple[int, int] | None = None,
             memories: tuple[int, int] = (1, 2), **more: Any) -> int:
        return self._device("MEMCPY", start, end, launch, "cudaMemcpyAsync_v3020", bytes=nbytes, copyKind=kind,
                            srcKind=memories[0], dstKind=memories[1], **more)

    def memset(self, start: int, end: int, nbytes: int, *, launch: tuple[int, int] | None = None) -> int:
        return self._device("MEMSET", start, end, launch, "cudaMemsetAsync_v3020", bytes=nbytes, memKind=2)

    def graph(self, start: int, end: int, *, launch: tuple[int, int]) -> int:
        """A graph recorded as a whole."""
        return self._device("GRAPH_TRACE", start, end, launch, "cudaGraphLaunch_v10000", graphId=3)

    def range(self, text: str, start: int, end: int | None, *, kind: int = PUSH_POP, thread: int | None = None,
              registered: bool = False) -> None:
        """An NVTX range; a registered one has a number in StringIds instead of a text."""
        words = {"textId": self.export.string(text)} if registered else {"text": text}
        self.export.row("NVTX_EVENTS", start=start, end=end, eventType=kind, globalTid=self._tid(thread), domainId=0,
                        **words)
