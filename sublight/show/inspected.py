"""This file knows about inspected kernels on the screen: text, Markdown and a page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from sublight.kernels.inspect.figures import Figures
from sublight.show import inspect_rows as rows
from sublight.show.nccl import columns
from sublight.show.page import page, table
from sublight.show.page import text as escaped
from sublight.show.page_data import printable
from sublight.show.predict_rows import Table

WIDTH = 100
MOST_DETAILS = 8                 # kernels told in full; more are rows of the table
CANNOT = ("What code alone cannot tell: latencies, stalls, waits for memory, trip counts and divergence. Clocks are "
          "the least that each pipe is busy; a limit is an upper one.")


def tables_of(kernels: Sequence[Figures]) -> Iterator[tuple[Figures | None, Table]]:
    """The summary, then loops of each kernel that is told in full."""
    yield None, rows.summary(kernels)
    if len(kernels) <= MOST_DETAILS:
        for kernel in kernels:
            yield kernel, rows.loops(kernel)


def text(kernels: Sequence[Figures], skipped: Sequence[tuple[str, int]], waves: Table | None = None) -> str:
    """On a terminal."""
    lines: list[str] = []
    for kernel, shown in tables_of(kernels):
        if kernel is None:
            lines += plain(shown)
            continue
        lines += ["", f"{rows.short(kernel.name)} {kernel.arch}"]
        for word, said in rows.details(kernel):
            lines += textwrap.wrap(said, WIDTH, initial_indent=f"  {word:<13} ", subsequent_indent=" " * 16,
                                   break_on_hyphens=False)
        if shown.rows:
            lines += [f"  {line}" for line in plain(shown)]
            lines += [f"  {line}" for line in notes(kernel)]
    if waves is not None:
        lines += ["", *plain(waves)]
    return _text([*lines, *_foot(kernels, skipped)])


def notes(kernel: Figures) -> Iterator[str]:
    """The same in lines."""
    for said in loop_notes(kernel):
        yield from textwrap.wrap(f"- {said}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def loop_notes(kernel: Figures) -> list[str]:
    """What is assumed or unknown of its loops, each said once, and not what was said of the whole kernel."""
    every = dict.fromkeys(note for loop in kernel.loops if loop.hot for note in loop.notes)
    return [note for note in every if note not in (*kernel.fallbacks, *kernel.notes)]


def _foot(kernels: Sequence[Figures], skipped: Sequence[tuple[str, int]]) -> Iterator[str]:
    if len(kernels) > MOST_DETAILS:
        yield from ("", "Name some with --kernel to see their loops.")
    for why, count in skipped:
        yield f"left out: {count} x {why}"
    if any(kernel.loops for kernel in kernels):
        yield from ("", *textwrap.wrap(CANNOT, WIDTH))


def plain(shown: Table) -> list[str]:
    """A caption and aligned columns."""
    align = "".join("<" if name in rows.KERNEL_WORDS or name == "clocks" else ">" for name in shown.head)
    return [shown.caption, *(columns([shown.head, *shown.rows], align) if shown.rows else ())]


def markdown(shown: Table) -> list[str]:
    """A caption and a table."""
    marks = "|".join(" :-- " if name in rows.KERNEL_WORDS or name == "clocks" else " --: " for name in shown.head)
    if not shown.rows:
        return [f"### {shown.caption}", ""]
    return [f"### {shown.caption}", "", f"| {' | '.join(shown.head)} |", f"|{marks}|",
            *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in shown.rows), ""]


def as_markdown(kernels: Sequence[Figures], skipped: Sequence[tuple[str, int]], waves: Table | None = None) -> str:
    """The same as Markdown."""
    lines: list[str] = []
    for kernel, shown in tables_of(kernels):
        if kernel is None:
            lines += markdown(shown)
            continue
        lines += [f"## {rows.short(kernel.name)} {kernel.arch}", "",
                  *(f"- {word}: {said}" for word, said in rows.details(kernel)), ""]
        lines += [*markdown(shown), *notes(kernel), ""] if shown.rows else []
    if waves is not None:
        lines += markdown(waves)
    return _text([*lines, *_foot(kernels, skipped)])


def html(kernels: Sequence[Figures], skipped: Sequence[tuple[str, int]], waves: Table | None = None) -> str:
    """A page that loads nothing."""
    body: list[str] = []
    for kernel, shown in tables_of(kernels):
        if kernel is not None:
            body += [f"<h2>{escaped(rows.short(kernel.name))} {escaped(kernel.arch)}</h2>", "<ul>",
                     *(f"<li>{escaped(word)}: {escaped(said)}</li>" for word, said in rows.details(kernel)), "</ul>"]
        if shown.rows:
            body += [f"<h3>{escaped(shown.caption)}</h3>", *table(shown.head, shown.rows, shown.caption)]
            if kernel is not None and (said := loop_notes(kernel)):
                body += ["<ul>", *(f"<li>{escaped(note)}</li>" for note in said), "</ul>"]
    if waves is not None:
        body += [f"<h3>{escaped(waves.caption)}</h3>", *table(waves.head, waves.rows, waves.caption)]
    body += [f"<p>{escaped(line)}</p>" for line in _foot(kernels, skipped) if line]
    return page("sublight kernel inspect", body)


def one_table(shown: Table, form: str, title: str) -> str:
    """A gate's or a comparison's table in one of "table", "md", "html"."""
    if form == "html":
        cells = table(shown.head, shown.rows, shown.caption) if shown.rows else []
        return page(title, [f'<p class="verdict">{escaped(shown.caption)}</p>', *cells])
    return _text(markdown(shown) if form == "md" else plain(shown))


def _text(lines: Iterable[str]) -> str:
    """Names of kernels and of source files come from the input, and must not steer a terminal."""
    return "".join(f"{printable(line)}\n" for line in lines)
