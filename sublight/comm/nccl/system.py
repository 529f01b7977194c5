"""This file knows about NCCL's picture of one NVLink domain: GPUs, switches, CPUs, NICs and the links between them.

Made from a topology tree as NCCL 2.30.7 makes it (its public src/graph/topo.cc). The order of nodes and links is part
of it: the search explores in that order and stops after so many steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sublight.comm.nccl.version import bus_number, constants, hexadecimal, nvlink_rate, setting, single, whole
from sublight.comm.topology.xml import Tag
from sublight.errors import InputError

# kinds of nodes: a GPU is a rank's share of a device; "device" is the card, "nic" the card of several "net" ports
GPU, PCI, NVS, CPU, NIC, NET, DEVICE, BRIDGE = range(8)
KINDS = ("GPU", "PCI", "NVSwitch", "CPU", "NIC", "NET", "device", "C2C bridge")

# path classes, NCCL's numbers (src/include/graph.h)
LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, AWAY, DIS = range(12)
PATH_CLASSES = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
BUS, ACROSS = PIX, AWAY                  # links of PCI Express, and of a NIC to its port, have these classes

LOW_56 = (1 << 56) - 1
MOST_NODES = 640                         # of one kind, NCCL_TOPO_MAX_NODES


@dataclass(slots=True, eq=False)
class Link:
    """One direction between two nodes."""

    kind: int                            # a path class
    rate: float                          # 10^9 bytes a second
    end: Node


@dataclass(slots=True, eq=False)
class Path:
    """The best way that was found from a node to another."""

    links: list[Link] = field(default_factory=list)
    rate: float = 0.0
    kind: int = DIS


@dataclass(slots=True, eq=False)
class Node:
    """A node of NCCL's picture. What does not apply to its kind stays at its default."""

    kind: int
    id: int
    index: int = 0                       # place among its kind
    slot: int = 0                        # place of the first of its kind with the same id: NCCL looks up by id
    name: str = ""                       # for people
    links: list[Link] = field(default_factory=list)
    paths: dict[int, list[Path]] = field(default_factory=dict)
    device: int = 0                      # PCI vendor, device, subsystem vendor and device in one number
    dev: int = -1                        # number of the GPU or of the port
    rank: int = -1
    sm: int = -1
    gdr: int = 0
    partition: int = -1
    parent: Node | None = None           # the device of a GPU
    shares: int = 0                      # GPUs of a device
    arch: str = ""
    vendor: str = ""
    model: str = ""
    asic: int = 0
    port: int = -1
    rate: float = 0.0
    latency: float = 0.0
    collectives: int = 0
    rail: int = -1
    plane: int = -1
    slot_name: str = ""                  # PCI address that stands for a port's card
    local_gpu: int | None = None

    @property
    def host(self) -> int:
        return self.id >> 56


@dataclass(slots=True, eq=False)
class System:
    """All nodes by kind, in the order in which the tree names them."""

    nodes: list[list[Node]] = field(default_factory=lambda: [[] for _ in KINDS])
    hosts: list[int] = field(default_factory=list)
    across_nodes: bool = False           # GPUs of the job lie outside
    max_rate: float = 0.0
    total_rate: float = 0.0

    def add(self, kind: int, number: int) -> Node:
        row = self.nodes[kind]
        if len(row) == MOST_NODES:
            raise InputError(f"the topology has more than {MOST_NODES} nodes of kind {KINDS[kind]}, which NCCL refuses")
        same = self.find(kind, number)
        node = Node(kind, number, len(row), len(row) if same is None else same.index)
        row.append(node)
        return node

    def find(self, kind: int, number: int) -> Node | None:
        return next((node for node in self.nodes[kind] if node.id == number), None)

    def drop(self, node: Node) -> None:
        """Take a node out, with every link to it."""
        for row in self.nodes:
            for other in row:
                other.links = [link for link in other.links if link.end is not node]
        self.nodes[node.kind].remove(node)
        for index, other in enumerate(self.nodes[node.kind]):
            other.index = index
            first = self.find(node.kind, other.id)
            other.slot = index if first is None else first.index

    @property
    def least_sm(self) -> int:
        return min(node.sm for node in self.nodes[DEVICE])


