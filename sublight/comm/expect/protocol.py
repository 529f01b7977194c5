"""This file knows about what NCCL would run between nodes: its own choice over the graphs of a box with rails.

NCCL's model is asked for which algorithm and protocol it takes and for the latency that it states; rates and the true
size of latencies come from measurements. The graphs are not searched but written down: rings and trees as wide as the
NICs allow, which is what NCCL 2.30.7 finds where each GPU is near its NIC. Other boxes: `sublight comm nccl FILE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sublight.comm.nccl.choice import Model
    from sublight.comm.nccl.graph import Graph

BALANCED_TREE, TREE_SAME_GPU, RING, NVLS = 1, 3, 4, 5        # patterns as NCCL numbers them
NVL, PIX, PXN = 1, 4, 7                          # path classes
LADDER = 1.04                                    # the search's ladder of rates may lie above what links add up to
GB_PER_100_GBIT = 12.0                           # src/graph/topo.h: what NCCL counts on of a port
# src/graph/topo.h: 10^9 bytes a second of one NVLink, by compute capability
NVLINK_GB = ((100, 40.1), (90, 20.6), (80, 20.0), (70, 20.0), (60, 18.0))


@dataclass(frozen=True, slots=True)
class Box:
    """What NCCL's model reads of a node, or of an NVLink domain of several trays."""

    gpus: int                            # that take part
    domains: int
    nics: int                            # that they use
    gbit: float                          # of one NIC
    sm: int                              # compute capability, 90 for 9.0
    links: int                           # NVLinks of a GPU; 0 without
    switched: bool                       # NVSwitch
    vendor: str                          # of the CPU, "" where unknown


@dataclass(frozen=True, slots=True)
class Protocol:
    """What NCCL takes for a message. latency_s: as NCCL states it, without the plateau factor of rings. moving_s: the
    bytes at the bandwidth that it states."""

    algorithm: str
    protocol: str
    latency_s: float
    moving_s: float


@cache
def protocols(function: str, nbytes: int, box: Box, *, dtype: str) -> tuple[Protocol, ...]:
    """What NCCL may take for a message, its choice first. Raises InputError where NCCL has none."""
    from sublight.comm.nccl.choice import choose

    model = _model(box)
    ranked = [c for c in choose(model, function, nbytes, dtype=dtype).ranked if c.time_us is not None]
    return tuple(Protocol(c.algorithm, c.protocol,
                          float(model.lines[function, c.algorithm, c.protocol].latency_us) * 1e-6,
                          nbytes / (c.bandwidth * 1e9)) for c in ranked)


def chain_latency_s(protocol: str, box: Box) -> float:
    """What NCCL states for a ring that every byte goes all the way round, as in an all-gather. Of broadcast and reduce,
    where there is only the ring to choose, it states one hop."""
    return float(_model(box).lines["AllGather", "Ring", protocol].latency_us) * 1e-6


@cache
def _model(box: Box) -> Model:
    from sublight.comm.nccl.choice import model
    from sublight.comm.nccl.graph import Searched

    graphs = _graphs(box)
    port = GB_PER_100_GBIT * box.gbit / 100
    return model(Searched(
        graphs=graphs, gpus=box.gpus, nodes=box.domains, sm_min=box.sm, sm_max=box.sm, cpu_arch="x86_64",
        cpu_vendor=box.vendor, cpu_model="", nics=box.nics, gpus_per_nic=box.gpus / box.nics,
        has_nvswitch=box.switched, all_nvlink=box.links > 0, all_direct_nvlink=box.links > 0, min_net_bw=port, gdr=True,
        max_bw=port, total_bw=_inside(box), notes=(),
    ))


def _inside(box: Box) -> float:
    """10^9 bytes a second of a GPU's way to the others; PCIe 4.0 and newer without NVLink."""
    rate = next((gb for since, gb in NVLINK_GB if box.sm >= since), 18.0)
    return box.links * rate if box.links else 24.0


def _graphs(box: Box) -> dict[str, Graph]:
    """Rings and trees over all NICs: a channel each from 8 GPUs on, two of half the rate for fewer; a head each."""
    from sublight.comm.nccl.graph import Graph

    total = min(GB_PER_100_GBIT * box.gbit / 100 * box.nics, LADDER * _inside(box))
    split = 1 if box.gpus in (1, 8) or box.gpus > 8 else 2
    channels = min(max(1, box.nics) * split, 16)
    each = total / channels
    inside = NVL if box.links else PIX
    hopper = box.sm >= 90
    out = PIX if hopper else PXN                     # of HGX A100 NCCL 2.30.7 finds PXN, and takes no LL128 then

    def graph(name: str, pattern: int, count: int, intra: float, inter: float) -> Graph:
        return Graph(name, pattern, count, intra, inter, inside, out, 0.0, True, 0, (), ())

    graphs = {"ring": graph("ring", RING, channels, each, each),
              "tree": graph("tree", TREE_SAME_GPU if hopper else BALANCED_TREE, channels, each * split, each)}
    if box.switched and hopper and box.gpus > 1:
        heads = min(box.gpus, 16)
        rate = total / min(box.gpus, box.nics)
        graphs["nvls"] = graph("nvls", NVLS, heads, min(rate, _inside(box) / heads), rate)
    return graphs
