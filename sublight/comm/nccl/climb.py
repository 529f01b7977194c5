"""This file knows about the terms under which NCCL searches: which rates, path classes and patterns, in which order.

First it goes down: the best rate, then worse path classes, other NICs, lower rates, until a set of channels fits. Then
up: from that set, higher rates as long as they fit. After NCCL 2.30.7 (its public src/graph/search.cc).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sublight.comm.nccl.paths import Routes
from sublight.comm.nccl.search import BALANCED_TREE, DIRECT, HEADS, RING, SPLIT_TREE, TREE, Draft, Search, ports_for
from sublight.comm.nccl.system import BUS, CPU, DEVICE, DIS, GPU, LOC, NET, NVL, NVS, PIX, PXN, SYS, Node, System
from sublight.comm.nccl.version import constants, single, speeds


@dataclass(slots=True)
class Climb:
    """One graph's search: what it found, and what it tried on the way."""

    found: Draft
    terms: Terms | None = None
    timed_out: bool = False              # at least one attempt ran out of steps
    tried: list[tuple[float, float]] = field(default_factory=list)      # rates inside and between nodes


@dataclass(frozen=True, slots=True)
class Terms:
    """The limits of one graph's search."""

    speeds: tuple[float, ...]
    max_rate: float
    total_rate: float
    least_intra: int
    most_intra: int
    least_inter: int
    most_inter: int
    cross_nic: int
    same: bool
    sm: int


def measure(routes: Routes) -> None:
    """Set the best rate of one channel, and that of all links of a GPU, on the system."""
    system = routes.system
    if not system.across_nodes and len(system.nodes[GPU]) == 1:
        system.max_rate = system.total_rate = float(constants()["rates"]["local"])
        return
    kind = NET if system.across_nodes else DEVICE
    for device in system.nodes[DEVICE]:
        rates = [path.rate for path in device.paths.get(kind, []) if path.links]
        system.max_rate = max([system.max_rate, *rates])
        system.total_rate = max(system.total_rate, _all_links(device))


def _all_links(device: Node) -> float:
    nvlink = bus = 0.0
    for link in device.links:
        if link.kind == NVL:
            nvlink = single(nvlink + link.rate)
        if link.kind == BUS:
            bus = link.rate
    return max(nvlink, bus)


def climb(routes: Routes, draft: Draft, *, cross_nic: int) -> Climb:
    """Search the draft's pattern. cross_nic: NCCL_CROSS_NIC. The draft's channels say how many are wanted."""
    system = routes.system
    terms = _terms(routes, draft, cross_nic)
    climbed = Climb(draft, terms)
    draft.type_intra, draft.type_inter, draft.same = terms.least_intra, terms.least_inter, terms.same
    draft.cross_nic = 1 if terms.cross_nic == 1 else 0
    if draft.pattern == HEADS and (not system.nodes[NVS] or terms.sm < 90):
        return climbed
    _limit_channels(routes, draft)
    search = Search(routes)
    # a pattern that does not close gets more of the links: nothing goes back to where it began
    devices, total = len(system.nodes[DEVICE]), system.total_rate
    if devices > 1 and draft.pattern != RING:
        total = single(total * (devices * 1.0 / (devices - 1)))
    place = 0
    while place < len(terms.speeds) - 1 and (terms.speeds[place] > terms.max_rate
                                            or single(terms.speeds[place] * draft.least) > total):
        place += 1
    _down(search, climbed, place)
    _duplicate(climbed.found, terms.sm)
    _up(search, climbed)
    if climbed.found.channels == 0 and not draft.collnet and draft.pattern != HEADS:
        _simple_order(routes, climbed.found)
    return climbed


def _terms(routes: Routes, draft: Draft, cross_nic: int) -> Terms:
    system = routes.system
    sm, across = system.least_sm, system.across_nodes
    intra = _classes(system, GPU) if len(system.nodes[GPU]) > 1 else (LOC, SYS)
    inter = _classes(system, NET) if across else (PIX, SYS)
    crossing = len(system.nodes[NET]) > 1 and draft.pattern in (RING, BALANCED_TREE, SPLIT_TREE)
    return Terms(
        speeds=speeds(sm, across_nodes=across), max_rate=system.max_rate, total_rate=system.total_rate,
        least_intra=intra[0], most_intra=inter[1] if across else intra[1], least_inter=inter[0],
        most_inter=SYS if sm < 90 else inter[1], cross_nic=cross_nic if crossing else 0, same=draft.pattern != HEADS,
        sm=sm,
    )


def _classes(system: System, kind: int) -> tuple[int, int]:
    """The nearest and the farthest class from any GPU to that kind; between SYS and LOC where there is nothing."""
    paths = [path.kind for gpu in system.nodes[GPU] for index, path in enumerate(gpu.paths.get(kind, []))
             if kind != GPU or index != gpu.index]
    return min([SYS, *paths]), max([LOC, *paths])


def _limit_channels(routes: Routes, draft: Draft) -> None:
    system, limits = routes.system, constants()["search"]
    gpus = len(system.nodes[GPU])
    if draft.pattern == HEADS:
        draft.most = min(int(limits["nvls_heads"]), gpus)
    if draft.pattern == DIRECT:
        draft.most = min(int(limits["direct_heads"]), gpus)
    if gpus == 1 and draft.pattern != RING:
        draft.pattern = TREE
    if draft.pattern == HEADS and not system.across_nodes:
        draft.least = draft.most                           # inside a node all GPUs pull alike
    if draft.pattern == RING and two_islands(routes) and draft.most >= 2 and draft.least == 1:
        draft.least = 2                                    # trees will want two channels, and as many as rings


