"""This file knows about how many requests a second a run completes: those offered, or those that it has room for."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf

from sublight.plan import Traffic
from sublight.predict.serving.closed_form import Means
from sublight.predict.serving.loop import Run
from sublight.result import Result

WAITS = 0.2                              # share of TTFT spent waiting for room from which room limits a run
BEHIND = 0.05                            # share of a run's requests that wait when the last one comes: the queue grows
SETTLED = 3                              # latencies that arrivals must last until a run shows whether its queue grows


@dataclass(frozen=True, slots=True)
class Flow:
    """Requests a second of all replicas. limit: completed at most; full: requests wait, so that the limit is what
    counts."""

    offered: float | None                # of arrivals at a rate
    limit: float
    full: bool

    def result(self, traffic: Traffic, latency: float, both: tuple[float, float], tpot: tuple[float, float]) -> Result:
        """"requests/s". both, tpot: the intervals of the latency and of the time a token, which alone counts where a
        batch is full: how long others wait then does not change what it does a second."""
        if self.offered is not None:
            least, most = (min(self.offered, self.limit * exp(-log)) for log in (tpot[1], tpot[0]))
            value = self.limit if self.full else self.offered
            return Result("requests/s", "1/s", (min(self.offered, value),), low=min(value, least),
                          high=max(value, most))
        value, logs = (self.limit, tpot) if self.full else ((traffic.concurrency or 1) / latency, both)
        return Result("requests/s", "1/s", (value,), low=value * exp(-logs[1]), high=value * exp(-logs[0]))

    def notes(self) -> list[str]:
        """That more is offered than is completed, where it is."""
        if self.offered is None or not self.full:
            return []
        return [f"{self.offered:,.3g} requests a second are offered and {self.limit:,.3g} completed: the queue grows "
                "without end, and TTFT depends on the number of requests"]


def flow_of(share: Traffic, means: Means, run: Run | None, replicas: int = 1) -> Flow:
    """share: what one of the replicas sees; means, run: of it."""
    if share.rate is None:
        waits = sum(run.waits.values()) if run else means.waits / means.ttft
        return Flow(None, replicas * (run.rate if run else means.capacity), waits > WAITS)
    limit, full = means.capacity, share.rate > means.capacity
    if run:
        arrivals = run.completed / share.rate
        if run.behind > BEHIND * run.completed:
            limit, full = min(run.rate, share.rate), True
        elif arrivals > SETTLED * sum(run.latency) / len(run.latency):
            limit, full = max(limit, share.rate), False          # it kept up, whatever the closed form says
    return Flow(replicas * share.rate, replicas * limit, full and limit < inf)
