"""The checks of a topology: each finds its planted fault and nothing else, none finds anything in a healthy box."""

from __future__ import annotations

import json
import pkgutil
import xml.etree.ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import loaded, shared
from hypothesis import given, settings
from hypothesis import strategies as st

from sublight.cluster import catalog
from sublight.comm.topology import lint as package
from sublight.comm.topology import parts
from sublight.comm.topology.box import Box, box_of
from sublight.comm.topology.lint import CHECKS, lint
from sublight.comm.topology.parts import between_cpus_gb_per_second, nvlink_gb_per_second, part, pcie_link
from sublight.comm.topology.xml import Tag
from sublight.device import by_key
from sublight.errors import InputError
from sublight.finding import Finding
from sublight.show.topology import shown

ROOT = Path(__file__).parent.parent
CODES = [check.CODE for check in CHECKS]


files = loaded(ROOT / "docs/examples/make_topologies.py")


def tag(element: Any) -> Tag:
    """Of an element of the script, or of the standard library's parser."""
    attributes = element.attributes if hasattr(element, "attributes") else element.attrib
    name = element.name if hasattr(element, "name") else element.tag
    return Tag(name, dict(attributes), tuple(tag(child) for child in getattr(element, "children", element)))


def box(name: str) -> Box:
    return box_of(tag(getattr(files, name)()))


def codes(found: Box) -> list[str]:
    return [finding.code for finding in lint(found)]


def only(found: Box) -> Finding:
    finding, = lint(found)
    return finding


def public(text: str) -> Box:
    return box_of(tag(xml.etree.ElementTree.fromstring(text)))


# ---- one fault each


def test_a_healthy_box_has_no_finding() -> None:
    assert codes(box("h200")) == []


@pytest.mark.parametrize("code", CODES)
def test_a_planted_fault_is_found_and_nothing_else(code: str) -> None:
    finding = only(box(code.lower()))
    assert finding.code == code
    assert "0000:" in finding.claim                       # names the element by its bus id
    assert finding.evidence
    assert finding.action
    assert finding.confidence in ("high", "medium", "low")
    assert finding.gain_ns_at_most is None


def test_every_check_is_registered_with_a_code_of_its_own() -> None:
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert {str(check.__name__).rsplit(".", 1)[1] for check in CHECKS} == modules      # type: ignore[attr-defined]
    assert [f"SL{401 + i}" for i in range(len(CHECKS))] == CODES


@pytest.mark.parametrize("check", CHECKS, ids=CODES)
def test_every_check_has_a_page(check: Any) -> None:
    page = (ROOT / f"docs/findings/{check.CODE}.md").read_text("utf-8")
    assert page.split("\n", 1)[0] == f"# {check.CODE}: {check.TITLE}"
    assert check.CODE.lower() + ".xml" in page
    for heading in ("**Fires**", "## Example", "## What to do", "## What it cannot tell"):
        assert heading in page


def test_the_files_of_the_pages_are_what_their_script_writes(tmp_path: Path) -> None:
    files.main(tmp_path)
    assert {p.name: p.read_text() for p in tmp_path.glob("*.xml")} == {
        p.name: p.read_text() for p in (ROOT / "docs/examples").glob("*.xml")}


# ---- the virtual machine that lost 94 %: NVIDIA/nccl-tests issue 256


def test_the_virtual_machine_shows_its_four_traits() -> None:
    assert codes(box("vm_h200")) == ["SL402", "SL403", "SL404", "SL407"]
    switch, numa, link, nvlink = lint(box("vm_h200"))
    assert switch.claim.startswith("GPU 0 (0000:01:00.0) and 7 more: data for the nearest port goes through the CPU")
    assert numa.evidence[0] == "8 GPUs and 8 network ports under numaid -1 or none"
    assert link.evidence[0] == "GPU 0 (0000:01:00.0): 16 GT/s, H200 SXM 141 GB takes 32 GT/s"
    assert nvlink.evidence[0] == "GPU 0 (0000:01:00.0): 18 links to an end that the driver hides"


# ---- more faults by hand


def changed(name: str, at: str, **attributes: str | None) -> Box:
    """A box with the attributes of one element changed: that with a bus id, or inside it."""

    def walk(item: Tag, inside: bool) -> Tag:
        here = inside or item.attributes.get("busid") == at
        own = item.attributes
        if here and any(key in own for key in attributes):
            merged = {**own, **attributes}
            item = replace(item, attributes={k: v for k, v in merged.items() if v is not None})
        return replace(item, children=tuple(walk(child, here) for child in item.children))

    return box_of(walk(tag(getattr(files, name)()), False))