def two_islands(routes: Routes) -> bool:
    """Two groups of GPUs, NVLink inside each and not between them."""
    gpus = routes.system.nodes[GPU]
    islands = list(range(len(gpus)))
    for one in gpus:
        for other in gpus[one.index + 1:]:
            if routes.path(one, other).kind == NVL:
                islands[other.index] = islands[one.index]
    return sum(islands.count(island) > 1 for island in set(islands)) == 2


def _steps(draft: Draft) -> int:
    limits = constants()["search"]
    return int(limits["steps_same_channels"] if draft.same else limits["steps"])


def _attempt(search: Search, climbed: Climb, draft: Draft) -> int:
    climbed.tried.append((draft.intra, draft.inter))
    climbed.found, left = search.attempt(draft, climbed.found, _steps(draft))
    climbed.timed_out = climbed.timed_out or left == 0
    return left


def _down(search: Search, climbed: Climb, place: int) -> None:
    """Worse terms until channels are found, and somewhat worse ones that might give more of them."""
    terms = climbed.terms
    assert terms is not None
    wanted, budget = climbed.found, int(constants()["search"]["steps_in_all"])
    draft = wanted.copy()
    draft.intra = draft.inter = terms.speeds[place]
    while True:
        budget -= _steps(draft)
        left = _attempt(search, climbed, draft)
        found = climbed.found
        if left == -1 or single(found.channels * found.inter) >= terms.total_rate:
            return
        if draft.same and not _keeps_order(search.system, draft):
            draft.same = False
            continue
        draft.same = terms.same
        budget += left
        if budget < 0 and found.channels:
            return
        if terms.sm >= 90 and draft.pattern == BALANCED_TREE:
            draft.pattern = TREE
            continue
        draft.pattern = found.pattern
        if _worse_classes(search.system, terms, draft, found):
            continue
        if (terms.cross_nic == 2 and draft.cross_nic == 0 and found.pattern in (RING, BALANCED_TREE)):
            draft.cross_nic = 2
            continue
        draft.cross_nic = 1 if terms.cross_nic == 1 else 0
        last = place >= len(terms.speeds) - 1
        if last or (found.channels and single(terms.speeds[place + 1] / found.inter) <= .49):
            return
        place += 1
        draft.intra = draft.inter = terms.speeds[place]


def _keeps_order(system: System, draft: Draft) -> bool:
    """Behind CPUs of AMD channels of different order are not tried."""
    cpu = system.nodes[CPU][0]
    return cpu.arch == "x86_64" and cpu.vendor == "AuthenticAMD" and draft.type_intra == SYS


def _worse_classes(system: System, terms: Terms, draft: Draft, found: Draft) -> bool:
    """Allow the next worse path class inside, then between nodes. False: all were allowed, and they begin anew."""
    most = draft.type_inter if system.across_nodes else terms.most_intra
    if draft.type_intra < most and (found.channels == 0 or draft.type_intra < found.type_intra):
        draft.type_intra += 1
        if draft.type_intra < DIS:
            return True
    draft.type_intra = terms.least_intra
    if system.across_nodes and draft.type_inter < terms.most_inter and (
            found.channels == 0 or draft.type_inter < found.type_inter or draft.type_inter < PXN):
        draft.type_inter += 1
        if draft.type_inter < DIS:
            return True
    draft.type_inter = terms.least_inter
    return False


def _duplicate(found: Draft, sm: int) -> None:
    """Each channel twice at half the rate, where a channel is fast: more SMs share the work."""
    if not found.channels or found.pattern == HEADS or found.intra < 25.0:
        return
    if sm > 80 and found.intra < 50.0 and found.channels > 4:
        return
    channels = min(found.channels * 2, found.most)
    times = -(-channels // found.channels)
    found.orders = (found.orders[:found.channels] * 2)[:channels]
    found.ports = (found.ports[:found.channels] * 2)[:channels]
    found.intra, found.inter = single(found.intra / times), single(found.inter / times)
    found.channels = channels


def _up(search: Search, climbed: Climb) -> None:
    """From what was found, higher rates while they fit."""
    terms = climbed.terms
    assert terms is not None
    draft = climbed.found.copy()
    place = 0
    while place < len(terms.speeds) - 1 and terms.speeds[place] > climbed.found.inter:
        place += 1
    draft.intra = draft.inter = terms.speeds[place]
    draft.least = climbed.found.channels
    left = -1
    while left != 0 and place > 0 and (following := _faster(draft, climbed.found)) is not None:
        place -= 1
        if following in ("both", "intra"):
            draft.intra = terms.speeds[place]
        if following in ("both", "inter"):
            draft.inter = terms.speeds[place]
        left = _attempt(search, climbed, draft)


def _faster(draft: Draft, found: Draft) -> str | None:
    """Which rate to raise next: both of a ring, between nodes for NVLS, inside for trees; None: enough."""
    if found.pattern == RING:
        return "both"
    if found.pattern == HEADS and draft.inter == found.inter and draft.inter < single(draft.intra * 2):
        draft.least = draft.most = found.channels
        return "inter"
    if draft.intra == found.intra and draft.intra < single(draft.inter * 2):
        return "intra"
    return None


def _simple_order(routes: Routes, found: Draft) -> None:
    """Nothing fits: one channel in the order of the bus, as slow as can be."""
    gpus = routes.system.nodes[GPU]
    found.orders = [[gpu.rank for gpu in gpus]]
    found.intra, found.type_intra, found.channels = single(0.1), SYS, 1
    ends = [ports_for(routes, -1, gpu)[:1] if routes.system.nodes[NET] else [] for gpu in (gpus[0], gpus[-1])]
    if all(ends):
        found.ports = [[ends[0][0], ends[1][0]]]
        found.inter, found.type_inter = single(0.1), SYS
    else:
        found.ports, found.inter, found.type_inter = [[-1, -1]], 0.0, DIS

