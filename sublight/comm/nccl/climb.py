"""This file knows about the terms under which NCCL searches: which rates, path classes and patterns, in which order.

First it goes down: the best rate, then worse path classes, other NICs, lower rates, until a set of channels fits. Then
up: from that set, higher rates as long as they fit. After NCCL 2.30.7 (its public src/graph/search.cc).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sublight.comm.nccl.paths import Routes
from sublight.comm.nccl.room import Room
from sublight.comm.nccl.search import (
    BALANCED_TREE,
    DIRECT,
    HEADS,
    RING,
    SPLIT_TREE,
    TREE,
    Draft,
    Key,
    Search,
    ports_for,
)
from sublight.comm.nccl.system import BUS, CPU, DEVICE, DIS, GPU, LOC, NET, NVL, NVS, PIX, PXN, SYS, Node, System
from sublight.comm.nccl.version import constants, single, speeds


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


@dataclass(slots=True)
class Climb:
    """One graph's search: what it found, and what it tried on the way."""

    found: Draft
    terms: Terms
    asked: int = 0                       # the pattern that was sought first
    before_doubling: Draft | None = None # what was found, where each channel was then doubled
    cut_short: list[Draft] = field(default_factory=list)      # terms of attempts that ran out of steps
    tried: dict[Key, int] = field(default_factory=dict)       # steps left by terms


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
    climbed = Climb(draft, terms, draft.pattern)
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
    budget = Budget(search, Room(routes), climbed, int(constants()["search"]["steps_in_all"]))
    _down(budget, place)
    _duplicate(climbed)
    doubled = climbed.found
    _up(budget)
    if climbed.found is not doubled:           # a faster set took the place of the doubled one
        climbed.before_doubling = None
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


@dataclass(slots=True)
class Budget:
    """Steps that are left for the way down. Attempts that cannot find better are put off until their steps matter."""

    search: Search
    room: Room
    climbed: Climb
    left: int                            # at least so many
    put_off: list[Draft] = field(default_factory=list)

    def attempt(self, draft: Draft) -> int | None:
        """Steps left of an attempt under the draft's terms; None: put off, as it finds nothing better."""
        self.left -= _steps(draft)
        known = self.search.terms_of(draft) in self.climbed.tried
        if not known and not self.search.leaked and not self.room.for_better(draft, self.climbed.found):
            return None
        return _attempt(self.search, self.climbed, draft)

    def give_back(self, draft: Draft, left: int | None) -> None:
        """NCCL counts only steps that were taken."""
        if left is None:
            self.put_off.append(draft.copy())
        else:
            self.left += left

    def spent(self) -> bool:
        """Whether NCCL would stop here. If it comes to that, what was put off is tried, for its steps."""
        while self.left < 0 and self.put_off:
            self.left += _attempt(self.search, self.climbed, self.put_off.pop())
        return self.left < 0


def _attempt(search: Search, climbed: Climb, draft: Draft) -> int:
    """Search under the draft's terms. What was searched under equal terms has nothing new, and took as many steps."""
    terms = search.terms_of(draft)
    if terms in climbed.tried and not search.leaked:
        return climbed.tried[terms]
    climbed.found, left = search.attempt(draft, climbed.found, _steps(draft))
    climbed.tried[terms] = left
    if left == 0:
        climbed.cut_short.append(replace(draft, orders=[], ports=[]))
    return left


def _down(budget: Budget, place: int) -> None:
    """Worse terms until channels are found, and somewhat worse ones that might give more of them."""
    climbed, system = budget.climbed, budget.search.system
    terms = climbed.terms
    draft = climbed.found.copy()
    draft.intra = draft.inter = terms.speeds[place]
    while True:
        left = budget.attempt(draft)
        found = climbed.found
        if left == -1 or single(found.channels * found.inter) >= terms.total_rate:
            return
        if draft.same and not _keeps_order(system, draft):
            draft.same = False
            continue
        budget.give_back(draft, left)
        draft.same = terms.same
        if found.channels and budget.left < 0 and (_hopeless(budget, draft, place) or budget.spent()):
            return
        if terms.sm >= 90 and draft.pattern == BALANCED_TREE:
            draft.pattern = TREE
            continue
        draft.pattern = found.pattern
        if _worse_classes(system, terms, draft, found):
            continue
        if terms.cross_nic == 2 and draft.cross_nic == 0 and found.pattern in (RING, BALANCED_TREE):
            draft.cross_nic = 2
            continue
        draft.cross_nic = 1 if terms.cross_nic == 1 else 0
        last = place >= len(terms.speeds) - 1
        if last or (found.channels and single(terms.speeds[place + 1] / found.inter) <= .49):
            return
        place += 1
        draft.intra = draft.inter = terms.speeds[place]


def _hopeless(budget: Budget, draft: Draft, place: int) -> bool:
    """Nothing that is still to be tried could be better than what was found."""
    found, terms = budget.climbed.found, budget.climbed.terms
    return not any(
        budget.room.for_better(replace(draft, pattern=pattern, cross_nic=cross, intra=rate, inter=rate, type_intra=SYS,
                                       type_inter=SYS), found)
        for rate in terms.speeds[place:] for pattern in {found.pattern, TREE} for cross in {0, terms.cross_nic})


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


def _duplicate(climbed: Climb) -> None:
    """Each channel twice at half the rate, where a channel is fast: more SMs share the work."""
    found, sm = climbed.found, climbed.terms.sm
    if not found.channels or found.pattern == HEADS or found.intra < 25.0:
        return
    if sm > 80 and found.intra < 50.0 and found.channels > 4:
        return
    channels = min(found.channels * 2, found.most)
    if channels == found.channels:
        return
    climbed.before_doubling = found.copy()
    times = -(-channels // found.channels)
    found.orders = (found.orders[:found.channels] * 2)[:channels]
    found.ports = (found.ports[:found.channels] * 2)[:channels]
    found.intra, found.inter = single(found.intra / times), single(found.inter / times)
    found.channels = channels


def _up(budget: Budget) -> None:
    """From what was found, higher rates while they fit."""
    climbed = budget.climbed
    terms = climbed.terms
    draft = climbed.found.copy()
    place = 0
    while place < len(terms.speeds) - 1 and terms.speeds[place] > climbed.found.inter:
        place += 1
    draft.intra = draft.inter = terms.speeds[place]
    draft.least = climbed.found.channels
    left = -1
    while left != 0 and place > 0 and (raised := _faster(draft, climbed.found)) is not None:
        place -= 1
        draft.intra, draft.inter = raised(terms.speeds[place])
        higher = terms.speeds[:place + 1] if draft.pattern == RING else ()
        if higher and not any(budget.room.for_better(replace(draft, intra=rate, inter=rate), climbed.found)
                              for rate in higher):
            return
        left = _attempt(budget.search, climbed, draft)


def _faster(draft: Draft, found: Draft) -> Callable[[float], tuple[float, float]] | None:
    """Which rate to raise next: both of a ring, between nodes for NVLS, inside for trees; None: enough."""
    intra, inter = draft.intra, draft.inter
    if found.pattern == RING:
        return lambda rate: (rate, rate)
    if found.pattern == HEADS and inter == found.inter and inter < single(intra * 2):
        draft.least = draft.most = found.channels
        return lambda rate: (intra, rate)
    if intra == found.intra and intra < single(inter * 2):
        return lambda rate: (rate, inter)
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

