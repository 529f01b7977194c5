"""This file knows about a box as NCCL sees it: the GPUs, network ports and switches of a topology tree, and how far
each port is from each GPU.

Rules from NVIDIA/nccl src/graph/{xml,topo,paths}.cc at 2.30.7. What a file leaves out (a <pci> of class 0x03 without a
<gpu> inside, NVLinks, whole network cards) NCCL asks the system for at run time; here it stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

from sublight.comm.topology.parts import (
    Part,
    PcieLink,
    between_cpus_gb_per_second,
    nvlink_gb_per_second,
    part,
    pcie_link,
)
from sublight.comm.topology.xml import Tag
from sublight.errors import InputError

BUS = re.compile(r"[0-9a-f]{1,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
NAME = re.compile(r"[A-Za-z0-9_.-]{1,32}")              # what else a file says of a card is not shown
INVISIBLE = "fffffff:ffff:ff"                           # NCCL's own word for an NVLink peer that the driver hides
UNKNOWN = "?"                                           # a bus id that is none
NVSWITCH, OTHER_END_GPU = "0x068000", "0x03"
MOST_DEVICES = 640                                      # NCCL_TOPO_MAX_NODES, src/include/graph.h
KINDS = ("PIX", "PXB", "P2C", "PHB", "SYS")             # NCCL's path classes, the nearest first
DEFAULT_PORT_MBIT = 10_000                              # NCCL's, where a port says 0 or less
# Two-level switches that NCCL folds into one: vendor, device, subsystem vendor, subsystem of the upper, of the lower
FOLDED = ((0x1000, 0xC010, 0x1000, 0xA, 0xA), (0x1000, 0xC030, 0x1000, 0x0, 0x1))


@dataclass(frozen=True, slots=True)
class Cpu:
    """A NUMA node."""

    index: int                           # in the file
    numa: int | None                     # None: absent or no number; -1: the kernel did not know
    arch: str
    vendor: str
    between_gb_per_second: float         # what NCCL takes the link to another CPU to carry


@dataclass(frozen=True, slots=True)
class Switch:
    """A PCIe switch or bridge that NCCL keeps."""

    bus: str
    part: Part | None
    link: PcieLink                       # towards the CPU
    joined: tuple[str, ...] = ()         # bus ids of switches that it has a direct link to


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a device sits: its link and the switches between it and its CPU, the nearest first."""

    bus: str                             # "" for a card without a PCI address
    part: Part | None
    link: PcieLink | None                # None: straight at the CPU, without PCI
    above: tuple[Switch, ...]
    cpu: int


@dataclass(frozen=True, slots=True)
class NvLink:
    """Links of a GPU to one other end."""

    target: str                          # a bus id, INVISIBLE, or "?"
    count: int
    end: str                             # "switch", "gpu", "cpu"


@dataclass(frozen=True, slots=True)
class Gpu:
    """listed: the file has its <gpu> element."""

    slot: Slot
    listed: bool
    dev: int | None
    rank: int | None
    sm: int | None
    gdr: bool | None
    nvlinks: tuple[NvLink, ...]
    c2c_gb_per_second: float             # 0 without

    @property
    def links(self) -> int:
        return sum(link.count for link in self.nvlinks)


@dataclass(frozen=True, slots=True)
class Port:
    """A network port. listed: the file has its <net> element."""

    slot: Slot
    listed: bool
    name: str | None                     # "mlx5_0", where it is harmless to show
    dev: int | None
    gbit: float | None                   # as the file says it; None: absent, 0 or less
    number: int
    gdr: bool | None
    asic: str | None                     # which chip it belongs to; never shown

    @property
    def gb_per_second(self) -> float:
        """What NCCL takes the port to carry; without end where the file leaves the port to the system."""
        if not self.listed:
            return inf
        return (self.gbit or DEFAULT_PORT_MBIT / 1000) / 8


@dataclass(frozen=True, slots=True)
class Path:
    """From a GPU to a port: NCCL's class, and its bandwidth in 10^9 bytes a second."""

    kind: str
    gb_per_second: float


