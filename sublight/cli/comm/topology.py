"""`sublight comm topology TOPO.xml|CLUSTER`: a box drawn as NCCL sees it, with what is wrong with it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublight.cli import output
from sublight.errors import InputError

if TYPE_CHECKING:
    from sublight.comm.topology.fabric import Fabric
    from sublight.comm.topology.xml import Tag


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "topology", help="draw a box as NCCL sees it, and check it",
        description="Draw NCCL's topology file, or a node of the catalog, as a tree; say how far each network port is "
                    "from each GPU; check what is missing, slow or odd; for several nodes, add the network.",
    )
    command.add_argument("topology", metavar="TOPO.xml|CLUSTER",
                         help="what NCCL_TOPO_DUMP_FILE wrote or NCCL_TOPO_FILE names, or a cluster such as 2x8xH100")
    command.add_argument("--format", choices=("table", "json", "md"), default="table")
    command.add_argument("-o", "--output", metavar="FILE", help="write there instead of to standard output")
    command.set_defaults(run=run)


def is_file(text: str) -> bool:
    """Whether an argument means a file rather than a cluster."""
    return text.lower().endswith((".xml", ".txt")) or "/" in text or (text != "" and Path(text).exists())


def run(options: argparse.Namespace) -> int:
    """Read or make the tree, check it, show it."""
    from sublight.comm.topology.box import box_of, hosts_of
    from sublight.comm.topology.lint import lint_all
    from sublight.show.topology import shown

    output.check_writable(options.output, options.format)
    tree, fabric, title = _asked(options.topology)
    boxes = [box_of(host) for host in hosts_of(tree)]
    if not any(box.gpus or box.ports for box in boxes):
        raise InputError("the topology names no GPU and no network port; expected <cpu> with <pci> inside, as "
                         "NCCL_TOPO_DUMP_FILE writes them")
    more = "" if len(boxes) == 1 else f" of {len(boxes)} hosts: the first is drawn, all are checked"
    text = shown(boxes[0], fabric, lint_all(boxes), title + more, options.format)
    output.write_text(text, options.output)
    return 0


def _asked(text: str) -> tuple[Tag, Fabric | None, str]:
    """The tree that an argument means, its fabric, and what to call it."""
    if is_file(text):
        from sublight.comm.topology.xml import read

        return read(text), None, "Topology file"
    from sublight.cluster import parse
    from sublight.comm.topology.fabric import fabric_of
    from sublight.comm.topology.from_cluster import system_of

    cluster = parse(text)
    nodes = f"{cluster.nodes:,} node{'s' if cluster.nodes > 1 else ''}"
    gpus = f"{cluster.gpus_per_node} GPUs" if cluster.gpus_per_node > 1 else "one GPU"
    return system_of(replace(cluster, nodes=1)), fabric_of(cluster), f"{nodes} of {gpus}: {cluster.node.title}"
