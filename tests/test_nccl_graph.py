"""NCCL's graph search, held to what NCCL 2.30.7's own code finds on shared topologies and on boxes of our own."""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from functools import cache
from pathlib import Path

import nccl_boxes as boxes
import pytest
from conftest import minutes_more, shared

from sublight.comm.nccl import climb as climbing
from sublight.comm.nccl.graph import PATH_CLASSES, Graph, Searched, graphs
from sublight.comm.nccl.room import Room
from sublight.comm.nccl.search import Remains
from sublight.comm.nccl.version import bus_number, hexadecimal, single, speeds, whole
from sublight.comm.topology.xml import Tag, parsed, read
from sublight.errors import InputError

GOLDEN = Path(__file__).parent / "data" / "nccl" / "graphs.csv"
Case = tuple[str, int, int, str]         # box, GPUs, nodes, environment


@cache
def golden() -> dict[Case, dict[str, list[str]]]:
    """What NCCL's code printed: by case, by graph."""
    found: dict[Case, dict[str, list[str]]] = defaultdict(dict)
    with GOLDEN.open(newline="") as file:
        for box, gpus, nodes, environment, name, *rest in csv.reader(file):
            found[box, int(gpus), int(nodes), environment][name] = rest
    return dict(found)


def seconds(case: Case) -> float:
    return float(golden()[case]["node"][-1])


def cases(*, slow: bool) -> list[Case]:
    return [case for case in golden() if (seconds(case) > 0.15) == slow]


def search(case: Case) -> Searched:
    box, gpus, nodes, environment = case
    given = dict(text.split("=", 1) for text in environment.split()) if environment else {}
    return graphs(parsed(boxes.BOXES[box].encode()), gpus=gpus, nodes=nodes, environment=given)


def orders(graph: Graph) -> str:
    """Channels as the golden data has them: ranks, then the numbers of the ports."""
    rows = [",".join(map(str, order)) for order in graph.intra]
    ends = [" " + "-".join(name.removeprefix("mlx5_").removeprefix("eth") for name in pair) for pair in graph.inter]
    return ";".join(map("".join, zip(rows, ends or [""] * len(rows), strict=True)))


def row(graph: Graph) -> list[str]:
    return [str(graph.pattern), str(graph.channels), f"{graph.bw_intra:g}", f"{graph.bw_inter:g}",
            str(graph.type_intra), str(graph.type_inter), str(int(graph.same_channels)), str(graph.cross_nic),
            f"{graph.latency_inter:g}", hashlib.sha256(orders(graph).encode()).hexdigest()[:12]]


def facts(found: Searched) -> list[str]:
    return [str(found.gpus), str(found.nics), f"{found.max_bw:g}", f"{found.total_bw:g}",
            f"{found.min_net_bw:g}" if found.nics else "-1", str(int(found.gdr)), str(int(found.all_nvlink)),
            str(int(found.all_direct_nvlink))]


def differences(case: Case) -> list[str]:
    expected, found = golden()[case], search(case)
    wrong = [] if facts(found) == expected["node"][:-1] else [f"node: {facts(found)}, NCCL {expected['node'][:-1]}"]
    return wrong + [f"{name}: {row(found.graphs[name])}, NCCL {line}" for name, line in expected.items()
                    if name != "node" and row(found.graphs[name]) != line]


@pytest.mark.heavy
@pytest.mark.parametrize("case", cases(slow=False), ids=lambda case: "-".join(map(str, case)))
def test_graphs_are_nccls(case: Case) -> None:
    assert differences(case) == []


@pytest.mark.heavy
@pytest.mark.parametrize("case", [pytest.param(case, marks=minutes_more if at % 2 else [])
                                  for at, case in enumerate(cases(slow=True))], ids=str)
def test_graphs_of_long_searches_are_nccls(case: Case) -> None:
    assert differences(case) == []