@pytest.mark.parametrize(("at", "attributes", "said"), [
    ("0000:21:00.0", {"link_speed": "16.0 GT/s PCIe"}, "16 GT/s, H200 SXM 141 GB takes 32 GT/s"),
    ("0000:21:00.0", {"link_width": "4"}, "x4, H200 SXM 141 GB takes x16"),
])
def test_slow_links_of_a_gpu(at: str, attributes: dict[str, str], said: str) -> None:
    finding = only(changed("h200", at, **attributes))
    assert finding.code == "SL404"
    assert said in finding.evidence[0]


@pytest.mark.parametrize(("attributes", "said"), [
    ({"link_width": "8"}, "32 GT/s x8: 31.5 GB/s for a port of 50 GB/s"),
    ({"link_speed": "16.0 GT/s PCIe"}, "16 GT/s x16: 31.5 GB/s for a port of 50 GB/s"),
])
def test_a_slow_link_of_a_port_sends_its_gpu_elsewhere(attributes: dict[str, str], said: str) -> None:
    """NCCL looks at bandwidth before distance: 24 GB/s close by lose against 48 GB/s through the CPU."""
    far, slow = lint(changed("h200", "0000:22:00.0", **attributes))
    assert (far.code, slow.code) == ("SL401", "SL404")
    assert far.evidence == ("GPU 1 (0000:21:00.0): PHB to NIC mlx5_0 (0000:12:00.0), NCCL counts 48.0 GB/s",)
    assert said in slow.evidence[0]


def test_a_port_that_its_link_can_feed_is_not_slow() -> None:
    found = changed("h200", "0000:22:00.0", link_speed="16.0 GT/s PCIe", speed="200000")
    assert [f.evidence[0] for f in lint(found) if f.code == "SL404"] == [
        "NIC mlx5_1 (0000:22:00.0): 16 GT/s x16, others of its kind have 63 GB/s"]


@pytest.mark.parametrize(("attributes", "said"), [
    ({"link_width": "0"}, "reads 32 GT/s and takes x16 for a width of 0 or none: 48 GB/s"),
    ({"link_speed": ""}, "takes 8 GT/s for an unknown speed and reads x16: 12 GB/s"),
    ({"link_speed": "16.0 GT/s"}, "takes 8 GT/s for an unknown speed and reads x16: 12 GB/s"),   # NCCL's own fallback
    ({"link_speed": "Unknown", "link_width": "255x"}, "takes 8 GT/s"),
])
def test_unread_links(attributes: dict[str, str], said: str) -> None:
    finding = only(changed("h200", "0000:21:00.0", **attributes))
    assert finding.code == "SL405"
    assert said in finding.evidence[0]


def test_a_link_that_the_file_leaves_out_is_no_fault() -> None:
    assert codes(changed("h200", "0000:21:00.0", link_speed=None, link_width=None)) == []


def test_links_to_the_gpu_itself_and_to_lost_gpus() -> None:
    itself = changed("h200", "0000:21:00.0", target="0000:21:00.0", tclass="0x030200")
    finding = only(itself)
    assert (finding.code, finding.confidence) == ("SL407", "high")
    assert finding.evidence == ("GPU 1 (0000:21:00.0): 18 links end at the GPU itself",)
    lost = only(changed("h200", "0000:21:00.0", target="0000:99:00.0", tclass="0x030200"))
    assert lost.evidence == ("GPU 1 (0000:21:00.0): 18 links end at a GPU that is not in the file",)
    assert codes(changed("h200", "0000:21:00.0", target="0000:31:00.0", tclass="0x030200")) == []


def test_a_hidden_end_weighs_less_where_all_are_hidden() -> None:
    def confidence(name: str) -> str:
        return next(f.confidence for f in lint(box(name)) if f.code == "SL407")

    assert (confidence("sl407"), confidence("vm_h200")) == ("medium", "low")


