"""This file knows about which kernels of several ranks carry out one collective.

    rank 0    A  A  S  A  A            one lane: the kernels of a process group, or of a stream, in order
    rank 1       A  S  A  A  A         recorded a little later: the same order, shifted
    matched      └──┴──┴──┘            what only some ranks show has no partner

The process group is used where the kernel's record names it, else the stream. Kernels are told apart by the
collective's name, type and sizes, else by the kernel's name and grid.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sublight.explain.columns import present
from sublight.explain.view import View
from sublight.observe.kernel_name import classify
from sublight.trace import I64, KERNEL, B, Collective, Trace

SHIFTS_TRIED = 4_000
SAMPLES = 512                    # of end differences that judge a shift
STEADY_NS = 20_000               # ends this near to the median difference keep their distance
ABOUT_AS_GOOD = 0.8
STRAY_NS = 100_000               # a pair this far from the median of its lane is looked for again by time

KINDS = tuple((kind, re.compile(pattern)) for kind, pattern in (
    ("all-reduce", r"allreduce|crossdevicereduce|oneshot|twoshot"),
    ("all-gather", r"allgather"),
    ("reduce-scatter", r"reducescatter"),
    ("all-to-all", r"alltoall|all2all"),
    ("barrier", r"barrier|notify"),
    ("send/recv", r"sendrecv"),
    ("broadcast", r"broadcast|bcast"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
    ("reduce", r"reduce"),
    ("point to point", r"^send|^recv|p2p"),
))
# No rank can leave before the last one came. The rest may, or may concern two ranks only.
SYNCHRONISE = frozenset(("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier"))
DO_NOT_SYNCHRONISE = frozenset(("broadcast", "gather", "scatter", "reduce", "point to point"))
SAME_SIZE_EVERYWHERE = re.compile(r"allreduce|_base$|tensor")

NO_PARTNER = "no partner on the other ranks"
NOT_SYNCHRONISING = "broadcasts and the like, which do not wait for every rank"
ENDS_DISAGREE = "ends disagree: point to point?"
TOO_MANY_RANKS = "more ranks show this process group than it has"

Key = tuple[str, str]            # ("group", number) or ("stream", number)


@dataclass(frozen=True, eq=False, slots=True)
class Lane:
    """One rank's communication kernels of one process group or stream, in start order. Columns: kernels."""

    key: Key
    size: int                    # of the group; 0 if unknown
    rows: I64                    # into Trace.activities
    token: I64                   # equal where the kernels may be one collective
    firm: B                      # of a kind that synchronises
    end_ns: I64
    step: I64                    # number of the marked step that it runs in, -1 if none


@dataclass(frozen=True, eq=False, slots=True)
class Matched:
    """The collectives of one lane that all its ranks show, in order. Shapes: rows (collectives, members)."""

    key: Key
    size: int
    members: tuple[int, ...]
    rows: I64
    firm: B


@cache
def kind_of(name: str) -> str | None:
    """What a collective's or a kernel's name says that it does; None if it does not say.

    >>> kind_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'all-reduce'
    """
    plain = re.sub(r"[^a-z0-9]", "", name.split("(")[0].lower().replace("nccl", ""))
    return next((kind for kind, pattern in KINDS if pattern.search(plain)), None)


def what(trace: Trace, row: int) -> tuple[str | None, str]:
    """(kind, name) of the collective that a communication kernel belongs to."""
    a = trace.activities
    name = trace.names[int(a.name[row])]
    recorded = trace.collectives[int(a.collective[row])].name if a.collective[row] >= 0 else ""
    known = classify(name)
    kind = (kind_of(recorded) if recorded else None) or kind_of(known.name)
    return (kind or ("barrier" if known.category == "communication: wait" else None)), recorded or known.short


