"""This file knows about NCCL's latency and bandwidth table: one line per collective, algorithm and protocol, and why.

NCCL computes it in single precision with some steps in double; so do we, in its order, because ties and printed digits
depend on it. Source: ncclTopoTuneModel of src/graph/tuning.cc at 2.30.7; names and shape are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sublight.comm.nccl.communicator import Communicator
from sublight.comm.nccl.constants import Constants
from sublight.comm.nccl.environment import Environment
from sublight.comm.nccl.graph import PATH_CLASSES, Graph

Single = np.float32
MEANING = {"LOC": "the GPU itself", "NVL": "NVLink", "NVB": "NVLink through another GPU", "C2C": "chip to chip",
           "PIX": "one PCIe switch", "PXB": "several PCIe switches", "P2C": "chip to chip, then the CPU's PCIe",
           "PXN": "NVLink to a GPU beside the NIC", "PHB": "through the CPU", "SYS": "from CPU to CPU",
           "NET": "the network", "DIS": "none"}
Key = tuple[str, str, str]                       # function, algorithm, protocol, as NCCL writes them

NVL, NVB, PXB, PXN = (PATH_CLASSES.index(name) for name in ("NVL", "NVB", "PXB", "PXN"))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table. off says which rule took it out; bandwidth is then 0."""

    function: str
    algorithm: str
    protocol: str
    latency_us: Single
    bandwidth: Single                    # 10^9 bytes of the message a second
    limit: str                           # what the bandwidth comes from, in words
    steps: str                           # what the latency comes from, in words
    off: str = ""


def table(comm: Communicator, environment: Environment, constants: Constants) -> dict[Key, Line]:
    """Every line that NCCL has for this communicator, those it takes out included, in its order."""
    lines = {}
    for function in constants.functions:
        for algorithm in _algorithms(function, constants):
            for protocol in constants.protocols:
                key = function, algorithm, protocol
                lines[key] = _line(comm, environment, constants, *key)
    return lines


def in_words(path: int) -> str:
    """A path class as NCCL writes it, and what it means."""
    return f"{PATH_CLASSES[path]} ({MEANING[PATH_CLASSES[path]]})"


def _algorithms(function: str, constants: Constants) -> Iterator[str]:
    """The algorithms that the model knows for a collective."""
    for algorithm in constants.algorithms:
        known = {"AllReduce": algorithm != "PAT", "Broadcast": algorithm == "Ring", "Reduce": algorithm == "Ring"}
        if known.get(function, algorithm in ("Ring", "CollNetDirect", "NVLS", "PAT")):
            yield algorithm


def _line(
    comm: Communicator, environment: Environment, constants: Constants, function: str, algorithm: str, protocol: str,
) -> Line:
    graph = comm.graphs[algorithm]
    off = _absent(comm, environment, function, algorithm, protocol, graph)
    if off or graph is None:
        return Line(function, algorithm, protocol, Single(0), Single(0), "", "", off)
    bus, limit = _bus(comm, constants, function, algorithm, protocol, graph)
    off = _too_few_heads(comm, function, algorithm)
    bandwidth = _of_the_message(comm, function, algorithm, bus)
    latency, steps = _latency(comm, environment, constants, function, algorithm, protocol, graph)
    off = off or _disabled(comm, environment, function, algorithm, protocol, graph)
    if bandwidth == 0 and not off:
        off = f"NCCL has no rate for {algorithm} on {constants.generations[constants.generation(comm.sm_min)][0]} here"
    return Line(function, algorithm, protocol, latency, Single(0) if off else bandwidth, limit, steps, off)


def _absent(
    comm: Communicator, environment: Environment, function: str, algorithm: str, protocol: str, graph: Graph | None,
) -> str:
    """Why NCCL never computes this line; "" if it does."""
    if protocol != "Simple" and algorithm in ("NVLS", "NVLSTree", "PAT", "CollNetDirect", "CollNetChain"):
        return f"{algorithm} runs with Simple only"
    if algorithm in ("NVLS", "NVLSTree") and (not comm.nvls or graph is None or graph.channels < 2):
        if not environment.nvls:
            return "NCCL_NVLS_ENABLE=0"
        return "no NVLS graph of two channels or more (needs NVSwitch and GPUs of 9.0 or newer)"
    if algorithm == "PAT" and not _pat(comm, environment):
        if comm.sm_min < 60:
            return "PAT needs GPUs of 6.0 or newer"
        few = f"PAT is for one GPU a node, here {comm.local_ranks}"
        return "NCCL_PAT_ENABLE=0" if environment.pat is False else few
    if algorithm.startswith("CollNet") and not comm.collnet:
        return _no_collnet(comm, environment)
    return ""


