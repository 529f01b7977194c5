"""Collectives between nodes: what measured clusters took is predicted from other measurements, inside intervals.

    ten nodes     1 GPU a node ──┐
                  2 GPUs ────────┴─ fit ──▶ 4 GPUs a node       held out: neither constants nor widths saw it
"""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from conftest import loaded, shared
from hypothesis import given, settings
from hypothesis import strategies as st

from sublight.cluster import parse
from sublight.comm.bus import bus_bytes
from sublight.comm.expect import expect
from sublight.comm.expect.contention import MEASURED_HIGH, MEASURED_LOW, beside
from sublight.comm.expect.custom import shipped as custom_shipped
from sublight.comm.expect.protocol import Box, protocols
from sublight.comm.expect.rails import FUNCTIONS, across, cost, shipped, width
from sublight.comm.expect.verdict import FASTER, INSIDE, SLOWER, judged, link_of
from sublight.comm.expect.wire import wire_bytes
from sublight.comm.expected import Expected
from sublight.device import by_key
from sublight.errors import InputError
from sublight.work import Message

GIB = 1 << 30
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast", "reduce")


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The program that fits the constants: what it scores is what is shipped."""
    return loaded(Path(__file__).parent.parent / "bench/fit_rails.py")


@pytest.mark.heavy
def test_four_gpus_a_node_are_predicted_from_one_and_two(bench: ModuleType) -> None:
    rows = [row for gpus in (1, 2, 4) for row in bench.log_rows(shared(f"comm/xxrjun_nccl_N10_G{gpus}.log"), gpus)]
    seen = [row for row in rows if row.gpus != 4]
    rails = bench.widths(bench.fit_rails(seen), seen, (1, 2))
    scores = {name: bench.score_rows(rails, [r for r in rows if r.gpus == 4 and r.collective == name])
              for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")}
    assert all(len(s.log_error) == 20 for s in scores.values())
    for name, score in scores.items():
        errors = sorted(abs(math.expm1(e)) for e in score.log_error)
        assert (errors[9] + errors[10]) / 2 <= (0.035 if name == "all_reduce" else 0.015), name
        assert errors[17] <= 0.10, name                              # the 90th percentile lies below
    inside = [abs(e) <= half for s in scores.values() for e, half in zip(s.log_error, s.half, strict=True)]
    assert 0.70 <= sum(inside) / len(inside) <= 0.90


@pytest.mark.heavy
def test_shipped_constants_are_what_the_logs_give(bench: ModuleType) -> None:
    rows = [row for gpus in (1, 2, 4) for row in bench.log_rows(shared(f"comm/xxrjun_nccl_N10_G{gpus}.log"), gpus)]
    fitted, rails = bench.fit_rails(rows), shipped()
    assert fitted.latency_factor == pytest.approx(rails.latency_factor)
    assert fitted.share == pytest.approx(rails.share)
    assert fitted.peer_s == pytest.approx(rails.peer_s)


def test_nccl_switches_between_nodes_where_its_own_model_does() -> None:
    with shared("comm/nccl2.30.7_selection.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if int(row["nodes"]) > 1]
    wrong = []
    for row in rows:
        gpus, hopper = int(row["gpus_per_node"]), row["system"] == "h100"
        box = Box(gpus, int(row["nodes"]), gpus, 400.0 if hopper else 200.0, 90 if hopper else 80, 18 if hopper else 12,
                  True, "GenuineIntel" if hopper else "AuthenticAMD")
        taken = protocols(row["coll"], int(row["bytes"]), box, dtype="fp16")[0]
        if (taken.algorithm, taken.protocol) != (row["algo"], row["proto"]):
            wrong.append(row)
    assert len(rows) == 825
    assert not wrong


def test_another_cluster_of_eight_nodes_lies_near() -> None:
    """CoreWeave's table of 64 H100: no rate or latency was fitted to it. It is faster than they say, by up to 19 %, and
    four of its five sizes lie inside the interval."""
    with shared("comm/coreweave_nccl-tests_readme_allreduce.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["system"].startswith("H100")]
    found = [expect(Message("all_reduce", 64, int(row["bytes"])), parse("8x8xH100"), dtype="fp32") for row in rows]
    errors = [e.seconds / float(row["us_oop"]) * 1e6 - 1 for e, row in zip(found, rows, strict=True)]
    assert len(errors) == 5
    assert max(map(abs, errors)) < 0.20
    inside = [e.low <= float(row["us_oop"]) * 1e-6 <= e.high for e, row in zip(found, rows, strict=True)]
    assert sum(inside) == 4


def test_eight_gpus_a_node_saturate_where_public_clusters_do() -> None:
    """317 to 337 GB/s of bus bandwidth were published for ten nodes of eight, though eight ports carry 400."""
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        message = Message(name, 80, 16 * GIB)
        e = expect(message, parse("10x8xH100"), dtype="fp64")
        low, high = (bus_bytes(message) / s / 1e9 for s in (e.high, e.low))      # type: ignore[operator]
        assert low < 317
        assert high > 337


def test_a_message_in_one_domain_never_asks_the_network() -> None:
    e = expect(Message("all_reduce", 8, GIB), parse("4x8xH100"))
    assert "rail" not in e.terms
    assert expect(Message("all_reduce", 16, GIB), parse("4x8xH100")).seconds == pytest.approx(
        expect(Message("all_reduce", 16, GIB), parse("2x8xH100")).seconds)


# Rail i of all nodes ends in one leaf of 32 nodes; 64 nodes need spines.
#
#     leaf 0 ── nodes 0..31       an even all-to-all: 32 of a node's 63 peers are under the other leaf
#     leaf 1 ── nodes 32..63      a ring: one of 32 hops leaves the leaf
def test_oversubscription_slows_what_leaves_the_leaf() -> None:
    def time(name: str, text: str, ranks: int) -> Expected:
        return expect(Message(name, ranks, GIB), parse(text))

    assert time("all_to_all", "16x8xH100:oversubscription=4", 128).terms.get("spine") is None
    full, half = time("all_to_all", "64x8xH100", 512), time("all_to_all", "64x8xH100:oversubscription=4", 512)
    assert half.terms["spine"] == pytest.approx(full.terms["rail"] * 4 * 32 / 63)
    assert half.limiter == "spine"
    assert half.seconds > full.seconds
    ring = time("all_gather", "64x8xH100:oversubscription=4", 512)
    assert ring.terms["spine"] == pytest.approx(ring.terms["rail"] / shipped().crowded_factor * 4 / 32)


def test_small_leaves_send_more_over_the_spine() -> None:
    where = "64x8xH100:oversubscription=2,nodes_per_leaf="
    spines = [expect(Message("all_to_all", 512, GIB), parse(f"{where}{n}")).terms["spine"] for n in (8, 16, 32)]
    assert spines == sorted(spines, reverse=True)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(COLLECTIVES), nodes=st.integers(2, 40), gpus=st.sampled_from([1, 2, 4, 8]),
       node=st.sampled_from(["H100", "H800", "B200", "A100"]), size=st.integers(10, 34))
def test_intervals_hold_their_expected_time_and_wider_ports_are_never_slower(
    name: str, nodes: int, gpus: int, node: str, size: int,
) -> None:
    message = Message(name, nodes * gpus, 1 << size)
    e = expect(message, parse(f"{nodes}x{gpus}x{node}"))
    assert 0 < e.low < e.seconds < e.high
    assert e.limiter in e.terms
    assert e.basis
    slow, fast = (cost(message, parse(f"{nodes}x{gpus}x{node}:nics=8x{gbit}"), dtype="bf16", rails=shipped())
                  for gbit in (100, 400))
    if fast.name == slow.name:                                   # else NCCL chose another way for other ports
        assert fast.rail_s < slow.rail_s or (fast.rail_s == slow.rail_s and slow.unknown == 1)  # LL: NCCL's own rate
    link = link_of(message, parse(f"{nodes}x{gpus}x{node}"))
    assert link.nbytes / e.seconds < 1.02 * link.rate                # no faster than the ports


def test_each_step_away_from_what_was_measured_widens_the_interval() -> None:
    def half(text: str, nbytes: int = GIB) -> float:
        e = across(Message("all_to_all", parse(text).ranks, nbytes), parse(text))
        return math.log(e.high / e.seconds)

    known = half("10x4xH100")
    for text in ("10x4xB200", "10x4xH100:nics=8x200", "10x4xH100:fabric=roce", "2x4xH100", "100x4xH100"):
        assert half(text) > known, text
    assert half("10x4xH100", 1 << 20) > known


def test_a_wider_part_matters_as_far_as_it_decides_the_time() -> None:
    rails = shipped()
    message, where = Message("all_to_all", 40, 16 * GIB), parse("10x4xH100")
    found = cost(message, where, dtype="bf16", rails=rails)
    assert width(found, replace(rails, latency_width=2.0)) < 0.03        # latency is a thousandth of it
    small = cost(Message("all_to_all", 40, 1 << 20), where, dtype="bf16", rails=rails)
    assert width(small, replace(rails, latency_width=2.0)) > 1.0


# ---- compute beside, custom kernels, verdicts


def test_compute_beside_nccl_is_slower_as_was_measured() -> None:
    """30 to 40 % under NCCL on 8 H100: the range holds both ends, for 16 channels and for 32 the lower one."""
    h100 = by_key("h100-sxm")
    sixteen = beside(16, h100)
    assert sixteen.low <= MEASURED_LOW <= MEASURED_HIGH <= sixteen.high + 1e-9
    assert sixteen.low == pytest.approx(132 / 116)
    assert beside(0, h100).high == 1.0
    assert "holds 20 of 132 SMs" in expect(Message("all_to_all", 16, GIB), parse("2x8xH100"), sms=20).notes[-1]
    with pytest.raises(InputError, match="fewer SMs than the 132"):
        beside(132, h100)


def test_one_shot_wins_small_messages_and_two_shot_large_ones() -> None:
    def time(kind: str, nbytes: int, *, graph: bool = True) -> float:
        return expect(Message("all_reduce", 8, nbytes), parse("8xH100"), kind=kind, graph=graph).seconds

    assert time("one-shot", 4096) < time("two-shot", 4096)
    assert time("two-shot", 4 << 20) < time("one-shot", 4 << 20)
    assert time("one-shot", 4096, graph=False) > 3 * time("one-shot", 4096)
    assert set(custom_shipped().shots) <= {"a100-sxm-80", "h100-sxm", "h200", "b200", "b300", "gb200", "gb300"}


def test_a_measured_time_is_judged_by_the_interval() -> None:
    e = Expected(1e-3, 0.8e-3, 1.25e-3, {"base latency": 1e-4, "rail": 9e-4}, "rail", "")
    assert [judged(e, s).state for s in (0.8e-3, 1e-3, 1.25e-3, 0.79e-3, 1.26e-3)] == [INSIDE] * 3 + [FASTER, SLOWER]
    assert judged(e, 4e-3).words.endswith("if it is the rail, it ran at 23 % of its expected rate")      # 0.9 / 3.9
    late = Expected(1e-3, 0.8e-3, 1.25e-3, {"base latency": 9e-4, "rail": 1e-4}, "base latency", "")
    assert judged(late, 2e-3).words.endswith("if it is the base latency, it took 1,900 µs instead of 900")


@pytest.mark.parametrize(("message", "where", "options", "said"), [
    (Message("all_reduce", 16, 0), "2x8xH100", {}, "at least one byte"),
    (Message("gather", 16, 1024), "2x8xH100", {}, "no expected time of 'gather' between nodes"),
    (Message("all_reduce", 32, 1024), "2x8xH100", {}, "the cluster has 16"),
    (Message("all_reduce", 12, 1024), "2x8xH100", {}, "do not fill nodes of 8"),
    (Message("all_reduce", 16, 1024), "2x8xH100", {"kind": "one-shot"}, "inside one NVLink domain"),
    (Message("all_gather", 8, 1024), "8xH100", {"kind": "one-shot"}, "is an all-reduce"),
    (Message("all_reduce", 8, 1 << 30), "8xH100", {"kind": "two-shot"}, "hand over to NCCL"),
    (Message("all_reduce", 8, 1024), "8xH800", {"kind": "one-shot"}, "no custom all-reduce was measured on hgx-h800"),
    (Message("all_reduce", 8, 1024), "8xA100", {"kind": "nvls"}, "no NVSwitch that reduces"),
    (Message("all_reduce", 8, 1024), "8xH100", {"kind": "three-shot"}, "no kind 'three-shot'"),
    (Message("all_reduce", 100, 1024), "25x4xGB200", {}, "do not fill NVLink domains"),
])
def test_what_no_constants_support_is_refused_by_name(
    message: Message, where: str, options: dict[str, str], said: str,
) -> None:
    with pytest.raises(InputError, match=said):
        expect(message, parse(where), **options)                     # type: ignore[arg-type]


def test_a_type_matters_where_values_are_added() -> None:
    """NVLS does not add bytes up: an all-reduce of int8 runs in a ring. An all-gather is of bytes anyway."""
    def taken(name: str, dtype: str) -> str:
        return expect(Message(name, 80, 256 << 20), parse("10x8xH100"), dtype=dtype).notes[0]

    assert taken("all_reduce", "bf16") == "NCCL's model takes NVLSTree/Simple"
    assert "Ring" in taken("all_reduce", "int8")
    assert taken("all_gather", "fp4") == taken("all_gather", "bf16")
    with pytest.raises(InputError, match="no reduction"):
        taken("all_reduce", "fp4")


def test_every_collective_of_nccls_model_has_a_time() -> None:
    assert {*FUNCTIONS, "all_to_all", "send_recv"} == set(COLLECTIVES)


def test_trees_of_two_and_three_domains_send_less() -> None:
    """Public figures: two nodes of 8 H800 with 8 x 100 Gbit/s, 161 GB/s of bus bandwidth (NVIDIA/nccl-tests issue 153);
    two of 8 H100 with 8 x 400 Gbit/s of RoCE 430, four 320 (NVIDIA/nccl issue 1221)."""
    for nodes, where, rate in ((2, "H800:nics=8x100", 161), (2, "H100:fabric=roce", 430), (4, "H100:fabric=roce", 320)):
        message = Message("all_reduce", 8 * nodes, 8 * GIB)
        time = expect(message, parse(f"{nodes}x8x{where}"))
        assert time.low < (bus_bytes(message) or 0) / rate / 1e9 < time.high, (nodes, where)


@pytest.mark.parametrize("domains", [2, 3, 4, 5, 8, 10])
def test_bytes_of_a_double_tree_are_those_of_its_busiest_domain(domains: int) -> None:
    """Counted over the two trees of NCCL's documentation: the second is the first mirrored, or shifted where odd."""
    def parent(i: int) -> int | None:
        bit = 1
        while bit < domains and not i & bit:
            bit <<= 1
        up = (i ^ bit) | (bit << 1)
        return None if i == 0 else (up if up < domains else i ^ bit)

    sent, second = [0.0] * domains, [domains - 1 - i if domains % 2 == 0 else (i + 1) % domains for i in range(domains)]
    for child in range(1, domains):
        above = parent(child)
        assert above is not None
        for end in (child, above):
            sent[end] += 0.5
            sent[second[end]] += 0.5
    assert max(sent) == wire_bytes(Message("all_reduce", 8 * domains, 1), domains, ring=False)


