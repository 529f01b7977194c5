"""This file knows about expected figures beside the reported ones, and the terms that make them.

A speed's interval is the prediction's 80 % one. Of a log line, which is a moment and no run: the tokens a second of a
decode step with as many sequences and cached tokens as the line says, less the time that prompts take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import exp

from sublight.errors import InputError
from sublight.explain.answers.answer import Case, Judged, Row, Term
from sublight.explain.answers.load import Moment, moment
from sublight.models import Batch, Model
from sublight.ops import Attention, Communication, Experts, Gemm, GroupedGemm, ScaledGemm
from sublight.plan import Job, Serving, Traffic, Training
from sublight.predict import serving, training
from sublight.predict.estimate import Estimate
from sublight.predict.machine import Machine
from sublight.predict.serving.correction import Correction, correction
from sublight.predict.serving.host import engine, rules
from sublight.predict.serving.pace import Pace, pace, split
from sublight.predict.step import StepTime, step_time
from sublight.result import Result

SHOWN = ("TTFT", "TPOT", "latency", "requests/s", "tokens/s")
RATES = {"requests/s", "tokens/s"}
LOWER = {"TTFT", "TPOT", "ITL", "latency", "step time"}
ASSUMED = Traffic(isl=1024, osl=256, concurrency=1)
MOST_SIMULATED = 400_000                 # tokens of answers: longer runs are taken in closed form
LEAST_SHARE = 0.01


def judged(case: Case) -> Judged:
    """Expected figures of one case, as far as the text supports them."""
    if case.plan is None or case.model is None or case.where is None:
        return Judged(case, tuple(reported_rows(case)))
    try:
        if isinstance(case.plan, Training):
            return _trained(case, case.plan, case.model, case.where)
        return _served(case, case.plan, case.model, case.where)
    except InputError as error:
        return Judged(case, tuple(reported_rows(case)), notes=(f"no prediction: {error}",))


def reported_rows(case: Case) -> list[Row]:
    """What the summary or the log says, alone."""
    out = [Row(result.name, result.unit, value, lower_is_better=result.name in LOWER)
           for result in case.table if result.name in SHOWN and (value := mean(result)) is not None]
    if not out and case.log is not None:
        from sublight.observe.logs.read import results

        out = [Row(result.name + (f" ({result.variant})" if result.variant else ""), result.unit, value,
                   lower_is_better=result.name in LOWER)
               for result in results(case.log, "log")[0] if (value := middle(result)) is not None]
    return out


def mean(result: Result) -> float | None:
    return sum(result.samples) / len(result.samples) if result.samples else None


def middle(result: Result) -> float | None:
    from statistics import median

    return median(result.samples) if result.samples else None


# ---- serving


def _served(case: Case, plan: Serving, model: Model, where: Machine) -> Judged:
    load = case.load if isinstance(case.load, Traffic) else ASSUMED
    found = estimated(model, plan, load, where)
    rows, notes = [], list(found.notes)
    reported = {result.name: mean(result) for result in case.table}
    now = moment(case.log, plan, model, where)
    if isinstance(case.load, Traffic) and (case.table or now is None):
        for name in SHOWN:
            own = found.results.get("tokens/s/GPU" if name == "tokens/s" else name)
            if own is None:              # answers of one token have no TPOT
                continue
            if name in RATES and "TPOT" in found.results and queued(case.load, plan, found):
                own = by_token(own, found.results["TPOT"])
            scale = plan.gpus if name == "tokens/s" else 1
            rows.append(_row(name, own, reported.get(name), scale))
    elif now is None:
        rows = [_row(name, found.results[name], None, 1) for name in ("TTFT", "TPOT", "tokens/s/user")]
        notes.append("the load is not said: expected of one request at a time, 1,024 tokens in, 256 out")
    if now is not None and now.length:
        rows += _of_moment(now, plan, model, where)
    step, words = decode_step(model, plan, load, where, now)
    return Judged(case, tuple(rows), tuple(terms(step)), words, found.limiter, found.basis,
                  notes=tuple(dict.fromkeys(notes)))


def estimated(model: Model, plan: Serving, load: Traffic, where: Machine) -> Estimate:
    """Step by step where the run is short enough to be simulated at once."""
    short = (load.requests or 16 * (load.concurrency or 64)) * load.osl <= MOST_SIMULATED
    return serving.estimate(model, plan, load, where, simulate=short)


def queued(load: Traffic, plan: Serving, found: Estimate) -> bool:
    """More is asked than runs at once."""
    limit = (plan.max_sequences or rules(plan).max_sequences) * plan.dp * plan.replicas
    return found.limiter in ("KV capacity", "max sequences") or (load.concurrency or 0) > limit


def by_token(rate: Result, token: Result) -> Result:
    """A rate with the interval of the time a token: while others wait the batch is full, and how long they wait (whose
    interval is wide) does not change what it does a second."""
    if token.low is None or token.high is None:
        return rate
    value, own = rate.samples[0], token.samples[0]
    return replace(rate, low=value * own / token.high, high=value * own / token.low)


def _row(name: str, expected: Result, reported: float | None, scale: float) -> Row:
    low, high = expected.low, expected.high
    return Row(name, expected.unit, reported, expected.samples[0] * scale, None if low is None else low * scale,
               None if high is None else high * scale, name in LOWER)


def steps_of(plan: Serving, model: Model, where: Machine, users: float = 32) -> tuple[Pace, Correction]:
    """The pace of the plan with its level, and the constants that were fitted."""
    fixes = correction(plan.engine, where.device.key, users=round(users), tables=where.tables)
    return pace(model, plan, where, engine(plan.engine).host, level=fixes.level), fixes


def moment_rate(now: Moment, plan: Serving, model: Model, where: Machine) -> tuple[float, float, float]:
    """Generated tokens a second that the lines should show: expected, and the ends of the 80 % interval."""
    steps, fixes = steps_of(plan, model, where, now.running)
    each = max(1, round(now.running / plan.replicas))
    step = steps.decode(each, now.length or 1.0)
    budget = min(rules(plan).token_budget, 8192)
    prompt = steps.mixed(0, 0.0, [(budget, 0)], 1) / budget      # seconds of a prompt's token
    busy = min(0.95, now.prompt_rate * (1 - now.prefix_hit) / plan.replicas * prompt)
    rate = now.running * now.accepted / step * (1 - busy)
    return rate, rate * exp(-fixes.tpot[1]), rate * exp(-fixes.tpot[0])


def _of_moment(now: Moment, plan: Serving, model: Model, where: Machine) -> list[Row]:
    rate, low, high = moment_rate(now, plan, model, where)
    step = now.running * now.accepted / now.generation_rate if now.generation_rate else None
    rows = [Row("tokens/s (log)", "tokens/s", now.generation_rate or None, rate, low, high)]
    if step is not None:
        busy = now.running * now.accepted
        rows.append(Row("time a token (log)", "s", step, busy / rate, busy / high, busy / low, True))
    return rows


def decode_step(model: Model, plan: Serving, load: Traffic, where: Machine, now: Moment | None) -> tuple[StepTime, str]:
    """The typical decode step: of the log's moment, else of the load."""
    from sublight.predict.serving.typical import typical_steps

    if now is None or not now.length:
        step = typical_steps(model, plan, load, where)["decode"]
        batch = step.run.batches[0] if step.run else None
        words = f"{batch.sequences} sequences of {batch.context:,} cached tokens" if batch else ""
        return step, words
    each = max(1, round(now.running / plan.replicas / plan.dp))
    length = max(1, round(now.length))
    batch = Batch(each, 1 + plan.drafts, length, decode=True)
    step = step_time(model, (batch,), split(plan), where, drafts=plan.drafts)
    host = engine(plan.engine).host
    return replace(step, host=host.step + host.sequence * each), f"{each} sequences of {length:,} cached tokens"


