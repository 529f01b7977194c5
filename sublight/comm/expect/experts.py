"""This file knows about exchanges of mixture-of-experts layers: what a token's copies cross, and how evenly.

A dispatch sends each token to the ranks of its experts, a combine brings the results back. Kernels that know nodes
send one copy to a node and spread it there over NVLink; so what counts is how many *distinct* nodes and ranks the
top-k experts of a token touch.

    >>> even = Exchange("dispatch", tokens=4096, top_k=8, hidden=7168, experts=256, ranks=64, per_node=8, group_limit=4)
    >>> found = traffic(even)
    >>> round(found.nodes, 3), round(found.remote_nodes, 3), round(found.ranks, 3)
    (3.629, 3.175, 7.359)
    >>> even.row_bytes                       # 7168 fp8 values and 56 scales of 4 bytes
    7392.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from sublight.errors import InputError

PHASES = ("dispatch", "combine")
MODES = ("normal", "deepep-v2", "low-latency", "nccl-ep", "nvl72-alltoall")
SPREADING = ("normal", "deepep-v2")      # one copy of a token to a node, spread there over NVLink
# Bytes of a row of `hidden` values. fp8: a 4-byte scale for 128 values (DeepEP, README); nvfp4: a 1-byte scale for 16
# values (TensorRT-LLM); bf16: plain.
FORMS = ("fp8", "bf16", "nvfp4")


@dataclass(frozen=True, slots=True)
class Routing:
    """How tokens choose experts. power: load of the i-th expert falls as (i+1)^-power; 0 is even. loads: assignments by
    expert as counted (any scale). Experts lie in their order, so heavy ones that follow each other share a rank."""

    power: float = 0.0
    loads: tuple[float, ...] = ()

    @property
    def even(self) -> bool:
        return not self.loads and self.power == 0

    def of(self, experts: int) -> tuple[float, ...]:
        """The loads of so many experts."""
        return self.loads or tuple((i + 1) ** -self.power for i in range(experts))


EVEN = Routing()


@dataclass(frozen=True, slots=True)
class Exchange:
    """One dispatch or combine, as one rank sees it. Raises InputError for sizes that cannot be."""

    phase: str                           # "dispatch" or "combine"
    tokens: int                          # of one rank
    top_k: int
    hidden: int
    experts: int
    ranks: int
    per_node: int                        # ranks of a node, or of an NVLink domain
    group_limit: int | None = None       # nodes that a token may go to; None: any
    form: str | None = None              # of the rows; None: "fp8" to dispatch, "bf16" to combine
    mode: str = "normal"
    sms: int | None = None               # that the kernel may hold; None: what its library takes
    routing: Routing = EVEN

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise InputError(f"{self.phase} of {self.tokens} tokens: {problem}")

    def _problem(self) -> str:
        if self.phase not in PHASES:
            return f"expected {' or '.join(PHASES)}, got '{self.phase}'"
        if self.mode not in MODES:
            return f"no mode '{self.mode}'; expected one of {', '.join(MODES)}"
        if self.row_form not in FORMS:
            return f"no rows of '{self.form}'; expected one of {', '.join(FORMS)}"
        if min(self.tokens, self.top_k, self.hidden, self.experts, self.ranks, self.per_node) < 1:
            return "expected sizes of at least 1"
        if self.ranks % min(self.per_node, self.ranks) or self.experts % self.ranks:
            return f"{self.experts} experts on {self.ranks} ranks of {self.per_node} a node do not divide evenly"
        if self.group_limit is not None and not 1 <= self.group_limit <= self.nodes:
            return f"a limit of {self.group_limit} nodes a token, but there are {self.nodes}"
        allowed = self.experts // self.nodes * (self.group_limit or self.nodes)
        if self.top_k > allowed:
            return f"top-k {self.top_k} of {allowed} experts that a token may go to"
        if self.sms is not None and self.sms < 1:
            return f"expected at least one SM, got {self.sms}"
        return self._routing_problem()

    def _routing_problem(self) -> str:
        routing = self.routing
        if routing.loads and len(routing.loads) != self.experts:
            return f"{len(routing.loads)} loads for {self.experts} experts"
        if routing.loads and (min(routing.loads) < 0 or sum(load > 0 for load in routing.loads) < self.top_k):
            return f"loads are counts, not below 0, and {self.top_k} of them at least above"
        if not routing.even and self.group_limit not in (None, self.nodes):
            return "uneven routing with a limit on nodes is not modelled: which nodes a token then takes is not known"
        return "" if 0 <= routing.power <= 4 else f"expected a power from 0 to 4, got {routing.power}"

    @property
    def nodes(self) -> int:
        return max(1, self.ranks // self.per_node)

    @property
    def row_form(self) -> str:
        return self.form or ("fp8" if self.phase == "dispatch" else "bf16")

    @property
    def row_bytes(self) -> float:
        """Bytes of one token's row."""
        if self.row_form == "fp8":
            return self.hidden + 4.0 * math.ceil(self.hidden / 128)
        return 2.0 * self.hidden if self.row_form == "bf16" else self.hidden / 2 + math.ceil(self.hidden / 16)

    @property
    def payload_bytes(self) -> float:
        """Bytes of all copies, one for each expert: what low-latency kernels send, and their benchmarks divide by."""
        return self.tokens * self.top_k * self.row_bytes


