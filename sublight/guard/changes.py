"""This file knows about changes: what became of each kernel and each gap between two typical steps, as a partition of
their keys, so that changes sum to the difference.

    both have it, runs a step differ          more runs, fewer runs
    both have it, a run takes longer          slower, faster; kernels of one family that did so are one change
    both have it, its runs last as before     more exposed, less exposed: it owns more or less (what runs beside it)
    both have it, it owns as much             moved: in another part of the budget
    only one has it                           new, gone, or replaced where others took its place (match.py)
    idle                                      longer gap, shorter gap, before the kernel that ends it
    each too small to be shown                other
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sublight.budget import EXPOSED_COPIES, GROUPS
from sublight.guard.match import MOVED, swaps
from sublight.guard.member import Key, Member
from sublight.guard.typical import Entry, Typical
from sublight.observe.kernel_name import classify

SHOWN = 0.005                            # of the sum of all changes' sizes: a smaller one is among the others
# Student's t, 97.5 %, from one degree of freedom on; with more it is two standard errors.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
BY_DURATION = 0.5                        # of what it owns more: its own runs take longer, it is not what runs beside it
OPPOSITE = {
    "slower": "faster", "more runs": "fewer runs", "new": "gone", "more exposed": "less exposed",
    "longer gap": "shorter gap", "replaced": "replaced", "moved": "moved", "other": "other",
}
OPPOSITE |= {after: before for before, after in OPPOSITE.items()}


@dataclass(frozen=True, slots=True)
class Amount:
    """One side of a change, of a step. each_ns: duration of one run."""

    ns: int
    runs: float
    each_ns: float
    bound_ns: int | None                 # None: not all of it has a known bound


@dataclass(frozen=True, slots=True)
class Change:
    """B less A of some keys. names: of the kernels, by what each side spends in them; of a gap: what ends it."""

    kind: str
    group: str                           # "compute", "communication", "copies" or "idle"
    family: str                          # library and family of the kernels, or the cause of the gap
    operators: tuple[str, ...]
    before_names: tuple[str, ...]
    after_names: tuple[str, ...]
    ns: int
    before: Amount
    after: Amount
    scatter_ns: float | None             # standard error of ns from the repetitions of both; None: one has only one
    reach: float                         # standard errors that chance reaches in 95 % of cases
    keys: tuple[Key, ...]

    @property
    def gap(self) -> bool:
        """Is it time in which nothing runs?"""
        return self.keys[0].gap

    @property
    def ratio(self) -> float | None:
        """Duration of one run, B over A."""
        return self.after.each_ns / self.before.each_ns if self.before.each_ns and self.after.each_ns else None

    @property
    def doubtful(self) -> bool:
        """Could the repetitions' own scatter explain it?"""
        return self.scatter_ns is not None and abs(self.ns) < self.reach * self.scatter_ns


def changes(a: Typical, b: Typical) -> tuple[Change, ...]:
    """Every change, largest first; those too small to be shown are put together by their part, last."""
    keys = sorted({*a.entries, *b.entries})
    groups = _Groups(a, b, keys)
    found = [groups.change(kind, members) for kind, members in groups.partition()]
    weights = [groups.weight(change) for change in found]
    shown = [change for change, weight in zip(found, weights, strict=True) if weight and weight >= SHOWN * sum(weights)]
    kept = {id(change) for change in shown}
    rest: dict[str, list[Key]] = {}
    for change in found:
        if id(change) not in kept:
            for key in change.keys:
                rest.setdefault(key.part, []).append(key)
    others = [groups.change("other", members) for members in rest.values()]
    others = [change for change in others if change.ns]
    return tuple(sorted(shown, key=_order) + sorted(others, key=_order))


def reach(freedom: int) -> float:
    """Standard errors within which chance stays in 95 % of cases.

    >>> reach(2), reach(60)
    (4.3, 2.0)
    """
    return STUDENT[max(freedom, 1) - 1] if freedom <= len(STUDENT) else 2.0


def _order(change: Change) -> tuple[int, str, tuple[Key, ...]]:
    return -abs(change.ns), change.kind, change.keys


