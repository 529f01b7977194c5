"""This file knows about two runs in one text: what differs between them, first in what was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import pairwise

from sublight.explain.answers.answer import Case, Judged, Point, Row
from sublight.explain.answers.load import printed_capacity


def points(found: Sequence[Judged]) -> Iterator[Point]:
    """Each run against the one before."""
    for first, second in pairwise(found):
        changed = tuple(differences(first.case, second.case))
        measured = tuple(_measured(first.rows, second.rows))
        room = tuple(_room(first.case, second.case))
        if not changed and not measured and not room:
            continue
        names = f"{first.case.name} and {second.case.name}"
        said = first.case.plan is not None and second.case.plan is not None
        claim = (f"{names} differ in {len(changed)} setting{'s' if len(changed) > 1 else ''}" if changed else
                 f"{names} are of the same settings" if said else f"{names}: how their settings differ is not said")
        yield Point("difference", claim, (*changed, *measured, *room),
                    "change one setting at a time: nothing here tells which of them did it" if len(changed) > 1 else "")


def differences(first: Case, second: Case) -> Iterator[str]:
    """Settings that differ: engine, version, GPUs, model, and every field of the plan."""
    if first.engine != second.engine:
        yield f"engine: {first.engine}, {second.engine}"
    if first.model_words != second.model_words:
        yield f"model: {first.model_words or 'not said'}, {second.model_words or 'not said'}"
    one_gpu, other_gpu = (case.where.device.title if case.where else "not said" for case in (first, second))
    if one_gpu != other_gpu:
        yield f"GPUs: {one_gpu}, {other_gpu}"
    if first.plan is None or second.plan is None or type(first.plan) is not type(second.plan):
        return
    for field in fields(first.plan):
        one, other = getattr(first.plan, field.name), getattr(second.plan, field.name)
        if one == other or field.name in ("engine", "framework"):
            continue
        if field.name == "extra":
            names = {flag for flag, _ in set(one) ^ set(other)}
            if names:
                yield f"flags without a place in a plan: {', '.join(sorted(names)[:6])}"
        else:
            whose = [who for who, case in (("the first", first), ("the second", second)) if field.name in case.own]
            default = f" ({' and '.join(whose)} by the engine's own default)" if whose else ""
            yield f"{field.name.replace('_', ' ')}: {_word(one)}, {_word(other)}{default}"


def _word(value: object) -> str:
    return "the engine's default" if value is None else str(value)


def _measured(first: Sequence[Row], second: Sequence[Row]) -> Iterator[str]:
    """Reported and expected ratios of what both runs have."""
    others = {row.name: row for row in second}
    for row in first:
        other = others.get(row.name)
        if other is None:
            continue
        parts = []
        if row.reported and other.reported:
            parts.append(f"reported {other.reported / row.reported:.2f}x")
        if row.expected and other.expected:
            parts.append(f"expected {other.expected / row.expected:.2f}x")
        if parts:
            yield f"{row.name}, the second over the first: {', '.join(parts)}"


def _room(first: Case, second: Case) -> Iterator[str]:
    one, other = printed_capacity(first.log), printed_capacity(second.log)
    if one and other:
        yield f"KV cache printed: {one:,} and {other:,} tokens, {other / one:.2f}x"
