"""This file knows about how the answer to a pasted text is shown: on a terminal, as Markdown, as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sublight.explain.answers.answer import Judged, PastedAnswer, Row
from sublight.show.predict import print_table, table_markdown
from sublight.show.predict_rows import Table, plan_fields
from sublight.show.units import gib, quantity, seconds

if TYPE_CHECKING:
    from rich.console import Console


def title(found: Judged) -> str:
    """Which run, in one line."""
    case = found.case
    where = "" if case.where is None else f" on {case.where.cluster.ranks} x {case.where.device.title}"
    return f"{case.name}: {case.model_words or 'a model that is not known'}{where}, {case.engine}"


def rows(found: Judged) -> Table:
    """Reported beside expected."""
    return Table(title(found), ("", "reported", "expected", "80 % interval", "verdict"),
                 tuple(_row(row) for row in found.rows))


def _row(row: Row) -> tuple[str, ...]:
    reported, expected = _value(row.reported, row.unit), _value(row.expected, row.unit)
    low_high = "" if row.low is None or row.high is None else \
        f"{_value(row.low, row.unit)} – {_value(row.high, row.unit)}"
    factor = "" if row.speed is None or row.verdict in ("", "as expected") else \
        f"{row.speed if row.speed >= 1 else 1 / row.speed:.3g}x "
    return row.name, reported, expected, low_high, f"{factor}{row.verdict}"


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return gib(value) if unit == "bytes" else quantity(value, unit) if unit else f"{value:,.4g}"


def terms(found: Judged) -> Table:
    """What the expected step is made of."""
    words = f" ({found.step_words})" if found.step_words else ""
    return Table(f"{found.case.name}: the step that makes them{words}", ("operator", "calls", "time", "share"),
                 tuple((term.name, f"{term.calls or ''}", seconds(term.seconds), f"{term.share:.1%}".replace("%", " %"))
                       for term in found.terms), tuple(term.share for term in found.terms))


def tables(answer: PastedAnswer) -> Iterator[Table]:
    for found in answer.cases:
        if found.rows:
            yield rows(found)
        if found.terms:
            yield terms(found)


def _lines(answer: PastedAnswer) -> Iterator[tuple[str, list[str]]]:
    """Sections below the tables, each with its lines."""
    basis = [f"{found.case.name}: limiter {found.limiter}; {found.basis}" for found in answer.cases if found.limiter]
    notes = [f"{found.case.name}: {note}" for found in answer.cases for note in (*found.case.notes, *found.notes)]
    for name, lines in (("What this rests on", [*basis, *notes, *answer.notes]), ("Missing", list(answer.missing)),
                        ("Capture next", list(answer.capture)), ("", [answer.unread] if answer.unread else [])):
        if lines:
            yield name, lines


def print_answer(answer: PastedAnswer, console: Console) -> None:
    """What was recognised, figures, what follows, what is missing."""
    from rich.text import Text

    def say(line: str) -> None:
        console.print(Text(line), soft_wrap=True)

    say("Recognised")
    for line in answer.recognised:
        say(f"  {line}")
    for table in tables(answer):
        console.print()
        print_table(table, console)
    for number, point in enumerate(answer.points, 1):
        console.print()
        say(f"{number}. [{point.topic}] {point.claim}")
        for line in point.evidence:
            say(f"     {line}")
        if point.action:
            say(f"   → {point.action}")
    for name, lines in _lines(answer):
        console.print()
        if name:
            say(name)
        for line in lines:
            say(f"  {line}" if name else line)


def markdown(answer: PastedAnswer) -> str:
    """The same to paste into an issue."""
    out = ["### Recognised", "", *(f"- {line}" for line in answer.recognised), ""]
    for table in tables(answer):
        out += table_markdown(table)
    if answer.points:
        out += ["### What follows", ""]
    for number, point in enumerate(answer.points, 1):
        out += [f"{number}. **{point.topic}**: {point.claim}", *(f"   - {line}" for line in point.evidence)]
        out += [f"   - → {point.action}"] if point.action else []
    for name, lines in _lines(answer):
        out += ["", f"### {name}" if name else "", *(f"- {line}" for line in lines)]
    return "\n".join([*out, ""])


def document(answer: PastedAnswer) -> dict[str, Any]:
    """The same for programs: base units."""
    return {
        "recognised": list(answer.recognised),
        "cases": [_case(found) for found in answer.cases],
        "points": [{"topic": point.topic, "claim": point.claim, "evidence": list(point.evidence),
                    "action": point.action} for point in answer.points],
        "missing": list(answer.missing), "capture": list(answer.capture), "unread": answer.unread,
        "notes": list(answer.notes),
    }


def _case(found: Judged) -> dict[str, Any]:
    case = found.case
    return {
        "name": case.name, "engine": case.engine, "model": case.model_words or None,
        "device": None if case.where is None else case.where.device.key,
        "gpus": None if case.where is None else case.where.cluster.ranks,
        "plan": None if case.plan is None else {name: value for name, value in plan_fields(case.plan).items()
                                                if name != "extra"},
        "load": None if case.load is None else {name: getattr(case.load, name) for name in case.load.__slots__},
        "figures": [{"name": row.name, "unit": row.unit, "reported": row.reported, "expected": row.expected,
                     "low": row.low, "high": row.high, "verdict": row.verdict or None} for row in found.rows],
        "terms": [{"name": term.name, "seconds": term.seconds, "share": term.share, "calls": term.calls}
                  for term in found.terms],
        "limiter": found.limiter or None, "basis": found.basis or None, "sources": dict(case.sources),
        "missing": list(case.missing), "notes": [*case.notes, *found.notes],
    }
