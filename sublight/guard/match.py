"""This file knows about kernels that took the place of others: by the operator that launches them, else by where they
stand.

    A    norm │ old gemm │ gelu     by its neighbours: what only A has and what only B has stand between the same two
    B    norm │ new 1, new 2 │ gelu

    A    aten::mm ▸ old 12x         by operator: under one operator, kernels of A are gone or fewer and kernels of B
    B    aten::mm ▸ new 12x         are new or more
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Run = tuple[str, ...]
Sequenced = tuple[tuple[str, str], ...]
MOVED = 0.005                            # of the larger count: a difference that is one
MOST_IN_PLACE = 4                        # kernels that one place may hold: a longer run is another program, not a swap


@dataclass(slots=True)
class _Joined:
    """Names that belong together."""

    of: dict[str, str] = field(default_factory=dict)

    def root(self, name: str) -> str:
        self.of.setdefault(name, name)
        while self.of[name] != name:
            name = self.of[name]
        return name

    def join(self, names: Iterable[str]) -> None:
        roots = sorted({self.root(name) for name in names})
        for other in roots[1:]:
            self.of[other] = roots[0]

    def groups(self) -> list[frozenset[str]]:
        found: dict[str, set[str]] = {}
        for name in sorted(self.of):
            found.setdefault(self.root(name), set()).add(name)
        return [frozenset(names) for names in found.values() if len(names) > 1]


def swaps(
    a: Mapping[tuple[str, str], float], b: Mapping[tuple[str, str], float], sequence_a: Sequenced,
    sequence_b: Sequenced, *, streams_a: Sequence[str] = (), streams_b: Sequence[str] = (),
) -> tuple[frozenset[str], ...]:
    """Groups of kernels of which some took the place of others. `a`, `b`: runs a step by (operator, name).

    Sequences are in the order of launches, streams in the order of starts, "" after each: what several threads launch
    is mixed in the former, and not in the latter."""
    names_a, names_b = {name for _, name in a}, {name for _, name in b}
    gone, new = names_a - names_b, names_b - names_a
    joined = _Joined()
    for operator in sorted({operator for operator, _ in (*a, *b)} - {""}):
        fewer, more = _moved(operator, a, b)
        # Names that both have moved between sizes of one operator as easily as between kernels: one side must be new.
        if fewer and more and (fewer & gone or more & new):
            joined.join(sorted(fewer | more))
    linked = {name for group in joined.groups() for name in group}
    launched = _by_place([n for _, n in sequence_a], [n for _, n in sequence_b], gone, new)
    for run_a, run_b in (*launched, *_by_place(streams_a, streams_b, gone, new)):
        if not (linked.issuperset(run_a) and linked.issuperset(run_b)):
            joined.join((*run_a, *run_b))
    return tuple(joined.groups())


def _moved(
    operator: str, a: Mapping[tuple[str, str], float], b: Mapping[tuple[str, str], float],
) -> tuple[set[str], set[str]]:
    """Kernels that this operator launches less often in B, and those that it launches more often."""
    fewer, more = set[str](), set[str]()
    for name in {name for op, name in (*a, *b) if op == operator}:
        before, after = a.get((operator, name), 0.0), b.get((operator, name), 0.0)
        if abs(after - before) > MOVED * max(before, after):
            (fewer if after < before else more).add(name)
    return fewer, more


def _by_place(a: Sequence[str], b: Sequence[str], gone: set[str], new: set[str]) -> Iterable[tuple[Run, Run]]:
    """Runs of kernels that only A has, each with the run of B between the same two neighbours."""
    places_a, places_b = _places(a, gone), _places(b, new)
    for place, runs in places_a.items():
        for run_a, run_b in zip(runs, places_b.get(place, ()), strict=False):
            if max(len(run_a), len(run_b)) <= MOST_IN_PLACE:
                yield run_a, run_b


def _places(names: Sequence[str], alone: set[str]) -> dict[tuple[str, str], list[Run]]:
    """Maximal runs of names that one side alone has, by the neighbours that both have; "" at the ends."""
    out: dict[tuple[str, str], list[Run]] = {}
    before, run = "", list[str]()
    for name in (*names, ""):
        if name in alone:
            run.append(name)
            continue
        if run:
            out.setdefault((before, name), []).append(tuple(run))
            run = []
        before = name
    return out
