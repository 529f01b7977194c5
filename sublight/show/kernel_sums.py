"""This file knows about how sums of kernels are shown: by category and family, by name, and what they cannot tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sublight.explain.words import ms, number, percent
from sublight.observe.kernel_name import classify
from sublight.observe.kernel_sums import KernelSum, KernelSums
from sublight.show.diff_rows import footnotes, labels
from sublight.show.predict import print_table, table_markdown
from sublight.show.predict_rows import Table

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "sublight.kernel_sums/1"
MOST_ROWS, NAME = 12, 44
CANNOT = ("Cannot tell idle time, exposed communication, steps, causes or bounds: sums have no time line and no sizes. "
          "Read the report itself: nsys export --type sqlite --output run.sqlite run.nsys-rep; sublight explain "
          "run.sqlite")


def headline(sums: KernelSums, name: str) -> str:
    """One sentence."""
    largest = ", ".join(f"{category} {percent(ns / sums.total_ns)}" for category, ns in _categories(sums)[:3]) \
        if sums.total_ns else ""
    runs = sum(row.runs for row in sums.rows)
    return (f"{name}: {number(len(sums.rows), 'kernel')} of nsys stats, {number(runs, 'run')}, {ms(sums.total_ns)} in "
            f"all{': ' + largest if largest else ''}. Kernels that ran at the same time count twice.")


def _categories(sums: KernelSums) -> list[tuple[str, int]]:
    out: dict[str, int] = {}
    for row in sums.rows:
        category = classify(row.name).category
        out[category] = out.get(category, 0) + row.total_ns
    return sorted(out.items(), key=lambda entry: (-entry[1], entry[0]))


def tables(sums: KernelSums) -> Iterator[Table]:
    """By category and family, then by name."""
    families: dict[tuple[str, str], list[KernelSum]] = {}
    for row in sums.rows:
        known = classify(row.name)
        origin = " · ".join(x for x in (known.library, known.family) if x)
        families.setdefault((known.category, origin or "–"), []).append(row)
    grouped = sorted(families.items(), key=lambda entry: -sum(row.total_ns for row in entry[1]))
    yield Table("kernels by category and family", ("category", "library · family", "runs", "time", "share"), tuple(
        (category, origin, *_amounts(sums, rows)) for (category, origin), rows in grouped))
    shown = sums.rows[:MOST_ROWS]
    told = _labels(sums)
    rows = [(told[row.name], f"{row.runs:,}", ms(row.total_ns), _share(sums, row.total_ns),
             ms(row.each_ns), "" if row.median_ns is None else ms(row.median_ns)) for row in shown]
    if rest := sums.rows[MOST_ROWS:]:
        rows.append((f"{len(rest)} more", *_amounts(sums, list(rest)), "", ""))
    yield Table("kernels by name", ("name", "runs", "time", "share", "mean", "median"), tuple(rows))


def _labels(sums: KernelSums) -> dict[str, str]:
    return labels([row.name for row in sums.rows[:MOST_ROWS]], NAME)


def _amounts(sums: KernelSums, rows: list[KernelSum]) -> tuple[str, str, str]:
    total = sum(row.total_ns for row in rows)
    return f"{sum(row.runs for row in rows):,}", ms(total), _share(sums, total)


def _share(sums: KernelSums, ns: int) -> str:
    return percent(ns / sums.total_ns) if sums.total_ns else ""


def lines(sums: KernelSums) -> list[str]:
    """What a reader must know."""
    unknown = sum(ns for category, ns in _categories(sums) if category == "unclassified")
    return [*(f"{line}." for line in footnotes(_labels(sums))),
            f"Unclassified {_share(sums, unknown) or percent(0)} of kernel time.", f"{CANNOT}.",
            *(f"{note}." for note in sums.notes)]


def print_sums(sums: KernelSums, name: str, console: Console) -> None:
    """For a terminal."""
    from rich.text import Text

    console.print(Text(headline(sums, name), style="bold"))
    for table in tables(sums):
        console.print()
        print_table(table, console)
    console.print()
    for line in lines(sums):
        console.print(Text(line, style="dim"))


def markdown(sums: KernelSums, name: str) -> str:
    """To paste into an issue."""
    out = [f"**{_plain(headline(sums, name))}**", ""]
    for table in tables(sums):
        safe = tuple(tuple(map(_plain, row)) for row in table.rows)
        out += table_markdown(replace(table, rows=safe))
    return "\n".join([*out, *map(_plain, lines(sums))]) + "\n"


def document(sums: KernelSums, name: str) -> dict[str, Any]:
    """For programs: integer nanoseconds."""
    from sublight import __version__

    return {
        "schema": SCHEMA, "version": __version__, "file": name, "verdict": headline(sums, name),
        "total_ns": sums.total_ns, "notes": list(sums.notes), "cannot_tell": CANNOT,
        "kernels": [{"name": row.name, "category": known.category, "library": known.library, "family": known.family,
                     "runs": row.runs, "ns": row.total_ns, "median_ns": row.median_ns, "least_ns": row.least_ns,
                     "most_ns": row.most_ns, "grid": row.grid or None}
                    for row in sums.rows for known in (classify(row.name),)],
    }


def _plain(text: str) -> str:
    for sign in "\\`*_|<>[]":
        text = text.replace(sign, "\\" + sign)
    return text
