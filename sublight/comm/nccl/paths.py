"""This file knows about the paths that NCCL prefers between GPUs, NICs, CPUs and switches, and about what is near what.

After NCCL 2.30.7 (its public src/graph/paths.cc, topo.cc, src/transport/p2p.cc, shm.cc): breadth first from every
node, then detours where peer access, GPU Direct RDMA or a relaying GPU (PXN) say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sublight.comm.nccl.system import (
    ACROSS,
    AWAY,
    BUS,
    C2C,
    CPU,
    DEVICE,
    DIS,
    GPU,
    LOC,
    NET,
    NVB,
    NVL,
    NVS,
    P2C,
    PATH_CLASSES,
    PCI,
    PHB,
    PIX,
    PXB,
    PXN,
    SYS,
    Node,
    Path,
    System,
)
from sublight.comm.nccl.version import constants, setting, whole
from sublight.errors import InputError


@dataclass(frozen=True, slots=True)
class Rules:
    """What the environment says about paths, read once. None: NCCL decides."""

    peer_level: int | None
    gdr_level: int | None
    gdr_read: int
    gdr_over_c2c: bool
    gdr_partition: bool
    pxn: bool
    pxn_over_c2c: bool
    through_gpu: bool                    # NVLink by way of a third GPU
    shared_memory: bool
    net_inside: bool                     # two GPUs of a node may talk through their NICs, where that is faster
    nets: str                            # "auto", "all" or "max"
    nets_at_most: int
    spread_nets: bool
    rails_per_host: bool


def rules_of(environment: Mapping[str, str]) -> Rules:
    """The rules of NCCL_P2P_LEVEL, NCCL_NET_GDR_LEVEL, NCCL_PXN_DISABLE and so on; unset ones keep their default."""
    nets, most = _nets_policy(environment.get("NCCL_NETDEVS_POLICY", ""))
    peer = LOC if whole(environment.get("NCCL_P2P_DISABLE", "0")) == 1 else _level(environment.get("NCCL_P2P_LEVEL"))
    return Rules(
        peer_level=peer, gdr_level=_level(environment.get("NCCL_NET_GDR_LEVEL")),
        gdr_read=setting(environment, "NCCL_NET_GDR_READ", -2),
        gdr_over_c2c=setting(environment, "NCCL_NET_GDR_C2C", 1) != 0,
        gdr_partition=setting(environment, "NCCL_NET_GDR_MLOPART", 0) != 0,
        pxn=setting(environment, "NCCL_PXN_DISABLE", 0) != 1, pxn_over_c2c=setting(environment, "NCCL_PXN_C2C", 1) != 0,
        through_gpu=setting(environment, "NCCL_NVB_DISABLE", 0) == 0,
        shared_memory=setting(environment, "NCCL_SHM_DISABLE", 0) != 1,
        net_inside=setting(environment, "NCCL_NET_DISABLE_INTRA", 0) != 1,
        nets=nets, nets_at_most=most, spread_nets=setting(environment, "NCCL_MNNVL_SCATTER_NETS_ENABLE", 1) != 0,
        rails_per_host=setting(environment, "NCCL_MNNVL_RAIL_PER_HOST", 0) != 0,
    )


OLD_LEVELS = (LOC, PIX, PXB, PHB, SYS, SYS)    # what the digits of older versions mean


def _level(text: str | None) -> int | None:
    if text is None:
        return None
    if text in PATH_CLASSES[:SYS + 1]:
        return PATH_CLASSES.index(text)
    return OLD_LEVELS[min(whole(text), len(OLD_LEVELS) - 1)] if text[:1].isdigit() else None


def _nets_policy(text: str) -> tuple[str, int]:
    if text.upper() == "ALL":
        return "all", 0
    if text.upper().startswith("MAX:") and whole(text[4:]) > 0:
        return "max", whole(text[4:])
    return "auto", 0


@dataclass(slots=True, eq=False)
class Routes:
    """A system with its paths. Lists of what is near are kept, as the search asks for them again and again."""

    system: System
    rules: Rules
    kept: dict[tuple[int, int, int], tuple[list[int], int]] = field(default_factory=dict)
    detours: list[str] = field(default_factory=list)

    # ---- paths ----

    def path(self, start: Node, end: Node) -> Path:
        """The path between two nodes; one of class DIS where nothing leads there."""
        row = start.paths.get(end.kind)
        return row[end.slot] if row is not None else Path()

    def compute(self) -> None:
        """All paths anew, with the detours."""
        for row in self.system.nodes:
            for node in row:
                node.paths = {}
        self.kept.clear()
        self.detours.clear()
        for kind in (CPU, DEVICE, GPU, NET, NVS):
            for node in self.system.nodes[kind]:
                _spread(self.system, node, self.rules.through_gpu)
        self._peers()
        self._c2c_ports()
        for port in self.system.nodes[NET]:
            for gpu in self.system.nodes[GPU]:
                if self.rules.pxn:
                    self._relay(port, gpu)
                if self.path(gpu, port).kind < PHB and not self.direct(gpu, port, read=False):
                    cpu = self.local_cpu(gpu)
                    self.detour(cpu, port, gpu)
                    self.detour(cpu, gpu, port)
        for port in self.system.nodes[NET]:
            port.local_gpu = self.gpu_of(port)

    def detour(self, via: Node, start: Node, end: Node) -> None:
        """Lead what goes from start to end by way of a CPU or a GPU."""
        path, first, second = self.path(start, end), self.path(start, via), self.path(via, end)
        path.links = [*first.links, *second.links]
        path.kind = PXN if via.kind == GPU else merged(first.kind, second.kind)
        path.rate = min(first.rate, second.rate)
        self.kept.clear()

    def _peers(self) -> None:
        for end in self.system.nodes[GPU]:
            for start in self.system.nodes[GPU]:
                if not self.peer(start, end):
                    self.detour(self.local_cpu(end), start, end)
            for start in self.system.nodes[GPU]:
                if start is not end and not self._reachable(start, end):
                    self.path(start, end).kind = AWAY

    def _c2c_ports(self) -> None:
        """A NIC behind the CPU is near where the GPU reaches that CPU by C2C."""
        for gpu in self.system.nodes[GPU]:
            cpu = self.local_cpu(gpu)
            for index in self.near(gpu, NET)[0]:
                port = self.system.nodes[NET][index]
                if merged(self.path(gpu, cpu).kind, self.path(port, cpu).kind) == P2C:
                    for path in (self.path(gpu, port), self.path(port, gpu)):
                        path.kind = min(P2C, path.kind)
                    self.kept.clear()

    def _relay(self, port: Node, gpu: Node) -> None:
        """PXN: send by NVLink to the GPU beside the NIC, where that is faster or spares the CPU."""
        peer = self.gpu_of(port)
        if peer is None or peer == gpu.index:
            return
        other = self.system.nodes[GPU][peer]
        near, own = self.path(other, port), self.path(gpu, port)
        if (near.kind <= (P2C if self.rules.pxn_over_c2c else PXB) and self.direct(other, port, read=True)
                and self.path(other, gpu).kind <= NVL and other.host == gpu.host
                and (near.rate > own.rate or own.kind > PXN)):
            self.detour(other, gpu, port)

    # ---- what may talk to what ----

    def peer(self, start: Node, end: Node) -> bool:
        """GPUs read each other's memory: near enough, by NCCL_P2P_LEVEL or NCCL's default."""
        cpu = self.system.nodes[CPU][0]
        small_amd = cpu.arch == "x86_64" and cpu.vendor == "AuthenticAMD" and len(self.system.nodes[DEVICE]) <= 2
        level = self.rules.peer_level
        if level is None:
            level = SYS if small_amd else PXB
        return self.path(start, end).kind <= level

    def _reachable(self, start: Node, end: Node) -> bool:
        """By peer access or shared memory, and not faster through the NICs of both."""
        path = self.path(start, end)
        if self.peer(start, end):
            through = len(path.links) == 4 and path.links[1].end.kind == DEVICE
            if through or not self._net_is_faster(start, end):
                return True
        return self.rules.shared_memory and start.host == end.host and not self._net_is_faster(start, end)

    def _net_is_faster(self, start: Node, end: Node) -> bool:
        if not self.rules.net_inside:
            return False
        rate = self.path(start, end).rate
        return all(max((path.rate for path in gpu.paths.get(NET, []) if path.kind <= PXB), default=0.0) > rate
                   for gpu in (start, end))

    def direct(self, gpu: Node, port: Node, *, read: bool) -> bool:
        """GPU Direct RDMA between this GPU and this port."""
        if not port.gdr or not gpu.gdr or (gpu.partition != -1 and not self.rules.gdr_partition):
            return False
        if read and not self._may_read(gpu):
            return False
        level = self.rules.gdr_level
        if level is None:
            level = P2C if self.rules.gdr_over_c2c else PXB
        distance = self.path(gpu, port).kind
        if distance == PXN:
            distance = self.path(self.relay_of(gpu, port), port).kind
        return distance <= level

    def _may_read(self, gpu: Node) -> bool:
        if self.rules.gdr_read == 0:
            return False
        if self.rules.gdr_read > 0 or gpu.sm >= 80 or len(self.system.nodes[GPU]) == 1:
            return True
        return any(path.kind == NVL for i, path in enumerate(gpu.paths.get(GPU, [])) if i != gpu.index)

    def relay_of(self, gpu: Node, port: Node) -> Node:
        """The GPU that sends for this one on a PXN path, else the GPU itself."""
        path = self.path(gpu, port)
        if path.kind != PXN:
            return gpu
        place = 1
        while place < len(path.links) and path.links[place].end.kind == NVS:
            place += 1
        node = path.links[place].end
        if node.kind == DEVICE:
            node = next((link.end for link in node.links if link.end.kind == GPU), node)
        return next(other for other in self.system.nodes[GPU] if other.host == node.host and other.dev == node.dev)

    # ---- what is near ----

    def near(self, node: Node, kind: int) -> tuple[list[int], int]:
        """Indices of the nodes of a kind with the fastest path, then the best class; and that class."""
        key = (node.kind, node.index, kind)
        found = self.kept.get(key)
        if found is None:
            found = self.kept[key] = _nearest(node.paths.get(kind))
        return found

    def local_cpu(self, gpu: Node) -> Node:
        indices, _ = self.near(gpu, CPU)
        if not indices:
            raise InputError(f"no CPU near {gpu.name}: the topology is not connected")
        paths = gpu.paths[CPU]
        return self.system.nodes[CPU][min(indices, key=lambda i: len(paths[i].links))]

    def own_port(self, gpu: Node, channel: int) -> int:
        """Index of the port that this GPU uses for a channel: GPUs that share ports start at different ones."""
        ports, _ = self.near(gpu, NET)
        if not ports:
            raise InputError(f"no NIC can be reached from {gpu.name}: the topology has no <net> that NCCL would use")
        sharing = len(self.near(self.system.nodes[NET][ports[0]], GPU)[0]) or 1
        each = -(-len(ports) // sharing)
        if self.rules.nets != "auto":
            each = len(ports) if self.rules.nets == "all" else min(self.rules.nets_at_most, len(ports))
        place = gpu.dev % sharing
        if len(ports) & (len(ports) - 1) == 0:
            place = _mirrored(place, len(ports))
        return ports[(place + channel % each) % len(ports)]

    def own_ports(self, gpu: Node) -> list[int]:
        """The ports of one GPU in the order of channels, up to the first repetition of the first."""
        ports: list[int] = []
        for channel in range(int(constants()["search"]["channels"])):
            port = self.own_port(gpu, channel)
            if ports and port == ports[0]:
                break
            ports.append(port)
        return ports

    def gpu_of(self, port: Node) -> int | None:
        """Index of the GPU that would use this port as its own, on the earliest channel."""
        gpus, _ = self.near(port, GPU)
        for channel in range(int(constants()["search"]["channels"])):
            for index in gpus:
                if self.system.nodes[NET][self.own_port(self.system.nodes[GPU][index], channel)].id == port.id:
                    return index
        return None


def merged(one: int, other: int) -> int:
    """The class of two paths in a row."""
    return P2C if {one, other} == {PHB, C2C} else max(one, other)


def _nearest(paths: list[Path] | None) -> tuple[list[int], int]:
    best, kind = 0.0, DIS
    found: list[int] = []
    for index, path in enumerate(paths or ()):
        if path.rate > best or (path.rate == best and path.kind < kind):
            best, kind, found = path.rate, path.kind, []
        if path.rate == best and path.kind == kind:
            found.append(index)
    return found, kind


def _mirrored(place: int, size: int) -> int:
    """Bits of a place below a power of two in reverse order."""
    bits = size.bit_length() - 1
    return sum(1 << (bits - 1 - bit) for bit in range(bits) if place >> bit & 1)


def _row(system: System, node: Node, kind: int) -> list[Path]:
    row = node.paths.get(kind)
    if row is None:
        row = node.paths[kind] = [Path() for _ in system.nodes[kind]]
    return row


def _spread(system: System, base: Node, through_gpu: bool) -> None:
    """Paths from every node to this one, breadth first; a better one found later replaces the first."""
    home = base.parent if base.kind == GPU else base
    near_gpu = 2 if base.kind == GPU else 1       # links up to a card that hands NVLink on
    start = _row(system, base, base.kind)[base.slot]
    start.links, start.rate, start.kind = [], constants()["rates"]["local"], LOC
    level = [base]
    while level:
        following: list[Node] = []
        for node in level:
            path = node.paths[base.kind][base.slot]
            for link in node.links:
                end = link.end
                known = _row(system, end, base.kind)[base.slot]
                if node.kind == DEVICE and node is not home and not (link.kind == LOC and end.kind == GPU) and not (
                        through_gpu and link.kind == NVL and end.kind == DEVICE and len(path.links) <= near_gpu):
                    continue
                rate = min(path.rate, link.rate)
                kind = max(path.kind, _class_of_step(node, link.kind, end, path, near_gpu))
                if (kind, -rate, len(path.links) + 1) < (known.kind, -known.rate, len(known.links)):
                    back = next((other for other in end.links if other.end is node and other.kind == link.kind), None)
                    if back is None:
                        if not known.links:
                            raise InputError(f"no link back from {end.name} to {node.name}: an <nvlink> or <pcilink> "
                                             "stands on one side only")
                        back = known.links[0]
                    known.links = [back, *path.links]
                    known.rate, known.kind = rate, kind
                    if end not in following:
                        following.append(end)
        level = following


def _class_of_step(node: Node, kind: int, end: Node, path: Path, near_gpu: int) -> int:
    if kind == ACROSS:
        return LOC
    if node.kind == PCI and end.kind == PCI:
        return PXB
    if kind == BUS and CPU in (node.kind, end.kind):
        return PHB
    if node.kind == DEVICE and path.kind == NVL and kind == NVL and len(path.links) == near_gpu:
        return NVB
    return kind


def domain_of(routes: Routes, gpu: Node) -> list[Node]:
    """GPUs that this one reaches without the network; NCCL calls them a node."""
    gpus = routes.system.nodes[GPU]
    domains: list[int] = []
    for index, one in enumerate(gpus):
        domains.append(min([index, *(domains[p] for p in range(index) if routes.path(one, gpus[p]).kind < AWAY)]))
    return [one for one, domain in zip(gpus, domains, strict=True) if domain == domains[gpu.index]]


__all__ = ["C2C", "NVB", "Routes", "Rules", "domain_of", "merged", "rules_of"]
