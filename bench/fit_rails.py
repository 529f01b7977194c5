"""Fit the constants of expected times across nodes and of expert parallelism, and print how well they predict.

    python bench/fit_rails.py --data DIR            # the scoreboard
    python bench/fit_rails.py --data DIR --write    # and sublight/catalog/comm/{rails,experts}.toml

Data: nccl-tests logs of ten nodes (github.com/xxrjun/nccl-tests-cluster, 455de4f8), DeepEP and NVL72 tables of
AIConfigurator (Apache-2.0), nccl-tests figures of github.com/coreweave/nccl-tests README (cb865533). What is held out
in a line was not seen by its constants or its interval. The functions that are scored are those that are shipped.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sublight.cluster import Cluster, parse
from sublight.comm.expect.deepep import LowLatency, Normal, Parts, low_latency, normal
from sublight.comm.expect.deepep import width as exchange_width
from sublight.comm.expect.experts import PHASES, Exchange, traffic
from sublight.comm.expect.nvl72 import Kernel
from sublight.comm.expect.nvl72 import parts as nvl72_parts
from sublight.comm.expect.nvl72 import width as nvl72_width
from sublight.comm.expect.rails import Rails, across, cost, width
from sublight.work import Message

F64 = npt.NDArray[np.float64]
S = TypeVar("S")
T = TypeVar("T", Normal, LowLatency)
CATALOG = Path(__file__).parent.parent / "sublight/catalog/comm"
NAMES = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
         "alltoall": "all_to_all", "sendrecv": "send_recv"}
RINGS = ("all_reduce", "all_gather", "reduce_scatter")
START = Rails(
    share={"ring": 0.98, "all_to_all": 0.9, "send_recv": 0.5}, share_per_doubling={"all_to_all": 0.0, "send_recv": 0.0},
    latency_factor=1.0, base_s={"all_to_all": 0.0, "send_recv": 0.0}, peer_s={"all_to_all": 0.0, "send_recv": 0.0},
    # one node of the same cluster: 365 of 450 GB/s in all-gather and reduce-scatter, 357 in all-to-all, at 16 GiB;
    # NVLS, with (1 + 1/n) x size a link: 245 and 275 GB/s of size over time of 4 and 8 H100; 423 of 900 of 72 GB200
    nvlink_share={"all_reduce": 0.81, "all_gather": 0.81, "all_to_all": 0.79, "nvls_hopper": 0.684,
                  "nvls_blackwell": 0.477},
    # with 8 ports a node public clusters differ: 386 GB/s of bus bandwidth (8 nodes) against 317 to 337 (10 nodes); the
    # widths of overlap and of crowded trees are set so that both lie inside
    wire_width=0.02, latency_width=0.15, overlap_width=1.8,
    crowded_factor=1.08, crowded_width=0.12, source="",
)
SOURCE = ("10 nodes of 1, 2 and 4 H100 with 400 Gbit/s InfiniBand a GPU, NCCL 2.29.2, 32 MiB to 16 GiB "
          "(xxrjun/nccl-tests-cluster, 455de4f8)")


@dataclass(frozen=True, slots=True)
class Row:
    """One time of a log, out of place or in place."""

    gpus: int
    collective: str
    nbytes: int
    seconds: float

    @property
    def message(self) -> Message:
        return Message(self.collective, 10 * self.gpus, self.nbytes)

    @property
    def cluster(self) -> Cluster:
        return parse(f"10x{self.gpus}xH100")


def log_rows(path: Path, gpus: int) -> list[Row]:
    """Both times of each line of an nccl-tests log."""
    found, collective = [], ""
    for line in path.read_text("utf-8").splitlines():
        if started := re.match(r"# Collective test starting: (\w+)_perf", line):
            collective = NAMES[started[1]]
        words = line.split()
        if len(words) >= 13 and words[0].isdigit():
            found += [Row(gpus, collective, int(words[0]), float(words[at]) * 1e-6) for at in (5, 9)]
    return found


# ---- rails


def fit_rails(rows: Sequence[Row]) -> Rails:
    """Constants with the least mean relative error on these rows; widths as START has them."""
    rings = [row for row in rows if row.collective in RINGS]
    best = min((_with_shares(START, factor, rings) for factor in np.arange(1.0, 4.01, 0.1)), key=lambda found: found[1])
    rails = best[0]
    for name in ("all_to_all", "send_recv"):
        if mine := [row for row in rows if row.collective == name]:
            rails = _fit_peers(rails, name, mine)
    return rails


def _with_shares(rails: Rails, factor: float, rows: Sequence[Row]) -> tuple[Rails, float]:
    """The best share under a latency factor, and the summed error."""
    rails = replace(rails, latency_factor=round(float(factor), 2))
    shares = [round(float(x), 4) for x in np.arange(0.95, 1.0001, 0.0025)]
    loss, share = min((_loss(replace(rails, share={**rails.share, "ring": x}), rows), x) for x in shares)
    return replace(rails, share={**rails.share, "ring": share}), loss


def _loss(rails: Rails, rows: Iterable[Row]) -> float:
    return sum(abs(math.log(cost(r.message, r.cluster, dtype="fp64", rails=rails).seconds / r.seconds)) for r in rows)


def _fit_peers(rails: Rails, name: str, rows: Sequence[Row]) -> Rails:
    """base + peers x each + wire / share, linear in all: the least mean relative error."""
    unit = replace(rails, share={**rails.share, name: 1.0}, base_s={**rails.base_s, name: 0.0},
                   peer_s={**rails.peer_s, name: 0.0}, share_per_doubling={**rails.share_per_doubling, name: 0.0})
    wire = np.array([cost(r.message, r.cluster, dtype="fp64", rails=unit).rail_s for r in rows])
    gpus, seconds = np.array([float(r.gpus) for r in rows]), np.array([r.seconds for r in rows])
    columns = [np.ones_like(wire), wire]
    if len(set(gpus.tolist())) > 1:                  # one GPU count cannot tell what more of them change
        columns += [wire * np.log2(gpus)] + ([9.0 * gpus] if name == "all_to_all" else [])
    solved = least(np.stack(columns, 1) / seconds[:, None], np.ones_like(wire))
    base, slope, doubling, each = (float(x) for x in [*solved, 0.0, 0.0][:4])
    return replace(rails, share={**rails.share, name: round(1 / slope, 4)},
                   share_per_doubling={**rails.share_per_doubling, name: round(doubling, 5)},
                   base_s={**rails.base_s, name: round(max(base, 0.0), 7)},
                   peer_s={**rails.peer_s, name: round(max(each, 0.0), 9)})


def least(a: F64, b: F64) -> F64:
    """The solution of a x = b with the least mean absolute error, by reweighted least squares."""
    weights: F64 = np.ones(len(b))
    solved: F64 = np.zeros(a.shape[1])
    for _ in range(60):
        solved = np.asarray(np.linalg.lstsq(a * weights[:, None], b * weights, rcond=None)[0], float)
        weights = 1 / np.sqrt(np.maximum(np.abs(a @ solved - b), 1e-4))
    return np.asarray(solved, float)


def widths(rails: Rails, rows: Sequence[Row], groups: Sequence[int]) -> Rails:
    """The least width of the wire that covers 80 % of these rows, each GPU count predicted from the others. Latency's
    width is set, not fitted: START has it. Send and receive is left out: one pair of a node, other rates."""
    errors: list[tuple[Row, Rails, float]] = []
    rows = [row for row in rows if row.collective != "send_recv"]
    for held in groups:
        fitted = fit_rails([row for row in rows if row.gpus != held])
        errors += [(r, fitted, _loss(fitted, [r])) for r in rows if r.gpus == held]
    for wire in np.arange(0.002, 0.2, 0.001):
        halves = [width(cost(r.message, r.cluster, dtype="fp64", rails=f), replace(f, wire_width=float(wire)))
                  for r, f, _ in errors]
        if np.mean([e <= half for (_, _, e), half in zip(errors, halves, strict=True)]) >= 0.8:
            break
    return replace(rails, wire_width=round(float(wire), 4))


# ---- scores


@dataclass(frozen=True, slots=True)
class Scored:
    """Predictions of held-out rows: logarithm of predicted over measured, and half widths."""

    log_error: F64
    half: F64

    def line(self, name: str) -> str:
        error = 100 * np.abs(np.expm1(self.log_error))
        inside = np.abs(self.log_error) <= self.half
        constant = float(np.quantile(np.abs(self.log_error), inside.mean())) if inside.any() else 0.0
        return (f"{name:<44} n {len(error):4}  median {np.median(error):5.1f} %  p90 {np.quantile(error, 0.9):5.1f} %  "
                f"max {error.max():5.1f} %  inside {100 * inside.mean():3.0f} %  "
                f"half width {100 * self.half.mean():4.1f} (constant {100 * constant:4.1f})")


def joined(parts: Sequence[Scored]) -> Scored:
    return Scored(np.concatenate([p.log_error for p in parts]), np.concatenate([p.half for p in parts]))


def score_rows(rails: Rails, rows: Sequence[Row]) -> Scored:
    costs = [cost(r.message, r.cluster, dtype="fp64", rails=rails) for r in rows]
    return Scored(np.array([math.log(c.seconds / r.seconds) for c, r in zip(costs, rows, strict=True)]),
                  np.array([width(c, rails) for c in costs]))


def board_rails(data: Path) -> Rails:
    """Ten nodes: 4 GPUs a node from 1 and 2; then each GPU count from the two others; then CoreWeave's table."""
    rows = [row for gpus in (1, 2, 4) for row in log_rows(data / f"xxrjun_nccl_N10_G{gpus}.log", gpus)]
    for held, groups in ((4, (1, 2)), (1, (2, 4)), (2, (1, 4))):
        seen = [row for row in rows if row.gpus in groups]
        fitted = widths(fit_rails(seen), seen, groups)
        print(f"\n{held} GPUs a node, from {groups[0]} and {groups[1]}: factor {fitted.latency_factor}, "
              f"shares {fitted.share} {fitted.share_per_doubling}, widths {fitted.wire_width}, {fitted.latency_width}")
        parts = []
        for name in NAMES.values():
            parts.append(score_rows(fitted, [r for r in rows if r.gpus == held and r.collective == name]))
            print(parts[-1].line(f"  {name}"))
        print(joined(parts[:4]).line("  the four collectives"))
    shipped = widths(fit_rails(rows), rows, (1, 2, 4))
    print("\nCoreWeave's table, which no rate or latency has seen")
    with (data / "coreweave_nccl-tests_readme_allreduce.csv").open() as file:
        table = list(csv.DictReader(file))
    for system, gpus in sorted({(r["system"], int(r["gpus"])) for r in table}):
        if gpus == 72:
            continue                                 # one NVLink domain
        where = parse("8x8xH100" if system.startswith("H100") else f"{gpus // 4}x4xGB200")
        mine = [r for r in table if r["system"] == system and int(r["gpus"]) == gpus]
        found = [across(Message("all_reduce", gpus, int(r["bytes"])), where, dtype="fp32", rails=shipped)
                 for r in mine]
        scored = Scored(
            np.array([math.log(f.seconds / float(r["us_oop"]) * 1e6) for f, r in zip(found, mine, strict=True)]),
            np.array([math.log(f.high / f.seconds) for f in found]))
        print(scored.line(f"  {system} x {gpus} all_reduce"))
    return shipped