def connect(start: Node, end: Node, kind: int, rate: float) -> None:
    """A link, or more rate for the one that is there. Links stay sorted, the fastest first, older before newer."""
    links = start.links
    place = next((i for i, link in enumerate(links) if link.end is end and link.kind == kind), len(links))
    if place == len(links):
        links.append(Link(kind, 0.0, end))
    link = links.pop(place)
    link.rate = single(link.rate + single(rate))
    while place > 0 and links[place - 1].rate < link.rate:
        place -= 1
    links.insert(place, link)


def both_ways(one: Node, other: Node, kind: int, rate: float) -> None:
    connect(one, other, kind, rate)
    connect(other, one, kind, rate)


def system_of(tree: Tag, environment: Mapping[str, str]) -> System:
    """NCCL's picture of the tree. Raises InputError for what NCCL could not load either."""
    system = System()
    split = setting(environment, "NCCL_TOPO_SPLIT_MLOPART", 1) != 0
    for cpu in tree.children:
        if cpu.name == "cpu":
            _add_cpu(system, cpu, split)
    if not system.nodes[GPU]:
        raise InputError("the topology has no <gpu> with a rank; expected the dump of a running job "
                         "(NCCL_TOPO_DUMP_FILE), or name the box, such as 8xH100")
    for owner, host, tag in _of_gpus(system, tree, "nvlink", split):
        _add_nvlink(system, owner, host, tag, split)
    for owner, host, tag in _of_gpus(system, tree, "c2c", split):
        _add_c2c(system, owner, host, tag, split)
    _add_switch_links(system, tree)
    _flatten_broadcom(system)
    _join_cpus(system)
    for top in system.nodes[CPU]:
        _sort_down(top, None)
    return system


# ---- the tree of the bus ----

def number(tag: Tag, name: str, default: int | None = None) -> int:
    """An integer attribute. Without a default it must be there."""
    text = tag.attributes.get(name)
    if text is None:
        if default is None:
            raise InputError(f"<{tag.name}> has no attribute {name}: {_where(tag)}; NCCL needs it")
        return default
    return (whole(text) + (1 << 31)) % (1 << 32) - (1 << 31)     # as C's int


def _text(tag: Tag, name: str) -> str:
    text = tag.attributes.get(name)
    if text is None:
        raise InputError(f"<{tag.name}> has no attribute {name}: {_where(tag)}; NCCL needs it")
    return text


def _where(tag: Tag) -> str:
    for name in ("busid", "dev", "numaid", "target"):
        if PLAIN.fullmatch(tag.attributes.get(name, "")):
            return f"{name} {tag.attributes[name]}"
    return "without an address"


PLAIN = re.compile(r"[A-Za-z0-9_.:+-]{1,32}")      # a name of a file that may be printed


def _plain(text: str, other: str) -> str:
    return text if PLAIN.fullmatch(text) else other


def _host(system: System, cpu: Tag) -> int:
    wanted = hexadecimal(cpu.attributes.get("host_hash", ""))
    if wanted not in system.hosts:
        system.hosts.append(wanted)
    return system.hosts.index(wanted)


def _identity(host: int, local: int) -> int:
    return (host << 56) + (local & LOW_56)


def _add_cpu(system: System, tag: Tag, split: bool) -> None:
    numa = number(tag, "numaid")
    host = _host(system, tag)
    cpu = system.add(CPU, _identity(host, numa))
    cpu.name = f"CPU {numa}"
    cpu.arch = _known(_text(tag, "arch"), ARCHITECTURES)
    if cpu.arch == "x86_64":
        cpu.vendor = _known(_text(tag, "vendor"), VENDORS)
        if cpu.vendor in ("GenuineIntel", "CentaurHauls"):
            cpu.model = _model(cpu.vendor, number(tag, "familyid"), number(tag, "modelid"))
    for child in tag.children:
        if child.name == "pci":
            _add_pci(system, child, cpu, host, split)
        elif child.name == "nic":
            nic = system.find(NIC, _identity(host, 0))
            if nic is None:
                nic = system.add(NIC, _identity(host, 0))
                nic.name = f"NIC of CPU {numa}"
                both_ways(cpu, nic, BUS, constants()["rates"]["local"])
            _add_ports(system, child, nic, host, "")


