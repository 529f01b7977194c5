"""Expert exchanges: distinct nodes counted, kernels predicted at node counts and on clusters that were not fitted."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import loaded, shared
from hypothesis import given, settings
from hypothesis import strategies as st

from sublight.cluster import parse
from sublight.comm.expect import Exchange, Routing, combine, dispatch, expected_exchange, traffic
from sublight.comm.expect.deepep import LowLatency, Normal, shipped
from sublight.comm.expect.experts import printed_bytes
from sublight.errors import InputError

V3 = Exchange("dispatch", tokens=4096, top_k=8, hidden=7168, experts=256, ranks=64, per_node=8, group_limit=4)
LOW = replace(V3, tokens=128, group_limit=None, mode="low-latency")


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return loaded(Path(__file__).parent.parent / "bench/fit_rails.py")


# ---- what a token touches


@pytest.mark.parametrize(("experts", "k", "ranks", "per_node", "limit"), [
    (8, 2, 4, 2, None), (8, 3, 8, 2, 2), (12, 3, 4, 1, 3), (8, 4, 2, 1, 1),
])
def test_distinct_nodes_and_ranks_are_those_of_all_routings(
    experts: int, k: int, ranks: int, per_node: int, limit: int | None,
) -> None:
    """Every choice of nodes and of experts on them, counted."""
    exchange = Exchange("dispatch", 1, k, 128, experts, ranks, per_node, group_limit=limit)
    nodes = exchange.nodes
    of_node, of_rank = experts // nodes, experts // ranks
    touched, spread = [], []
    for groups in itertools.combinations(range(nodes), limit or nodes):
        allowed = [e for e in range(experts) if e // of_node in groups]
        for chosen in itertools.combinations(allowed, k):
            touched.append(len({e // of_node for e in chosen}))
            spread.append(len({e // of_rank for e in chosen}))
    found = traffic(exchange)
    assert found.nodes == pytest.approx(sum(touched) / len(touched))
    assert found.ranks == pytest.approx(sum(spread) / len(spread))
    assert found.remote_nodes == pytest.approx(found.nodes * (nodes - 1) / nodes)


@settings(max_examples=80, deadline=None)
@given(ranks=st.sampled_from([8, 16, 32, 64]), k=st.integers(1, 8), power=st.floats(0, 2))
def test_uneven_routing_touches_no_more_and_loads_the_hottest(ranks: int, k: int, power: float) -> None:
    even = Exchange("dispatch", 1, k, 7168, 256, ranks, 8)
    uneven = replace(even, routing=Routing(power=power))
    found, flat = traffic(uneven), traffic(even)
    assert 1 - 1e-9 <= found.nodes <= min(k, even.nodes) + 1e-9
    assert found.nodes <= flat.nodes + 1e-9
    assert found.ranks <= flat.ranks + 1e-9
    assert found.hot_rank >= 1 - 1e-9
    assert found.hot_node >= 1 - 1e-9


def test_even_loads_as_a_histogram_are_even_routing() -> None:
    counted = traffic(replace(V3, group_limit=None, routing=Routing(loads=(3.0,) * 256)))
    even = traffic(replace(V3, group_limit=None))
    assert (counted.nodes, counted.ranks) == pytest.approx((even.nodes, even.ranks))
    assert (counted.hot_node, counted.hot_rank) == pytest.approx((1.0, 1.0))


def test_fewer_nodes_a_token_mean_fewer_bytes_over_the_network() -> None:
    remote = [traffic(replace(V3, group_limit=limit)).remote_nodes for limit in (2, 4, 8)]
    assert remote == sorted(remote)
    times = [expected_exchange(replace(V3, group_limit=limit), parse("8x8xH800")).seconds for limit in (2, 4, 8)]
    assert times == sorted(times)


# ---- DeepEP


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_low_latency_on_four_nodes_is_predicted_from_two_and_eight(bench: ModuleType, phase: str) -> None:
    data = shared("comm/aic_deepep_ll_h100_sglang0.5.6_nodes1-8.csv").parent
    rows = bench.low_latency_rows(data, phase)
    seen = [m for m in rows if m.exchange.nodes in (2, 8)]
    fitted = bench.exchange_widths(bench.fit_low_latency(seen), seen, bench.fit_low_latency, bench.low_latency,
                                   by=lambda exchange: exchange.tokens)
    score = bench.score_exchanges(fitted, [m for m in rows if m.exchange.nodes == 4], bench.low_latency)
    errors = sorted(abs(math.expm1(e)) for e in score.log_error)
    assert len(errors) == 26
    assert (errors[12] + errors[13]) / 2 <= 0.03
    assert errors[-1] <= 0.08
    assert 0.70 <= (abs(score.log_error) <= score.half).mean() <= 0.90


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_rows_on_eight_nodes_that_break_the_roofline_are_named(bench: ModuleType, phase: str) -> None:
    """No row on fewer nodes is called suspicious; on eight the dispatch of 4096 tokens that outlasts its combine is."""
    data = shared("comm/aic_deepep_normal_h100_sglang0.5.6_nodes1-8.csv").parent
    constants = shipped()["normal"].phases[phase]
    assert isinstance(constants, Normal)
    odd = bench.suspicious(bench.normal_rows(data, phase), constants, bench.normal_rows(data, "combine"))
    assert {m.exchange.nodes for m in odd} == {8}
    if phase == "dispatch":
        assert (4096, 24) in {(m.exchange.tokens, m.exchange.sms) for m in odd}


# DeepEP docs/legacy.md: H800, which no constant between nodes has seen. (ranks, us of dispatch, us of combine)
@pytest.mark.parametrize(("ranks", "out", "back"), [(16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369),
                                                    (256, 194, 360)])
def test_another_clusters_low_latency_table_lies_within_sixteen_percent(ranks: int, out: float, back: float) -> None:
    exchange = replace(LOW, ranks=ranks)
    where = parse(f"{ranks // 8}x8xH800")
    assert dispatch(exchange, where).seconds * 1e6 == pytest.approx(out, rel=0.16)
    assert combine(exchange, where).seconds * 1e6 == pytest.approx(back, rel=0.16)


@pytest.mark.parametrize(("ranks", "out", "back"), [(16, 43, 43), (32, 58, 57), (64, 51, 50)])
def test_another_clusters_normal_table_lies_within_eight_percent_and_the_interval(
    ranks: int, out: float, back: float,
) -> None:
    """4096 tokens, GB/s as DeepEP's test prints them, with 24 SMs."""
    exchange = replace(V3, ranks=ranks, group_limit=min(ranks // 8, 4), sms=24)
    for found, phase, printed in ((dispatch, "dispatch", out), (combine, "combine", back)):
        name, nbytes = printed_bytes(replace(exchange, phase=phase))
        measured = nbytes / printed / 1e9
        e = found(exchange, parse(f"{ranks // 8}x8xH800"))
        assert name == "RDMA"
        assert e.seconds == pytest.approx(measured, rel=0.08)
        assert e.low <= measured <= e.high


def test_more_sms_help_until_the_network_limits() -> None:
    times = [expected_exchange(replace(V3, ranks=32, sms=sms), parse("4x8xH100")) for sms in (4, 8, 12, 24)]
    assert [t.limiter for t in times] == ["SM copies", "SM copies", "rail", "rail"]
    assert [t.seconds for t in times] == sorted((t.seconds for t in times), reverse=True)
    assert times[2].seconds / times[3].seconds < 1.2 < times[0].seconds / times[1].seconds


def test_the_h800s_narrow_nvlink_limits_two_nodes() -> None:
    two = replace(V3, ranks=16, group_limit=2, sms=24)
    assert expected_exchange(two, parse("2x8xH800")).limiter == "NVLink"
    assert expected_exchange(two, parse("2x8xH100")).limiter != "NVLink"


def test_low_latency_crosses_rails_and_normal_does_not() -> None:
    """Eight nodes under one leaf of each rail, spines oversubscribed: a row to another local rank leaves its rail."""
    rail, tree = parse("8x8xH100:oversubscription=4"), parse("8x8xH100:oversubscription=4,layout=fat-tree")
    assert expected_exchange(LOW, rail).terms["spine"] == pytest.approx(
        expected_exchange(LOW, rail).terms["rail"] * 4 * 7 / 8)
    assert "spine" not in expected_exchange(LOW, tree).terms
    assert "spine" not in expected_exchange(V3, rail).terms


# AIConfigurator, sglang 0.5.12, one node, hidden 7168, top-k 8 of 256: us of dispatch and combine with 24 SMs (4096
# tokens), and of low-latency (128 tokens). They are among 2070 and 143 rows that were fitted.
@pytest.mark.parametrize(("where", "normal", "low"), [
    ("8xH200", (501.9, 979.2), (35.1, 67.7)), ("8xB200", (440.1, 756.1), (33.0, 40.9)),
    ("4xGB200", (359.6, 597.2), (26.9, 36.2)),
])
def test_one_node_has_constants_of_its_own_device(
    where: str, normal: tuple[float, float], low: tuple[float, float],
) -> None:
    cluster = parse(where)
    one = replace(V3, ranks=cluster.ranks, per_node=cluster.ranks, group_limit=None, sms=24)
    few = replace(one, tokens=128, mode="low-latency", sms=None)
    for exchange, measured in ((one, normal), (few, low)):
        for found, us in zip((dispatch(exchange, cluster), combine(exchange, cluster)), measured, strict=True):
            assert "on one node" in found.basis
            assert found.low * 1e6 <= us <= found.high * 1e6


# ---- other libraries


def test_nccl_ep_lies_on_its_readme() -> None:
    """128 tokens, bf16 both ways: EP32 dispatch 53.6 and combine 50.0 GB/s of payload."""
    exchange = replace(LOW, ranks=32, form="bf16", mode="nccl-ep")
    for found, printed in ((dispatch, 53.6), (combine, 50.0)):
        e = found(exchange, parse("4x8xH100"))
        assert exchange.payload_bytes / e.seconds / 1e9 == pytest.approx(printed, rel=0.04)
        assert e.low <= exchange.payload_bytes / printed / 1e9 <= e.high


@pytest.mark.parametrize(("where", "out", "back"), [("2x8xH100", 90, 81), ("4x8xH100", 61, 61), ("8xB200", 684, 707)])
def test_deepeps_second_version_lies_on_its_readme(where: str, out: float, back: float) -> None:
    """8192 tokens, any node. On one node between the README's 643 and 726, 675 and 740 GB/s with 24 and 64 SMs."""
    cluster = parse(where)
    exchange = replace(V3, tokens=8192, ranks=cluster.ranks, group_limit=None, mode="deepep-v2")
    for found, phase, printed in ((dispatch, "dispatch", out), (combine, "combine", back)):
        _, nbytes = printed_bytes(replace(exchange, phase=phase))
        e = found(exchange, cluster)
        assert nbytes / e.seconds / 1e9 == pytest.approx(printed, rel=0.12)
        assert e.low <= nbytes / printed / 1e9 <= e.high


def test_nvl72_lies_on_its_table() -> None:
    """16,384 tokens over 32 GB200, bf16: 3,187 us to dispatch, 3,634 back, 115 to prepare."""
    exchange = Exchange("dispatch", 16384, 8, 7168, 256, 32, 32, form="bf16", mode="nvl72-alltoall")
    out, back = dispatch(exchange, parse("32xGB200")), combine(exchange, parse("32xGB200"))
    assert out.seconds * 1e6 == pytest.approx(3187, rel=0.03)
    assert back.seconds * 1e6 == pytest.approx(3634, rel=0.03)
    assert any("prepare kernel" in note for note in out.notes)
    half = math.log(out.high / out.seconds)
    between = dispatch(replace(exchange, ranks=16, per_node=16, experts=256), parse("16xGB200"))
    unseen = dispatch(replace(exchange, ranks=24, per_node=24, experts=240), parse("24xGB200"))
    assert math.log(between.high / between.seconds) == pytest.approx(half)
    assert math.log(unseen.high / unseen.seconds) > half


def test_low_latency_has_no_more_than_four_constants_between_nodes() -> None:
    between = [name for name in LowLatency.__dataclass_fields__
               if not name.startswith("inside") and "width" not in name]
    assert between == ["base_s", "base_power", "share"]


# ---- refusals


@pytest.mark.parametrize(("changed", "said"), [
    ({"phase": "gather"}, "expected dispatch or combine"),
    ({"mode": "turbo"}, "no mode 'turbo'"),
    ({"form": "int4"}, "no rows of 'int4'"),
    ({"tokens": 0}, "sizes of at least 1"),
    ({"experts": 100}, "do not divide evenly"),
    ({"group_limit": 9}, "a limit of 9 nodes a token"),
    ({"top_k": 33, "group_limit": 1}, "top-k 33 of 32 experts"),
    ({"sms": 0}, "at least one SM"),
    ({"routing": Routing(power=1.0)}, "uneven routing with a limit on nodes is not modelled"),
    ({"routing": Routing(loads=(1.0,)), "group_limit": None}, "1 loads for 256 experts"),
    ({"routing": Routing(loads=(0.0,) * 256), "group_limit": None}, "8 of them at least above"),
    ({"routing": Routing(power=9.0), "group_limit": None}, "a power from 0 to 4"),
])
def test_sizes_that_cannot_be_are_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        replace(V3, **changed)                                       # type: ignore[arg-type]


@pytest.mark.parametrize(("exchange", "where", "said"), [
    (V3, "4x8xH100", "does not fit a cluster of 32 ranks"),
    (V3, "16x4xH100", "does not fit a cluster"),
    (replace(V3, ranks=8, group_limit=1), "8xL40S", "has no NVLink"),
    (replace(V3, mode="nvl72-alltoall"), "8x8xH100", "expected ranks of one NVL72 domain"),
])
def test_exchanges_that_no_constants_support_are_refused(exchange: Exchange, where: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        expected_exchange(exchange, parse(where))


@pytest.mark.parametrize(("more", "where", "said"), [
    ({"sms": 20, "mode": "low-latency"}, "2x8xH100", "no rate by SMs"),
    ({"form": "nvfp4"}, "2x8xH100", "nvfp4 rows was not measured"),
    ({"form": "fp8", "phase": "combine"}, "2x8xH100", "combine of fp8 rows was not measured"),
    ({}, "2x8xA100", "has no fp8"),
    ({"ranks": 1, "per_node": 1}, "1xH100", "2 or more ranks"),
])
def test_rows_and_options_that_no_kernel_was_measured_with_are_refused(
    more: dict[str, Any], where: str, said: str,
) -> None:
    base: dict[str, Any] = {"phase": "dispatch", "tokens": 128, "top_k": 8, "hidden": 7168, "experts": 256, "ranks": 16,
                            "per_node": 8}
    with pytest.raises(InputError, match=said):
        expected_exchange(Exchange(**(base | more)), parse(where))


def test_low_latency_beyond_the_tokens_that_were_measured_is_wider_and_says_so() -> None:
    few, many = (expected_exchange(Exchange("dispatch", n, 8, 7168, 256, 16, 8, mode="low-latency"), parse("2x8xH100"))
                 for n in (256, 4096))
    assert many.high / many.seconds > few.high / few.seconds
    assert any("4096 tokens: more than the 256" in note for note in many.notes)
