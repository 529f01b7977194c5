"""This file knows about the rows of a prediction: results, memory, waterfalls, elasticities. No format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from sublight.plan import Disaggregated, Job, Plan, Traffic, Training
from sublight.predict.answer import SHOWN_RATES, Answer, limiter_words
from sublight.predict.estimate import Estimate
from sublight.predict.step import StepTime
from sublight.show.units import gib, interval, quantity, seconds

Row = tuple[str, ...]
LEAST_SHARE = 0.005          # operators below it are one row, "others"


@dataclass(frozen=True, slots=True)
class Table:
    """A caption, titles of columns, rows; shares: of the longest bar, for the formats that draw."""

    caption: str
    head: Row
    rows: tuple[Row, ...]
    shares: tuple[float, ...] = ()
    foot: tuple[Row, ...] = ()


def title(answer: Answer) -> str:
    """What was asked, in one line."""
    where = answer.where.cluster
    gpus = f"{where.ranks} x {where.node.device.title}"
    return f"{answer.model.name} on {gpus}: {plan_words(answer.plan)}; {workload_words(answer)}"


def plan_words(plan: Plan) -> str:
    """The layout, by what is not 1.

    >>> from sublight.plan import Serving
    >>> plan_words(Serving(tp=4, replicas=2)), plan_words(Training(tp=8, pp=4, dp=16))
    ('vllm, tp 4, replicas 2', 'megatron, tp 8, pp 4, dp 16, mbs 1, bf16')
    """
    if isinstance(plan, Disaggregated):
        return (f"{plan.prefill_workers} prefill ({plan_words(plan.prefill)}) and {plan.decode_workers} decode "
                f"({plan_words(plan.decode)})")
    names = ("tp", "pp", "vpp", "cp", "dp", "ep", "etp", "replicas", "drafts")
    sizes = [f"{name} {getattr(plan, name)}" for name in names
             if hasattr(plan, name) and getattr(plan, name) != (0 if name == "drafts" else 1)]
    if isinstance(plan, Training):
        recompute = [] if plan.recompute == "none" else [f"{plan.recompute} recompute"]
        return ", ".join([plan.framework, *sizes, f"mbs {plan.mbs}", *recompute, plan.precision])
    version = f" {plan.version}" if plan.version else ""
    return ", ".join([plan.engine + version, *(sizes or ["tp 1"])])


def workload_words(answer: Answer) -> str:
    workload = answer.workload
    if isinstance(workload, Job):
        return f"sequences of {workload.seq:,}, {workload.gbs:,} a step"
    assert isinstance(workload, Traffic)
    load = f"{workload.concurrency} at once" if workload.concurrency is not None else f"{workload.rate:g} requests/s"
    return f"{workload.isl:,} tokens in, {workload.osl:,} out, {load}"


def results(answer: Answer) -> Table:
    """Every predicted result with its interval, percentiles where they were simulated, and the what-if's beside."""
    shown = answer.estimate.results
    marks = sorted({mark for result in shown.values() for mark in result.percentiles})
    head = ("", "predicted", "80 % interval", *(f"p{mark:g}" for mark in marks),
            *(("what-if", "change") if answer.whatif else ()))
    rows = []
    for name, result in shown.items():
        value = result.samples[0]
        row = [name, quantity(value, result.unit), interval(result)]
        row += [quantity(result.percentiles[m], result.unit) if m in result.percentiles else "" for m in marks]
        if answer.whatif:
            other = answer.whatif.value(name)
            row += [quantity(other, result.unit), f"{100 * (other / value - 1):+.1f} %"]
        rows.append(tuple(row))
    return Table("Predicted", head, tuple(rows))


def memory(answer: Answer) -> list[Table]:
    """A ledger each role or stage."""
    out = []
    for name, ledger in answer.memory.items():
        rows = tuple((part, gib(size), f"{100 * size / ledger.capacity:.1f} %") for part, size in ledger.parts.items())
        state = "free" if ledger.fits else "too much"
        left = abs(ledger.capacity - ledger.used)
        foot = ((state, gib(left), f"{100 * left / ledger.capacity:.1f} %"), ("capacity", gib(ledger.capacity), ""))
        out.append(Table(f"Memory of one GPU ({name})" if len(answer.memory) > 1 else "Memory of one GPU",
                         ("part", "bytes", "of capacity"), rows,
                         tuple(size / ledger.capacity for size in ledger.parts.values()), foot))
    return out