# ---- DeepEP


@dataclass(frozen=True, slots=True)
class Measured:
    """One exchange of a table."""

    exchange: Exchange
    seconds: float

    @property
    def cluster(self) -> Cluster:
        return parse(f"{self.exchange.nodes}x8xH100")


def low_latency_rows(data: Path, phase: str) -> list[Measured]:
    with (data / "aic_deepep_ll_h100_sglang0.5.6_nodes1-8.csv").open() as file:
        return [Measured(_exchange(row, phase, "low-latency"), float(row[f"{phase}_avg_t_us"]) * 1e-6)
                for row in csv.DictReader(file)]


def normal_rows(data: Path, phase: str) -> list[Measured]:
    with (data / "aic_deepep_normal_h100_sglang0.5.6_nodes1-8.csv").open() as file:
        return [Measured(_exchange(row, phase, "normal"), float(row[f"{phase}_transmit_us"]) * 1e-6)
                for row in csv.DictReader(file)]


def _exchange(row: dict[str, str], phase: str, mode: str) -> Exchange:
    """A row of AIConfigurator's tables. Normal: DeepEP's test limits a token to 4 nodes (tests/test_internode.py).
    288 experts on 64 ranks do not divide: 256 stand in, which changes no byte of low-latency traffic."""
    nodes = int(row["node_num"])
    return Exchange(phase, int(row["num_token"]), int(row["num_topk"]), int(row["hidden_size"]), 256, 8 * nodes, 8,
                    group_limit=min(nodes, 4) if mode == "normal" else None, mode=mode,
                    sms=int(row[f"{phase}_sms"]) if mode == "normal" else None)


