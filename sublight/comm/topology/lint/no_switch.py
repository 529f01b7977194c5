"""SL402: GPUs and network ports straight at the CPU, where the board has a PCIe switch or a file hides it."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.comm.topology.box import Box
from sublight.comm.topology.naming import first_of, gpu_name, lines, port_name
from sublight.finding import Finding

CODE, TITLE = "SL402", "no PCIe switch between GPU and network port"


def find(box: Box) -> Iterable[Finding]:
    """Fires where no GPU of the box shares a switch with a port, and at least one is PHB from its nearest port."""
    pairs = [(gpu, port) for gpu in box.gpus for port in box.nearest(gpu)]
    if any(box.path(gpu, port).kind in ("PIX", "PXB", "P2C") for gpu, port in pairs):
        return
    through = {gpu: port for gpu, port in reversed(pairs)
               if port.slot.link is not None and box.path(gpu, port).kind == "PHB"}
    gpus = [gpu for gpu in box.gpus if gpu in through]
    if not gpus:
        return
    names = [gpu_name(gpu) for gpu in gpus]
    boards = sorted({gpu.slot.part.title for gpu in gpus if gpu.slot.part is not None and gpu.slot.part.nvlinks})
    yield Finding(
        CODE, TITLE,
        f"{first_of(names)}: data for the nearest port goes through the CPU's root complex (PHB), so NCCL does not use "
        "GPUDirect RDMA by default and copies over host memory",
        lines((*(f"{gpu_name(gpu)} is PHB from {port_name(through[gpu])}" for gpu in gpus),
               *(f"{title} sits behind PCIe switches on its usual boards" for title in boards))),
        "In a virtual machine, show it the host's switches (QEMU pxb-pcie with upstream and downstream ports) or give "
        "NCCL the host's tree (NCCL_TOPO_FILE of the provider); enable ATS and direct P2P translation in ACS. On real "
        "machines without a switch, try NCCL_NET_GDR_LEVEL=PHB and measure",
        "high" if boards else "medium", None,
        ("a file cannot tell a machine without switches from one whose switches are hidden",),
    )
