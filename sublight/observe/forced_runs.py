"""This file knows about tables of runs with a forced algorithm and protocol, one row a run.

    collective,size_bytes,algorithm,protocol,channels,nodes,ranks,latency_us
    allreduce,1048576,ring,ll128,8,2,16,48.1

This is what scripts/optimize_config.py of NCCL's example tuner reads (2.30.7). `default` or nothing as the algorithm
means that NCCL chose. A time comes from time_us or latency_us, else from bandwidth_gbps: 10^9 bytes of the message a
second, the algbw of nccl-tests.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Iterator, Mapping

from sublight.errors import InputError
from sublight.result import Placement, Result
from sublight.work import Message

NAMES = {"size_bytes": "bytes", "bytes": "bytes", "size": "bytes",
         "collective": "collective", "collective_type": "collective", "algorithm": "algorithm", "algo": "algorithm",
         "protocol": "protocol", "proto": "protocol",
         "channels": "channels", "nodes": "nodes", "nnodes": "nodes", "ranks": "ranks", "nranks": "ranks",
         "time_us": "time_us", "latency_us": "time_us", "bandwidth_gbps": "gb_per_second",
         "algbw_gb_per_second": "gb_per_second", "pipeops": "", "regbuff": "", "cost_metric": ""}
NEEDED = ("collective", "bytes", "algorithm", "nodes", "ranks")
COLLECTIVES = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
               "broadcast": "broadcast", "reduce": "reduce"}
ALGORITHMS = {"tree": "Tree", "ring": "Ring", "collnetdirect": "CollNetDirect", "collnetchain": "CollNetChain",
              "nvls": "NVLS", "nvlstree": "NVLSTree", "pat": "PAT"}
PROTOCOLS = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}
MOST_RANKS = 1 << 20


def looks_like(text: str) -> bool:
    """Whether this is such a table: a header with a collective, a size and an algorithm."""
    header = next(_lines(text), "").lower()
    return "collective" in header and "algo" in header and ("bytes" in header or "size" in header)


def read_table(text: str, name: str) -> tuple[Result, ...]:
    """One Result "time" per row; its variant is ALGORITHM/PROTOCOL/CHANNELS, or "default". Raises InputError that names
    the line."""
    rows = csv.reader(_lines(text))
    columns = _columns(next(rows, []), name)
    found = []
    for number, row in enumerate(rows, 2):
        if len(row) < len(columns):
            raise InputError(f"{name}, row {number}: {len(row)} fields, the header has {len(columns)}")
        found.append(_result(dict(zip(columns, (cell.strip() for cell in row), strict=False)), name, number))
    if not found:
        raise InputError(f"{name} has a header and no rows; expected one row a run")
    return tuple(found)


def _lines(text: str) -> Iterator[str]:
    """Lines that say something."""
    return (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def _columns(header: list[str], name: str) -> list[str]:
    columns = []
    for word in header:
        known = NAMES.get(word.strip().lower())
        if known is None:
            near = difflib.get_close_matches(word.strip().lower(), NAMES, 1)
            raise InputError(f"{name}: no column '{word.strip()[:40]}'" + (f"; nearest: {near[0]}" if near else ""))
        columns.append(known)
    missing = [need for need in NEEDED if need not in columns]
    if missing or not {"time_us", "gb_per_second"} & set(columns):
        raise InputError(f"{name}: expected the columns {', '.join(NEEDED)} and time_us or bandwidth_gbps; missing: "
                         f"{', '.join(missing) or 'a time'}")
    return columns


def _result(row: Mapping[str, str], name: str, number: int) -> Result:
    where = f"{name}, row {number}"
    nbytes, nodes, ranks = (_whole(row[key], key, where) for key in ("bytes", "nodes", "ranks"))
    if ranks % nodes or ranks > MOST_RANKS:
        raise InputError(f"{where}: {ranks} ranks on {nodes} nodes; expected as many on each")
    collective = _token(row["collective"], COLLECTIVES, "collective", where)
    return Result("time", "s", (_seconds(row, nbytes, where),), Message(collective, ranks, nbytes),
                  Placement(nodes, ranks // nodes), _variant(row, where), source=name)


def _variant(row: Mapping[str, str], where: str) -> str:
    if row["algorithm"].lower() in ("", "default"):
        return "default"
    algorithm = _token(row["algorithm"], ALGORITHMS, "algorithm", where)
    protocol = _token(row["protocol"], PROTOCOLS, "protocol", where) if row.get("protocol") else ""
    channels = row.get("channels", "")
    if channels in ("", "-1"):
        return f"{algorithm}/{protocol}/"
    return f"{algorithm}/{protocol}/{_whole(channels, 'channels', where)}"


def forced_words(words: str) -> str:
    """The variant that ALGO/PROTO, ALGO or "default" means, as a person writes them. Raises InputError for others."""
    algorithm, _, protocol = words.partition("/")
    if algorithm.lower() == "default":
        return "default"
    where = f"'{words[:60]}'"
    name = _token(algorithm, ALGORITHMS, "algorithm", where)
    return f"{name}/{_token(protocol, PROTOCOLS, 'protocol', where) if protocol else ''}/"


def _token(word: str, known: Mapping[str, str], what: str, where: str) -> str:
    plain = word.lower().replace("_", "")
    if plain in known:
        return known[plain]
    near = difflib.get_close_matches(plain, known, 1)
    raise InputError(f"{where}: no {what} '{word[:40]}'" + (f"; nearest: {near[0]}" if near else
                                                           f"; expected one of {', '.join(known)}"))


def _whole(word: str, what: str, where: str) -> int:
    if not word.isdecimal() or not 1 <= int(word) <= 1 << 60:
        raise InputError(f"{where}: {what} is '{word[:40]}'; expected a whole number, 1 or more")
    return int(word)


def _seconds(row: Mapping[str, str], nbytes: int, where: str) -> float:
    try:
        if row.get("time_us"):
            value = float(row["time_us"]) * 1e-6
        else:
            value = nbytes / (float(row.get("gb_per_second", "")) * 1e9)
    except (ValueError, ZeroDivisionError):
        value = 0.0
    if not 0 < value < 1e9:
        raise InputError(f"{where}: no time; expected microseconds in time_us, or GB/s in bandwidth_gbps, above 0")
    return value
