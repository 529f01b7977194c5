"""This file knows about the collectives of training: between which ranks they are, and what they take.

Ranks lie as Megatron places them: tensor parallel ranks side by side, then context, expert and data parallel ones, then
stages (Narayanan et al., arXiv 2104.04473, section 3.1). A group of `size` ranks with `stride` ranks between two of
them so fills NVLink domains with domain / stride of its ranks each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sublight.cluster import Cluster
from sublight.comm.expect import expect
from sublight.errors import InputError
from sublight.predict.machine import Machine
from sublight.predict.optime import OpTime
from sublight.work import Message

RATE_OF = {"NVLink": "nvlink", "PCIe": "nvlink", "rail": "nic", "spine": "nic", "port": "nic"}
MOST_RANKS_A_DOMAIN = 64                 # of an NVL72, which jobs fill by powers of two
SPREAD = 0.35                            # of ln(measured / expected): judgement, from docs/comm-accuracy.md's columns


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of one communicator."""

    size: int
    stride: int = 1


def placed(group: Group, cluster: Cluster) -> Cluster:
    """The part of a cluster that a group is, with its own number of ranks in each NVLink domain."""
    node = cluster.node
    domain = min(node.domain, MOST_RANKS_A_DOMAIN) if node.domain > node.gpus else node.domain
    inside = max(1, min(group.size, domain // group.stride))
    while group.size % inside:
        inside -= 1
    own = replace(node, gpus=inside, domain=inside) if inside > node.gpus else replace(node, domain=node.gpus)
    return replace(cluster, node=own, nodes=group.size // inside, gpus_per_node=inside)


def collective(kind: str, group: Group, nbytes: float, where: Machine) -> OpTime:
    """A collective of a group of ranks. Message sizes as Message has them."""
    if group.size < 2 or nbytes < 1:
        return OpTime(0.0, {"fixed": 1.0}, SPREAD, "constants")
    key = ("training collective", kind, group, int(nbytes))
    if key not in where.memo:
        where.memo[key] = _timed(kind, group, int(nbytes), where)
    known: OpTime = where.memo[key]
    return known


def _timed(kind: str, group: Group, nbytes: int, where: Machine) -> OpTime:
    cluster = placed(group, where.cluster)
    try:
        time = expect(Message(kind, group.size, nbytes), cluster)
        seconds, terms = time.seconds, time.terms
    except InputError:                   # nothing like it was measured: the wire at 70 % of its rate
        terms = _wire(kind, group, nbytes, cluster)
        seconds = sum(terms.values())
    return _with_rates(seconds, terms, where)


def _wire(kind: str, group: Group, nbytes: int, cluster: Cluster) -> dict[str, float]:
    """Bytes over the slower of the links, and 10 µs for every rank of a ring."""
    ways = {"all_reduce": 2.0, "send_recv": group.size / (group.size - 1)}.get(kind, 1.0)
    moved = ways * nbytes * (group.size - 1) / group.size
    link = cluster.node.device.limits.link_bytes_per_second or cluster.node.pcie_bytes_per_second
    out = {"base latency": 10e-6, "NVLink": moved / (0.7 * link)}
    if cluster.nodes > 1:
        ports = cluster.node.nics * cluster.node.nic_bytes_per_second / max(1, cluster.node.gpus)
        out["rail"] = moved / (0.7 * max(ports * cluster.gpus_per_node, 1.0))
    return out


def _with_rates(seconds: float, terms: Mapping[str, float], where: Machine) -> OpTime:
    """Shares by rate: terms run side by side, so each has its part of their sum; what-ifs scale each part."""
    total = sum(terms.values())
    scaled: dict[str, float] = {}
    for name, term in terms.items():
        rate = RATE_OF.get(name, "fixed")
        scaled[rate] = scaled.get(rate, 0.0) + seconds * term / total / where.factor(rate)
    whole = sum(scaled.values())
    return OpTime(whole, {rate: value / whole for rate, value in scaled.items()}, SPREAD, "constants")


def exposed(communication: float, beside: float, share: float) -> float:
    """Seconds of a collective that compute does not hide: what is longer than the compute beside it, and of the rest a
    `share` (first and last buckets have nothing beside them, and kernels that run together slow each other)."""
    return max(0.0, communication - beside) + share * min(communication, beside)
