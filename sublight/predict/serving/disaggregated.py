"""This file knows about serving with prefill and decode apart: prefill workers, transfer of the cache, decode.

Decode workers are alike, and requests are spread over them evenly: one of them stands for all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil

from sublight.models import Model
from sublight.plan import Disaggregated
from sublight.predict.machine import Machine
from sublight.predict.serving.arrivals import Request
from sublight.predict.serving.host import Rules
from sublight.predict.serving.loop import SEQUENCES, TOKENS, Run
from sublight.predict.serving.pace import Pace, Piece, split

TRANSFER_SHARE = 0.5                     # of a link's rate that a transfer of cache reaches: judgement
TRANSFER_SECONDS = 2e-3                  # to announce one: judgement


@dataclass(frozen=True)
class Halves:
    """Pace and rules of the two kinds of workers, and how many there are of each."""

    prefill: Pace
    decode: Pace
    prefill_rules: Rules
    decode_rules: Rules
    prefill_workers: int
    decode_workers: int
    transfer: float                      # seconds a prompt token
    room: float                          # tokens of cache of a decode worker


def transfer_seconds(model: Model, plan: Disaggregated, where: Machine) -> float:
    """Of one token's cache, from all ranks of a prefill worker at once: over NVLink within a domain, else over NICs."""
    each = model.kv_bytes_per_token(split(plan.prefill), length=1024)
    node = where.cluster.node
    if plan.gpus <= node.domain:
        rate, factor = where.device.limits.link_bytes_per_second or 0.0, where.factor("nvlink")
    else:
        rate, factor = node.nic_bytes_per_second * node.nics / max(1, node.gpus), where.factor("nic")
    return each / (TRANSFER_SHARE * rate * factor) if rate > 0 else 0.0


