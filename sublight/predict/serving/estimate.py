"""This file knows about a serving estimate: a model, a plan and traffic become figures with intervals and a limiter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp

from sublight.models import Model
from sublight.plan import Disaggregated, Serving, Traffic
from sublight.predict.estimate import Estimate
from sublight.predict.machine import Machine
from sublight.predict.memory import kv_tokens
from sublight.predict.operators import silicon
from sublight.predict.optime import mixed_shares
from sublight.predict.serving.arrivals import Request, count_of, requests
from sublight.predict.serving.closed_form import Means, closed_form
from sublight.predict.serving.correction import Correction, correction
from sublight.predict.serving.disaggregated import Halves, simulate_halves, transfer_seconds
from sublight.predict.serving.flow import WAITS, Flow, flow_of
from sublight.predict.serving.host import engine, rules
from sublight.predict.serving.loop import SEQUENCES, Run, simulate
from sublight.predict.serving.pace import Pace, launch_seconds, pace
from sublight.predict.serving.typical import decode_step, prompt_step, share_of
from sublight.result import Result

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
UNLIMITED = 1e12                         # tokens of cache


def estimate(
    model: Model, plan: Serving | Disaggregated, traffic: Traffic, where: Machine, *, simulate: bool = True,
    family: str | None = None,
) -> Estimate:
    """Figures of a serving run: TTFT, TPOT, ITL, latency (s), tokens/s/GPU, tokens/s/user, requests/s.

    simulate: run it step by step (percentiles too); else a closed form, 1 ms or less where the steps' surface is known.
    family: constants that were fitted end to end are those that have seen no model of this family.
    Where answers are of one token there is no TPOT, ITL or tokens/s/user.
    Raises InputError where the plan's ranks do not divide the model.
    """
    if isinstance(plan, Disaggregated):
        return _halved(model, plan, traffic, where, family)
    return _aggregated(model, plan, traffic, where, simulate, family)


def accepted_tokens(plan: Serving) -> float:
    """Tokens of a sequence and decode step: one, and the guesses that hold."""
    return 1 + plan.drafts * plan.acceptance


def simulation(
    model: Model, plan: Serving | Disaggregated, traffic: Traffic, where: Machine, *, level: float = 1.0,
    load: Sequence[Request] | None = None,
) -> Run:
    """One instance step by step, with no constant that was fitted end to end but the level.

    load: requests that say when they arrive, instead of those that the traffic means.
    """
    users = None if load is not None else traffic.concurrency
    asked = requests(traffic, count_of(traffic)) if load is None else load
    if isinstance(plan, Disaggregated):
        return simulate_halves(halves_of(model, plan, traffic, where, level), asked, users=users,
                               accepted=accepted_tokens(plan.decode))
    return simulate(pace(model, plan, where, engine(plan.engine).host, level=level), rules(plan), asked, users=users,
                    kv_tokens=cache_tokens(model, plan, traffic, where), accepted=accepted_tokens(plan),
                    burst=traffic.burst)


def _aggregated(model: Model, plan: Serving, traffic: Traffic, where: Machine, by_steps: bool,
                family: str | None) -> Estimate:
    share = share_of(traffic, plan.replicas)
    fixes = _fixes(plan.engine, where, share, family)
    steps = pace(model, plan, where, engine(plan.engine).host, level=fixes.level)
    room = cache_tokens(model, plan, traffic, where)
    means = closed_form(steps, rules(plan), share, kv_tokens=room, accepted=accepted_tokens(plan))
    run = simulation(model, plan, share, where, level=fixes.level) if by_steps else None
    shares = _shares(model, plan, where, share, means, steps)
    flow = flow_of(share, means, run, plan.replicas)
    return Estimate(_results(means, run, fixes, traffic, plan.gpus, steps.calls, accepted_tokens(plan), flow), shares,
                    _lacking(means, run) or max(shares, key=lambda rate: shares[rate]), fixes.basis,
                    (*_notes(plan, share, means, room), *flow.notes(), *unmodelled(plan), *_eager(plan, where, steps)))


def _lacking(means: Means, run: Run | None) -> str:
    """What prompts wait for through a good part of TTFT; empty where that is short."""
    waits = run.waits if run else {means.lacks: means.waits / means.ttft}
    most = max(waits, key=lambda cause: waits[cause])
    return most if sum(waits.values()) > WAITS else ""


def _fixes(engine_name: str, where: Machine, traffic: Traffic, family: str | None) -> Correction:
    """traffic: of one instance, as the runs are by which intervals were fitted."""
    return correction(engine_name, where.device.key, users=traffic.concurrency or 32, family=family,
                      tables=where.tables and silicon.available())


def _notes(plan: Serving, share: Traffic, means: Means, room: float) -> list[str]:
    notes = []
    if room == UNLIMITED:
        notes.append("the weights leave no room for one sequence; taken as if the cache had no limit")
    if share.concurrency and means.lacks and means.b < 0.99 * share.concurrency:
        notes.append(f"room for {means.b:.0f} of {share.concurrency} sequences at once ({_room(means, plan, room)}): "
                     "the others wait")
    if plan.drafts and not plan.acceptance:
        notes.append("drafts without an acceptance: none of the guesses holds")
    return notes


def _room(means: Means, plan: Serving, room: float) -> str:
    if means.lacks == SEQUENCES:
        return f"max_sequences {rules(plan).max_sequences:,}"
    return f"{room:,.0f} tokens of cache"


def unmodelled(plan: Serving) -> list[str]:
    """Settings of a plan that change nothing here."""
    said = [name for name in ("two_batch_overlap", "attention_kind", "all_reduce_kind", "moe_kind")
            if getattr(plan, name)]
    notes = [f"{name.replace('_', ' ')} ({getattr(plan, name)}) is not modelled" if getattr(plan, name) is not True
             else f"{name.replace('_', ' ')} is not modelled" for name in said]
    if plan.chunked_prefill and not engine(plan.engine).rules.chunked and plan.token_budget is not None:
        notes.append(f"chunked prefill of {plan.engine} is not modelled: prompts are taken whole")
    return notes


def _eager(plan: Serving, where: Machine, steps: Pace) -> list[str]:
    if plan.cuda_graphs:
        return []
    calls = max(stage.decode_calls for stage in steps.stages)
    return [f"without CUDA graphs a decode step takes the launches of its {calls:,} kernels at least, "
            f"{calls * launch_seconds(plan, where) * 1e3:.2g} ms; what Python does besides is not counted"]


def cache_tokens(model: Model, plan: Serving, traffic: Traffic, where: Machine) -> float:
    """Tokens of cache of one instance, of all its attention replicas. Where not even one sequence fits the plan cannot
    run; it is taken as without limit, and said."""
    length = traffic.isl + traffic.osl
    fraction = plan.memory_fraction or engine(plan.engine).rules.memory_fraction
    room = kv_tokens(model, replace(plan, memory_fraction=fraction), where, length=length)
    return float(room) * plan.dp if room >= length else UNLIMITED


def _halved(model: Model, plan: Disaggregated, traffic: Traffic, where: Machine, family: str | None) -> Estimate:
    fixes = _fixes(plan.decode.engine, where, traffic, family)
    run = simulation(model, plan, traffic, where, level=fixes.level)
    tpot = sum(run.tpot) / max(1, len(run.tpot))
    means = Means(sum(run.ttft) / len(run.ttft), tpot, run.busy, run.length, 0.0, tpot)
    first, second = (pace(model, side, where, engine(side.engine).host, level=fixes.level)
                     for side in (plan.prefill, plan.decode))
    shares = _shares(model, plan.decode, where, traffic, means, second)
    flow = flow_of(traffic, means, run)
    return Estimate(_results(means, run, fixes, traffic, plan.gpus, first.calls, accepted_tokens(plan.decode), flow),
                    shares, _lacking(means, run) or max(shares, key=lambda rate: shares[rate]), fixes.basis,
                    (*flow.notes(), *dict.fromkeys((*unmodelled(plan.prefill), *unmodelled(plan.decode))),
                     *_eager(plan.decode, where, second)))


def halves_of(model: Model, plan: Disaggregated, traffic: Traffic, where: Machine, level: float = 1.0) -> Halves:
    """Pace, rules and room of both kinds of workers."""
    first, second = (pace(model, side, where, engine(side.engine).host, level=level)
                     for side in (plan.prefill, plan.decode))
    return Halves(
        first, second, rules(plan.prefill), rules(plan.decode), plan.prefill_workers * plan.prefill.replicas,
        plan.decode_workers * plan.decode.replicas, transfer_seconds(model, plan, where),
        cache_tokens(model, plan.decode, traffic, where),
    )


def _results(means: Means, run: Run | None, fixes: Correction, traffic: Traffic, gpus: int,
             calls: int, accepted: float, flow: Flow) -> Mapping[str, Result]:
    tpot = sum(run.tpot) / len(run.tpot) if run and run.tpot else means.tpot if traffic.osl > 1 else means.step
    raw = sum(run.ttft) / len(run.ttft) if run else means.ttft
    ttft = fixes.corrected(raw, tpot * accepted, calls)
    osl = traffic.osl * (1 + traffic.shortest) / 2
    latency = ttft + tpot * (osl - 1)
    both = _both(fixes, ttft, latency)
    made = {
        "TTFT": _result("TTFT", "s", ttft, fixes.ttft, _shifted(run.ttft, raw, ttft) if run else {}),
        "latency": _result("latency", "s", latency, both, _shifted(run.latency, raw, ttft) if run else {}),
        "requests/s": flow.result(traffic, latency, both, fixes.tpot),
    }
    rate = made["requests/s"]
    made["tokens/s/GPU"] = _times(rate, "tokens/s/GPU", "tokens/s", osl / gpus)
    if traffic.osl == 1:                 # nothing comes after the first token
        return made
    gap = _mean_gap(run.gaps) if run and run.tpot else tpot * accepted
    return {
        "TTFT": made.pop("TTFT"),
        "TPOT": _result("TPOT", "s", tpot, fixes.tpot, _percentiles(run.tpot) if run else {}),
        "ITL": _result("ITL", "s", gap, fixes.tpot, _gap_percentiles(run.gaps) if run else {}), **made,
        "tokens/s/user": _result("tokens/s/user", "tokens/s", 1 / tpot, (-fixes.tpot[1], -fixes.tpot[0]), {}),
    }


def _times(result: Result, name: str, unit: str, factor: float) -> Result:
    low, high = result.low, result.high
    return Result(name, unit, (result.samples[0] * factor,), low=None if low is None else low * factor,
                  high=None if high is None else high * factor)


def _both(fixes: Correction, ttft: float, latency: float) -> tuple[float, float]:
    """Of a sum: its parts' intervals by their share."""
    part = ttft / latency
    return (part * fixes.ttft[0] + (1 - part) * fixes.tpot[0], part * fixes.ttft[1] + (1 - part) * fixes.tpot[1])