def suspicious(rows: Sequence[Measured], constants: Normal, combines: Sequence[Measured]) -> list[Measured]:
    """Rows not to believe of a healthy fabric: twice as long as base, copies and network need, or a dispatch that takes
    longer than the combine of the same tokens and SMs though its rows have half the bytes."""
    twin = {(m.exchange.nodes, m.exchange.tokens, m.exchange.sms): m.seconds for m in combines}
    return [m for m in rows if m.seconds > 2 * normal(m.exchange, m.cluster, constants).seconds or (
        m.exchange.phase == "dispatch" and m.seconds > twin[m.exchange.nodes, m.exchange.tokens, m.exchange.sms])]


def _solve(make: Callable[[F64], S], seconds: Callable[[S, Measured], float], rows: Sequence[Measured],
              start: Sequence[float], low: Sequence[float], high: Sequence[float]) -> S:
    """Constants with the least robust relative error."""
    from scipy.optimize import least_squares

    def residuals(x: F64) -> list[float]:
        constants = make(x)
        return [math.log(seconds(constants, m) / m.seconds) for m in rows]

    found = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.03, x_scale=np.array(start))
    return make(found.x)


def fit_low_latency(rows: Sequence[Measured], *, most: float = 1.0) -> LowLatency:
    """Three constants between nodes, two inside one. most: of a port's line rate, as share. Widths: exchange_widths."""
    inside = [m for m in rows if m.exchange.nodes == 1]
    between = [m for m in rows if m.exchange.nodes > 1]

    def make(x: F64) -> LowLatency:
        return LowLatency(15e-6, 0.5, float(x[0]) * 1e-6, float(x[1]), float(x[2]), 0.03, 0.05)

    def seconds(constants: LowLatency, m: Measured) -> float:
        return low_latency(m.exchange, m.cluster, constants).seconds

    found = _solve(make, seconds, between, [25, 0.3, 0.9], [1, 0, 0.3], [200, 3, most])
    if inside:
        found = _solve(lambda x: replace(found, inside_base_s=float(x[0]) * 1e-6, inside_share=float(x[1])), seconds,
                       inside, [12, 0.5], [1, 0.1], [100, 1])
    return found


