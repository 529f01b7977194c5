"""This file knows about how a prediction is shown: on a terminal, as Markdown, as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sublight.predict.answer import SHOWN_RATES, Answer
from sublight.show import predict_rows as rows
from sublight.show.predict_rows import Table

if TYPE_CHECKING:
    from rich.console import Console

MOST_COLUMNS = 500
BAR = 18                                 # characters of the longest bar
WORDS = {"", "operator", "rate", "part", "limited by", "from", "plan", "category", "name",
         "library · family"}     # columns of words, not figures


def tables(answer: Answer) -> Iterator[Table]:
    """In the order in which they are shown."""
    yield rows.results(answer)
    yield from rows.waterfalls(answer)
    yield rows.elasticities(answer)
    yield from rows.memory(answer)


def print_answer(answer: Answer, console: Console) -> None:
    """Results first, then why, then what they rest on."""
    from rich.text import Text

    console.print(Text(rows.title(answer)), soft_wrap=True)
    for shown in tables(answer):
        console.print()
        print_table(shown, console)
    console.print()
    for line in rows.said(answer):
        console.print(Text(line), soft_wrap=True)


def print_table(shown: Table, console: Console) -> None:
    """Caption, columns, a bar a row where there are shares."""
    from rich.measure import Measurement
    from rich.table import Table as Grid
    from rich.text import Text

    console.print(Text(shown.caption), soft_wrap=True)
    grid = Grid(box=None, pad_edge=False)
    for name in shown.head:
        grid.add_column(name, justify="left" if name in WORDS else "right", no_wrap=True)
    longest = max(shown.shares, default=0.0)
    if longest:
        grid.add_column("", no_wrap=True)
    for index, row in enumerate(shown.rows):
        share = shown.shares[index] / longest if longest else 0.0
        bar = ["█" * max(share > 0, round(BAR * share))] if longest else []
        grid.add_row(*map(Text, (*row, *bar)))
    for row in shown.foot:
        grid.add_row(*map(Text, row))
    needed = Measurement.get(console, console.options.update(width=MOST_COLUMNS), grid).maximum
    console.width = max(console.width, needed)       # a figure that is cut off is worse than a line that wraps
    console.print(grid)


def markdown(answer: Answer) -> str:
    """The same as Markdown."""
    out = [f"**{rows.title(answer)}**", ""]
    for shown in tables(answer):
        out += table_markdown(shown)
    return "\n".join([*out, *(line if line.startswith("- ") else f"- {line}" for line in rows.said(answer)), ""])


def table_markdown(shown: Table) -> list[str]:
    """Lines of one table, with its caption as a title."""
    return [f"### {shown.caption}", "", "| " + " | ".join(shown.head) + " |",
            "|" + "|".join(" :-- " if name in WORDS else " --: " for name in shown.head) + "|",
            *("| " + " | ".join(row) + " |" for row in (*shown.rows, *shown.foot)), ""]


def document(answer: Answer) -> dict[str, Any]:
    """The same for programs: seconds, bytes, FLOP/s."""
    workload = answer.workload
    return {
        "model": answer.model.name, "device": answer.where.device.key, "gpus": answer.where.cluster.ranks,
        "plan": rows.plan_fields(answer.plan),
        "workload": {name: getattr(workload, name) for name in workload.__slots__},
        "estimate": rows.estimate_fields(answer.estimate),
        "faster": {SHOWN_RATES[rate]: factor for rate, factor in answer.faster.items()},
        "whatif": None if answer.whatif is None else rows.estimate_fields(answer.whatif),
        "steps": {name: _step(answer, name) for name in answer.steps},
        "memory": {name: {"parts": dict(ledger.parts), "capacity": ledger.capacity, "fits": ledger.fits}
                   for name, ledger in answer.memory.items()},
        "notes": list(answer.notes),
    }


def _step(answer: Answer, name: str) -> dict[str, Any]:
    step = answer.steps[name]
    return {
        "seconds": step.seconds, "host": step.host, "streamed": answer.streamed(name),
        "elasticities": answer.elasticity(name),
        "operators": [{"operator": row.label, "calls": row.count, "seconds": row.seconds,
                       "bound": row.count * row.time.least, "limiter": SHOWN_RATES[row.time.limiter],
                       "basis": row.time.basis} for row in step.rows],
    }
