"""This file knows about two builds of the same kernels: which belongs to which, and what changed, by what it costs."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sublight.kernels.inspect.figures import Figures, kind_of, percent

NEAR = 0.75                      # names that are less alike are different kernels

# Changes by what they cost, worst first. Occupancy and spills are felt by every kernel; registers only at a cliff.
ORDER = ("tensor instructions", "spills in loops", "blocks an SM", "tensor limit", "bound by", "stack", "threads",
         "dynamic shared", "shared", "loads", "registers", "barriers", "constant", "instructions", "pipe", "name")


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one kernel. better: True, False, or None where neither can be said from the code alone."""

    what: str                    # of ORDER, or "pipe fma"
    before: str
    after: str
    better: bool | None = None

    @property
    def rank(self) -> int:
        """Lower matters more."""
        return next(at for at, name in enumerate(ORDER) if self.what == name or self.what.split()[0] == name)


@dataclass(frozen=True, slots=True)
class Pair:
    """A kernel in both builds. changes: none where every figure is the same."""

    before: Figures
    after: Figures
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Pairs with the weightiest changes first; kernels of one side alone."""

    pairs: tuple[Pair, ...]
    gone: tuple[Figures, ...]
    new: tuple[Figures, ...]


def compare(before: Sequence[Figures], after: Sequence[Figures]) -> Comparison:
    """Both builds, kernel by kernel."""
    pairs, gone, new = matched(before, after)
    found = [Pair(old, now, changes(old, now)) for old, now in pairs]
    found.sort(key=lambda pair: (*_weight(pair.changes), pair.after.name, pair.after.arch))
    return Comparison(tuple(found), tuple(gone), tuple(new))


def _weight(changed: Sequence[Change]) -> tuple[int, int]:
    """What got worse before what only changed, by its rank."""
    worst = min((change.rank for change in changed if change.better is False), default=len(ORDER))
    return worst, min((change.rank for change in changed), default=len(ORDER))


def changes(old: Figures, new: Figures) -> tuple[Change, ...]:
    """What differs, most important first. Figures that one side does not have are not compared."""
    out = [*_tensor(old, new), *_counts(old, new), *_occupancy(old, new), *_limit(old, new), *_pipes(old, new)]
    if old.name != new.name:
        out.append(Change("name", old.name, new.name))
    return tuple(sorted(out, key=lambda change: change.rank))


def _counts(old: Figures, new: Figures) -> list[Change]:
    """Numbers of which less is better, or which only differ."""
    rows = (("spills in loops", old.hot_spills, new.hot_spills, True), ("stack", old.stack, new.stack, True),
            ("threads", _threads(old), _threads(new), False), ("shared", old.shared, new.shared, False),
            ("dynamic shared", old.dynamic_shared, new.dynamic_shared, False),
            ("registers", old.registers, new.registers, False), ("barriers", old.barriers, new.barriers, False),
            ("constant", old.constant, new.constant, False),
            ("instructions", old.instructions, new.instructions, False))
    return [Change(name, str(was), str(now), now < was if judged else None)
            for name, was, now, judged in rows if was is not None and now is not None and was != now]


def _threads(kernel: Figures) -> int | None:
    return None if kernel.warps is None else 32 * kernel.warps


def _tensor(old: Figures, new: Figures) -> list[Change]:
    """Another kind of tensor-core instruction, or none any more; a count alone is an unrolling."""
    if old.instructions is None or new.instructions is None:
        return []
    out = []
    was, now = ({name for name, _ in kernel.tensor} for kernel in (old, new))
    if was != now:
        lost = {kind_of(name) for name in was} - {kind_of(name) for name in now}
        out.append(Change("tensor instructions", _list(was), _list(now), False if lost else None))
    before, after = ({name for name, _ in kernel.loads} for kernel in (old, new))
    if before != after:
        out.append(Change("loads", _list(before - after), _list(after - before)))
    return out


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _occupancy(old: Figures, new: Figures) -> list[Change]:
    if old.occupancy is None or new.occupancy is None or old.occupancy.blocks == new.occupancy.blocks:
        return []
    was, now = (f"{each.blocks} ({percent(each.share)}, {' and '.join(each.limiters)})"
                for each in (old.occupancy, new.occupancy))
    same_size = old.warps == new.warps
    return [Change("blocks an SM", was, now, new.occupancy.blocks > old.occupancy.blocks if same_size else None)]


def _limit(old: Figures, new: Figures) -> list[Change]:
    out = []
    before, after = old.tensor_limit, new.tensor_limit
    if before is not None and after is not None and abs(after - before) >= 0.005:
        out.append(Change("tensor limit", percent(before), percent(after), after > before))
    was, now = (kernel.main_loop.binds if kernel.main_loop else None for kernel in (old, new))
    if was and now and was != now:
        out.append(Change("bound by", was, now))
    return out


def _pipes(old: Figures, new: Figures) -> list[Change]:
    """Pipes whose instructions changed by more than a tenth of all."""
    if not old.instructions or not new.instructions:
        return []
    was, now = dict(old.mix), dict(new.mix)
    least = max(old.instructions, new.instructions) / 10
    return [Change(f"pipe {name}", str(was.get(name, 0)), str(now.get(name, 0)))
            for name in sorted(was.keys() | now.keys()) if abs(was.get(name, 0) - now.get(name, 0)) > least]


# ---- which belongs to which


def matched(
    before: Sequence[Figures], after: Sequence[Figures],
) -> tuple[list[tuple[Figures, Figures]], list[Figures], list[Figures]]:
    """Pairs, then those left on either side. By architecture: equal names first, in order where several share one (the
    configurations of an autotuner), then the nearest names, which compilers rename."""
    pairs: list[tuple[Figures, Figures]] = []
    gone: list[Figures] = []
    left: list[Figures] = []
    for arch in sorted({kernel.arch for kernel in (*before, *after)}):
        olds, news = ([kernel for kernel in side if kernel.arch == arch] for side in (before, after))
        mine, theirs, olds, news = _same_names(olds, news)
        pairs += zip(mine, theirs, strict=True)
        near, olds, news = _near(olds, news)
        pairs += near
        gone += olds
        left += news
    return pairs, gone, left


def _same_names(
    before: Sequence[Figures], after: Sequence[Figures],
) -> tuple[list[Figures], list[Figures], list[Figures], list[Figures]]:
    """Pairs of equal names, as two lists; then those of either side that have none. Of several with one name, those
    with the same source and launch first."""
    waiting: dict[str, list[Figures]] = defaultdict(list)
    for kernel in after:
        waiting[kernel.name].append(kernel)
    mine: list[Figures] = []
    theirs: list[Figures] = []
    olds: list[Figures] = []
    for kernel in before:
        same = waiting[kernel.name]
        if not same:
            olds.append(kernel)
            continue
        best = min(same, key=lambda other: _apart(kernel, other))
        same.remove(best)
        mine.append(kernel)
        theirs.append(best)
    return mine, theirs, olds, [kernel for rest in waiting.values() for kernel in rest]


def _apart(one: Figures, other: Figures) -> tuple[bool, int, int, int]:
    """How little two kernels of one name belong together."""
    warps, shared, registers = (abs((getattr(one, name) or 0) - (getattr(other, name) or 0))
                                for name in ("warps", "dynamic_shared", "registers"))
    return one.source != other.source, warps, shared, registers


def _near(
    olds: list[Figures], news: list[Figures],
) -> tuple[list[tuple[Figures, Figures]], list[Figures], list[Figures]]:
    """The nearest names, each kernel once."""
    scores = sorted(((_alike(old.name, new.name), i, j) for i, old in enumerate(olds) for j, new in enumerate(news)),
                    key=lambda row: (-row[0], row[1], row[2])) if len(olds) * len(news) <= 250_000 else []
    taken: dict[int, int] = {}
    for score, i, j in scores:
        if score >= NEAR and i not in taken and j not in taken.values():
            taken[i] = j
    pairs = [(olds[i], news[j]) for i, j in sorted(taken.items())]
    return (pairs, [old for i, old in enumerate(olds) if i not in taken],
            [new for j, new in enumerate(news) if j not in set(taken.values())])


def _alike(one: str, other: str) -> float:
    """1: the same but for digests and counters that compilers append (`_0d1d2de`, `_a1b2c3d4`)."""
    a, b = (re.sub(r"(_[0-9a-f]{6,}|_(?:\d+[cde]?)+)+$", "", name) for name in (one, other))
    if a == b:
        return 1.0
    matcher = difflib.SequenceMatcher(None, a[:400], b[:400], autojunk=False)
    return 0.0 if matcher.real_quick_ratio() < NEAR or matcher.quick_ratio() < NEAR else matcher.ratio()
