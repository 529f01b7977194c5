"""This file knows about a box as a picture in text: a tree of what hangs where, a table of who is how far from whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isinf

from sublight.comm.topology.box import INVISIBLE, Box, Gpu, Path, Port, Slot, Switch, nvlink_gb
from sublight.comm.topology.naming import counted


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the tree: how deep it is, whether it is the last of its siblings at each depth, and what it says."""

    last: tuple[bool, ...]
    text: str

    def __str__(self) -> str:
        if not self.last:
            return self.text
        bars = "".join("   " if last else "│  " for last in self.last[:-1])
        return f"{bars}{'└─ ' if self.last[-1] else '├─ '}{self.text}"


@dataclass(frozen=True, slots=True)
class Distances:
    """GPUs by rows, ports by columns; nearest: those that NCCL prefers for the GPU."""

    gpus: tuple[str, ...]
    ports: tuple[str, ...]
    paths: tuple[tuple[Path, ...], ...]
    nearest: tuple[tuple[bool, ...], ...]


Branch = tuple[str, "list[Branch]"]


def tree(box: Box) -> tuple[Line, ...]:
    """The box from its CPUs down: switches, GPUs and ports with the GB/s that NCCL counts for their links."""
    out: list[Line] = []
    for cpu in box.cpus:
        maker = f" {cpu.vendor}" if cpu.vendor else ""
        numa = "unknown" if cpu.numa is None else str(cpu.numa)
        out.append(Line((), f"NUMA {numa}  {cpu.arch}{maker}"))
        out += _lines(_below(box, cpu.index, ()), ())
    return tuple(out)


def _below(box: Box, cpu: int, above: tuple[str, ...]) -> list[Branch]:
    """What hangs below a chain of switches, named from the nearest up; in the order of bus ids."""
    found: dict[str, Branch] = {}
    slots: list[tuple[Slot, str]] = [*((gpu.slot, gpu_line(gpu)) for gpu in box.gpus),
                                     *((port.slot, port_line(port)) for port in box.ports)]
    for number, (slot, said) in enumerate(slots):
        chain = tuple(switch.bus for switch in slot.above)
        if slot.cpu != cpu or chain[len(chain) - len(above):] != above:
            continue
        if len(chain) == len(above):
            found[f"{slot.bus} {number}"] = (said, [])
        else:
            switch = slot.above[len(chain) - len(above) - 1]
            if switch.bus not in found:
                found[switch.bus] = (switch_line(switch), _below(box, cpu, (switch.bus, *above)))
    return [found[key] for key in sorted(found)]


def _lines(branches: Sequence[Branch], last: tuple[bool, ...]) -> Iterator[Line]:
    for i, (text, below) in enumerate(branches):
        here = (*last, i == len(branches) - 1)
        yield Line(here, text)
        yield from _lines(below, here)


def switch_line(switch: Switch) -> str:
    part = f"  {switch.part.title}" if switch.part is not None and switch.part.title else ""
    return f"bridge {switch.bus}  {rate(switch.link.nccl_gb_per_second)}{part}"


def gpu_line(gpu: Gpu) -> str:
    number = "" if gpu.dev is None else f" {gpu.dev}"
    part = "" if gpu.slot.part is None else f"  {gpu.slot.part.title}"
    links = f"  {gpu.links} NVLinks {rate(nvlink_gb(gpu))}" if gpu.links else ""
    c2c = f"  C2C {rate(gpu.c2c_gb_per_second)}" if gpu.c2c_gb_per_second else ""
    return f"GPU{number} {gpu.slot.bus}  {_link(gpu.slot)}{part}{links}{c2c}"


def port_line(port: Port) -> str:
    name = "" if port.name is None else f" {port.name}"
    where = f" {port.slot.bus}" if port.slot.bus else ""
    gbit = "port as found at run time" if not port.listed else f"port {port.gb_per_second * 8:g} Gbit/s"
    return f"NIC{name}{where}  {_link(port.slot)}  {gbit}"


def _link(slot: Slot) -> str:
    return "no PCI" if slot.link is None else rate(slot.link.nccl_gb_per_second)


def rate(gb_per_second: float) -> str:
    """48 GB/s, 0.19 GB/s, 370.8 GB/s"""
    return "? GB/s" if isinf(gb_per_second) else f"{short(gb_per_second)} GB/s"


def short(gb_per_second: float) -> str:
    return f"{gb_per_second:.2f}" if gb_per_second < 1 else f"{gb_per_second:.1f}".removesuffix(".0")


def summary(box: Box) -> tuple[str, ...]:
    """The box in a few lines: what is in it, how its GPUs are joined, how its CPUs are."""
    parts = Counter("" if gpu.slot.part is None else gpu.slot.part.title for gpu in box.gpus)
    ports = Counter("rate as found at run time" if not port.listed else f"{port.gb_per_second * 8:g} Gbit/s"
                    for port in box.ports)
    lines = [", ".join((counted(len(box.cpus), "NUMA node"), counted(len(box.gpus), "GPU") + _counts(parts),
                        counted(len(box.ports), "network port") + _counts(ports))), nvlinks(box)]
    if len(box.cpus) > 1:
        lines.append("between CPUs NCCL counts " + ", ".join(
            sorted({rate(cpu.between_gb_per_second) for cpu in box.cpus})))
    return tuple(lines)


def _counts(counts: Counter[str]) -> str:
    """In brackets, each with its number where there are several."""
    said = ", ".join(what if len(counts) == 1 else f"{count} x {what}" for what, count in counts.items() if what)
    return f" ({said})" if said else ""


def nvlinks(box: Box) -> str:
    """How NVLink joins the GPUs, as the file has it."""
    linked = [gpu for gpu in box.gpus if gpu.links]
    if not linked:
        return "NVLink: none in the file; NCCL asks the driver for it at run time"
    each = sorted({gpu.links for gpu in linked})
    ends = {link.target for gpu in linked for link in gpu.nvlinks if link.end == "switch"}
    gpus = sum(link.count for gpu in linked for link in gpu.nvlinks if link.end == "gpu")
    hidden = ", hidden by the driver" if INVISIBLE in ends else ""
    to = f"{counted(len(ends), 'switch end')}{hidden}" if ends else f"{gpus} ends at GPUs" if gpus else "the CPU"
    count = str(each[0]) if len(each) == 1 else f"{each[0]} to {each[-1]}"
    rates = ", ".join(sorted({rate(nvlink_gb(gpu)) for gpu in linked}))
    who = f"{len(linked)} of {counted(len(box.gpus), 'GPU')}"
    return f"NVLink: {who} with {count} links to {to}; NCCL counts {rates} each"


def distances(box: Box) -> Distances:
    """Class and bandwidth of every GPU's way to every port, as NCCL has them before it considers relays (PXN)."""
    nearest = [box.nearest(gpu) for gpu in box.gpus]
    return Distances(
        tuple(f"GPU {gpu.dev}" if gpu.dev is not None else gpu.slot.bus for gpu in box.gpus),
        tuple(port.name or port.slot.bus or "?" for port in box.ports),
        tuple(tuple(box.path(gpu, port) for port in box.ports) for gpu in box.gpus),
        tuple(tuple(any(port is near for near in ports) for port in box.ports) for ports in nearest),
    )
