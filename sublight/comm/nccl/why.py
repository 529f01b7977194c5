"""This file knows about why NCCL's graphs are as they are: what limits a channel, what is full, what was conceded.

Every sentence is read off the search: the slowest link of the best path, links that another channel would not fit on,
path classes beyond the nearest, detours, GPUs that NCCL would rather reach through the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from sublight.comm.nccl.climb import Climb, two_islands
from sublight.comm.nccl.paths import Routes
from sublight.comm.nccl.room import Room
from sublight.comm.nccl.search import BALANCED_TREE, HEADS, TREE, Draft, Search
from sublight.comm.nccl.system import (
    ACROSS,
    BUS,
    C2C,
    DEVICE,
    GPU,
    LOC,
    NET,
    NIC,
    NVL,
    NVS,
    P2C,
    PATH_CLASSES,
    PHB,
    PXB,
    PXN,
    SYS,
    Link,
    Node,
)


def notes(routes: Routes, climbs: Mapping[str, Climb], domains: list[list[Node]], faster: str) -> tuple[str, ...]:
    """Sentences, the most consequential first. domains: GPUs by NCCL's node; faster: why the box is several nodes."""
    found: list[str] = []
    if len(domains) > 1:
        groups = " and ".join(_ranks(domain) for domain in domains)
        found.append(f"NCCL takes the box for {len(domains)} nodes, GPUs {groups}: {faster}.")
    ring, tree = climbs["ring"], climbs["tree"]
    found += _rate(routes, ring)
    found += _count(routes, ring)
    found += _concessions(routes, ring)
    found += _tree(ring, tree, across_nodes=routes.system.across_nodes)
    found += _nvls(routes, climbs.get("nvls"))
    found += _access(routes)
    return tuple(dict.fromkeys(found))


def _rate(routes: Routes, climb: Climb) -> list[str]:
    """Why a channel is not faster."""
    ring, terms = climb.found, climb.terms
    if ring.inter <= 0.1 and ring.channels == 1 and ring.intra < 0.2:
        return ["No ring fits at any rate that NCCL tries: it falls back to one channel in the order of the bus at "
                "0.1 GB/s."]
    before = climb.before_doubling or ring
    higher = [rate for rate in terms.speeds if rate > before.inter]
    text = f"Ring: {ring.channels} channel{'s' * (ring.channels > 1)} x {ring.intra:g} GB/s"
    if before is not ring:
        text += f", {before.channels} x {before.intra:g} doubled at half the rate so that more SMs share the work"
    if higher and min(higher) > terms.max_rate:
        goal = "a GPU to a NIC" if routes.system.across_nodes else "GPU to GPU"
        return [f"{text}: the best way from {goal} carries {terms.max_rate:g} GB/s ({_narrow(routes)}), and "
                f"{before.inter:g} is the highest rate that NCCL tries below that."]
    if higher:
        return [f"{text}: at {min(higher):g} GB/s NCCL finds no set of channels that carries more in all."]
    return [f"{text}: no higher rate is tried for GPUs of compute capability {terms.sm / 10:.1f}."]


def _narrow(routes: Routes) -> str:
    """The slowest link of the best path, in words."""
    system = routes.system
    kind = NET if system.across_nodes else DEVICE
    ways = [(path, device) for device in system.nodes[DEVICE] for path in device.paths.get(kind, []) if path.links]
    path, start = max(ways, key=lambda way: way[0].rate)
    starts = [start, *(link.end for link in path.links)]
    return _link_words(*min(zip(starts, path.links, strict=False), key=lambda step: step[1].rate))


def _link_words(start: Node, link: Link) -> str:
    if link.kind == ACROSS:
        return f"port {(link.end if link.end.kind == NET else start).name}, {link.rate * 8:g} Gbit/s"
    words = {NVL: "NVLink", BUS: "PCIe", SYS: "link between CPUs", C2C: "C2C", LOC: "inside the GPU"}
    return f"{words[link.kind]} {start.name} - {link.end.name}, {link.rate:g} GB/s"


