"""This file knows about how plans are shown: ranked, with launch commands; on a terminal, as Markdown, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sublight.cluster import Cluster
from sublight.errors import InputError
from sublight.improve.search import Candidate, Slo, Trained, as_good, best_of_each, front
from sublight.models import Model
from sublight.plan import Job, Plan, Traffic
from sublight.predict.answer import limiter_words
from sublight.show.predict import print_table, table_markdown
from sublight.show.predict_rows import Table, estimate_fields, plan_fields, plan_words
from sublight.show.units import interval, quantity, seconds

if TYPE_CHECKING:
    from rich.console import Console


QUANTIZED = {"fp8": ("vllm", "sglang")}  # formats that engines make of a 16-bit checkpoint: --quantization fp8


@dataclass(frozen=True)
class ServingPlans:
    """What a search of serving plans found. users: how many requests at once are asked for; weights: number format of
    the products, where it is not the checkpoint's."""

    model: Model
    cluster: Cluster
    traffic: Traffic
    limits: Slo
    found: tuple[Candidate, ...]
    users: int | None = None
    weights: str | None = None


@dataclass(frozen=True)
class TrainingPlans:
    """What a search of training plans found, shortest step first."""

    model: Model
    cluster: Cluster
    job: Job
    found: tuple[Trained, ...]


Plans = ServingPlans | TrainingPlans


def title(plans: Plans) -> str:
    gpus = f"{plans.model.name} on {plans.cluster.ranks} x {plans.cluster.node.device.title}"
    if isinstance(plans, TrainingPlans):
        return f"{gpus}: training, sequences of {plans.job.seq:,}, {plans.job.gbs:,} a step"
    limits = [f"{name} at most {seconds(value)}" for name, value in
              (("TTFT", plans.limits.ttft), ("TPOT", plans.limits.tpot)) if value is not None]
    return f"{gpus}: {plans.traffic.isl:,} tokens in, {plans.traffic.osl:,} out" + "".join(f", {x}" for x in limits)


def ranked(plans: Plans, top: int) -> Table:
    """Best first. A row whose interval overlaps the first one's is marked."""
    if isinstance(plans, TrainingPlans):
        return _ranked_training(plans, top)
    best = best_of_each(plans.found)[:top]
    longest = best[0].per_gpu if best else 1.0
    rows = tuple(
        (f"{place}{'' if place == 1 or not as_good(best[0].estimate, c.estimate, 'tokens/s/GPU') else '≈'}",
         plan_words(c.plan), f"{c.concurrency}", *_figures(c), "yes" if c.sure else "likely",
         limiter_words(c.estimate.limiter))
        for place, c in enumerate(best, 1))
    return Table("Layouts at their best load, by tokens a second and GPU",
                 ("", "plan", "at once", "tokens/s/GPU", "80 % interval", "tokens/s/user", "TTFT", "TPOT",
                  "keeps limits", "limited by"), rows, tuple(c.per_gpu / longest for c in best))


def _figures(c: Candidate) -> tuple[str, ...]:
    rate = c.estimate.results["tokens/s/GPU"]
    low_high = interval(rate).replace(" tokens/s", "")
    after = c.per_user > 0               # else answers are of one token
    return (f"{c.per_gpu:,.0f}", low_high, f"{c.per_user:.1f}" if after else "–",
            seconds(c.estimate.value("TTFT")), seconds(c.estimate.value("TPOT")) if after else "–")


def _ranked_training(plans: TrainingPlans, top: int) -> Table:
    best = plans.found[:top]
    rows = []
    for place, trained in enumerate(best, 1):
        e = trained.estimate
        mark = "" if place == 1 or not as_good(best[0].estimate, e, "step time") else "≈"
        rows.append((f"{place}{mark}", plan_words(trained.plan), seconds(e.value("step time")),
                     interval(e.results["step time"]), f"{e.value('tokens/s/GPU'):,.0f}",
                     quantity(e.value("MFU"), ""), limiter_words(e.limiter)))
    return Table("Layouts by the time of a step",
                 ("", "plan", "step", "80 % interval", "tokens/s/GPU", "MFU", "limited by"), tuple(rows),
                 tuple(best[0].estimate.value("step time") / t.estimate.value("step time") for t in best))


def pareto(plans: ServingPlans) -> Table:
    """The front, from the fastest user to the most tokens."""
    points = front(plans.found)
    most = max((p.per_gpu for p in points), default=1.0)
    rows = tuple((f"{p.per_user:.1f}" if p.per_user else "–", f"{p.per_gpu:,.0f}", plan_words(p.plan),
                  f"{p.concurrency}", seconds(p.estimate.value("TTFT"))) for p in points)
    return Table("Pareto front: speed of a user against throughput",
                 ("tokens/s/user", "tokens/s/GPU", "plan", "at once", "TTFT"), rows,
                 tuple(p.per_gpu / most for p in points))


