"""Logs of a cluster that exists only here, with faults planted: text as nccl-tests prints it, or a CSV of averages.

Independent of what it tests: nothing of sublight is imported. A message of S bytes takes latency + S x factor / rate,
the rate of a pair is that of its slowest part, and every printed time carries noise of its own and noise of its run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

RATE = {"alltoall": 40e9, "sendrecv": 36e9}          # bus bytes per second of a healthy pair


@dataclass
class Site:
    """A cluster with what is wrong in it. slower: part of the rate that is lost."""

    nodes: int
    gpus: int = 8
    seed: int = 0
    noise_line: float = 0.0              # of each printed time
    noise_run: float = 0.0               # of all times of one run
    missing: float = 0.0                 # share of pairs that were not run
    failing: float = 0.0                 # share of runs that break off
    slow_nodes: dict[int, float] = field(default_factory=dict)
    slow_pairs: dict[tuple[int, int], float] = field(default_factory=dict)
    groups: tuple[frozenset[int], float] | None = None        # slower between these and the others
    slow_group: tuple[frozenset[int], float] | None = None    # slower with everyone
    slow_rails: dict[int, float] = field(default_factory=dict)
    node_rails: dict[tuple[int, int], float] = field(default_factory=dict)    # (node, rail)
    late_nodes: dict[int, float] = field(default_factory=dict)                # seconds added to every call
    rails: int = 0                       # one GPU a node, each pair on so many rails in turn; 0: all GPUs at once
    sizes: tuple[int, ...] = tuple(1 << k for k in range(20, 33))
    tests: tuple[str, ...] = ("alltoall", "sendrecv")
    latency: float = 40e-6

    def name(self, node: int) -> str:
        return f"gpu-{node + 1:02}"

    def lost(self, a: int, b: int, rail: int) -> float:
        """The largest part of the rate that anything between two nodes takes."""
        parts = [self.slow_nodes.get(a, 0), self.slow_nodes.get(b, 0), self.slow_pairs.get((min(a, b), max(a, b)), 0),
                 self.slow_rails.get(rail, 0), self.node_rails.get((a, rail), 0), self.node_rails.get((b, rail), 0)]
        if self.groups and (a in self.groups[0]) != (b in self.groups[0]):
            parts.append(self.groups[1])
        if self.slow_group and (a in self.slow_group[0] or b in self.slow_group[0]):
            parts.append(self.slow_group[1])
        return max(parts)

    def runs(self) -> list[tuple[int, int, int]]:
        """(node, node, rail) of the runs that took place."""
        chance = random.Random(self.seed)
        pairs = [p for p in combinations(range(self.nodes), 2) if chance.random() >= self.missing]
        return [(a, b, rail) for a, b in pairs for rail in range(max(self.rails, 1))]

    def times(self, a: int, b: int, rail: int, test: str) -> list[tuple[int, float, float]]:
        """(bytes, seconds, bus bytes per second), twice for each size."""
        chance = random.Random(f"{self.seed} {a} {b} {rail} {test}")
        ranks = 2 * (1 if self.rails else self.gpus)
        factor, run = (ranks - 1) / ranks if test == "alltoall" else 1.0, 1 + chance.gauss(0, self.noise_run)
        late = max(self.late_nodes.get(a, 0), self.late_nodes.get(b, 0))
        out = []
        for nbytes in self.sizes:
            for _ in range(2):
                rate = RATE[test] * (1 - self.lost(a, b, rail))
                seconds = (self.latency + late + nbytes * factor / rate) * run * (1 + chance.gauss(0, self.noise_line))
                out.append((nbytes, seconds, nbytes * factor / seconds))
        return out


def shown(value: float, width: int) -> str:
    """As nccl-tests prints a number in a column: as many decimals as fit."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text.rjust(width)
    return f"{value:.1e}".rjust(width)


def log(site: Site, a: int, b: int, rail: int) -> str:
    """The text of one run of all tests on two nodes; it breaks off where the site says so."""
    chance = random.Random(f"{site.seed} fails {a} {b} {rail}")
    out: list[str] = []
    per_node = 1 if site.rails else site.gpus
    for test in site.tests:
        out += [
            "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807",
            f"# Collective test starting: {test}_perf",
            f"# nThread 1 nGpus 1 minBytes {site.sizes[0]} maxBytes {site.sizes[-1]} step: 2(factor) warmup iters: 5 "
            f"iters: 20 "
            "agg iters: 1 validation: 1 graph: 0", "#", "# Using devices",
        ]
        rank = 0
        for node in (a, b):
            for gpu in range(per_node):
                at = rail if site.rails else gpu
                out.append(f"#  Rank {rank:2} Group  0 Pid {1000 + rank:6} on {site.name(node):>10} device {at:2} "
                           f"[0000:{0x1b + 0x11 * at:02x}:00] NVIDIA H100 80GB HBM3")
                rank += 1
        out += [
            "#", "#" + " " * 61 + "out-of-place                       in-place          ",
            "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   "
            "busbw  "
            "#wrong ",
            "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  "
            "(GB/s)  "
            "       "]
        rows = site.times(a, b, rail, test)
        fails = chance.random() < site.failing
        until = chance.randrange(0, len(rows), 2) if fails else len(rows)
        total = 0.0
        for k in range(0, until, 2):
            cells = ""
            for nbytes, seconds, bus in rows[k: k + 2]:
                total += bus
                cells += (f"  {shown(seconds * 1e6, 7)}  {shown(nbytes / seconds / 1e9, 6)}  {shown(bus / 1e9, 6)}"
                          f"  {'     0' if not cells else '   N/A'}")
            out.append(f"{rows[k][0]:12}  {rows[k][0] // 8:12}    double    none      -1{cells}")
        if fails:
            out.append(f"{site.name(a)}: Test NCCL failure common.cu:401 'remote process exited or there was a "
                       f"network error / '")
            out.append(f" .. {site.name(a)} pid 1000: Test failure common.cu:519")
            break
        out += ["# Out of bounds values : 0 OK", f"# Avg bus bandwidth    : {total / len(rows) / 1e9:g} ", "#",
                f"# Collective test concluded: {test}_perf", ""]
    return "\n".join(out) + "\n"


def write_logs(site: Site, folder: Path) -> list[str]:
    """A log for each run; the paths."""
    paths = []
    for a, b, rail in site.runs():
        path = folder / f"run_{site.name(a)}_{site.name(b)}_{rail}.log"
        path.write_text(log(site, a, b, rail))
        paths.append(str(path))
    return paths


def csv(site: Site) -> str:
    """The averages of all runs as a table, a row for each test; runs that break off have no value."""
    rows = ["file,test,N,G,nodes,minBytes,maxBytes,avg_bus_bw_GBs,peak_busbw_GBs"]
    for test in site.tests:
        for a, b, rail in site.runs():
            chance = random.Random(f"{site.seed} fails {a} {b} {rail} {test}")
            bus = [rate for _, _, rate in site.times(a, b, rail, test)]
            value = "," if chance.random() < site.failing else f"{sum(bus) / len(bus) / 1e9:.6f},{max(bus) / 1e9:.6f}"
            rows.append(f'run.log,{test}_perf,2,{site.gpus},"{site.name(a)},{site.name(b)}",{site.sizes[0]},{site.sizes[-1]},'
                        f"{value}")
    return "\n".join(rows) + "\n"
