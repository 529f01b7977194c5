"""This file knows about PyTorch profiler traces (Kineto's Chrome JSON): `read_kineto(path) -> Trace`.

Any layout and any age: relative or absolute time stamps, numbers or text as ids, a list at the root, the 2021
categories. Links are made by `correlation` and `External id` alone: flow events are incomplete (1,040 starts for
3,836 ends in one public file), and lists of API names miss the next one.
"""

from __future__ import annotations

import gc
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from typing import Any, Union

import msgspec
import numpy as np

from sublight.device import DeviceInfo
from sublight.observe.events import Buffer, Codec, Tally, events
from sublight.observe.source import Damage, label, open_bytes
from sublight.trace import (
    I32,
    I64,
    KERNEL,
    MEMCPY,
    MEMSET,
    NO_ID,
    Activities,
    Calls,
    Ops,
    Quality,
    Ranges,
    Recording,
    Trace,
    in_order,
)

# Categories by table; the capitalised ones are those of 2021.
DEVICE_KINDS = {
    "kernel": KERNEL, "Kernel": KERNEL, "gpu_memcpy": MEMCPY, "Memcpy": MEMCPY,
    "gpu_memset": MEMSET, "Memset": MEMSET, "concurrent_kernel": KERNEL,
}
CALL_KINDS = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "Driver", "hip_runtime", "hip_driver"})
OP_KINDS = frozenset({"cpu_op", "Operator"})
ANNOTATION_KINDS = frozenset({"user_annotation", "UserAnnotation"})
OVERHEAD_KINDS = frozenset({"overhead", "Overhead"})
KEPT = frozenset(DEVICE_KINDS) | CALL_KINDS | OP_KINDS | ANNOTATION_KINDS | OVERHEAD_KINDS
# Read, counted, and not needed for time accounting.
KNOWN_IGNORED = frozenset({
    "python_function", "ac2g", "fwdbwd", "async_cpu_to_gpu", "async_gpu", "gpu_user_annotation", "Trace",
    "cpu_instant_event", "forward_backward", "cuda_sync", "cuda_event", "mtia_ccp_events", "collective_comm",
})
PHASES = {"M": "metadata", "i": "instant", "I": "instant", "s": "flow", "f": "flow", "t": "flow", "C": "counter",
          "B": "begin/end", "E": "begin/end", "b": "begin/end", "e": "begin/end", "n": "begin/end"}

# Metadata that may be shown must look like what it is for.
DEVICE_NAME = re.compile(
    r"(?i:nvidia|tesla|quadro|geforce|titan|grid|amd|instinct|radeon|intel|ascend|gfx|[a-z]{1,2}\d{2,4}[a-z]?\b)"
    r"[\w .()/+-]{0,56}"
)
ONE_BACKEND = r"(?:(?:cpu|cuda|hip|xpu):)?(?:nccl|gloo|mpi|ucc|hccl|xccl|rccl)"
BACKEND = re.compile(f"{ONE_BACKEND}(?:,{ONE_BACKEND})*")

EXACT_BELOW_US = float(1 << 43)          # a double holds nanoseconds of microsecond counts up to here
# Control characters and those that turn the direction of text: a name must not steer a terminal.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
LARGE_STAMP = re.compile(rb'"ts"\s*:\s*"?\d{13,}\.')      # from 1e12 on; below, a double holds the nanoseconds
SHAPES_KEY = re.compile(rb'"Input [Dd]ims"')
SHAPES_WITHIN = 100_000                  # events: where operators have shapes, one of the first ones has
FARTHEST_NS = 1 << 62
DISPLACED_GAP_NS = 3600 * 10**9
LONGEST_NS = 30 * 24 * 3600 * 10**9      # no recording is longer; sums of what lies within it are exact in a double
OVERRUN_SUCCESSORS = 8