def test_latency_of_small_messages_rises_without_a_cliff() -> None:
    """Where NCCL leaves LL, and on to the sizes that were measured, no doubling takes 2.5 times as long."""
    for where in ("2x8xH100", "10x4xH100", "16x8xH20", "4x1xH100", "2x8xA100"):
        cluster = parse(where)
        times = [expect(Message("all_reduce", cluster.ranks, 1 << k), cluster) for k in range(10, 31)]
        assert all(b.seconds < 2.5 * a.seconds for a, b in pairwise(times)), where
        assert times[0].high / times[0].low > 2          # and nothing was measured there


def test_no_more_than_all_of_a_link_is_claimed_where_trees_send_less_than_rings() -> None:
    for where in ("2x8xH800:nics=8x100", "3x8xH800:nics=8x100"):
        cluster = parse(where)
        message = Message("all_reduce", cluster.ranks, 8 * GIB)
        link = link_of(message, cluster)
        assert link.nbytes / expect(message, cluster).seconds < link.rate


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"])
def test_several_pcie_boxes_are_not_faster_than_one(name: str) -> None:
    for box in ("8xL40S", "4xL40S", "8xRTX-PRO-6000"):
        for size in (1 << 22, GIB, 64 * GIB, 200 * GIB):
            one, more = parse(f"1x{box}"), parse(f"4x{box}")
            alone = expect(Message(name, one.ranks, min(size, 64 * GIB)), one)
            several = expect(Message(name, more.ranks, size), more)
            kept = 0.2 if name == "all_to_all" else 0.95         # of which a quarter stays in a box
            assert several.seconds > kept * alone.seconds
            assert several.low < several.seconds < several.high
            assert "NVLink" not in several.terms


def test_a_broadcast_passes_every_rank_of_its_chain() -> None:
    few, many = (expect(Message("broadcast", 8 * n, 1024), parse(f"{n}x8xH100")).seconds for n in (2, 1250))
    assert many > 100 * few
