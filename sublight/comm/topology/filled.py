"""This file knows about what a topology file leaves to the running NCCL, and what can be told without one.

Files that clouds install in their virtual machines name the cards and their places only; NCCL asks the driver for the
rest. Here the PCI id of a card says what GPU it is, and the catalog how such GPUs are joined. Each assumption is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from sublight.cluster import catalog
from sublight.comm.topology.box import bus_id
from sublight.comm.topology.parts import Part, part
from sublight.comm.topology.xml import Tag
from sublight.device import by_key
from sublight.errors import InputError

GPU, NETWORK, NVSWITCH = "0x03", "0x02", "0x068000"      # beginnings of PCI classes


def filled(tree: Tag) -> tuple[Tag, tuple[str, ...]]:
    """The tree with what NCCL needs, and sentences about what was assumed. A whole dump comes back as it is.

    Raises InputError where GPUs cannot be told: no rank, and a PCI id that the catalog does not have.
    """
    said: list[str] = []
    cards = [tag for tag in _walk(tree) if _is_card(tag, GPU, "gpu")]
    if not any(tag.name == "gpu" for tag in _walk(tree)) and cards:
        tree = _with_gpus(tree, cards, said)
    elif cards:
        said.append(f"{len(cards)} cards of a GPU's class without <gpu> take no part, as in a running NCCL.")
    said += _without_nvlink(tree)
    tree = _ranked(tree, said)
    tree = _changed(tree, lambda tag: _completed(tag, said))
    bare = sum(_is_card(tag, NETWORK, "nic") for tag in _walk(tree))
    if bare:
        said.append(f"{bare} network cards without <net> are left out: the file does not say their rate.")
    return tree, tuple(dict.fromkeys(said))


def _walk(tag: Tag) -> Iterator[Tag]:
    yield tag
    for child in tag.children:
        yield from _walk(child)


def _changed(tag: Tag, change: Callable[[Tag], Tag]) -> Tag:
    return change(replace(tag, children=tuple(_changed(child, change) for child in tag.children)))


def _is_card(tag: Tag, kind: str, inside: str) -> bool:
    return (tag.name == "pci" and tag.attributes.get("class", "").startswith(kind)
            and not any(child.name == inside for child in tag.children))


def _with_gpus(tree: Tag, cards: list[Tag], said: list[str]) -> Tag:
    """A <gpu> in each card of a GPU's class, numbered by address as the driver does."""
    order = sorted((card.attributes.get("busid", "") for card in cards), key=lambda address: (len(address), address))
    parts = {card.attributes.get("busid", ""): _known(card) for card in cards}
    first = next(iter(parts.values()))
    joined = _by_switch(first)
    said.append(f"The file names no GPUs but {len(cards)} cards: taken as {first.title} by their PCI id"
                + (f", each with {first.nvlinks} NVLinks to NVSwitch." if joined else ", without NVLink."))

    def change(tag: Tag) -> Tag:
        if not _is_card(tag, GPU, "gpu"):
            return tag
        number = order.index(tag.attributes.get("busid", ""))
        switch = Tag("nvlink", {"target": "0000:f0:00.0", "count": str(first.nvlinks), "tclass": NVSWITCH})
        about = {"dev": str(number), "sm": str(_sm(parts[order[number]])), "rank": str(number), "gdr": "1"}
        return replace(tag, children=(*tag.children, Tag("gpu", about, (switch,) if joined else ())))

    return _changed(tree, change)


def _known(card: Tag) -> Part:
    found = part(card.attributes.get("vendor", ""), card.attributes.get("device", ""))
    if found is None or found.device is None:
        raise InputError(f"the card at {bus_id(card)} is a GPU without <gpu>, and its PCI id does not say which; "
                         "expected the dump of a running job (NCCL_TOPO_DUMP_FILE), or name the box, such as 8xH100")
    return found


def _sm(found: Part) -> int:
    capability = by_key(found.device or "").capability
    if capability is None:
        raise InputError(f"{found.title} has no compute capability in the catalog; give a dump of a running job")
    return capability[0] * 10 + capability[1]


def _by_switch(found: Part) -> bool:
    """Whether a node of the catalog joins such GPUs by NVSwitch. A mesh cannot be told from the card."""
    if not found.nvlinks:
        return False
    if _switched(found):
        return True
    raise InputError(f"the file does not say how its {found.title} are joined, and the catalog knows no NVSwitch for "
                     "them; expected the dump of a running job (NCCL_TOPO_DUMP_FILE)")


def _switched(found: Part) -> bool:
    return any(node.nvlink == "switch" and node.device.key == found.device for node in catalog())


def _without_nvlink(tree: Tag) -> list[str]:
    """GPUs that are built for NVSwitch, in a file without NVLink: of a job that had none, or written by hand."""
    if any(tag.name == "nvlink" for tag in _walk(tree)):
        return []
    cards = [tag for tag in _walk(tree) if tag.name == "pci" and any(child.name == "gpu" for child in tag.children)]
    known = [part(card.attributes.get("vendor", ""), card.attributes.get("device", "")) for card in cards]
    titles = dict.fromkeys(found.title for found in known if found is not None and _switched(found))
    if not titles:
        return []
    return [f"The file has no NVLink, which {', '.join(titles)} usually has: these figures are for PCIe. A job that "
            "reads the file (NCCL_TOPO_FILE) asks the driver for NVLink and may find it."]


def _ranked(tree: Tag, said: list[str]) -> Tag:
    """Ranks in the order of the file, where no GPU has one."""
    gpus = [tag for tag in _walk(tree) if tag.name == "gpu"]
    if not gpus or any("rank" in gpu.attributes for gpu in gpus):
        return tree
    said.append("The file gives no ranks: GPUs are numbered in its order.")
    numbers = iter(range(len(gpus)))
    return _changed(tree, lambda tag: replace(tag, attributes={**tag.attributes, "rank": str(next(numbers))})
                    if tag.name == "gpu" else tag)


def _completed(tag: Tag, said: list[str]) -> Tag:
    """Attributes that old files lack and NCCL asks the system for."""
    wanted: dict[str, str] = {}
    if tag.name == "gpu":
        wanted = {"gdr": "1", "dev": tag.attributes.get("rank", "0")}
    elif tag.name == "pci":
        wanted = {"link_width": "0", "link_speed": ""}
    elif tag.name == "cpu":
        wanted = {"numaid": "-1"}
    missing = {name: value for name, value in wanted.items() if name not in tag.attributes}
    meaning = {"gdr": "GPU Direct RDMA as possible", "dev": "the GPU's number as its rank", "link_width": "16 lanes",
               "link_speed": "8 GT/s, as for a text that NCCL does not know", "numaid": "one NUMA node"}
    said += [f"<{tag.name}> without {name}: taken as {meaning[name]}." for name in missing]
    return replace(tag, attributes={**tag.attributes, **missing}) if missing else tag
