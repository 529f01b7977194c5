"""A builder of small hand-written PyTorch profiler (Kineto) traces.

Every time goes in as integer nanoseconds after the trace's base, and comes out as Kineto writes it:
microseconds with exactly three decimals, so no nanosecond is lost on the way through the text.

    k = Kineto()
    k.kernel("gemm", 1_000, 4_000, launch=(200, 300))
    k.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 3_000, 6_000, stream=20, launch=(400, 500))
    path = k.write(tmp_path / "trace.json.gz")

Events are plain dictionaries with the keys of real files; `events` may be changed before writing.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

Event = dict[str, Any]
Dims = tuple[int, int, int]
Indent = int | Literal["kineto"] | None

# cbid of the CUDA runtime calls that real traces show
CBID = {
    "cudaLaunchKernel": 211, "cudaLaunchKernelExC": 430, "cudaGraphLaunch": 311, "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51, "cudaDeviceSynchronize": 165, "cudaStreamSynchronize": 131,
    "cudaEventSynchronize": 137, "cudaStreamWaitEvent": 147, "cudaEventRecord": 135,
    "cudaEventQuery": 138, "cuLaunchKernel": 307, "cuLaunchKernelEx": 652,
}  # fmt: skip
COPIES = {
    "HtoD": "Memcpy HtoD (Pinned -> Device)",
    "DtoH": "Memcpy DtoH (Device -> Pinned)",
    "DtoD": "Memcpy DtoD (Device -> Device)",
    "PtoP": "Memcpy PtoP (Device -> Device)",
}
# the names that files of 2021 use
CATEGORIES_2021 = {
    "cpu_op": "Operator",
    "kernel": "Kernel",
    "cuda_runtime": "Runtime",
    "cuda_driver": "Runtime",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
}


class Micros(float):
    """Microseconds that still know their nanoseconds: `.ns` is exact, and text shows all three decimals."""

    ns: int

    def __new__(cls, ns: int) -> Micros:
        self = super().__new__(cls, ns / 1000)
        self.ns = ns
        return self

    def __repr__(self) -> str:
        whole, part = divmod(abs(self.ns), 1000)
        return f"{'-' if self.ns < 0 else ''}{whole}.{part:03d}"


class Kineto:
    """One rank's trace, built call by call.

    rank: None leaves `distributedInfo` out. device_name: None makes a CPU-only trace (no `deviceProperties`).
    base_ns: `baseTimeNanoseconds`; None leaves it out. pid: the host process; thread 1 is its main thread.
    flows: also write the `ac2g` arrows between launches and device activities.
    """

    def __init__(
        self,
        *,
        rank: int | None = 0,
        world_size: int = 1,
        backend: str = "nccl",
        device_name: str | None = "NVIDIA H100 80GB HBM3",
        sms: int = 132,
        memory_bytes: int = 85_045_870_592,
        compute_capability: tuple[int, int] = (9, 0),
        base_ns: int | None = 1_700_000_000_000_000_000,
        record_shapes: bool = False,
        with_stack: bool = False,
        pid: int = 4242,
        flows: bool = False,
    ) -> None:
        self.rank, self.world_size, self.backend = rank, world_size, backend
        self.device_name, self.sms, self.memory_bytes = device_name, sms, memory_bytes
        self.compute_capability = compute_capability
        self.base_ns = base_ns
        self.record_shapes, self.with_stack = record_shapes, with_stack
        self.pid, self.flows = pid, flows
        self.events: list[Event] = []
        self._correlation = 0
        self._external_id = 0

    def __repr__(self) -> str:
        """One event a line, so that a failing example can be read (and drawn)."""
        return f"Kineto(rank={self.rank}, base_ns={self.base_ns})\n" + "\n".join(map(_drawn, self.events))

    # device activities

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        *,
        stream: int = 7,
        device: int = 0,
        launch: tuple[int, int] | None = None,
        thread: int = 1,
        api: str = "cudaLaunchKernel",
        grid: Dims = (1, 1, 1),
        block: Dims = (128, 1, 1),
        op: int | None = None,
        correlation: int | None = None,
        **more: object,
    ) -> int:
        """A kernel, and the call that launched it when `launch` is given. Returns its correlation.

        `correlation` shares the launch of an earlier kernel (a graph). `more` goes into the args as it is:
        `**{"Collective name": "allreduce"}`.
        """
        shape: Event = {
            "registers per thread": 32, "shared memory": 0, "grid": list(grid), "block": list(block),
        }  # fmt: skip
        return self._activity("kernel", name, start, end, stream, device, launch, thread, api, op,
                              correlation, {"queued": 0}, shape | more)  # fmt: skip

    def memcpy(
        self,
        kind: str,
        start: int,
        end: int,
        *,
        nbytes: int = 1_048_576,
        stream: int = 7,
        device: int = 0,
        launch: tuple[int, int] | None = None,
        thread: int = 1,
        api: str = "cudaMemcpyAsync",
        op: int | None = None,
        correlation: int | None = None,
    ) -> int:
        """A copy: kind is HtoD, DtoH, DtoD, PtoP or a whole name. Returns its correlation."""
        return self._activity("gpu_memcpy", COPIES.get(kind, kind), start, end, stream, device, launch,
                              thread, api, op, correlation, {}, _moved(nbytes, end - start))  # fmt: skip

    def memset(
        self,
        start: int,
        end: int,
        *,
        nbytes: int = 1_048_576,
        stream: int = 7,
        device: int = 0,
        launch: tuple[int, int] | None = None,
        thread: int = 1,
        api: str = "cudaMemsetAsync",
        op: int | None = None,
        correlation: int | None = None,
    ) -> int:
        """A memset. Returns its correlation."""
        return self._activity("gpu_memset", "Memset (Device)", start, end, stream, device, launch,
                              thread, api, op, correlation, {}, _moved(nbytes, end - start))  # fmt: skip

    def graph_launch(
        self,
        launch: tuple[int, int],
        kernels: Iterable[tuple[str, int, int, int]],
        *,
        thread: int = 1,
        device: int = 0,
        op: int | None = None,
    ) -> int:
        """One cudaGraphLaunch and its kernels (name, start, end, stream), all with one correlation.

        `op` marks the launch only: a graph's kernels carry no External id.
        """
        correlation = self.call("cudaGraphLaunch", *launch, thread=thread, op=op)
        for name, start, end, stream in kernels:
            self.kernel(name, start, end, stream=stream, device=device, correlation=correlation)
        return correlation

    # host events

    def call(
        self,
        name: str,
        start: int,
        end: int,
        *,
        thread: int = 1,
        correlation: int | None = None,
        op: int | None = None,
    ) -> int:
        """A runtime or driver call (by its name: `cuda…`, `cu…`) without a device activity of its own."""
        correlation = self._next_correlation() if correlation is None else correlation
        category = "cuda_runtime" if name.startswith(("cuda", "hip")) else "cuda_driver"
        args: Event = {} if op is None else {"External id": op}
        if name in CBID:
            args["cbid"] = CBID[name]
        args["correlation"] = correlation
        self._complete(category, name, self.pid, self.tid(thread), start, end, args)
        return correlation

    def op(
        self,
        name: str,
        start: int,
        end: int,
        *,
        thread: int = 1,
        dims: Sequence[Sequence[int]] | None = None,
        **more: object,
    ) -> int:
        """An operator on a host thread. Returns its External id. `dims` are its `Input Dims`."""
        args: Event = {} if dims is None else {"Input Dims": [list(d) for d in dims]}
        return self._host("cpu_op", name, start, end, thread, args | more)

    def annotate(self, name: str, start: int, end: int, *, thread: int = 1) -> int:
        """A record_function range, such as `ProfilerStep#3`. Returns its External id."""
        return self._host("user_annotation", name, start, end, thread, {})

    def gpu_annotate(
        self, name: str, start: int, end: int, *, stream: int = 7, device: int = 0, op: int | None = None
    ) -> None:
        """The shadow of a range on a device stream: no activity."""
        args: Event = {} if op is None else {"External id": op}
        self._complete("gpu_user_annotation", name, device, stream, start, end, args)

    def overhead(self, name: str, start: int, end: int) -> None:
        """Work of the profiler itself, such as `Activity Buffer Request`."""
        self._complete("overhead", name, -1, 0, start, end, None)

    def step(self, number: int, start: int, end: int, *, thread: int = 1) -> int:
        """A `ProfilerStep#N` range."""
        return self.annotate(f"ProfilerStep#{number}", start, end, thread=thread)

    def raw(self, event: Event) -> None:
        """Any event, as it is."""
        self.events.append(event)

    def tid(self, thread: int) -> int:
        """The thread id in the file: the main thread's is the process id, as on Linux."""
        return self.pid + thread - 1

    # the file

    def document(self, *, events: Sequence[Event] | None = None, legacy: bool = False) -> dict[str, Any]:
        """The whole trace as one dictionary. `events` replaces the list (say, shuffled or a part of it);
        `legacy` uses the category names of 2021."""
        chosen = list(self.events if events is None else events)
        if legacy:
            chosen = [_renamed(e, CATEGORIES_2021) for e in chosen]
        doc: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": self._device_properties()}
        if self.rank is not None:
            doc["distributedInfo"] = {
                "backend": self.backend, "rank": self.rank, "world_size": self.world_size,
            }  # fmt: skip
        if self.record_shapes:
            doc["record_shapes"] = 1
        if self.with_stack:
            doc["with_stack"] = 1
        doc["traceEvents"] = chosen
        doc["displayTimeUnit"] = "ms"
        if self.base_ns is not None:
            doc["baseTimeNanoseconds"] = self.base_ns
        return doc

    def text(
        self,
        *,
        indent: Indent = "kineto",
        list_root: bool = False,
        events: Sequence[Event] | None = None,
        legacy: bool = False,
    ) -> str:
        """The trace as JSON: Kineto's own layout, re-saved with an indent, or on one line (None).

        `list_root` leaves the events alone, without the dictionary around them (so the base time is lost).
        """
        doc = self.document(events=events, legacy=legacy)
        if indent == "kineto":
            return kineto_list(doc["traceEvents"]) if list_root else kineto_layout(doc)
        return dump(doc["traceEvents"] if list_root else doc, indent)

    def write(
        self,
        path: Path,
        *,
        indent: Indent = "kineto",
        list_root: bool = False,
        events: Sequence[Event] | None = None,
        legacy: bool = False,
    ) -> Path:
        """Write the text to `path`, gzip when it ends in .gz, always the same bytes. Returns the path."""
        data = self.text(indent=indent, list_root=list_root, events=events, legacy=legacy).encode()
        path.write_bytes(gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)
        return path

    # inside

    def _activity(
        self,
        category: str,
        name: str,
        start: int,
        end: int,
        stream: int,
        device: int,
        launch: tuple[int, int] | None,
        thread: int,
        api: str,
        op: int | None,
        correlation: int | None,
        head: Event,
        tail: Event,
    ) -> int:
        correlation = self._next_correlation() if correlation is None else correlation
        if launch is not None:
            self.call(api, *launch, thread=thread, correlation=correlation, op=op)
            if self.flows:
                self._flow("s", correlation, self.pid, self.tid(thread), launch[0])
        args: Event = {} if op is None else {"External id": op}
        args |= head | {"device": device, "context": 1, "stream": stream, "correlation": correlation} | tail
        self._complete(category, name, device, stream, start, end, args)
        if launch is not None and self.flows:
            self._flow("f", correlation, device, stream, start)
        return correlation

    def _host(self, category: str, name: str, start: int, end: int, thread: int, args: Event) -> int:
        self._external_id += 1
        head: Event = {"External id": self._external_id, "Record function id": 0}
        tail: Event = {"Ev Idx": self._external_id - 1}
        self._complete(category, name, self.pid, self.tid(thread), start, end, head | args | tail)
        return self._external_id

    def _complete(
        self, category: str, name: str, pid: int, tid: int, start: int, end: int, args: Event | None
    ) -> None:
        event: Event = {
            "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid,
            "ts": Micros(start), "dur": Micros(end - start),
        }  # fmt: skip
        self.events.append(event if args is None else event | {"args": args})

    def _flow(self, phase: str, correlation: int, pid: int, tid: int, at: int) -> None:
        event: Event = {"ph": phase, "id": correlation, "pid": pid, "tid": tid, "ts": Micros(at),
                        "cat": "ac2g", "name": "ac2g"}  # fmt: skip
        self.events.append(event | {"bp": "e"} if phase == "f" else event)

    def _next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    def _device_properties(self) -> list[Event]:
        if self.device_name is None:
            return []
        devices = [e["args"]["device"] for e in self.events if "device" in (e.get("args") or {})]
        major, minor = self.compute_capability
        return [
            {
                "id": i, "name": self.device_name, "totalGlobalMem": self.memory_bytes,
                "computeMajor": major, "computeMinor": minor,
                "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
                "regsPerBlock": 65536, "warpSize": 32,
                "sharedMemPerBlock": 49152, "numSms": self.sms,
                "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448,
                "sharedMemPerMultiprocessor": 233472,
            }
            for i in range(max(devices, default=0) + 1)
        ]  # fmt: skip