ARCHITECTURES = (("x86_64", "x86_64"), ("arm64", "arm64"), ("ppc64", "ppc64"))
VENDORS = (("GenuineIntel", "GenuineIntel"), ("AuthenticAMD", "AuthenticAMD"), ("CentaurHauls", "CentaurHauls"),
           ("  Shanghai  ", "CentaurHauls"))


def _known(text: str, table: tuple[tuple[str, str], ...]) -> str:
    """The first line of the table that the text begins with; "" for none."""
    return next((meaning for beginning, meaning in table if text.startswith(beginning)), "")


def _model(vendor: str, family: int, model: int) -> str:
    if vendor == "GenuineIntel":
        rows = constants()["intel"]
        return str(next(row["name"] for row in rows if row["model"] == 0 or (family == 6 and model >= row["model"])))
    limits = constants()["zhaoxin"]
    return "YONGFENG" if (family, model) == (limits["yongfeng_family"], limits["yongfeng_model"]) else ""


def _add_pci(system: System, tag: Tag, parent: Node, host: int, split: bool) -> None:
    kind = next((row[1] for row in constants()["pci"]["classes"] if _text(tag, "class").startswith(row[0])), "pci")
    address = _text(tag, "busid")
    shown, rate = _plain(address, f"{bus_number(address):x}"), _bus_rate(tag)
    for child in tag.children:
        if child.name == "gpu":
            if "rank" not in child.attributes:
                return
            _add_gpu(system, tag, child, parent, host, rate, split)
    card = next((child for child in tag.children if child.name == "nic"), None)
    identity = _identity(host, bus_number(address))
    if card is not None:
        nic = system.find(NIC, identity)
        known = nic is not None
        nic = nic or system.add(NIC, identity)
        nic.name = f"NIC {shown}"
        _add_ports(system, card, nic, host, address)
        if not known:
            both_ways(nic, parent, BUS, rate)
    elif kind == "pci":
        switch = system.add(PCI, identity)
        switch.name = f"PCI switch {shown}"
        switch.device = _device_number(tag)
        for child in tag.children:
            if child.name == "pci":
                _add_pci(system, child, switch, host, split)
        both_ways(switch, parent, BUS, rate)


def _bus_rate(tag: Tag) -> float:
    """Width 0 means that Linux did not say; NCCL takes 16 lanes."""
    width = number(tag, "link_width") or 16
    lanes = constants()["lanes"]
    text = _text(tag, "link_speed")
    speed = next((row[1] for row in lanes["by_speed"] if text.startswith(row[0])), lanes["unknown"])
    return single(width * speed / 80.0)


def _device_number(tag: Tag) -> int:
    names = {"vendor": 48, "device": 32, "subsystem_vendor": 16, "subsystem_device": 0}
    return sum(whole(tag.attributes.get(name, "0")) << bits for name, bits in names.items())


def _card_number(address: int, gpu: Tag, split: bool) -> int:
    """A card that is split in two partitions is two devices: their numbers differ in the lowest bits."""
    partition = number(gpu, "mlopart", -1)
    return address if partition == -1 or not split else address | (((partition << 1) | 1) & 3)


def _siblings(system: System, identity: int) -> list[Node]:
    return [device for device in system.nodes[DEVICE] if device.id & ~3 == identity & ~3]


def _add_gpu(system: System, tag: Tag, gpu: Tag, parent: Node, host: int, rate: float, split: bool) -> None:
    address = _card_number(bus_number(tag.attributes["busid"]), gpu, split)
    device = system.find(DEVICE, _identity(host, address))
    if device is None:
        device = system.add(DEVICE, _identity(host, address))
        device.device, device.sm, device.dev = _device_number(tag), number(gpu, "sm"), number(gpu, "dev")
        device.name = f"GPU {device.dev}"
        both_ways(device, parent, BUS, rate)
        for other in _siblings(system, device.id):
            if other is not device:
                both_ways(device, other, LOC, constants()["rates"]["partition"])
    local = (device.shares << 40) | (address & ((1 << 40) - 1))
    node = system.add(GPU, _identity(host, local))
    node.rank, node.sm, node.dev = number(gpu, "rank"), number(gpu, "sm"), number(gpu, "dev")
    if not 10 <= node.sm < 1000:
        raise InputError(f"<gpu> has sm=\"{gpu.attributes['sm'][:20]}\": {_where(tag)}; expected a compute capability "
                         "such as 90")
    node.gdr, node.partition = number(gpu, "gdr"), number(gpu, "mlopart", -1)
    node.name, node.parent = f"GPU {node.dev}", device
    both_ways(device, node, LOC, constants()["rates"]["local"])
    device.shares += 1


