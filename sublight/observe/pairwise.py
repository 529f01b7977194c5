"""This file knows about tables of pairwise results: CSV, a row for each test of some nodes, with an average bus
bandwidth.

Two layouts are read, found by their headings: `test,N,G,nodes,…,avg_bus_bw_GBs` as summaries of nccl-tests runs have it
(nodes as a host list, `gpu[001,003]`), and two columns with a node each. A row without a value is a failed measurement.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence

from sublight.errors import InputError
from sublight.observe.nccl_tests import COLLECTIVES, rail_in
from sublight.result import Placement, Result
from sublight.work import Message

NODES = ("nodes", "hosts", "nodelist", "hostlist")
FIRST = ("node_a", "node1", "node_1", "host1", "host_a", "a", "src", "source", "from", "src_node")
SECOND = ("node_b", "node2", "node_2", "host2", "host_b", "b", "dst", "destination", "to", "dst_node")
GPUS = ("g", "gpus", "gpus_per_node", "gpu_per_node", "ngpus", "ppn")
TESTS = ("test", "collective", "op", "benchmark")
RAILS = ("rail", "nic", "hca", "device", "gpu")
RATE = re.compile(r"(avg|average|mean)?.*(bus_?bw|bus_?bandwidth|algbw|bandwidth|bw)", re.I)
UNITS = (("gbps", 1e9 / 8), ("gbit", 1e9 / 8), ("mb", 1e6), ("gb", 1e9), ("", 1e9))
MOST_HOSTS = 4096                        # of one list: [1-999999999] must not eat the memory


def looks_like(text: str) -> bool:
    """Whether the first line heads such a table."""
    head = [cell.strip().lower() for cell in text.lstrip("\ufeff").split("\n", 1)[0].split(",")]
    return len(head) > 2 and _rate(head) is not None and (
        any(n in head for n in NODES) or (any(n in head for n in FIRST) and any(n in head for n in SECOND)))


def read_pairwise(text: str, name: str) -> tuple[Result, ...]:
    """`average bus bandwidth` of each row. Raises InputError for a row that names no nodes, with its line."""
    rows = csv.DictReader(text.lstrip("\ufeff").splitlines())
    rows.fieldnames = [cell.strip().lower() for cell in rows.fieldnames or ()]
    rate = _rate(rows.fieldnames)
    assert rate is not None, "looks_like was asked"
    factor = next(f for unit, f in UNITS if unit in rate.replace("_", ""))
    return tuple(_result(row, rate, factor, f"{name} line {i}", name) for i, row in enumerate(rows, 2))


def _rate(head: Sequence[str]) -> str | None:
    """The column of the bandwidth: an average before others."""
    found = [name for name in head if RATE.fullmatch(re.sub(r"[_ (]*(gb/?s?|gbps|mb/?s?)\)?$", "", name))]
    return min(found, key=lambda n: (not n.startswith(("avg", "average", "mean")), found.index(n)), default=None)


def _result(row: Mapping[str, str | None], rate: str, factor: float, where: str, source: str) -> Result:
    hosts = _hosts(row, where)
    gpus = _count(_first(row, GPUS), "GPUs a node", where) or 1
    test = re.sub(r"_perf$", "", (_first(row, TESTS) or "unnamed").strip().lower())
    collective = COLLECTIVES.get(test, test if test in COLLECTIVES.values() else "unnamed")
    size = _count(_first(row, ("maxbytes", "max_bytes", "bytes", "size")), "bytes", where) or 0
    rail = _first(row, RAILS)
    text = (row.get(rate) or "").strip()
    try:
        value = float(text) if text and text.upper() not in ("N/A", "NA", "NAN", "NONE", "-", "FAIL", "FAILED") else 0.0
    except ValueError:
        raise InputError(f"{where}: expected a bandwidth in {rate}, got {text[:20]!r}") from None
    good = 0 < value < 1e9
    if rail is None and (said := rail_in(row.get("file") or "")) is not None:
        rail = said.removeprefix("rail ")
    plain = rail is not None and re.fullmatch(r"[\w:.@-]{1,40}", rail.strip())
    return Result(
        "average bus bandwidth", "B/s", (value * factor,) if good else (), Message(collective, gpus * len(hosts), size),
        Placement(len(hosts), gpus, hosts), f"rail {rail.strip()}" if rail and plain else "",
        None if good else "no value", source)


def _hosts(row: Mapping[str, str | None], where: str) -> tuple[str, ...]:
    listed = _first(row, NODES)
    hosts = host_list(listed, where) if listed else tuple(
        text.strip() for text in (_first(row, FIRST), _first(row, SECOND)) if text and text.strip())
    if not hosts:
        raise InputError(f"{where}: expected the nodes that took part, got none")
    return hosts


def _first(row: Mapping[str, str | None], names: Iterable[str]) -> str | None:
    return next((row[name] for name in names if row.get(name)), None)


def _count(text: str | None, what: str, where: str) -> int | None:
    if text is None or not text.strip():
        return None
    try:
        value = int(float(text))
    except (ValueError, OverflowError):
        raise InputError(f"{where}: expected {what} as a number, got {text[:20]!r}") from None
    return value if value > 0 else None


def host_list(text: str, where: str = "host list") -> tuple[str, ...]:
    """The hosts of a list as Slurm writes them: gpu[001,003-005],login1. Raises InputError for one that is too long.

        >>> host_list("n[08-10],m1")
        ('n08', 'n09', 'n10', 'm1')
    """
    out: list[str] = []
    for part in re.findall(r"(?:[^\s,;\[\]]+|\[[^\]]*\])+", text):
        names = [""]
        for plain, inside in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
            pieces = [plain] if plain else [n for piece in inside.split(",") for n in _range(piece.strip(), where)]
            if len(names) * len(pieces) > MOST_HOSTS:
                raise InputError(f"{where}: a host list of more than {MOST_HOSTS:,} names")
            names = [name + piece for name in names for piece in pieces]
        out.extend(names)
    return tuple(dict.fromkeys(out))


def _range(piece: str, where: str) -> list[str]:
    bounds = re.fullmatch(r"(\d{1,9})-(\d{1,9})", piece)
    if not bounds:
        return [piece]
    low, high = int(bounds.group(1)), int(bounds.group(2))
    if high - low >= MOST_HOSTS:
        raise InputError(f"{where}: a host list of more than {MOST_HOSTS:,} names")
    return [str(i).zfill(len(bounds.group(1))) for i in range(low, high + 1)]
