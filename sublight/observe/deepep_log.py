"""This file knows about what DeepEP's tests print: low latency, internode and intranode (V1, tests/legacy) and the
elastic test of V2 (deepseek-ai/DeepEP dd758caf)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sublight.errors import InputError
from sublight.result import Result

NUMBER = r"(\d{1,15}(?:\.\d{1,15})?(?:e[+-]?\d{1,2})?)"
RANK = re.compile(r"\[rank (\d+)\]")
SPREAD = re.compile(rf"avg_t\s*[=:]\s*{NUMBER}\s*us.*?min_t\s*[=:]\s*{NUMBER}\s*us.*?max_t\s*[=:]\s*{NUMBER}\s*us")
PART = re.compile(rf"(Dispatch \+ combine|Dispatch|Combine) bandwidth:\s*{NUMBER} GB/s(?:, avg_t\s*=\s*{NUMBER} us)?")
SENT = re.compile(rf"(Dispatch|Combine) send/recv time:\s*{NUMBER}(?: \+ {NUMBER})? us")
BEST = re.compile(r"\[tuning\] Best (dispatch|combine)(?: \((\w+)\))?[^:]*:(?P<rest>.*)")
RATE = re.compile(rf"{NUMBER} GB/s \((RDMA|NVL)\)")
TOOK = re.compile(rf"(?:{NUMBER} \+ )?{NUMBER} us")
V2 = re.compile(rf"EP:\s*(\d+)/(\d+) \| ([\w ]+?): {NUMBER} GB/s \(SO\), {NUMBER} GB/s \(SU\), {NUMBER} us")
BROKEN = re.compile(r"DeepEP (?:error|timeout)|DeepEP .*timeout|failed when first calling", re.I)


def looks_like(text: str) -> bool:
    """Whether lines of one of the tests are in it."""
    return any(pattern.search(text) for pattern in (SPREAD, PART, SENT, BEST, V2, BROKEN))


def read_deepep(text: str, name: str) -> tuple[Result, ...]:
    """`mean time`, `shortest time`, `longest time` in seconds and `bandwidth` in bytes a second; variant "dispatch",
    "combine", "dispatch + combine", with the rank and the path where a line says them. Raises InputError without
    any."""
    out: list[Result] = []
    broken = 0
    for line in text.splitlines():
        broken += BROKEN.search(line) is not None
        for label, unit, value, variant in _line(line):
            if 0 < value < 1e18:
                out.append(Result(label, unit, (value,), None, None, variant, None, name))
    if broken:
        out.append(Result("mean time", "s", (), None, None, "dispatch + combine", "DeepEP timeout or error", name))
    if not out:
        raise InputError(f"{name} looks like output of DeepEP's tests, but no line in it has a time or a bandwidth")
    return tuple(out)


def _line(line: str) -> Iterator[tuple[str, str, float, str]]:
    rank = f", rank {m.group(1)}" if (m := RANK.search(line)) else ""
    spread = SPREAD.search(line)
    if spread is not None:
        part = PART.search(line)
        what = (part.group(1).lower() if part else "dispatch + combine") + rank
        for label, text in zip(("mean time", "shortest time", "longest time"), spread.groups(), strict=True):
            yield label, "s", float(text) * 1e-6, what
        if part:
            yield "bandwidth", "B/s", float(part.group(2)) * 1e9, what
        return
    for part in PART.finditer(line):
        yield "bandwidth", "B/s", float(part.group(2)) * 1e9, part.group(1).lower() + rank
        if part.group(3):
            yield "mean time", "s", float(part.group(3)) * 1e-6, part.group(1).lower() + rank
    for sent in SENT.finditer(line):
        took_us = sum(float(x) for x in sent.groups()[1:] if x)
        yield "mean time", "s", took_us * 1e-6, f"{sent.group(1).lower()} send and receive{rank}"
    if best := BEST.search(line):
        kind = best.group(1) + (f" {best.group(2).lower()}" if best.group(2) else "")
        for rate in RATE.finditer(line):
            yield "bandwidth", "B/s", float(rate.group(1)) * 1e9, f"{kind}, {rate.group(2)}"
        if took := TOOK.search(best.group("rest")):
            yield "mean time", "s", float(took.group(2)) * 1e-6, kind
    if found := V2.search(line):
        what = f"{found.group(3).strip()}, rank {found.group(1)}"
        yield "mean time", "s", float(found.group(6)) * 1e-6, what
        yield "bandwidth", "B/s", float(found.group(4)) * 1e9, f"{found.group(3).strip()}, RDMA, rank {found.group(1)}"
