"""This file knows about PyTorch profiler traces (Kineto's Chrome JSON): `read_kineto(path) -> Trace`.

Any layout and any age: relative or absolute time stamps, numbers or text as ids, a list at the root, the 2021
categories. Links are made by `correlation` and `External id` alone: flow events are incomplete (1,040 starts for
3,836 ends in one public file), and lists of API names miss the next one.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sublight.observe import cleaning, metadata
from sublight.observe.columns import Columns
from sublight.observe.events import Buffer, Codec, Tally, events
from sublight.observe.kineto_events import SHAPES_FLAG, Decoder, convert
from sublight.observe.source import Damage, label, open_bytes
from sublight.trace import (
    FARTHEST_NS,
    I32,
    Activities,
    Calls,
    Collective,
    OpArgs,
    Ops,
    Quality,
    Ranges,
    Recording,
    Trace,
    in_order,
)

# Control characters and those that turn the direction of text: a name must not steer a terminal.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
WORD = re.compile(r"\w{1,40}")
RANKS = re.compile(r"\[\d{1,7}(?:, ?\d{1,7})*\]")
LARGE_STAMP = re.compile(rb'"ts"\s*:\s*"?\d{13,}\.')      # from 1e12 on; below, a double holds the nanoseconds

Progress = Callable[[int], None]


def read_kineto(path: str, *, progress: Progress | None = None) -> Trace:
    """Read one trace file (or `-`, or an http(s) URL) into columns.

    `progress` is called with the number of text bytes read so far.
    Memory is bounded by the columns: text is decoded in chunks of half a MiB and dropped. Damage is repaired or
    counted in `Trace.quality`. Raises InputError when the input holds no event list at all.
    """
    damage, tally = Damage(), Tally()
    decoder = Decoder()
    columns = Columns(decoder.category_of)
    with no_garbage_collection():
        blocks = _watched(open_bytes(path, damage), damage, progress)
        for batch, text in _batches(blocks, decoder, tally, label(path)):
            columns.add(batch, text)
    return _finish(columns, tally, damage, label(path))


def _batches(
    blocks: Iterator[bytes], decoder: Decoder, tally: Tally, name: str
) -> Iterator[tuple[list[Any], bytes]]:
    """Each list of events, with the text that it came from where stamps may need decoding to the last digit."""
    last = b""

    def decode(text: Buffer) -> list[Any]:
        nonlocal last
        if SHAPES_FLAG.search(tally.head):
            decoder.expect_arguments()
        batch = decoder(text)
        last = bytes(text) if LARGE_STAMP.search(text, 0, 4096) else b""
        return batch

    for batch in events(blocks, Codec(decode, convert), tally, name):
        yield batch, last
        last = b""


def _watched(blocks: Iterator[bytes], damage: Damage, progress: Progress | None) -> Iterator[bytes]:
    for block in blocks:
        if progress:
            progress(damage.bytes_read)
        yield block


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Reading makes millions of short-lived objects and no cycles: the collector would only walk them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _finish(columns: Columns, tally: Tally, damage: Damage, name: str) -> Trace:
    head = metadata.metadata(tally)
    base_ns = head.baseTimeNanoseconds
    base = base_ns if isinstance(base_ns, int) and abs(base_ns) < FARTHEST_NS else 0
    texts = [UNPRINTABLE.sub("\ufffd", n) if isinstance(n, str) else "(no name)" for n in columns.names]
    names = tuple(sorted(set(texts)))
    rank_of_name = {n: i for i, n in enumerate(names)}
    renamed = np.array([rank_of_name[t] for t in texts] or [0], np.int32)
    threads, rethreaded = _thread_labels(columns.threads)
    op_args, reargued = _numbered([OpArgs(*map(_compact, texts)) for texts in columns.op_args])
    collectives, recollected = _numbered([_collective(*said) for said in columns.collectives])

    def column(table: dict[str, list[Any]], key: str, dtype: Any, width: int = 0) -> Any:
        parts = table.pop(key, [])
        if not parts:
            return np.zeros((0, width) if width else 0, dtype)
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return joined.astype(dtype, copy=False)

    def common(table: dict[str, list[Any]]) -> dict[str, Any]:
        return {"ts_ns": column(table, "ts_ns", np.int64) + base, "dur_ns": column(table, "dur_ns", np.int64),
                "name": renamed[column(table, "name", np.int32)]}

    def host(table: dict[str, list[Any]]) -> dict[str, Any]:
        return common(table) | {"thread": rethreaded[column(table, "thread", np.int32)]}

    d = columns.device
    activities = Activities(
        **common(d), kind=column(d, "kind", np.int32), device=column(d, "device", np.int32),
        stream=column(d, "stream", np.int64), correlation=column(d, "correlation", np.int64),
        external_id=column(d, "external_id", np.int64), graph_node=column(d, "graph_node", np.int64),
        nbytes=column(d, "nbytes", np.int64), collective=recollected[column(d, "collective", np.int32)],
        grid=column(d, "grid", np.int32, 3),
        block=column(d, "block", np.int32, 3),
    )
    calls = Calls(**host(columns.calls), correlation=column(columns.calls, "correlation", np.int64))
    ops = Ops(**host(columns.ops), external_id=column(columns.ops, "external_id", np.int64),
              args=reargued[column(columns.ops, "args", np.int32)])
    annotations, overhead = Ranges(**host(columns.annotations)), Ranges(**host(columns.overhead))

    untimed = columns.untimed
    activities = cleaning.usable_times(activities, base, untimed)
    calls, ops = cleaning.forward_only(calls, untimed), cleaning.forward_only(ops, untimed)
    annotations, overhead = cleaning.forward_only(annotations, untimed), cleaning.forward_only(overhead, untimed)
    activities = in_order(activities)
    activities, clipped = cleaning.clip_overruns(activities)
    repaired = tally.repaired + columns.repaired
    if clipped:
        repaired["duration ran past its successors on one stream"] += clipped
    kept = {"device activities": len(activities.ts_ns), "runtime calls": len(calls.ts_ns),
            "operators": len(ops.ts_ns), "annotations": len(annotations.ts_ns),
            "profiler overhead": len(overhead.ts_ns)}
    rank, rank_source, world_size, backend = metadata.rank_of(head.distributedInfo, name)
    return Trace(
        rank=rank, rank_source=rank_source, world_size=world_size,
        devices=metadata.devices(head.deviceProperties), names=names, threads=threads, op_args=op_args,
        collectives=collectives, activities=activities,
        calls=in_order(calls), ops=in_order(ops), annotations=in_order(annotations), overhead=in_order(overhead),
        recording=Recording(
            shapes=columns.saw_shapes or metadata.flag(head.record_shapes) or (False if len(ops.ts_ns) else None),
            stacks=columns.saw_stacks or metadata.flag(head.with_stack) or (False if len(ops.ts_ns) else None),
            memory=metadata.flag(head.profile_memory), backend=backend, versions=metadata.versions(head),
        ),
        quality=Quality(
            files=(name,), text_bytes=damage.bytes_read, events=columns.events, kept=kept,
            ignored=dict(sorted(columns.ignored.items())), lost=tally.lost + columns.lost,
            untimed=dict(sorted(untimed.items())), repaired=dict(sorted(repaired.items())),
            cut_short=tally.cut_short or damage.cut_short, clock_ns=1 if columns.fractions else 1000,
        ),
    )


def _numbered(values: list[Any]) -> tuple[tuple[Any, ...], I32]:
    """The distinct values in order, and where each of the given ones is; index -1 stays -1."""
    ordered = tuple(sorted(set(values)))
    place = {value: i for i, value in enumerate(ordered)}
    return ordered, np.array([*(place[value] for value in values), -1], np.int32)


def _compact(text: bytes) -> str:
    """Arguments' JSON in one form, whatever its layout; nothing where it cannot be read."""
    try:
        return json.dumps(json.loads(text), separators=(",", ":")) if text else ""
    except (ValueError, RecursionError):
        return ""


def _collective(
    name: str, dtype: str, elements_in: int, elements_out: int, size: int, group: str, ranks: str,
) -> Collective:
    """Names of collectives and of number formats are words; a process group's name is kept if it is a number, its ranks
    if they are all listed (of large groups PyTorch writes some, with dots between)."""
    listed = RANKS.fullmatch(ranks) is not None
    members = tuple(int(rank) for rank in ranks.strip("[] ").split(",")) if listed else ()
    return Collective(
        name if WORD.fullmatch(name) else "", dtype if WORD.fullmatch(dtype) else "", elements_in, elements_out, size,
        group if group.isdigit() else "", members if len(members) == size else (),
    )


def _thread_labels(threads: dict[tuple[Any, Any], int]) -> tuple[tuple[str, ...], I32]:
    """Threads as "process/thread", numbers only: a thread's free-form name never gets in."""
    def number(value: Any) -> str:
        found = re.search(r"-?\d+", str(value))
        return found[0] if found else "0"

    labels = [f"{number(pid)}/{number(tid)}" for pid, tid in threads]
    ordered = tuple(sorted(set(labels)))
    place = {text: i for i, text in enumerate(ordered)}
    return ordered, np.array([place[text] for text in labels] or [0], np.int32)
