"""This file knows about the graphs that NCCL would search on a topology: channels, rates, path classes, and why so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sublight.comm.nccl.climb import Climb, climb, measure
from sublight.comm.nccl.paths import Routes, domain_of, rules_of
from sublight.comm.nccl.search import BALANCED_TREE, DIRECT, HEADS, PATTERNS, RING, TREE, Draft
from sublight.comm.nccl.system import CPU, DEVICE, GPU, LOC, NET, NVL, NVS, PATH_CLASSES, PIX, Node, System, system_of
from sublight.comm.nccl.version import constants, setting
from sublight.comm.nccl.why import notes, why_domains
from sublight.comm.topology.filled import filled
from sublight.comm.topology.xml import Tag
from sublight.errors import InputError

__all__ = ["PATH_CLASSES", "PATTERNS", "Graph", "Searched", "graphs"]


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph of NCCL's search. channels is 0 where NCCL found none."""

    name: str                            # "ring", "tree", "collnet", "collnet direct", "nvls"
    pattern: int                         # as NCCL numbers it; words in PATTERNS
    channels: int
    bw_intra: float                      # 10^9 bytes a second of one channel
    bw_inter: float
    type_intra: int                      # index into PATH_CLASSES
    type_inter: int
    latency_inter: float                 # microseconds, as the topology states it
    same_channels: bool
    cross_nic: int
    intra: tuple[tuple[int, ...], ...]   # per channel, ranks in their order; of NVLS the head only
    inter: tuple[tuple[str, str], ...]   # per channel, the NIC in and the NIC out; empty inside one node


@dataclass(frozen=True, slots=True)
class Searched:
    """The graphs by name, the facts of one node that the tuning model reads, and why the graphs are so."""

    graphs: Mapping[str, Graph]
    gpus: int                            # GPUs of what NCCL takes for one node: they need no network
    nodes: int                           # such nodes in all
    sm_min: int                          # compute capability, 90 for 9.0
    sm_max: int
    cpu_arch: str                        # "x86_64", "arm64", "ppc64", "" for others
    cpu_vendor: str                      # "GenuineIntel", "AuthenticAMD", "CentaurHauls", "" for others
    cpu_model: str                       # NCCL's class: "BDW", "SKL", "SRP", "ERP", "YONGFENG"; "" for others
    nics: int
    gpus_per_nic: float | None           # None without NICs
    has_nvswitch: bool
    all_nvlink: bool                     # every pair of GPUs by NVLink or C2C, perhaps through a third GPU
    all_direct_nvlink: bool              # every pair by NVLink without a GPU between
    min_net_bw: float                    # slowest path of the first GPU to one of its own NICs, 10^9 bytes a second
    gdr: bool                            # the first GPU reads or writes at least one NIC directly
    max_bw: float                        # best path of one channel, 10^9 bytes a second
    total_bw: float                      # all links of one GPU
    notes: tuple[str, ...]               # why it is so, one sentence each


def graphs(tree: Tag, *, gpus: int | None = None, nodes: int = 1,
           environment: Mapping[str, str] | None = None) -> Searched:
    """What NCCL 2.30.7 would search on one node of this topology.

    gpus: the first so many by rank take part; None means all. nodes: how many such nodes. environment: variables that
    NCCL reads (NCCL_CROSS_NIC, NCCL_P2P_LEVEL, NCCL_NET_GDR_LEVEL, NCCL_PXN_DISABLE, NCCL_IB_HCA, NCCL_NVLS_ENABLE, …).
    Rates are NCCL's, in 10^9 bytes a second. Raises InputError for a topology that NCCL could not load, and for more
    than one node without a NIC.
    """
    asked = environment or {}
    if nodes < 1:
        raise InputError(f"expected at least one node, got {nodes}")
    tree, assumed = filled(tree)
    system = system_of(_taking_part(tree, gpus, asked), asked)
    routes = Routes(system, rules_of(asked))
    routes.compute()
    domains, reason = _keep_first_domain(routes, nodes)
    measure(routes)
    found, climbs = _all_graphs(routes, asked)
    facts = _facts(routes, found, nodes * len(domains))
    if "NCCL_GRAPH_FILE" in asked:
        assumed += ("NCCL_GRAPH_FILE is not read: these are the graphs that NCCL searches without it.",)
    return replace(facts, notes=(*assumed, *notes(routes, climbs, domains, reason)))


# ---- who takes part ----

def _taking_part(tree: Tag, gpus: int | None, environment: Mapping[str, str]) -> Tag:
    ranks = sorted(_ranks(tree))
    if gpus is not None and not 1 <= gpus <= len(ranks):
        raise InputError(f"the topology has {len(ranks)} GPUs with a rank, got {gpus} of them to use")
    if len(set(ranks)) != len(ranks):
        raise InputError("two GPUs of the topology have the same rank; expected a dump of one job")
    kept = set(ranks if gpus is None else ranks[:gpus])
    return _chosen(tree, kept, _nic_filter(environment.get("NCCL_IB_HCA", "")))


def _ranks(tag: Tag) -> list[int]:
    from sublight.comm.nccl.version import whole

    own = [whole(tag.attributes["rank"])] if tag.name == "gpu" and "rank" in tag.attributes else []
    return own + [rank for child in tag.children for rank in _ranks(child)]


def _chosen(tag: Tag, ranks: set[int], filters: tuple[bool, bool, tuple[str, ...]] | None) -> Tag:
    children = []
    for child in tag.children:
        own = _ranks(child) if child.name == "pci" else []
        card = any(grand.name == "gpu" for grand in child.children)
        if child.name == "pci" and card and own and not ranks & set(own):
            continue
        if child.name == "net" and filters is not None and not _passes(child, filters):
            continue
        if child.name == "gpu" and own and own[0] not in ranks:
            continue
        children.append(_chosen(child, ranks, filters))
    return replace(tag, children=tuple(children))


