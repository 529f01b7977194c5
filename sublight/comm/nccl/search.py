"""This file knows about NCCL's search for channels at one rate: orders of GPUs that fit side by side on the links.

A depth-first search that stops after so many steps, so the order in which it tries is part of the result. After NCCL
2.30.7 (its public src/graph/search.cc). Channels are built one after the other; each takes its rate from every link of
its path, and a finished set of channels replaces the best one so far where NCCL thinks it better.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from sublight.comm.nccl.paths import Routes
from sublight.comm.nccl.system import BUS, CPU, DEVICE, DIS, GPU, NET, NVL, NVS, PHB, Link, Node
from sublight.comm.nccl.version import constants, single

BALANCED_TREE, SPLIT_TREE, TREE, RING, HEADS, DIRECT = range(1, 7)
TREES = (BALANCED_TREE, SPLIT_TREE, TREE)
PATTERNS = {BALANCED_TREE: "balanced tree", SPLIT_TREE: "split tree", TREE: "tree", RING: "ring", HEADS: "NVLS",
            DIRECT: "CollNet direct"}

FREE, BY_BUS, AGAIN = range(3)           # how the next GPU is chosen: by score, in the order of the bus, as before
NEVER = -1                               # a step that no channel reaches

Key = tuple[int, int, int, bool, int, float, float, int, int]


@dataclass(slots=True)
class Draft:
    """Channels in the making, and the terms under which they are sought."""

    pattern: int
    least: int                           # channels
    most: int
    collnet: bool = False
    cross_nic: int = 0
    channels: int = 0
    intra: float = 0.0                   # 10^9 bytes a second of one channel
    inter: float = 0.0
    latency: float = 0.0
    type_intra: int = 0
    type_inter: int = 0
    same: bool = False
    hops: int = 0
    orders: list[list[int]] = field(default_factory=list)          # per channel, ranks
    ports: list[list[int]] = field(default_factory=list)           # per channel, index of the port in and out

    def copy(self) -> Draft:
        return replace(self, orders=[list(row) for row in self.orders[:self.channels]],
                       ports=[list(row) for row in self.ports[:self.channels]])


@dataclass(frozen=True, slots=True)
class Leg:
    """A path made ready: per link its number, whether it is of the bus, and what its answers cost on the way back."""

    kind: int
    back_kind: int
    through_intel: bool
    links: tuple[tuple[int, bool, int, float], ...]      # number, bus, number of the reverse link or -1, its share
    tolls: dict[float, tuple[Toll, ...]] = field(default_factory=dict)      # by rate


class Remains(dict[float, float]):
    """What is left of a link when so much is taken: in thousandths, in 32-bit arithmetic, by what there was."""

    def __init__(self, taken: float) -> None:
        super().__init__()
        self.taken = taken

    def __missing__(self, rate: float) -> float:
        thousands = single(single(rate - self.taken) * 1000.0)
        rounded = math.copysign(math.floor(abs(thousands) + 0.5), thousands)
        left = self[rate] = single(rounded / 1000.0)
        return left


class Toll(NamedTuple):
    """What a rate takes from one link, and from the reverse one where that is not -1."""

    link: int
    need: float
    remains: Remains
    reverse: int
    answer: float
    remains_reverse: Remains


@cache
def _remains(taken: float) -> Remains:
    return Remains(taken)


def _tolls(leg: Leg, rate: float) -> tuple[Toll, ...]:
    # GPU to GPU through an Intel CPU goes in packets of 64 bytes: more of the bus for the same data
    bus_rate = single(single(rate * 6.0) / 5.0) if leg.through_intel else rate
    tolls = []
    for link, bus, reverse, share in leg.links:
        need = bus_rate if bus else rate
        answer = single(need * share)
        tolls.append(Toll(link, need, _remains(need), reverse, answer, _remains(answer)))
    return tuple(tolls)


class Search:
    """One system with its links' remaining rates, ready for any number of attempts."""

    def __init__(self, routes: Routes) -> None:
        self.routes, self.system = routes, routes.system
        self.gpus, self.ports = self.system.nodes[GPU], self.system.nodes[NET]
        self.size = len(self.gpus)
        self.numbers: dict[Link, int] = {}
        self.left: list[float] = []
        for row in self.system.nodes:
            for node in row:
                for link in node.links:
                    self.numbers[link] = len(self.left)
                    self.left.append(link.rate)
        self.around = [self._around(gpu) for gpu in self.gpus]
        self.bus = [self._bus_of(gpu) for gpu in self.gpus]
        self.port_left = [port.rate for port in self.ports]
        self.used = [0] * self.size
        self.legs: dict[tuple[Node, Node], Leg] = {}
        self.choices: dict[tuple[int, int | None], list[int]] = {}
        self.by_rank = {gpu.rank: gpu for gpu in reversed(self.gpus)}
        self.switched = bool(self.system.nodes[NVS])
        self.leaked = False              # a port kept less than it had: attempts are no longer alike
        self.classes = [sorted(kinds) for kinds in self._classes()]
        self.time = 0
        self.draft = Draft(RING, 1, 1)
        self.best = self.draft

    def attempt(self, draft: Draft, best: Draft, steps: int) -> tuple[Draft, int]:
        """The better of `best` and what these terms allow, and the steps left: 0 ran out, -1 cannot be better."""
        self.draft, self.best, self.time = draft, best, steps
        draft.channels = 0
        rows = max(draft.most, 1) + 1
        draft.orders = [[0] * self.size for _ in range(rows)]
        draft.ports = [[0, 0] for _ in range(rows)]
        # a step is two calls, and a channel begins inside the last step of the one before it
        depth, need = sys.getrecursionlimit(), 1000 + rows * (4 * self.size + 8)
        sys.setrecursionlimit(max(depth, need))
        try:
            self._channel()
        finally:
            sys.setrecursionlimit(depth)
        return self.best, self.time

    def _classes(self) -> tuple[set[int], set[int]]:
        """Path classes that there are inside, and to and from ports."""
        inside: set[int] = set()
        outside: set[int] = set()
        for node in (*self.gpus, *self.ports, *self.system.nodes[NVS]):
            for kind in (GPU, NVS, NET):
                classes = {path.kind for path in node.paths.get(kind, [])}
                (outside if NET in (node.kind, kind) else inside).update(classes)
        return inside, outside

    def terms_of(self, draft: Draft) -> Key:
        """What the search depends on. A limit between two classes that there are is as good as the lower one."""
        intra, inter = (max((kind for kind in kinds if kind <= limit), default=-1)
                        for kinds, limit in zip(self.classes, (draft.type_intra, draft.type_inter), strict=True))
        return (draft.pattern, draft.least, draft.most, draft.same, draft.cross_nic, draft.intra, draft.inter, intra,
                inter)

    # ---- links ----

    def leg(self, start: Node, end: Node) -> Leg:
        found = self.legs.get((start, end))
        if found is None:
            found = self.legs[start, end] = self._leg(start, end)
        return found

    def _leg(self, start: Node, end: Node) -> Leg:
        path = self.routes.path(start, end)
        links: list[tuple[int, bool, int, float]] = []
        intel, at = False, start
        for link in path.links:
            to = link.end
            if to.kind == CPU and path.kind == PHB and start.kind == GPU and to.vendor == "GenuineIntel":
                intel = True
            share = 0.0
            if to.kind == DEVICE and to.sm < 80 and start.kind != GPU:
                share = 0.125                              # read requests of older GPUs
            elif to.kind == CPU and to.arch == "ppc64" and link.kind == NVL:
                share = 1.0
            back = -1
            if share:
                back = self.numbers[next(other for other in to.links if other.end is at and other.kind == link.kind)]
            links.append((self.numbers[link], link.kind == BUS, back, share))
            at = to
        return Leg(path.kind, self.routes.path(end, start).kind, intel, tuple(links))

    def go(self, start: Node, end: Node, times: float = 1.0) -> bool:
        """Take the draft's rate from every link of the path, or nothing where one has too little left."""
        leg = self.legs.get((start, end)) or self.leg(start, end)
        draft = self.draft
        intra = start.kind != NET and end.kind != NET
        if leg.kind >= DIS:
            return False
        rate = draft.intra if intra else draft.inter
        if times == 1.0:
            limit = draft.type_intra if intra else draft.type_inter
            if leg.kind > limit or (leg.back_kind > limit and draft.pattern in TREES):
                return False
        else:
            rate = single(rate * times)
        done = self._take(leg, rate, len(leg.links))
        if done < len(leg.links):
            self._take(leg, -rate, done)
            return False
        self._count_hops(times, len(leg.links))
        return True

    def back(self, start: Node, end: Node, times: float = 1.0) -> None:
        """Give back what `go` took."""
        leg, draft = self.legs[start, end], self.draft
        rate = draft.inter if NET in (start.kind, end.kind) else draft.intra
        if times != 1.0:
            rate = single(rate * times)
        self._take(leg, -rate, len(leg.links))
        self._count_hops(-times, len(leg.links))

    def _count_hops(self, times: float, links: int) -> None:
        if times in (1.0, -1.0):
            self.draft.hops += links if times > 0 else -links
        else:                            # an integer that NCCL adds a float to: a share of a link is cut off
            self.draft.hops = int(single(self.draft.hops + single(times * links)))

    def _take(self, leg: Leg, rate: float, most: int) -> int:
        """Links of the leg that had enough, of the first `most`."""
        left = self.left
        tolls = leg.tolls.get(rate)
        if tolls is None:
            tolls = leg.tolls[rate] = _tolls(leg, rate)
        done = 0
        for link, need, rest, reverse, answer, rest_reverse in tolls:
            if done == most or left[link] < need:
                return done
            if reverse >= 0:
                if left[reverse] < answer:
                    return done
                left[reverse] = rest_reverse[left[reverse]]
            left[link] = rest[left[link]]
            done += 1
        return done

    # ---- one channel ----

    def _channel(self) -> None:
        """Begin the next channel in every way that NCCL tries."""
        draft = self.draft
        if self.system.across_nodes:
            turn = {RING: self.size - 1, SPLIT_TREE: 1}.get(draft.pattern, 0)
            self._from_port(turn)
            return
        loop = self.size - 1 if draft.pattern == RING else NEVER
        if draft.pattern == HEADS:
            self._enter(None, self.gpus[draft.channels], 0, NEVER, loop, FREE)
            return
        if draft.channels == 0:
            self._enter(None, self.gpus[0], 0, NEVER, loop, BY_BUS)
        else:
            self._enter(None, self._as_before(-1), 0, NEVER, loop, AGAIN)
        if not draft.same or draft.channels == 0:
            for gpu in self.gpus:
                self._enter(None, gpu, 0, NEVER, loop, FREE)

    def _as_before(self, step: int) -> Node:
        return self.by_rank[self.draft.orders[self.draft.channels - 1][step + 1]]

    def _enter(self, start: Node | None, gpu: Node, step: int, turn: int, loop: int, order: int) -> None:
        """Go on to a GPU, and come back."""
        if start is not None and not self.go(start, gpu):
            return
        flag = 1 << self.draft.channels
        self.used[gpu.index] ^= flag
        self._at(gpu, step, turn, loop, order)
        self.used[gpu.index] ^= flag
        if start is not None:
            self.back(start, gpu)

    def _at(self, gpu: Node, step: int, turn: int, loop: int, order: int) -> None:
        """At a GPU. turn: the step that goes to a port; loop: the step that goes back to the first GPU."""
        if self.time <= 0:
            return
        self.time -= 1
        draft = self.draft
        draft.orders[draft.channels][step] = gpu.rank
        if step == turn:
            if self.system.across_nodes:
                self._to_port(gpu, step, loop, order)
        elif draft.pattern == HEADS:
            self._through_switch(gpu)
        elif draft.pattern == DIRECT:
            self._to_all(gpu)
        elif step < self.size - 1:
            for following in self._next(gpu, step, turn, order):
                self._enter(gpu, following, step + 1, turn, loop, order)
        elif step == loop:
            first = self.by_rank[draft.orders[draft.channels][0]]
            if self.go(gpu, first):
                self._finished()
                self.back(gpu, first)
        else:
            self._finished()

    def _finished(self) -> None:
        """A channel is complete: keep the set if it is better, and try for one more."""
        if self.time <= 0:
            return
        self.time -= 1
        draft = self.draft
        draft.channels += 1
        if self._better():
            self.best = draft.copy()
            if draft.channels == draft.most:
                self.time = -1
        if draft.channels < draft.most:
            self._channel()
        draft.channels -= 1

    def _better(self) -> bool:
        draft, best = self.draft, self.best
        if draft.channels < draft.least:
            return False
        if draft.pattern == HEADS:
            more = best.channels < draft.channels <= self.size
            return more or single(draft.channels * draft.inter) > single(best.channels * best.inter)
        ours, theirs = single(draft.channels * draft.intra), single(best.channels * best.intra)
        if ours != theirs:
            return ours > theirs
        return draft.pattern == best.pattern and draft.cross_nic == best.cross_nic and draft.hops < best.hops

    # ---- which GPU next ----

    def _next(self, gpu: Node, step: int, turn: int, order: int) -> list[Node]:
        if order == BY_BUS:
            return [self.gpus[step + 1]]
        if order == AGAIN:
            return [self._as_before(step)]
        if self.switched:
            return self._neighbours(gpu)
        flag = 1 << self.draft.channels
        if turn == NEVER:                # the same order each time
            return [self.gpus[index] for _, _, _, index in self.around[gpu.index] if not self.used[index] & flag]
        return [self.gpus[index] for index in self._by_port(gpu, flag, last=turn == step + 1)]

    def _by_port(self, gpu: Node, flag: int, *, last: bool) -> list[int]:
        """Best first: rate of the port to a GPU, of its bus, hops; then rate, hops from here, order of the bus."""
        port = self.ports[self.draft.ports[self.draft.channels][0]].paths[GPU]
        rows = [(-int(port[row[3]].rate), -self._bus_rate(self.gpus[row[3]]), len(port[row[3]].links), row)
                for row in self.around[gpu.index] if not self.used[row[3]] & flag]
        rows.sort()
        if not last and len({row[:2] for *_, row in rows}) <= 1:
            rows.reverse()
        return [row[3] for *_, row in rows]

    def _around(self, gpu: Node) -> list[tuple[int, int, int, int]]:
        """The other GPUs, best first: rate and hops from this one, distance in the order of the bus, index."""
        others = (((gpu.index + distance) % self.size, distance) for distance in range(1, self.size))
        return sorted((-int(gpu.paths[GPU][index].rate), len(gpu.paths[GPU][index].links), distance, index)
                      for index, distance in others if gpu.paths[GPU][index].links)

    def _bus_rate(self, gpu: Node) -> int:
        """What is left of the card's link to the bus, in whole units."""
        links = self.bus[gpu.index]
        return int(min(self.left[links[0]], self.left[links[1]])) if links else -1

    def _bus_of(self, gpu: Node) -> tuple[int, int] | None:
        device = gpu.parent
        for link in device.links if device is not None else ():
            if link.kind == BUS:
                for other in link.end.links:
                    if other.end is device:
                        return self.numbers[link], self.numbers[other]
        return None

    def _neighbours(self, gpu: Node) -> list[Node]:
        """Behind NVSwitches only the neighbours in the order of the bus are tried."""
        before, after = (gpu.index - 1) % self.size, (gpu.index + 1) % self.size
        pattern = self.draft.pattern
        # NCCL moves the wanted ones to the front, one after the other: the last of them comes first
        wanted = [before, after] if pattern == RING else [after]
        if pattern in (SPLIT_TREE, BALANCED_TREE):
            wanted = [after, before]
        if before == after:
            wanted = [after]
        flag, paths = 1 << self.draft.channels, gpu.paths[GPU]
        return [self.gpus[index] for index in wanted
                if index != gpu.index and not self.used[index] & flag and paths[index].links]

    # ---- ports ----

    def _ports_for(self, gpu: Node | None) -> list[int]:
        """Ports to try: the GPU's own (of all GPUs for None), then others in reach, nearer classes first."""
        key = (self.draft.type_inter, None if gpu is None else gpu.index)
        found = self.choices.get(key)
        if found is None:
            found = self.choices[key] = ports_for(self.routes, self.draft.type_inter, gpu)
        return found

    def _from_port(self, turn: int) -> None:
        """Begin a channel at each port."""
        draft = self.draft
        heads = draft.pattern in (HEADS, DIRECT)
        rate, found = float(int(draft.inter)), False       # NCCL counts a port's rate in whole units
        ports = self._ports_for(None)
        for turn_of in range(len(ports)):
            if heads and found:
                return
            index = ports[(draft.channels + turn_of) % len(ports)]
            port = self.ports[index]
            if (draft.collnet and not port.collectives) or self.port_left[index] < rate:
                continue
            if (draft.pattern == RING and draft.cross_nic == 2 and draft.channels & 1
                    and port.id != self.ports[draft.ports[draft.channels - 1][1]].id):
                continue
            draft.ports[draft.channels][0] = index
            draft.latency = port.latency
            shared = [i for i, other in enumerate(self.ports) if (other.asic, other.port) == (port.asic, port.port)]
            for i in shared:
                self.port_left[i] = single(self.port_left[i] - rate)
            if heads:
                found = self._head(port, turn, len(ports)) or found
            elif not self._first_gpus(port, turn):
                self.leaked = True                         # NCCL does not give the rate back here
                continue
            for i in shared:
                self.port_left[i] = single(self.port_left[i] + rate)

    def _head(self, port: Node, turn: int, ports: int) -> bool:
        """Each GPU leads one channel at most."""
        draft, index = self.draft, port.local_gpu
        if draft.channels >= ports or index is None:
            return False
        gpu = self.gpus[index]
        if gpu.rank in [order[0] for order in draft.orders[:draft.channels]]:
            return False
        self._enter(port, gpu, 0, turn, NEVER, FREE)
        return True

    def _first_gpus(self, port: Node, turn: int) -> bool:
        draft = self.draft
        if draft.channels > 0 and draft.same:
            self._enter(port, self._as_before(-1), 0, turn, NEVER, AGAIN)
            return True
        if draft.channels == 0 and not self.switched:
            # the order of the bus sets a mark; it has steps of its own
            kept, self.time = self.time, int(constants()["search"]["steps_pci_order"])
            self._enter(port, self.gpus[0], 0, turn, NEVER, BY_BUS)
            self.time = -1 if self.time == -1 else kept
        own = port.local_gpu
        if own is not None:
            self._enter(port, self.gpus[own], 0, turn, NEVER, FREE)
        near, kind = self.routes.near(port, GPU)
        if kind == DIS:
            return False
        for index in near:
            if index != own:
                self._enter(port, self.gpus[index], 0, turn, NEVER, FREE)
        return True

    def _to_port(self, gpu: Node, step: int, loop: int, order: int) -> None:
        draft = self.draft
        start = self.ports[draft.ports[draft.channels][0]]
        balanced = draft.pattern == BALANCED_TREE
        for index in self._ports_for(gpu):
            port = self.ports[index]
            if not self._may_end(start, port, step):
                continue
            # two GPUs share the traffic of a balanced tree, half each
            following = 1 if balanced and step == 0 else NEVER
            whole = draft.inter
            draft.inter = single(whole / 2) if balanced else whole
            went = self.go(gpu, port)
            draft.inter = whole
            if not went:
                continue
            draft.ports[draft.channels][1] = index
            self._at(gpu, step, following, loop, order)
            draft.inter = single(whole / 2) if balanced else whole
            self.back(gpu, port)
            draft.inter = whole

    def _may_end(self, start: Node, port: Node, step: int) -> bool:
        """Whether a channel that began at one port may end at another: planes, rails, symmetric trees."""
        draft = self.draft
        if -1 not in (port.plane, start.plane) and port.plane != start.plane:
            return False
        if draft.pattern == TREE and port.id != start.id:
            return False
        if draft.pattern == RING and draft.cross_nic == 2:
            if draft.channels & 1 and port.id != self.ports[draft.ports[draft.channels - 1][0]].id:
                return False
        elif draft.cross_nic == 0 and not self._same_rail(start, port):
            return False
        return not (draft.pattern == BALANCED_TREE and step != 0
                    and port.id != self.ports[draft.ports[draft.channels][1]].id)

    def _same_rail(self, start: Node, port: Node) -> bool:
        if -1 not in (port.rail, start.rail):
            return port.rail == start.rail
        if self.routes.rules.rails_per_host and port.host != start.host:
            return (port.slot_name, port.port) == (start.slot_name, start.port)
        return (port.asic, port.port) == (start.asic, start.port)

    # ---- switches and CollNet ----

    def _through_switch(self, head: Node) -> None:
        """NVLS: the head pulls from all and pushes to all through the switch, twice its own share."""
        switch = self.system.nodes[NVS][0]
        self._all([(switch, gpu, 2.0 if gpu is head else 1.0) for gpu in self.gpus],
                  lambda: self._all([(gpu, switch, 2.0 if gpu is head else 1.0) for gpu in self.gpus], self._finished))

    def _to_all(self, head: Node) -> None:
        share = single(1.0 / (self.size - 1)) if self.size > 1 else math.inf
        draft = self.draft

        def others() -> None:
            draft.orders[draft.channels][1:] = [gpu.rank for gpu in self.gpus if gpu is not head]
            self._finished()

        self._all([(head, gpu, share) for gpu in self.gpus],
                  lambda: self._all([(gpu, head, share) for gpu in self.gpus], others))

    def _all(self, ways: list[tuple[Node, Node, float]], then: Callable[[], None]) -> None:
        """Take all the ways, go on, and give them back; where one does not fit, give back and do not go on."""
        taken = 0
        for start, end, times in ways:
            if not self.go(start, end, times):
                break
            taken += 1
        if taken == len(ways):
            then()
        for start, end, times in reversed(ways[:taken]):
            self.back(start, end, times)


def ports_for(routes: Routes, type_inter: int, gpu: Node | None) -> list[int]:
    """Indices of the ports in the order in which NCCL tries them, for one GPU or for all (None)."""
    system, rules = routes.system, routes.rules
    gpus = system.nodes[GPU] if gpu is None else [gpu]
    rows = [routes.own_ports(one) for one in gpus]
    if len(system.hosts) > 1 and rules.spread_nets:
        depth = max(map(len, rows), default=0)
        own = [row[channel] for channel in range(depth) for row in rows if channel < len(row)]
    else:
        own = [port for row in rows for port in row]
    found = list(dict.fromkeys(own))
    most = rules.nets_at_most * (len(system.nodes[GPU]) if gpu is None else 1) if rules.nets == "max" else 1 << 30
    if len(found) >= most:
        return found
    limit = int(constants()["search"]["channels"])
    for kind in range(type_inter + 1):
        for one in gpus:
            for index, path in enumerate(one.paths.get(NET, [])[:limit]):
                if path.kind == kind and index not in found:
                    found.append(index)
                    if len(found) >= most:
                        return found
    return found

