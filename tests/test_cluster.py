"""Clusters from short texts, the catalog of nodes, and the fabric between them."""

from __future__ import annotations

import doctest
import importlib.util
import tomllib
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sublight.cluster
import sublight.comm.topology.fabric
from sublight.cluster import OPTIONAL, REQUIRED, USUAL, Node, catalog, named, parse
from sublight.comm.topology.fabric import Fabric, fabric_of
from sublight.errors import InputError
from sublight.show.topology import fabric_lines

ROOT = Path(__file__).parent.parent
NODES = catalog()
PER_LINK = {"a100": 25e9, "h100": 25e9, "h200": 25e9, "h800": 25e9, "h20": 25e9, "b200": 50e9, "b300": 50e9,
            "gb200": 50e9, "gb300": 50e9}        # NVLink 3 and 4: 25 GB/s a link and direction; NVLink 5: 50


# ---- texts


@pytest.mark.parametrize(("text", "nodes", "gpus", "key", "domain"), [
    ("2x8xH100", 2, 8, "hgx-h100", 8),
    ("8xH100", 1, 8, "hgx-h100", 8),
    ("4xH100", 1, 4, "hgx-h100", 4),
    ("16xH100", 2, 8, "hgx-h100", 8),
    ("h100", 1, 8, "hgx-h100", 8),
    ("HGX-B200", 1, 8, "hgx-b200", 8),
    ("2x8xh100-sxm", 2, 8, "hgx-h100", 8),              # a key of the devices
    ("8xa100-pcie-80", 1, 8, "pcie-a100", 8),
    ("3x4xH200", 3, 4, "hgx-h200", 4),
    ("72xGB200", 18, 4, "gb200-nvl72", 72),
    ("36xGB200", 9, 4, "gb200-nvl72", 36),
    ("36x2xGB200", 36, 2, "gb200-nvl72", 36),           # two GPUs of each of a rack's 18 trays
    ("144xGB300", 36, 4, "gb300-nvl72", 72),
    ("8xL40S", 1, 8, "pcie-l40s", 8),
])
def test_a_text_means_a_cluster(text: str, nodes: int, gpus: int, key: str, domain: int) -> None:
    found = parse(text)
    assert (found.nodes, found.gpus_per_node, found.node.key, found.domain) == (nodes, gpus, key, domain)
    assert found.ranks == nodes * gpus


