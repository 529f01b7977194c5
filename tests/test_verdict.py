"""Verdicts: exact intervals against counting, false alarms, shifts that must be found, results that belong together."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import loaded, shared
from hypothesis import given
from hypothesis import strategies as st
from kineto import Kineto

from sublight.errors import InputError
from sublight.guard.judge import judge, written
from sublight.guard.noise import Allowance, allowance, by_block, levels, memory, runs_to_tell
from sublight.guard.results import compare, recordings, steps, summary
from sublight.guard.typical import Typical, typical
from sublight.observe.read import read
from sublight.observe.results import from_text
from sublight.result import Result
from sublight.shift import fewest_of_two, fewest_pairs, of_pairs, of_two

RATE = Allowance("rate", 0.35, "test")


def result(value: float | tuple[float, ...], name: str = "TPOT", unit: str = "s", **about: Any) -> Result:
    return Result(name, unit, value if isinstance(value, tuple) else (value,), about=about)


def runs(values: list[float], name: str = "TPOT", unit: str = "s", **about: Any) -> list[Result]:
    return [result(value, name, unit, run=i, **about) for i, value in enumerate(values, 1)]


# ---- the interval


@pytest.mark.parametrize(("m", "n"), [(5, 5), (4, 6), (6, 7), (3, 9)])
def test_the_interval_of_two_samples_misses_no_more_often_than_counting_says(m: int, n: int) -> None:
    """Every way in which m and n ranks can lie among each other is as likely, where both come from one source."""
    missed, total = 0, 0
    for of_a in itertools.combinations(range(m + n), m):
        a = np.array(of_a, float)
        b = np.array([r for r in range(m + n) if r not in of_a], float)
        found = of_two(a, b, 0.98)
        missed += found.low > 0 or found.high < 0
        total += 1
    assert 2 <= missed <= 0.02 * total                # both extremes, at least


def test_the_interval_of_pairs_misses_no_more_often_than_counting_says() -> None:
    sizes = np.arange(1.0, 9.0)
    missed = [not (found := of_pairs(sizes * np.array(signs), 0.98)).low <= 0 <= found.high
              for signs in itertools.product((-1, 1), repeat=8)]
    assert 0 < sum(missed) / len(missed) <= 0.02


def test_too_few_values_bound_nothing() -> None:
    assert (fewest_of_two(0.98), fewest_pairs(0.98)) == (5, 7)
    assert not of_two(np.arange(4.0), np.arange(4.0) + 9, 0.98).bounded
    assert of_two(np.arange(5.0), np.arange(5.0) + 9, 0.98).low > 0


def test_many_values_are_thinned_but_count() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 20_000), rng.normal(0.1, 1, 20_000)
    found = of_two(a, b, 0.98)
    assert found.low < 0.1 < found.high
    assert found.high - found.low == pytest.approx(2 * 2.326 * math.sqrt(2 / 20_000 / 0.955), rel=0.15)


@given(st.lists(st.floats(0.5, 2), min_size=5, max_size=12), st.lists(st.floats(0.5, 2), min_size=5, max_size=12))
def test_b_against_a_is_the_inverse_of_a_against_b(a: list[float], b: list[float]) -> None:
    there, back = judge(a, b), judge(b, a)
    assert (1 + there.change) * (1 + back.change) == pytest.approx(1)
    assert (1 + there.low) * (1 + back.high) == pytest.approx(1)
    assert back.state == {"better": "worse", "worse": "better"}.get(there.state, there.state)


@given(st.floats(0.01, 1e6))
def test_units_change_no_verdict(scale: float) -> None:
    a, b = [1.0, 1.01, 0.99, 1.02, 1.0], [1.1, 1.12, 1.09, 1.11, 1.1]
    assert judge(a, b).state == judge([x * scale for x in a], [x * scale for x in b]).state == "worse"


# ---- how often verdicts are right


def states(noise: float, shift: float, n: int, trials: int = 400, **how: Any) -> Counter[str]:
    rng = np.random.default_rng(1)
    return Counter(judge(np.exp(rng.normal(0, noise, n)), np.exp(rng.normal(math.log1p(shift), noise, n)), **how).state
                   for _ in range(trials))


@pytest.mark.parametrize("n", [5, 10, 30])
def test_the_same_thing_twice_is_seldom_better_or_worse(n: int) -> None:
    got = states(0.05, 0.0, n)
    assert got["better"] + got["worse"] <= 0.03 * 400


def test_a_shift_of_five_percent_is_found_with_ten_runs() -> None:
    assert states(0.02, 0.05, 10)["worse"] >= 0.95 * 400


@pytest.mark.parametrize("noise", [0.001, 0.005, 0.02])
def test_a_shift_of_two_percent_is_not_called_the_same(noise: float) -> None:
    assert states(noise, 0.02, 5)["same"] <= 0.02 * 400


def test_what_repeats_well_is_called_the_same() -> None:
    assert states(0.002, 0.0, 8)["same"] >= 0.95 * 400


def test_the_number_of_runs_that_it_asks_for_tells() -> None:
    needed = runs_to_tell(math.log1p(0.04), 0.03, levels().practical, levels().confidence)
    assert needed is not None
    assert states(0.03, 0.04, needed)["worse"] >= 0.75 * 400
    assert runs_to_tell(0.0100001, 0.3, 0.01, 0.98) is None


# ---- rules


def test_a_small_change_that_is_certain_is_the_same() -> None:
    exact = [1.0, 1.0001, 0.9999, 1.0, 1.0002]
    v = judge(exact, [x * 1.004 for x in exact])
    assert (v.state, v.low > 0) == ("same", True)
    assert judge(exact, [x * 1.004 for x in exact], practical=0.002).state == "worse"


def test_more_of_a_rate_is_better() -> None:
    a, b = [100.0, 101, 99, 100, 102], [120.0, 121, 119, 122, 120]
    assert judge(a, b, lower_is_better=False).state == "better"
    [v] = compare(runs(a, "tokens/s", "tokens/s"), runs(b, "tokens/s", "tokens/s"))
    assert (v.state, round(v.change, 2), v.lower_is_better) == ("better", 0.2, False)


def test_where_nobody_can_tell_it_is_said_how_many_runs_would() -> None:
    v = judge([1.0, 1.05, 0.95], [1.03, 1.08, 0.99], allowed=RATE)
    assert (v.state, v.more_runs is not None and v.more_runs >= 2) == ("cannot tell", True)
    assert any("too few runs" in line for line in v.evidence)


def test_one_run_of_each_tells_what_no_two_runs_differ_by() -> None:
    assert judge([5_000.0], [1_000.0], one_run=True, allowed=RATE, lower_is_better=False).state == "worse"
    near = judge([5_000.0], [4_500.0], one_run=True, allowed=RATE, lower_is_better=False)
    assert (near.state, near.more_runs) == ("cannot tell", 4)
    unknown = judge([5_000.0], [1.0], one_run=True)
    assert (unknown.state, unknown.low, unknown.high) == ("cannot tell", -1.0, math.inf)


def test_samples_of_one_run_are_no_runs() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 0.01, 500), rng.normal(1.1, 0.01, 500)
    assert judge(a, b).state == "worse"
    assert judge(a, b, one_run=True, allowed=RATE).state == "cannot tell"


def test_neighbours_that_are_alike_count_once() -> None:
    rng = np.random.default_rng(0)
    slow = np.repeat(rng.normal(1, 0.02, 20), 10)
    assert memory(slow) > 5
    assert len(by_block(slow)) <= 40
    assert memory(rng.normal(1, 0.02, 200)) < 2
    v = judge(slow, np.repeat(rng.normal(1, 0.02, 20), 10), one_run=True, allowed=RATE)
    assert any("neighbours are alike" in line for line in v.evidence)


def test_values_that_are_not_positive_are_compared_by_their_difference() -> None:
    v = judge([0.0, 1, 1, 1, 2, 1], [2.0, 3, 3, 3, 4, 3])
    assert (v.state, v.change) == ("worse", 2.0)
    assert judge([0.0] * 6, [0.0] * 6).state == "same"


@pytest.mark.parametrize("bad", [[], [math.nan], [math.inf]])
def test_no_figure_is_an_error(bad: list[float]) -> None:
    with pytest.raises(InputError, match="finite values"):
        judge(bad, [1.0])


# ---- results that belong together


def test_each_work_is_compared_with_itself() -> None:
    a = [*runs([1.0] * 5, concurrency=8), *runs([2.0, 2.01, 2, 2, 2], concurrency=64)]
    b = [*runs([1.0] * 5, concurrency=8), *runs([3.0, 3.01, 3, 3, 3], concurrency=64)]
    assert {v.quantity: v.state for v in compare(a, b)} == {
        "TPOT (concurrency 8)": "same", "TPOT (concurrency 64)": "worse"}


def test_other_work_is_not_compared() -> None:
    [v] = compare(runs([1.0] * 5, concurrency=8), runs([3.0] * 5, concurrency=64))
    assert (v.state, v.evidence) == ("cannot tell", ("not the same work: concurrency 8 against 64",))


def test_answers_of_other_lengths_are_said() -> None:
    [v] = compare(runs([1.0] * 5, osl=100.0), runs([1.0] * 5, osl=140.0))
    assert "not quite the same work: osl 100 against 140" in v.evidence


def test_requests_that_run_are_neither_good_nor_bad() -> None:
    both = [*runs([1.0] * 5), *runs([200.0] * 5, "running requests", "")]
    assert [v.quantity for v in compare(both, both)] == ["TPOT"]
    with pytest.raises(InputError, match="same quantity on both sides; got TPOT and TTFT"):
        compare(runs([1.0]), runs([1.0], "TTFT"))


def test_runs_that_took_turns_are_pairs() -> None:
    drift = [1.0, 1.1, 1.25, 1.3, 1.5, 1.55, 1.7, 2.0]
    a = [result(x, started=20.0 * i) for i, x in enumerate(drift)]
    b = [result(x * (1.03 + 0.001 * (i % 3)), started=20.0 * i + 10) for i, x in enumerate(drift)]
    [v] = compare(a, b)
    assert (v.state, "pairs" in v.method) == ("worse", True)
    [apart] = compare(runs(drift), runs([x * 1.03 for x in drift]))
    assert apart.state == "cannot tell"
    [later] = compare(a, [result(x, started=500.0 + i) for i, x in enumerate(drift)])
    assert any("a drift of the machine" in line for line in later.evidence)


def test_pairs_must_be_as_many() -> None:
    with pytest.raises(InputError, match="pairs expected, got 2 runs of A and 3"):
        compare(runs([1.0, 1]), runs([1.0, 1, 1]), paired=True)


def test_what_failed_is_worse() -> None:
    failed = Result("TPOT", "s", (), failure="none of 10 requests completed")
    [v] = compare(runs([1.0]), [failed])
    assert (v.state, v.evidence) == ("worse", ("B failed: none of 10 requests completed",))
    [v] = compare([failed], runs([1.0]))
    assert v.state == "better"
    [v] = compare([failed], [failed])
    assert v.state == "cannot tell"
    [v] = compare(runs([1.0] * 6), [*runs([1.0] * 5), failed])
    assert (v.state, any("1 run of B failed and is left out" in line for line in v.evidence)) == ("same", True)


def test_percentiles_of_several_runs_are_judged() -> None:
    a = [Result("TTFT", "s", (1.0,), percentiles={99.0: 2.0 + i / 1000}) for i in range(6)]
    b = [Result("TTFT", "s", (1.0,), percentiles={99.0: 3.0 + i / 1000}) for i in range(6)]
    assert {v.quantity: v.state for v in compare(a, b)} == {"TTFT": "same", "TTFT p99": "worse"}
    assert summary(compare(a, b)) == {"worse": 1, "same": 1}


def test_every_allowance_says_where_it_is_from() -> None:
    for name in ("TTFT", "TPOT", "KV cache", "step time", "time"):
        found = allowance(name)
        assert found is not None
        assert found.source.startswith(("measured: ", "judgement: "))
    assert allowance("bus bandwidth") is None
    assert allowance("CPU step time") is None            # on a machine that others use nothing bounds it


def test_values_are_written_in_the_unit_that_reads_best() -> None:
    assert written(1e308, "1/s") == "1e+308 1/s"
    assert [written(x, "s") for x in (2.5, 0.0123, 4.5e-6)] == ["2.5 s", "12.3 ms", "4.5 µs"]
    assert written(5123.4, "tokens/s") == "5,123 tokens/s"


# ---- with noise that was measured


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return loaded(Path(__file__).parent.parent / "bench/verdicts.py")


@pytest.mark.parametrize("name", ["TTFT", "TPOT"])
def test_repeated_measurements_are_seldom_better_or_worse(bench: ModuleType, name: str) -> None:
    groups = bench.repeats(shared("silicon/serving.csv.gz"))[name]
    held = bench.residuals(groups)
    assert len(held) > 200
    for m, n in ((5, 5), (5, 10), (10, 10)):
        got = bench.shares(bench.pooled(held), m, n, trials=500)
        assert got.better + got.worse <= 0.03, (m, n, got)
    scaled = bench.pooled(held * 0.02 / held.std())
    assert bench.shares(scaled, 10, 10, shift=0.05, trials=300).worse >= 0.95
    assert bench.shares(bench.pooled(held), 5, 5, shift=0.02, trials=300).same <= 0.02
    told = sum(told for _, told, _ in bench.same_pairs(groups, name))
    assert told <= 0.03 * sum(count for count, _, _ in bench.same_pairs(groups, name))


def test_steps_of_recorded_runs_are_seldom_better_or_worse(bench: ModuleType) -> None:
    files = [shared(f"nsys/mfu_2gpu_{when}.sqlite") for when in ("before", "after")]
    held = bench.step_residuals(files)
    assert {len(values) for values in held.values()} == {30, 32}
    for values in held.values():
        got = bench.shares(bench.pooled(values), 8, 8, trials=500)
        assert got.better + got.worse <= 0.03


def test_the_allowances_are_what_the_measurements_say(bench: ModuleType) -> None:
    for name, groups in bench.repeats(shared("silicon/serving.csv.gz")).items():
        apart = [abs(x - y) for g in groups for x, y in itertools.combinations(g, 2)]
        known = allowance(name)
        assert known is not None
        assert known.log_ratio == pytest.approx(np.quantile(apart, 0.98), abs=0.005)


# ---- recordings


def recorded(path: Path, scale: float) -> Typical:
    k = Kineto(device_name=None, record_shapes=True)
    for step in range(4):
        at = round(step * 10_000_000 * scale)
        k.step(step, at, at + round(9_000_000 * scale))
        k.op("aten::mm", at + 10, at + round(8_000_000 * scale), dims=[[4, 4], [4, 4]])
    return typical([read(k.write(path / f"{scale}.json"))])


def test_several_recordings_of_each_side_are_runs(tmp_path: Path) -> None:
    a = [recorded(tmp_path, 1 + i / 1000) for i in range(5)]
    b = [recorded(tmp_path, 1.2 + i / 1000) for i in range(5)]
    assert (recordings(a, b).state, recordings(a, a).state) == ("worse", "same")
    assert steps(a[0], b[0]).state == "cannot tell"      # one recording of each, on the CPU
    drift = [1.0, 1.4, 2.0, 1.2, 3.0, 2.2, 1.7]
    pairs = [[recorded(tmp_path, x * y) for x in drift] for y in (1.0, 1.1)]
    assert (recordings(*pairs).state, recordings(*pairs, paired=True).state) == ("cannot tell", "worse")


def test_the_date_of_a_result_puts_runs_in_order() -> None:
    def file(first: int, scale: float) -> list[Result]:
        drift = [1.0, 1.1, 1.25, 1.3, 1.5, 1.55, 1.7]
        rows = [{"date": f"20260131-1200{first + 2 * i}", "backend": "vllm",
                 "duration": 9.0, "completed": 10, "request_throughput": 1.0, "mean_tpot_ms": 10 * x * scale}
                for i, x in enumerate(drift)]
        return list(from_text("\n".join(map(json.dumps, rows))).results)

    a, b = file(10, 1.0), file(11, 1.05)
    assert all(isinstance(r.about.get("started"), float) for r in a)
    v = next(v for v in compare(a, b) if v.quantity == "TPOT")
    assert (v.state, "pairs" in v.method) == ("worse", True)
