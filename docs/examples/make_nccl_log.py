"""This file knows about nccl_info.log: the lines that rank 0 of a job would print, in the form of NCCL 2.30.7.

    python docs/examples/make_nccl_log.py         # into docs/examples

The job is two nodes of h200.xml with CPUs by AMD instead of Intel, so that a prediction for h200.xml is wrong where the
vendor of the CPU counts. Host names and addresses are made up, to show that they stay behind.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sublight.comm.nccl.choice import choose, model
from sublight.comm.nccl.graph import PATH_CLASSES, graphs
from sublight.comm.topology.xml import read

HERE = Path(__file__).parent
WHO = "node-17:4242:4300 [0] NCCL INFO"
BLOCKS = (("Tree", "Ring", "CollNetDirect"), ("CollNetChain", "NVLS", "NVLSTree"), ("PAT",))
PROTOCOLS = ("LL", "LL128", "Simple")


def lines() -> list[str]:
    """The log."""
    searched = graphs(read(HERE / "h200.xml"), nodes=2)
    tuned = model(replace(searched, cpu_vendor="AuthenticAMD"))
    comm = tuned.comm
    out = ["NCCL_SOCKET_IFNAME set by environment to eth7", "NCCL_CROSS_NIC set by environment to 2."]
    out += [f"Pattern {g.pattern}, crossNic {g.cross_nic}, nChannels {g.channels}, bw {g.bw_intra:f}/{g.bw_inter:f}, "
            f"type {PATH_CLASSES[g.type_intra]}/{PATH_CLASSES[g.type_inter]}, sameChannels {int(g.same_channels)}"
            for name, g in searched.graphs.items() if g.channels]
    out.append(f"comm 0x5581 rank 0 nRanks {comm.ranks} nNodes {comm.nodes} localRanks {comm.local_ranks} localRank 0 "
               "MNNVL 0")
    for block in BLOCKS:
        out.append("  Algorithm   |" + "".join(f" {'':>14}   {name:>14}   {'':>14} |" for name in block))
        out.append("  Protocol    |" + "".join(f" {name:>14} |" for _ in range(3) for name in PROTOCOLS))
        for function in tuned.constants.functions:
            cells = [tuned.lines.get((function, a, p)) for a in block for p in PROTOCOLS]
            out.append(f"{function:>13} |" + "".join(
                f"{c.latency_us if c else 0:8.1f}/{c.bandwidth if c else 0:6.1f} |" for c in cells))
    out.append(f"{comm.channels} coll channels, {comm.channels} collnet channels, {comm.nvls_channels} nvls channels, "
               "32 p2p channels, 2 p2p channels per peer")
    for power in range(10, 34, 3):
        best = choose(tuned, "AllReduce", 1 << power).best
        out.append(f"AllReduce: {1 << power} Bytes -> Algo {best.algorithm.upper()} proto {best.protocol.upper()} "
                   "channel{Lo..Hi}={0..15}")
    return ["NCCL version 2.30.7+cuda13.0", *(f"{WHO} {line}" for line in out)]


if __name__ == "__main__":
    (HERE / "nccl_info.log").write_text("\n".join(lines()) + "\n", "utf-8")
