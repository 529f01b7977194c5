"""This file knows about what a communicator settles before it tunes: channels, threads, NVLS and CollNet support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sublight.comm.nccl.constants import Constants
from sublight.comm.nccl.environment import Environment
from sublight.comm.nccl.graph import Graph, Searched
from sublight.errors import InputError

# whose graph an algorithm uses: src/init.cc
GRAPH_OF = {"Tree": "tree", "Ring": "ring", "CollNetDirect": "collnet direct", "CollNetChain": "collnet",
            "NVLS": "nvls", "NVLSTree": "nvls", "PAT": "tree"}


@dataclass(frozen=True, slots=True)
class Communicator:
    """All ranks of a job over which NCCL tunes. Every node looks alike."""

    nodes: int
    ranks: int
    local_ranks: int                     # of one node
    sm_min: int
    sm_max: int
    cpu_arch: str
    cpu_vendor: str
    nvswitch: bool
    graphs: Mapping[str, Graph | None]   # by algorithm; None where it was not searched
    channels: int                        # compute channels of rings and trees
    nvls: bool
    nvls_channels: int
    collnet: bool
    collnet_chain: bool
    collnet_heads: int                   # GPUs of a node that talk to the network for CollNet
    max_threads: Mapping[tuple[str, str], int]


def settle(searched: Searched, environment: Environment, constants: Constants) -> Communicator:
    """The communicator over the graphs that were searched on one of its nodes.

    Sources: initTransportsRank in src/init.cc, ncclTopoPostset in src/graph/connect.cc, src/transport/nvls.cc, 2.30.7.
    """
    if searched.gpus * searched.nodes < 2:
        raise InputError("one GPU has no one to talk to: NCCL copies, it does not choose; expected 2 GPUs or more")
    ring, tree = searched.graphs["ring"], searched.graphs["tree"]
    both = min(ring.channels, tree.channels)         # NCCL aligns rings and trees
    graphs = {**searched.graphs, "ring": replace(ring, channels=both), "tree": replace(tree, channels=both)}
    by_algorithm = {algorithm: graphs.get(name) for algorithm, name in GRAPH_OF.items()}
    nvls = environment.nvls and searched.gpus > 1 and _channels(graphs, "nvls") > 0
    collnet = environment.collnet and _channels(graphs, "collnet") > 0 and searched.nodes >= environment.collnet_nodes
    heads = _heads(graphs.get("nvls" if nvls else "collnet direct")) if collnet else set()
    return Communicator(
        nodes=searched.nodes, ranks=searched.gpus * searched.nodes, local_ranks=searched.gpus,
        sm_min=searched.sm_min, sm_max=searched.sm_max, cpu_arch=searched.cpu_arch, cpu_vendor=searched.cpu_vendor,
        nvswitch=searched.has_nvswitch, graphs=by_algorithm,
        channels=_compute_channels(searched, graphs, environment, constants, collnet=collnet),
        nvls=nvls, nvls_channels=_nvls_channels(searched, environment, constants) if nvls else 0,
        collnet=collnet, collnet_chain=collnet and _heads(graphs["collnet"]) <= heads, collnet_heads=len(heads),
        max_threads=_threads(graphs["ring"], environment, constants),
    )


def _channels(graphs: Mapping[str, Graph], name: str) -> int:
    return graphs[name].channels if name in graphs else 0


def _heads(graph: Graph | None) -> set[int]:
    """The first GPU of each channel."""
    return set() if graph is None else {order[0] for order in graph.intra if order}


def _compute_channels(
    searched: Searched, graphs: Mapping[str, Graph], environment: Environment, constants: Constants, *, collnet: bool,
) -> int:
    most: int = constants.limits["channels"]
    ring = graphs["ring"]
    count = min(most, 2 * ring.channels)             # each channel of the search runs twice
    if collnet and graphs["collnet"].bw_intra > graphs["collnet"].bw_inter and searched.gpus > 1:
        count = min(most, count + count // 2)
    if searched.sm_min >= 90 and searched.nodes > 1 and ring.bw_intra > 45.0 and count < 16:
        count *= 2                                   # four per channel of the search, for few GPUs a node
    wanted = most if environment.max_channels is None else max(1, min(most, environment.max_channels))
    fewest, largest = ctas(environment, most)
    count = min(wanted, count, largest)
    return max(count, min(most, max(0, environment.min_channels or 0)), fewest)


def ctas(environment: Environment, most: int) -> tuple[int, int]:
    """Fewest and most thread blocks of a communicator."""
    fewest, largest = min(environment.min_ctas or 1, most), min(environment.max_ctas or most, most)
    return min(fewest, largest), largest


def _nvls_channels(searched: Searched, environment: Environment, constants: Constants) -> int:
    usual = constants.limits["nvls_channels"]
    count: int = usual["hopper"]
    if searched.sm_max >= 100:
        count = usual["blackwell"] if searched.nodes > 1 else usual["blackwell_one_node"]
    if searched.sm_min >= 100 and searched.nodes > 1:
        count = _nvls_tree_channels(searched, count)
    if environment.nvls_channels is not None:
        count = environment.nvls_channels
    fewest, largest = ctas(environment, constants.limits["channels"])
    return max(fewest, min(largest, count))


def _nvls_tree_channels(searched: Searched, usual: int) -> int:
    """Blackwell over several nodes: by the rate of the NIC and the GPUs of a node."""
    if searched.nodes == 2 and searched.min_net_bw >= 48.0:
        return 32
    if searched.min_net_bw >= 96.0:
        return 24 if searched.gpus <= 8 else 32
    return 24 if searched.min_net_bw >= 48.0 else usual


def _threads(ring: Graph, environment: Environment, constants: Constants) -> dict[tuple[str, str], int]:
    limits = constants.limits
    simple, warp = limits["simple_threads"], limits["warp"]
    slow = ring.bw_intra * ring.channels <= limits["slow_ring_gb_per_second"]
    usual = limits["simple_threads_slow_ring"] if slow else simple
    ll = _asked(environment.threads, warp, 2 * warp, limits["ll_threads"], limits["ll_threads"])
    most = limits["ll128_threads"]
    ll128 = _asked(environment.ll128_threads, warp, most // 4, most, most)
    threads = {(a, "Simple"): limits["threads"] for a in ("CollNetDirect", "CollNetChain", "NVLS", "NVLSTree")}
    threads |= {(a, "LL"): ll for a in ("Ring", "Tree")} | {(a, "LL128"): ll128 for a in ("Ring", "Tree")}
    threads["Ring", "Simple"] = _asked(environment.threads, warp, 2 * warp, simple, usual)
    threads["Tree", "Simple"] = _asked(environment.threads, warp, 2 * warp, simple, simple)
    return threads


def _asked(wanted: int | None, warp: int, least: int, most: int, usual: int) -> int:
    """Threads as the variable asks, as far as NCCL follows: whole warps between least and most."""
    if wanted is None or wanted <= 0:
        return usual
    return most if wanted % warp else min(most, max(least, wanted))