@cache
def shared_graphs() -> dict[tuple[str, int, int], list[dict[str, str]]]:
    found: dict[tuple[str, int, int], list[dict[str, str]]] = defaultdict(list)
    with shared("comm/nccl2.30.7_graph_search.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            found[line["system"], int(line["gpus_per_node"]), int(line["nodes"])].append(line)
    return dict(found)


def test_the_shared_graphs() -> None:
    lines = 0
    for (system, gpus, nodes), expected in shared_graphs().items():
        found = graphs(read(shared(f"comm/synthetic_{system}_8.xml")), gpus=gpus, nodes=nodes).graphs
        for line in expected:
            graph = found[line["graph"]]
            assert (graph.pattern, graph.channels, graph.bw_intra, graph.bw_inter) == (
                int(line["pattern"]), int(line["nchannels"]), float(line["bwIntra"]), float(line["bwInter"])), line
            lines += 1
    assert lines == 51


def test_a_virtual_machine_with_ports_of_half_the_rate() -> None:
    found = graphs(read(shared("comm/ibm_vpc_h100_topo.xml")), nodes=4)
    ring = found.graphs["ring"]
    assert (ring.channels, ring.bw_inter, PATH_CLASSES[ring.type_intra], ring.type_inter) == (8, 24, "NVL", 7)
    assert any("25 GB/s (port mlx5_7, 200 Gbit/s), and 24 is the highest rate" in note for note in found.notes)


# ---- what spares time changes nothing ----

@pytest.mark.heavy
@pytest.mark.parametrize("case", [("cube-v100", 8, 2, ""), ("h100-4-nics", 8, 2, ""), ("a100-bridges", 8, 1, "")],
                         ids=lambda case: case[0])
def test_the_bound_leaves_out_only_what_finds_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = search(case).graphs
    monkeypatch.setattr(Room, "for_better", lambda self, draft, found: True)
    monkeypatch.setattr(climbing, "_hopeless", lambda budget, draft, place: False)
    assert search(case).graphs == quick


def test_a_planted_fault_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rate of one NVLink, and the golden graphs differ."""
    from sublight.comm.nccl import system

    case = ("b200", 8, 1, "")
    monkeypatch.setattr(system, "nvlink_rate", lambda sm: 20.6)
    assert differences(case) != []


# ---- arithmetic ----

def test_rates_are_32_bit_floats_in_thousandths() -> None:
    assert single(18 * 20.6) != 18 * 20.6
    assert Remains(24.0)[single(370.8)] == single(346.8)
    assert Remains(-24.0)[single(346.8)] == single(370.8)
    assert speeds(100, across_nodes=True)[4] == single(45.1)


def test_numbers_are_read_as_c_reads_them() -> None:
    assert [whole(text) for text in ("0x10", "010", "12 abc", "", "-1", " 7", "x", "08")] == [16, 8, 12, 0, -1, 7, 0, 0]
    assert (hexadecimal("0x1f"), hexadecimal("1F"), hexadecimal("")) == (31, 31, 0)
    assert bus_number("0000:1b:00.0") == 0x1b000
    assert bus_number("00000000:1b:00.0 (rev)") == 0x1b000


# ---- what the caller asks ----

def box(name: str) -> Tag:
    return parsed(boxes.BOXES[name].encode())


def test_more_nodes_need_a_nic() -> None:
    tree = parsed(boxes.box("ice lake", 80, 2, each=2, nics=0, sockets=1).encode())
    assert graphs(tree).graphs["ring"].channels
    with pytest.raises(InputError, match="no <net>"):
        graphs(tree, nodes=2)


@pytest.mark.parametrize(("gpus", "nodes"), [(0, 1), (9, 1), (8, 0)])
def test_what_is_not_there_is_refused(gpus: int, nodes: int) -> None:
    with pytest.raises(InputError):
        graphs(box("h100"), gpus=gpus, nodes=nodes)


def test_one_sided_links_are_refused() -> None:
    one_sided = boxes.box("amd", 80, 2, each=0, nics=1, sockets=1,
                          links=lambda number: [(boxes.slot(1, 1), 4, boxes.GPU)][number:])
    with pytest.raises(InputError, match="one side only"):
        graphs(parsed(one_sided.encode()))


def test_two_gpus_of_one_rank_are_refused() -> None:
    with pytest.raises(InputError, match="same rank"):
        graphs(parsed(boxes.BOXES["l40s"].replace('rank="1"', 'rank="0"').encode()))


@pytest.mark.heavy
def test_nics_are_chosen_by_name() -> None:
    def used(text: str) -> int:
        return graphs(box("nic-a-pair"), nodes=2, environment={"NCCL_IB_HCA": text}).nics

    assert [used(text) for text in ("", "mlx5", "=mlx5_1,mlx5_2", "^mlx5_0", "mlx5_3:1", "mlx5_3:1,mlx5_0:2")] == [
        4, 4, 2, 3, 1, 1]


def test_nvls_can_be_switched_off() -> None:
    on = graphs(box("h800"), gpus=2).graphs["nvls"]
    off = graphs(box("h800"), gpus=2, environment={"NCCL_NVLS_ENABLE": "0"}).graphs["nvls"]
    assert (on.channels > 0, off.channels, off.pattern) == (True, 0, 5)


# ---- why ----

def noted(name: str, *, nodes: int = 1, gpus: int | None = None, **environment: str) -> str:
    return "\n".join(graphs(box(name), gpus=gpus, nodes=nodes, environment=environment).notes)


def test_notes_name_the_slowest_link() -> None:
    notes = noted("a100-1-nic", nodes=2)
    assert "the best way from a GPU to a NIC carries 12.5 GB/s (port mlx5_0, 100 Gbit/s)" in notes
    assert "another channel does not fit on: ports (2 directions, 0.5 of 12.5 GB/s left)" in notes


@pytest.mark.heavy
def test_notes_say_when_the_network_is_faster_than_the_box() -> None:
    found = graphs(box("l40s"))
    assert (found.gpus, found.nodes) == (4, 2)
    assert "GPUs 0-3 and 4-7: through their NICs they reach each other at 24 GB/s" in found.notes[0]
    assert "inside the box at 10" in found.notes[0]
    assert graphs(box("l40s"), environment={"NCCL_NET_DISABLE_INTRA": "1"}).gpus == 8


@pytest.mark.heavy
def test_notes_say_what_was_conceded() -> None:
    assert "sends by NVLink through the GPU beside the NIC (class PXN)" in noted("h100-2-nics", nodes=2)
    assert "in pairs (NCCL_CROSS_NIC=2)" in noted("h100", nodes=2)
    assert "GPU Direct RDMA is off between GPUs 0-7" in noted("h100-nics-at-cpu", nodes=2)
    assert "NVLS: 2 heads for 8 GPUs" in noted("h100-2-nics", nodes=2)
    assert "shows no NVSwitch" in noted("two-amd")
    assert "have no NVLink SHARP" in noted("a100", gpus=2)
    assert "join" in noted("h100-two-ports", nodes=2, gpus=2)


def test_a_graph_file_is_not_read_and_that_is_said() -> None:
    assert "NCCL_GRAPH_FILE is not read" in noted("two-amd", NCCL_GRAPH_FILE="graph.xml")
