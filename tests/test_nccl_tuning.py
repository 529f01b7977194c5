"""NCCL's latency and bandwidth table, equal to what NCCL 2.30.7 itself computes.

    a line:  latency = base + steps x hop              bandwidth = min(channels x rate, ceiling) x share of the message
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import shared
from nccl import graph, searched, tuned

from sublight.comm.nccl import choice, constants
from sublight.comm.nccl import graph as graphs_module
from sublight.comm.nccl.choice import Model, model
from sublight.comm.nccl.communicator import settle
from sublight.comm.nccl.environment import assignments, read
from sublight.comm.nccl.graph import Graph, Searched, graphs
from sublight.comm.topology.xml import read as read_xml
from sublight.errors import InputError

CASES = json.loads((Path(__file__).parent / "data/nccl_2.30.7_tuning.json").read_text())


@cache
def searched_on_shared(system: str, gpus: int, nodes: int) -> Searched:
    return graphs(read_xml(shared(f"comm/synthetic_{system}_8.xml")), gpus=gpus, nodes=nodes)


@cache
def on_shared(system: str, gpus: int, nodes: int, nvls: bool = True) -> Model:
    return model(searched_on_shared(system, gpus, nodes), {} if nvls else {"NCCL_NVLS_ENABLE": "0"})


def rows_of(name: str) -> list[dict[str, str]]:
    with shared(f"comm/{name}").open(newline="") as file:
        return list(csv.DictReader(file))


def unlike_golden(models: dict[tuple[str, int, int], Model]) -> list[str]:
    """Rows of the golden table that differ in a printed digit, and lines that only one side has."""
    out, golden = [], defaultdict(set)
    for row in rows_of("nccl2.30.7_tune_table.csv"):
        job = row["system"], int(row["gpus_per_node"]), int(row["nodes"])
        key = row["coll"], row["algo"], row["proto"]
        golden[job].add(key)
        line = models.setdefault(job, on_shared(*job)).lines[key]
        if (round(float(line.latency_us), 1), round(float(line.bandwidth), 2)) != (
                float(row["lat_us"]), float(row["algbw_GBs"])):
            out.append(f"{job} {key}: {line.latency_us} {line.bandwidth}, NCCL {row['lat_us']} {row['algbw_GBs']}")
    for job, keys in golden.items():
        lines = models[job].lines.items()
        mine = {key for key, line in lines if not line.off and key[0] not in ("Broadcast", "Reduce")}
        out += [f"{job}: {key} on one side only" for key in mine ^ keys]
    return out


def test_all_209_rows_of_the_golden_table_are_equal_in_every_printed_digit() -> None:
    assert len(rows_of("nccl2.30.7_tune_table.csv")) == 209
    assert unlike_golden({}) == []


@pytest.mark.parametrize("name", ["base_us", "hop_us", "rates", "factors", "latency"])
def test_the_golden_table_notices_a_changed_constant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = replace(constants.load(), **{name: _scaled(getattr(constants.load(), name))})
    monkeypatch.setattr(choice, "load", lambda: changed)
    on_shared.cache_clear()
    try:
        assert unlike_golden({})
    finally:
        on_shared.cache_clear()


def _scaled(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _scaled(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(map(_scaled, value))
    return value * 1.01 if isinstance(value, float) else value


# ---- every branch: random communicators, and what NCCL's own tuning.cc and enqueue.cc made of them


def a_graph(name: str, facts: list[Any]) -> Graph:
    pattern, channels, intra, inter, inside, across, latency, same, heads = facts
    orders = tuple((head,) for head in heads)
    return Graph(name, pattern, channels, intra, inter, inside, across, latency, same, 0, orders, ())


def a_model(case: dict[str, Any]) -> Model:
    found: Searched = searched(gpus=case["gpus"], nodes=case["nodes"], cpu=tuple(case["cpu"]), sm_min=case["sm"][0],
                               sm_max=case["sm"][1], has_nvswitch=case["nvswitch"], min_net_bw=case["min_net_bw"])
    return model(replace(found, graphs={n: a_graph(n, facts) for n, facts in case["graphs"].items()}), case["env"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"sm{case['sm'][0]}-{case['nodes']}x{case['gpus']}")
def test_a_random_communicator_has_the_table_that_nccl_gives_it_to_the_last_bit(case: dict[str, Any]) -> None:
    got = {key: (line.latency_us, line.bandwidth) for key, line in a_model(case).lines.items() if not line.off}
    want = {(f, a, p): (np.float32(lat), np.float32(bw)) for f, a, p, lat, bw in case["table"]}
    assert got == want


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"sm{case['sm'][0]}-{case['nodes']}x{case['gpus']}")
def test_a_random_communicator_chooses_as_nccl_does(case: dict[str, Any]) -> None:
    tuning = a_model(case)
    for function, nbytes, *want in case["choices"]:
        if not want:
            with pytest.raises(InputError, match="no algorithm"):
                choice.choose(tuning, function, nbytes, dtype=case["dtype"], op=case["op"])
            continue
        got = choice.choose(tuning, function, nbytes, dtype=case["dtype"], op=case["op"])
        assert (got.best.algorithm, got.best.protocol, np.float32(got.best.time_us), got.channels, got.warps) == (
            want[0], want[1], np.float32(want[2]), *want[3:])


# ---- rules, one by one


def off(tuning: Model, function: str, algorithm: str, protocol: str) -> str:
    return tuning.lines[function, algorithm, protocol].off


@pytest.mark.parametrize(("sm", "to_nic", "on"), [
    (90, "PXN", True), (90, "PHB", False), (80, "PXB", True), (80, "PXN", False), (80, "P2C", False), (90, "P2C", True),
])
def test_ll128_needs_a_short_path_to_the_nic(sm: int, to_nic: str, on: bool) -> None:
    tuning = tuned(graph("ring", 4, 24, to_nic=to_nic), graph("tree", 4, 24), nodes=2, sm=sm)
    assert (off(tuning, "AllReduce", "Ring", "LL128") == "") is on
    assert on or f"path between GPU and NIC is {to_nic}" in off(tuning, "AllReduce", "Ring", "LL128")


def test_ll128_needs_nvlink_between_gpus_whatever_the_nic() -> None:
    tuning = tuned(graph("ring", 4, 12, inside="PHB"), graph("tree", 4, 12, inside="NVB"))
    assert "between GPUs is PHB" in off(tuning, "AllReduce", "Ring", "LL128")
    assert off(tuning, "AllReduce", "Tree", "LL128") == ""


def test_naming_ll128_or_leaving_out_another_protocol_forces_it_on() -> None:
    far = graph("ring", 4, 24, to_nic="SYS"), graph("tree", 4, 24, to_nic="SYS")
    assert off(tuned(*far, nodes=2), "AllReduce", "Ring", "LL128")
    for forced in ("LL128", "^LL", "Simple,LL128"):
        assert off(tuned(*far, nodes=2, env={"NCCL_PROTO": forced}), "AllReduce", "Ring", "LL128") == ""


def test_nvls_tree_is_for_several_nodes_and_nvls_for_one_or_with_collnet() -> None:
    assert "two nodes" in off(tuned(), "AllReduce", "NVLSTree", "Simple")
    assert off(tuned(), "AllReduce", "NVLS", "Simple") == ""
    assert "CollNet" in off(tuned(nodes=2), "AllReduce", "NVLS", "Simple")
    assert off(tuned(nodes=2), "AllReduce", "NVLSTree", "Simple") == ""
    assert "NVLS_ENABLE" in off(tuned(env={"NCCL_NVLS_ENABLE": "0"}), "AllReduce", "NVLS", "Simple")


def test_collnet_off_says_which_of_its_conditions_fails() -> None:
    asked = {"NCCL_COLLNET_ENABLE": "1"}
    words = [off(tuned(nodes=nodes, env=env), "AllReduce", "CollNetDirect", "Simple")
             for nodes, env in ((2, {}), (1, asked), (2, asked))]
    assert ["is not 1" in words[0], "below 2 nodes" in words[1], 'coll="1"' in words[2]] == [True, True, True]


def test_pat_is_for_one_gpu_a_node() -> None:
    assert "one GPU a node" in off(tuned(nodes=4), "AllGather", "PAT", "Simple")
    assert off(tuned(nodes=4, gpus=1), "AllGather", "PAT", "Simple") == ""
    without = tuned(nodes=4, gpus=1, env={"NCCL_PAT_ENABLE": "0"})
    assert off(without, "AllGather", "PAT", "Simple") == "NCCL_PAT_ENABLE=0"


def test_an_amd_cpu_lowers_ll_and_raises_the_latency_of_rings_across_nodes() -> None:
    intel, amd = (tuned(nodes=2, cpu=("x86_64", vendor)).lines["AllReduce", "Ring", "LL"]
                  for vendor in ("GenuineIntel", "AuthenticAMD"))
    # 6.6 + 28 x 1 + 2 x 2.7 and 6.6 + 28 x 2 + 2 x 2.7; ceilings 39 and 22.5, times 16/30
    assert (round(float(intel.latency_us), 1), round(float(amd.latency_us), 1)) == (40.0, 68.0)
    assert (round(float(intel.bandwidth), 2), round(float(amd.bandwidth), 2)) == (20.8, 12.0)


def test_the_words_of_a_line_are_its_arithmetic() -> None:
    line = tuned(nodes=4).lines["AllReduce", "Tree", "Simple"]
    assert line.steps == "8.4 + 2 x (7 x 4 + 2 x 14)"
    assert line.limit == "(Tree's ceiling 8 x 36) x 0.85"
    assert (round(float(line.latency_us), 1), round(float(line.bandwidth), 1)) == (120.4, 122.4)


# ---- channels


def channels(*graphs: Graph, env: dict[str, str] | None = None, **more: Any) -> tuple[int, int]:
    environment = read(env or {})
    comm = settle(searched(*graphs, **more), environment, constants.load())
    return comm.channels, comm.nvls_channels


def test_a_channel_of_the_search_runs_twice_and_four_times_where_a_node_has_few() -> None:
    assert channels() == (16, 16)
    assert channels(graph("ring", 4, 48), graph("tree", 4, 48), nodes=2)[0] == 16     # Hopper, faster than 45
    assert channels(graph("ring", 4, 40), graph("tree", 4, 40), nodes=2)[0] == 8
    assert channels(graph("ring", 40, 10), graph("tree", 36, 10))[0] == 64


def test_variables_bound_the_channels_first_from_above_then_from_below() -> None:
    assert channels(env={"NCCL_MAX_NCHANNELS": "4"})[0] == 4
    assert channels(env={"NCCL_MIN_NCHANNELS": "32"})[0] == 32
    assert channels(env={"NCCL_MAX_NCHANNELS": "4", "NCCL_MIN_NCHANNELS": "8"})[0] == 8
    assert channels(env={"NCCL_MAX_CTAS": "6"}) == (6, 6)


@pytest.mark.parametrize(("nodes", "gpus", "rate", "want"), [
    (1, 8, 48.0, 24), (2, 8, 48.0, 32), (2, 8, 24.0, 32), (4, 8, 96.0, 24), (4, 16, 96.0, 32), (4, 8, 48.0, 24)])
def test_blackwell_takes_nvls_channels_by_its_network(nodes: int, gpus: int, rate: float, want: int) -> None:
    assert channels(sm=100, nodes=nodes, gpus=gpus, min_net_bw=rate)[1] == want


# ---- variables


def test_every_variable_that_the_search_reads_is_in_the_list_and_no_other() -> None:
    folder = Path(graphs_module.__file__).parent
    read_there = {name for file in ("graph", "paths", "system", "search", "climb", "room")
                  for name in re.findall(r'"(NCCL_[A-Z0-9_]+)"', (folder / f"{file}.py").read_text("utf-8"))}
    assert read_there - {"NCCL_NVLS_ENABLE", "NCCL_COLLNET_ENABLE"} == set(constants.load().graph_variables)


@pytest.mark.parametrize(("given", "words"), [
    ({"NCCL_ALGOS": "ring"}, "nearest: NCCL_ALGO"), ({"NCCL_NVLS_ENABEL": "0"}, "nearest: NCCL_NVLS_ENABLE"),
    ({"NCCL_ALGO": "rong"}, "nearest: ring"), ({"NCCL_PROTO": "ll;simple"}, "need a function"),
    ({"NCCL_ALGO": "alreduce:ring"}, "nearest: allreduce"), ({"NCCL_NTHREADS": "many"}, "would read it as 0")])
def test_what_nccl_does_not_read_is_refused_with_the_nearest(given: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(given)


@pytest.mark.parametrize(("text", "function", "on"), [
    ("ring", "AllReduce", {"Ring"}),
    ("^tree,NVLS", "AllGather", {"Ring", "CollNetDirect", "CollNetChain", "NVLSTree", "PAT"}),
    ("ring;allreduce:tree,ring", "AllReduce", {"Tree", "Ring"}),
    ("ring;allreduce:tree,ring", "Reduce", {"Ring"}),
    ("allreduce:^tree", "Broadcast", set(constants.load().algorithms))])
def test_a_list_of_algorithms_is_read_as_nccl_reads_it(text: str, function: str, on: set[str]) -> None:
    row = read({"NCCL_ALGO": text}).algorithms[function]
    assert {algorithm for algorithm, value in row.items() if value} == on


def test_an_assignment_twice_is_refused() -> None:
    with pytest.raises(InputError, match="set twice"):
        assignments(["NCCL_ALGO=ring", "NCCL_ALGO=tree"])
    assert assignments(["NCCL_ALGO=a=b"]) == {"NCCL_ALGO": "a=b"}


def test_one_gpu_is_no_job() -> None:
    with pytest.raises(InputError, match="2 GPUs or more"):
        tuned(gpus=1)
