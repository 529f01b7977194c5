"""This file knows about verdicts shown: each quantity of two sides of results, better, the same, worse or untold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sublight.guard.config import Setting
from sublight.show.diff_rows import SETTINGS_HEAD, footnotes, labels, percent_of
from sublight.show.page import page, table, text
from sublight.verdict import STATES, Verdict

if TYPE_CHECKING:
    from rich.console import Console

HEAD, RESTS = ("quantity", "verdict", "B over A", "interval"), "rests on"
SCHEMA = "sublight.diff.results/1"
OF_KERNELS = ("kernel time ", "collective time ")
NAME, MOST_BEHIND, FEW = 31, 12, 4
STYLES = {"worse": "red", "better": "green", "same": "", "cannot tell": "yellow"}
SIGNS = "\\`*_|<>[]~"


@dataclass(frozen=True, slots=True)
class Told:
    """Two sides of results compared."""

    verdicts: tuple[Verdict, ...]
    settings: tuple[Setting, ...]
    notes: tuple[str, ...]

    def settings_rows(self) -> list[tuple[str, ...]]:
        """What the results say otherwise of B."""
        return [(s.name, s.a or "not said", s.b or "not said") for s in self.settings if s.differs]


def headline(verdicts: Sequence[Verdict]) -> str:
    """How many quantities of each state."""
    counts = [f"{count} {state}" for state in ("worse", "better", "same", "cannot tell")
              if (count := sum(v.state == state for v in verdicts))]
    assert all(v.state in STATES for v in verdicts)
    return f"B against A: {', '.join(counts)}"


def rows(verdicts: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """One line a quantity."""
    called, _ = titles(verdicts)
    return [(called[v.quantity], v.state, percent_of(v.change), f"{percent_of(v.low)} to {percent_of(v.high)}")
            for v in verdicts]


def titles(verdicts: Sequence[Verdict]) -> tuple[dict[str, str], list[str]]:
    """How each quantity is called, kernels by their short names; and names in full, where several are short alike."""
    kernels = {v.quantity: v.quantity.removeprefix(prefix) for v in verdicts for prefix in OF_KERNELS
               if v.quantity.startswith(prefix)}
    told = labels(kernels.values(), NAME)
    return {v.quantity: told[kernels[v.quantity]] if v.quantity in kernels else v.quantity for v in verdicts}, \
        footnotes(told)


def method(verdicts: Sequence[Verdict]) -> str | None:
    """The method of all, where it is one."""
    methods = {v.method for v in verdicts}
    return methods.pop() if len(methods) == 1 else None


def behind(verdict: Verdict, *, of_all: str | None = None) -> list[str]:
    """What a verdict rests on; `of_all` is the method that was said already."""
    more = [f"at least {verdict.more_runs} more runs of each side would be needed to tell"] if verdict.more_runs else []
    return [*([verdict.method] if verdict.method != of_all else []), *verdict.evidence, *more]


def print_verdicts(told: Told, console: Console) -> None:
    """What differs, a table, then what each verdict rests on."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(headline(told.verdicts), style="bold"))
    for head, lines in ((SETTINGS_HEAD, told.settings_rows()), (HEAD, rows(told.verdicts))):
        if not lines:
            continue
        shown = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", width=80)
        for i, name in enumerate(head):
            words = head == SETTINGS_HEAD
            shown.add_column(name, justify="left" if words or i < 2 else "right", ratio=1 if words or not i else None)
        for cells in lines:
            shown.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in cells))
        console.print()
        console.print(shown)
    console.print()
    of_all = method(told.verdicts)
    if of_all:
        console.print(Text(f"{of_all}.", style="dim"))
    called, full = titles(told.verdicts)
    changed_first = sorted(told.verdicts, key=lambda v: v.state not in ("worse", "better"))
    few = told.verdicts if len(told.verdicts) <= MOST_BEHIND else changed_first[:FEW]
    for verdict in few:
        console.print(Text(f"{called[verdict.quantity]}: {'; '.join(behind(verdict, of_all=of_all))}.", style="dim"))
    if len(few) < len(told.verdicts):
        console.print(Text(f"What the other {len(told.verdicts) - len(few)} rest on: --format json.", style="dim"))
    for note in (*full[: 2 * FEW], *told.notes):
        console.print(Text(f"{note}.", style="dim"))


def markdown(told: Told) -> str:
    """To paste into an issue."""
    notes = (*titles(told.verdicts)[1], *told.notes)
    lines = [f"**{_plain(headline(told.verdicts))}**", ""]
    if settings := told.settings_rows():
        lines += [f"| {' | '.join(SETTINGS_HEAD)} |", "|:--|:--|:--|", *map(_line, settings), ""]
    lines += [f"| {' | '.join((*HEAD, RESTS))} |", "|:--|:--|--:|--:|:--|", *map(_line, _whole(told))]
    return "\n".join([*lines, *(["", *(f"- {_plain(note)}." for note in notes)] if notes else [])]) + "\n"


def html(told: Told) -> str:
    """A page."""
    body = [f'<p class="verdict">{text(headline(told.verdicts))}</p>']
    if settings := told.settings_rows():
        body += ["<h3>What differs in the runs</h3>", *table(SETTINGS_HEAD, settings, "settings that differ")]
    body += ["<h3>Verdicts</h3>", *table((*HEAD, RESTS), _whole(told), "verdicts")]
    notes = (*titles(told.verdicts)[1], *told.notes)
    return page("sublight diff", [*body, "<ul>", *(f"<li>{text(note)}.</li>" for note in notes), "</ul>"])


def document(told: Told) -> dict[str, Any]:
    """For programs."""
    from sublight import __version__

    return {
        "schema": SCHEMA, "version": __version__,
        "settings": [{"name": s.name, "a": s.a, "b": s.b, "differs": s.differs} for s in told.settings],
        "verdicts": [fields(v) for v in told.verdicts], "notes": list(told.notes),
    }


def _whole(told: Told) -> list[tuple[str, ...]]:
    return [(*cells, "; ".join(behind(v))) for v, cells in zip(told.verdicts, rows(told.verdicts), strict=True)]


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(map(_plain, cells))} |"


def fields(v: Verdict) -> dict[str, Any]:
    """A verdict for programs; what is unbounded is null."""
    change, low, high = (None if abs(x) == float("inf") or x != x else x for x in (v.change, v.low, v.high))
    return {"quantity": v.quantity, "state": v.state, "change": change, "low": low, "high": high,
            "lower_is_better": v.lower_is_better, "method": v.method, "evidence": list(v.evidence),
            "more_runs": v.more_runs}


def _plain(words: str) -> str:
    for sign in SIGNS:
        words = words.replace(sign, "\\" + sign)
    return words
