"""This file knows about what the arena found, on the screen: checks, runs, choices; as text, Markdown and JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sublight.kernels.arena.choice import ChoiceTable, Nearest
from sublight.kernels.arena.outcome import PASSED, REFUSED
from sublight.kernels.arena.session import Run, Timed, Trial, run_json, trial_json
from sublight.show.nccl import columns
from sublight.show.predict_rows import Table
from sublight.show.units import quantity

WIDTH = 110
SHOWN = 6                                # failures of a kernel that are shown
LEFT = {"kernel", "shape", "against the fastest", "outcome", "output", "chosen", "next", "field", "measured shape"}


def words(shape: Mapping[str, Any]) -> str:
    """A shape in short: sizes and switches that are set.

    >>> words({"rows": 4, "form": "bf16", "residual": False, "quant": None, "eps": 1e-6})
    'rows=4,form=bf16'
    """
    return ",".join(f"{name}={value}" for name, value in shape.items()
                    if value is not None and value is not False and not isinstance(value, float))


def _shown(tables: Iterable[Table], notes: Iterable[str], form: str) -> str:
    """Tables and what there is to say below them, as text or Markdown."""
    lines: list[str] = []
    for made in tables:
        lines += _markdown(made) if form == "md" else _plain(made)
        lines.append("")
    for note in notes:
        lines += [note, ""] if form == "md" else textwrap.wrap(note, WIDTH, break_on_hyphens=False)
    return "\n".join(lines).rstrip("\n") + "\n"


def _plain(made: Table) -> list[str]:
    align = "".join("<" if name in LEFT else ">" for name in made.head)
    return [made.caption, *(columns([made.head, *made.rows], align) if made.rows else ())]


def _markdown(made: Table) -> list[str]:
    marks = "|".join(" :-- " if name in LEFT else " --: " for name in made.head)
    rows = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in made.rows]
    return [f"### {made.caption}", "", *([f"| {' | '.join(made.head)} |", f"|{marks}|", *rows] if rows else ())]


# ---- check --------------------------------------------------------------------------------------------------------


def check_text(op: str, trials: Sequence[Trial], form: str) -> str:
    """One row a kernel and output: how far it is from what is allowed, at most; then what failed."""
    return _shown([_errors(op, trials)], _failures(trials), form)


def _errors(op: str, trials: Sequence[Trial]) -> Table:
    head = ("kernel", "output", "cases", "passed", "refused", "rel. L2", "of its bound", "of honest", "outcome")
    rows: list[tuple[str, ...]] = []
    for kernel in dict.fromkeys(trial.kernel for trial in trials):
        mine = [trial for trial in trials if trial.kernel == kernel]
        kinds = [trial.outcome.kind for trial in mine]
        said = "ok" if all(trial.outcome.ok for trial in mine) else "FAILED"
        counts = (str(len(mine)), str(kinds.count(PASSED)), str(kinds.count(REFUSED)))
        outputs = list(dict.fromkeys(row["output"] for trial in mine for row in trial.errors)) or [""]
        for output in outputs:
            found = [row for trial in mine for row in trial.errors if row["output"] == output]
            first = output == outputs[0]
            rows.append((kernel if first else "", output, *(counts if first else ("", "", "")),
                         _most(found, "rel_l2"), _most(found, "share_of_bound"), _most(found, "share_of_honest"),
                         said if first else ""))
    cases = len({repr(sorted(trial.case.items(), key=str)) for trial in trials})
    return Table(f"{op}: {cases} cases; the largest error of all cases, allowed are 1 of the bound and 1.5 of honest",
                 head, tuple(rows))


def _most(found: Sequence[Mapping[str, Any]], name: str) -> str:
    values = [None if row["non_finite"] else row[name] for row in found]
    known = [value for value in values if value is not None]
    return "" if not values else "∞" if len(known) < len(values) else f"{max(known):.3g}"


def _failures(trials: Sequence[Trial]) -> Iterable[str]:
    """What is said of several cases of a kernel is said once; of the rest, the first of each kernel."""
    cases: dict[tuple[str, str], list[str]] = {}
    for trial in trials:
        if not trial.outcome.ok:
            case = trial.case
            cases.setdefault((trial.kernel, str(trial.outcome)), []).append(
                f"{words(case['shape'])} {case['values']} seed {case['seed']}")
    for kernel in dict.fromkeys(kernel for kernel, _ in cases):
        said = {what: where for (of, what), where in cases.items() if of == kernel}
        for what, where in list(said.items())[:SHOWN]:
            more = f" and {len(where) - 1} more" if len(where) > 1 else ""
            yield f"{kernel}, {where[0]}{more}: {what}"
        if left := list(said.values())[SHOWN:]:
            yield f"{kernel}: {sum(map(len, left))} more cases failed; --format json has all of them"
    refused = {(trial.kernel, trial.outcome.said[0]) for trial in trials if trial.outcome.kind == REFUSED}
    for kernel, why in sorted(refused):
        yield f"{kernel} refuses: {why}"


def check_document(op: str, trials: Sequence[Trial]) -> dict[str, Any]:
    """As JSON."""
    return {"op": op, "ok": all(trial.outcome.ok for trial in trials), "trials": list(map(trial_json, trials))}


# ---- bench --------------------------------------------------------------------------------------------------------


def bench_text(runs: Sequence[Run], form: str, shares: Sequence[float | None] = ()) -> str:
    """A table of each shape, the fastest kernel first; then what holds of all."""
    given = shares or (None,) * len(runs)
    return _shown([_run(run, share) for run, share in zip(runs, given, strict=True)],
                  dict.fromkeys(note for run in runs for note in _notes(run)), form)


def _run(run: Run, share: float | None) -> Table:
    head = ("kernel", "median", "interval", "against the fastest", "of the bound", "CPU time", "rounds", "outcome")
    standing = {one.name: one for one in run.standings()}
    order = [kernel for name in standing for kernel in run.kernels if kernel.kernel == name]
    order += [kernel for kernel in run.kernels if kernel.kernel not in standing]
    rows = tuple(_row(run, kernel, standing.get(kernel.kernel)) for kernel in order)
    weight = "" if share is None else f" ({share:.1%} of what was asked)"
    least = "" if run.bound_seconds is None else f"; bound {quantity(run.bound_seconds, 's')}, {run.limiter}"
    caption = f"{run.op} {words(run.shape)}{weight}: caches {run.cache}, {run.threads} thread" \
              f"{'s' if run.threads > 1 else ''}, {run.working_set / 2**20:.3g} MiB{least}"
    return Table(caption, head, rows)


def _row(run: Run, kernel: Timed, standing: Any) -> tuple[str, ...]:
    if standing is None:
        return (kernel.kernel, "", "", "", "", "", str(len(kernel.ns)), kernel.outcome.kind)
    known = [cpu for cpu in kernel.cpu_ns if cpu is not None]
    cpu = quantity(sorted(known)[len(known) // 2] / 1e9, "s") if known else "?"
    share = "?" if run.bound_seconds is None else f"{run.bound_seconds / standing.seconds:.0%}"
    return (kernel.kernel, quantity(standing.seconds, "s"),
            f"{quantity(standing.low, 's')} – {quantity(standing.high, 's')}", _beside(standing), share, cpu,
            str(len(kernel.ns)), kernel.outcome.kind)


def _beside(standing: Any) -> str:
    if standing.times_best == standing.times_low == standing.times_high == 1:
        return "the fastest"
    text = f"{standing.times_best:.2f} x ({standing.times_low:.2f} – {standing.times_high:.2f})"
    return f"{text}, a tie" if standing.tied else text


def _notes(run: Run) -> Iterable[str]:
    if run.rates:
        told = ", ".join(f"{name} {best / 1e9:.3g} (median {below:.0%} lower)"
                         for name, (best, below) in run.rates.items() if best)
        yield f"Ceilings of {words(run.shape)}, the best of the run, in GB/s and GFLOP/s: {told}."
    if run.note:
        yield f"{run.note}."
    for kernel in run.kernels:
        if kernel.outcome.kind != PASSED:
            yield f"{kernel.kernel}, {words(run.shape)}: {kernel.outcome}"
        elif kernel.ns and kernel.tolerance_ns > sorted(kernel.ns)[len(kernel.ns) // 2]:
            yield (f"{kernel.kernel}, {words(run.shape)}: its calls are shorter than what an exchange with its process "
                   f"takes; its own clock is believed within {kernel.tolerance_ns / 1e3:.0f} µs only.")
    if run.known:
        yield f"{words(run.shape)}: from the file of results, not measured again."
    yield ("Times are of calls in interleaved order, without waits for a CPU; intervals hold with 95 %, ratios for all "
           "pairs of kernels of a run together.")


def bench_document(runs: Sequence[Run]) -> dict[str, Any]:
    """As JSON, with every time."""
    return {"runs": [run_json(run) for run in runs]}


# ---- choose -------------------------------------------------------------------------------------------------------


def choice_text(made: ChoiceTable, form: str, shares: Sequence[float | None],
                calls: Sequence[tuple[int, float]] = ()) -> str:
    """One row a shape. calls: of each shape, how many there are in the trace that was asked for, and the seconds of
    one of them there: then what the choice would gain is said."""
    traced = len(calls) == len(made.choices)
    head = ("shape", "share", *(("calls", "there") if traced else ()), "chosen", "median", "of the bound", "next",
            "costs")
    rows = []
    for at, (choice, share) in enumerate(zip(made.choices, shares, strict=True)):
        other = min(choice.regret, key=lambda name: choice.regret[name][0], default="")
        cost = "" if not other else f"{choice.regret[other][0]:.2f} x{' (a tie)' if other in choice.tied else ''}"
        there = (str(calls[at][0]), quantity(calls[at][1], "s")) if traced else ()
        rows.append((words(choice.shape), "" if share is None else f"{share:.1%}", *there, choice.kernel,
                     quantity(choice.seconds, "s"),
                     "?" if choice.share_of_bound is None else f"{choice.share_of_bound:.0%}", other, cost))
    caption = f"{made.op}: the fastest kernel of each shape"
    return _shown([Table(caption, head, tuple(rows))], _gain(made, shares, calls) if traced else (), form)


def _gain(made: ChoiceTable, shares: Sequence[float | None], calls: Sequence[tuple[int, float]]) -> Iterable[str]:
    """What the calls of the trace take there, what they would take by the choice, and what that makes of the whole."""
    now = sum(count * seconds for count, seconds in calls)
    then = sum(count * choice.seconds for (count, _), choice in zip(calls, made.choices, strict=True))
    share = sum(known for known in shares if known is not None)
    if now and share:
        left = 1 - share * (1 - then / now)
        yield (f"In the trace these calls take {quantity(now, 's')}, {share:.1%} of the time of its operators. By the "
               f"choice they would take {quantity(then, 's')}, and all of it be done {1 / left:.2f} times as fast, if "
               "nothing else changes and kernels run there as they do here.")


def left_out(runs: Iterable[Run]) -> Iterable[str]:
    """Kernels that were not chosen from, since they failed, and why. What a kernel refuses itself is no failure."""
    for run in runs:
        for kernel in run.kernels:
            if kernel.outcome.kind not in (PASSED, REFUSED):
                yield f"{kernel.kernel} is left out, {words(run.shape)}: {kernel.outcome}"


def nearest_text(found: Sequence[tuple[str, Nearest]], form: str) -> str:
    """One row a shape that was looked up."""
    head = ("shape", "chosen", "measured shape", "times off", "field")
    rows = tuple((text, near.choice.kernel, words(near.choice.shape), f"{2**near.distance:.3g}", near.field or "")
                 for text, near in found)
    return _shown([Table("from the choice table", head, rows)], (), form)


def nearest_document(found: Sequence[tuple[str, Nearest]]) -> dict[str, Any]:
    """As JSON."""
    return {"found": [{"shape": text, "kernel": near.choice.kernel, "sure": near.choice.sure,
                       "measured_shape": dict(near.choice.shape), "times_off": 2**near.distance, "field": near.field}
                      for text, near in found]}
