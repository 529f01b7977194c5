"""This file knows about NCCL's topology XML: a file becomes a small tree of our own, or one clear error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sublight.errors import InputError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MOST_BYTES = 16 << 20                    # an NVL72 dump has 0.3 MB
MOST_TAGS = 65_536
MOST_DEPTH = 64
KNOWN = {"system": {"cpu"}, "cpu": {"pci", "nic"}, "pci": {"pci", "gpu", "nic", "pcilink"}, "nic": {"net"},
         "gpu": {"nvlink", "c2c"}, "net": set(), "nvlink": set(), "c2c": set(), "pcilink": set()}


@dataclass(frozen=True, slots=True)
class Tag:
    """An element: its name, its attributes as written, what stands inside it."""

    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    children: tuple[Tag, ...] = ()


def read(path: str | Path) -> Tag:
    """The tree of a topology file as NCCL_TOPO_DUMP_FILE writes it. What NCCL ignores is left out.

    Raises InputError for what is no such file: unreadable, not XML, with a DTD or entities, too large or too deep,
    another root, another version, no CPU.
    """
    try:
        size = Path(path).stat().st_size
        if size > MOST_BYTES:
            raise InputError(f"{path}: {size:,} bytes; a topology has at most {MOST_BYTES:,}")
        text = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    return parsed(text, name=str(path))


def parsed(text: bytes, *, name: str = "the topology") -> Tag:
    """As `read`, from bytes."""
    root = _element(text, name)
    if root.tag == "graphs":
        raise InputError(f"{name}: a file of graphs (NCCL_GRAPH_DUMP_FILE); expected a topology (NCCL_TOPO_DUMP_FILE)")
    if root.tag != "system":
        raise InputError(f"{name}: its root is <{_short(str(root.tag))}>; expected <system>, as NCCL_TOPO_DUMP_FILE "
                         "writes")
    if root.get("version", "1").strip() != "1":
        raise InputError(f"{name}: topology version {_short(root.get('version', ''))}; NCCL 2.30.7 reads version 1")
    count = [0]
    tree = _tag(root, name, count, 0)
    if not tree.children:
        raise InputError(f"{name}: a <system> without a <cpu>; expected a dump of NCCL_TOPO_DUMP_FILE")
    return tree


def _element(text: bytes, name: str) -> Element:
    from xml.etree.ElementTree import ParseError

    from defusedxml import ElementTree
    from defusedxml.common import DefusedXmlException

    if not text.strip():
        raise InputError(f"{name}: empty; expected a topology as NCCL_TOPO_DUMP_FILE writes it")
    if len(text) > MOST_BYTES:
        raise InputError(f"{name}: {len(text):,} bytes; a topology has at most {MOST_BYTES:,}")
    try:
        root: Element = ElementTree.fromstring(text, forbid_dtd=True)
    except DefusedXmlException:
        raise InputError(f"{name}: has a DTD or entities, which no topology needs; refused") from None
    except ParseError as error:
        line, column = error.position
        raise InputError(f"{name}: no XML, or cut off: line {line}, column {column}; expected a topology as "
                         "NCCL_TOPO_DUMP_FILE writes it") from None
    except (ValueError, LookupError):
        raise InputError(f"{name}: text in an encoding that cannot be read; expected UTF-8") from None
    return root


def _tag(element: Element, name: str, count: list[int], depth: int) -> Tag:
    count[0] += 1
    if count[0] > MOST_TAGS or depth > MOST_DEPTH:
        raise InputError(f"{name}: more than {MOST_TAGS:,} elements or {MOST_DEPTH} levels; no topology has so many")
    wanted = KNOWN[str(element.tag)]
    children = tuple(_tag(child, name, count, depth + 1) for child in element
                     if isinstance(child.tag, str) and child.tag in wanted)
    return Tag(str(element.tag), dict(element.attrib), children)


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "…"
