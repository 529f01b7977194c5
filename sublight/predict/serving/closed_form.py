"""This file knows about a serving run in closed form: what the simulation says on the average, without running it.

    TPOT   a decode step, and the prompts that are prefilled in between: b / osl of them a step
    TTFT   the rest of the step under way, the prompt's own step, the burst at the start, and the wait for room
"""

from __future__ import annotations

from dataclasses import dataclass

from sublight.plan import Traffic
from sublight.predict.serving.arrivals import ROUNDS
from sublight.predict.serving.host import Rules
from sublight.predict.serving.pace import Pace, Piece


@dataclass(frozen=True, slots=True)
class Means:
    """Means of a run, in seconds; b sequences decode, each with `length` cached tokens. waits: for room in the cache
    or in the batch."""

    ttft: float
    tpot: float
    b: float
    length: float
    waits: float


def closed_form(pace: Pace, rules: Rules, traffic: Traffic, *, kv_tokens: float, accepted: float = 1.0) -> Means:
    """The means of a closed loop, or of arrivals at a rate."""
    mean = (1 + traffic.shortest) / 2
    isl, osl = max(1, round(traffic.isl * mean)), max(2, round(traffic.osl * mean))
    room = max(1, min(rules.max_sequences * pace.dp, int(kv_tokens / (isl + rules.reserve * osl))))
    if traffic.concurrency is not None:
        return _closed(pace, rules, traffic, min(traffic.concurrency, room), isl, osl, accepted)
    b = 1
    for _ in range(30):                  # Little: sequences under way = rate x time of each
        found = _closed(pace, rules, traffic, b, isl, osl, accepted)
        wanted = max(1, min(room, round((traffic.rate or 0.0) * (found.ttft + found.tpot * osl))))
        if wanted == b:
            break
        b = (b + wanted + 1) // 2 if wanted > b else wanted
    return found


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
    return Means(burst + look + own + waits, tpot, b, length, waits)