def said(plans: Plans) -> list[str]:
    """Launch commands of the best of each engine; how many GPUs; what the ranking does not tell; what it rests on."""
    if isinstance(plans, TrainingPlans):
        best = plans.found[0]
        return [f"launch: {command(plans.model.name, best.plan, job=plans.job)}", f"basis: {best.estimate.basis}",
                *_ties([t.estimate for t in plans.found], "step time")]
    best_plans = best_of_each(plans.found)
    if not best_plans:
        return ["no layout keeps the limits at any load; sublight predict shows how far each is"]
    lines, engines = [], set()
    for candidate in best_plans:
        if candidate.where.library not in engines:
            engines.add(candidate.where.library)
            lines.append(f"launch: {command(plans.model.name, candidate.plan, weights=plans.weights)}")
    if plans.weights is not None and not engines <= set(QUANTIZED.get(plans.weights, ())):
        lines.append(f"the figures are for products in {plans.weights}: name a checkpoint in it where the command has "
                     "no --quantization")
    if plans.users is not None:
        lines.append(_for_users(best_plans[0], plans.users))
    lines.append(f"basis: {best_plans[0].estimate.basis}")
    return [*lines, *_ties([c.estimate for c in best_plans], "tokens/s/GPU")]


def _ties(estimates: Sequence[Any], name: str) -> list[str]:
    ties = sum(as_good(estimates[0], other, name) for other in estimates[1:])
    return [f"≈ {ties} of {len(estimates) - 1} other layouts lie within the interval of the first: the prediction does "
            "not rank them"] if ties else []


def _for_users(best: Candidate, users: int) -> str:
    """Replicas of the best plan's instance, each at its best load."""
    instance = best.plan.gpus // best.plan.replicas
    each = best.concurrency // best.plan.replicas
    count = -(-users // each)
    return (f"{users:,} requests at once need {count * instance:,} GPUs: {count} instances of {instance}, {each} "
            f"requests each ({plan_words(best.plan)})")


def command(model: str, plan: Plan, *, job: Job | None = None, weights: str | None = None) -> str:
    """The launch command of one instance; why there is none, where the engine cannot express the plan.

    weights: format of the products, asked for where the engine makes it of a 16-bit checkpoint.
    """
    from dataclasses import replace

    from sublight.engines import emit
    from sublight.plan import Serving, Training

    assert isinstance(plan, Serving | Training)
    try:
        if isinstance(plan, Training):
            return emit(model, plan, plan.framework, plan.version, job=job)
        made = (("--quantization", weights),) if weights and plan.engine in QUANTIZED.get(weights, ()) else ()
        return emit(model, replace(plan, replicas=1, extra=(*plan.extra, *made)), plan.engine, plan.version)
    except InputError as error:
        return f"none: {error}"


def shown(plans: Plans, top: int) -> list[Table]:
    if not plans.found:
        return []
    return [ranked(plans, top)] if isinstance(plans, TrainingPlans) else [ranked(plans, top), pareto(plans)]


def print_plan(plans: Plans, console: Console, top: int) -> None:
    """Ranking, front, commands."""
    from rich.text import Text

    console.print(Text(title(plans)), soft_wrap=True)
    for table in shown(plans, top):
        console.print()
        print_table(table, console)
    console.print()
    for line in said(plans):
        console.print(Text(line), soft_wrap=True)


def markdown(plans: Plans, top: int) -> str:
    """The same as Markdown."""
    out = [f"**{title(plans)}**", ""]
    for table in shown(plans, top):
        out += table_markdown(table)
    return "\n".join([*out, *(f"- {line}" for line in said(plans)), ""])


def document(plans: Plans) -> dict[str, Any]:
    """The same for programs, every plan."""
    if isinstance(plans, TrainingPlans):
        return {"title": title(plans), "plans": [
            {"plan": plan_fields(t.plan), "estimate": estimate_fields(t.estimate)} for t in plans.found],
            "said": said(plans)}
    on_front = {id(c) for c in front(plans.found)}
    return {"title": title(plans), "plans": [
        {"plan": plan_fields(c.plan), "concurrency": c.concurrency, "sure": c.sure, "on_front": id(c) in on_front,
         "estimate": estimate_fields(c.estimate)} for c in plans.found], "said": said(plans)}