def _add_ports(system: System, card: Tag, nic: Node, host: int, address: str) -> None:
    for tag in card.children:
        if tag.name != "net" or "dev" not in tag.attributes or not number(tag, "net", 1):
            continue
        port = system.add(NET, _identity(host, number(tag, "dev")))
        port.dev = number(tag, "dev")
        port.name = _plain(tag.attributes.get("name", ""), f"NET {port.dev}")
        port.asic = hexadecimal(tag.attributes["guid"]) if "guid" in tag.attributes else port.id
        megabits = number(tag, "speed", 0)
        port.rate = single((megabits if megabits > 0 else 10000) / 8000.0)    # some drivers say -1
        port.latency = _decimal(tag.attributes.get("latency", "0"))
        port.port, port.gdr = number(tag, "port", 0), number(tag, "gdr", 0)
        port.collectives = number(tag, "coll", 0)
        port.rail, port.plane = number(tag, "rail", -1), number(tag, "plane", -1)
        port.slot_name = address or f"{port.asic:x}"
        both_ways(nic, port, ACROSS, port.rate)


def _decimal(text: str) -> float:
    found = re.match(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)", text)
    return single(float(found.group())) if found and len(found.group()) < 30 else 0.0


# ---- NVLink, C2C, links of switches ----

def _of_gpus(system: System, tree: Tag, name: str, split: bool) -> Iterator[tuple[tuple[Tag, str], int, Tag]]:
    """Each such tag of the first GPU of a card: ((gpu, address of its card), host, tag), in the order of the tree."""
    def walk(tag: Tag, address: str, host: int) -> Iterator[tuple[tuple[Tag, str], int, Tag]]:
        if tag.name == "cpu":
            host = _host(system, tag)
        address = tag.attributes.get("busid", address)
        parts: list[str | None] = []
        for child in tag.children:
            if child.name == "gpu":
                part = child.attributes.get("mlopart") if split else None
                if "rank" in child.attributes and part not in parts:
                    yield from (((child, address), host, link) for link in child.children if link.name == name)
                parts.append(part)
            else:
                yield from walk(child, address, host)

    yield from walk(tree, "", 0)


def _device_of(system: System, owner: tuple[Tag, str], host: int, split: bool) -> Node | None:
    gpu, address = owner
    return system.find(DEVICE, _identity(host, _card_number(bus_number(address), gpu, split)))


def _add_nvlink(system: System, owner: tuple[Tag, str], host: int, tag: Tag, split: bool) -> None:
    device = _device_of(system, owner, host, split)
    if device is None:
        raise InputError(f"<nvlink> of a GPU at {_plain(owner[1], '?')} that is no device of the topology")
    parts = len(_siblings(system, device.id))
    rate = single(number(tag, "count") * nvlink_rate(device.sm))
    target = next((row[1] for row in constants()["pci"]["classes"] if _text(tag, "tclass").startswith(row[0])), "pci")
    if target == "gpu":
        others = _siblings(system, _identity(host, bus_number(_text(tag, "target"))))
        for other in others:
            connect(device, other, NVL, single(single(rate / len(others)) / parts))
        return
    end: Node | None
    if target == "cpu":
        end = _cpu_above(device, None)
    else:                                # all NVSwitches are one to NCCL
        end = system.nodes[NVS][0] if system.nodes[NVS] else system.add(NVS, 0)
        end.name = "NVSwitch"
    if end is not None:
        both_ways(device, end, NVL, single(rate / parts))


