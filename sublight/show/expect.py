"""This file knows about how expected times are shown: as a table, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sublight.comm.expect.verdict import Judged, Link
from sublight.comm.expected import Expected

if TYPE_CHECKING:
    from rich.console import Console


MOST_COLUMNS = 500


@dataclass(frozen=True, slots=True)
class Answer:
    """The expected time of one size, with what it is held against."""

    what: str                            # "all_reduce", "dispatch"
    where: str                           # cluster and what else was asked
    size: str                            # "67108864", "4096 tokens"
    count: int
    expected: Expected
    algorithm_bytes: float | None        # over the time: algorithm bandwidth, as nccl-tests defines it
    moved_bytes: float | None            # over the time: bus bandwidth
    moved_name: str                      # "bus", "RDMA", …
    link: Link
    judged: Judged | None


def time(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}" if seconds / scale < 1000 else f"{seconds / scale:,.0f} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def size(text: str, count: int) -> str:
    """Bytes in powers of 1024 where they are whole, as nccl-tests takes them."""
    if not text.isdigit():
        return text
    for unit, scale in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if count >= scale and count % scale == 0:
            return f"{count // scale}{unit}"
    return text


def rate(nbytes: float | None, seconds: float) -> str:
    return "" if nbytes is None else f"{nbytes / seconds / 1e9:.4g}"


def head(answers: Sequence[Answer]) -> tuple[str, ...]:
    """Titles of the columns of `cells`."""
    alg = () if answers[0].algorithm_bytes is None else ("alg GB/s",)
    return ("size", "expected", "80 % interval", *alg, f"{answers[0].moved_name} GB/s", "of link", "limiter")


def cells(answer: Answer) -> tuple[str, ...]:
    """One row of the table."""
    e = answer.expected
    share = f"{100 * answer.link.nbytes / e.seconds / answer.link.rate:.0f} %" if answer.link.rate else ""
    alg = () if answer.algorithm_bytes is None else (rate(answer.algorithm_bytes, e.seconds),)
    return (size(answer.size, answer.count), time(e.seconds), f"{time(e.low)} – {time(e.high)}", *alg,
            rate(answer.moved_bytes, e.seconds), share, e.limiter)


def term_names(answers: Sequence[Answer]) -> list[str]:
    """Terms of all answers, each once, in their order."""
    return list(dict.fromkeys(name for answer in answers for name in answer.expected.terms))


def below(answers: Sequence[Answer]) -> list[str]:
    """The lines under the table: what the bandwidth is held against, verdict, basis, assumptions."""
    first = answers[0]
    lines = [f"link: {first.link.name}, {first.link.rate / 1e9:.4g} GB/s one way"] if first.link.rate else []
    lines += [f"measured {time(a.judged.seconds)}: {a.judged.words}" for a in answers if a.judged is not None]
    lines += [f"basis: {basis}" for basis in dict.fromkeys(a.expected.basis for a in answers)]
    shared = [note for note in first.expected.notes if all(note in a.expected.notes for a in answers)]
    lines += [f"- {note}" for note in shared]
    for answer in answers:
        own = [note for note in answer.expected.notes if note not in shared]
        lines += [f"- {size(answer.size, answer.count)}: {'; '.join(own)}"] if own else []
    return lines


def print_answers(answers: Sequence[Answer], console: Console) -> None:
    """The table, the parts of each time, and what they rest on."""
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f"{answers[0].what} on {answers[0].where}"), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for name in head(answers):
        table.add_column(name, justify="left" if name == "limiter" else "right", no_wrap=True)
    for answer in answers:
        table.add_row(*cells(answer))
    needed = Measurement.get(console, console.options.update(width=MOST_COLUMNS), table).maximum
    console.width = max(console.width, needed)       # a figure that is cut off is worse than a line that wraps
    console.print(table)
    console.print()
    names = term_names(answers)
    parts = Table(box=None, pad_edge=False)
    for name in ("size", *names):
        parts.add_column(name, justify="right", no_wrap=True)
    for answer in answers:
        terms = answer.expected.terms
        parts.add_row(size(answer.size, answer.count), *(time(terms[name]) if name in terms else "" for name in names))
    console.print(parts)
    console.print()
    for line in below(answers):
        console.print(Text(line), soft_wrap=True)


def markdown(answers: Sequence[Answer]) -> str:
    """The same as Markdown."""
    names = term_names(answers)
    rows = [(*cells(a), *(time(a.expected.terms[n]) if n in a.expected.terms else "" for n in names)) for a in answers]
    titles = (*head(answers), *names)
    lines = [f"**{answers[0].what}** on {answers[0].where}", "", "| " + " | ".join(titles) + " |",
             "|" + "|".join([" --: "] * len(titles)) + "|", *("| " + " | ".join(row) + " |" for row in rows), ""]
    said = below(answers)
    return "\n".join([*lines, *(line if line.startswith("- ") else f"- {line}" for line in said), ""])


def document(answers: Sequence[Answer]) -> dict[str, Any]:
    """The same for programs; seconds and bytes a second."""
    return {
        "what": answers[0].what, "where": answers[0].where,
        "rows": [_row(answer) for answer in answers],
    }


def _row(answer: Answer) -> dict[str, Any]:
    e = answer.expected
    moved, algorithm = answer.moved_bytes, answer.algorithm_bytes
    return {
        "size": answer.count, "seconds": e.seconds, "low": e.low, "high": e.high,
        "algorithm_bandwidth": None if algorithm is None else algorithm / e.seconds,
        "bandwidth": None if moved is None else moved / e.seconds, "bandwidth_name": answer.moved_name,
        "link": answer.link.name, "link_rate": answer.link.rate, "link_bytes": answer.link.nbytes,
        "terms": dict(e.terms), "limiter": e.limiter, "basis": e.basis, "notes": list(e.notes),
        "verdict": None if answer.judged is None else {
            "state": answer.judged.state, "measured_seconds": answer.judged.seconds, "ratio": answer.judged.ratio,
            "words": answer.judged.words},
    }
