"""Searching plans: what is tried is valid, fronts are fronts, a sweep that was cut ends as one that was not."""

from __future__ import annotations

import importlib.util
import itertools
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublight.errors import InputError
from sublight.improve import sweep as sweeps
from sublight.improve.layouts import serving_layouts, training_layouts
from sublight.improve.search import Candidate, Slo, as_good, best_of_each, candidates, front, slo, trainings
from sublight.improve.sweep import Case, sweep
from sublight.models import named
from sublight.plan import Job, Serving, Traffic, Training
from sublight.predict import serving
from sublight.predict.estimate import Estimate
from sublight.predict.machine import Machine, machine
from sublight.predict.validity import problems
from sublight.result import Result


def h200(gpus: int) -> Machine:
    return replace(machine(f"{gpus}xH200" if gpus < 9 else f"{gpus // 8}x8xH200"))


ONE = Traffic(isl=1024, osl=256, concurrency=1)


@pytest.mark.parametrize(("name", "gpus"), [("meta-llama/Llama-3.1-8B", 8), ("deepseek-ai/DeepSeek-V3", 16)])
def test_every_layout_is_valid_and_fills_the_gpus_once(name: str, gpus: int) -> None:
    where, model = h200(gpus), named(name)
    plans = list(serving_layouts(model, where, ONE, Serving()))
    assert len(plans) > 2
    assert len(set(plans)) == len(plans)
    for plan in plans:
        assert plan.gpus == gpus
        assert not problems(model, plan, where, ONE)


def test_a_model_of_671_billion_parameters_has_no_layout_on_one_gpu() -> None:
    with pytest.raises(InputError, match="no layout"):
        candidates(named("deepseek-ai/DeepSeek-V3"), ONE, [h200(1)], Slo())


def test_training_layouts_recompute_only_where_memory_asks_for_it() -> None:
    where, model = h200(8), named("meta-llama/Llama-3.1-8B")
    short, long = (list(training_layouts(model, where, Job(seq, 8), Training())) for seq in (1024, 32768))
    assert {plan.recompute for plan in short} == {"none"}
    assert {plan.recompute for plan in long} - {"none"}
    found = trainings(model, Job(1024, 8), where, Training())
    times = [trained.estimate.value("step time") for trained in found]
    assert times == sorted(times)


def test_limits_are_kept() -> None:
    limits = slo("ttft=1s,tpot=15ms")
    found = candidates(named("meta-llama/Llama-3.1-8B"), ONE, [h200(2)], limits)
    assert found
    assert all(c.estimate.value("TTFT") <= 1 and c.estimate.value("TPOT") <= 0.015 for c in found)
    everything = candidates(named("meta-llama/Llama-3.1-8B"), ONE, [h200(2)], Slo())
    assert any(c.estimate.value("TPOT") > 0.015 for c in everything), "limits that cut nothing off test nothing"
    best = best_of_each(found)
    assert [c.per_gpu for c in best] == sorted((c.per_gpu for c in best), reverse=True)


def test_without_limits_no_load_is_taken_at_which_requests_wait() -> None:
    """Beyond what the cache holds throughput stays and the first token comes later: 211 s on one H200."""
    found = candidates(named("meta-llama/Llama-3.1-8B"), replace(ONE, isl=4096, osl=1024),
                       [replace(h200(1), tables=False)], Slo())
    assert max(c.estimate.value("TTFT") for c in found) < 5
    assert all(c.estimate.limiter != "KV capacity" for c in found)


def test_the_largest_load_that_keeps_a_limit_is_found_to_an_eighth() -> None:
    model, where = named("meta-llama/Llama-3.1-8B"), replace(h200(1), tables=False)
    for tpot in (0.011, 0.014, 0.017, 0.020):
        found = candidates(model, ONE, [where], Slo(tpot=tpot))
        most = max(found, key=lambda c: c.concurrency)
        more = ceil(most.concurrency * 9 / 8)
        worse = serving.estimate(model, most.plan, replace(ONE, concurrency=more), where, simulate=False)
        assert most.estimate.value("TPOT") <= tpot < 1.02 * worse.value("TPOT")


@pytest.mark.parametrize("text", ["ttft", "ttft=2", "ttft=-1s", "itl=3ms", "ttft=xs"])
def test_limits_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected ttft=2s"):
        slo(text)


def made(per_user: float, per_gpu: float, name: int = 1) -> Candidate:
    results = {key: Result(key, "tokens/s", (value,), low=value * 0.9, high=value * 1.1)
               for key, value in (("tokens/s/user", per_user), ("tokens/s/GPU", per_gpu))}
    return Candidate(Serving(max_sequences=name), h200(1), 1, Estimate(results, {}, "memory", ""), True)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=30))
def test_a_front_holds_what_nothing_beats_and_nothing_else(points: list[tuple[int, int]]) -> None:
    found = [made(float(user), float(gpu)) for user, gpu in points]
    kept = {(c.per_user, c.per_gpu) for c in front(found)}
    unbeaten = {(float(u), float(g)) for u, g in points
                if not any((a >= u and b > g) or (a > u and b >= g) for a, b in points)}
    assert kept == unbeaten


def test_a_ranking_within_the_interval_is_no_ranking() -> None:
    first, near, far = (made(1.0, value).estimate for value in (100.0, 90.0, 70.0))
    assert as_good(first, near, "tokens/s/GPU")
    assert not as_good(first, far, "tokens/s/GPU")


# ---- sweeps

CASES = [Case(model, gpus, isl, 128) for model, gpus, isl in itertools.product(
    ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-32B"), ("1xH100", "2xH200"), (512, 2048))]


def test_a_sweep_that_was_killed_goes_on_and_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = tmp_path / "whole.csv", tmp_path / "cut.csv"
    assert sweep(CASES, whole, jobs=1) == 0
    solve, calls = sweeps.solve, []

    def killed(case: Case) -> dict[str, object]:
        calls.append(case)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return solve(case)

    monkeypatch.setattr(sweeps, "solve", killed)
    with pytest.raises(KeyboardInterrupt):
        sweep(CASES, cut, jobs=1)
    assert not cut.exists(), "nothing half-written"
    journal = tmp_path / "cut.csv.journal"
    journal.write_text(journal.read_text() + '{"case": "half a li')      # the kill fell into a line
    calls.clear()
    def counted(case: Case) -> dict[str, object]:
        calls.append(case)
        return solve(case)

    monkeypatch.setattr(sweeps, "solve", counted)
    assert sweep(CASES, cut, jobs=1) == 3
    assert len(calls) == len(CASES) - 3
    assert cut.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.csv", "whole.csv"]


def test_a_sweep_says_why_a_case_has_no_plan(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    sweep([Case("deepseek-ai/DeepSeek-V3", "1xH100", 512, 128)], out, jobs=1)
    assert "no layout" in out.read_text()


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.csv.journal").write_text("hello\n")
    with pytest.raises(InputError, match="not the journal"):
        sweep(CASES[:1], tmp_path / "out.csv", jobs=1)


@pytest.mark.heavy
def test_a_sweep_is_the_same_on_two_processes(tmp_path: Path) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    sweep(CASES, one, jobs=1)
    sweep(CASES, two, jobs=2)
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.heavy
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'sublight[ray]'")
def test_a_sweep_is_the_same_on_ray(tmp_path: Path) -> None:
    one, ray = tmp_path / "one.csv", tmp_path / "ray.csv"
    sweep(CASES, one, jobs=1)
    sweep(CASES, ray, on="ray")
    assert one.read_bytes() == ray.read_bytes()
