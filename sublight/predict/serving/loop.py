"""This file knows about a serving run step by step: who waits, who is admitted, who decodes; runs of decode steps are
jumped over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil

from sublight.predict.serving.arrivals import Request
from sublight.predict.serving.host import Rules
from sublight.predict.serving.pace import Pace, Piece

SEQUENCES, TOKENS = "max sequences", "KV capacity"       # what a prompt waits for, where there is no room for it


@dataclass(frozen=True)
class Run:
    """What came of it, a value for each request in the order of completion, in seconds."""

    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    latency: tuple[float, ...]
    gaps: tuple[tuple[float, int], ...]  # seconds between two tokens, and how many such gaps
    seconds: float
    tokens: int
    decode_seconds: float                # in steps without a prompt
    busy: float                          # mean sequences that decode in a step
    length: float                        # mean cached tokens of a decoding sequence
    full: int                            # times that the cache was full, or so many sequences ran, that a prompt waited
    preempted: int
    waits: Mapping[str, float] = field(default_factory=dict)     # shares of all TTFT spent waiting for room, by cause
    behind: int = 0                      # requests that waited when the last one came
    completed: int = 0

    @property
    def rate(self) -> float:
        """Requests completed a second, from the first to come to the last to leave."""
        return self.completed / self.seconds if self.seconds > 0 else 0.0


class _Engine:
    """The state of one run."""

    def __init__(self, pace: Pace, rules: Rules, kv_tokens: float, pending: Sequence[Request], users: int | None,
                 accepted: float) -> None:
        self.pace, self.rules, self.kv_tokens = pace, rules, kv_tokens
        self.pending, self.next, self.users, self.accepted = pending, 0, users, accepted
        self.now, self.steps, self.tick = 0.0, 0, 0              # tick: decode steps so far
        self.inbox: deque[tuple[int, float]] = deque()           # arrived, not yet seen
        self.waiting: deque[tuple[int, float]] = deque()
        self.partial: list[tuple[int, float, int]] = []          # a prompt that is prefilled in part: tokens that are
        self.running: list[tuple[int, int, float, float]] = []   # (last tick, request, arrival, time of first token)
        self.cached = self.reserved = 0.0                        # tokens of running sequences; set aside for all
        self.ttft: list[float] = []
        self.tpot: list[float] = []
        self.latency: list[float] = []
        self.gaps: list[tuple[float, int]] = []
        self.tokens = self.full = self.preempted = 0
        self.waits = {SEQUENCES: 0.0, TOKENS: 0.0}               # seconds of all that waited for room
        self.lacks = ""                                          # what the first one that waits lacks
        self.behind = 0
        self.late: list[tuple[float, int]] = []                  # how long so many stand since their last token
        self.held = 0                                            # steps that prompts have waited for company
        self.decode_seconds = self.weight = self.weighted_b = self.weighted_length = 0.0

    def ask(self) -> None:
        """The next request of a user that is free."""
        if self.next < len(self.pending):
            self.inbox.append((self.next, self.now))
            self.next += 1

    def arrive(self) -> None:
        """Requests whose time has come; and those in the inbox are seen, when the engine looks."""
        while self.users is None and self.next < len(self.pending):
            arrival = self.pending[self.next].arrival or 0.0
            if arrival > self.now:
                break
            self.inbox.append((self.next, arrival))
            self.next += 1
            if self.next == len(self.pending):
                self.behind = len(self.waiting) + len(self.inbox) - 1
        if self.inbox and (self.steps % self.rules.poll_steps == 0 or not (self.running or self.partial)):
            self.waiting.extend(self.inbox)
            self.inbox.clear()

    def set_aside(self, index: int) -> float:
        request = self.pending[index]
        return request.isl + self.rules.reserve * request.osl

    def patience(self) -> int:
        """Steps that waiting prompts still wait for company: until they fill a share of the step, or until every
        attention replica has one."""
        limits, dp = self.rules, self.pace.dp
        if not self.running or not self.waiting or self.partial:
            return 0
        if dp > 1:
            return 0 if len(self.waiting) >= dp else max(0, limits.balance_steps - self.held)
        wanted = limits.wait_fill * limits.token_budget - len(self.running)
        for index, _ in self.waiting:
            wanted -= self.pending[index].isl
            if wanted <= 0:
                return 0
        return max(0, limits.wait_steps - self.held)

    def admit(self) -> tuple[list[tuple[int, float, int]], list[Piece]]:
        """Prompts of the next step, each with tokens that are cached after it, and their pieces."""
        self.lacks = ""
        if self.patience():
            return [], []
        self.held = 0
        dp = self.pace.dp
        budget = self.rules.token_budget * dp - (len(self.running) * self.pace.rows if self.rules.mixed else 0)
        chosen, pieces = [], []
        for index, arrival, done in self.partial:
            piece = min(self.pending[index].isl - done, max(budget, 1))
            chosen.append((index, arrival, done + piece))
            pieces.append((piece, done))
            budget -= piece
        self.partial = []
        busy = len(self.running) + len(chosen)
        while self.waiting and budget > 0:
            index, arrival = self.waiting[0]
            request, need = self.pending[index], self.set_aside(index)
            new = request.isl - request.hit
            crowded = busy >= self.rules.max_sequences * dp
            if busy and (crowded or self.reserved + need > self.kv_tokens):
                self.full += 1
                self.lacks = SEQUENCES if crowded else TOKENS
                break
            if new > budget and pieces and not self.rules.chunked:
                break
            piece = min(new, budget) if self.rules.chunked else new
            self.waiting.popleft()
            self.reserved += need
            chosen.append((index, arrival, request.hit + piece))
            pieces.append((piece, request.hit))
            budget -= piece
            busy += 1
        return chosen, pieces

    def prefill(self, chosen: list[tuple[int, float, int]], pieces: list[Piece]) -> None:
        """One step with prompts in it."""
        b = len(self.running) if self.rules.mixed else 0
        finished = [(index, arrival) for index, arrival, done in chosen if done >= self.pending[index].isl]
        seconds = self.pace.mixed(b, self.cached / b if b else 0.0, pieces, len(finished))
        self.now += seconds
        self.steps += 1
        if b:
            self.gaps.append((seconds, b))
            self.advance(1, b)
        elif self.running:               # they stand while prompts are prefilled: their next token is late
            newer = len(self.running) - sum(count for _, count in self.late)
            self.late = [(late + seconds, count) for late, count in [*self.late, (0.0, newer)] if count]
        self.partial = [entry for entry in chosen if entry[2] < self.pending[entry[0]].isl]
        for index, arrival in finished:
            request = self.pending[index]
            self.cached += request.isl
            heappush(self.running, (self.tick + self.lived(request), index, arrival, self.now))
            self.ttft.append(self.now - arrival)
        self.complete()

    def lived(self, request: Request) -> int:
        """Decode steps of a request."""
        return ceil((request.osl - 1) / self.accepted)

    def decode(self) -> None:
        """Decode steps until something changes."""
        b = len(self.running)
        steps = max(1, self.running[0][0] - self.tick)
        if self.inbox:
            steps = min(steps, self.rules.poll_steps - self.steps % self.rules.poll_steps)
        patience = self.patience()
        if patience:
            steps = min(steps, patience)
            self.held += steps
        middle = (self.cached + 0.5 * (steps - 1) * b * self.accepted) / b
        seconds = self.pace.decode(b, middle)
        if self.users is None and self.next < len(self.pending) and not self.waiting:
            until = (self.pending[self.next].arrival or 0.0) - self.now
            steps = min(steps, max(1, ceil(until / seconds)))
        self.now += steps * seconds
        self.steps += steps
        self.gaps += [(late + seconds, count) for late, count in self.late]
        self.gaps.append((seconds, b * steps - sum(count for _, count in self.late)))
        self.late = []
        self.decode_seconds += steps * seconds
        self.weight += steps
        self.weighted_b += steps * b
        self.weighted_length += steps * middle
        self.advance(steps, b)
        self.complete()

    def advance(self, steps: int, b: int) -> None:
        self.tick += steps
        self.cached += steps * b * self.accepted

    def complete(self) -> None:
        """Sequences whose last token is out leave, and their users ask again."""
        while self.running and self.running[0][0] <= self.tick:
            _, index, arrival, first = heappop(self.running)
            request = self.pending[index]
            self.cached = self.cached - request.isl - self.lived(request) * self.accepted if self.running else 0.0
            self.reserved = max(0.0, self.reserved - self.set_aside(index))
            self.tokens += request.osl
            self.latency.append(self.now - arrival)
            if request.osl > 1:
                self.tpot.append((self.now - first) / (request.osl - 1))
            if self.users is not None:
                self.ask()


def simulate(
    pace: Pace, rules: Rules, load: Sequence[Request], *, users: int | None, kv_tokens: float, accepted: float = 1.0,
    burst: bool = True,
) -> Run:
    """Runs the requests through one instance. users: of a closed loop, None where requests say when they arrive.

    accepted: tokens of a sequence and decode step (more than one with drafts). Without burst, the first request of each
    user does not count.
    """
    engine = _Engine(pace, rules, kv_tokens, load, users, accepted)
    for _ in range(users or 0):
        engine.ask()
    while len(engine.latency) < len(load):
        engine.arrive()
        chosen, pieces = engine.admit()
        before = engine.now
        if chosen:
            engine.prefill(chosen, pieces)
        elif engine.running:
            engine.decode()
        else:                            # nothing to do until the next request comes
            engine.now = max(engine.now, load[engine.next].arrival or 0.0)
        if engine.lacks:
            engine.waits[engine.lacks] += (engine.now - before) * len(engine.waiting)
    skip = users if users and not burst and len(load) > 2 * users else 0
    return Run(
        ttft=tuple(engine.ttft[skip:]), tpot=tuple(engine.tpot[skip:]), latency=tuple(engine.latency[skip:]),
        gaps=tuple(engine.gaps), seconds=engine.now, tokens=engine.tokens, decode_seconds=engine.decode_seconds,
        busy=engine.weighted_b / engine.weight if engine.weight else 0.0,
        length=engine.weighted_length / engine.weight if engine.weight else 0.0, full=engine.full,
        preempted=engine.preempted, completed=len(engine.latency), behind=engine.behind,
        waits={cause: seconds / (sum(engine.ttft) or 1.0) for cause, seconds in engine.waits.items()},
    )
