"""This file knows about how the expected time of a message comes together on a cluster, and who says it.

    ranks in one domain        in_domain      curves of what was measured inside one
    ranks of several domains   across         network ports, spines, NVLink, latency
    all-reduce of a named kind custom         one-shot, two-shot, NVLS
"""

from __future__ import annotations

from dataclasses import replace

from sublight.cluster import Cluster
from sublight.comm.bus import bus_bytes
from sublight.comm.expect.contention import beside
from sublight.comm.expected import Expected
from sublight.errors import InputError
from sublight.work import Message

KINDS = ("nccl", "one-shot", "two-shot", "nvls")


def expect(
    message: Message, cluster: Cluster, *, dtype: str = "bf16", kind: str = "nccl", graph: bool = True,
    sms: int | None = None,
) -> Expected:
    """What a collective should take among message.group ranks of a cluster: seconds with an 80 % interval.

    The group is packed: it fills NVLink domains one after the other; for groups of one rank a node, say so in the
    cluster ("10x1xH100"). kind: "nccl", or for an all-reduce inside a domain a custom kernel; graph: whether a CUDA
    graph launches it. sms: SMs that it may hold, which adds a note on compute beside it; it changes no time, since
    NCCL's rates were measured with its own channels. Raises InputError for what no constants support.
    """
    if message.group > cluster.ranks:
        raise InputError(f"{message.collective} of {message.group} ranks, but the cluster has {cluster.ranks}")
    if kind not in KINDS:
        raise InputError(f"no kind '{kind}'; expected one of {', '.join(KINDS)}")
    if message.group < 2 or message.nbytes < 1:
        raise InputError(f"{message.collective}: expected 2 or more ranks and at least one byte, got {message.group} "
                         f"ranks and {message.nbytes} bytes")
    found = _found(message, cluster, dtype, kind, graph)
    if sms is None:
        return found
    moved = 2 * (bus_bytes(message) or 0.0) / found.seconds          # read here, written there
    slower = beside(sms, cluster.node.device, moved_bytes_per_second=moved)
    return replace(found, notes=(*found.notes, slower.note))


def _found(message: Message, cluster: Cluster, dtype: str, kind: str, graph: bool) -> Expected:
    if kind != "nccl":
        from sublight.comm.expect.custom import custom

        if message.group > cluster.domain:
            raise InputError(f"{kind} runs inside one NVLink domain of {cluster.domain} ranks, got {message.group}")
        return custom(message, cluster, kind=kind, graph=graph, dtype=dtype)
    if message.group <= cluster.domain:
        from sublight.comm.expect.domain import in_domain

        return in_domain(message, device=cluster.node.device.key, dtype=dtype, nvlink=cluster.node.links > 0)
    from sublight.comm.expect.rails import across

    return across(message, part(cluster, message.group), dtype=dtype)


def part(cluster: Cluster, ranks: int) -> Cluster:
    """The nodes that hold so many ranks of a cluster, filled one after the other."""
    if ranks % cluster.gpus_per_node:
        raise InputError(f"{ranks} ranks do not fill nodes of {cluster.gpus_per_node}; expected a multiple")
    return replace(cluster, nodes=ranks // cluster.gpus_per_node)