def fit_normal(rows: Sequence[Measured], network: LowLatency) -> Normal:
    """Constants of one kernel. A port's share is that of the low-latency kernels, the base's power too where only one
    node count is there to tell it."""
    inside = [m for m in rows if m.exchange.nodes == 1]
    between = [m for m in rows if m.exchange.nodes > 1]
    several = len({m.exchange.nodes for m in between}) > 1

    def make(x: F64) -> Normal:
        # DeepEP's README: 153 and 158 of an H800's 200 GB/s inside a node
        return Normal(40e-6, 6e-11, float(x[0]) * 1e-6, float(x[1]) if several else network.base_power,
                      float(x[2]) * 1e-12, float(x[3]), network.share, 0.7775, 0.08, 0.15)

    def seconds(constants: Normal, m: Measured) -> float:
        return normal(m.exchange, m.cluster, constants).seconds

    found = _solve(make, seconds, between, [50, 0.5, 60, 80], [1, 0, 5, 1], [300, 4, 500, 1000])
    if inside:
        found = _solve(lambda x: replace(found, inside_base_s=float(x[0]) * 1e-6, inside_copy_s=float(x[1]) * 1e-12),
                       seconds, inside, [40, 60], [1, 5], [300, 500])
    return found


def score_exchanges(
    constants: T, rows: Sequence[Measured], parts: Callable[[Exchange, Cluster, T], Parts],
) -> Scored:
    made = [parts(m.exchange, m.cluster, constants) for m in rows]
    return Scored(np.array([math.log(p.seconds / m.seconds) for p, m in zip(made, rows, strict=True)]),
                  np.array([exchange_width(p, constants) for p in made]))