def start_ns(event: Event) -> int:
    """Where an event built here begins, in nanoseconds after the base."""
    ts: Micros = event["ts"]
    return ts.ns


def end_ns(event: Event) -> int:
    """Where an event built here ends, in nanoseconds after the base."""
    dur: Micros = event["dur"]
    return start_ns(event) + dur.ns


def dump(value: object, indent: int | None = None, level: int = 0) -> str:
    """JSON text, as json.dumps lays it out, with exact `Micros` (json itself would print the float)."""
    if isinstance(value, Micros):
        return repr(value)
    if isinstance(value, Mapping):
        items = [f"{json.dumps(str(k))}: {dump(v, indent, level + 1)}" for k, v in value.items()]
        return _bracket("{}", items, indent, level)
    if isinstance(value, list | tuple):
        return _bracket("[]", [dump(v, indent, level + 1) for v in value], indent, level)
    return json.dumps(value)


def kineto_layout(doc: Mapping[str, Any]) -> str:
    """JSON text laid out as libkineto's own writer does: a blank first line, two spaces, an event a block."""
    lines = []
    for key, value in doc.items():
        if key == "traceEvents":
            lines.append(f'  "traceEvents": {kineto_list(value)}')
        elif key == "deviceProperties":
            devices = ",\n".join(f"    {{\n      {dump(d)[1:-1]}\n    }}" for d in value)
            lines.append(f'  "deviceProperties": [\n{devices}\n  ]')
        else:
            lines.append(f"  {json.dumps(key)}: {dump(value)}")
    return "\n{\n" + ",\n".join(lines) + "\n}"


