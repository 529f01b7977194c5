"""This file knows about settings that an answer can judge: token budgets of chunked prefill, guesses, untuned experts,
and another GPU of the same family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sublight.cluster import parse as parse_cluster
from sublight.errors import InputError
from sublight.explain.answers.answer import Case, Judged, Point
from sublight.explain.answers.figures import ASSUMED, estimated, steps_of
from sublight.explain.answers.load import moment
from sublight.models import Batch, Model
from sublight.observe.pasted import Pasted
from sublight.plan import Serving, Traffic
from sublight.predict.machine import Machine
from sublight.predict.serving.host import rules
from sublight.predict.serving.pace import split
from sublight.predict.step import step_time

# The GPU of a family that published figures are mostly of, by another that carries its name.
SIBLINGS = {"h100-pcie": "h100", "a100-pcie-80": "a100"}


def points(found: Judged, pasted: Pasted) -> Iterator[Point]:
    case = found.case
    if not isinstance(case.plan, Serving) or case.model is None or case.where is None:
        return
    load = case.load if isinstance(case.load, Traffic) else None
    if load is not None and case.plan.chunked_prefill:
        yield from _budget(case.plan, case.model, case.where, load)
    yield from _guesses(case, case.plan, case.model, case.where, load)
    yield from _experts(found)
    yield from _sibling(case, case.plan, case.model, case.where, load, pasted)


def _budget(plan: Serving, model: Model, where: Machine, load: Traffic) -> Iterator[Point]:
    """Prompts that are cut: what a larger budget gives and what it costs."""
    own = rules(plan).token_budget
    if load.isl <= own:
        return
    steps, _ = steps_of(plan, model, where)
    running = max(1, min(load.concurrency or 8, rules(plan).max_sequences) // plan.replicas)
    lines = []
    rates = {}
    for budget in (own, 2 * own, 4 * own, load.isl):
        if budget > load.isl or budget in rates:
            continue
        context = max(0, load.isl // 2 - budget // 2)
        step = steps.mixed(min(running, 8), load.isl, [(budget, context)], 1)
        rates[budget] = budget / step
        lines.append(f"{budget:,} tokens a step: {-(-load.isl // budget)} steps a prompt, {step * 1e3:,.0f} ms each "
                     f"(what others wait between tokens), {budget / step:,.0f} prompt tokens/s")
    gain = max(rates.values()) / rates[own]
    yield Point("budget", f"a prompt of {load.isl:,} tokens is cut into {-(-load.isl // own)} steps of {own:,}; larger "
                f"ones prefill up to {gain:.2f}x as fast and make running requests wait longer for each token",
                tuple(lines), "take the largest budget whose step time your inter-token latency allows; chunks are for "
                "latency under load, and give no throughput of their own")


def _guesses(case: Case, plan: Serving, model: Model, where: Machine, load: Traffic | None) -> Iterator[Point]:
    """What a verified step costs, and how many tokens it must give."""
    if not plan.drafts:
        return
    now = moment(case.log, plan, model, where)
    running = round(now.running) if now else load.concurrency or 8 if load else 1
    length = round(now.length) if now and now.length else load.isl + load.osl // 2 if load else 1024
    each = max(1, running // (plan.dp * plan.replicas))
    alone, checked = (step_time(model, (Batch(each, rows, length, decode=True),), split(plan), where).seconds
                      for rows in (1, 1 + plan.drafts))
    cost = checked / alone
    reached = now.accepted if now and now.accepted > 1 else None
    verdict = "" if reached is None else (f"; the log says {reached:.2f}: it "
                                          + ("pays" if reached > cost else "does not pay"))
    yield Point("speculation", f"a step that verifies {plan.drafts} guesses takes {cost:.2f}x a plain one ({each} "
                f"sequences a rank): more than {cost:.2f} tokens must hold a step before anything is gained{verdict}",
                ("the draft model's own time comes on top and is not counted",),
                "" if reached is not None else "read the acceptance length in the log, and compare")


def _experts(found: Judged) -> Iterator[Point]:
    """vLLM says that it has no tuned configuration for these experts."""
    log = found.case.log
    if log is None or "default_moe" not in log.facts:
        return
    share = sum(term.share for term in found.terms if term.name.startswith("experts"))
    if share == 0:
        return
    yield Point("experts", f"experts are {share:.0%} of a decode step: a tuned configuration that makes them 1.2x as "
                f"fast would gain {share * (1 - 1 / 1.2):.1%}",
                ("the log says that vLLM uses its default MoE configuration",),
                "tune with vLLM's benchmarks/kernels/benchmark_moe.py where that is worth it")


def _sibling(
    case: Case, plan: Serving, model: Model, where: Machine, load: Traffic | None, pasted: Pasted,
) -> Iterator[Point]:
    """Figures of an SXM part do not hold for the PCIe one of the same name."""
    other = SIBLINGS.get(where.device.key)
    if other is None:
        return
    try:
        there = replace(where, cluster=parse_cluster(f"{where.cluster.ranks}x{other}"))
    except InputError:
        return
    own, faster = where.device.limits, there.device.limits
    lines = []
    for words, mine, theirs in (
            ("memory", own.memory_bytes_per_second, faster.memory_bytes_per_second),
            ("dense bf16", where.device.stated_flops_per_second("tensor", "bf16"),
             there.device.stated_flops_per_second("tensor", "bf16"))):
        if mine and theirs:
            unit = "TB/s" if words == "memory" else "TFLOP/s"
            lines.append(f"{words}: {mine / 1e12:,.3g} {unit} here, {theirs / 1e12:,.3g} there, {theirs / mine:.2f}x")
    asked = load or replace(ASSUMED, concurrency=64)
    try:
        mine, theirs = (estimated(model, plan, asked, machine).value("tokens/s/GPU") * plan.gpus
                        for machine in (where, there))
    except InputError:
        return
    users = f"{asked.concurrency} at once" if asked.concurrency else f"{asked.rate:g} requests/s"
    lines.append(f"expected: {mine:,.0f} tokens/s here, {theirs:,.0f} there ({users}, {asked.isl:,} in, "
                 f"{asked.osl:,} out" + (")" if load else "; an assumed load)"))
    said = sorted({figure.value for figure in pasted.figures if figure.what == "tokens/s"})
    if len(said) > 1:
        lines.append("the text says " + ", ".join(f"{value:,.0f}" for value in said) + " tokens/s")
    yield Point("device", f"this is {where.device.title}, not {there.device.title}: published figures are mostly of "
                f"the latter, which should do {theirs / mine:.1f}x as much here", tuple(lines),
                "compare with figures of the same part, batch and lengths")
