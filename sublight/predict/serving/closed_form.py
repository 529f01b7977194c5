"""This file knows about a serving run in closed form: what the simulation says on the average, without running it.

    TPOT   a decode step, and the prompts that are prefilled in between: b / osl of them a step
    TTFT   the rest of the step under way, the prompt's own step, the burst at the start, and the wait for room
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from sublight.plan import Traffic
from sublight.predict.serving.arrivals import ROUNDS, count_of
from sublight.predict.serving.host import Rules
from sublight.predict.serving.loop import SEQUENCES, TOKENS
from sublight.predict.serving.pace import Pace, Piece

PREFILLS = 0.8           # share of a token's time in prefill from which prompts wait for prompts, not room: judgement


@dataclass(frozen=True, slots=True)
class Means:
    """Means of a run, in seconds; b sequences decode, each with `length` cached tokens. waits: for room in the cache
    or in the batch. capacity: requests completed a second, at most. lacks: what there is least room of;
    empty where more room would help little, since prompts wait for other prompts."""

    ttft: float
    tpot: float
    b: float
    length: float
    waits: float
    step: float = 0.0                    # a decode step; of the time of a token the rest is prefill
    capacity: float = inf
    lacks: str = ""


def closed_form(pace: Pace, rules: Rules, traffic: Traffic, *, kv_tokens: float, accepted: float = 1.0) -> Means:
    """The means of a closed loop, or of arrivals at a rate."""
    mean = (1 + traffic.shortest) / 2
    isl, osl = max(1, round(traffic.isl * mean)), max(2, round(traffic.osl * mean))
    places, fit = rules.max_sequences * pace.dp, int(kv_tokens / (isl + rules.reserve * osl))
    found = _found(pace, rules, traffic, max(1, min(places, fit)), isl, osl, accepted)
    if traffic.osl == 1 or 1 - found.step / found.tpot > PREFILLS:
        return found
    return replace(found, lacks=SEQUENCES if places <= fit else TOKENS)


def _found(pace: Pace, rules: Rules, traffic: Traffic, room: int, isl: int, osl: int, accepted: float) -> Means:
    if traffic.concurrency is not None:
        return _closed(pace, rules, traffic, min(traffic.concurrency, room), isl, osl, accepted)
    b = 1
    for _ in range(30):                  # Little: sequences under way = rate x time of each
        found = _closed(pace, rules, traffic, b, isl, osl, accepted)
        wanted = max(1, min(room, round((traffic.rate or 0.0) * (found.ttft + found.tpot * osl))))
        if wanted == b:
            break
        b = (b + wanted + 1) // 2 if wanted > b else wanted
    return _queued(pace, rules, traffic, room, isl, osl, accepted, found)


def _queued(pace: Pace, rules: Rules, traffic: Traffic, room: int, isl: int, osl: int, accepted: float,
            found: Means) -> Means:
    """Arrivals at a rate, with what the largest batch completes. Where that is less, the queue grows to the end of the
    run: a request waits for half of it in the mean."""
    rate = traffic.rate or 0.0
    most = _closed(pace, rules, traffic, room, isl, osl, accepted)
    if rate <= most.capacity:
        return replace(found, capacity=most.capacity)
    waits = count_of(traffic) / 2 * (1 / most.capacity - 1 / rate)
    return replace(most, ttft=most.ttft + waits, waits=waits)


def _pieces(rules: Rules, pace: Pace, new: int, hit: int) -> list[list[Piece]]:
    """Steps of one prompt."""
    budget = rules.token_budget * pace.dp if rules.chunked else new
    return [[(min(budget, new - done), hit + done)] for done in range(0, new, budget)]


def _closed(pace: Pace, rules: Rules, traffic: Traffic, b: int, isl: int, osl: int, accepted: float) -> Means:
    hit = int(isl * traffic.prefix_hit)
    length = isl + osl / 2
    step = pace.decode(b, length)
    beside = b if rules.mixed else 0
    prompt = [pace.mixed(beside, length if beside else 0.0, pieces, 1)
              for pieces in _pieces(rules, pace, max(1, isl - hit), hit)]
    own = sum(prompt)
    extra = max(0.0, own - (step * len(prompt) if rules.mixed else 0.0))
    tpot = step / accepted + b / osl * extra
    users = traffic.concurrency or b
    rounds = max(1.0, traffic.requests / users) if traffic.requests else ROUNDS
    grouped = max(1, min(b, rules.token_budget * pace.dp // max(1, isl - hit)))
    at_once = pace.mixed(0, 0.0, [(max(1, isl - hit), hit)] * grouped, grouped)
    burst = at_once * (b / grouped + 1) / 2 / rounds if traffic.burst and traffic.rate is None else 0.0
    look = 0.5 * rules.poll_steps * step
    waits = (users / b - 1) * osl * tpot
    capacity = b / (osl * tpot)
    if traffic.osl == 1:                 # a batch of prompts after the other
        capacity, waits = grouped / at_once, 0.0
        if traffic.rate is None:
            own = max(own, users / capacity - burst - look)
    return Means(burst + look + own + waits, tpot, b, length, waits, step / accepted, capacity)
