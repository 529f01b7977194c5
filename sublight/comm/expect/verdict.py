"""This file knows about a measured time against an expected one: inside, slower, faster, and what could be behind it.

    low ├────── as expected ──────┤ high        slower: by how much, and the rate that the leading term then had

    >>> from sublight.comm.expected import Expected
    >>> time = Expected(1e-3, 0.9e-3, 1.1e-3, {"base latency": 1e-4, "rail": 9e-4}, "rail", "")
    >>> judged(time, 4e-3).words
    'slower than expected: 4.0 times, outside the interval; if it is the rail, it ran at 23 % of its expected rate'
"""

from __future__ import annotations

from dataclasses import dataclass

from sublight.cluster import Cluster
from sublight.comm.bus import bus_bytes
from sublight.comm.expect.compose import part
from sublight.comm.expect.experts import SPREADING, Exchange, traffic
from sublight.comm.expect.rails import PEER_TO_PEER, box_of
from sublight.comm.expect.wire import least_wire_bytes
from sublight.comm.expected import Expected
from sublight.work import Message

INSIDE, SLOWER, FASTER = "as expected", "slower than expected", "faster than expected"
TWICE = 2.0                              # from here on, times are said as factors


@dataclass(frozen=True, slots=True)
class Judged:
    """state: INSIDE, SLOWER or FASTER; ratio: measured over expected."""

    state: str
    seconds: float
    ratio: float
    words: str


def judged(expected: Expected, seconds: float) -> Judged:
    """What a measured time says of an expected one."""
    ratio = seconds / expected.seconds
    if expected.low <= seconds <= expected.high:
        return Judged(INSIDE, seconds, ratio, f"{INSIDE}: {_percent(ratio)}, inside the interval")
    if seconds < expected.low:
        return Judged(FASTER, seconds, ratio, f"{FASTER}: {_percent(ratio)}, outside the interval; the basis may not "
                                              "hold for it, or other bytes were moved")
    by = f"{ratio:.1f} times" if ratio >= TWICE else _percent(ratio)
    return Judged(SLOWER, seconds, ratio, f"{SLOWER}: {by}, outside the interval; {_suspect(expected, seconds)}")


def _percent(ratio: float) -> str:
    return f"{abs(ratio - 1):.0%} {'longer' if ratio >= 1 else 'shorter'}".replace("%", " %")


def _suspect(expected: Expected, seconds: float) -> str:
    """What the leading term would have to be, if it alone were to blame."""
    name = expected.limiter
    leading = expected.terms.get(name, expected.seconds)
    needed = leading + seconds - expected.seconds
    if "latency" in name or name in ("host", "start-up"):
        return f"if it is the {name}, it took {needed * 1e6:,.0f} µs instead of {leading * 1e6:,.0f}"
    return f"if it is the {name}, it ran at {100 * leading / needed:.0f} % of its expected rate"


@dataclass(frozen=True, slots=True)
class Link:
    """What an exchange is held against: a link or a set of ports, one way."""

    name: str
    rate: float                          # bytes a second; 0 where the catalog has none
    nbytes: float                        # that must cross it


def link_of(message: Message, cluster: Cluster) -> Link:
    """The link of a collective: one GPU's inside a domain; between domains the ports of one domain for rings and trees,
    and one GPU's part of them, with what leaves the domain, where each pair has data of its own."""
    node, moved = cluster.node, bus_bytes(message) or 0.0
    if message.group <= cluster.domain:
        rate = node.device.limits.link_bytes_per_second if node.links else node.pcie_bytes_per_second
        return Link("NVLink of a GPU" if node.links else "PCIe of a GPU", float(rate or 0.0), moved)
    box = box_of(part(cluster, message.group))
    if message.collective == "send_recv":
        return Link("one port", node.nic_bytes_per_second, moved)
    if message.collective in PEER_TO_PEER:
        leaves = message.nbytes * (message.group - box.gpus) / message.group
        return Link("ports of a GPU", box.nics * node.nic_bytes_per_second / box.gpus, leaves)
    return Link("ports of a domain", box.nics * node.nic_bytes_per_second, least_wire_bytes(message, box.domains))


def link_of_exchange(exchange: Exchange, cluster: Cluster) -> Link:
    """The link of a dispatch or combine: one GPU's part of its node's ports, or its NVLink inside a domain."""
    node, found = cluster.node, traffic(exchange)
    rows = exchange.tokens * exchange.row_bytes
    if exchange.nodes == 1:
        others = (exchange.ranks - 1) / exchange.ranks
        copies = exchange.top_k if exchange.mode in ("low-latency", "nccl-ep") else found.ranks
        return Link("NVLink of a GPU", node.device.limits.link_bytes_per_second or 0.0, rows * copies * others)
    box = box_of(cluster)
    share = (exchange.nodes - 1) / exchange.nodes
    copies = found.remote_nodes if exchange.mode in SPREADING else exchange.top_k * share
    return Link("ports of a GPU", box.nics * node.nic_bytes_per_second / box.gpus, rows * copies)