@dataclass(frozen=True, slots=True)
class Traffic:
    """Expected copies of one token, and how much more the busiest takes than the mean."""

    nodes: float                         # distinct nodes, its own included
    remote_nodes: float
    ranks: float                         # distinct ranks, its own included
    hot_node: float                      # busiest node over the mean, 1.0 where even
    hot_rank: float


def traffic(exchange: Exchange) -> Traffic:
    """Distinct nodes and ranks that a token's experts touch, in the mean over tokens.

    Even routing: a token takes group_limit of the nodes, then its experts there without putting back, so a node of g
    experts among n is missed by C(n-g, k) / C(n, k) of tokens (hypergeometric). Uneven routing: a set of k experts is
    taken with probability proportional to the product of their loads (conditional Poisson sampling; even loads give the
    same as above).
    """
    nodes, ranks = exchange.nodes, exchange.ranks
    if exchange.routing.even:
        limit = exchange.group_limit or nodes
        allowed = exchange.experts // nodes * limit
        touched = limit * _hit(allowed, exchange.experts // nodes, exchange.top_k)
        spread = limit * (ranks // nodes) * _hit(allowed, exchange.experts // ranks, exchange.top_k)
        return Traffic(touched, touched * (nodes - 1) / nodes, spread, 1.0, 1.0)
    of_node, of_rank = _touched(exchange, nodes), _touched(exchange, ranks)
    return Traffic(sum(of_node), sum(of_node) * (nodes - 1) / nodes, sum(of_rank),
                   max(of_node) * nodes / sum(of_node), max(of_rank) * ranks / sum(of_rank))


@cache
def _hit(experts: int, of_group: int, k: int) -> float:
    """Probability that at least one of k experts lies in a group."""
    return 1.0 - math.comb(experts - of_group, k) / math.comb(experts, k)


def _touched(exchange: Exchange, groups: int) -> list[float]:
    """Probability of each group of neighbouring experts to be touched."""
    loads = exchange.routing.of(exchange.experts)
    mean = sum(loads) / len(loads)
    weights = [load / mean for load in loads]
    each, whole = len(weights) // groups, _sets(weights, exchange.top_k)
    outside = (weights[:g * each] + weights[(g + 1) * each:] for g in range(groups))
    return [1.0 - _sets(others, exchange.top_k) / whole for others in outside]


def _sets(weights: list[float], k: int) -> float:
    """Sum over all sets of k of the product of their weights."""
    sums = [1.0] + [0.0] * k
    for weight in weights:
        for size in range(k, 0, -1):
            sums[size] += weight * sums[size - 1]
    return sums[k]


def printed_bytes(exchange: Exchange) -> tuple[str, float]:
    """(name, bytes) of the bandwidth that DeepEP's tests print, its own rank or node counted as if it were remote.

    Normal kernels: "RDMA" between nodes, "NVLink" inside one (tests/test_internode.py, test_intranode.py). The others:
    a copy for each expert (tests/test_low_latency.py).
    """
    found = traffic(exchange)
    if exchange.mode not in SPREADING:
        return "payload", exchange.payload_bytes
    if exchange.nodes > 1:
        return "RDMA", exchange.tokens * exchange.row_bytes * found.nodes
    return "NVLink", exchange.tokens * exchange.row_bytes * found.ranks