def _no_collnet(comm: Communicator, environment: Environment) -> str:
    if not environment.collnet:
        return "CollNet is off (NCCL_COLLNET_ENABLE is not 1)"
    if comm.nodes < environment.collnet_nodes:
        return f"CollNet is off below {environment.collnet_nodes} nodes (NCCL_COLLNET_NODE_THRESHOLD)"
    return 'CollNet is off: no graph for it (the topology needs ports with coll="1")'


def _too_few_heads(comm: Communicator, function: str, algorithm: str) -> str:
    """All-gather and reduce-scatter in the network need a NIC for each GPU."""
    if algorithm not in ("NVLS", "CollNetDirect") or function == "AllReduce" or comm.nodes == 1 or not comm.collnet:
        return ""
    if comm.local_ranks <= comm.collnet_heads:
        return ""
    return f"{algorithm} of {function} needs a NIC for each GPU: {comm.local_ranks} GPUs, {comm.collnet_heads} NICs"


def _pat(comm: Communicator, environment: Environment) -> bool:
    if comm.sm_min < 60:
        return False
    return comm.nodes == comm.ranks if environment.pat is None else environment.pat


def _disabled(
    comm: Communicator, environment: Environment, function: str, algorithm: str, protocol: str, graph: Graph,
) -> str:
    """Which rule takes out a line that was computed; "" for none."""
    if not environment.algorithms[function][algorithm]:
        return f"NCCL_ALGO={environment.given.get('NCCL_ALGO')}"
    if environment.protocols[function][protocol] is False:
        return f"NCCL_PROTO={environment.given.get('NCCL_PROTO')}"
    if algorithm == "NVLSTree" and comm.nodes == 1:
        return "NVLSTree is for two nodes or more"
    if algorithm == "NVLS" and comm.nodes > 1 and not comm.collnet:
        return "NVLS across nodes needs CollNet (SHARP), which is off"
    if algorithm == "CollNetChain" and not comm.collnet_chain:
        return "CollNetChain: its heads are not among those of CollNet"
    if algorithm == "CollNetDirect" and not comm.nvswitch:
        return "CollNetDirect needs NVSwitch"
    asked = environment.protocols[function][protocol]
    return _ll128(comm, environment, graph) if protocol == "LL128" and asked is None else ""


def _ll128(comm: Communicator, environment: Environment, graph: Graph) -> str:
    """Which path forbids LL128, which relies on 128-byte stores arriving whole."""
    over_c2c = environment.ll128_over_c2c and comm.sm_min >= 90
    most = PXN if over_c2c else PXB
    if graph.type_inter > most:
        return (f"the path between GPU and NIC is {in_words(graph.type_inter)}; "
                f"allowed up to {in_words(most)}")
    if graph.type_intra > NVB:
        return f"the path between GPUs is {in_words(graph.type_intra)}; allowed up to {in_words(NVB)}"
    if comm.sm_min != comm.sm_max and comm.sm_min < 90:
        return f"LL128 is off for GPUs of compute capability {comm.sm_min} and {comm.sm_max} in one job"
    return "LL128 needs compute capability 7.0" if comm.sm_min < 70 else ""


def _bus(
    comm: Communicator, constants: Constants, function: str, algorithm: str, protocol: str, graph: Graph,
) -> tuple[Single, str]:
    """Bandwidth over all channels before the algorithm's own factor, and where it comes from."""
    channels, generation = graph.channels, constants.generation(comm.sm_min)
    if algorithm in ("NVLS", "NVLSTree"):
        return _nvls_bus(comm, constants, function, algorithm, graph)
    inside = comm.nodes <= 2 or algorithm.startswith("CollNet")
    rate = Single(graph.bw_intra if inside else graph.bw_inter)
    bus = Single(channels) * rate
    limit = f"{channels} channels x {rate:g}"
    if algorithm == "Ring":
        return _ring_bus(comm, constants, protocol, bus, limit, channels, generation)
    if algorithm == "Tree":
        return _tree_bus(comm, constants, function, protocol, bus, limit, graph)
    if algorithm == "PAT":
        # Tree's factor for one GPU at the NIC is for Tree alone
        return Single(float(bus) * constants.factors["pat"]), f"{limit} x {constants.factors['pat']}"
    if algorithm == "CollNetDirect":
        return _collnet_direct_bus(comm, constants, function, bus, limit, graph)
    return bus, limit


