"""This file knows about a Trace as a Kineto file: what PyTorch's profiler would have written of the run, to the
nanosecond, so that `sublight explain`, Perfetto and every other reader of such files open it.

A predicted step (predict.trace) goes out this way; read again, it is the same Trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sublight.trace import KERNEL, NO_ID, Trace

KINDS = ("kernel", "gpu_memcpy", "gpu_memset")


def kineto(trace: Trace) -> Iterator[str]:
    """The file in pieces."""
    base = min((int(table.ts_ns.min()) for table in (trace.activities, trace.calls, trace.ops, trace.annotations)
                if len(table.ts_ns)), default=0)
    head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": _devices(trace)}
    if trace.rank is not None:
        told = {"backend": trace.recording.backend, "rank": trace.rank, "world_size": trace.world_size}
        head["distributedInfo"] = {key: value for key, value in told.items() if value is not None}
    if trace.recording.shapes:
        head["record_shapes"] = 1
    head |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": base}
    yield _json(head)[:-1] + ',"traceEvents":[\n'
    comma = ""
    for event in _events(trace, base):
        yield comma + event
        comma = ",\n"
    yield "\n]}\n"


def write(trace: Trace, path: Path) -> Path:
    """The file at a path; gzip where it ends in .gz. Returns the path."""
    import gzip

    text = "".join(kineto(trace)).encode()
    path.write_bytes(gzip.compress(text, 6, mtime=0) if path.suffix == ".gz" else text)
    return path


def _events(trace: Trace, base: int) -> Iterator[str]:
    names = [_json(name) for name in trace.names]
    yield from _activities(trace, base, names)
    pids = [tuple(int(part) for part in text.partition("/")[::2]) for text in trace.threads]
    c, o, n = trace.calls, trace.ops, trace.annotations
    for ts, dur, name, thread, number in _rows(c.ts_ns, c.dur_ns, c.name, c.thread, c.correlation):
        kind = "cuda_runtime" if trace.names[name].startswith(("cuda", "hip")) else "cuda_driver"
        yield _span(kind, names[name], pids[thread], ts - base, dur,
                    "" if number == NO_ID else f'"correlation":{number}')
    arguments = [_arguments(args.dims, args.types, args.strides, args.concrete) for args in trace.op_args]
    for ts, dur, name, thread, number, args in _rows(o.ts_ns, o.dur_ns, o.name, o.thread, o.external_id, o.args):
        more = [f'"External id":{number}'] if number != NO_ID else []
        more += [arguments[args]] if args >= 0 else []
        yield _span("cpu_op", names[name], pids[thread], ts - base, dur, ",".join(more))
    for ts, dur, name, thread in _rows(n.ts_ns, n.dur_ns, n.name, n.thread):
        yield _span("user_annotation", names[name], pids[thread], ts - base, dur, "")


def _activities(trace: Trace, base: int, names: list[str]) -> Iterator[str]:
    a = trace.activities
    records = [_record(i, trace) for i in range(len(trace.collectives))]
    for ts, dur, name, kind, device, stream, correlation, op, node, nbytes, record, grid, block in _rows(
            a.ts_ns, a.dur_ns, a.name, a.kind, a.device, a.stream, a.correlation, a.external_id, a.graph_node, a.nbytes,
            a.collective, a.grid, a.block):
        more = [f'"device":{device},"stream":{stream}']
        more += [f'"{key}":{value}' for key, value in (("correlation", correlation), ("External id", op),
                                                       ("graph node id", node)) if value != NO_ID]
        if kind == KERNEL and any(grid):
            more.append(f'"grid":{_json(grid)},"block":{_json(block)}')
        if kind != KERNEL and nbytes:
            more.append(f'"bytes":{nbytes}')
        if record >= 0:
            more.append(records[record])
        yield _span(KINDS[kind], names[name], (device, stream), ts - base, dur, ",".join(more))


def _record(index: int, trace: Trace) -> str:
    """As ProcessGroupNCCL writes it."""
    c = trace.collectives[index]
    said = {"Collective name": c.name, "In msg nelems": c.elements_in, "Out msg nelems": c.elements_out,
            "Group size": c.group_size, "dtype": c.dtype, "Process Group Name": c.group}
    if c.ranks:
        said["Process Group Ranks"] = str(list(c.ranks))
    return _json(said)[1:-1]


def _arguments(dims: str, types: str, strides: str, concrete: str) -> str:
    keys = (("Input Dims", dims), ("Input type", types), ("Input Strides", strides), ("Concrete Inputs", concrete))
    return ",".join(f'"{key}":{text}' for key, text in keys if text)


def _devices(trace: Trace) -> list[dict[str, Any]]:
    out = []
    for index, info in sorted(trace.devices.items()):
        major, minor = info.capability or (None, None)
        row = {"id": index, "name": info.name, "totalGlobalMem": info.memory_bytes, "computeMajor": major,
               "computeMinor": minor, "numSms": info.sms}
        out.append({key: value for key, value in row.items() if value is not None})
    return out


def _rows(*columns: Any) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def _us(ns: int) -> str:
    """Microseconds with three decimals: exact."""
    whole, part = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{whole}.{part:03d}"


def _span(category: str, name: str, where: tuple[int, ...], start_ns: int, dur_ns: int, args: str) -> str:
    return (f'{{"ph":"X","cat":"{category}","name":{name},"pid":{where[0]},"tid":{where[1]},"ts":{_us(start_ns)},'
            f'"dur":{_us(dur_ns)},"args":{{{args}}}}}')