class _Groups:
    """The keys of two typical steps, put together by what became of them."""

    def __init__(self, a: Typical, b: Typical, keys: Sequence[Key]) -> None:
        self.a, self.b, self.keys = a, b, keys
        self.reach = reach(sum(len(side.recordings) or side.steps for side in (a, b)) - 2)
        self.swapped: dict[str, int] = {}
        for number, names in enumerate(swaps(
                _runs(a), _runs(b), _first(a).sequence, _first(b).sequence, streams_a=_first(a).streams,
                streams_b=_first(b).streams)):
            self.swapped |= dict.fromkeys(names, number)
        self.by_name = _under_other_operators(keys, a, b)

    def partition(self) -> list[tuple[str, list[Key]]]:
        """(kind, keys) of every change; each key is in one of them."""
        subjects: dict[tuple[object, ...], list[Key]] = {}
        for key in self.keys:
            subjects.setdefault(self._subject(key), []).append(key)
        families: dict[tuple[str, ...], list[Key]] = {}
        out: list[tuple[str, list[Key]]] = []
        for keys in subjects.values():
            kind = self._kind(keys)
            if kind in ("slower", "faster"):
                families.setdefault((kind, GROUPS[keys[0].part], *_family(keys[0].name)), []).extend(keys)
            else:
                out.append((kind, keys))
        return out + [(kind, keys) for (kind, *_), keys in families.items()]

    def _subject(self, key: Key) -> tuple[object, ...]:
        """Keys of one subject change together. A kernel that is hidden here and exposed there is one; a gap is one
        whatever its causes."""
        what = "gap" if key.gap else "runs"
        if (swap := self.swapped.get(key.name)) is not None:
            return (what, "swap", swap)
        return (what, "name", key.name) if key.name in self.by_name else (what, key.operator, key.name)

    def _kind(self, keys: Sequence[Key]) -> str:
        before, after = self._amount(self.a, keys), self._amount(self.b, keys)
        if keys[0].gap:
            return "longer gap" if after.ns >= before.ns else "shorter gap"
        if keys[0].name in self.swapped:
            return "replaced"
        spent_a, spent_b = (sum(side[key].spent_ns for key in keys) for side in (self.a, self.b))
        if not spent_a or not spent_b:
            return "new" if spent_b else "gone"
        if abs(after.runs - before.runs) > MOVED * max(before.runs, after.runs):
            return "more runs" if after.runs > before.runs else "fewer runs"
        owned = after.ns - before.ns
        if not owned:
            return "moved"
        if (spent_b - spent_a) / owned >= BY_DURATION:
            return "slower" if owned > 0 else "faster"
        return "more exposed" if owned > 0 else "less exposed"

    def change(self, kind: str, keys: Sequence[Key]) -> Change:
        """The change of these keys."""
        before, after = self._amount(self.a, keys), self._amount(self.b, keys)
        scatter = [entry.scatter_ns for side in (self.a, self.b) for key in keys
                   if (entry := side[key]).runs or entry.ns]
        known = [s for s in scatter if s is not None]
        gap = keys[0].gap
        family = keys[0].part if kind == "other" else self._families(keys)
        if gap and kind != "other":
            family = ", ".join(dict.fromkeys(key.part.removeprefix("idle: ") for key in sorted(keys, key=self._size)))
        return Change(
            kind, GROUPS[keys[0].part], family, tuple(dict.fromkeys(key.operator for key in keys if key.operator)),
            self._names(self.a, keys), self._names(self.b, keys), after.ns - before.ns, before, after,
            sum(s * s for s in known) ** 0.5 if known and len(known) == len(scatter) else None, self.reach,
            tuple(sorted(keys)))

    def weight(self, change: Change) -> int:
        """How much moved, by which it is shown or not: a kernel replaced by an equally fast one did change, and so did
        one that is in another part of the budget."""
        if change.gap or change.kind not in ("replaced", "moved"):
            return abs(change.ns)
        moved: dict[str, int] = {}
        for key in change.keys:
            place = key.name if change.kind == "replaced" else key.part
            moved[place] = moved.get(place, 0) + self.b[key].ns - self.a[key].ns
        return sum(map(abs, moved.values()))

    def _size(self, key: Key) -> tuple[int, Key]:
        return -abs(self.b[key].ns - self.a[key].ns), key

    def _families(self, keys: Sequence[Key]) -> str:
        """Category, library and family of what takes longest on either side: "gemm · cuBLAS → gemm · CUTLASS"."""
        told = []
        for side in (self.a, self.b):
            longest = max((key for key in keys if side[key].ns), key=lambda key: (side[key].ns, key), default=None)
            told += [" · ".join(x for x in _family(longest.name) if x)] if longest is not None else []
        return " → ".join(dict.fromkeys(told))

    @staticmethod
    def _names(side: Typical, keys: Sequence[Key]) -> tuple[str, ...]:
        spent: dict[str, float] = {}
        for key in keys:
            entry = side[key]
            if entry.runs or entry.ns:
                spent[key.name] = spent.get(key.name, 0.0) + entry.spent_ns
        return tuple(sorted(spent, key=lambda name: (-spent[name], name)))

    @staticmethod
    def _amount(side: Typical, keys: Iterable[Key]) -> Amount:
        entries: list[Entry] = [side[key] for key in keys]
        ns, runs = sum(e.ns for e in entries), sum(e.runs for e in entries)
        bound, known = sum(e.bound_ns for e in entries), sum(e.known_ns for e in entries)
        spent = sum(e.spent_ns for e in entries)
        bounded = known > 0 and abs(known - ns) <= 1 + ns // 100
        return Amount(ns, runs, spent / runs if runs else 0.0, bound if bounded else None)


def _under_other_operators(keys: Sequence[Key], a: Typical, b: Typical) -> set[str]:
    """Names that both sides have, under operators of which they share none: one run may replay CUDA graphs, which carry
    no operator, or one recording lack them. The kernel is the same."""
    of: dict[str, tuple[set[str], set[str]]] = {}
    for key in keys:
        for side, operators in zip((a, b), of.setdefault(key.name, (set(), set())), strict=True):
            if key in side.entries:
                operators.add(key.operator)
    return {name for name, (in_a, in_b) in of.items() if in_a and in_b and not in_a & in_b}


def _runs(side: Typical) -> dict[tuple[str, str], float]:
    out: dict[tuple[str, str], float] = {}
    for key, entry in side.entries.items():
        if not key.gap and key.part != EXPOSED_COPIES:
            out[key.operator, key.name] = out.get((key.operator, key.name), 0.0) + entry.runs
    return out


def _first(side: Typical) -> Member:
    return side.members[0]


def _family(name: str) -> tuple[str, str]:
    """(category, library and family) of a kernel; an operator of a CPU-only run has its name alone."""
    known = classify(name)
    if known.rule is None or name.startswith("aten::"):
        return name, ""
    return known.category, " · ".join(dict.fromkeys(x for x in (known.library, known.family) if x)) or known.short
