"""This file knows about results of two sides: which belong together, and whether B's are better, the same or worse.

    compare(a, b)      a verdict for each quantity that both sides measured of the same work
    steps(a, b)        one of the steps of two recorded runs
    recordings(a, b)   one of the steps of several recordings of each side

A Result is one run. What its samples tell of each other says nothing of how far runs lie apart: where a side has one
run only, the interval is widened by what is known of that (catalog/verdicts.toml), and without such knowledge no run
tells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sublight.errors import InputError
from sublight.explain.words import number
from sublight.guard.judge import judge
from sublight.guard.noise import Allowance, allowance
from sublight.guard.typical import Typical
from sublight.result import Result
from sublight.verdict import Verdict

LOWER = {"s"}                            # units of which less is better; Result.name decides where it stands in NAMED
HIGHER = {"1/s", "tokens/s", "FLOP/s", "B/s"}
NAMED = {"acceptance length": False, "MFU": False, "KV cache": False, "memory": True}   # is less better?
WORK = ("concurrency", "rate", "all_at_once", "requests", "dataset", "nominal_isl", "nominal_osl", "seq", "gbs")
LENGTHS = ("isl", "osl")                 # means: they may differ a little from run to run
SAME_LENGTH = 0.02
JUDGED_PERCENTILES = (50.0, 99.0)


@dataclass(frozen=True, slots=True)
class Noted:
    """One quantity of one side: its runs in the order of the file."""

    runs: tuple[Result, ...]

    @property
    def held(self) -> tuple[Result, ...]:
        return tuple(run for run in self.runs if run.samples)

    def values(self) -> np.ndarray:
        """One a run: the mean of its samples."""
        return np.array([math.fsum(run.samples) / len(run.samples) for run in self.held])

    def percentiles(self, at: float) -> np.ndarray | None:
        """One a run; None where a run does not say it."""
        said = [run.percentiles.get(at) for run in self.held]
        return None if any(value is None for value in said) else np.array(said, float)

    def times(self) -> list[float] | None:
        """When each run started, as `about["started"]` says; None where it does not."""
        said = [run.about.get("started") for run in self.held]
        return [float(t) for t in said if t is not None] if all(isinstance(t, int | float) for t in said) else None


Key = tuple[str, str, str, str]          # name, unit, variant, message


def compare(
    a: Sequence[Result], b: Sequence[Result], *, practical: float | None = None, confidence: float | None = None,
    paired: bool = False,
) -> tuple[Verdict, ...]:
    """A verdict for each quantity that both sides measured and of which one side can be the better one, in A's order.

    practical: the share from which a change matters. paired: run i of B was made beside run i of A; pairs are also
    taken where `about["started"]` tells that runs of both sides alternated. Raises InputError where nothing of both
    can be compared.
    """
    of_a, of_b = _grouped(a), _grouped(b)
    out: list[Verdict] = []
    for key in (key for key in of_a if key in of_b and _lower_is_better(key) is not None):
        out += _of_key(key, of_a[key], of_b[key], practical, confidence, paired)
    if not out:
        names = " and ".join(", ".join(sorted({key[0] for key in side})) or "nothing" for side in (of_a, of_b))
        raise InputError(f"expected results of the same quantity on both sides; got {names}")
    return tuple(out)


def _grouped(results: Sequence[Result]) -> dict[Key, Noted]:
    groups: dict[Key, list[Result]] = {}
    for r in results:
        groups.setdefault((r.name, r.unit, r.variant, repr(r.message) if r.message else ""), []).append(r)
    return {key: Noted(tuple(runs)) for key, runs in groups.items()}


def _lower_is_better(key: Key) -> bool | None:
    """None: more of it is neither good nor bad, as of requests that run."""
    name, unit, _, _ = key
    return NAMED.get(name, True if unit in LOWER else False if unit in HIGHER else None)


def _of_key(
    key: Key, a: Noted, b: Noted, practical: float | None, confidence: float | None, paired: bool,
) -> list[Verdict]:
    """Runs of the same work against each other, work by work."""
    by_a, by_b = _by_work(a), _by_work(b)
    both = [work for work in by_a if work in by_b]
    if not both:
        return [_of_other_work(key, next(iter(by_a)), next(iter(by_b)))]
    out = []
    for work in both:
        said = ", ".join(_said(name, value) for name, value in work) if len({*by_a, *by_b}) > 1 else ""
        out += _of_work(key, by_a[work], by_b[work], said, practical, confidence, paired)
    return out


Work = tuple[tuple[str, Any], ...]


def _by_work(side: Noted) -> dict[Work, Noted]:
    groups: dict[Work, list[Result]] = {}
    for run in side.runs:
        work = tuple((name, run.about[name]) for name in WORK if isinstance(run.about.get(name), str | int | float))
        groups.setdefault(work, []).append(run)
    return {work: Noted(tuple(runs)) for work, runs in groups.items()}


def _said(name: str, value: Any) -> str:
    return name.replace("_", " ") if value is True else f"{name.replace('_', ' ')} {value:g}" \
        if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"


def _of_other_work(key: Key, a: Work, b: Work) -> Verdict:
    there, here = dict(a), dict(b)
    differs = [f"{_said(name, there.get(name, 'not said'))} against {here.get(name, 'not said')}"
               for name in WORK if there.get(name) != here.get(name)]
    return Verdict("cannot tell", _titled(key), 0.0, -1.0, math.inf, bool(_lower_is_better(key)), "not compared",
                   (f"not the same work: {', '.join(differs)}",))


def _titled(key: Key, percentile: float | None = None) -> str:
    name, _, variant, _ = key
    return " ".join(part for part in (name, f"p{percentile:g}" if percentile is not None else "", variant) if part)


def _of_work(
    key: Key, a: Noted, b: Noted, work: str, practical: float | None, confidence: float | None, paired: bool,
) -> list[Verdict]:
    lower = bool(_lower_is_better(key))
    name = _titled(key) + (f" ({work})" if work else "")
    if not a.held or not b.held:
        return [_of_failure(name, a, b, lower)]
    pairs, order = _order(a, b, paired)
    notes = [note for note in (order, *_other_lengths(a, b), *_lost(a, b)) if note]
    known = allowance(key[0])
    if len(a.held) == len(b.held) == 1:
        sides = [np.array(side.held[0].samples) for side in (a, b)]
        return [judge(*sides, quantity=name, unit=key[1], lower_is_better=lower, allowed=known, one_run=True,
                      practical=practical, confidence=confidence, evidence=notes)]
    out = [judge(a.values(), b.values(), quantity=name, unit=key[1], lower_is_better=lower, allowed=known,
                 paired=pairs, practical=practical, confidence=confidence, evidence=notes)]
    for at in JUDGED_PERCENTILES:
        left, right = a.percentiles(at), b.percentiles(at)
        if left is not None and right is not None and min(len(left), len(right)) > 1:
            title = _titled(key, at) + (f" ({work})" if work else "")
            out.append(judge(left, right, quantity=title, unit=key[1], lower_is_better=lower, allowed=known,
                             paired=pairs, practical=practical, confidence=confidence, evidence=notes))
    return out


def _of_failure(name: str, a: Noted, b: Noted, lower: bool) -> Verdict:
    """A side that measured nothing. What failed is worse than what did not, by no figure."""
    said = tuple(f"{side} failed: {noted.runs[0].failure or 'no samples'}"
                 for side, noted in (("A", a), ("B", b)) if not noted.held)
    if bool(a.held) == bool(b.held):
        return Verdict("cannot tell", name, 0.0, -1.0, math.inf, lower, "both failed", said)
    change = math.inf if lower == bool(a.held) else -1.0
    return Verdict("worse" if a.held else "better", name, change, change, change, lower, "one side failed", said)


def _lost(a: Noted, b: Noted) -> list[str]:
    return [f"{number(len(noted.runs) - len(noted.held), 'run')} of {side} failed and {verb} left out"
            for side, noted in (("A", a), ("B", b)) if (lost := len(noted.runs) - len(noted.held))
            for verb in ("is" if lost == 1 else "are",)]


def _other_lengths(a: Noted, b: Noted) -> list[str]:
    """Runs of other lengths do other work, whatever their settings say."""
    out = []
    for name in LENGTHS:
        means = [[run.about[name] for run in side.held if isinstance(run.about.get(name), int | float)]
                 for side in (a, b)]
        if all(means):
            left, right = (math.fsum(part) / len(part) for part in means)
            if abs(left - right) > SAME_LENGTH * max(left, right):
                out.append(f"not quite the same work: {name} {left:,.0f} against {right:,.0f}")
    return out


def _order(a: Noted, b: Noted, paired: bool) -> tuple[bool, str]:
    """May runs be taken as pairs, and what the order in which they ran says."""
    if paired:
        if len(a.held) != len(b.held):
            raise InputError(f"pairs expected, got {len(a.held)} runs of A and {len(b.held)} of B")
        return True, "run i of A and run i of B are a pair"
    at_a, at_b = a.times(), b.times()
    if not at_a or not at_b or len(at_a) + len(at_b) < 3:
        return False, ""
    if max(at_a) < min(at_b) or max(at_b) < min(at_a):
        return False, "all runs of one side came first: a drift of the machine would look like a change"
    ranked = sorted([(t, 0) for t in at_a] + [(t, 1) for t in at_b])
    sides = [side for _, side in ranked]
    in_turn = len(at_a) == len(at_b) and all(sides[i] != sides[i + 1] for i in range(0, len(sides), 2))
    ordered = all(times == sorted(times) for times in (at_a, at_b))
    return in_turn and ordered, "runs of A and B took turns" if in_turn else "runs of A and B are mixed in time"


# ---- steps of recorded runs


def steps(a: Typical, b: Typical, *, practical: float | None = None, confidence: float | None = None) -> Verdict:
    """Of the steps of two recorded runs, one recording each. Ranks step together: a step of several devices counts as
    one, as long as the slowest."""
    return judge(_steps_of(a), _steps_of(b), quantity="step time", unit="s", one_run=True, allowed=_allowed([a, b]),
                 practical=practical, confidence=confidence)


def _allowed(runs: Sequence[Typical]) -> Allowance | None:
    return allowance("CPU step time" if any(m.view.cpu_only for run in runs for m in run.members) else "step time")


def _steps_of(run: Typical) -> np.ndarray:
    """Seconds, in order."""
    windows: Sequence[Sequence[tuple[int, int]]] = [m.kept.windows for m in run.members if m.kept.windows]
    if len({len(rows) for rows in windows}) == 1:
        return np.array([max(end - start for start, end in step) for step in zip(*windows, strict=True)]) / 1e9
    return np.array([end - start for rows in windows for start, end in rows]) / 1e9


def recordings(
    a: Sequence[Typical], b: Sequence[Typical], *, paired: bool = False, practical: float | None = None,
    confidence: float | None = None,
) -> Verdict:
    """Of several recordings of each side, each a run of its own: its value is its mean step. paired: recording i of B
    was made beside recording i of A."""
    if paired and len(a) != len(b):
        raise InputError(f"pairs expected, got {number(len(a), 'recording')} of A and {len(b)} of B")
    sides = [[float(_steps_of(run).mean()) for run in side] for side in (a, b)]
    return judge(*sides, quantity="step time", unit="s", paired=paired, allowed=_allowed([*a, *b]),
                 practical=practical, confidence=confidence,
                 evidence=("recording i of A and recording i of B are a pair",) if paired else ())


def summary(verdicts: Sequence[Verdict]) -> Mapping[str, int]:
    """How many of each state."""
    return {state: count for state in ("worse", "better", "same", "cannot tell")
            if (count := sum(v.state == state for v in verdicts))}
