"""Topologies as text: the tree, who is how far from whom, the fabric, and the command."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import loaded, shared

from sublight.cli import main
from sublight.cluster import catalog, parse
from sublight.comm.nccl import paths, system
from sublight.comm.topology.box import Box, box_of
from sublight.comm.topology.draw import distances, short, summary, tree
from sublight.comm.topology.fabric import fabric_of
from sublight.comm.topology.from_cluster import system_of
from sublight.comm.topology.lint import lint
from sublight.comm.topology.xml import Tag
from sublight.show.topology import document, shown

ROOT = Path(__file__).parent.parent
FORMS = ("table", "md", "json")


files = loaded(ROOT / "docs/examples/make_topologies.py")
NAMES = [build.__name__ for build in files.FILES]


def tag(element: Any) -> Tag:
    attributes = element.attributes if hasattr(element, "attributes") else element.attrib
    name = element.name if hasattr(element, "name") else element.tag
    return Tag(name, dict(attributes), tuple(tag(child) for child in getattr(element, "children", element)))


def built(name: str) -> Tag:
    return tag(getattr(files, name)())


# ---- the tree


def test_the_tree_of_a_small_box() -> None:
    assert [str(line) for line in tree(box_of(built("sl413")))] == [
        "NUMA 0  x86_64 Intel",
        "└─ bridge 0000:10:00.0  48 GB/s  Broadcom PEX890xx, PCIe 5",
        "   ├─ GPU 0 0000:11:00.0  48 GB/s  H200 SXM 141 GB  18 NVLinks 370.8 GB/s",
        "   ├─ NIC mlx5_0 0000:12:00.0  48 GB/s  port 400 Gbit/s",
        "   └─ GPU 1 0000:13:00.0  48 GB/s  H200 SXM 141 GB  18 NVLinks 370.8 GB/s",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_device_is_drawn_once(name: str) -> None:
    box = box_of(built(name))
    drawn = [line.text for line in tree(box)]
    for slot in [gpu.slot for gpu in box.gpus] + [port.slot for port in box.ports]:
        assert sum(slot.bus in line for line in drawn) == 1
    assert len(drawn) == len(box.cpus) + len(box.gpus) + len(box.ports) + len(box.switches)


@pytest.mark.parametrize("name", NAMES)
def test_the_screen_is_eighty_columns_wide(name: str) -> None:
    box = box_of(built(name))
    for line in shown(box, None, lint(box), "Topology file", "table").split("\n"):
        assert len(line) <= 80, line


def test_the_summary_counts() -> None:
    assert summary(box_of(built("h200"))) == (
        "2 NUMA nodes, 8 GPUs (H200 SXM 141 GB), 8 network ports (400 Gbit/s)",
        "NVLink: 8 of 8 GPUs with 18 links to 4 switch ends; NCCL counts 370.8 GB/s each",
        "between CPUs NCCL counts 22 GB/s",
    )
    assert summary(box_of(built("sl408")))[1] == (
        "NVLink: 2 of 2 GPUs with 16 to 18 links to 4 switch ends; NCCL counts 329.6 GB/s, 370.8 GB/s each")


def test_numbers_are_short() -> None:
    assert [short(value) for value in (0.1875, 6.0, 12.5, 370.8, 48.0)] == ["0.19", "6", "12.5", "370.8", "48"]


# ---- distances


def test_distances_of_a_box() -> None:
    d = distances(box_of(built("sl401")))
    assert (d.gpus, d.ports) == (("GPU 0", "GPU 1"), ("mlx5_0", "mlx5_1"))
    assert [[(path.kind, path.gb_per_second) for path in row] for row in d.paths] == [
        [("PIX", 48.0), ("PHB", 48.0)], [("SYS", 22.0), ("SYS", 22.0)]]
    assert d.nearest == ((True, False), (True, True))


def compared(topology: Tag) -> int:
    """How many paths of the tree agree with those of the model of NCCL, which walks a graph instead; all must."""
    environment = {"NCCL_PXN_DISABLE": "1"}
    model = system.system_of(topology, environment)
    routes = paths.Routes(model, paths.rules_of(environment))
    routes.compute()
    box = box_of(topology)
    count = 0
    for gpu, mine in zip(model.nodes[system.GPU], box.gpus, strict=True):
        for port, own in zip(model.nodes[system.NET], box.ports, strict=True):
            theirs, here = routes.path(gpu, port), box.path(mine, own)
            assert here.kind == system.PATH_CLASSES[theirs.kind]
            assert here.gb_per_second == pytest.approx(theirs.rate, rel=1e-6)
            count += 1
        near = {model.nodes[system.NET][i].dev for i in routes.near(gpu, system.NET)[0]}
        assert near == {port.dev for port in box.nearest(mine)}
    return count


# sl411: without GPUDirect RDMA the model leads what is PIX over the CPU; sl414: it finds ports by a number used twice
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"sl411", "sl414"}))
def test_distances_are_those_of_the_model_of_nccl(name: str) -> None:
    assert compared(built(name)) > 0


@pytest.mark.parametrize("name", ["synthetic_h100_8.xml", "synthetic_a100_8.xml", "ibm_vpc_h100_topo.xml"])
def test_distances_of_shared_files_are_those_of_the_model_of_nccl(name: str) -> None:
    assert compared(tag(xml.etree.ElementTree.parse(shared(f"comm/{name}")).getroot())) == 64


@pytest.mark.parametrize("key", [node.key for node in catalog()])
def test_distances_of_a_node_are_those_of_the_model_of_nccl(key: str) -> None:
    assert compared(system_of(replace(parse(key), nodes=1))) > 0


def test_folded_switches_are_those_of_the_model_of_nccl() -> None:
    def owned(item: Tag) -> Tag:
        a = dict(item.attributes)
        if a.get("class") == "0x060400":
            a |= {"device": "0xc010", "subsystem_vendor": "0x1000", "subsystem_device": "0xa096"}
        return Tag(item.name, a, tuple(map(owned, item.children)))

    folded = owned(built("sl410"))
    assert compared(folded) == 4
    assert {path.kind for row in distances(box_of(folded)).paths for path in row} == {"PIX"}


# ---- the catalog


@pytest.mark.parametrize("key", [node.key for node in catalog()])
def test_a_node_of_the_catalog_has_no_finding(key: str) -> None:
    box = box_of(system_of(replace(parse(key), nodes=1)))
    node = parse(key).node
    assert (len(box.gpus), len(box.ports)) == (node.gpus, node.nics)
    assert [finding.code for finding in lint(box)] == []


# ---- formats and the command


@pytest.mark.parametrize("form", FORMS)
def test_every_format_has_the_findings(form: str) -> None:
    box = box_of(built("vm_h200"))
    text = shown(box, None, lint(box), "Topology file", form)
    for code in ("SL402", "SL403", "SL404", "SL407"):
        assert code in text


def test_the_document_is_the_box() -> None:
    cluster = parse("64x8xH200")
    box = box_of(built("h200"))
    found = json.loads(json.dumps(document(box, fabric_of(cluster), lint(box), "x"), allow_nan=False))
    assert (len(found["gpus"]), len(found["ports"]), len(found["switches"])) == (8, 8, 8)
    assert found["paths"][3][3] == {"class": "PIX", "gb_per_second": 48.0, "nearest": True}
    assert found["fabric"]["leaves"] == 16
    assert found["gpus"][0] == {
        "bus": "0000:11:00.0", "part": "H200 SXM 141 GB", "dev": 0, "rank": 0, "sm": 90, "gdr": True,
        "link": "32 GT/s x16", "nvlinks": 18, "c2c_gb_per_second": None, "above": ["0000:10:00.0"]}


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["comm", "topology", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_reads_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = str(ROOT / "docs/examples/vm_h200.xml")
    code, out, err = run([source], capsys)
    assert (code, err) == (0, "")
    assert out.startswith("Topology file\n1 NUMA node, 8 GPUs")
    target = tmp_path / "out.json"
    assert run([source, "--format", "json", "-o", str(target)], capsys) == (0, "", "")
    found = json.loads(target.read_text("utf-8"))["findings"]
    assert [f["code"] for f in found] == ["SL402", "SL403", "SL404", "SL407"]


def test_the_command_draws_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["2x8xH100:layout=fat-tree"], capsys)
    assert code == 0
    assert "Fabric: infiniband, fat-tree" in out
    assert out.endswith("Lint: nothing found.\n")
    assert "Fabric" not in run(["8xH100"], capsys)[1]


@pytest.mark.parametrize(("argument", "said"), [
    ("2x8xH101", "no node 'H101'"), ("absent.xml", "cannot be read"), ("2x8x", "is no cluster"),
])
def test_what_is_no_topology_is_refused(argument: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run([argument], capsys)
    assert (code, out) == (2, "")
    assert said in err


def test_an_empty_box_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "empty.xml"
    path.write_text('<system version="1"><cpu numaid="0"/></system>')
    code, out, err = run([str(path)], capsys)
    assert (code, out) == (2, "")
    assert "names no GPU and no network port" in err


def test_the_hosts_of_a_domain_are_boxes_of_their_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Two trays in one file have the same bus ids, and a fault of the second says so."""
    good, bad = (Path(ROOT / f"docs/examples/{name}.xml").read_text("utf-8") for name in ("h200", "sl404"))
    cpus = [text.split("\n", 1)[1].rsplit("</system>", 1)[0].replace("<cpu ", f'<cpu host_hash="0x{i}" ')
            for i, text in enumerate((good, bad), 1)]
    path = tmp_path / "two.xml"
    path.write_text(f'<system version="1">{"".join(cpus)}</system>')
    code, out, _ = run([str(path)], capsys)
    assert code == 0
    assert out.startswith("Topology file of 2 hosts: the first is drawn, all are checked\n2 NUMA nodes, 8 GPUs")
    assert out.count("SL4") == 1
    assert "host 2: GPU 1 (0000:21:00.0)" in out


def test_a_box_without_ports_is_drawn() -> None:
    box = Box(box_of(built("h200")).cpus, box_of(built("h200")).gpus, (), box_of(built("h200")).switches, ())
    text = shown(box, None, lint(box), "x", "table")
    assert "0 network ports" in text
    assert text.endswith("Lint: nothing found.\n")
