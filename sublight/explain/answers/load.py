"""This file knows about the load that a text reports: of a benchmark's summary or command, or worked out from a log.

From log lines: in a steady state prompts and answers leave as fast as they come, so

    isl / osl = prompt tokens/s / generated tokens/s       cached tokens a sequence = isl + osl / 2
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from sublight.errors import InputError
from sublight.explain.answers.answer import Given
from sublight.models import Model
from sublight.observe.logs.log import Log
from sublight.observe.logs.read import busy_steps
from sublight.observe.pasted import Pasted
from sublight.observe.pasted_commands import OFFLINE
from sublight.plan import Serving, Traffic, Training
from sublight.predict.machine import Machine
from sublight.predict.memory import kv_tokens
from sublight.predict.serving.host import engine

BLOCK = 16                               # tokens of a block of vLLM's cache, unless it says otherwise (block_size)


def load_of_table(
    about: dict[str, Any], pasted: Pasted, given: Given, plan: Serving | Training | None, sources: dict[str, str],
) -> Traffic | None:
    """What was asked, by the options, the summary, the benchmark's command or prose, in this order. A benchmark that
    starts the engine itself and says no number asks for as many at once as the engine runs."""
    asked = pasted.asked[0] if pasted.asked else None
    settings = dict(asked.settings) if asked else {}
    prose = dict(zip(("isl", "osl"), pasted.lengths, strict=True))

    def first(name: str, *others: Any) -> float | None:
        own = getattr(given, name, None)
        return next((float(value) for value in (own, about.get(name), settings.get(name), prose.get(name), *others)
                     if value), None)

    isl, osl = first("isl", about.get("nominal_isl")), first("osl", about.get("nominal_osl"))
    requests = about.get("requests") or about.get("completed") or settings.get("requests")
    users, rate = first("concurrency"), about.get("rate") or settings.get("rate")
    if users is None and rate is None and requests and (about.get("all_at_once") or asked is None or asked.all_at_once):
        users = float(requests)
    if users is None and rate is None and asked is not None and asked.tool in OFFLINE and isinstance(plan, Serving):
        users = float(default_sequences(plan))
    if isl is None or osl is None or (users is None and rate is None):
        return None
    sources["load"] = "the options" if given.isl else "the summary" if "isl" in about else "the benchmark's command" \
        if asked else "the text"
    if users is not None and requests:
        users = min(users, float(requests))
    return Traffic(max(1, round(isl)), max(1, round(osl)), None if users is None else max(1, round(users)),
                   float(rate) if users is None and rate else None, None if not requests else int(requests))


@dataclass(frozen=True, slots=True)
class Moment:
    """Medians of a log's lines while requests run. length: cached tokens of a sequence; None: it cannot be told."""

    running: float
    waiting: float
    generation_rate: float
    prompt_rate: float
    kv_usage: float | None
    prefix_hit: float
    capacity: int | None                 # tokens of cache
    printed: bool                        # capacity is printed, not predicted
    length: float | None
    accepted: float
    lines: int


def moment(
    log: Log | None, plan: Serving | Training | None, model: Model | None, where: Machine | None,
) -> Moment | None:
    """The middle of what a serving engine's log says."""
    steps = [step.values for step in busy_steps(log) if step.values.get("running", 0) > 0] if log else []
    if log is None or not any("generation_rate" in step for step in steps):
        return None

    def middle(name: str, absent: float = 0.0) -> float:
        held = [step[name] for step in steps if name in step]
        return median(held) if held else absent

    usage = middle("kv_usage", -1.0)
    capacity = printed_capacity(log)
    printed = capacity is not None
    if capacity is None and isinstance(plan, Serving) and model is not None and where is not None:
        try:
            capacity = kv_tokens(model, plan, where) * plan.dp
        except InputError:               # ranks that do not divide the model: said with the plan
            capacity = None
    running = middle("running")
    length = middle("tokens") / running if any("tokens" in step for step in steps) else \
        usage * capacity / running if usage >= 0 and capacity else None
    return Moment(running, middle("waiting"), middle("generation_rate"), middle("prompt_rate"),
                  None if usage < 0 else usage, middle("prefix_hit"), capacity, printed, length,
                  middle("acceptance_length", 1.0), len(steps))


def printed_capacity(log: Log | None) -> int | None:
    """Tokens of cache that the log says: in tokens, or in blocks."""
    if log is None:
        return None
    tokens = log.facts.get("kv_tokens")
    if tokens is None and "kv_blocks" in log.facts:
        tokens = log.facts["kv_blocks"] * float(log.arguments.get("block_size", BLOCK))
    if tokens is None and "full_requests" in log.facts and "max_length" in log.facts:
        tokens = log.facts["full_requests"] * log.facts["max_length"]
    return None if tokens is None else int(tokens)


def load_of_log(log: Log | None, plan: Serving | Training | None, model: Model | None, where: Machine | None,
                sources: dict[str, str]) -> Traffic | None:
    """A closed loop that would look like the log's lines."""
    now = moment(log, plan, model, where)
    if now is None or now.length is None or now.length < 2:
        return None
    prompts = now.prompt_rate / max(now.generation_rate, 1e-9)
    osl = max(1, round(now.length / (prompts + 0.5)))
    isl = max(1, round(prompts * osl))
    sources["load"] = f"rates and cached tokens of {now.lines} log line{'s' if now.lines > 1 else ''}, worked out"
    hit = min(0.99, now.prefix_hit) if isl > 1 else 0.0
    return Traffic(isl, osl, concurrency=max(1, round(now.running + now.waiting)), prefix_hit=hit, burst=False)


def default_sequences(plan: Serving) -> int:
    """Sequences of a step: the plan's, or the engine's default."""
    return plan.max_sequences or engine(plan.engine).rules.max_sequences
