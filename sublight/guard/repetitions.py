"""This file knows about repetitions of one device that can be compared with those of another run.

    steps     ├─ first … last ─┤      ├─ first … last ─┤      ├─ first … last ─┤
    compared  ├───────────────────────┼────────────────────────┤          from the start of one to that of the next: the
                                                                          pause between them is part of it
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

from sublight.explain import View
from sublight.explain.steps import Steps, repetitions_on

UNLIKE = 1.5                             # times longer or shorter than the median: set apart, no typical step


@dataclass(frozen=True, slots=True)
class Kept:
    """windows: disjoint, ns, in order. apart: repetitions of other length. words: how they are known."""

    windows: tuple[tuple[int, int], ...]
    apart: int
    words: str
    with_pause: bool                     # does each end where the next one begins?


def kept(view: View) -> Kept:
    """The repetitions of a device. Where it holds one step only, its window; where steps cannot be told, its span."""
    known = Steps(view.step_kind, view.steps, view.window_reason)
    if view.window != "step":            # marks that cannot be trusted: steps may be found all the same
        known = Steps(None, (), view.window_reason) if view.cpu_only else repetitions_on(view.trace, int(view.device))
        if not known.steps:
            return Kept((view.timeline.span,), 0, f"its whole span: {view.window_reason}", False)
    windows = [step.window for step in known.steps if step.window is not None and step.window[0] < step.window[1]]
    if not windows:
        return Kept((view.timeline.span,), 0, "its whole span: its steps hold nothing that lasts", False)
    if known.found:
        whole = windows if windows[-1][1] < view.timeline.span[1] else windows[:-1]   # else the last has no known pause
    else:
        whole = [(a[0], b[0]) for a, b in pairwise(windows) if b[0] > a[0]]
    if not whole:
        return Kept((windows[0],), 0, known.words, False)
    usual = median_low(end - start for start, end in whole)
    like = tuple(w for w in whole if usual <= UNLIKE * (w[1] - w[0]) and w[1] - w[0] <= UNLIKE * usual)
    return Kept(like, len(whole) - len(like), known.words, True)
