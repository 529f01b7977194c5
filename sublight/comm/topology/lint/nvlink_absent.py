"""SL409: GPUs without any NVLink though the part has them."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.comm.topology.box import Box
from sublight.comm.topology.naming import first_of, gpu_name, lines
from sublight.finding import Finding

CODE, TITLE = "SL409", "no NVLink in the file"


def find(box: Box) -> Iterable[Finding]:
    """Fires for listed GPUs whose part has NVLinks, where the file has none for them. GPUs without a <gpu> element are
    left out: such a file is an input, and NCCL fills them in."""
    bare = [gpu for gpu in box.gpus
            if gpu.listed and not gpu.links and gpu.slot.part is not None and gpu.slot.part.nvlinks]
    if not bare or len(box.gpus) < 2:
        return
    others = any(gpu.links for gpu in box.gpus)
    yield Finding(
        CODE, TITLE,
        f"{first_of([gpu_name(gpu) for gpu in bare])}: the part has NVLinks and the file shows none"
        + (", though it does for other GPUs" if others else ""),
        lines(f"{gpu_name(gpu)}: 0 of {gpu.slot.part.nvlinks} links of {gpu.slot.part.title}"
              for gpu in bare if gpu.slot.part is not None),
        "If NCCL wrote the file (NCCL_TOPO_DUMP_FILE): nvidia-smi nvlink -s; start the fabric manager; in a virtual "
        "machine, pass the whole board through. If it was written by hand, nothing: NCCL asks the driver",
        "high" if others else "medium", None,
        ("files for virtual machines leave NVLinks out, and NCCL fills them in at run time",),
    )
