"""SL404: a PCIe link slower than its part, its siblings, or the network port behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from sublight.comm.topology.box import Box, Slot
from sublight.comm.topology.naming import first_of, gpu_name, lines, port_name
from sublight.finding import Finding

CODE, TITLE = "SL404", "PCIe link below what the part can do"


def find(box: Box) -> Iterable[Finding]:
    """Fires for links with a known speed and width: of a GPU, below its part's; of any device, below most of the same
    part; of a port, below its rate."""
    slow = [(name, said) for name, said in _slow(box)]
    if not slow:
        return
    names = list(dict.fromkeys(name for name, _ in slow))
    yield Finding(
        CODE, TITLE,
        f"{first_of(names)}: the PCIe link is slower than it should be",
        lines(f"{name}: {said}" for name, said in slow),
        "Read the link on the host (lspci -vv: LnkSta against LnkCap) under load: reseat the card or riser, look at "
        "the BIOS's limit for the slot. In a virtual machine the hypervisor may report another speed than the link "
        "has: give NCCL the host's tree (NCCL_TOPO_FILE of the provider)",
        "medium", None,
        ("NCCL writes a GPU's current link, and the driver lowers that when the GPU is idle: dump while it works",
         "a slot may be wired for less on purpose"),
    )


def _slow(box: Box) -> Iterator[tuple[str, str]]:
    gpus = [(gpu_name(gpu), gpu.slot) for gpu in box.gpus if not gpu.c2c_gb_per_second]     # their way out is C2C
    ports = [(port_name(port), port.slot) for port in box.ports]
    usual = _usual([slot for _, slot in dict.fromkeys((*gpus, *ports))])
    for name, slot in gpus:
        part, link = slot.part, slot.link
        if link is None or link.gt_per_second is None:
            continue
        best = None if part is None else part.gt_per_second
        if best is not None and link.gt_per_second < best:
            yield name, f"{link.gt_per_second:g} GT/s, {slot.part.title if slot.part else ''} takes {best:g} GT/s"
        elif part is not None and part.lanes is not None and link.lanes is not None and link.lanes < part.lanes:
            yield name, f"x{link.lanes}, {part.title} takes x{part.lanes}"
        elif _below(slot, usual):
            yield name, f"{link}, others of its kind have {usual[_kind(slot)]:.0f} GB/s"
    for port, (name, slot) in zip(box.ports, ports, strict=True):
        raw = None if slot.link is None else slot.link.raw_gb_per_second
        if raw is not None and port.gbit is not None and raw < port.gbit / 8:
            yield name, f"{slot.link}: {raw:.1f} GB/s for a port of {port.gbit / 8:g} GB/s"
        elif _below(slot, usual):
            yield name, f"{slot.link}, others of its kind have {usual[_kind(slot)]:.0f} GB/s"


def _kind(slot: Slot) -> str:
    return "" if slot.part is None else slot.part.title


def _usual(slots: list[Slot]) -> dict[str, float]:
    """By part: the rate that more than half of its links have, where it is the highest."""
    out: dict[str, float] = {}
    for kind in {_kind(slot) for slot in slots} - {""}:
        rates = [slot.link.raw_gb_per_second for slot in slots if _kind(slot) == kind and slot.link is not None]
        known = [rate for rate in rates if rate is not None]
        if known and Counter(known)[max(known)] * 2 > len(known):
            out[kind] = max(known)
    return out


def _below(slot: Slot, usual: dict[str, float]) -> bool:
    raw = None if slot.link is None else slot.link.raw_gb_per_second
    return raw is not None and raw < usual.get(_kind(slot), 0.0)