GROUPS: tuple[tuple[type, str], ...] = (
    (Attention, "attention (reads the cache)"), (Communication, "collectives between ranks"),
    (Experts, "experts (read their weights)"), (GroupedGemm, "experts (read their weights)"),
    (Gemm, "matrix products (read the weights)"), (ScaledGemm, "matrix products (read the weights)"))
OTHERS = "small operators"
HOST = "host: scheduling, sampling, launches"


def terms(step: StepTime) -> list[Term]:
    """Parts of a step by what they are, largest first, summing to it."""
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    for row in step.rows:
        name = next((words for kind, words in GROUPS if isinstance(row.op, kind)), OTHERS)
        seconds[name] = seconds.get(name, 0.0) + row.seconds
        calls[name] = calls.get(name, 0) + row.count
    if step.host:
        seconds[HOST] = step.host
    total = sum(seconds.values())
    return [Term(name, value, value / total, calls.get(name, 0))
            for name, value in sorted(seconds.items(), key=lambda item: -item[1])]


# ---- training


def _trained(case: Case, plan: Training, model: Model, where: Machine) -> Judged:
    if not isinstance(case.load, Job):
        return Judged(case, tuple(reported_rows(case)))
    found = training.estimate(model, plan, case.load, where)
    said: Mapping[str, float | None] = {row.name: row.reported for row in reported_rows(case)}
    rows = [_row(name, own, said.get(name), 1) for name, own in found.results.items()]
    step = training.typical_step(model, plan, case.load, where)
    return Judged(case, tuple(rows), tuple(terms(step)), "one micro-batch on the first stage", found.limiter,
                  found.basis, notes=tuple(found.notes))