class Args(msgspec.Struct, gc=False, rename={
    "external_id": "External id", "external_id_2021": "external id", "nbytes": "bytes",
    "graph_node": "graph node id",
}):
    correlation: Any = None
    external_id: Any = None
    external_id_2021: Any = None
    device: Any = None
    stream: Any = None
    grid: Any = None
    block: Any = None
    nbytes: Any = None
    graph_node: Any = None


class CallArgs(msgspec.Struct, gc=False):
    correlation: Any = None


class OpArgs(msgspec.Struct, gc=False, rename={
    "external_id": "External id", "external_id_2021": "external id",
}):
    external_id: Any = None
    external_id_2021: Any = None


class Event(msgspec.Struct, gc=False):
    """An event of any category: the tolerant way, for chunks that the typed way below refuses."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Args | None = None


def _struct_of(category: str) -> type[msgspec.Struct]:
    """The struct of one category: only the fields that its table needs, none for those that are only counted."""
    fields: list[Any] = []
    if category in KEPT:
        # Whatever has a start and a length is a span: the phase need not be decoded.
        fields = [("name", str), ("ts", int | float), ("dur", int | float), ("pid", Any, None), ("tid", Any, None)]
        args: Any = (Args if category in DEVICE_KINDS else CallArgs if category in CALL_KINDS else
                     OpArgs if category in OP_KINDS else None)
        if args is not None:
            fields.append(("args", args | None, None))
    return msgspec.defstruct("Typed", fields, tag_field="cat", tag=category, gc=False)


class ExactTime(msgspec.Struct, gc=False):
    """Time stamps of an event to the last digit, for files whose stamps outgrow a double."""

    ts: Decimal | None = None
    dur: Decimal | None = None


class Head(msgspec.Struct):
    """The allow-list of metadata. Nothing else of a file's head is kept, let alone shown: public traces have
    carried host names, command lines and access tokens."""

    deviceProperties: Any = None                                   # noqa: N815   (the file's own spelling)
    distributedInfo: Any = None                                    # noqa: N815
    baseTimeNanoseconds: Any = None                                # noqa: N815
    record_shapes: Any = None
    with_stack: Any = None
    profile_memory: Any = None


_decode_any = msgspec.json.Decoder(list[Event]).decode
_decode_exact = msgspec.json.Decoder(list[ExactTime]).decode


class _Decoder:
    """Decodes chunks by category; learns categories that it has not met, so that they cost one slow chunk each."""

    MOST_CATEGORIES = 200

    def __init__(self) -> None:
        self.category_of: dict[type, str] = {}
        self._learn(KEPT | KNOWN_IGNORED)

    def _learn(self, categories: Iterable[str]) -> None:
        self.category_of |= {_struct_of(category): category for category in sorted(categories)}
        union: Any = Union[tuple(self.category_of)]  # noqa: UP007   (made at run time)
        self._typed = msgspec.json.Decoder(list[union]).decode

    def __call__(self, text: Buffer) -> list[Any]:
        try:
            return self._typed(text)
        except msgspec.ValidationError:
            batch = _decode_any(text)
        known = set(self.category_of.values())
        new = {e.cat for e in batch if isinstance(e.cat, str)} - known
        if new and len(known) + len(new) <= self.MOST_CATEGORIES:
            self._learn(new)
        return batch


def _convert(value: dict[str, Any]) -> Event | None:
    if not isinstance(value.get("ph"), str):
        return None
    if isinstance(value.get("name"), str):        # half of an escaped pair cannot be written again
        value["name"] = value["name"].encode("utf-8", "replace").decode()
    try:
        return msgspec.convert(value, Event)
    except msgspec.MsgspecError:
        kept = {k: v for k, v in value.items() if k != "args"}
        args = value.get("args")
        event: Event = msgspec.convert(kept, Event)
        if isinstance(args, dict):
            event.args = Args(**{
                f.name: args[f.encode_name] for f in msgspec.structs.fields(Args)
                if f.encode_name in args
            })
        return event


Progress = Callable[[int], None]


def read_kineto(path: str, *, progress: Progress | None = None) -> Trace:
    """Read one trace file (or `-`, or an http(s) URL) into columns.

    `progress` is called with the number of text bytes read so far.
    Memory is bounded by the columns: text is decoded in chunks of half a MiB and dropped. Damage is repaired or counted in
    `Trace.quality`. Raises InputError when the input holds no event list at all.
    """
    damage, tally = Damage(), Tally()
    decoder = _Decoder()
    columns = _Columns(decoder.category_of)
    with _no_garbage_collection():
        blocks = _watched(open_bytes(path, damage), damage, progress)
        for batch, text in _batches(blocks, decoder, columns, tally, label(path)):
            columns.add(batch, text)
    return _finish(columns, tally, damage, label(path))


def _batches(
    blocks: Iterator[bytes], decoder: _Decoder, columns: _Columns, tally: Tally, name: str
) -> Iterator[tuple[list[Any], bytes]]:
    """Each list of events, with the text that it came from where stamps may need decoding to the last digit."""
    last = b""

    def decode(text: Buffer) -> list[Any]:
        nonlocal last
        batch = decoder(text)
        if not columns.saw_shapes and columns.events < SHAPES_WITHIN:
            columns.saw_shapes = SHAPES_KEY.search(text) is not None
        last = bytes(text) if LARGE_STAMP.search(text, 0, 4096) else b""
        return batch

    for batch in events(blocks, Codec(decode, _convert), tally, name):
        yield batch, last
        last = b""


def _watched(blocks: Iterator[bytes], damage: Damage, progress: Progress | None) -> Iterator[bytes]:
    for block in blocks:
        if progress:
            progress(damage.bytes_read)
        yield block


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Reading makes millions of short-lived objects and no cycles: the collector would only walk them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# ---------------------------------------------------------------- events to columns


class _Ids(dict[Any, int]):
    """Numbers things in the order in which they are first asked for."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class _Exact:
    """The time stamps of a batch to the last digit, decoded from its text only if somebody needs them."""

    def __init__(self, batch: list[Any], text: bytes) -> None:
        self._batch, self._text = batch, text
        self._stamps: dict[int, ExactTime] | None = None

    def stamps(self) -> dict[int, ExactTime]:
        """By the identity of the event; empty where the text had to be mended."""
        if self._stamps is None:
            self._stamps = {}
            try:
                exact = _decode_exact(self._text) if self._text else []
            except (msgspec.MsgspecError, UnicodeDecodeError):
                exact = []
            if len(exact) == len(self._batch):
                self._stamps = {id(e): stamp for e, stamp in zip(self._batch, exact, strict=True)}
        return self._stamps


