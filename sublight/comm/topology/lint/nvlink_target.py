"""SL407: NVLinks whose other end is not in the file, or is the GPU itself."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.comm.topology.box import INVISIBLE, UNKNOWN, Box, Gpu
from sublight.comm.topology.naming import first_of, gpu_name, lines
from sublight.finding import Finding

CODE, TITLE = "SL407", "other end of NVLink unknown"


def find(box: Box) -> Iterable[Finding]:
    """Fires for links to a GPU that is not in the file or is itself, and for ends that the driver hides: there with
    confidence only where some GPUs of the box name theirs."""
    buses = {gpu.slot.bus for gpu in box.gpus}
    odd = [(gpu, said, sure) for gpu in box.gpus if (found := _odd(gpu, buses)) for said, sure in (found,)]
    if not odd:
        return
    named = any(link.target not in (INVISIBLE, UNKNOWN) for gpu in box.gpus for link in gpu.nvlinks)
    sure = any(sure for *_, sure in odd)
    hidden = [gpu for gpu, _, sure in odd if not sure]
    yield Finding(
        CODE, TITLE,
        f"{first_of([gpu_name(gpu) for gpu, *_ in odd])}: "
        + ("NVLinks lead to no other GPU of the file" if sure else "the driver hides what the NVLinks lead to, so NCCL "
           "assumes a switch that joins all"),
        lines(f"{gpu_name(gpu)}: {said}" for gpu, said, _ in odd),
        "Run nvidia-smi nvlink -R and nvidia-smi topo -m on the host. In a virtual machine, pass all GPUs of a board "
        "through together and give NCCL the host's tree (NCCL_TOPO_FILE of the provider)",
        "high" if sure else "medium" if named and len(hidden) < len(box.gpus) else "low", None,
        ("boards with NVSwitch are often right all the same: a guest does not see the switches",) if not sure else
        ("NCCL drops links to GPUs that are not in the file",),
    )


def _odd(gpu: Gpu, buses: set[str]) -> tuple[str, bool] | None:
    """What is odd about the ends of a GPU's links, and whether that is sure to be wrong."""
    selves = sum(link.count for link in gpu.nvlinks if link.end == "gpu" and link.target == gpu.slot.bus)
    if selves:
        return f"{selves} links end at the GPU itself", True
    lost = sum(link.count for link in gpu.nvlinks if link.end == "gpu" and link.target not in buses)
    if lost:
        return f"{lost} links end at a GPU that is not in the file", True
    hidden = sum(link.count for link in gpu.nvlinks if link.end == "switch" and link.target in (INVISIBLE, UNKNOWN))
    return (f"{hidden} links to an end that the driver hides", False) if hidden else None
