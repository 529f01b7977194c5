"""This file knows about regret and about mistakes in tuner files on the screen: text, markdown, JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import Any

from sublight.comm.tuner.lint import Mistake
from sublight.comm.tuner.regret import Regret, Run
from sublight.show.nccl import WIDTH, Table, columns, nbytes


def regret(found: Sequence[Regret], form: str, remark: str = "") -> str:
    """NCCL's own choice beside the best run of each size, in one of the forms "table", "md", "json". remark: what the
    times are, where they were not measured here."""
    if form == "json":
        basis = {"basis": remark} if remark else {}
        return json.dumps([_entry(r) | basis for r in found], indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    lines: list[str] = []
    jobs = dict.fromkeys((r.collective, r.nodes, r.ranks) for r in found)
    for job in jobs:
        mine = [r for r in found if (r.collective, r.nodes, r.ranks) == job]
        lines += [f"{job[0]} on {job[1]} node{'s' if job[1] > 1 else ''}, {job[2]} ranks"]
        rows: Table = [("size", "NCCL takes", "µs", "best", "µs", "loss")]
        rows += [(nbytes(r.nbytes), r.own, _us(r.own_seconds), r.best.name, _us(r.best.seconds), _percent(r.loss))
                 for r in mine]
        lines += [*columns(rows, "><><>>"), *textwrap.wrap(_summary(mine), WIDTH), *textwrap.wrap(remark, WIDTH), ""]
    text = "\n".join(lines[:-1]) + "\n"
    return f"```text\n{text}```\n" if form == "md" else text


def _entry(r: Regret) -> dict[str, Any]:
    return {"collective": r.collective, "nodes": r.nodes, "ranks": r.ranks, "bytes": r.nbytes, "own": r.own,
            "own_us": None if r.own_seconds is None else r.own_seconds * 1e6, "best": _run(r.best), "loss": r.loss,
            "runs": [_run(run) for run in r.runs]}


def _run(run: Run) -> dict[str, Any]:
    return {"algorithm": run.algorithm, "protocol": run.protocol, "channels": run.channels, "us": run.seconds * 1e6}


def _us(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds * 1e6:,.1f}"


def _percent(loss: float | None) -> str:
    return "-" if loss is None else f"{loss * 100:.1f} %"


def _summary(found: Sequence[Regret]) -> str:
    known = [(r.loss, r) for r in found if r.loss is not None]
    if not known:
        return "Nothing to compare: at no size were NCCL's own choice and another one measured."
    loss, worst = max(known, key=lambda pair: pair[0])
    sizes = _many(len(known), "size")
    behind = sum(loss > 0.02 for loss, _ in known)
    if loss <= 0.02:
        return f"NCCL's own choice is within 2 % of the best run, at {sizes} with more than one run."
    return (f"NCCL's own choice is more than 2 % behind the best run at {behind} of {sizes}; most at "
            f"{nbytes(worst.nbytes)}: {loss * 100:.1f} % longer than {worst.best.name}.")


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def mistakes(found: Sequence[Mistake], rows: int, form: str) -> str:
    """What is wrong with a file."""
    if form == "json":
        return json.dumps([{"line": m.line, "wrong": m.wrong, "text": m.text} for m in found], indent=1,
                          ensure_ascii=False) + "\n"
    lines = []
    for m in found:
        lines += textwrap.wrap(f"line {m.line}: {'wrong' if m.wrong else 'note'}: {m.text}", WIDTH,
                               subsequent_indent="  ", break_on_hyphens=False)
    wrong = sum(m.wrong for m in found)
    lines.append(f"{_many(rows, 'row')}, {wrong} wrong, {_many(len(found) - wrong, 'note')}")
    text = "\n".join(lines) + "\n"
    return f"```text\n{text}```\n" if form == "md" else text
