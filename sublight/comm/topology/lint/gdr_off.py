"""SL411: GPUDirect RDMA off, for a GPU or a network port."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.comm.topology.box import Box
from sublight.comm.topology.naming import first_of, gpu_name, lines, port_name
from sublight.finding import Finding

CODE, TITLE = "SL411", "GPUDirect RDMA off"


def find(box: Box) -> Iterable[Finding]:
    """Fires where the file says gdr="0". Where it says nothing, NCCL asks the plugin and the driver."""
    gpus = [gpu for gpu in box.gpus if gpu.gdr is False]
    ports = [port for port in box.ports if port.gdr is False]
    if not gpus and not ports:
        return
    names = [*map(gpu_name, gpus), *map(port_name, ports)]
    every = (bool(box.ports) and len(ports) == len(box.ports)) or len(gpus) == len(box.gpus)
    yield Finding(
        CODE, TITLE,
        f"{first_of(names)}: gdr is 0, so every message passes host memory on its way to the network",
        lines(f"{name}: gdr=0" for name in names),
        "Load nvidia-peermem, or use a kernel and driver with DMA-BUF; in containers, give the device and memlock "
        "limits. Sockets (eth0) never have it: check that NCCL found the RDMA ports (NCCL_IB_HCA)",
        "high" if every else "medium", None,
        ("ports for storage or management need none",) if not every else (),
    )
