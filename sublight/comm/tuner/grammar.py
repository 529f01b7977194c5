"""This file knows about the rows of tuner files: NCCL's example plugin (plugins/tuner/example at 2.30.7) and NCCLX's
built-in tuner (meta-pytorch/torchcomms, comms/ncclx/meta/tuner/README.md at 46726f15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COLLECTIVES = {"broadcast": "broadcast", "reduce": "reduce", "all_gather": "allgather",
               "reduce_scatter": "reducescatter", "all_reduce": "allreduce"}
ALGORITHMS = {"Tree": "tree", "Ring": "ring", "CollNetDirect": "collnet_direct", "CollNetChain": "collnet_chain",
              "NVLS": "nvls", "NVLSTree": "nvls_tree", "PAT": "pat"}
PROTOCOLS = {"LL": "ll", "LL128": "ll128", "Simple": "simple"}
ANY = -1
MOST_BYTES = (1 << 64) - 1               # the plugin reads 64 bits
DOCUMENTED_MOST = 4294967295             # the README's "covers all sizes", which it does not: sizes go on above 4 GiB


@dataclass(frozen=True, slots=True)
class Row:
    """One row: for this collective, these sizes and this job, that algorithm. -1 in nodes and ranks is any, in channels
    NCCL's own number as the grammar has it; the example plugin wants 0 for that."""

    collective: str                      # as this package writes it: "all_reduce"
    low: int
    high: int
    algorithm: str                       # as NCCL's table writes it: "NVLSTree"
    protocol: str
    channels: int
    nodes: int = ANY
    ranks: int = ANY


def nccl(rows: Sequence[Row], comments: Sequence[str] = ()) -> str:
    """The file that NCCL_TUNER_CONFIG_FILE names, for the example plugin."""
    head = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
    lines = [f"# {line}" for line in (head, *comments)]
    lines += [f"{COLLECTIVES[r.collective]},{r.low},{r.high},{ALGORITHMS[r.algorithm]},{PROTOCOLS[r.protocol]},"
              f"{r.channels},{r.nodes},{r.ranks},-1,-1" for r in rows]
    return "\n".join(lines) + "\n"


def ncclx(rows: Sequence[Row], comments: Sequence[str] = ()) -> str:
    """The file that NCCLX_TUNER_CONFIG_FILE names. Sizes are per rank there, and only -1 leaves channels to NCCL."""
    head = ["collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks", *comments]
    lines = [f"# {line}" for line in head]
    lines += [f"{COLLECTIVES[r.collective]},{_per_rank(r)},{ALGORITHMS[r.algorithm]},{PROTOCOLS[r.protocol]},"
              f"{r.channels or ANY},{_exact(r.nodes)},{_exact(r.ranks // r.nodes)}" for r in rows]
    return "\n".join(lines) + "\n"


def _per_rank(row: Row) -> str:
    """Sizes as an interval of the share of a rank. Rows that follow each other still do."""
    low = -(-row.low // row.ranks)
    return f"[{low},)" if row.high >= MOST_BYTES else f"[{low},{row.high // row.ranks}]"


def _exact(value: int) -> str:
    return "*" if value == ANY else str(value)