def lanes_of(view: View, tokens: dict[Any, int], steps: dict[str, int]) -> tuple[list[Lane], Counter[str]]:
    """The lanes of a device, and how many of its communication kernels are in none, by reason.

    `tokens` and `steps` number what is found; they are shared by the ranks of a run.
    """
    trace, a = view.trace, view.trace.activities
    of_name = np.zeros(len(trace.names) + 1, bool)
    names = present(a.name[a.kind == KERNEL])
    of_name[[i for i in names if classify(trace.names[i]).category.startswith("communication")]] = True
    rows = np.flatnonzero(of_name[a.name] & (a.kind == KERNEL) & (a.device == view.device))
    step = _steps(view, a.ts_ns[rows], steps)
    kinds: dict[tuple[int, int], str | None] = {}
    members: dict[tuple[Key, int], list[tuple[int, int, bool, int]]] = {}
    left_out: Counter[str] = Counter()
    for at, row in enumerate(rows.tolist()):
        seen = (int(a.name[row]), int(a.collective[row]))
        if seen not in kinds:
            kinds[seen] = what(trace, row)[0]
        kind = kinds[seen]
        if kind in DO_NOT_SYNCHRONISE:
            left_out[NOT_SYNCHRONISING] += 1
            continue
        c = trace.collectives[seen[1]] if seen[1] >= 0 else None
        grouped = c is not None and c.group != ""
        key = ("group", c.group) if c and grouped else ("stream", str(int(a.stream[row])))
        token = _token(trace, row, c, kind)
        entry = (row, tokens.setdefault(token, len(tokens)), kind in SYNCHRONISE, int(step[at]))
        members.setdefault((key, c.group_size if c and grouped else 0), []).append(entry)
    lanes = []
    for (key, size), entries in members.items():
        row_, token_, firm_, step_ = (np.array(column) for column in zip(*entries, strict=True))
        lanes.append(Lane(key, size, row_.astype(np.int64), token_.astype(np.int64), firm_, a.end_ns[row_], step_))
    return lanes, left_out


def _token(trace: Trace, row: int, c: Collective | None, kind: str | None) -> tuple[Any, ...]:
    if c is not None and c.name:
        sized = kind != "all-to-all" and SAME_SIZE_EVERYWHERE.search(c.name)
        return (c.name, c.dtype, c.elements_in, c.elements_out) if sized else (c.name, c.dtype)
    name = trace.names[int(trace.activities.name[row])]
    # How many blocks exchange depends on what a rank sends to whom.
    return (name, *trace.activities.grid[row].tolist()) if kind in SYNCHRONISE else (name,)


def _steps(view: View, ts_ns: I64, steps: dict[str, int]) -> I64:
    """The number of the step that each kernel starts in, where steps carry numbers that ranks agree on."""
    out = np.full(len(ts_ns), -1, np.int64)
    if view.step_kind == "torch.profiler schedule":
        for s in view.steps:
            if s.window is not None:
                out[(ts_ns >= s.window[0]) & (ts_ns < s.window[1])] = steps.setdefault(s.label, len(steps))
    return out


def match(views: Sequence[View]) -> tuple[tuple[Matched, ...], tuple[Counter[str], ...]]:
    """The collectives that ranks have in common, by lane; and for each rank its kernels in none, by reason."""
    tokens: dict[Any, int] = {}
    steps: dict[str, int] = {}
    found = [lanes_of(view, tokens, steps) for view in views]
    alone = tuple(left_out for _, left_out in found)
    together: dict[tuple[Key, int], dict[int, Lane]] = {}
    for member, (lanes, _) in enumerate(found):
        for lane in lanes:
            if lane.key[0] == "group":
                together.setdefault((lane.key, lane.size), {})[member] = lane
    for key, streams in _same_streams([[x for x in lanes if x.key[0] == "stream"] for lanes, _ in found]).items():
        together[key, 0] = streams
    out = []
    for (key, size), by_member in together.items():
        crowded = 0 < size < len(by_member)
        matched = None if crowded else _matched(key, size, by_member)
        for member, lane in by_member.items():
            lost = len(lane.rows) - (len(matched.rows) if matched else 0)
            alone[member][TOO_MANY_RANKS if crowded else NO_PARTNER] += lost
        if matched is not None and len(matched.rows):
            out.append(matched)
    return tuple(out), tuple(+counter for counter in alone)


def _same_streams(lanes: list[list[Lane]]) -> dict[Key, dict[int, Lane]]:
    """Streams that correspond: the same number where it runs alike kernels, else the stream most alike."""
    out: dict[Key, dict[int, Lane]] = {}
    models: dict[Key, Counter[int]] = {}
    for member, streams in enumerate(lanes):
        free = {lane.key: lane for lane in streams}
        counts = {key: Counter(lane.token.tolist()) for key, lane in free.items()}
        for key, model in models.items():
            alike = {k: (model & counts[k]).total() for k in free}
            best = key if alike.get(key) else max(alike, key=lambda k: alike[k], default=None)
            if best is not None and alike[best]:
                out[key][member] = free.pop(best)
        for key, lane in free.items():
            taken = key in out
            new = (key[0], f"{key[1]} (of {member})") if taken else key
            out[new], models[new] = {member: lane}, counts[key]
    return out


