"""This file knows about the JSON lines of NCCL's Inspector plugin: one object for each collective and rank (format
v4.0,
NCCL 2.30.7, plugins/profiler/inspector/inspector_json.cc)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sublight.errors import InputError
from sublight.result import Placement, Result
from sublight.work import Message

NAMES = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "AlltoAll": "all_to_all",
    "AllToAll": "all_to_all", "Broadcast": "broadcast", "Reduce": "reduce", "Gather": "gather", "Scatter": "scatter",
    "Send": "send_recv", "Recv": "send_recv",
}
BY_THE_GPU = "kernel_gpu"
Key = tuple[str, int, str, int, str, int, int]       # communicator, rank, host, ranks, collective, bytes, nodes


def looks_like(text: str) -> bool:
    """Whether this is what the plugin writes."""
    head = text[:8000]
    return '"inspector_output_format_version"' in head or ('"coll_perf"' in head and '"header"' in head)


def read_inspector(text: str, name: str) -> tuple[Result, ...]:
    """One `time` and one `bus bandwidth` for each communicator, rank, collective and size, samples in the order of the
    sequence numbers; variant "rank 3, comm 0x…". Operations that the CPU timed are left out where the file also has
    some that the GPU timed. Raises InputError where no object can be read."""
    groups: dict[Key, list[tuple[int, float, float, bool]]] = {}
    for record in _objects(text):
        try:
            key, value = _record(record)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue                     # a line that was being written when the job ended
        groups.setdefault(key, []).append(value)
    if not groups:
        raise InputError(f"{name} looks like NCCL Inspector output, but holds no object with header, metadata and "
                         "coll_perf; is the file cut short?")
    by_gpu = any(timed for values in groups.values() for *_, timed in values)
    return tuple(r for key, values in groups.items() for r in _results(key, [
        v for v in sorted(values) if v[3] or not by_gpu], name))


def _objects(text: str) -> Iterator[Any]:
    """Objects one a line, or one after the other over several lines."""
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, at)
            yield value
        except (ValueError, RecursionError):
            at += 1
            at = max(text.find("\n{", at), -1) + 1 or len(text)


def _record(record: Any) -> tuple[Key, tuple[int, float, float, bool]]:
    header, host = record["header"], str(record["metadata"]["hostname"])
    body, kind = (record["coll_perf"], "coll") if "coll_perf" in record else (record["p2p_perf"], "p2p")
    collective = NAMES.get(str(body[kind]), "unnamed")
    key = (str(header["id"]), int(header["rank"]), host, int(header["n_ranks"]), collective,
           int(body[f"{kind}_msg_size_bytes"]), max(1, int(header["nnodes"])))
    seconds = float(body[f"{kind}_exec_time_us"]) * 1e-6
    if not 0 < seconds < 1e6:
        raise ValueError("no time")
    timed = str(body.get(f"{kind}_timing_source", BY_THE_GPU)) == BY_THE_GPU
    return key, (int(body[f"{kind}_sn"]), seconds, float(body.get(f"{kind}_busbw_gbs", 0)) * 1e9, timed)


def _results(key: Key, values: list[tuple[int, float, float, bool]], name: str) -> Iterator[Result]:
    comm, rank, host, ranks, collective, nbytes, nodes = key
    if not values:
        return
    message = Message(collective, ranks, nbytes)
    placement = Placement(nodes, max(1, ranks // nodes), (host,))
    variant = f"rank {rank}, comm {comm}"
    yield Result("time", "s", tuple(v[1] for v in values), message, placement, variant, None, name)
    if bus := tuple(v[2] for v in values if v[2] > 0):
        yield Result("bus bandwidth", "B/s", bus, message, placement, variant, None, name)