class _Halves:
    """The state of a run. Ticks are decode steps of a worker, in fractions: workers do not step together."""

    def __init__(self, halves: Halves, load: Sequence[Request], users: int | None, accepted: float) -> None:
        self.halves, self.load, self.users, self.accepted = halves, load, users, accepted
        self.now, self.tick, self.next = 0.0, 0.0, 0
        self.waiting: deque[tuple[int, float]] = deque()
        self.arriving: deque[tuple[int, float]] = deque()        # prefilled: wait for room among the decoding
        self.prefilling: list[tuple[float, int, list[tuple[int, float]]]] = []
        self.running: list[tuple[float, int, float, float]] = []
        self.cached = 0.0
        self.waits = {SEQUENCES: 0.0, TOKENS: 0.0}               # seconds of all that wait for room to decode
        self.lacks = ""
        self.behind = 0
        self.ttft: list[float] = []
        self.tpot: list[float] = []
        self.latency: list[float] = []
        self.gaps: list[tuple[float, int]] = []
        self.tokens = self.full = self.batches = 0
        self.decode_seconds = self.weighted_b = self.weighted_length = 0.0

    def ask(self) -> None:
        if self.next < len(self.load):
            self.waiting.append((self.next, self.now))
            self.next += 1

    def new(self, index: int) -> int:
        """Tokens of a prompt that the prefix cache of the prefill workers does not hold."""
        return self.load[index].isl - self.load[index].hit

    def start(self) -> None:
        """Free prefill workers take what waits."""
        halves = self.halves
        while self.waiting and len(self.prefilling) < halves.prefill_workers:
            budget = halves.prefill_rules.token_budget * halves.prefill.dp
            batch: list[tuple[int, float]] = []
            while self.waiting and (not batch or budget >= self.new(self.waiting[0][0])):
                index, arrival = self.waiting.popleft()
                budget -= self.new(index)
                batch.append((index, arrival))
            pieces = [(self.new(i), self.load[i].hit) for i, _ in batch]
            seconds = prompt_seconds(halves.prefill, halves.prefill_rules, pieces)
            self.batches += 1
            heappush(self.prefilling, (self.now + seconds, self.batches, batch))

    def enter(self) -> None:
        """What was prefilled starts to decode where there is room."""
        halves, self.lacks = self.halves, ""
        while self.arriving:
            index, first = self.arriving[0]
            most = halves.decode_rules.max_sequences * halves.decode.dp * halves.decode_workers
            room = halves.room * halves.decode_workers
            crowded = len(self.running) >= most
            if self.running and (crowded or self.cached + self.load[index].isl > room):
                self.full += 1
                self.lacks = SEQUENCES if crowded else TOKENS
                return
            self.arriving.popleft()
            request = self.load[index]
            self.cached += request.isl + 0.5 * request.osl
            heappush(self.running, (self.tick + ceil((request.osl - 1) / self.accepted), index, first, self.now))

    def step(self) -> float:
        """Seconds of one decode step of a worker."""
        b = len(self.running)
        each = max(1, round(b / self.halves.decode_workers))
        return self.halves.decode.decode(each, self.cached / b)

    def forward(self) -> None:
        """To the next event: a prefill is done, or a sequence is."""
        before = self.now
        upcoming = self.prefilling[0][0] if self.prefilling else None
        if self.users is None and self.next < len(self.load):
            arrival = self.load[self.next].arrival or 0.0
            upcoming = arrival if upcoming is None else min(upcoming, arrival)
        if self.running:
            seconds, b = self.step(), len(self.running)
            until = self.now + (self.running[0][0] - self.tick) * seconds
            ended = until if upcoming is None else min(until, upcoming)
            steps = (ended - self.now) / seconds
            self.tick = self.running[0][0] if ended == until else self.tick + steps
            self.gaps.append((seconds, max(1, round(steps * b))))
            self.decode_seconds += ended - self.now
            self.weighted_b += (ended - self.now) * b / self.halves.decode_workers
            self.weighted_length += (ended - self.now) * self.cached / b
            self.now = ended
        elif upcoming is not None:
            self.now = max(self.now, upcoming)
        if self.lacks:
            self.waits[self.lacks] += (self.now - before) * len(self.arriving)
        self.settle()

    def settle(self) -> None:
        """What is due: prompts that are done, sequences that are complete, requests that arrive."""
        while self.prefilling and self.prefilling[0][0] <= self.now:
            for index, arrival in heappop(self.prefilling)[2]:
                late = TRANSFER_SECONDS + self.halves.transfer * self.load[index].isl
                self.ttft.append(self.now + late - arrival)
                self.arriving.append((index, arrival))
        while self.running and self.running[0][0] <= self.tick:
            _, index, arrival, first = heappop(self.running)
            request = self.load[index]
            self.cached = max(0.0, self.cached - request.isl - 0.5 * request.osl)
            self.tokens += request.osl
            self.latency.append(self.now - arrival)
            if request.osl > 1:
                self.tpot.append((self.now - first) / (request.osl - 1))
            if self.users is not None:
                self.ask()
        while self.users is None and self.next < len(self.load) and (self.load[self.next].arrival or 0.0) <= self.now:
            self.waiting.append((self.next, self.load[self.next].arrival or 0.0))
            self.next += 1
            if self.next == len(self.load):
                self.behind = len(self.waiting) + len(self.arriving) - 1


def prompt_seconds(steps: Pace, limits: Rules, prompts: Sequence[Piece]) -> float:
    """One prefill worker's time for prompts that it takes at once (each: new tokens, cached ones): steps of its token
    budget. Where they are more than that, it is one prompt."""
    budget = limits.token_budget * steps.dp
    total = sum(new for new, _ in prompts)
    if total <= budget or not limits.chunked:
        return steps.mixed(0, 0.0, prompts, len(prompts))
    hit = prompts[0][1]
    return sum(steps.mixed(0, 0.0, [(min(budget, total - done), hit + done)], 1) for done in range(0, total, budget))


def simulate_halves(halves: Halves, load: Sequence[Request], *, users: int | None, accepted: float = 1.0) -> Run:
    """Runs the requests through prefill workers, the transfer, and decode workers."""
    state = _Halves(halves, load, users, accepted)
    for _ in range(users or 0):
        state.ask()
    while len(state.latency) < len(load):
        state.start()
        state.enter()
        state.forward()
    whole = state.decode_seconds or 1.0
    to_decode = sum(state.ttft) + sum(state.waits.values()) or 1.0        # until a request starts to decode
    return Run(
        ttft=tuple(state.ttft), tpot=tuple(state.tpot), latency=tuple(state.latency), gaps=tuple(state.gaps),
        seconds=state.now, tokens=state.tokens, decode_seconds=state.decode_seconds, busy=state.weighted_b / whole,
        length=state.weighted_length / whole, full=state.full, preempted=0,
        completed=len(state.latency), behind=state.behind,
        waits={cause: seconds / to_decode for cause, seconds in state.waits.items()},
    )