@pytest.mark.parametrize(("text", "said"), [
    ("2x8x", "is no cluster"), ("", "is no cluster"), ("8x8x8xH100", "is no cluster"),
    ("2x8xH101", "no node 'H101' in the catalog; nearest: h100"), ("9xH100", "9 GPUs do not fill nodes of 8"),
    ("2x9xH100", "has 8 GPUs"), ("0x8xH100", "has 8 GPUs"), ("2x0xH100", "has 8 GPUs"), ("0xH100", "has 8 GPUs"),
    ("8xH100:rails=8", "'rails=8' is no option"), ("8xH100:layout=torus", "is no option"),
    ("8xH100:oversubscription=0.5", "is no option"), ("8xH100:oversubscription=nan", "is no option"),
    ("8xH100:nics=4", "is no option"), ("8xH100:nics=0x400", "is no option"), ("8xH100:nics=8x-1", "is no option"),
    ("8xH100:nodes_per_leaf=0", "is no option"), ("8xH100:fabric=token-ring", "is no option"),
    ("8xH100:nics=4x400,nics=2x400", "nics is given twice"), (f"{10**22}x8xH100", "more than 1,048,576 nodes"),
])
def test_a_text_that_means_none_says_why(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse(text)


def test_options_change_the_ports_and_the_fabric() -> None:
    found = parse("4x8xH100:nics=4x200,layout=fat-tree,fabric=roce,nodes_per_leaf=2,oversubscription=3")
    assert (found.node.nics, found.node.nic_bytes_per_second) == (4, 25e9)
    assert (found.layout, found.fabric, found.nodes_per_leaf, found.oversubscription) == ("fat-tree", "roce", 2, 3.0)
    assert named("H100").nics == 8                       # the catalog stays as it is


# ---- the catalog


@pytest.mark.parametrize("node", NODES, ids=lambda node: node.key)
def test_a_node_is_consistent(node: Node) -> None:
    assert node.domain % node.gpus == 0
    assert node.gpus_per_switch == 0 or node.gpus % node.gpus_per_switch == 0
    assert (node.nvlink == "none") == (node.links == 0)
    assert node.pcie_bytes_per_second in (32e9, 64e9, 128e9)              # PCIe 4, 5, 6 x16
    assert node.cpu["arch"] in ("x86_64", "arm64")
    assert (node.cpu["arch"] == "x86_64") == ({"vendor", "familyid", "modelid"} <= set(node.cpu))
    groups = {"gpus", "nvlink", "nics", "pcie", "cpu"} | ({"c2c"} if node.c2c_bytes_per_second else set())
    assert set(node.sources) == groups
    assert all(source.startswith(("stated: ", "measured: ", "assumed: ")) for source in node.sources.values())


@pytest.mark.parametrize("node", [node for node in NODES if node.links], ids=lambda node: node.key)
def test_the_links_of_a_node_carry_what_its_gpu_states(node: Node) -> None:
    per_link = next(rate for start, rate in PER_LINK.items() if node.device.key.split("-")[0] == start)
    assert node.links * per_link == node.device.limits.link_bytes_per_second


def test_every_field_of_the_file_is_known() -> None:
    rows = tomllib.loads(resources.files("sublight.catalog").joinpath("nodes.toml").read_text("utf-8"))
    for key, row in rows.items():
        assert set(row) >= REQUIRED, key
        assert set(row) <= REQUIRED | OPTIONAL, key
    assert set(USUAL.values()) == set(rows)
    assert len({node.device.key for node in NODES}) == len(NODES)         # a device's key names one node


# ---- the fabric


def fabric(text: str) -> Fabric:
    found = fabric_of(parse(text))
    assert found is not None
    return found


def test_one_node_has_no_fabric() -> None:
    assert fabric_of(parse("8xH100")) is None


def test_a_rail_layout_has_a_leaf_for_each_rail() -> None:
    found = fabric("4x8xH100")
    assert (found.rails, found.leaves, found.nodes_under_leaf) == (8, 8, 4)
    assert found.leaf_down == 4 * 50e9                   # one port of 400 Gbit/s of each node
    assert found.spine == "only traffic between rails"
    assert found.bisection == 2 * 8 * 50e9


def test_a_fat_tree_below_one_leaf_needs_no_spine() -> None:
    found = fabric("4x8xH100:layout=fat-tree,oversubscription=4")
    assert (found.rails, found.leaves, found.leaf_up) == (1, 1, 0.0)
    assert found.spine.startswith("none")
    assert found.bisection == 2 * 400e9                  # nothing passes the thin uplinks


def test_oversubscription_thins_what_leaves_a_leaf() -> None:
    found = fabric("64x8xH100:oversubscription=2")
    assert (found.leaves, found.leaf_down, found.leaf_up) == (16, 32 * 50e9, 16 * 50e9)
    assert found.bisection == 32 * 400e9 / 2
    assert fabric("64x8xH100").bisection == 32 * 400e9


def test_racks_are_domains() -> None:
    found = fabric("144xGB200")
    assert (found.domains, found.ranks_per_domain, found.node) == (2, 72, 4 * 50e9)
    assert "2 domains of 72 ranks" in fabric_lines(found)[0]
    assert "2 domains of up to 72 ranks" in fabric_lines(fabric("80xGB200"))[0]


@given(st.integers(2, 300), st.integers(1, 64), st.floats(1, 8), st.sampled_from(("rail", "fat-tree")))
def test_no_cut_carries_more_than_the_nodes_send(nodes: int, per_leaf: int, ratio: float, layout: str) -> None:
    found = fabric(f"{nodes}x8xH100:nodes_per_leaf={per_leaf},oversubscription={ratio},layout={layout}")
    assert found.bisection <= nodes // 2 * found.node
    assert found.bisection >= nodes // 2 * found.node / ratio * (1 - 1e-9)
    assert found.leaves * found.nodes_under_leaf >= nodes * found.rails
    assert found.leaf_up <= found.leaf_down


def test_the_examples_of_the_docstrings_are_right() -> None:
    for module in (sublight.cluster, sublight.comm.topology.fabric):
        failed, tried = doctest.testmod(module)
        assert (failed, tried > 0) == (0, True)


# ---- the page


def test_the_tables_of_the_page_are_those_of_the_catalog() -> None:
    spec = importlib.util.spec_from_file_location("make_clusters", ROOT / "docs/make_clusters.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs/clusters.md").read_text("utf-8")
    assert module.made(page) == page, "run python docs/make_clusters.py"
    assert page.count("| `hgx-h100` |") == 6
    assert module.made(page.replace("8 x 400", "9 x 400")) == page
