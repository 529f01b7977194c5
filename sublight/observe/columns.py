"""This file knows about turning batches of Kineto's events into columns, chunk by chunk, and what it had to leave
out on the way."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from sublight.observe.kineto_events import (
    ANNOTATION_KINDS,
    CALL_KINDS,
    DEVICE_KINDS,
    KNOWN_IGNORED,
    OP_KINDS,
    OVERHEAD_KINDS,
    PHASES,
    AnyFields,
    Event,
    ExactTime,
    decode_exact,
)
from sublight.trace import FARTHEST_NS, I32, I64, NO_ID

EXACT_BELOW_US = float(1 << 43)          # a double holds nanoseconds of microsecond counts up to here


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
                exact = decode_exact(self._text) if self._text else []
            except (msgspec.MsgspecError, UnicodeDecodeError):
                exact = []
            if len(exact) == len(self._batch):
                self._stamps = {id(e): stamp for e, stamp in zip(self._batch, exact, strict=True)}
        return self._stamps


@dataclass(slots=True)
class Columns:
    """Columns as lists of arrays, one a chunk."""

    category_of: dict[type, str]
    names: _Ids = field(default_factory=_Ids)
    threads: _Ids = field(default_factory=_Ids)
    op_args: _Ids = field(default_factory=_Ids)
    collectives: _Ids = field(default_factory=_Ids)
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
        args = [e.args or AnyFields() for e in group]
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
        out["collective"].append(self._collectives(args))

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
            out["args"].append(self._arguments(group))


    def _arguments(self, group: list[Event]) -> I32:
        """Numbers of the operators' argument texts; -1 where none were recorded."""
        first = next((e.args for e in group if e.args is not None), None)
        if not hasattr(first, "dims"):
            return np.full(len(group), -1, np.int32)
        ids, nothing = self.op_args, (b"", b"", b"", b"")
        texts = [
            nothing if (a := e.args) is None
            else (bytes(a.dims or a.dims_2021), bytes(a.types), bytes(a.strides), bytes(a.concrete))
            for e in group
        ]
        self.saw_shapes = self.saw_shapes or texts.count(nothing) < len(texts)
        return np.fromiter([-1 if text is nothing or text == nothing else ids[text] for text in texts], np.int32,
                           len(texts))

    def _collectives(self, args: list[Any]) -> I32:
        """Numbers of what communication kernels say of their collectives; -1 where they say nothing."""
        if [a.collective for a in args].count(None) == len(args):
            return np.full(len(args), -1, np.int32)
        ids = self.collectives
        return np.array([
            -1 if not isinstance(a.collective, str) else ids[(
                a.collective, a.dtype if isinstance(a.dtype, str) else "", _count(a.elements_in),
                _count(a.elements_out), _count(a.group_size), str(a.group) if a.group is not None else "",
                a.ranks if isinstance(a.ranks, str) else "",
            )]
            for a in args
        ], np.int32)


def _count(value: Any) -> int:
    return max(_id(value), 0)


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


