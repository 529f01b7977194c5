"""`sublight comm nccl TOPO.xml|CLUSTER`: what NCCL would search, expect and choose, and why."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sublight.cli import output
from sublight.errors import InputError

if TYPE_CHECKING:
    from sublight.comm.nccl.choice import Model
    from sublight.comm.topology.xml import Tag
    from sublight.show.nccl import Against, Asked, Logged

USUAL_SIZES = "1K,16K,256K,4M,64M,1G"


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "nccl", help="what NCCL would choose for each size, and why",
        description="NCCL's graphs on a topology, its latency and bandwidth table, and its choice of algorithm and "
                    "protocol for each size with the reason, at version 2.30.7. Nothing is run.",
    )
    add_job(command)
    command.add_argument("--coll", default="all_reduce", metavar="NAME,…",
                         help="all_reduce (default), all_gather, reduce_scatter, broadcast, reduce, or all")
    command.add_argument("--bytes", default=USUAL_SIZES, metavar="SIZE,…", dest="sizes",
                         help=f"sizes as nccl-tests counts them: 8K,64M or 512:8G:x2; default {USUAL_SIZES}")
    command.add_argument("--against", action="append", default=[], metavar="WHAT",
                         help="show what changes with NCCL_X=Y, nodes=N, gpus=N, another TOPO.xml or CLUSTER; several "
                              "are taken together")
    command.add_argument("--log", metavar="INFO.log", help="compare with a log of NCCL_DEBUG=INFO, "
                                                           "NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING")
    command.add_argument("--format", choices=("table", "json", "md"), default="table")
    command.add_argument("-o", "--output", metavar="FILE", help="write there instead of to standard output")
    command.set_defaults(run=run)


def add_job(command: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """The options that say for which job NCCL chooses."""
    command.add_argument("topology", metavar="TOPO.xml|CLUSTER", nargs="?" if optional else None,
                         help="what NCCL_TOPO_DUMP_FILE wrote, for each node alike, or a cluster such as 2x8xH100")
    command.add_argument("--nodes", type=int, metavar="N", help="nodes; default 1 for a file, else as the cluster says")
    command.add_argument("--gpus", type=int, metavar="N", help="the first so many GPUs of each node; default all")
    command.add_argument("--env", action="append", default=[], metavar="NCCL_X=Y", help="a variable of NCCL")
    command.add_argument("--dtype", default="fp16", help="type of the elements: fp16 (default), bf16, fp32, int8, …")
    command.add_argument("--op", default="sum", help="sum (default), prod, min, max, avg, premulsum")


@dataclass(frozen=True, slots=True)
class Job:
    """Where collectives would run. gpus: of one node as NCCL counts nodes, which may be a whole NVLink domain."""

    title: str
    tree: Tag
    nodes: int
    gpus: int | None
    hosts: int                           # operating systems: more than nodes where NVLink joins several


def run(options: argparse.Namespace) -> int:
    """Search, tune, choose, show."""
    from sublight.cli.comm.sizes import sizes
    from sublight.comm.nccl.choice import COLLECTIVES, function_of
    from sublight.comm.nccl.environment import assignments
    from sublight.show.nccl import Asked, shown

    output.check_writable(options.output, options.format)
    collectives = tuple(COLLECTIVES) if options.coll == "all" else tuple(filter(None, options.coll.split(",")))
    if not collectives:
        raise InputError(f"--coll {options.coll}: expected {', '.join(COLLECTIVES)}, or all")
    for name in collectives:
        function_of(name)
    job, environment = job_of(options.topology, options.nodes, options.gpus), assignments(options.env)
    asked = Asked(job.title, collectives, sizes(options.sizes), options.dtype, options.op)
    here = model_of(job, environment)
    against = _against(here, job, environment, options.against, asked) if options.against else None
    logged = _logged(here, options.log, environment, asked) if options.log else None
    output.write_text(shown(here, asked, against, logged, options.format), options.output)
    return 0


def job_of(text: str, nodes: int | None, gpus: int | None) -> Job:
    """The job that an argument and its options mean. Raises InputError for what does not fit."""
    from sublight.cli.comm.topology import is_file
    from sublight.cluster import MOST_NODES, parse

    for name, value in (("--nodes", nodes), ("--gpus", gpus)):
        if value is not None and not 1 <= value <= MOST_NODES:
            raise InputError(f"{name} {value}: expected 1 to {MOST_NODES:,}")
    if is_file(text):
        from sublight.comm.topology.xml import read

        return Job("the topology file", read(text), nodes or 1, gpus, nodes or 1)
    from sublight.comm.topology.from_cluster import system_of

    cluster = parse(text)
    tree = system_of(cluster)
    inside = _gpus(tree)
    if inside > cluster.gpus_per_node:               # the tree is one NVLink domain of several nodes
        if nodes is None and cluster.ranks % cluster.domain:
            raise InputError(f"{text}: {cluster.ranks} GPUs do not fill NVLink domains of {cluster.domain}; nodes that "
                             f"differ are not modelled, expected a multiple of {cluster.domain}")
        domains = nodes or cluster.ranks // cluster.domain
        return Job(cluster.node.title, tree, domains, gpus or cluster.domain, domains * inside // cluster.gpus_per_node)
    count = nodes or cluster.nodes
    return Job(cluster.node.title, tree, count, gpus or cluster.gpus_per_node, count)


def _gpus(tag: Tag) -> int:
    return (tag.name == "gpu") + sum(_gpus(child) for child in tag.children)


def model_of(job: Job, environment: Mapping[str, str]) -> Model:
    """NCCL's model for a job under these variables."""
    from sublight.comm.nccl.choice import model
    from sublight.comm.nccl.environment import read
    from sublight.comm.nccl.graph import graphs

    read(environment)                                # names and values first, before the search
    with output.working("searching NCCL's graphs"):              # seconds for boxes without NVSwitch
        return model(graphs(job.tree, gpus=job.gpus, nodes=job.nodes, environment=environment), environment)