def test_gpus_that_crowd_on_a_port_while_another_idles() -> None:
    crowded = public("""<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD">
      <pci busid="0000:01:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
        <pci busid="0000:02:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
        <pci busid="0000:03:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
        <pci busid="0000:04:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/></pci>
      <pci busid="0000:05:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
        <pci busid="0000:06:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/></pci>
      </cpu></system>""")
    finding = only(crowded)
    assert (finding.code, finding.confidence) == ("SL410", "medium")
    assert "NIC 0000:06:00.0 serve none" in finding.evidence[0]


def test_a_folded_broadcom_switch_does_not_swap_ports() -> None:
    """The two halves of one switch are one to NCCL, if it says whose they are."""
    owned = replace_ids(tag(files.sl410()), "0xa096")
    assert codes(box_of(owned)) == []


def replace_ids(item: Tag, subsystem: str) -> Tag:
    a = dict(item.attributes)
    if a.get("class") == "0x060400":
        a |= {"device": "0xc010", "subsystem_vendor": "0x1000", "subsystem_device": subsystem}
    return Tag(item.name, a, tuple(replace_ids(child, subsystem) for child in item.children))


def test_a_guid_of_two_cards_is_a_duplicate_and_that_of_two_ports_is_not() -> None:
    assert codes(changed("h200", "0000:22:00.0", guid="0x1")) == ["SL414"]
    assert codes(changed("h200", "0000:22:00.0", guid="0x1", port="2")) == []
    assert codes(changed("h200", "0000:22:00.0", busid="0000:12:00.0", guid="0x9")) == ["SL414"]


def test_gaps_in_the_ranks_are_told_with_doubt() -> None:
    finding = only(changed("h200", "0000:81:00.0", rank="9"))
    assert (finding.code, finding.confidence) == ("SL415", "low")
    assert finding.evidence == ("no GPU with rank 7, 8",)


def test_a_port_without_a_rate_gets_nccls_own() -> None:
    finding = next(f for f in lint(changed("h200", "0000:22:00.0", speed="-1")) if f.code == "SL412")
    assert finding.claim == "NIC mlx5_1 (0000:22:00.0): no rate that NCCL reads: it takes 10 Gbit/s"


# ---- files for virtual machines, as providers publish them (shapes of Azure/azhpc-images and nebius/nccl-topology)

INPUT = """<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
  <pci busid="ffff:ff:01.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16"
       vendor="0x0000" device="0x0000">
    <pci busid="0001:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
    <pci busid="0101:00:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/></pci>
  <pci busid="ffff:ff:02.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16"
       vendor="0x0000" device="0x0000">
    <pci busid="0002:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
    <pci busid="0102:00:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/></pci></cpu></system>"""


def test_a_file_that_is_an_input_is_no_fault() -> None:
    found = public(INPUT)
    assert (len(found.gpus), len(found.ports)) == (2, 2)
    assert codes(found) == []
    assert "NCCL asks the driver for it at run time" in shown(found, None, (), "x", "table")


def test_a_desk_machine_with_c2c_is_read() -> None:
    """The shape of a GB10 dump (NVIDIA/nccl pull request 2202): no NUMA number, C2C, an idle PCIe link."""
    found = public("""<system version="1"><cpu host_hash="0x1" numaid="-1" arch="arm64">
      <pci busid="000f:01:00.0" class="0x030000" vendor="0x10de" device="0x2e12" link_speed="2.5 GT/s PCIe"
       link_width="16">
        <gpu dev="0" sm="121" rank="0" gdr="0"><c2c bw="43125" count="8"/></gpu></pci></cpu></system>""")
    assert found.gpus[0].c2c_gb_per_second == 345.0
    assert codes(found) == ["SL403", "SL411"]
    assert lint(found)[0].confidence == "low"


# ---- shared files


@pytest.mark.parametrize(("name", "expected"), [
    ("synthetic_h100_8.xml", []), ("synthetic_a100_8.xml", []), ("ibm_vpc_h100_topo.xml", ["SL405", "SL406"]),
])
def test_shared_files(name: str, expected: list[str]) -> None:
    root = xml.etree.ElementTree.parse(shared(f"comm/{name}")).getroot()
    assert codes(box_of(tag(root))) == expected


# ---- parts and rates