def _matched(key: Key, size: int, by_member: dict[int, Lane]) -> Matched | None:
    if len(by_member) < 2:
        return None
    members = tuple(sorted(by_member))
    longest = max(members, key=lambda m: (len(by_member[m].rows), -m))
    model = by_member[longest]
    rows = np.full((len(model.rows), len(members)), -1, np.int64)
    for column, member in enumerate(members):
        i, j = pairs(model, by_member[member]) if member != longest else (np.arange(len(rows)),) * 2
        rows[i, column] = by_member[member].rows[j]
    complete = (rows >= 0).all(axis=1)
    return Matched(key, size, members, rows[complete], model.firm[complete])


def pairs(a: Lane, b: Lane) -> tuple[I64, I64]:
    """Positions in `a` and in `b` that are one collective, in order."""
    i, j = _shifted(a, b)
    if not len(i):
        i, j = _common_ends(a.token, b.token)
    off = b.end_ns[j] - a.end_ns[i]
    if not len(off):
        return i, j
    middle = int(np.sort(off)[len(off) // 2])       # exact: doubles would lose nanoseconds
    agreeing = int((np.abs(off - middle) <= STRAY_NS).sum())
    if agreeing == min(len(a.rows), len(b.rows)):
        return i, j
    by_time = _nearest(a, b, middle)
    return by_time if len(by_time[0]) > agreeing else (i, j)


def _shifted(a: Lane, b: Lane) -> tuple[I64, I64]:
    """The best shift under which the lanes agree wherever both have kernels: most ends that keep their distance; of
    shifts about as good, equal steps, then the longest overlap, then clocks that differ least."""
    n, m = len(a.rows), len(b.rows)
    least = (min(n, m) + 1) // 2
    shifts = sorted(range(least - m, n - least + 1), key=lambda s: min(abs(s), abs(s - (n - m))))[:SHIFTS_TRIED]
    tried = []
    for shift in shifts:
        low, high = max(shift, 0), min(n, shift + m)
        here, there = slice(low, high), slice(low - shift, high - shift)
        if not np.array_equal(a.token[here], b.token[there]):
            continue
        every = slice(None, None, (high - low) // SAMPLES + 1)
        off, firm = (b.end_ns[there][every] - a.end_ns[here][every]), a.firm[here][every]
        off = off[firm] if firm.sum() >= 3 else off
        middle = int(np.sort(off)[len(off) // 2])
        steady = float((np.abs(off - middle) <= STEADY_NS).mean()) * (high - low)
        mine, other = a.step[here][every], b.step[there][every]
        same = np.where(mine == other, 1, -1)[(mine >= 0) & (other >= 0)].sum()
        tried.append((steady, (int(same), high - low, -abs(middle)), shift))
    if not tried:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    most = max(steady for steady, _, _ in tried)
    shift = max((t for t in tried if t[0] >= ABOUT_AS_GOOD * most), key=lambda t: t[1])[2]
    i = np.arange(max(shift, 0), min(n, shift + m))
    return i, i - shift


def _common_ends(a: I64, b: I64) -> tuple[I64, I64]:
    """The longest common beginning, and of the rest the longest common end."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    head = int(differ[0]) if len(differ) else n
    differ = np.flatnonzero(a[::-1][: n - head] != b[::-1][: n - head])
    tail = int(differ[0]) if len(differ) else n - head
    return (np.concatenate([np.arange(head), np.arange(len(a) - tail, len(a))]),
            np.concatenate([np.arange(head), np.arange(len(b) - tail, len(b))]))


def _nearest(a: Lane, b: Lane, offset_ns: int) -> tuple[I64, I64]:
    """Kernels that end together, given the difference of the clocks: each the other's nearest."""
    def nearest(to: I64, among: I64) -> I64:
        order = np.argsort(among, kind="stable")
        ordered = among[order]
        right = np.clip(np.searchsorted(ordered, to), 0, len(ordered) - 1)
        left = np.maximum(right - 1, 0)
        out: I64 = order[np.where(np.abs(ordered[left] - to) <= np.abs(ordered[right] - to), left, right)]
        return out

    ends = b.end_ns - offset_ns
    j = nearest(a.end_ns, ends)
    i = np.arange(len(a.rows))
    keep = (nearest(ends, a.end_ns)[j] == i) & (a.token == b.token[j]) & (np.abs(ends[j] - a.end_ns) <= STRAY_NS)
    return i[keep], j[keep]