def kineto_list(events: Iterable[Event]) -> str:
    """The event list alone in libkineto's layout."""
    return "[\n" + ",\n".join(map(_kineto_event, events)) + "\n  ]"


def _kineto_event(event: Event) -> str:
    """Name and track on the first line, times on the second, args in their own block."""
    first = {k: v for k, v in event.items() if k not in ("ts", "dur", "args")}
    times = {k: v for k, v in event.items() if k in ("ts", "dur")}
    rows = [dump(part)[1:-1] for part in (first, times) if part]
    if "args" in event:
        rows.append(f'"args": {{\n      {dump(event["args"])[1:-1]}\n    }}')
    return "  {\n    " + ",\n    ".join(rows) + "\n  }"


def _bracket(pair: str, items: Sequence[str], indent: int | None, level: int) -> str:
    if not items:
        return pair
    if indent is None:
        return pair[0] + ", ".join(items) + pair[1]
    pad = "\n" + " " * indent * (level + 1)
    return pair[0] + pad + ("," + pad).join(items) + "\n" + " " * indent * level + pair[1]


def _drawn(event: Event) -> str:
    name = str(event.get("name"))
    name = name if len(name) <= 60 else f"{name[:57]}..."
    when = (
        f"{start_ns(event)} to {end_ns(event)}" if isinstance(event.get("dur"), Micros) else event.get("ts")
    )
    correlation = (event.get("args") or {}).get("correlation", "")
    return f"  {event.get('cat')} {name!r} on {event.get('pid')}/{event.get('tid')}: {when} {correlation}"


def _renamed(event: Event, categories: Mapping[str, str]) -> Event:
    return event | {"cat": categories.get(event["cat"], event["cat"])} if "cat" in event else event


def _moved(nbytes: int, dur_ns: int) -> Event:
    return {"bytes": nbytes, "memory bandwidth (GB/s)": nbytes / dur_ns if dur_ns > 0 else 0.0}
