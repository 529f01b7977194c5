"""This file knows about requests: their lengths, when they arrive, and what of a prompt the prefix cache holds.

Drawn for a closed loop or for arrivals at a rate, the same ones every time; or read from a request trace.
"""

from __future__ import annotations

import csv
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import log
from pathlib import Path

from sublight.errors import InputError
from sublight.plan import Traffic

MOST_REQUESTS = 6000                     # of one simulated run
ROUNDS = 10                              # requests of a user, where the number is not given
OPEN_REQUESTS = 2000                     # of arrivals at a rate
BLOCK = 512                              # tokens of a block of a Mooncake trace


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked: when (None: as soon as a user is free), tokens of the prompt, tokens of the answer."""

    arrival: float | None
    isl: int
    osl: int
    hit: int = 0                         # prompt tokens that the prefix cache holds


def requests(traffic: Traffic, count: int) -> list[Request]:
    """Lengths by a low-discrepancy sequence (R2, of the plastic number): even, and the same every time."""
    out = []
    low, now = traffic.shortest, 0.0
    for i in range(count):
        u, v, w = (0.5 + i * 0.7548776662466927) % 1, (0.5 + i * 0.5698402909980532) % 1, (0.5 + i * 0.6180339887) % 1
        isl = max(1, round(traffic.isl * (low + (1 - low) * u)))
        osl = max(1, round(traffic.osl * (low + (1 - low) * v)))
        if traffic.rate is not None:
            now += -log(1 - w) / traffic.rate                    # gaps of a Poisson process
        hit = min(isl - 1, int(isl * traffic.prefix_hit))
        out.append(Request(None if traffic.rate is None else now, isl, osl, hit))
    return out


def count_of(traffic: Traffic) -> int:
    """Requests of the run that is simulated."""
    if traffic.concurrency is None:
        return min(traffic.requests or OPEN_REQUESTS, MOST_REQUESTS)
    wanted = traffic.requests or ROUNDS * traffic.concurrency
    return min(wanted, max(MOST_REQUESTS, min(4 * traffic.concurrency, 4 * MOST_REQUESTS)))


def read_requests(path: Path, *, cache_tokens: float = 0.0) -> list[Request]:
    """A request trace: JSON lines with timestamp (ms), input_length, output_length and, where there are, hash_ids of
    blocks (Mooncake), or a CSV with TIMESTAMP, ContextTokens, GeneratedTokens (Azure).

    cache_tokens: of a prefix cache that forgets the block that was used longest ago; 0: none.
    Raises InputError for a file of another form.
    """
    rows = list(_json_rows(path) if path.suffix in (".jsonl", ".json") else _csv_rows(path))
    if not rows:
        raise InputError(f"{path.name}: no requests in it; expected JSON lines or a CSV of them")
    rows.sort(key=lambda row: row[0])
    start = rows[0][0]
    hits = _hits([row[3] for row in rows], int(cache_tokens // BLOCK))
    return [Request(arrival - start, max(1, isl), max(1, osl), min(max(0, isl - 1), hit * BLOCK))
            for (arrival, isl, osl, _), hit in zip(rows, hits, strict=True)]


Row = tuple[float, int, int, Sequence[int]]


def _json_rows(path: Path) -> Iterator[Row]:
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            yield (float(row["timestamp"]) / 1e3, int(row["input_length"]), int(row["output_length"]),
                   list(row.get("hash_ids", ())))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{path.name}: line {number} is no request; expected timestamp (ms), input_length and "
                             "output_length") from None


def _csv_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8", newline="") as text:
        for number, row in enumerate(csv.DictReader(text), 2):
            try:
                arrival = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
                yield arrival, int(row["ContextTokens"]), int(row["GeneratedTokens"]), ()
            except (ValueError, KeyError, TypeError):
                raise InputError(f"{path.name}: line {number} is no request; expected TIMESTAMP, ContextTokens and "
                                 "GeneratedTokens") from None


def _hits(prompts: Sequence[Sequence[int]], room: int) -> list[int]:
    """Leading blocks of each prompt that a cache of `room` blocks holds when it comes."""
    held: OrderedDict[int, None] = OrderedDict()
    out = []
    for blocks in prompts:
        hit = 0
        while hit < len(blocks) and blocks[hit] in held:
            hit += 1
        out.append(hit)
        for block in blocks:
            held[block] = None
            held.move_to_end(block)
        while len(held) > room:
            held.popitem(last=False)
    return out