def _against(here: Model, job: Job, environment: Mapping[str, str], texts: list[str], asked: Asked) -> Against:
    from dataclasses import replace

    from sublight.cluster import MOST_NODES
    from sublight.comm.nccl.choice import COLLECTIVES
    from sublight.comm.nccl.compare import choices_differ, graphs_differ, lines_differ
    from sublight.comm.nccl.environment import assignments
    from sublight.show.nccl import Against

    other, variables = job, dict(environment)
    for text in texts:
        name, equals, value = text.partition("=")
        if equals and name in ("nodes", "gpus"):
            if not re.fullmatch("[0-9]{1,7}", value) or not 1 <= int(value) <= MOST_NODES:
                raise InputError(f"--against {text}: expected a whole number, 1 to {MOST_NODES:,}")
            other = replace(other, nodes=int(value)) if name == "nodes" else replace(other, gpus=int(value))
        elif equals and name.startswith("NCCL_"):
            variables |= assignments([text])
        else:
            other = job_of(text, None, None)
    there = _again(here, variables) if other == job and _same_graphs(environment, variables) else (
        model_of(other, variables))
    functions = tuple(COLLECTIVES[name] for name in asked.collectives)
    choices = tuple(changed for function in functions
                    for changed in choices_differ(here, there, function, dtype=asked.dtype, op=asked.op))
    return Against(", ".join(texts), graphs_differ(here, there), lines_differ(here, there, functions), choices)


def _same_graphs(one: Mapping[str, str], two: Mapping[str, str]) -> bool:
    """Whether only variables differ that the tuning model alone reads."""
    from sublight.comm.nccl.constants import load

    changed = {name for name in {*one, *two} if one.get(name) != two.get(name)}
    return changed <= {*load().tuning_variables} - {"NCCL_NVLS_ENABLE", "NCCL_COLLNET_ENABLE"}


def _again(here: Model, variables: Mapping[str, str]) -> Model:
    from sublight.comm.nccl.choice import model

    return model(here.searched, variables)


def _logged(here: Model, path: str, environment: Mapping[str, str], asked: Asked) -> Logged:
    from sublight.comm.nccl import beside
    from sublight.observe.nccl_log import read_log
    from sublight.show.nccl import Logged

    log = read_log(path)
    found = [c for c in log.communicators if c.ranks == here.comm.ranks and c.nodes in (None, here.comm.nodes)]
    if not found:
        seen = ", ".join(f"{c.ranks} ranks on {c.nodes or '?'} nodes" for c in log.communicators) or "none"
        raise InputError(f"--log: no communicator of {here.comm.ranks} ranks on {here.comm.nodes} nodes; the log has "
                         f"{seen}")
    remarks = []
    if log.version and log.version != here.constants.version:
        remarks.append(f"the log is of NCCL {log.version}, the prediction of {here.constants.version}: constants "
                       "differ between versions")
    for name, value in log.variables.items():
        matters = name in here.constants.tuning_variables or name in here.constants.graph_variables
        if matters and (value is None or environment.get(name) != value):
            theirs = name if value is None else f"{name}={value}"
            remarks.append(f"the log's run had {theirs}; the prediction has {environment.get(name, 'no such setting')}")
    comm = found[0]
    graphs = [(g.pattern, g.channels, g.bw_intra, g.bw_inter, g.type_intra, g.type_inter) for g in comm.graphs]
    choices = [(c.function or "AllReduce", c.nbytes, c.algorithm, c.protocol) for c in comm.choices]
    if any(c.function is None for c in comm.choices):
        remarks.append("the log does not say which collective each choice was for; taken for all-reduce")
    rows = (*beside.graphs_beside(here, graphs), *beside.channels_beside(here, comm.channels, comm.nvls_channels),
            *beside.table_beside(here, comm.lines),
            *beside.choices_beside(here, choices, dtype=asked.dtype, op=asked.op))
    return Logged(tuple(remarks), rows)