def _cpu_above(node: Node, below: Node | None) -> Node | None:
    if node.kind == CPU:
        return node
    for link in node.links:
        if link.kind == BUS and link.end is not below and link.end.kind in (PCI, CPU):
            found = _cpu_above(link.end, node)
            if found is not None:
                return found
    return None


def _add_c2c(system: System, owner: tuple[Tag, str], host: int, tag: Tag, split: bool) -> None:
    device = _device_of(system, owner, host, split)
    if device is None:
        raise InputError(f"<c2c> of a GPU at {_plain(owner[1], '?')} that is no device of the topology")
    cpu = _cpu_above(device, None)
    rate = single(number(tag, "bw") * number(tag, "count") / 1000.0)
    if cpu is None:
        return
    if len(_siblings(system, device.id)) == 1:
        both_ways(device, cpu, C2C, rate)
        return
    bridge = system.find(BRIDGE, device.id & ~3)
    if bridge is None:
        bridge = system.add(BRIDGE, device.id & ~3)
        bridge.name = f"C2C of {device.name}"
        both_ways(bridge, cpu, C2C, rate)
    both_ways(device, bridge, C2C, rate)


def _add_switch_links(system: System, tree: Tag) -> None:
    """Links between PCI switches that the tree does not show (<pcilink>): the bus is one place for them."""
    def walk(tag: Tag, address: str, host: int) -> None:
        if tag.name == "pcilink":
            one = system.find(PCI, _identity(host, bus_number(address)))
            if one is None:
                raise InputError(f"<pcilink> of {_plain(address, '?')}, which is no PCI switch of the topology")
            other = system.find(PCI, _identity(host, bus_number(_text(tag, "target"))))
            if other is not None:
                connect(one, other, LOC, constants()["rates"]["local"])
            return
        if tag.name == "cpu":
            host = _host(system, tag)
        for child in tag.children:
            walk(child, tag.attributes.get("busid", address), host)

    walk(tree, "", 0)


def _flatten_broadcom(system: System) -> None:
    """Broadcom's switches of the fourth and fifth generation show a second level that costs nothing: one level then."""
    place = 0
    while place < len(system.nodes[PCI]):
        switch = system.nodes[PCI][place]
        place += 1
        generation = _broadcom(switch.device, 0)
        if not generation:
            continue
        below = [link.end for link in switch.links
                 if link.end.kind == PCI and _broadcom(link.end.device, 1) == generation]
        switch.links = [link for link in switch.links if link.end not in below]
        for sub in below:
            for link in sub.links:
                if link.end is switch:
                    continue
                switch.links.append(Link(link.kind, link.rate, link.end))
                back = next((other for other in link.end.links if other.end is sub), None)
                if back is not None:
                    back.end = switch
            system.drop(sub)
        switch.device |= 0xffff
        place = 0


def _broadcom(device: int, level: int) -> int:
    rows = constants()["broadcom"]
    if device >> 12 == rows["gen4"]:
        return 4
    return 5 if device >> 12 == rows["gen5"][level] else 0


def _join_cpus(system: System) -> None:
    for one in system.nodes[CPU]:
        for other in system.nodes[CPU]:
            if one is not other and one.host == other.host:
                connect(one, other, SYS, _socket_rate(one))


def _socket_rate(cpu: Node) -> float:
    rates = constants()["rates"]
    if cpu.arch in ("ppc64", "arm64"):
        return float(rates["power" if cpu.arch == "ppc64" else "arm"])
    if cpu.vendor == "GenuineIntel":
        return float(next(row["rate"] for row in constants()["intel"] if row["name"] == cpu.model))
    if cpu.vendor == "AuthenticAMD":
        return float(rates["amd"])
    if cpu.vendor == "CentaurHauls":
        return float(constants()["zhaoxin"]["yongfeng" if cpu.model else "rate"])
    return float(rates["local"])


def _sort_down(node: Node, above: Node | None) -> None:
    """The way up comes last among a node's links."""
    if above is not None:
        up = next(link for link in node.links if link.end is above)
        node.links.remove(up)
        node.links.append(up)
    for link in node.links:
        if link.kind == BUS and link.end is not above:
            _sort_down(link.end, node)