def exchange_widths(
    constants: T, rows: Sequence[Measured], fit: Callable[[Sequence[Measured]], T],
    parts: Callable[[Exchange, Cluster, T], Parts], *, by: Callable[[Exchange], object],
) -> T:
    """Widths from these rows alone: each group is predicted from the others, and of pairs that cover 80 % the one
    that is narrowest in the mean."""
    errors: list[tuple[Parts, float]] = []
    for held in sorted({by(m.exchange) for m in rows}, key=str):
        fitted = fit([m for m in rows if by(m.exchange) != held])
        for m in rows:
            if by(m.exchange) == held:
                made = parts(m.exchange, m.cluster, fitted)
                errors.append((made, abs(math.log(made.seconds / m.seconds))))
    best = (math.inf, constants)
    for ratio in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0):
        tried = replace(constants, width=1.0, base_width=ratio)
        halves = np.array([exchange_width(made, tried) for made, _ in errors])
        scale = float(np.quantile(np.array([error for _, error in errors]) / halves, 0.8))
        found = replace(constants, width=round(scale, 4), base_width=round(ratio * scale, 4))
        best = min(best, (float(halves.mean()) * scale, found), key=lambda pair: pair[0])
    return best[1]


def _tokens(exchange: Exchange) -> int:
    return exchange.tokens


def _sms(exchange: Exchange) -> int | None:
    return exchange.sms


def _nodes(exchange: Exchange) -> int:
    return exchange.nodes


def board_deepep(data: Path) -> dict[str, dict[str, Normal | LowLatency]]:
    """DeepEP: node counts held out; README's other clusters; NCCL EP's README."""
    shipped: dict[str, dict[str, Normal | LowLatency]] = {
        "low-latency": {}, "normal": {}, "deepep-v2": {}, "nccl-ep": {}}
    both = []
    print("\nDeepEP low-latency, 4 nodes from 2 and 8 (H100, 2 to 256 tokens)")
    for phase in PHASES:
        rows = low_latency_rows(data, phase)
        seen = [m for m in rows if m.exchange.nodes in (2, 8)]
        fitted = exchange_widths(fit_low_latency(seen), seen, fit_low_latency, low_latency, by=_tokens)
        held = score_exchanges(fitted, [m for m in rows if m.exchange.nodes == 4], low_latency)
        print(held.line(f"  {phase}"))
        both.append(held)
        whole = fit_low_latency(rows)
        shipped["low-latency"][phase] = whole = exchange_widths(
            whole, [m for m in rows if m.exchange.nodes > 1], fit_low_latency, low_latency, by=_tokens)
        one_node = score_exchanges(whole, [m for m in rows if m.exchange.nodes == 1], low_latency)
        print(one_node.line(f"  {phase}, one node, seen"))
    print(joined(both).line("  both"))
    print("\nDeepEP normal (H100, 1 to 131,072 tokens, 4 to 24 SMs)")
    for phase in PHASES:
        rows = normal_rows(data, phase)
        network = shipped["low-latency"][phase]
        assert isinstance(network, LowLatency)
        believed = [m for m in rows if m.exchange.nodes < 8]
        for held_nodes in (4, 2):
            seen = [m for m in believed if m.exchange.nodes != held_nodes]
            fitted_normal = exchange_widths(fit_normal(seen, network), [m for m in seen if m.exchange.nodes > 1],
                                            partial(fit_normal, network=network), normal, by=_sms)
            held = score_exchanges(fitted_normal, [m for m in rows if m.exchange.nodes == held_nodes], normal)
            print(held.line(f"  {phase}, {held_nodes} nodes from the others"))
        final = exchange_widths(fit_normal(believed, network), [m for m in believed if m.exchange.nodes > 1],
                                partial(fit_normal, network=network), normal, by=_nodes)
        shipped["normal"][phase] = final
        at8 = [m for m in rows if m.exchange.nodes == 8]
        odd = suspicious(rows, final, normal_rows(data, "combine"))
        eight = sum(m.exchange.nodes == 8 for m in odd)
        print(f"  {phase}: suspicious {len(odd)} of {len(rows)} rows, {eight} of {len(at8)} on 8 nodes")
        print(score_exchanges(final, [m for m in at8 if m not in odd], normal).line(f"  {phase}, 8 nodes, the others"))
        print(score_exchanges(final, believed, normal).line(f"  {phase}, 1 to 4 nodes, seen"))
    _readme(shipped)
    return shipped