@dataclass(slots=True)
class _Columns:
    """Columns as lists of arrays, one a chunk."""

    category_of: dict[type, str]
    names: _Ids = field(default_factory=_Ids)
    threads: _Ids = field(default_factory=_Ids)
    device: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    calls: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    ops: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    annotations: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    overhead: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    events: int = 0
    ignored: Counter[str] = field(default_factory=Counter)
    untimed: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    saw_shapes: bool = False
    saw_stacks: bool = False
    fractions: bool = False                        # of a microsecond, in any time stamp

    def add(self, batch: list[Any], text: bytes) -> None:
        self.events += len(batch)
        by_type: dict[type, list[Any]] = {kind: [] for kind in (*self.category_of, Event)}
        put = {kind: members.append for kind, members in by_type.items()}
        for e in batch:
            put[type(e)](e)
        untyped = by_type.pop(Event)
        groups: defaultdict[str | None, list[Any]] = defaultdict(
            list, {self.category_of[kind]: members for kind, members in by_type.items() if members}
        )
        for e in untyped:
            groups[e.cat if isinstance(e.cat, str) else None].append(e)
        exact = _Exact(batch, text)
        for category, group in groups.items():
            if category in DEVICE_KINDS:
                self._device_events(group, DEVICE_KINDS[category], exact)
            elif category in CALL_KINDS:
                self._host_events(self.calls, group, exact, correlated=True)
            elif category in OP_KINDS:
                self._host_events(self.ops, group, exact, with_external_id=True)
            elif category in ANNOTATION_KINDS:
                self._host_events(self.annotations, group, exact)
            elif category in OVERHEAD_KINDS:
                self._host_events(self.overhead, group, exact)
            elif category is not None and category not in KNOWN_IGNORED and type(group[0]) is not Event:
                self.ignored["other"] += len(group)
            else:
                self._ignore(category, group)

    def _ignore(self, category: Any, group: list[Event]) -> None:
        if category == "python_function":
            self.saw_stacks = True
        if type(group[0]) is not Event:
            typed = len(group)
            group = [e for e in group if type(e) is Event] if type(group[-1]) is Event else []
            self.ignored[str(category)] += typed - len(group)
        phases = Counter(e.ph if isinstance(e.ph, str) else None for e in group)
        for phase, count in phases.items():
            if phase is None or not phase:
                self.lost += count
                self.events -= count
            elif isinstance(category, str) and category in KNOWN_IGNORED:
                self.ignored[category] += count
            else:
                self.ignored[PHASES.get(phase, "other")] += count

    def _times(self, group: list[Event], exact: _Exact) -> tuple[I64, I64, list[Event]]:
        """Start and duration in nanoseconds, of the events that have usable ones; the events kept."""
        try:
            ts_us = np.fromiter([e.ts for e in group], np.float64, len(group))
            dur_us = np.fromiter([e.dur for e in group], np.float64, len(group))
        except (TypeError, ValueError, OverflowError):
            return self._one_by_one(group, exact)
        fine = np.isfinite(ts_us) & np.isfinite(dur_us) & (np.abs(ts_us) < FARTHEST_NS // 1000)
        fine &= np.abs(dur_us) < FARTHEST_NS // 1000
        if not fine.all():
            self._not_timed("no usable time stamp", int((~fine).sum()))
            group = [e for e, ok in zip(group, fine.tolist(), strict=True) if ok]
            ts_us, dur_us = ts_us[fine], dur_us[fine]
        if len(ts_us) and ts_us.max() >= EXACT_BELOW_US and (ts_us % 1).any():
            return self._one_by_one(group, exact)
        return self._to_ns(ts_us), self._to_ns(dur_us), group

    def _to_ns(self, us: Any) -> I64:
        """Microseconds to nanoseconds without losing the last digit: the fraction is rounded on its own."""
        whole = np.floor(us)
        rest = np.rint((us - whole) * 1000.0)
        self.fractions = self.fractions or bool(rest.any())
        out: I64 = whole.astype(np.int64) * 1000 + rest.astype(np.int64)
        return out

    def _one_by_one(self, group: list[Event], exact: _Exact) -> tuple[I64, I64, list[Event]]:
        """The slow way: text as numbers, stamps too large for a double."""
        kept, ts, dur = [], [], []
        stamps = exact.stamps()
        for e in group:
            stamp = stamps.get(id(e))
            start, length = _ns(stamp.ts if stamp else e.ts), _ns(stamp.dur if stamp else e.dur)
            if start is None or length is None:
                self._not_timed("no usable time stamp", 1)
                continue
            self.fractions = self.fractions or start % 1000 != 0 or length % 1000 != 0
            kept.append(e)
            ts.append(start)
            dur.append(length)
        return np.array(ts, np.int64), np.array(dur, np.int64), kept

    def _not_timed(self, reason: str, count: int) -> None:
        self.untimed[reason] += count

    def _spans(self, group: list[Event]) -> list[Event]:
        """Those that are spans; begin/end pairs and instants carry no duration and are only counted."""
        if type(group[-1]) is not Event:
            return group
        spans = [e for e in group if type(e) is not Event or e.ph == "X"]
        for e in group:
            if type(e) is Event and e.ph != "X":
                if isinstance(e.ph, str) and e.ph:
                    self.ignored[PHASES.get(e.ph, "other")] += 1
                else:
                    self.lost += 1
                    self.events -= 1
        return spans

    def _name_ids(self, group: list[Event]) -> I32:
        names = self.names
        try:
            return np.fromiter([names[e.name] for e in group], np.int32, len(group))
        except TypeError:
            pass
        texts = [e.name if isinstance(e.name, str) else "(no name)" for e in group]
        return np.array([names[t] for t in texts], np.int32)

    def _device_events(self, group: list[Event], kind: int, exact: _Exact) -> None:
        ts, dur, group = self._times(self._spans(group), exact)
        if not group:
            return
        args = [e.args or Args() for e in group]
        out = self.device
        out["ts_ns"].append(ts)
        out["dur_ns"].append(dur)
        out["name"].append(self._name_ids(group))
        out["kind"].append(np.full(len(group), kind, np.int32))
        out["correlation"].append(_ids([a.correlation for a in args]))
        externals = [a.external_id if a.external_id is not None else a.external_id_2021 for a in args]
        out["external_id"].append(_ids(externals))
        out["device"].append(_small([a.device if a.device is not None else e.pid for a, e in zip(args, group,
                                                                                               strict=True)]))
        out["stream"].append(_ids([a.stream if a.stream is not None else e.tid for a, e in zip(args, group,
                                                                                              strict=True)]))
        out["graph_node"].append(_ids([a.graph_node for a in args]))
        out["nbytes"].append(_counts([a.nbytes for a in args]))
        out["grid"].append(_triples([a.grid for a in args]))
        out["block"].append(_triples([a.block for a in args]))

    def _host_events(
        self, out: dict[str, list[Any]], group: list[Event], exact: _Exact, *,
        correlated: bool = False, with_external_id: bool = False,
    ) -> None:
        ts, dur, group = self._times(self._spans(group), exact)
        if not group:
            return
        out["ts_ns"].append(ts)
        out["dur_ns"].append(dur)
        out["name"].append(self._name_ids(group))
        threads = self.threads
        try:
            ids = [threads[e.pid, e.tid] for e in group]
        except TypeError:
            ids = [threads[str(e.pid), str(e.tid)] for e in group]
        out["thread"].append(np.fromiter(ids, np.int32, len(ids)))
        if correlated:
            out["correlation"].append(_from_args(group, "correlation"))
        if with_external_id:
            out["external_id"].append(_from_args(group, "external_id", "external_id_2021"))


def _from_args(group: list[Event], key: str, older_key: str | None = None) -> I64:
    """An id from each event's arguments; NO_ID where there is none."""
    get, older = attrgetter(key), attrgetter(older_key or key)
    try:
        return np.fromiter([get(e.args) for e in group], np.int64, len(group))
    except (TypeError, ValueError, OverflowError, AttributeError):
        found = ((None if e.args is None else get(e.args) if get(e.args) is not None else older(e.args))
                 for e in group)
        return np.array([_id(value) for value in found], np.int64)


def _ns(us: Any) -> int | None:
    """Microseconds as a number or as text, to whole nanoseconds."""
    if isinstance(us, bool) or us is None:
        return None
    try:
        value = us if isinstance(us, Decimal) else Decimal(str(us))
        if not value.is_finite() or abs(value) >= FARTHEST_NS // 1000:
            return None
        return int((value * 1000).to_integral_value())
    except (ArithmeticError, ValueError):
        return None


def _id(value: Any) -> int:
    """An id as an int64: unsigned 64-bit ones keep their bits, text gives its digits ("stream 7" is 7)."""
    if isinstance(value, bool) or value is None:
        return int(NO_ID)
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float):
        return int(value) if value == value and abs(value) < FARTHEST_NS else int(NO_ID)
    if isinstance(value, str):
        digits = re.search(r"-?\d+", value)
        value = int(digits[0]) if digits else None
    if not isinstance(value, int):
        return int(NO_ID)
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _ids(values: list[Any]) -> I64:
    if values.count(None) == len(values):
        return np.full(len(values), NO_ID)
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([_id(v) for v in values], np.int64)