def _rate(comm: Communicator, constants: Constants, name: str) -> float:
    return constants.rates[name][constants.generation(comm.sm_min)][min(comm.nodes, 3) - 1]


def _ll_rate(comm: Communicator, constants: Constants) -> float:
    row = constants.generation(comm.sm_min) if comm.nodes == 1 else int(comm.cpu_vendor in ("AuthenticAMD", "mixed"))
    return constants.rates["ll"][row][min(comm.nodes, 3) - 1]


def _least(one: float, words: str, other: float, other_words: str) -> tuple[Single, str]:
    """The lower of two in double, then in single, as NCCL stores it."""
    return (Single(other), other_words) if other < one else (Single(one), words)


def _ring_bus(
    comm: Communicator, constants: Constants, protocol: str, bus: Single, limit: str, channels: int, generation: int,
) -> tuple[Single, str]:
    factors = constants.factors
    if protocol == "LL":
        cap = _ll_rate(comm, constants)
        return _least(float(bus) * factors["ring_ll"], f"{limit} x {factors['ring_ll']}", cap, f"LL's ceiling {cap:g}")
    if protocol == "LL128":
        cap = constants.rates["ring_ll128"][generation][min(comm.nodes, 3) - 1]
        return _least(float(bus) * factors["ring_ll128"], f"{limit} x {factors['ring_ll128']}",
                      channels * cap, f"LL128's ceiling {channels} x {cap:g}")
    return bus, limit


def _tree_bus(
    comm: Communicator, constants: Constants, function: str, protocol: str, bus: Single, limit: str, graph: Graph,
) -> tuple[Single, str]:
    factors, channels = constants.factors, graph.channels
    if function == "AllReduce":
        cap = _rate(comm, constants, "tree")
        bus, limit = _least(float(bus) * factors["tree"], f"{limit} x {factors['tree']}",
                            channels * cap, f"Tree's ceiling {channels} x {cap:g}")
    if protocol == "LL":
        cap, divisor = _ll_rate(comm, constants), factors["tree_ll_divisor"]
        bus, limit = _least(float(bus) * 1.0 / divisor, f"{limit} / {divisor}", cap, f"LL's ceiling {cap:g}")
    if protocol == "LL128":
        cap = _rate(comm, constants, "tree_ll128")
        over, under = factors["tree_ll128"]["one_node" if comm.nodes == 1 else "more"]
        bus, limit = _least(float(bus) * (over / under), f"{limit} x {over:g}/{under:g}",
                            channels * cap, f"LL128's ceiling {channels} x {cap:g}")
    if graph.pattern == 3:                           # "tree": parent and both children through one GPU's NIC
        bus, limit = Single(float(bus) * factors["tree_same_gpu"]), f"({limit}) x {factors['tree_same_gpu']}"
    return bus, limit


def _nvls_bus(
    comm: Communicator, constants: Constants, function: str, algorithm: str, graph: Graph,
) -> tuple[Single, str]:
    channels, local = graph.channels, Single(Single(comm.ranks) / Single(comm.nodes))
    efficiency = Single(constants.factors["nvls"][constants.generation(comm.sm_min)])
    intra = Single(graph.bw_intra) * efficiency * Single(channels - 1) / Single(channels)
    intra = intra * Single(2) if function == "AllReduce" else intra * ((local - Single(1)) / local)
    inter = Single(graph.bw_inter) * Single(2 if comm.nodes <= 2 and algorithm == "NVLSTree" else 1)
    parts = [(intra, f"NVLink {graph.bw_intra:g} x {efficiency:g}"), (inter, f"network {inter:g}")]
    if algorithm == "NVLSTree":
        cap = Single(_rate(comm, constants, "nvls_tree"))
        parts.append((cap, f"NVLSTree's ceiling {cap:g}"))
    rate, words = min(parts, key=lambda part: part[0])
    return Single(channels) * rate, f"{channels} channels x {rate:.3g} ({words})"