def _nic_filter(text: str) -> tuple[bool, bool, tuple[str, ...]] | None:
    """NCCL_IB_HCA: names to use, by their beginnings; "^" before them means all others, "=" exact names."""
    if not text:
        return None
    excluded = text.startswith("^")
    exact = text[excluded:].startswith("=")
    return excluded, exact, tuple(name for name in text[excluded + exact:].split(",") if name)


def _passes(net: Tag, filters: tuple[bool, bool, tuple[str, ...]]) -> bool:
    excluded, exact, wanted = filters
    name, port = net.attributes.get("name", ""), net.attributes.get("port", "1")
    for entry in wanted:
        own, _, number = entry.partition(":")
        if (name == own if exact else name.startswith(own)) and number in ("", port):
            return not excluded
    return excluded


def _keep_first_domain(routes: Routes, nodes: int) -> tuple[list[list[Node]], str]:
    """Drop the GPUs that the first rank reaches only over the network. The domains that there are, and why."""
    system = routes.system
    left = sorted(system.nodes[GPU], key=lambda gpu: gpu.rank)
    domains: list[list[Node]] = []
    while left:
        domain = domain_of(routes, left[0])
        domains.append(domain)
        left = [gpu for gpu in left if gpu not in domain]
    reason = why_domains(routes, domains[0])
    for gpu in [gpu for domain in domains[1:] for gpu in domain]:
        system.drop(gpu)
    system.across_nodes = nodes > 1 or len(domains) > 1
    if len(domains) > 1:
        routes.compute()
    if system.across_nodes and not system.nodes[NET]:
        raise InputError("more than one node, and the topology has no <net>: NCCL would use sockets, which the file "
                         "does not describe; give the NICs")
    return domains, reason


# ---- the five searches ----

def _all_graphs(routes: Routes, environment: Mapping[str, str]) -> tuple[dict[str, Draft], dict[str, Climb]]:
    """What was found, and how, in NCCL's order: a tree wants as many channels as the ring has."""
    cross_nic, limits = setting(environment, "NCCL_CROSS_NIC", 2), constants()["search"]
    most, system = int(limits["channels"]), routes.system
    climbs = {"ring": climb(routes, Draft(RING, 1, int(limits["ring_channels"])), cross_nic=cross_nic)}
    rings = climbs["ring"].found.channels
    climbs["tree"] = climb(routes, Draft(BALANCED_TREE, rings, rings), cross_nic=cross_nic)
    drafts = {"collnet": Draft(TREE, rings, rings, collnet=True),
              "collnet direct": Draft(DIRECT, 1, most, collnet=True), "nvls": Draft(HEADS, 1, most)}
    collnet = setting(environment, "NCCL_COLLNET_ENABLE", 0) == 1 and any(p.collectives for p in system.nodes[NET])
    nvls = setting(environment, "NCCL_NVLS_ENABLE", 2) != 0 and len(system.nodes[GPU]) > 1
    for name, draft in drafts.items():
        if nvls if name == "nvls" else collnet:
            climbs[name] = climb(routes, draft, cross_nic=cross_nic)
    found = {name: one.found for name, one in climbs.items()}
    return {name: found.get(name) or drafts[name] for name in ("ring", "tree", *drafts)}, climbs


def _graph(system: System, name: str, draft: Draft) -> Graph:
    ranks = 1 if name == "nvls" else len(system.nodes[GPU])
    inter: tuple[tuple[str, str], ...] = ()
    if system.across_nodes:
        inter = tuple((_port_name(system, first), _port_name(system, last))
                      for first, last in draft.ports[:draft.channels])
    return Graph(
        name=name, pattern=draft.pattern, channels=draft.channels, bw_intra=draft.intra, bw_inter=draft.inter,
        type_intra=draft.type_intra, type_inter=draft.type_inter, latency_inter=draft.latency,
        same_channels=draft.same, cross_nic=draft.cross_nic,
        intra=tuple(tuple(order[:ranks]) for order in draft.orders[:draft.channels]), inter=inter,
    )


def _port_name(system: System, index: int) -> str:
    return system.nodes[NET][index].name if index >= 0 else ""


def _facts(routes: Routes, found: Mapping[str, Draft], nodes: int) -> Searched:
    system = routes.system
    cpu, gpus, ports = system.nodes[CPU][0], system.nodes[GPU], system.nodes[NET]
    first = min(gpus, key=lambda gpu: gpu.rank)
    sms = [device.sm for device in system.nodes[DEVICE]]
    farthest = max([LOC, *(path.kind for gpu in gpus for i, path in enumerate(gpu.paths[GPU]) if i != gpu.index)])
    return Searched(
        graphs={name: _graph(system, name, draft) for name, draft in found.items()}, gpus=len(gpus), nodes=nodes,
        sm_min=min(sms), sm_max=max(sms), cpu_arch=cpu.arch, cpu_vendor=cpu.vendor, cpu_model=cpu.model,
        nics=len(ports), gpus_per_nic=len(gpus) / len(ports) if ports else None, has_nvswitch=bool(system.nodes[NVS]),
        all_nvlink=farthest < PIX, all_direct_nvlink=farthest <= NVL, min_net_bw=_slowest_own(routes, first),
        gdr=any(routes.direct(first, port, read=read) for port in ports for read in (True, False)),
        max_bw=system.max_rate, total_bw=system.total_rate, notes=(),
    )


def _slowest_own(routes: Routes, gpu: Node) -> float:
    if not routes.system.nodes[NET]:
        return 0.0
    return min(gpu.paths[NET][index].rate for index in routes.own_ports(gpu))