def _count(routes: Routes, climb: Climb) -> list[str]:
    """Why there are not more channels: links on which one more would not fit."""
    before = climb.before_doubling or climb.found
    if not before.channels or before.intra < 0.2:
        return []
    if before.channels == before.most:
        return [f"Ring: {before.channels} channels are the most that NCCL searches."]
    full = _full(routes, before)
    if not full:
        return []
    kinds = sorted({word for word, _, _ in full})
    shown = []
    for word in kinds:
        rows = [(left, rate) for kind, left, rate in full if kind == word]
        left, rate = min(rows)
        shown.append(f"{word} ({len(rows)} directions, {left:g} of {rate:g} GB/s left)")
    text = [f"Ring: after {before.channels} x {before.intra:g} GB/s another channel does not fit on: "
            f"{'; '.join(shown)}."]
    if routes.system.across_nodes:
        total = sum({(port.asic, port.port): port.rate for port in routes.system.nodes[NET]}.values())
        used = before.channels * before.inter
        text.append(f"Ring: the node's ports carry {used:g} of {total:g} GB/s each way ({100 * used / total:.0f} %).")
    return text


def _full(routes: Routes, ring: Draft) -> list[tuple[str, float, float]]:
    """Links with less left than one more channel needs: what they are, what is left, the whole."""
    search = Search(routes)
    search.draft = replace(ring, type_intra=SYS, type_inter=SYS)
    for order, ends in zip(ring.orders[:ring.channels], ring.ports[:ring.channels], strict=True):
        gpus = [search.by_rank[rank] for rank in order]
        steps = [*pairwise(gpus)]
        if routes.system.across_nodes:
            ports = [routes.system.nodes[NET][index] for index in ends]
            steps = [(ports[0], gpus[0]), *steps, (gpus[-1], ports[1])]
        elif len(gpus) > 1:
            steps.append((gpus[-1], gpus[0]))
        for start, end in steps:
            search.go(start, end)
    found = []
    for row in routes.system.nodes:
        for node in row:
            for link in node.links:
                left = search.left[search.numbers[link]]
                rate = ring.inter if link.kind == ACROSS else ring.intra
                if left < rate and left < link.rate:
                    found.append((_kind_of(node, link), left, link.rate))
    return found


def _kind_of(node: Node, link: Link) -> str:
    if link.kind == ACROSS:
        return "ports"
    if link.kind == BUS:
        ends = {node.kind, link.end.kind}
        whose = "GPUs" if DEVICE in ends else "NICs" if NIC in ends else "switches"
        return f"PCIe links of {whose}"
    return {NVL: "NVLinks", SYS: "links between CPUs", C2C: "C2C links"}.get(link.kind, PATH_CLASSES[link.kind])


def _concessions(routes: Routes, climb: Climb) -> list[str]:
    """Path classes beyond the nearest, other NICs, the least number of channels."""
    ring, terms, across = climb.found, climb.terms, routes.system.across_nodes
    said = []
    classes = {routes.path(*ends).kind for ends in _ends(routes, ring)} if across else set()
    if PXN in classes:
        said.append("Ring: the last GPU sends by NVLink through the GPU beside the NIC (class PXN), as a ring ends at "
                    "the NIC where it began.")
    said += [f"Ring: between a GPU and the NIC that it uses lies the CPU (class {PATH_CLASSES[kind]})."
             for kind in sorted(classes & {PHB, SYS})]
    if across and ring.cross_nic == 2:
        said.append("Ring: channels may leave by another NIC than they came in by, in pairs (NCCL_CROSS_NIC=2): with "
                    "the same NIC NCCL found less.")
    if ring.type_intra >= PHB:
        said.append(f"Ring: GPUs talk through the CPU (class {PATH_CLASSES[ring.type_intra]}); peer access goes as far "
                    f"as {_peer_level(routes)} (NCCL_P2P_LEVEL).")
    elif ring.type_intra > max(terms.least_intra, NVL):
        said.append(f"Ring: some GPUs are joined by {PATH_CLASSES[ring.type_intra]} at best; the nearest pair has "
                    f"{PATH_CLASSES[terms.least_intra]}.")
    if two_islands(routes):
        said.append("Two groups of GPUs with NVLink inside and none between: NCCL wants at least two channels.")
    return said + _cut_short(routes, climb)


def _cut_short(routes: Routes, climb: Climb) -> list[str]:
    """Attempts that ran out of steps where more than was found might fit."""
    room, found = Room(routes), climb.found
    for draft in climb.cut_short:
        channels = min(room.channels(draft), draft.most)
        if channels * draft.intra > found.channels * found.intra:
            return [f"Ring: up to {channels:g} channels of {draft.intra:g} GB/s might fit by the GPUs' own links; "
                    "NCCL's search ran out of steps before it saw all sets."]
    return []


def _ends(routes: Routes, ring: Draft) -> Iterable[tuple[Node, Node]]:
    ranks = {gpu.rank: gpu for gpu in routes.system.nodes[GPU]}
    ports = routes.system.nodes[NET]
    for order, (first, last) in zip(ring.orders[:ring.channels], ring.ports[:ring.channels], strict=True):
        if first >= 0 and last >= 0:
            yield ports[first], ranks[order[0]]
            yield ranks[order[len(ranks) - 1]], ports[last]