# DeepEP docs/legacy.md (dd758ca): H800; low-latency us of 128 tokens; normal GB/s of 4096 tokens, RDMA, with those for
# the own node
LEGACY_LL = {16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369), 256: (194, 360)}
LEGACY_NORMAL = {16: (43, 43), 32: (58, 57), 64: (51, 50)}
# NVIDIA/nccl contrib/nccl_ep/README.md: GB/s of 128 tokens, bf16 both ways, H100
NCCL_EP = {8: (224.3, 185.2), 16: (76.7, 73.0), 32: (53.6, 50.0), 64: (48.8, 43.8)}


# DeepEP README.md (dd758ca), version 2, 8192 tokens, fp8 out and bf16 back, GB/s with those for the own node or rank:
# 2 and 4 nodes of SM90 (RDMA), one node of SM100 (NVLink) with 24 and 64 SMs
V2_RDMA = {2: (90, 81), 4: (61, 61)}
V2_NVLINK = ((643, 675), (726, 740))


def version_2(at: int, first: Normal) -> Normal:
    """Constants of DeepEP's second version: rates of its README. No latency is told there: that of the first."""
    shares = [rates[at] * (nodes - 1) / nodes / 50 for nodes, rates in V2_RDMA.items()]
    inside = [rates[at] / 900 for rates in V2_NVLINK]
    return replace(first, copy_s=0.0, inside_copy_s=0.0, start_tokens=1.0, share=round(math.fsum(shares) / 2, 4),
                   nvlink_share=round(math.sqrt(inside[0] * inside[1]), 4), width=0.10, base_width=0.7)


