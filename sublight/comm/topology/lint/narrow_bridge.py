"""SL406: an emulated bridge with the narrow link that hypervisors invent."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.comm.topology.box import Box
from sublight.comm.topology.naming import counted, first_of, lines, switch_name
from sublight.finding import Finding

CODE, TITLE = "SL406", "emulated bridge with a narrow link"
NARROW_GB_PER_SECOND = 4.0           # below PCIe 3.0 x4: no GPU of a cluster hangs at that


def find(box: Box) -> Iterable[Finding]:
    """Fires for switches above a GPU or port whose link NCCL counts below 4 GB/s: 2.5 GT/s x1 is 0.19."""
    used = {switch.bus for slot in (*(g.slot for g in box.gpus), *(p.slot for p in box.ports)) for switch in slot.above}
    narrow = [switch for switch in box.switches
              if switch.bus in used and switch.link.nccl_gb_per_second < NARROW_GB_PER_SECOND]
    if not narrow:
        return
    emulated = [switch for switch in narrow if switch.part is not None and switch.part.emulated]
    near = sum(box.path(gpu, port).kind in ("PIX", "PXB") for gpu in box.gpus for port in box.nearest(gpu)[:1])
    yield Finding(
        CODE, TITLE,
        f"{first_of([switch_name(s) for s in narrow])}: NCCL counts {narrow[0].link.nccl_gb_per_second:.2f} GB/s for "
        "all that passes it towards the CPU",
        lines((f"{counted(len(narrow), 'bridge')} with {narrow[0].link}, {len(emulated)} of them emulated",
               f"{near} of {counted(len(box.gpus), 'GPU')} reach their nearest port below such a bridge, at full rate",
               "paths to the CPU's memory and to other ports count as the bridge's rate")),
        "Write the real link of the host's switch over the bridge's link_speed and link_width in the file that "
        "NCCL_TOPO_FILE names, or set the speed and width in the hypervisor (QEMU x-speed, x-width)",
        "high" if len(emulated) == len(narrow) else "medium", None,
        ("the data itself does not slow down at an emulated bridge; NCCL's choice of paths does change",),
    )