def _peer_level(routes: Routes) -> str:
    if routes.rules.peer_level is not None:
        return PATH_CLASSES[routes.rules.peer_level]
    gpus = routes.system.nodes[GPU]
    far = any(routes.path(one, other).kind > PXB and routes.peer(one, other) for one in gpus for other in gpus)
    return PATH_CLASSES[SYS if far else PXB]


def _tree(ring: Climb, tree: Climb, *, across_nodes: bool) -> list[str]:
    found = tree.found
    if not found.channels or found.intra < 0.2:
        return ["Tree: none fits with as many channels as the ring has."]
    if across_nodes and found.pattern == TREE and tree.terms.sm >= 90 and tree.asked == BALANCED_TREE:
        return [f"Tree: all of a node's traffic goes through one GPU and its NIC (pattern {TREE}), as a balanced tree "
                f"over two GPUs did not fit {ring.found.channels} times at {found.inter:g} GB/s with NICs as near "
                f"(class {PATH_CLASSES[found.type_inter]})."]
    return []


def _nvls(routes: Routes, climb: Climb | None) -> list[str]:
    system = routes.system
    if climb is None:
        return []
    if not system.nodes[NVS]:
        return ["NVLS: none, as the topology shows no NVSwitch."]
    if climb.terms.sm < 90:
        return [f"NVLS: none, as GPUs of compute capability {climb.terms.sm / 10:.1f} have no NVLink SHARP (9.0 has)."]
    if not climb.found.channels:
        return ["NVLS: no set of heads fits on NVLink and the NICs at any rate that NCCL tries."]
    heads, gpus = climb.found.channels, len(system.nodes[GPU])
    if climb.found.pattern != HEADS or heads >= gpus:
        return []
    nearest = len({port.local_gpu for port in system.nodes[NET]} - {None})
    if heads == nearest:
        return [f"NVLS: {heads} heads for {gpus} GPUs: only so many GPUs have a nearest NIC of their own."]
    return [f"NVLS: {heads} heads for {gpus} GPUs: more do not fit on the links at {climb.found.inter:g} GB/s."]


def _access(routes: Routes) -> list[str]:
    """GPU Direct RDMA where the nearest NIC cannot be reached so; ports that share a card."""
    system, said = routes.system, []
    if system.across_nodes:
        away = [gpu for gpu in system.nodes[GPU] if not any(
            routes.direct(gpu, system.nodes[NET][index], read=False) for index in routes.near(gpu, NET)[0])]
        if away:
            kinds = {PATH_CLASSES[routes.near(gpu, NET)[1]] for gpu in away}
            limit = routes.rules.gdr_level
            level = limit if limit is not None else P2C if routes.rules.gdr_over_c2c else PXB
            unable = all(not gpu.gdr for gpu in away) or all(not port.gdr for port in system.nodes[NET])
            reason = "gdr=\"0\" in the file" if unable else (
                f"path class {'/'.join(sorted(kinds))}, allowed up to {PATH_CLASSES[level]}")
            said.append(f"GPU Direct RDMA is off between GPUs {_ranks(away)} and their NICs ({reason}): data goes "
                        "through host memory.")
    cards = [(port.host, port.slot_name) for port in system.nodes[NET]]
    if len(set(cards)) < len(cards):
        said.append("Several ports lie on one card; a running NCCL joins them to one virtual NIC "
                    "(NCCL_NET_MERGE_LEVEL), this search takes them one by one.")
    return said


def why_domains(routes: Routes, domain: list[Node]) -> str:
    """Why the GPUs of a domain do not reach the others but over the network."""
    others = [gpu for gpu in routes.system.nodes[GPU] if gpu not in domain]
    if not others:
        return ""
    one, other = domain[0], others[0]
    inside = routes.path(one, other)
    net = min(max((path.rate for path in gpu.paths.get(NET, []) if path.kind <= PXB), default=0.0)
              for gpu in (one, other))
    if net > inside.rate:
        return (f"through their NICs they reach each other at {net:g} GB/s, inside the box at {inside.rate:g} "
                "(NCCL_NET_DISABLE_INTRA=1 keeps one node)")
    return "neither peer access nor shared memory joins them"


def _ranks(gpus: Iterable[Node]) -> str:
    """Ranks as "0-3, 6"."""
    runs: list[list[int]] = []
    for rank in sorted(gpu.rank for gpu in gpus):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