def _small(values: list[Any]) -> I32:
    ids = _ids(values)
    ids = np.where((ids >= 0) & (ids < 1 << 16), ids, 0)
    return ids.astype(np.int32)


def _counts(values: list[Any]) -> I64:
    ids = _ids(values)
    out: I64 = np.where(ids == NO_ID, 0, np.maximum(ids, 0))
    return out


def _triples(values: list[Any]) -> I32:
    try:
        if [*map(len, values)].count(3) == len(values):
            return np.fromiter(chain.from_iterable(values), np.int32, 3 * len(values)).reshape(-1, 3)
    except (TypeError, ValueError, OverflowError):
        pass
    rows = [
        [min(max(_id(x), 0), (1 << 31) - 1) for x in v] if isinstance(v, list) and len(v) == 3 else [0, 0, 0]
        for v in values
    ]
    return np.array(rows, np.int32).reshape(-1, 3)


# ---------------------------------------------------------------- columns to a Trace


def _finish(columns: _Columns, tally: Tally, damage: Damage, name: str) -> Trace:
    head = _metadata(tally)
    base_ns = head.baseTimeNanoseconds
    base = base_ns if isinstance(base_ns, int) and abs(base_ns) < FARTHEST_NS else 0
    texts = [UNPRINTABLE.sub("\ufffd", n) if isinstance(n, str) else "(no name)" for n in columns.names]
    names = tuple(sorted(set(texts)))
    rank_of_name = {n: i for i, n in enumerate(names)}
    renamed = np.array([rank_of_name[t] for t in texts] or [0], np.int32)
    threads, rethreaded = _thread_labels(columns.threads)

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
        nbytes=column(d, "nbytes", np.int64), grid=column(d, "grid", np.int32, 3),
        block=column(d, "block", np.int32, 3),
    )
    calls = Calls(**host(columns.calls), correlation=column(columns.calls, "correlation", np.int64))
    ops = Ops(**host(columns.ops), external_id=column(columns.ops, "external_id", np.int64))
    annotations, overhead = Ranges(**host(columns.annotations)), Ranges(**host(columns.overhead))

    untimed = columns.untimed
    activities = _usable_times(activities, base, untimed)
    calls, ops = _forward_only(calls, untimed), _forward_only(ops, untimed)
    annotations, overhead = _forward_only(annotations, untimed), _forward_only(overhead, untimed)
    activities = in_order(activities)
    activities, clipped = _clip_overruns(activities)
    repaired = tally.repaired + columns.repaired
    if clipped:
        repaired["duration ran past its successors on one stream"] += clipped
    kept = {"device activities": len(activities.ts_ns), "runtime calls": len(calls.ts_ns),
            "operators": len(ops.ts_ns), "annotations": len(annotations.ts_ns),
            "profiler overhead": len(overhead.ts_ns)}
    rank, rank_source, world_size, backend = _rank(head.distributedInfo, name)
    return Trace(
        rank=rank, rank_source=rank_source, world_size=world_size,
        devices=_devices(head.deviceProperties), names=names, threads=threads, activities=activities,
        calls=in_order(calls), ops=in_order(ops), annotations=in_order(annotations), overhead=in_order(overhead),
        recording=Recording(
            shapes=columns.saw_shapes or _flag(head.record_shapes) or (False if len(ops.ts_ns) else None),
            stacks=columns.saw_stacks or _flag(head.with_stack) or (False if len(ops.ts_ns) else None),
            memory=_flag(head.profile_memory), backend=backend,
        ),
        quality=Quality(
            files=(name,), text_bytes=damage.bytes_read, events=columns.events, kept=kept,
            ignored=dict(sorted(columns.ignored.items())), lost=tally.lost + columns.lost,
            untimed=dict(sorted(untimed.items())), repaired=dict(sorted(repaired.items())),
            cut_short=tally.cut_short or damage.cut_short, clock_ns=1 if columns.fractions else 1000,
        ),
    )


