"""This file knows about a topology on the screen: as text for a terminal, as markdown, as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from math import isinf
from typing import Any

from sublight.comm.topology.box import KINDS, Box, Gpu, Path, Port
from sublight.comm.topology.draw import Distances, distances, short, summary, tree
from sublight.comm.topology.fabric import Fabric
from sublight.finding import Finding

WIDTH = 80
MOST_EVIDENCE = 4
MEANING = {
    "PIX": "below one PCIe switch", "PXB": "over several PCIe switches", "P2C": "over C2C and the GPU's CPU",
    "PHB": "through the CPU", "SYS": "through another CPU",
}


def text(box: Box, fabric: Fabric | None, findings: tuple[Finding, ...], title: str) -> str:
    """The topology, 80 columns wide: tree, table of distances, fabric, findings."""
    head = [line for said in summary(box) for line in _wrapped(said, "", "  ")]
    out = [title, *head, "", *map(str, tree(box)), ""]
    if box.gpus and box.ports:
        out += [*_table(distances(box)), ""]
    if fabric is not None:
        out += [*fabric_lines(fabric), ""]
    out += list(_findings(findings))
    return "\n".join(out) + "\n"


def _table(d: Distances) -> Iterator[str]:
    """Rows of GPUs; a star marks the ports that NCCL prefers."""
    left = max(len(name) for name in d.gpus)
    cells = [d.ports, *(tuple(map(_cell, row, near)) for row, near in zip(d.paths, d.nearest, strict=True))]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    start = 0
    while start < len(widths):
        end = start + 1
        while end < len(widths) and left + sum(1 + width for width in widths[start:end + 1]) <= WIDTH:
            end += 1
        for name, row in zip(("", *d.gpus), cells, strict=True):
            columns = zip(row[start:end], widths[start:end], strict=True)
            yield f"{name:<{left}} {' '.join(f'{cell:<{width}}' for cell, width in columns)}".rstrip()
        start = end
    yield from textwrap.wrap(legend(d), WIDTH)


def legend(d: Distances) -> str:
    """What the classes of a table mean."""
    seen = {path.kind for row in d.paths for path in row}
    return "* nearest, as NCCL prefers them; number: GB/s. " + "; ".join(
        f"{kind} {MEANING[kind]}" for kind in KINDS if kind in seen)


def _cell(path: Path, nearest: bool) -> str:
    value = "" if isinf(path.gb_per_second) else f" {short(path.gb_per_second)}"
    return f"{path.kind}{value}{'*' if nearest else ''}"


def fabric_lines(f: Fabric) -> list[str]:
    """The network between the nodes."""
    up = f", {_gb(f.leaf_up)} up" if f.leaf_up else ""
    most = "up to " if f.ranks % f.ranks_per_domain else ""
    return [
        f"Fabric: {f.kind}, {'rail-optimised' if f.layout == 'rail' else f.layout}, "
        f"{_many(f.domains, 'domain')} of {most}{f.ranks_per_domain} ranks",
        f"  {_many(f.leaves, 'leaf', 'leaves')}{f' on {f.rails} rails' if f.rails > 1 else ''}, "
        f"up to {_many(f.nodes_under_leaf, 'node')} each: {_gb(f.leaf_down)} down{up}",
        f"  spine: {f.spine}; oversubscription {f.oversubscription:g}:1",
        f"  out of a node {_gb(f.node)}; bisection at least {_gb(f.bisection)} each way",
    ]


def _gb(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:,.0f} GB/s"


def _many(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def _findings(findings: tuple[Finding, ...]) -> Iterator[str]:
    if not findings:
        yield "Lint: nothing found."
        return
    for i, f in enumerate(findings):
        if i:
            yield ""
        yield f"{f.code} {f.title} ({f.confidence} confidence)"
        yield from _wrapped(f"{f.claim}.", "  ", "  ")
        for line in f.evidence[:MOST_EVIDENCE]:
            yield from _wrapped(line, "  · ", "    ")
        if len(f.evidence) > MOST_EVIDENCE:
            yield f"  · and {len(f.evidence) - MOST_EVIDENCE} more lines: --format json"
        yield from _wrapped(f"{f.action}.", "  → ", "    ")
        for line in f.caveats:
            yield from _wrapped(line, "  but ", "      ")


def _wrapped(said: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(said, WIDTH, initial_indent=first, subsequent_indent=others, break_long_words=False,
                         break_on_hyphens=False)


def markdown(box: Box, fabric: Fabric | None, findings: tuple[Finding, ...], title: str) -> str:
    """The same for an issue: the tree as a block, the distances as a table, the findings as a list."""
    out = [f"**{title}**: {'; '.join(summary(box))}", "", "```", *map(str, tree(box)), "```", ""]
    if box.gpus and box.ports:
        d = distances(box)
        out += ["| | " + " | ".join(d.ports) + " |", "|:--" * (len(d.ports) + 1) + "|"]
        out += [f"| {name} | " + " | ".join(map(_cell, row, near)).replace("*", r"\*") + " |"
                for name, row, near in zip(d.gpus, d.paths, d.nearest, strict=True)]
        out += ["", legend(d).replace("*", r"\*"), ""]
    if fabric is not None:
        first, *rest = fabric_lines(fabric)
        out += [first, "", *(f"- {line.strip()}" for line in rest), ""]
    out += [f"- **{f.code} {f.title}** ({f.confidence} confidence): {f.claim}. {f.action}." for f in findings]
    return "\n".join(out if findings else [*out, "Lint: nothing found."]) + "\n"


def document(box: Box, fabric: Fabric | None, findings: tuple[Finding, ...], title: str) -> dict[str, Any]:
    """Everything that is known, with names of fields that carry their unit."""
    units = dict.fromkeys(("leaf_down", "leaf_up", "node", "bisection"), "_bytes_per_second")
    names = None if fabric is None else {
        name + units.get(name, ""): getattr(fabric, name) for name in Fabric.__dataclass_fields__}
    return {
        "title": title,
        "cpus": [{"numa": cpu.numa, "arch": cpu.arch, "vendor": cpu.vendor or None,
                  "between_gb_per_second": cpu.between_gb_per_second} for cpu in box.cpus],
        "switches": [{"bus": s.bus, "part": s.part.title if s.part else None, "link": str(s.link),
                      "nccl_gb_per_second": s.link.nccl_gb_per_second} for s in box.switches],
        "gpus": [_gpu(gpu) for gpu in box.gpus],
        "ports": [_port(port) for port in box.ports],
        "paths": [[{"class": path.kind, "gb_per_second": _finite(path.gb_per_second), "nearest": near}
                   for path, near in zip(row, nearest, strict=True)]
                  for d in (distances(box),) for row, nearest in zip(d.paths, d.nearest, strict=True)],
        "fabric": names,
        "findings": [{"code": f.code, "title": f.title, "claim": f.claim, "evidence": list(f.evidence),
                      "action": f.action, "confidence": f.confidence, "caveats": list(f.caveats)} for f in findings],
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {"bus": gpu.slot.bus, "part": gpu.slot.part.title if gpu.slot.part else None, "dev": gpu.dev,
            "rank": gpu.rank, "sm": gpu.sm, "gdr": gpu.gdr,
            "link": None if gpu.slot.link is None else str(gpu.slot.link), "nvlinks": gpu.links,
            "c2c_gb_per_second": gpu.c2c_gb_per_second or None, "above": [switch.bus for switch in gpu.slot.above]}


def _port(port: Port) -> dict[str, Any]:
    return {"bus": port.slot.bus or None, "part": port.slot.part.title if port.slot.part else None, "name": port.name,
            "dev": port.dev, "gbit_per_second": port.gbit, "gdr": port.gdr,
            "link": None if port.slot.link is None else str(port.slot.link),
            "above": [switch.bus for switch in port.slot.above]}


def _finite(value: float) -> float | None:
    return None if isinf(value) else value


def shown(box: Box, fabric: Fabric | None, findings: tuple[Finding, ...], title: str, form: str) -> str:
    """The topology as table, json or md."""
    if form == "json":
        return json.dumps(document(box, fabric, findings, title), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return (markdown if form == "md" else text)(box, fabric, findings, title)
