"""Make the tables of docs/clusters.md from the catalog.

    python docs/make_clusters.py
"""

from __future__ import annotations

from pathlib import Path

from sublight.cluster import Node, catalog

PAGE = Path(__file__).parent / "clusters.md"
BEGIN, END = "<!-- {}: made by docs/make_clusters.py -->", "<!-- end -->"


def nodes() -> str:
    """What each node has."""
    rows = ["| key | node | GPUs | NVLink | domain | ports, Gbit/s | PCIe, GB/s | GPUs a switch | CPU |",
            "|:--|:--|--:|:--|--:|:--|--:|--:|:--|"]
    rows += [f"| `{n.key}` | {n.title} | {n.gpus} | {_nvlink(n)} | {n.domain} | "
             f"{n.nics} x {n.nic_bytes_per_second * 8 / 1e9:g} | {n.pcie_bytes_per_second / 1e9:g} | "
             f"{n.gpus_per_switch or 'at the CPU'} | {_cpu(n)} |" for n in catalog()]
    return "\n".join(rows)


def _nvlink(n: Node) -> str:
    return "–" if n.nvlink == "none" else f"{n.links} links, {n.nvlink}"


def _cpu(n: Node) -> str:
    vendor = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}.get(n.cpu.get("vendor", ""), "Arm")
    c2c = f", C2C {n.c2c_bytes_per_second / 1e9:g} GB/s" if n.c2c_bytes_per_second else ""
    return vendor + (f" {n.cpu['familyid']}/{n.cpu['modelid']}" if "modelid" in n.cpu else "") + c2c


def sources() -> str:
    """Where each number is from."""
    rows = ["| key | what | source |", "|:--|:--|:--|"]
    rows += [f"| `{n.key}` | {what} | {source} |" for n in catalog() for what, source in n.sources.items()]
    return "\n".join(rows)


def made(page: str) -> str:
    """The page with its tables made anew."""
    for name, text in (("nodes", nodes()), ("sources", sources())):
        before, _, rest = page.partition(BEGIN.format(name))
        page = f"{before}{BEGIN.format(name)}\n\n{text}\n\n{END}{rest.partition(END)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text("utf-8")), "utf-8")
