"""SL401: a GPU whose nearest network port is on another NUMA node, or across the CPU where others have one close by."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.comm.topology.box import KINDS, Box
from sublight.comm.topology.naming import first_of, gpu_name, lines, port_name
from sublight.finding import Finding

CODE, TITLE = "SL401", "network port far from its GPU"
CLOSE = ("PIX", "PXB", "P2C")


def find(box: Box) -> Iterable[Finding]:
    """Fires for GPUs whose best port is SYS away, or PHB where another GPU of the box has one behind its switch."""
    if not box.ports:
        return
    best = {gpu: min((box.path(gpu, port) for port in box.nearest(gpu)), key=lambda path: KINDS.index(path.kind))
            for gpu in box.gpus}
    some_close = any(path.kind in CLOSE for path in best.values())
    far = [gpu for gpu, path in best.items() if path.kind == "SYS" or (path.kind == "PHB" and some_close)]
    if not far:
        return
    names = [gpu_name(gpu) for gpu in far]
    kinds = " or ".join(sorted({best[gpu].kind for gpu in far}, key=KINDS.index))
    relay = any(path.kind in CLOSE for path in best.values()) and all(gpu.links for gpu in far)
    yield Finding(
        CODE, TITLE,
        f"{first_of(names)}: the network port that NCCL prefers is {kinds} away, so GPUDirect RDMA to it is off by "
        "default",
        lines(f"{gpu_name(gpu)}: {best[gpu].kind} to {port_name(box.nearest(gpu)[0])}, NCCL counts "
              f"{best[gpu].gb_per_second:.1f} GB/s" for gpu in far),
        "Compare with the slots of the board's manual: put a port behind the same PCIe switch as each GPU. In a "
        "virtual machine, give NCCL the host's tree (NCCL_TOPO_FILE of the provider)",
        "medium" if some_close else "low", None,
        (*(("NCCL can relay over NVLink to a GPU with a close port (PXN); sends then leave there, receives do not",)
           if relay else ()),
         "boxes with fewer ports than GPUs are built that way"),
    )