def waterfalls(answer: Answer) -> list[Table]:
    """A step each: operators by time, with their bound and what limits them."""
    return [_waterfall(name, step, answer.streamed(name)) for name, step in answer.steps.items()]


def _waterfall(name: str, step: StepTime, streamed: float | None) -> Table:
    whole = step.seconds
    rows: list[Row] = []
    shares: list[float] = []
    rest, rest_bound, rest_count = 0.0, 0.0, 0
    for row in sorted(step.rows, key=lambda row: -row.seconds):
        least = row.count * row.time.least
        if row.seconds < LEAST_SHARE * whole:
            rest, rest_bound, rest_count = rest + row.seconds, rest_bound + least, rest_count + row.count
            continue
        rows.append((row.label, f"{row.count}", seconds(row.seconds), _percent(row.seconds / whole),
                     seconds(least) if least else "", _percent(least / row.seconds) if least else "",
                     SHOWN_RATES[row.time.limiter], row.time.basis))
        shares.append(row.seconds / whole)
    if rest_count:
        rows.append(("others", f"{rest_count}", seconds(rest), _percent(rest / whole), seconds(rest_bound),
                     _percent(rest_bound / rest), "", ""))
        shares.append(rest / whole)
    if step.host:
        rows.append(("host", "", seconds(step.host), _percent(step.host / whole), "", "", "fixed costs", ""))
        shares.append(step.host / whole)
    least = sum(row.count * row.time.least for row in step.rows)
    foot: tuple[Row, ...] = (("step", "", seconds(whole), "100 %", seconds(least), _percent(least / whole), "", ""),)
    if streamed is not None:             # a bound takes an L2 off each operator, which holds no model's weights
        foot += (("all bytes streamed", "", "", "", seconds(streamed), _percent(streamed / whole), "", ""),)
    words = {"prefill": "One prefill step", "decode": "One decode step",
             "training": "One micro-batch, forward and backward, on the first stage"}
    return Table(words.get(name, name), ("operator", "calls", "time", "share", "bound", "of time", "limited by",
                                         "from"), tuple(rows), tuple(shares), foot)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def elasticities(answer: Answer) -> Table:
    """What one per cent more of each rate does to each step."""
    steps = list(answer.steps)
    rows = tuple(
        (name, *(f"{answer.elasticity(step)[name]:+.2f} %" for step in steps)) for name in SHOWN_RATES.values())
    total = ("sum", *(f"{sum(answer.elasticity(step).values()):+.2f} %" for step in steps))
    return Table("Change of a step's time for 1 % more of a rate", ("rate", *steps), rows, foot=(total,))


def said(answer: Answer) -> Iterator[str]:
    """The lines below: limiter, basis, assumptions."""
    yield f"limiter: {limiter_words(answer.estimate.limiter)}"
    if answer.whatif:
        factors = ", ".join(f"{SHOWN_RATES[rate]} x {factor:g}" for rate, factor in answer.faster.items())
        yield f"what-if: {factors}; limiter then: {limiter_words(answer.whatif.limiter)}"
    yield f"basis: {answer.estimate.basis}"
    yield from (f"- {note}" for note in dict.fromkeys((*answer.notes, *answer.estimate.notes)))


def plan_fields(plan: Plan) -> dict[str, object]:
    """A plan for programs: every field by its name."""
    if isinstance(plan, Disaggregated):
        return {"prefill": plan_fields(plan.prefill), "decode": plan_fields(plan.decode),
                "prefill_workers": plan.prefill_workers, "decode_workers": plan.decode_workers}
    out = {field.name: getattr(plan, field.name) for field in fields(plan)}
    return {name: dict(value) if name == "extra" else value for name, value in out.items()}


def estimate_fields(estimate: Estimate) -> dict[str, object]:
    """An estimate for programs."""
    return {
        "results": {name: {"unit": r.unit, "value": r.samples[0], "low": r.low, "high": r.high,
                           "percentiles": {f"{mark:g}": value for mark, value in r.percentiles.items()}}
                    for name, r in estimate.results.items()},
        "shares": {SHOWN_RATES[rate]: share for rate, share in estimate.shares.items()},
        "limiter": limiter_words(estimate.limiter), "basis": estimate.basis, "notes": list(estimate.notes),
    }
