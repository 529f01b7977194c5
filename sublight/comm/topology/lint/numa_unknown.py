"""SL403: devices under a CPU whose NUMA node is unknown."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.comm.topology.box import Box
from sublight.comm.topology.naming import counted, first_of, gpu_name, lines, port_name
from sublight.finding import Finding

CODE, TITLE = "SL403", "NUMA node unknown"


def find(box: Box) -> Iterable[Finding]:
    """Fires for a <cpu> whose numaid is -1, absent or no number, with a GPU or port below it."""
    unknown = {cpu.index for cpu in box.cpus if cpu.numa is None or cpu.numa < 0}
    gpus = [gpu for gpu in box.gpus if gpu.slot.cpu in unknown]
    ports = [port for port in box.ports if port.slot.cpu in unknown]
    if not gpus and not ports:
        return
    names = [*map(gpu_name, gpus), *map(port_name, ports)]
    known = len(box.cpus) - len(unknown)
    yield Finding(
        CODE, TITLE,
        f"{first_of(names)}: the kernel does not say which NUMA node they belong to, so NCCL cannot pin its threads "
        "near them",
        lines((f"{counted(len(gpus), 'GPU')} and {counted(len(ports), 'network port')} under numaid -1 or none",
               f"{counted(known, 'NUMA node')} with a number in the same file")),
        "Set the node in the firmware (BIOS, ACPI _PXM) or, in a virtual machine, give the guest NUMA nodes and put "
        "the devices on them (QEMU pxb-pcie numa_node=…); or give NCCL a file with the right numaid (NCCL_TOPO_FILE)",
        "high" if known or len(box.gpus) > 1 else "low", None,
        ("a machine with one memory node loses nothing by it",),
    )