def _result(name: str, unit: str, value: float, logs: tuple[float, float],
            percentiles: Mapping[float, float]) -> Result:
    return Result(name, unit, (value,), low=value * exp(logs[0]), high=value * exp(logs[1]), percentiles=percentiles)


def _percentiles(values: Sequence[float]) -> dict[float, float]:
    ordered = sorted(values)
    return {p: ordered[min(len(ordered) - 1, int(p / 100 * len(ordered)))] for p in PERCENTILES} if ordered else {}


def _shifted(values: Sequence[float], raw: float, corrected: float) -> dict[float, float]:
    """Percentiles of a simulation, moved by what was added to its mean."""
    return {p: value + corrected - raw for p, value in _percentiles(values).items()}


def _mean_gap(gaps: Sequence[tuple[float, int]]) -> float:
    """Of all gaps between two outputs of a sequence: with drafts several tokens come at once."""
    return sum(seconds * count for seconds, count in gaps) / sum(count for _, count in gaps)


def _gap_percentiles(gaps: Sequence[tuple[float, int]]) -> dict[float, float]:
    total = sum(count for _, count in gaps)
    out: dict[float, float] = {}
    seen, wanted = 0, list(PERCENTILES)
    for seconds, count in sorted(gaps):
        seen += count
        while wanted and total and seen >= wanted[0] / 100 * total:
            out[wanted.pop(0)] = seconds
    return out


def _shares(model: Model, plan: Serving, where: Machine, traffic: Traffic, means: Means,
            steps: Pace) -> Mapping[str, float]:
    """Of the time of a token in the middle of the run: a decode step, and the prompts that are prefilled in between."""
    decode = decode_step(model, plan, where, means, steps)
    between = 1.0 if traffic.osl == 1 else 1 - means.step / means.tpot
    if between <= 0:
        return decode.shares
    return mixed_shares([(1 - between, decode.shares), (between, prompt_step(model, plan, traffic, where).shares)])
