"""This file knows about the search for a plan: every valid layout is estimated, judged by what it must keep, ranked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from sublight.errors import InputError
from sublight.improve.layouts import filled, powers, serving_layouts, training_layouts
from sublight.models import Model
from sublight.plan import Job, Serving, Traffic, Training
from sublight.predict.estimate import Estimate
from sublight.predict.machine import Machine

MOST_CONCURRENCY = 4096                  # requests at once of one instance that are tried
ROOM = ("KV capacity", "max sequences")   # limiters of a run whose requests wait for room


@dataclass(frozen=True, slots=True)
class Slo:
    """What an answer must keep, in mean: seconds to the first token, and a token after it. None: anything goes."""

    ttft: float | None = None
    tpot: float | None = None

    def keeps(self, estimate: Estimate) -> bool:
        return ((self.ttft is None or estimate.value("TTFT") <= self.ttft)
                and (self.tpot is None or "TPOT" not in estimate.results or estimate.value("TPOT") <= self.tpot))

    def surely(self, estimate: Estimate) -> bool:
        """The upper ends of the 80 % intervals keep it too."""
        return all(limit is None or name not in estimate.results
                   or (estimate.results[name].high or estimate.value(name)) <= limit
                   for name, limit in (("TTFT", self.ttft), ("TPOT", self.tpot)))


def slo(text: str) -> Slo:
    """"ttft=2s,tpot=30ms".

    >>> slo("ttft=2s,tpot=30ms")
    Slo(ttft=2.0, tpot=0.03)
    """
    values: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        scale = next((s for unit, s in (("ms", 1e-3), ("us", 1e-6), ("s", 1.0)) if value.endswith(unit)), None)
        try:
            seconds = float(value.rstrip("mus")) * (scale or 0)
        except ValueError:
            seconds = 0.0
        if name not in ("ttft", "tpot") or not 0 < seconds < inf:
            raise InputError(f"--slo {part}: expected ttft=2s or tpot=30ms")
        values[name] = seconds
    return Slo(**values)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan at one load. concurrency: of all GPUs together."""

    plan: Serving
    where: Machine
    concurrency: int
    estimate: Estimate
    sure: bool                           # the interval's worse end keeps the SLO too

    @property
    def per_gpu(self) -> float:
        """Output tokens a second and GPU."""
        return self.estimate.value("tokens/s/GPU")

    @property
    def per_user(self) -> float:
        """0 where answers are of one token: then there is no rate."""
        return self.estimate.value("tokens/s/user") if "tokens/s/user" in self.estimate.results else 0.0


def candidates(
    model: Model, traffic: Traffic, machines: Iterable[Machine], limits: Slo, base: Serving | None = None,
) -> list[Candidate]:
    """Every valid layout of each machine's engine at every load that keeps the SLO. traffic's own concurrency is not
    read: loads are 1, 2, 4 … requests an instance.

    Raises InputError where no layout is valid, with the reasons of the nearest one.
    """
    out: list[Candidate] = []
    valid = 0
    for where in machines:
        one = replace(traffic, concurrency=1, rate=None)
        plan = _of_engine(base or Serving(), where, one)
        for layout in serving_layouts(model, where, one, plan):
            valid += 1
            out += _loads(model, layout, one, where, limits)
    if not valid:
        raise InputError(f"no layout of {model.name} is valid there; sublight predict with --tp … names the reasons")
    return out


def _of_engine(base: Serving, where: Machine, traffic: Traffic) -> Serving:
    """The base with what the engine does: one that takes prompts whole needs a step that holds one."""
    from sublight.predict.serving.host import engine

    usual = engine(where.library).rules
    plan = replace(base, engine=where.library, version=where.version)
    if usual.chunked:
        return plan
    budget = traffic.isl if traffic.isl > (plan.token_budget or usual.token_budget) else plan.token_budget
    return replace(plan, chunked_prefill=False, token_budget=budget)


def _loads(model: Model, plan: Serving, traffic: Traffic, where: Machine, limits: Slo) -> list[Candidate]:
    """Loads from one request an instance up, until the SLO breaks, requests wait for room, or nothing more is gained;
    then the largest that keeps the SLO, to an eighth."""
    out: list[Candidate] = []
    best, stale = 0.0, 0
    for load in powers(MOST_CONCURRENCY):
        found = _at_load(model, plan, traffic, where, load, limits)
        if not limits.keeps(found.estimate):
            break
        if out and found.estimate.limiter in ROOM:
            break                        # more requests only wait: throughput stays, and the first token comes later
        out.append(found)
        stale = 0 if found.per_gpu > 1.02 * best else stale + 1
        best = max(best, found.per_gpu)
        if stale == 2:
            return out
    else:
        return out
    low = load // 2
    for step in (load // 4, load // 8, load // 16) if out else ():
        found = _at_load(model, plan, traffic, where, low + step, limits)
        if step and limits.keeps(found.estimate) and found.estimate.limiter not in ROOM:
            out.append(found)
            low += step
    return out


def _at_load(model: Model, plan: Serving, traffic: Traffic, where: Machine, load: int, limits: Slo) -> Candidate:
    """load: requests at once of an attention replica."""
    from sublight.predict import serving

    asked = replace(traffic, concurrency=load * plan.replicas * plan.dp)
    estimate = serving.estimate(model, filled(plan, model, where), asked, where, simulate=False)
    return Candidate(plan, where, load * plan.replicas * plan.dp, estimate, limits.surely(estimate))


def best_of_each(found: Sequence[Candidate]) -> list[Candidate]:
    """The load with the most throughput of every plan, best first."""
    best: dict[tuple[str, Serving], Candidate] = {}
    for candidate in found:
        key = (candidate.where.library, candidate.plan)
        if key not in best or candidate.per_gpu > best[key].per_gpu:
            best[key] = candidate
    return sorted(best.values(), key=lambda c: -c.per_gpu)


def front(found: Sequence[Candidate]) -> list[Candidate]:
    """The Pareto front of throughput per GPU against tokens a second per user, from the fastest user on."""
    out: list[Candidate] = []
    for candidate in sorted(found, key=lambda c: (-c.per_user, -c.per_gpu)):
        if not out or candidate.per_gpu > out[-1].per_gpu:
            out.append(candidate)
    return out


def as_good(first: Estimate, other: Estimate, name: str) -> bool:
    """Whether the 80 % intervals overlap: then the ranking of the two is not told by the prediction."""
    a, b = first.results[name], other.results[name]
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return False
    return a.low <= b.high and b.low <= a.high


@dataclass(frozen=True, slots=True)
class Trained:
    """A training plan and its estimate."""

    plan: Training
    estimate: Estimate


def trainings(model: Model, job: Job, where: Machine, base: Training) -> list[Trained]:
    """Every valid training layout, shortest step first."""
    from sublight.predict import training

    found = [Trained(plan, training.estimate(model, plan, job, where))
             for plan in training_layouts(model, where, job, base)]
    if not found:
        raise InputError(f"no layout of {model.name} on {where.cluster.ranks} GPUs is valid for {job.gbs} sequences of "
                         f"{job.seq}; sublight predict --train with --tp … names the reasons")
    return sorted(found, key=lambda trained: trained.estimate.value("step time"))