@dataclass(frozen=True, slots=True)
class Box:
    """One host."""

    cpus: tuple[Cpu, ...]
    gpus: tuple[Gpu, ...]
    ports: tuple[Port, ...]
    switches: tuple[Switch, ...]
    bus_ids: tuple[str, ...]             # of every <pci>, as often as it stands in the file

    def path(self, gpu: Gpu, port: Port) -> Path:
        """How NCCL would reach a port from a GPU before it considers another GPU's port (PXN)."""
        found = self._plain(gpu, port)
        if found.kind == "PHB" and gpu.c2c_gb_per_second and all(
                self._rank(found) <= self._rank(self._plain(gpu, other)) for other in self.ports):
            return Path("P2C", found.gb_per_second)
        return found

    def nearest(self, gpu: Gpu) -> tuple[Port, ...]:
        """The ports that NCCL prefers: the most bandwidth first, then the nearest class."""
        ranks = [self._rank(self._plain(gpu, port)) for port in self.ports]
        return tuple(port for port, rank in zip(self.ports, ranks, strict=True) if rank == min(ranks))

    def _plain(self, gpu: Gpu, port: Port) -> Path:
        rates, kind = self._route(gpu.slot, port.slot, gpu.c2c_gb_per_second)
        return Path(kind, min((*rates, port.gb_per_second)))

    @staticmethod
    def _rank(path: Path) -> tuple[float, int]:
        return -round(path.gb_per_second, 6), KINDS.index(path.kind)

    def _route(self, a: Slot, b: Slot, c2c: float) -> tuple[list[float], str]:
        """Rates on the way, and NCCL's class of it."""
        b_above = {switch.bus: i for i, switch in enumerate(b.above)}
        meet = next(((i, b_above[s.bus]) for i, s in enumerate(a.above)
                     if a.cpu == b.cpu and s.bus in b_above and s.bus != UNKNOWN), None)
        if meet is not None:
            up, down = meet
            return [*_rates(a, up), *_rates(b, down)], "PIX" if up == down == 0 else "PXB"
        joined = {bus for switch in a.above for bus in switch.joined} & set(b_above)
        if joined:
            return [*_rates(a, len(a.above)), *_rates(b, min(b_above[bus] for bus in joined))], "PXB"
        rates = [max(min(_rates(a, len(a.above)), default=c2c), c2c), *_rates(b, len(b.above))]
        if a.cpu == b.cpu:
            return rates, "PHB"
        return [*rates, self.cpus[a.cpu].between_gb_per_second], "SYS"


def _rates(slot: Slot, switches: int) -> list[float]:
    """What the links carry from a device up to, and not including, a switch above it."""
    links = [] if slot.link is None else [slot.link]
    return [link.nccl_gb_per_second for link in (*links, *(s.link for s in slot.above[:switches]))]


def hosts_of(system: Tag) -> tuple[Tag, ...]:
    """A <system> for each host of a file, in its order: a dump of an NVLink domain holds several."""
    hosts: dict[str, list[Tag]] = {}
    for child in system.children:
        hosts.setdefault(child.attributes.get("host_hash", ""), []).append(child)
    return tuple(Tag(system.name, system.attributes, tuple(cpus)) for cpus in hosts.values())


def box_of(system: Tag) -> Box:
    """The box that a <system> element with the CPUs of one host describes. Raises InputError for more devices of a kind
    than NCCL takes."""
    cpus: list[Cpu] = []
    gpus: list[Gpu] = []
    ports: list[Port] = []
    switches: dict[tuple[int, str], Switch] = {}
    bus_ids: list[str] = []
    for index, tag in enumerate(child for child in system.children if child.name == "cpu"):
        cpus.append(_cpu(index, tag))
        for card in (child for child in tag.children if child.name == "nic"):
            ports += _ports(card, Slot("", None, None, (), index))
        for item, chain in _pcis(tag, ()):
            bus = bus_id(item)
            bus_ids.append(bus)
            above = _folded(chain)
            slot = Slot(bus, part_of(item), pcie_link(item.attributes), above, index)
            for switch in above:
                switches.setdefault((index, switch.bus), switch)
            gpus += _gpus(item, slot)
            cards = [child for child in item.children if child.name == "nic"]
            ports += [port for card in cards for port in _ports(card, slot)]
            if not cards and item.attributes.get("class", "").startswith("0x02"):
                ports.append(Port(slot, False, None, None, None, 0, None, None))
    for count, what in ((len(gpus), "GPUs"), (len(ports), "network ports"), (len(bus_ids), "PCI devices")):
        if count > MOST_DEVICES:
            raise InputError(f"the topology has {count:,} {what} in one host; expected at most {MOST_DEVICES:,}, "
                             "NCCL's own limit")
    return Box(tuple(cpus), tuple(gpus), tuple(ports), tuple(switches.values()), tuple(bus_ids))


def _pcis(tag: Tag, above: tuple[Tag, ...]) -> Iterator[tuple[Tag, tuple[Tag, ...]]]:
    """Every <pci> below a tag with those above it, the nearest first."""
    for child in tag.children:
        if child.name == "pci":
            yield child, above
            yield from _pcis(child, (child, *above))