def _collnet_direct_bus(
    comm: Communicator, constants: Constants, function: str, bus: Single, limit: str, graph: Graph,
) -> tuple[Single, str]:
    local = Single(Single(comm.ranks) / Single(comm.nodes))
    if function != "AllReduce":
        network = Single(graph.bw_inter) * Single(constants.factors["collnet_direct_network"])
        return local * min(Single(graph.bw_intra), network), f"{local:g} GPUs x {min(graph.bw_intra, float(network)):g}"
    share = Single(float(local) / (1.0 * graph.channels))
    share = share - (share - Single(1)) / Single(2)
    bus = bus / share
    if comm.sm_min >= 90:
        bus = Single(float(bus) * constants.factors["collnet_direct_hopper"])
    return bus, f"{limit} by {share:g} GPUs a NIC"


def _nsteps(function: str, ranks: int) -> int:
    return {"AllReduce": 2 * (ranks - 1), "ReduceScatter": ranks - 1, "AllGather": ranks - 1}.get(function, ranks)


def _of_the_message(comm: Communicator, function: str, algorithm: str, bus: Single) -> Single:
    """Bytes of the message instead of bytes on the wire."""
    if algorithm != "Ring" and function in ("AllGather", "ReduceScatter"):
        return bus
    if algorithm in ("Ring", "NVLS", "NVLSTree"):
        return bus * Single((1.0 * comm.ranks) / _nsteps(function, comm.ranks))
    return bus * Single(0.5)


def wire_share(comm: Communicator, function: str, algorithm: str) -> str | None:
    """The factor from the wire to the message, in words; None for 1."""
    if algorithm != "Ring" and function in ("AllGather", "ReduceScatter"):
        return None
    if algorithm in ("Ring", "NVLS", "NVLSTree"):
        steps = _nsteps(function, comm.ranks)
        return None if steps == comm.ranks else f"{comm.ranks}/{steps}"
    return "1/2"


@dataclass(frozen=True, slots=True)
class _Hops:
    """Microseconds of one hop inside a node and of one across, in single precision."""

    intra: Single
    inter: Single
    whole: Single                        # of the link that NCCL takes for the whole ring


def _hops(comm: Communicator, constants: Constants, algorithm: str, protocol: str, graph: Graph) -> _Hops:
    place = constants.protocols.index(protocol)
    inside = "nvlink" if graph.type_intra == NVL else "pcie"
    network = constants.hop_us["network"]
    # one GPU a node hides nothing: NCCL takes Tree's network latency
    inter = Single(network["Tree" if comm.local_ranks == 1 else algorithm][place])
    inter = inter + Single(graph.latency_inter)
    if protocol == "Simple":
        inter = inter + Single(graph.latency_inter)  # the flush
    intra = _hop(comm, constants, inside, algorithm, place)
    return _Hops(intra, inter, intra if comm.nodes == 1 else Single(network[algorithm][place]))


def _hop(comm: Communicator, constants: Constants, link: str, algorithm: str, place: int) -> Single:
    if comm.cpu_arch == "ppc64" and link == "pcie" and algorithm == "Tree" and constants.protocols[place] == "Simple":
        return Single(constants.hop_us[link]["Ring"][place])     # POWER: NCCL favours Tree over Ring
    return Single(constants.hop_us[link][algorithm][place])


def _latency(
    comm: Communicator, environment: Environment, constants: Constants, function: str, algorithm: str, protocol: str,
    graph: Graph,
) -> tuple[Single, str]:
    hops = _hops(comm, constants, algorithm, protocol, graph)
    base = Single(constants.base_us[algorithm][constants.protocols.index(protocol)])
    if algorithm == "Ring":
        if function in ("Reduce", "Broadcast"):
            return _pipeline_latency(comm, constants, function, protocol, graph, base, hops)
        return _ring_latency(comm, environment, constants, function, protocol, base, hops)
    peers, depth = comm.ranks // comm.nodes - 1, comm.nodes.bit_length() - 1
    if algorithm == "Tree":
        way = Single(peers) * hops.intra + Single(depth) * hops.inter
        return base + Single(2) * way, f"{base:g} + 2 x ({peers} x {hops.intra:g} + {depth} x {hops.inter:g})"
    if algorithm == "NVLS":
        return (hops.intra if comm.nodes == 1 else hops.intra + hops.inter), f"{hops.intra:g}" + (
            f" + {hops.inter:g}" if comm.nodes > 1 else "")
    if algorithm == "NVLSTree":
        way = hops.intra + Single(2 * depth) * hops.inter
        return base + way, f"{base:g} + {hops.intra:g} + 2 x {depth} x {hops.inter:g}"
    if algorithm == "PAT":
        return _pat_latency(comm, constants, base, hops, depth)
    return _collnet_latency(constants, algorithm, peers, base, hops)