def _readme(shipped: dict[str, dict[str, Normal | LowLatency]]) -> None:
    print("\nREADME tables: predicted / measured")
    for at, phase in enumerate(PHASES):
        constants = shipped["low-latency"][phase]
        assert isinstance(constants, LowLatency)
        made = {ranks: low_latency(Exchange(phase, 128, 8, 7168, 256, ranks, 8, mode="low-latency"),
                                   parse(f"{ranks // 8}x8xH800"), constants).seconds * 1e6 for ranks in LEGACY_LL}
        print(f"  DeepEP V1 low-latency {phase}, H800:",
              ", ".join(f"EP{ranks} {us:.0f}/{LEGACY_LL[ranks][at]} us" for ranks, us in made.items()))
        kernel = shipped["normal"][phase]
        assert isinstance(kernel, Normal)
        said = []
        for ranks in LEGACY_NORMAL:
            exchange = Exchange(phase, 4096, 8, 7168, 256, ranks, 8, group_limit=min(ranks // 8, 4), sms=24)
            seconds = normal(exchange, parse(f"{ranks // 8}x8xH800"), kernel).seconds
            logical = 4096 * traffic(exchange).nodes * exchange.row_bytes / seconds / 1e9
            said.append(f"EP{ranks} {logical:.0f}/{LEGACY_NORMAL[ranks][at]} GB/s")
        print(f"  DeepEP V1 normal {phase}, H800:", ", ".join(said))
        shipped["deepep-v2"][phase] = version_2(at, kernel)
    for at, phase in enumerate(PHASES):
        rows = [Measured(Exchange(phase, 128, 8, 7168, 256, ranks, 8, form="bf16", mode="nccl-ep"),
                         128 * 8 * 14336 / NCCL_EP[ranks][at] / 1e9) for ranks in NCCL_EP]
        seen = [m for m in rows if m.exchange.ranks != 32]
        network = shipped["low-latency"][phase].share        # one size per scale cannot tell a rate of its own
        held = fit_low_latency(seen, most=network)
        print(score_exchanges(held, [m for m in rows if m.exchange.ranks == 32], low_latency).line(
            f"  NCCL EP {phase}, EP32 from EP16 and EP64"))
        shipped["nccl-ep"][phase] = replace(fit_low_latency(rows, most=network), width=0.08, base_width=0.5)


# ---- NVL72


def nvl72_rows(data: Path) -> dict[str, list[tuple[int, float, float]]]:
    """(ranks, bytes of all copies, seconds) by kernel, of the two-sided transport."""
    rows: dict[str, list[tuple[int, float, float]]] = {}
    forms = {"bfloat16": "bf16", "fp8": "fp8", "nvfp4": "nvfp4"}
    with (data / "aic_gb200_trtllm_alltoall_ep2-64.csv").open() as file:
        for row in csv.DictReader(file):
            if row["kernel_source"] != "NVLinkTwoSided":
                continue
            tokens, form = int(row["num_tokens"]), forms[row["moe_dtype"]]
            name = {"alltoall_dispatch": f"dispatch {form}", "alltoall_combine": "combine bf16",
                    "alltoall_prepare": "prepare"}.get(row["op_name"])
            if name is None:
                continue
            ranks, each = int(row["moe_ep_size"]), 1.0
            if name != "prepare":
                one = Exchange(name.split()[0], 1, 8, 7168, 256, ranks, ranks, form=name.split()[1],
                               mode="nvl72-alltoall")
                each = one.row_bytes * traffic(one).ranks
            rows.setdefault(name, []).append((ranks, tokens * each, float(row["us"]) * 1e-6))
    return rows


def fit_nvl72(rows: Sequence[tuple[int, float, float]]) -> Kernel:
    """Base and rate of each rank count, linear in both: the least mean relative error."""
    ranks = sorted({r for r, _, _ in rows})
    bases, rates = [], []
    for count in ranks:
        nbytes, seconds = (np.array([row[at] for row in rows if row[0] == count]) for at in (1, 2))
        base, slope = least(np.stack([np.ones_like(nbytes), nbytes], 1) / seconds[:, None], np.ones_like(nbytes))
        bases.append(float(base))
        rates.append(1 / float(slope))
    return Kernel(tuple(ranks), tuple(bases), tuple(rates), 0.1, 0.1, 0.1)


def score_nvl72(kernel: Kernel, rows: Sequence[tuple[int, float, float]]) -> Scored:
    made = [(r, *nvl72_parts(kernel, ranks=r, nbytes=b)) for r, b, _ in rows]
    error = [math.log((base + moving) / s) for (_, base, moving), (_, _, s) in zip(made, rows, strict=True)]
    half = [nvl72_width(kernel, ranks=r, base=base, moving=moving) for r, base, moving in made]
    return Scored(np.array(error), np.array(half))


def nvl72_widths(kernel: Kernel, rows: Sequence[tuple[int, float, float]]) -> Kernel:
    """Widths from these rows alone: 80 % of what the constants miss; between ranks, each inner count predicted from the
    others, the narrowest pair for base and rate that covers 80 %."""
    shares, errors = [], []
    for held in sorted({r for r, _, _ in rows})[1:-1]:
        others = fit_nvl72([row for row in rows if row[0] != held])
        mine = [row for row in rows if row[0] == held]
        errors.append(np.abs(score_nvl72(others, mine).log_error))
        made = np.array([nvl72_parts(others, ranks=held, nbytes=nbytes) for _, nbytes, _ in mine])
        shares.append(made[:, 0] / made.sum(1))
    share, error = np.concatenate(shares), np.concatenate(errors)
    best = (math.inf, 0.0, 0.0)
    for ratio in (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0):
        half = np.hypot(ratio * share, 1 - share)
        scale = float(np.quantile(error / half, 0.8))
        best = min(best, (float(half.mean()) * scale, ratio * scale, scale))
    seen = np.abs(score_nvl72(kernel, rows).log_error)
    return replace(kernel, width=round(float(np.quantile(seen, 0.8)), 3), between_base=round(best[1], 3),
                   between_rate=round(best[2], 3))


def board_nvl72(data: Path) -> dict[str, Kernel]:
    """Each inner rank count from the others, and the constants of all."""
    print("\nNVL72 all-to-all (GB200, TensorRT-LLM), each inner rank count from the others")
    shipped, held_out = {}, []
    for name, rows in nvl72_rows(data).items():
        parts = []
        for held in sorted({r for r, _, _ in rows})[1:-1]:
            seen = [row for row in rows if row[0] != held]
            fitted = nvl72_widths(fit_nvl72(seen), seen)
            parts.append(score_nvl72(fitted, [row for row in rows if row[0] == held]))
        held_out += parts
        print(joined(parts).line(f"  {name}"))
        shipped[name] = nvl72_widths(fit_nvl72(rows), rows)
        print(score_nvl72(shipped[name], rows).line(f"  {name}, seen"))
    print(joined(held_out).line("  all kernels"))
    return shipped


# ---- the catalog


def rails_toml(rails: Rails) -> str:
    def table(values: Mapping[str, float]) -> str:
        return "{ " + ", ".join(f"{k} = {v:.6g}" for k, v in values.items()) + " }"

    us = {"base_us": rails.base_s, "peer_us": rails.peer_s}
    return "\n".join([
        "# Collectives between NVLink domains. Written by bench/fit_rails.py.",
        "# Model: sublight/comm/expect/rails.py.", "", "[rails]", f'source = "{SOURCE}"',
        f"share = {table(rails.share)}",
        f"share_per_doubling = {table(rails.share_per_doubling)}", f"latency_factor = {rails.latency_factor}",
        *(f"{name} = {table({k: v * 1e6 for k, v in values.items()})}" for name, values in us.items()),
        "# one node of the same cluster, 16 GiB: 365 of 450 GB/s in all-gather and reduce-scatter, 357 in all-to-all",
        "# NVLS, bytes (1 + 1/n) x size: 245 and 275 GB/s of size over time of 4 and 8 H100 there; of 72 GB200, 423 of",
        "# 900 (coreweave/nccl-tests README)", f"nvlink_share = {table(rails.nvlink_share)}",
        "# 8 ports a node: 386 GB/s of bus bandwidth (coreweave/nccl-tests README) and 317 to 337 (10 nodes as above)",
        f"crowded_factor = {rails.crowded_factor}", "", "[rails.width]", f"wire = {rails.wire_width}",
        f"latency = {rails.latency_width}", f"overlap = {rails.overlap_width}", f"crowded = {rails.crowded_width}", "",
    ])


def experts_toml(families: Mapping[str, Mapping[str, Normal | LowLatency]], domain: Mapping[str, Kernel]) -> str:
    sources = {
        "low-latency": "DeepEP low-latency on 1 to 8 nodes of 8 H100 (AIConfigurator, h100_sxm sglang 0.5.6.post2)",
        "normal": "DeepEP normal on 1 to 4 nodes of 8 H100 (AIConfigurator, h100_sxm sglang 0.5.6.post2; rows on 8 "
                  "nodes left out as suspicious); NVLink: H800, DeepEP docs/legacy.md",
        "deepep-v2": "DeepEP version 2, 8,192 tokens on 2 and 4 nodes of SM90 and one of SM100 (README, dd758ca); "
                     "latency of version 1",
        "nccl-ep": "NCCL EP low-latency, 128 tokens on 1 to 8 nodes of 8 H100 (NVIDIA/nccl contrib/nccl_ep/README.md)",
    }
    lines = ["# Expert-parallel exchanges. Written by bench/fit_rails.py.",
             "# Models: sublight/comm/expect/deepep.py and nvl72.py."]
    for mode, phases in families.items():
        lines += ["", f"[{mode}]", f'source = "{sources[mode]}"']
        for phase, constants in phases.items():
            lines += ["", f"[{mode}.{phase}]"]
            lines += [f"{name} = {getattr(constants, name):.4g}" for name in constants.__dataclass_fields__]
    any_kernel = next(iter(domain.values()))
    lines += ["", "[nvl72-alltoall]",
              'source = "TensorRT-LLM two-sided NVLink all-to-all on 2 to 64 GB200 of an NVL72, top-k 8, 256 experts, '
              'hidden 7168, even (AIConfigurator, gb200 trtllm 1.3.0rc10)"', f"ranks = {list(any_kernel.ranks)}"]
    for name, kernel in domain.items():
        lines += ["", f'[nvl72-alltoall.kernel."{name}"]',
                  f"base_us = {[round(s * 1e6, 2) for s in kernel.base_s]}",
                  f"gb_per_second = {[float(f'{r / 1e9:.4g}') for r in kernel.rate]}", f"width = {kernel.width}",
                  f"between_base = {kernel.between_base}", f"between_rate = {kernel.between_rate}"]
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the scoreboard; write constants if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the public logs and tables")
    parser.add_argument("--write", action="store_true", help="write the constants")
    options = parser.parse_args(arguments)
    rails = board_rails(options.data)
    families = board_deepep(options.data)
    domain = board_nvl72(options.data)
    if options.write:
        (CATALOG / "rails.toml").write_text(rails_toml(rails), "utf-8")
        (CATALOG / "experts.toml").write_text(experts_toml(families, domain), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