def _flag(value: Any) -> bool | None:
    return bool(value) if isinstance(value, int) else None


def _metadata(tally: Tally) -> Head:
    """The allow-listed keys around the list of events. A damaged head gives up what can still be read of it."""
    head = Head()
    for text in ((tally.head or b"{").rstrip().rstrip(b",") + b"}", b'{"_":0' + tally.tail):
        try:
            part = msgspec.json.decode(text, type=Head)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            part = _metadata_by_key(text)
            if text.strip() not in (b"{}", b'{"_":0'):
                tally.repaired["metadata read key by key"] += 1
        for f in msgspec.structs.fields(Head):
            if getattr(part, f.name) is not None:
                setattr(head, f.name, getattr(part, f.name))
    return head


def _metadata_by_key(text: bytes) -> Head:
    import json

    head = Head()
    plain = text.decode("utf-8", "replace")
    for f in msgspec.structs.fields(Head):
        found = re.search(rf'"{f.encode_name}"\s*:\s*', plain)
        if found:
            try:
                value, _ = json.JSONDecoder(strict=False).raw_decode(plain, found.end())
            except (ValueError, RecursionError):
                continue
            setattr(head, f.name, value)
    return head


def _thread_labels(threads: dict[tuple[Any, Any], int]) -> tuple[tuple[str, ...], I32]:
    """Threads as "process/thread", numbers only: a thread's free-form name never gets in."""
    def number(value: Any) -> str:
        found = re.search(r"-?\d+", str(value))
        return found[0] if found else "0"

    labels = [f"{number(pid)}/{number(tid)}" for pid, tid in threads]
    ordered = tuple(sorted(set(labels)))
    place = {text: i for i, text in enumerate(ordered)}
    return ordered, np.array([place[text] for text in labels] or [0], np.int32)


