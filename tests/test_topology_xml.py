"""Topology files: what is read, what is left out, what is refused and with which words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import nccl_boxes as boxes
import pytest
from conftest import shared

from sublight.cluster import catalog, parse
from sublight.comm.nccl.graph import graphs
from sublight.comm.topology.filled import filled
from sublight.comm.topology.from_cluster import system_of
from sublight.comm.topology.xml import Tag, parsed, read
from sublight.errors import InputError

CPU = b'<cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"/>'


def count(tree: Tag, name: str) -> int:
    return (tree.name == name) + sum(count(child, name) for child in tree.children)


def test_a_file_becomes_a_tree(tmp_path: Path) -> None:
    path = tmp_path / "topo.xml"
    path.write_text(boxes.BOXES["h100"])
    tree = read(path)
    assert [count(tree, name) for name in ("cpu", "gpu", "net", "nvlink")] == [2, 8, 8, 8]
    assert tree.children[0].attributes["modelid"] == "143"


def test_comments_declarations_and_unknown_elements_are_passed_over() -> None:
    text = b"<?xml version='1.0'?><!-- a box --><system version='1'><other><cpu/></other>" + CPU + b"<!-- --></system>"
    assert [child.name for child in parsed(text).children] == ["cpu"]


BOMB = (b'<!DOCTYPE s [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><system version="1">&b;</system>')
REFUSED = {
    "empty": (b"", "empty"),
    "cut off": (b"<system version='1'>" + CPU, "cut off"),
    "no XML": (b"[INFO] NCCL version 2.30.7", "no XML"),
    "binary": (bytes(range(256)), "no XML"),
    "entities": (BOMB, "DTD or entities"),
    "external": (b'<!DOCTYPE s SYSTEM "file:///etc/passwd"><system version="1"/>', "DTD or entities"),
    "graphs": (b'<graphs version="1"/>', "NCCL_TOPO_DUMP_FILE"),
    "another root": (b"<html/>", "expected <system>"),
    "another version": (b'<system version="7">' + CPU + b"</system>", "version 7"),
    "no CPU": (b'<system version="1"/>', "without a <cpu>"),
    "too deep": (b'<system version="1"><cpu>' + b"<pci>" * 80 + b"</pci>" * 80 + b"</cpu></system>", "levels"),
    "too many": (b'<system version="1"><cpu>' + b"<pci/>" * 70_000 + b"</cpu></system>", "elements"),
    "another encoding": (b"<?xml version='1.0' encoding='klingon'?><system version='1'/>", "encoding"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_topology_is_refused_by_name(case: str) -> None:
    text, words = REFUSED[case]
    with pytest.raises(InputError, match=words):
        parsed(text, name="box.xml")


def test_an_absent_or_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "absent.xml")
    (tmp_path / "huge.xml").write_bytes(b" " * (17 << 20))
    with pytest.raises(InputError, match="bytes"):
        read(tmp_path / "huge.xml")


def box(inside: str, cpu: str = 'numaid="0" arch="x86_64" vendor="AuthenticAMD"') -> Tag:
    return parsed(f'<system version="1"><cpu {cpu}>{inside}</cpu></system>'.encode())


def test_a_file_without_gpus_gets_them_from_pci_ids() -> None:
    ids = 'vendor="0x10de" device="0x2330" subsystem_vendor="0x10de" subsystem_device="0x16c1"'
    cards = "".join(boxes.card(boxes.bus(bus, 0), f'class="0x030200" {ids}', "") for bus in (0x30, 0x10))
    tree, said = filled(box(cards))
    gpus = [card.children[0].attributes for card in tree.children[0].children]
    assert [(gpu["dev"], gpu["sm"]) for gpu in gpus] == [("1", "90"), ("0", "90")]      # numbered by address
    assert "H100 SXM5 80 GB by their PCI id, each with 18 NVLinks to NVSwitch" in said[0]
    assert graphs(box(cards)).graphs["nvls"].channels == 2


def test_gpus_that_nobody_can_tell_are_refused() -> None:
    with pytest.raises(InputError, match="name the box, such as 8xH100"):
        filled(box(boxes.card(boxes.bus(1, 0), "0x030200", "")))
    mesh = 'class="0x030200" vendor="0x10de" device="0x1db1"'
    with pytest.raises(InputError, match="how its V100 SXM2 16 GB are joined"):
        filled(box(boxes.card(boxes.bus(1, 0), mesh, "")))


def test_attributes_that_old_files_lack_are_assumed_and_said() -> None:
    inside = ('<pci busid="0000:01:00.0" class="0x030200"><gpu dev="0" sm="80"/></pci>'
              '<pci busid="0000:02:00.0" class="0x030200"><gpu dev="1" sm="80"/></pci>')
    found = graphs(box(inside, 'arch="x86_64" vendor="AuthenticAMD"'))
    assert found.graphs["ring"].channels > 0
    assert [word for word in ("no ranks", "without gdr", "without link_width", "without numaid")
            if not any(word in note for note in found.notes)] == []


def test_gpus_of_nvswitch_boxes_without_nvlink_are_said_to_lack_it() -> None:
    def without(tag: Tag) -> Tag:
        return replace(tag, children=tuple(without(child) for child in tag.children if child.name != "nvlink"))

    whole = system_of(parse("8xH100"))
    assert filled(whole)[1] == ()
    tree, said = filled(without(whole))
    assert tree == without(whole)
    assert [words for words in said if "has no NVLink, which H100 SXM5 80 GB usually has" in words] == list(said)
    assert filled(system_of(parse("8xL40S")))[1] == ()


def test_a_whole_dump_stays_as_it_is() -> None:
    for name in ("h100", "tray-gb200", "flat-h100", "halves"):
        tree = parsed(boxes.BOXES[name].encode())
        assert filled(tree) == (tree, ())


def test_real_dumps_are_read() -> None:
    tree = read(shared("comm/ibm_vpc_h100_topo.xml"))
    assert (count(tree, "gpu"), count(tree, "net")) == (8, 8)


# ---- from the catalog ----

def test_every_node_of_the_catalog_has_a_tree_that_nccl_takes() -> None:
    for node in catalog():
        tree = system_of(parse(f"1x{node.gpus}x{node.key}"))
        assert (count(tree, "gpu"), count(tree, "net")) == (node.gpus, node.nics), node.key
        assert filled(tree) == (tree, ())


def test_trays_of_one_domain_are_one_tree() -> None:
    tree = system_of(parse("72xGB200"))
    assert (count(tree, "gpu"), count(tree, "cpu"), count(tree, "c2c")) == (72, 36, 72)
    assert len({cpu.attributes["host_hash"] for cpu in tree.children}) == 18


def test_only_gpus_that_take_part_are_in_the_tree() -> None:
    tree = system_of(parse("2x4xH100"))
    assert (count(tree, "gpu"), count(tree, "net")) == (4, 8)


def test_the_catalog_gives_the_graphs_of_a_dump() -> None:
    """Our own box of HGX shape, and the catalog's: the same graphs."""
    dump = graphs(parsed(boxes.BOXES["h100"].encode()), nodes=2).graphs
    named = graphs(system_of(parse("2x8xH100")), nodes=2).graphs
    assert {name: (one.pattern, one.channels, one.bw_intra, one.bw_inter) for name, one in dump.items()} == {
        name: (one.pattern, one.channels, one.bw_intra, one.bw_inter) for name, one in named.items()}


def test_free_text_of_a_file_is_never_shown() -> None:
    secret = "token-hf_ab cd"
    text = boxes.BOXES["a100-1-nic"].replace("mlx5_0", secret)
    found = graphs(parsed(text.encode()), nodes=2)
    assert secret not in str(found)
    text = boxes.BOXES["two-amd"].replace('busid="0000:10', f'busid="{secret}').replace(' sm="86"', "")
    damaged = parsed(text.encode())
    with pytest.raises(InputError) as error:
        graphs(damaged)
    assert secret not in str(error.value)