def _ring_latency(
    comm: Communicator, environment: Environment, constants: Constants, function: str, protocol: str, base: Single,
    hops: _Hops,
) -> tuple[Single, str]:
    intra = hops.intra
    if comm.nodes > 1:
        overhead = _net_overhead(comm, environment, constants)
        if protocol == "Simple":
            overhead = overhead * Single(constants.latency["net_overhead"]["simple_factor"])
        intra = max(intra, overhead)
    across = 0 if comm.nodes == 1 else (comm.nodes - 1) * (2 if function == "AllReduce" else 1)
    inside = _nsteps(function, comm.ranks) - across
    words = f"{base:g} + {inside} x {intra:g}" + (f" + {across} x {hops.inter:g}" if across else "")
    return base + (Single(inside) * intra + Single(across) * hops.inter), words


def _net_overhead(comm: Communicator, environment: Environment, constants: Constants) -> Single:
    """Microseconds to post to the network, of each step of a ring across nodes."""
    if environment.net_overhead_us is not None:
        return Single(environment.net_overhead_us)
    amd = comm.cpu_arch == "x86_64" and comm.cpu_vendor == "AuthenticAMD"
    return Single(constants.latency["net_overhead"]["amd_x86" if amd else "others"])


def _pipeline_latency(
    comm: Communicator, constants: Constants, function: str, protocol: str, graph: Graph, base: Single, hops: _Hops,
) -> tuple[Single, str]:
    if graph.same_channels:
        return base + hops.whole, f"{base:g} + {hops.whole:g}"
    hop = hops.whole
    if protocol == "Simple":
        inside = "nvlink" if graph.type_intra == NVL else "pcie"
        link = inside if comm.nodes == 1 else "network"
        hop = _hop(comm, constants, link, "Tree", constants.protocols.index(protocol))
    steps = _nsteps(function, comm.ranks)
    return base + Single(steps) * hop, f"{base:g} + {steps} x {hop:g}"


def _pat_latency(
    comm: Communicator, constants: Constants, base: Single, hops: _Hops, depth: int,
) -> tuple[Single, str]:
    divisor, each = constants.latency["pat_inter_divisor"], constants.latency["pat_per_rank"]
    added = depth * (float(hops.inter) / divisor) + comm.ranks * each
    return Single(float(base) + added), f"{base:g} + {depth} x {hops.inter:g} / {divisor} + {comm.ranks} x {each}"


def _collnet_latency(
    constants: Constants, algorithm: str, peers: int, base: Single, hops: _Hops,
) -> tuple[Single, str]:
    if algorithm == "CollNetDirect":
        each = constants.latency["collnet_direct_per_peer"]
        added = 2 * (float(Single(min(1, peers)) * hops.intra) + peers * each) + float(hops.inter)
        first = min(1, peers)
        return Single(float(base) + added), f"2 x ({first} x {hops.intra:g} + {peers} x {each}) + {hops.inter:g}"
    return base + (Single(2 * peers) * hops.intra + hops.inter), f"2 x {peers} x {hops.intra:g} + {hops.inter:g}"


def thresholds(comm: Communicator, environment: Environment, constants: Constants) -> Mapping[tuple[str, str], int]:
    """Bytes a thread should have before NCCL uses all channels and threads, by algorithm and protocol."""
    per_thread = constants.limits["bytes_per_thread"]
    found = {(a, p): per_thread[p] for a in constants.algorithms for p in constants.protocols}
    found["Ring", "LL"] *= comm.ranks
    found["CollNetDirect", "Simple"] = found["CollNetChain", "Simple"] = per_thread["CollNet"]
    for place, value in enumerate(environment.thread_thresholds):
        if value is not None:
            found[("Tree", "Ring")[place // 3], constants.protocols[place % 3]] = value
    return found
