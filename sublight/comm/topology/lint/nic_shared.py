"""SL410: the nearest port is not one to one: several GPUs on one port while others idle, or ports that swap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sublight.comm.topology.box import Box, Gpu, Port
from sublight.comm.topology.naming import first_of, gpu_name, lines, port_name
from sublight.finding import Finding

CODE, TITLE = "SL410", "nearest network port not unique"
CLOSE = ("PIX", "PXB", "P2C")


def find(box: Box) -> Iterable[Finding]:
    """Fires where more GPUs than ports share their nearest ones while a port as fast is nearest to no GPU; and where
    two GPUs and two ports behind one switch are nearest crosswise."""
    found = [*_crowded(box), *_crossed(box)]
    if not found:
        return
    names = list(dict.fromkeys(gpu_name(gpu) for gpus, _ in found for gpu in gpus))
    yield Finding(
        CODE, TITLE,
        f"{first_of(names)}: the nearest port is not this GPU's own, so that ports are shared or rails cross between "
        "nodes",
        lines(said for _, said in found),
        "Compare nvidia-smi topo -m with the board's manual and with the other nodes. Where a switch shows virtual "
        "bridges of its own, ask for firmware that hides them, or give NCCL a corrected tree (NCCL_TOPO_FILE)",
        "low" if not _crowded(box) else "medium", None,
        ("one file cannot tell how the other nodes are wired: only a difference between nodes makes rails cross",),
    )


def _crowded(box: Box) -> list[tuple[list[Gpu], str]]:
    """Groups of GPUs on fewer ports, while ports of the same rate serve none."""
    groups: dict[tuple[Port, ...], list[Gpu]] = {}
    for gpu in box.gpus:
        ports = box.nearest(gpu)
        if ports and box.path(gpu, ports[0]).kind in CLOSE:
            groups.setdefault(ports, []).append(gpu)
    taken = {port for ports in groups for port in ports}
    idle = [port for port in box.ports if port not in taken]
    out = []
    for ports, gpus in groups.items():
        spare = [port for port in idle if port.gb_per_second >= ports[0].gb_per_second]
        if len(gpus) > len(ports) and spare:
            out.append((gpus, f"{', '.join(map(gpu_name, gpus))} share {', '.join(map(port_name, ports))}; "
                              f"{first_of(list(map(port_name, spare)))} serve none"))
    return out


def _crossed(box: Box) -> Iterator[tuple[list[Gpu], str]]:
    """Pairs of GPUs below one switch whose single nearest ports have the opposite order of bus ids."""
    own = [(gpu, near[0]) for gpu in box.gpus if len(near := box.nearest(gpu)) == 1]
    for i, (a, port_a) in enumerate(own):
        for b, port_b in own[i + 1:]:
            if port_a == port_b or box.path(a, port_b).kind not in CLOSE or box.path(b, port_a).kind not in CLOSE:
                continue
            if (a.slot.bus < b.slot.bus) != (port_a.slot.bus < port_b.slot.bus):
                yield [a, b], (f"{gpu_name(a)} is nearest {port_name(port_a)}, {gpu_name(b)} {port_name(port_b)}: "
                               "crosswise below one switch")