def _keep(table: Any, rows: Any) -> Any:
    return replace(table, **{f.name: getattr(table, f.name)[rows] for f in fields(table)})


def _forward_only(table: Any, untimed: Counter[str]) -> Any:
    """Without what no recording can hold: events that end before they start, and damaged digits."""
    bad = table.dur_ns < 0
    if bad.any():
        untimed["ends before it starts"] += int(bad.sum())
        table = _keep(table, ~bad)
    far = table.dur_ns > LONGEST_NS
    if len(far) and table.ts_ns.max() - table.ts_ns.min() > LONGEST_NS:
        middle = np.partition(table.ts_ns, len(far) // 2)[len(far) // 2]
        far |= np.abs(table.ts_ns - middle) > LONGEST_NS
    if far.any():
        untimed["more than a month long, or away from the rest"] += int(far.sum())
        table = _keep(table, ~far)
    return table


def _usable_times(activities: Activities, base_ns: int, untimed: Counter[str]) -> Activities:
    """Without the records that CUPTI garbled: start and length zero, ends before starts, or hours away from all
    the others (kineto#109, parcagpu#23)."""
    relative = activities.ts_ns - base_ns
    zero = (relative == 0) & (activities.dur_ns == 0)
    if zero.any() and not zero.all() and np.abs(relative[~zero]).min() > 10**9:
        untimed["start and duration are zero"] += int(zero.sum())
        activities = _keep(activities, ~zero)
    activities = _forward_only(activities, untimed)
    if len(activities.ts_ns) > 2:
        starts = np.sort(activities.ts_ns)
        jumps = np.flatnonzero(np.diff(starts) > DISPLACED_GAP_NS)
        if len(jumps):                            # keep the largest group that hangs together
            edges = np.concatenate([[0], jumps + 1, [len(starts)]])
            largest = int(np.argmax(np.diff(edges)))
            low, high = starts[edges[largest]], starts[edges[largest + 1] - 1]
            inside = (activities.ts_ns >= low) & (activities.ts_ns <= high)
            if inside.mean() >= 0.9:
                untimed["more than an hour away from the rest"] += int((~inside).sum())
                activities = _keep(activities, inside)
    return activities


def _clip_overruns(activities: Activities) -> tuple[Activities, int]:
    """Cut durations that run past many whole successors on their own stream (TraceLens#669).

    A stream is in order. A kernel may overlap its successor or two (programmatic dependent launch), and branches of
    a CUDA graph do run side by side; but eight kernels that ran one after another cannot all have begun and ended
    while the one before them still ran.
    """
    a, many = activities, OVERRUN_SUCCESSORS
    n = len(a.ts_ns)
    if n <= many:
        return activities, 0
    order = np.lexsort((a.ts_ns, a.stream, a.device))
    starts, ends = a.ts_ns[order], a.end_ns[order]
    track = a.device[order].astype(np.int64) * (1 << 40) + a.stream[order]
    in_turn = np.concatenate([[0], np.cumsum((starts[1:] >= ends[:-1]) & (ends[1:] > starts[1:]))])
    over = np.zeros(n, bool)
    turns = in_turn[many:] - in_turn[1 : n - many + 1]               # of the successors 1 … many, one after another
    over[: n - many] = (track[: n - many] == track[many:]) & (turns == many - 1) & (ends[: n - many] > ends[many:])
    if not over.any():
        return activities, 0
    _, inverse, counts = np.unique(a.correlation, return_inverse=True, return_counts=True)
    over &= ~((counts[inverse] > 1) | (a.graph_node != NO_ID))[order]
    rows = np.flatnonzero(over)
    if not len(rows):
        return activities, 0
    duration = a.dur_ns.copy()
    duration[order[rows]] = starts[rows + 1] - starts[rows]
    return in_order(replace(a, dur_ns=duration)), len(rows)


def _devices(properties: Any) -> dict[int, DeviceInfo]:
    out: dict[int, DeviceInfo] = {}
    rows: Iterable[Any] = properties if isinstance(properties, list) else []
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("id"), int):
            continue
        name = row.get("name")
        major, minor = row.get("computeMajor"), row.get("computeMinor")
        out[row["id"]] = DeviceInfo(
            name=_device_name(name), sms=_positive(row.get("numSms")),
            memory_bytes=_positive(row.get("totalGlobalMem")),
            capability=(major, minor) if isinstance(major, int) and isinstance(minor, int) else None,
        )
    return out


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _device_name(value: Any) -> str | None:
    """A device's name, if it looks like one: a maker or a model, then letters, digits, spaces and a few signs."""
    if isinstance(value, str) and DEVICE_NAME.fullmatch(value):
        return value
    return None


def _rank(info: Any, name: str) -> tuple[int | None, str, int | None, str | None]:
    """(rank, where it is from, world size, backend): from the metadata, else from the file's name."""
    found = info if isinstance(info, dict) else {}
    backend = found.get("backend")
    backend = backend if isinstance(backend, str) and BACKEND.fullmatch(backend) else None
    world = _positive(found.get("world_size"))
    rank = found.get("rank")
    if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0:
        return rank, "metadata", world, backend
    by_name = re.search(r"(?:rank|worker)[-_]?(\d+)", name, re.IGNORECASE) or re.search(r"-TP-(\d+)", name)
    if by_name:
        return int(by_name[1]), "file name", world, backend
    return None, "order", world, backend
