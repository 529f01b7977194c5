"""SL414: the same bus id, device number or port twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from sublight.comm.topology.box import UNKNOWN, Box
from sublight.comm.topology.naming import first_of, gpu_name, lines, port_name
from sublight.finding import Finding

CODE, TITLE = "SL414", "the same id twice"


def find(box: Box) -> Iterable[Finding]:
    """Fires for bus ids that two <pci> share, GPUs or ports with the same dev, and ports with the same guid and port
    number on different cards. An unusable bus id counts as a duplicate of nothing."""
    found = list(_found(box))
    if not found:
        return
    yield Finding(
        CODE, TITLE,
        f"{first_of([name for name, _ in found])}: the file uses an id twice, and NCCL takes the two for one or mixes "
        "them up",
        lines(f"{name}: {said}" for name, said in found),
        "Make the ids unique in the file that NCCL_TOPO_FILE names. A guid of two cards means cloned virtual "
        "functions: give each its own",
        "high", None,
    )


def _found(box: Box) -> Iterator[tuple[str, str]]:
    for bus, times in Counter(box.bus_ids).items():
        if times > 1 and bus != UNKNOWN:
            yield f"bus id {bus}", f"{times} devices"
    devs: Counter[int | None] = Counter(gpu.dev for gpu in box.gpus if gpu.dev is not None and gpu.dev >= 0)
    for gpu in box.gpus:
        if devs[gpu.dev] > 1 and sum(other.slot.bus == gpu.slot.bus for other in box.gpus) == 1:
            yield gpu_name(gpu), f"dev {gpu.dev} is used {devs[gpu.dev]} times"
    nets: Counter[int | None] = Counter(port.dev for port in box.ports if port.dev is not None)
    chips: dict[tuple[str, int], set[str]] = {}
    for port in box.ports:
        if port.asic is not None and port.asic.strip("0xX"):
            chips.setdefault((port.asic, port.number), set()).add(port.slot.bus)
    for port in box.ports:
        if nets[port.dev] > 1:
            yield port_name(port), f"dev {port.dev} is used {nets[port.dev]} times"
        elif len(chips.get((port.asic or "", port.number), ())) > 1:
            yield port_name(port), f"the guid and port {port.number} of another card"
