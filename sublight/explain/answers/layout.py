"""This file knows about whether ranks are well spent: the same GPUs as fewer ranks and more replicas, or one
instance on more ranks, each with the same load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sublight.errors import InputError
from sublight.explain.answers.answer import Judged, Point
from sublight.explain.answers.figures import ASSUMED, estimated
from sublight.models import Model
from sublight.plan import Serving, Traffic
from sublight.predict.machine import Machine
from sublight.predict.validity import problems

EACH = 16                                # requests at once for each GPU, where the text says no load: judgement
WORTH = 1.1                              # times the throughput: less is within what predictions can tell apart


@dataclass(frozen=True, slots=True)
class Choice:
    """A layout with what is expected of it."""

    plan: Serving
    rate: float                          # tokens/s of all GPUs
    token: float                         # seconds a token of one user
    first: float                         # seconds to the first token
    full: float                          # tokens/s of all GPUs where each replica gets the whole load

    def words(self) -> str:
        each = f"tp {self.plan.tp}" + (f" ep {self.plan.ep}" if self.plan.ep > 1 else "") \
            + (f" dp {self.plan.dp}" if self.plan.dp > 1 else "") + (f" pp {self.plan.pp}" if self.plan.pp > 1 else "")
        return f"{each} x {self.plan.replicas} replica{'s' if self.plan.replicas > 1 else ''}"


def points(found: Judged) -> Iterator[Point]:
    """Other layouts on the same GPUs."""
    case = found.case
    if not isinstance(case.plan, Serving) or case.model is None or case.where is None:
        return
    gpus = max(case.plan.gpus, min(case.gpus or 0, case.where.cluster.ranks))
    if gpus < 2:
        return
    load = case.load if isinstance(case.load, Traffic) else replace(ASSUMED, concurrency=EACH * gpus)
    if load.rate is not None:
        load = replace(load, rate=None, concurrency=64)
    choices = [choice for plan in layouts(case.plan, gpus) if (choice := judged(case.model, plan, load, case.where))]
    own = next((choice for choice in choices if choice.plan == case.plan), None) \
        or judged(case.model, case.plan, load, case.where)
    if own is None or not choices:
        return
    yield from _words(own, choices, load, gpus, "" if isinstance(case.load, Traffic) else ", an assumed load")


def layouts(plan: Serving, gpus: int) -> Iterator[Serving]:
    """The plan's own, and each power of two of ranks with as many replicas as the GPUs allow. Of experts that are
    spread and attention replicas the plan's own form, and plain tensor parallel."""
    seen = set()
    for base in (plan, replace(plan, dp=1, ep=1, moe_kind=None, tp=plan.tp * plan.dp)):
        tp = 1
        while tp <= gpus:
            ranks = tp * base.pp * base.dp
            ep = 1 if base.ep == 1 else min(base.ep, tp * base.dp)
            if ranks <= gpus and gpus % ranks == 0:
                made = replace(base, tp=tp, ep=ep, replicas=gpus // ranks)
                if made not in seen:
                    seen.add(made)
                    yield made
            tp *= 2


def judged(model: Model, plan: Serving, load: Traffic, where: Machine) -> Choice | None:
    """What is expected of a layout; None where it cannot run."""
    try:
        wrong = [text for text in problems(model, plan, where, load) if "GPUs, the cluster has" not in text
                 and "longer than" not in text]
        if wrong:
            return None
        found = estimated(model, plan, load, where)
        more = replace(load, concurrency=(load.concurrency or 1) * plan.replicas,
                       requests=load.requests and load.requests * plan.replicas)
        full = found if plan.replicas == 1 else estimated(model, plan, more, where)
    except InputError:
        return None
    token = found.value("TPOT") if "TPOT" in found.results else 0.0
    return Choice(plan, found.value("tokens/s/GPU") * plan.gpus, token, found.value("TTFT"),
                  full.value("tokens/s/GPU") * plan.gpus)


def _words(own: Choice, choices: list[Choice], load: Traffic, gpus: int, assumed: str) -> Iterator[Point]:
    best, most = max(choices, key=lambda choice: choice.rate), max(choices, key=lambda choice: choice.full)
    evidence = tuple(
        f"{choice.words()}: {choice.rate:,.0f} tokens/s, {choice.token * 1e3:.3g} ms a token"
        + (f"; {choice.full:,.0f} tokens/s where each gets this load" if choice.plan.replicas > 1 else "")
        + (" (this one)" if choice.plan == own.plan else "")
        for choice in sorted(choices, key=lambda choice: -choice.rate)[:6])
    asked = f"{load.concurrency} requests at once, {load.isl:,} in, {load.osl:,} out{assumed}"
    gain, more = best.rate / own.rate, most.full / own.full
    if gain >= WORTH and best.plan != own.plan:
        yield Point("layout", f"the {gpus} GPUs are not well shared: {best.words()} gives {gain:.1f}x the tokens a "
                    f"second of {own.words()} ({asked})", evidence, f"run {best.words()}"
                    + (" behind a router" if best.plan.replicas > 1 else ""))
    elif more >= WORTH and most.plan != own.plan:
        yield Point("layout", f"for this load alone {own.words()} is within {max(0.0, gain - 1):.0%} of the best "
                    f"({asked}); with more requests {most.words()} gives {more:.1f}x its tokens a second: ranks "
                    "shorten a token, replicas serve more of them", evidence,
                    f"run {most.words()} where throughput counts")
    else:
        yield Point("layout", f"{own.words()} is within {max(0.0, gain - 1):.0%} of the best layout of {gpus} GPUs for "
                    f"throughput ({asked})", evidence)
