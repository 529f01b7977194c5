"""This file knows about the part of a collective between domains that runs inside each of them.

    NVLink       bytes that a GPU sends there / (link rate x share)
    PCIe box     as long as the same collective takes in one box with as many bytes on a link: what a box carries hangs
                 on its wiring, which slots do not tell (8 L40S: 1.2 GB/s of bus bandwidth, of 32 of a slot)
"""

from __future__ import annotations

import math

from sublight.cluster import Cluster
from sublight.comm.bus import bus_bytes
from sublight.comm.expected import Expected
from sublight.work import Message

LARGEST = 64 << 30                       # bytes that `in_domain` takes; beyond, time in proportion


def kind_of(collective: str, algorithm: str, sm: int) -> str:
    """The key of the share of NVLink's rate; algorithm as NCCL names it, sm: compute capability, 90 for 9.0."""
    if algorithm == "NVLSTree":
        return "nvls_hopper" if sm < 100 else "nvls_blackwell"
    return "all_reduce" if collective == "all_reduce" else "all_gather"


def inside_s(message: Message, nbytes: float, cluster: Cluster, *, share: float, dtype: str = "bf16") -> float:
    """Seconds for the bytes that each GPU sends inside its domain. message: the whole collective; share: of NVLink's
    rate. Raises InputError as `in_domain` does, for PCIe boxes."""
    if not nbytes or cluster.domain == 1:
        return 0.0
    if cluster.node.links:
        return nbytes / ((cluster.node.device.limits.link_bytes_per_second or math.inf) * share)
    beyond = max(1.0, _alone(message, nbytes, cluster) / LARGEST)
    return in_box(message, nbytes, cluster, dtype=dtype).terms["PCIe"] * beyond


def in_box(message: Message, nbytes: float, cluster: Cluster, *, dtype: str = "bf16") -> Expected:
    """The same collective in one PCIe box of the cluster, so large that a GPU sends so many bytes, or as large as
    expected times reach."""
    from sublight.comm.expect.domain import in_domain

    size = min(max(1, round(_alone(message, nbytes, cluster))), LARGEST)
    alone = Message(message.collective, cluster.domain, size)
    return in_domain(alone, device=cluster.node.device.key, dtype=dtype, nvlink=False)


def _alone(message: Message, nbytes: float, cluster: Cluster) -> float:
    """The size with which the collective sends so many bytes in one box."""
    return nbytes / (bus_bytes(Message(message.collective, cluster.domain, 1)) or 1.0)
