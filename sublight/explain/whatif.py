"""This file knows about what-ifs: what a window would gain if some of its work took less time.

    gemm=2x                   a category's kernels, twice as fast
    attention=bound           each kernel at its bound, where that is known
    kernel:flash_fwd=1.5x     kernels whose name contains the text
    communication=hidden      beside compute: only communication waits for communication
    communication=0           takes no time
    launch=0                  launch latency and host work between waiting calls take no time
    gemm=2x,launch=0          several at once
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from sublight.budget import COMMUNICATION, COMPUTE, EXPOSED_COPIES, PART_INDEX
from sublight.errors import InputError
from sublight.explain.columns import present
from sublight.explain.critical import HOST, critical_path
from sublight.explain.dependencies import Dependencies, dependencies, is_kernel
from sublight.explain.play import Change, hide, play
from sublight.explain.replay import Replay, replay
from sublight.explain.view import View
from sublight.explain.words import cut, percent, recording_caveats
from sublight.observe.kernel_name import classify
from sublight.trace import I64, B

GROUPS: dict[str, tuple[str, ...]] = (
    {name: (name,) for name in COMPUTE}
    | {"compute": COMPUTE, "communication": tuple(COMMUNICATION.values()), "copies": (EXPOSED_COPIES,)}
    | {name: (part,) for name, part in COMMUNICATION.items() if name != "communication"}
)
GRAMMAR = ("expected <category>=2x, <category>=bound, <category>=0, kernel:NAME=2x, communication=hidden or launch=0; "
           "several are joined by commas")


@dataclass(frozen=True, slots=True)
class Term:
    """One change. how: "faster", "bound", "hidden" or "free" (the host's launches)."""

    text: str
    target: str                        # category, "kernel:NAME" or "launch"
    how: str
    speed: Fraction | None = None      # of "faster"; None: takes no time


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What a change would gain. Gains are None, and `refused` says why, where the replay does not support any."""

    text: str
    gain_ns_low: int | None
    gain_ns_high: int | None
    replayed_ns: int                   # of the changed window, without unexplained delays
    error: float                       # of the unchanged window's replay
    next_limit: str                    # "gemm, 43.1 % of the critical path"; empty where refused
    refused: str | None
    critical: Mapping[str, int]        # part -> ns on the changed window's critical path, largest first
    caveats: tuple[str, ...] = ()


def parse(text: str) -> tuple[Term, ...]:
    """Raises InputError, naming the nearest options, unless every part of the text is a known change."""
    pieces: list[str] = []
    for piece in text.split(","):              # kernel names may hold commas: a piece without "=" belongs to the next
        if pieces and "=" not in pieces[-1]:
            pieces[-1] += "," + piece
        else:
            pieces.append(piece)
    return tuple(_term(piece.strip()) for piece in pieces)


def _term(text: str) -> Term:
    target, _, value = (side.strip() for side in text.rpartition("="))
    if not target or not value:
        raise InputError(f"no what-if '{cut(text, 60)}': {GRAMMAR}")
    known = target in GROUPS or target == "launch" or (target.startswith("kernel:") and len(target) > 7)
    if not known:
        near = difflib.get_close_matches(target, [*GROUPS, "launch", "kernel:NAME"], 3, 0.4)
        raise InputError(f"no what-if for '{cut(target, 60)}'; nearest: {', '.join(near)}" if near else
                         f"no what-if for '{cut(target, 60)}'; one of {', '.join([*GROUPS, 'launch', 'kernel:NAME'])}")
    if target == "launch":
        if value != "0":
            raise InputError(f"no what-if '{cut(text, 60)}'; nearest: launch=0")
        return Term(text, target, "free")
    if value == "0":
        return Term(text, target, "faster")
    if value == "bound":
        return Term(text, target, "bound")
    if value == "hidden" and target == "communication":
        return Term(text, target, "hidden")
    if (found := re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)x", value)) and Fraction(found[1]) >= 1:
        return Term(text, target, "faster", Fraction(found[1]))
    near = ["2x", "bound", "0", *(["hidden"] if target == "communication" else [])]
    raise InputError(f"no what-if '{cut(text, 60)}'; nearest: {', '.join(f'{target}={v}' for v in near)} "
                     "(a factor of at least 1, such as 1.5x)")


def what_if(
    view: View, text: str, bound_ns: I64 | None = None, *, deps: Dependencies | None = None,
    base: Replay | None = None,
) -> WhatIf:
    """What the view's windows would gain if `text` (see parse) came true.

    bound_ns: per activity of the trace, its least possible duration; -1 where unknown. `deps` and `base` save
    computing what several what-ifs share. Raises InputError for unknown text, for a kernel name that nothing in the
    window has, and for a CPU-only trace.

    Gain: the window is played before and after the change, once without unexplained delays and once with them. The
    range holds both differences, each widened by the replay's relative error.
    """
    terms = parse(text)
    deps = dependencies(view) if deps is None else deps
    base = replay(view, deps=deps) if base is None else base
    lengths, unknown, notes = _lengths(view, deps, terms, bound_ns)
    how = {term.how for term in terms}
    changed = hide(deps) if "hidden" in how else deps
    change = Change(lengths, free_host="free" in how)
    without = play(changed, change)
    critical = critical_path(changed, change, without)
    refused = base.refused or unknown
    low = high = None
    if refused is None:
        gains = (base.replayed_ns - without.total_ns, base.measured_ns - play(changed, change, delays=True).total_ns)
        error = Fraction(abs(base.replayed_ns - base.measured_ns), max(base.measured_ns, 1))
        low, high = math.floor(min(gains) * (1 - error)), math.ceil(max(gains) * (1 + error))
        if not how & {"hidden", "free"}:               # shorter kernels save no more than they are shorter
            shorter = int((deps.end_ns - deps.start_ns - lengths).sum())
            low, high = min(low, shorter), min(high, shorter)
    return WhatIf(
        text=text, gain_ns_low=low, gain_ns_high=high, replayed_ns=without.total_ns, error=base.error,
        next_limit=limit(critical) if refused is None else "", refused=refused, critical=critical,
        caveats=(*notes, *_caveats(view, deps, terms, critical)),
    )


def limit(critical: Mapping[str, int]) -> str:
    """The part that most of a critical path is made of, and its share."""
    total = sum(critical.values())
    if not total:
        return "nothing"
    part, ns = next(iter(critical.items()))
    return f"{part}, {percent(ns / total)} of the critical path"


def _lengths(
    view: View, deps: Dependencies, terms: tuple[Term, ...], bound_ns: I64 | None
) -> tuple[I64, str | None, list[str]]:
    """(each node's changed duration, why the change cannot be told or None, caveats). Of several changes that
    reach one node, the one that helps most."""
    measured = deps.end_ns - deps.start_ns
    whole = np.maximum(view.trace.activities.dur_ns[deps.activity], 1)     # a node may be an activity's part
    out = measured.copy()
    refused: str | None = None
    notes = []
    for term in terms:
        if term.how in ("hidden", "free"):
            continue
        chosen = _chosen(view, deps, term.target)
        total = int(measured[chosen].sum())
        if not chosen.any():
            notes.append(f"{term.target}: nothing in this window is of that kind")
        if term.how == "faster":
            num, den = (1, term.speed) if term.speed is not None else (0, Fraction(1))
            shorter = -(-measured * (num * den.denominator) // den.numerator)
            out[chosen] = np.minimum(out, shorter)[chosen]
            continue
        bound = np.full(len(out), -1, np.int64) if bound_ns is None else bound_ns[deps.activity]
        known = chosen & (bound >= 0)
        share = int(measured[known].sum()) / total if total else 1.0
        if not known.any() and total:
            refused = f"{cut(term.target, 60)}: no bound is known for any of its kernels"
        elif share < 1:
            notes.append(f"{cut(term.target, 60)}: a bound is known for {percent(share)} of its time; the rest stays "
                         "as measured")
        shorter = -(-measured * np.minimum(bound, whole) // whole)
        out[known] = np.minimum(out, shorter)[known]
    return out, refused, notes


def _chosen(view: View, deps: Dependencies, target: str) -> B:
    """Which nodes a category or kernel:NAME means."""
    if target in GROUPS:
        out: B = np.isin(deps.part, [PART_INDEX[part] for part in GROUPS[target]])
        return out
    wanted = target.removeprefix("kernel:").strip().lower()
    trace = view.trace
    kernels = is_kernel(deps, trace)
    name = trace.activities.name[deps.activity]
    used = present(name[kernels])
    hits = [i for i in used if wanted in classify(trace.names[i]).name.lower()]        # demangled, as it is shown
    if not hits:
        shorts = sorted({row.short for row in view.kernels if row.kind == "kernel"})
        near = difflib.get_close_matches(wanted, shorts, 3, 0.3) or [r.short for r in view.kernels[:3]]
        raise InputError(f"no kernel of this window has '{cut(wanted, 60)}' in its name; nearest: "
                         + ", ".join(cut(short, 60) for short in near))
    matching: B = kernels & np.isin(name, hits)
    return matching


def _caveats(
    view: View, deps: Dependencies, terms: tuple[Term, ...], critical: Mapping[str, int]
) -> tuple[str, ...]:
    """What the replay does not model, where it matters for these changes."""
    out = []
    if view.budget.communication.undivided_ns and deps.communication.any():
        out.append("waiting for peers inside collectives is played as if it were transfer")
    if deps.communication.any() and (view.budget.communication.hidden_ns or any(t.how == "hidden" for t in terms)):
        out.append("kernels beside communication may run slower for it; each keeps its measured duration here")
    if any(t.how == "free" for t in terms) or next(iter(critical), None) == HOST:
        out.extend(recording_caveats(view))
    return tuple(out)
