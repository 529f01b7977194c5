"""SL205: in a CPU-only trace, a thread that runs no operator for long, step after step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sublight.budget import OUTSIDE_OPS, PART_INDEX
from sublight.explain.columns import joined
from sublight.explain.view import View, inside
from sublight.explain.words import ms, number, of_window
from sublight.finding import Finding

CODE, TITLE = "SL205", "the host stalls between operators"
SMALLEST_SHARE = 0.02
THE_START, THE_END = "the start", "the end"


def find(view: View) -> Iterable[Finding]:
    """Fires where gaps between the same two operators take 2 % of the window."""
    if not view.cpu_only:
        return
    line = view.timeline
    idle = np.flatnonzero(line.owner == PART_INDEX[OUTSIDE_OPS])
    gaps: dict[tuple[str, str], list[int]] = {}
    ops = view.trace.ops
    mine = np.flatnonzero(ops.thread == ops.thread[view.rows[0]]) if len(view.rows) else idle[:0]
    starts = ops.ts_ns[mine]
    ends_order = mine[np.argsort(ops.end_ns[mine], kind="stable")]
    ends = ops.end_ns[ends_order]
    lows, highs = joined(line.edges_ns[idle], line.edges_ns[idle + 1])
    for low, high, ns in zip(lows, highs, inside(lows, highs, view.windows).tolist(), strict=True):
        if not ns:
            continue
        before, after = np.searchsorted(ends, low, "right") - 1, np.searchsorted(starts, high, "left")
        pair = (view.trace.names[ops.name[ends_order[before]]] if before >= 0 else THE_START,
                view.trace.names[ops.name[mine[after]]] if after < len(mine) else THE_END)
        gaps.setdefault(pair, []).append(ns)
    for (before_name, after_name), lengths in sorted(_with_the_ends(gaps).items(), key=lambda kv: -sum(kv[1])):
        total = sum(lengths)
        if view.share(total) < SMALLEST_SHARE:
            break
        per_step = f", {len(lengths) / len(view.steps):g} a step" if view.steps else ""
        yield Finding(
            CODE, TITLE,
            f"no operator runs for {of_window(view, total)} between {before_name} and {after_name}",
            (f"{number(len(lengths), 'gap')}{per_step}: median {ms(float(np.median(lengths)))}, "
             f"shortest {ms(min(lengths))}, longest {ms(max(lengths))}",),
            "Look at what Python does there: data loading, sleeping, locks, input and output, logging",
            "high", total,
            ("the file shows that no operator runs, not what runs instead: record with_stack=True to see it",),
        )


def _with_the_ends(gaps: dict[tuple[str, str], list[int]]) -> dict[tuple[str, str], list[int]]:
    """The gap before the first operator, or after the last, belongs with the gaps that share its other side: a stall
    between steps is cut there by the recording."""
    out = {pair: list(lengths) for pair, lengths in gaps.items()}
    for pair in ((b, a) for b, a in gaps if b == THE_START or a == THE_END):
        side = 1 if pair[0] == THE_START else 0
        like = [p for p in out if p != pair and p[side] == pair[side] and THE_START not in p and THE_END not in p]
        if like:
            out[max(like, key=lambda p: sum(out[p]))] += out.pop(pair)
    return out
