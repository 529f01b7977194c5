"""SL408: fewer NVLinks than the GPU has, or than its siblings have."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.comm.topology.box import Box, Gpu
from sublight.comm.topology.naming import first_of, gpu_name, lines
from sublight.finding import Finding

CODE, TITLE = "SL408", "NVLinks missing"


def find(box: Box) -> Iterable[Finding]:
    """Fires for GPUs with some NVLinks, but fewer than their part has (or than others of the same part and box)."""
    linked = [gpu for gpu in box.gpus if gpu.links]
    short = [(gpu, most) for gpu in linked if gpu.links < (most := _most(gpu, linked))]
    if not short:
        return
    lost = sum(most - gpu.links for gpu, most in short)
    part = len(short) / len(box.gpus)
    yield Finding(
        CODE, TITLE,
        f"{first_of([gpu_name(gpu) for gpu, _ in short])}: {lost} NVLinks are missing, and NCCL's rings run at the "
        "rate of the GPU with the fewest",
        lines(f"{gpu_name(gpu)}: {gpu.links} of {most} links" for gpu, most in short),
        "Run nvidia-smi nvlink -s and nvidia-smi nvlink -e: links that are down or erring belong to the vendor; check "
        "that the fabric manager runs and matches the driver",
        "high" if part < 1 else "medium", None,
        ("NCCL counts only links that were up when it looked",
         *(("the part is known by its PCI id; boards with fewer links exist",) if part == 1 else ())),
    )


def _most(gpu: Gpu, linked: list[Gpu]) -> int:
    """Links that a GPU should have."""
    part = gpu.slot.part
    same = [other.links for other in linked if other.slot.part == part]
    return max(same) if part is None or not part.nvlinks else max(part.nvlinks, 0)
