"""SL413: fewer network ports than boxes with these GPUs have."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.cluster import catalog
from sublight.comm.topology.box import Box
from sublight.comm.topology.naming import counted, lines, port_name
from sublight.finding import Finding

CODE, TITLE = "SL413", "fewer network ports than usual"


def find(box: Box) -> Iterable[Finding]:
    """Fires where a box names ports, its GPUs are all of one part with NVLinks, and it has fewer than the usual node of
    the catalog for as many GPUs."""
    devices = {gpu.slot.part.device for gpu in box.gpus if gpu.slot.part is not None and gpu.slot.part.nvlinks}
    if not box.ports or len(devices) != 1 or any(gpu.slot.part is None for gpu in box.gpus):
        return
    node = next((node for node in catalog() if node.device.key in devices and node.nvlink == "switch"), None)
    if node is None or not node.nics:
        return
    expected = node.nics * len(box.gpus) // node.gpus
    cards = {(port.slot.bus, port.name) for port in box.ports}
    if len(cards) >= expected:
        return
    yield Finding(
        CODE, TITLE,
        f"{counted(len(cards), 'network port')} for {counted(len(box.gpus), 'GPU')}, of which the first is "
        f"{port_name(box.ports[0])}: {node.title} has {expected}",
        lines(f"{port_name(port)}" for port in box.ports),
        "Check that every port is up and allowed (ibstat, NCCL_IB_HCA, devices of the container), and that the dump "
        "comes from a run over more than one node",
        "low", None,
        ("boxes are sold with fewer ports; then say what is there: --on …:nics=COUNTxGBIT",),
    )