def _folded(chain: tuple[Tag, ...]) -> tuple[Switch, ...]:
    """The switches that NCCL keeps of those above a device, the nearest first: the lower half of a two-level Broadcom
    switch goes into its upper half."""
    kept: list[Tag] = []
    before: Tag | None = None            # the switch directly above, if it was kept
    for tag in reversed(chain):
        if before is not None and _half(before, 0) is not None and _half(before, 0) == _half(tag, 1):
            before = None
            continue
        kept.append(tag)
        before = tag
    return tuple(_switch(tag) for tag in reversed(kept))


def _half(tag: Tag, level: int) -> int | None:
    """Which of FOLDED a switch is the upper (0) or lower (1) half of."""
    ids = [_hex(tag.attributes.get(name, "")) for name in ("vendor", "device", "subsystem_vendor", "subsystem_device")]
    return next((i for i, (vendor, device, owner, *levels) in enumerate(FOLDED)
                 if ids[:3] == [vendor, device, owner] and ids[3] >> 12 == levels[level]), None)


def _switch(tag: Tag) -> Switch:
    joined = tuple(clean_bus(child.attributes.get("target", "")) for child in tag.children if child.name == "pcilink")
    return Switch(bus_id(tag), part_of(tag), pcie_link(tag.attributes), joined)


def _cpu(index: int, tag: Tag) -> Cpu:
    a = tag.attributes
    arch, vendor = a.get("arch", ""), a.get("vendor", "")
    return Cpu(index, number(a.get("numaid")), arch if arch in ("x86_64", "arm64", "ppc64") else "?",
               {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}.get(vendor, ""), between_cpus_gb_per_second(a))


def _gpus(item: Tag, slot: Slot) -> list[Gpu]:
    tags = [child for child in item.children if child.name == "gpu"]
    if not tags and item.attributes.get("class", "").startswith(OTHER_END_GPU):
        return [Gpu(slot, False, None, None, None, None, (), 0.0)]
    out = []
    for tag in tags:
        a = tag.attributes
        links = tuple(_nvlink(child.attributes) for child in tag.children if child.name == "nvlink")
        c2c = sum((number(c.attributes.get("bw")) or 0) * (number(c.attributes.get("count")) or 0) / 1000
                  for c in tag.children if c.name == "c2c")
        dev, rank, sm = (number(a.get(name)) for name in ("dev", "rank", "sm"))
        out.append(Gpu(slot, True, dev, rank, sm, _flag(a.get("gdr")), links, c2c))
    return out


def _nvlink(a: Mapping[str, str]) -> NvLink:
    tclass, target = a.get("tclass", NVSWITCH), a.get("target", "")
    end = "gpu" if tclass.startswith(OTHER_END_GPU) else "cpu" if tclass.startswith("0x068001") else "switch"
    return NvLink(INVISIBLE if target == INVISIBLE else clean_bus(target), number(a.get("count")) or 0, end)


def _ports(card: Tag, slot: Slot) -> list[Port]:
    out = []
    for tag in card.children:
        a = tag.attributes
        if tag.name != "net" or number(a.get("net", "1")) == 0:
            continue
        name, mbit = a.get("name", ""), number(a.get("speed"))
        out.append(Port(slot, True, name if NAME.fullmatch(name) else None, number(a.get("dev")),
                        mbit / 1000 if mbit is not None and mbit > 0 else None, number(a.get("port")) or 0,
                        _flag(a.get("gdr")), a.get("guid")))
    return out


def part_of(tag: Tag) -> Part | None:
    return part(tag.attributes.get("vendor", ""), tag.attributes.get("device", ""))


def bus_id(tag: Tag) -> str:
    return clean_bus(tag.attributes.get("busid", ""))


def clean_bus(text: str) -> str:
    """A bus id as it may be shown; "?" for what is none."""
    return text.lower() if BUS.fullmatch(text) else UNKNOWN


def number(text: str | None) -> int | None:
    """A decimal number of a file; None where there is none."""
    return int(text) if text is not None and re.fullmatch(r"-?\d{1,9}", text.strip()) else None


def _flag(text: str | None) -> bool | None:
    value = number(text)
    return None if value is None else value != 0


def _hex(text: str) -> int:
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,4}", text) else 0


def nvlink_gb(gpu: Gpu) -> float:
    """What NCCL takes all NVLinks of a GPU to carry, one direction; 0 without."""
    return gpu.links * nvlink_gb_per_second(gpu.sm or 0)