@pytest.mark.parametrize(("speed", "width", "gb"), [
    ("32.0 GT/s PCIe", "16", 48.0), ("16.0 GT/s PCIe", "16", 24.0), ("16 GT/s", "8", 12.0),
    ("8.0 GT/s PCIe", "16", 12.0),
    ("64.0 GT/s PCIe", "16", 96.0), ("2.5 GT/s PCIe", "1", 0.1875), ("", "0", 12.0), ("nonsense", "16", 12.0),
])
def test_what_nccl_takes_a_link_to_carry(speed: str, width: str, gb: float) -> None:
    assert pcie_link({"link_speed": speed, "link_width": width}).nccl_gb_per_second == gb


@pytest.mark.parametrize(("capability", "gb"), [
    (60, 18.0), (70, 20.0), (80, 20.0), (86, 12.0), (89, 20.0), (90, 20.6), (100, 40.1), (103, 40.1),
])
def test_what_nccl_takes_an_nvlink_to_carry(capability: int, gb: float) -> None:
    assert nvlink_gb_per_second(capability) == gb


@pytest.mark.parametrize(("cpu", "gb"), [
    ({"arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6", "modelid": "207"}, 40.0),
    ({"arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6", "modelid": "173"}, 22.0),
    ({"arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6", "modelid": "106"}, 10.0),
    ({"arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6", "modelid": "79"}, 6.0),
    ({"arch": "x86_64", "vendor": "AuthenticAMD", "familyid": "143", "modelid": "49"}, 16.0),
    ({"arch": "arm64"}, 6.0),
])
def test_what_nccl_takes_the_link_between_cpus_to_carry(cpu: dict[str, str], gb: float) -> None:
    assert between_cpus_gb_per_second(cpu) == gb


def test_the_parts_agree_with_the_devices_and_the_nodes() -> None:
    per_link = {"v100": 25e9, "a100": 25e9, "h100": 25e9, "h200": 25e9, "h800": 25e9, "h20": 25e9, "b200": 50e9,
                "gb200": 50e9, "b300": 50e9, "gb300": 50e9}
    gpus = parts._tables()["gpus"]
    for key, row in gpus.items():
        found = part(*("0x" + half for half in key.split(":")))
        assert found is not None
        assert found.device is not None
        device = by_key(found.device)
        if found.nvlinks:
            assert found.nvlinks * per_link[found.device.split("-")[0]] == device.limits.link_bytes_per_second, row
    for node in catalog():
        links = {row["nvlinks"] for row in gpus.values() if row["device"] == node.device.key}
        assert links == {node.links}, node.key
    assert part("0x10de", "0xffff") is None
    assert part("10de", "2330") is None


# ---- hostile files


def elements(item: Tag) -> Iterator[Tag]:
    yield item
    for child in item.children:
        yield from elements(child)


SECRET = "hunter2 <b>$(rm)"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_a_file_says_is_read_and_shown_without_its_texts(data: st.DataObject) -> None:
    """Any attribute may be absent or nonsense: no crash, and no text of the file in the output."""
    name = data.draw(st.sampled_from(("h200", "vm_h200", "sl401", "sl410")))
    values = st.sampled_from((None, SECRET, "", "-1", "0", "99999999999999999999", "0x", "nan", "²"))

    def spoil(item: Tag) -> Tag:
        a = dict(item.attributes)
        for key in list(a):
            if data.draw(st.integers(0, 9)) == 0:
                value = data.draw(values)
                a.pop(key) if value is None else a.update({key: value})
        return Tag(item.name, a, tuple(spoil(child) for child in item.children))

    found = box_of(spoil(tag(getattr(files, name)())))
    for form in ("table", "md", "json"):
        text = shown(found, None, lint(found), "x", form)
        assert "hunter2" not in text
        assert form != "json" or json.loads(text)["title"] == "x"


def test_more_devices_than_nccl_takes_are_refused() -> None:
    device = tag(files.nic("0000:22:00.0", 1))
    crowd = Tag("system", {"version": "1"}, (Tag("cpu", {"numaid": "0"}, (device,) * 641),))
    with pytest.raises(InputError, match="641 network ports in one host; expected at most 640"):
        box_of(crowd)


def test_guids_and_host_hashes_are_not_shown() -> None:
    found = changed("h200", "0000:22:00.0", guid="0xfeedbeef00000001")
    assert "feedbeef" not in "".join(shown(found, None, lint(found), "x", form) for form in ("table", "md", "json"))


def test_long_lists_are_cut() -> None:
    link = next(f for f in lint(box("vm_h200")) if f.code == "SL404")
    assert len(link.evidence) == 8
    assert link.evidence[-1] == "and 9 more"
