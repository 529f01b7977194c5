"""This file knows about how many channels can fit at most: it spares the search what cannot find anything better.

NCCL has no such bound. It tells only what no attempt could exceed, so leaving an attempt out changes nothing.
"""

from __future__ import annotations

import math

from sublight.comm.nccl.paths import Routes
from sublight.comm.nccl.search import DIRECT, HEADS, RING, Draft
from sublight.comm.nccl.system import DEVICE, DIS, GPU, NET, Link, Node
from sublight.comm.nccl.version import single

SLACK = 0.064                            # 64 channels, each rounded by at most half a thousandth, and as much again


class Room:
    """What fits on the links of one system."""

    def __init__(self, routes: Routes) -> None:
        system = routes.system
        self.routes, self.across = routes, system.across_nodes
        self.gpus, self.ports = system.nodes[GPU], system.nodes[NET]
        self.size = len(self.gpus)
        self.shared = any(device.shares > 1 for device in system.nodes[DEVICE])
        self.entries = [self._entries(gpu) for gpu in self.gpus]
        cards: dict[tuple[int, int], float] = {}
        for port in self.ports:
            cards[port.asic, port.port] = max(port.rate, cards.get((port.asic, port.port), 0.0))
        self.cards = list(cards.values())
        self.starts = self._starts()
        self.hops = self._hops()

    def _entries(self, gpu: Node) -> list[tuple[float, int, int]]:
        """Links by which a GPU's card is reached: rate, best class of a path from GPUs, of one from ports."""
        found: dict[int, tuple[float, int, int]] = {}
        for start in (*self.gpus, *self.ports):
            path = self.routes.path(start, gpu)
            for link in path.links:
                if link.end is gpu.parent:
                    rate, intra, inter = found.get(id(link), (link.rate, DIS, DIS))
                    if start.kind == GPU:
                        intra = min(intra, path.kind)
                    else:
                        inter = min(inter, path.kind)
                    found[id(link)] = rate, intra, inter
        return list(found.values())

    def _starts(self) -> list[tuple[int, Link]]:
        """The links by which ports reach GPUs' cards, with the class of the path."""
        found: dict[int, tuple[int, Link]] = {}
        for port in self.ports if self.across else ():
            for path in port.paths.get(GPU, []):
                for link in path.links:
                    if link.end.kind == DEVICE:
                        kind = min(path.kind, found.get(id(link), (path.kind, link))[0])
                        found[id(link)] = (kind, link)
        return list(found.values())

    def _hops(self) -> int:
        """Links of a channel at least."""
        inside = min((len(path.links) for gpu in self.gpus for path in gpu.paths.get(GPU, []) if path.links), default=0)
        if not self.across:
            return inside * (self.size - 1)
        there = (len(path.links) for port in self.ports for path in port.paths.get(GPU, []) if path.links)
        back = (len(path.links) for gpu in self.gpus for path in gpu.paths.get(NET, []) if path.links)
        return min(there, default=0) + inside * (self.size - 1) + min(back, default=0)

    def channels(self, draft: Draft) -> float:
        """No more channels fit under these terms."""
        if draft.pattern in (HEADS, DIRECT):
            return math.inf
        bound, rate = math.inf, min(draft.intra, draft.inter)
        if self.across:
            whole = int(draft.inter)
            if whole:
                bound = sum(_times(card, whole) for card in self.cards)
            bound = min(bound, sum(_times(link.rate, draft.inter) for kind, link in self.starts
                                   if kind <= draft.type_inter))
        if self.shared or self.size == 1:
            return bound
        fits = [sum(_times(entry, rate) for entry, intra, inter in entries
                    if intra <= draft.type_intra or (self.across and inter <= draft.type_inter))
                for entries in self.entries]
        if self.across or draft.pattern == RING:
            return min(bound, *fits)
        return min(bound, sum(fits) // (self.size - 1))

    def for_better(self, draft: Draft, found: Draft) -> bool:
        """Whether these terms may give something better than what was found."""
        channels = min(self.channels(draft), draft.most)
        if channels < max(draft.least, 1):
            return False
        if draft.pattern in (HEADS, DIRECT):
            return True
        ours, theirs = single(channels * draft.intra), single(found.channels * found.intra)
        if ours != theirs:
            return ours > theirs
        return ((draft.pattern, draft.cross_nic) == (found.pattern, found.cross_nic)
                and draft.hops + channels * self.hops < found.hops)


def _times(rate: float, each: float) -> int:
    return math.floor((rate + SLACK) / each)
