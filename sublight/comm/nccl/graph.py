"""This file knows about the graphs that NCCL would search on a topology: channels, rates, path classes, and why so.

    >>> from sublight.comm.topology.xml import Tag
    >>> PATTERNS[4], PATH_CLASSES[5]
    ('ring', 'PXB')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sublight.comm.topology.xml import Tag

# Public numbering of NCCL 2.30.7, src/include/graph.h
PATTERNS = {1: "balanced tree", 2: "split tree", 3: "tree", 4: "ring", 5: "NVLS", 6: "CollNet direct"}
PATH_CLASSES = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph of NCCL's search. channels is 0 where NCCL found none."""

    name: str                            # "ring", "tree", "collnet", "collnet direct", "nvls"
    pattern: int                         # as NCCL numbers it; words in PATTERNS
    channels: int
    bw_intra: float                      # 10^9 bytes a second of one channel
    bw_inter: float
    type_intra: int                      # index into PATH_CLASSES
    type_inter: int
    latency_inter: float                 # microseconds, as the topology states it
    same_channels: bool
    cross_nic: int
    intra: tuple[tuple[int, ...], ...]   # per channel, ranks in their order
    inter: tuple[tuple[str, str], ...]   # per channel, the NIC in and the NIC out


@dataclass(frozen=True, slots=True)
class Searched:
    """The graphs by name, the facts of one node that the tuning model reads, and why the graphs are so."""

    graphs: Mapping[str, Graph]
    gpus: int                            # GPUs of the node that take part
    nodes: int
    sm_min: int                          # compute capability, 90 for 9.0
    sm_max: int
    cpu_arch: str                        # "x86_64", "arm64", "ppc64"
    cpu_vendor: str                      # "GenuineIntel", "AuthenticAMD", … ; "" where the file does not say
    cpu_model: str                       # NCCL's class: "BDW", "SKL", "SRP", "ERP", "YONGFENG"; "" for others
    nics: int
    gpus_per_nic: float | None           # None without NICs
    has_nvswitch: bool
    all_nvlink: bool                     # every pair of GPUs by NVLink or C2C, perhaps through a third GPU
    all_direct_nvlink: bool              # every pair by NVLink without a GPU between
    min_net_bw: float                    # slowest path of the first GPU to one of its own NICs, 10^9 bytes a second
    gdr: bool                            # the first GPU reads or writes at least one NIC directly
    max_bw: float                        # best path of one channel, 10^9 bytes a second
    total_bw: float                      # all links of one GPU
    notes: tuple[str, ...]               # why it is so, one sentence each


def graphs(tree: Tag, *, gpus: int | None = None, nodes: int = 1, environment: Mapping[str, str] | None = None) -> Searched:
    """What NCCL 2.30.7 would search on one node of this topology. gpus: the first so many; None means all."""
    raise NotImplementedError("the search is being written")
