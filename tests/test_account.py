"""The budget of real traces, held against a recomputation from the raw file that shares no code with the package."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import KINETO, all_kineto, shared

from sublight.explain import Explanation, explain
from sublight.observe.read import read

Interval = tuple[int, int]
# Names that communicate in these files, by looking at each file's list of kernels.
COMMUNICATES = re.compile(r"nccl|dpsk::ep::(?!.*layout)|multimem_all_reduce", re.IGNORECASE)
ONLY_WAITS = re.compile(r"notify")


def raw(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events: list[dict[str, Any]] = json.loads(text, parse_float=str)["traceEvents"]
    return [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]


def ns(text: object) -> int:
    whole, _, part = str(text).partition(".")
    return int(whole) * 1000 + int((part + "000")[:3])


def union(intervals: list[Interval]) -> list[Interval]:
    out: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[1] > i[0]):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def length(intervals: list[Interval]) -> int:
    return sum(end - start for start, end in union(intervals))


def interval(e: dict[str, Any]) -> Interval:
    return ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])


def chosen(events: list[dict[str, Any]], wanted: Callable[[dict[str, Any]], object]) -> list[Interval]:
    return [interval(e) for e in events if wanted(e)]


def explained(relative: str, window: str = "all") -> Explanation:
    return explain(read(shared(relative)), window=window)


def is_communication(e: dict[str, Any]) -> bool:
    return e["cat"] == "kernel" and bool(COMMUNICATES.search(e["name"]))


@pytest.mark.parametrize("name", ["h800", "b200", "a100"])
def test_the_budget_equals_interval_unions_of_the_raw_file(name: str) -> None:
    events = raw(shared(KINETO[name]))
    everything = chosen(events, lambda e: True)
    communication = chosen(events, is_communication)
    compute = chosen(events, lambda e: e["cat"] == "kernel" and not is_communication(e))
    low, high = min(i[0] for i in everything), max(i[1] for i in everything)
    view = explained(KINETO[name]).devices[0].view
    c = view.budget.communication

    assert view.span_ns == view.budget.window_ns == high - low
    assert view.budget.busy_ns == length(everything)
    assert view.budget.group_ns("compute") == length(compute)
    assert c.union_ns == length(communication)
    assert c.exposed_ns == length(communication + compute) - length(compute)
    assert view.budget.group_ns("communication") == c.exposed_ns
    assert view.budget.group_ns("copies") == length(everything) - length(communication + compute)


def test_deepseek_training_step_hides_113_ms_of_communication_behind_compute() -> None:
    view = explained(KINETO["h800"]).devices[0].view
    budget, c = view.budget, view.budget.communication
    waits = chosen(raw(shared(KINETO["h800"])), lambda e: ONLY_WAITS.search(e["name"]))

    assert view.span_ns == 129_012_000
    assert budget.busy_ns == 128_515_000
    assert c.union_ns == pytest.approx(113_200_000, abs=400_000)
    assert c.exposed_ns == pytest.approx(4_100_000, abs=300_000)
    assert c.wait_ns == sum(end - start for start, end in waits) == 32_578_000
    held = next(f for f in explained(KINETO["h800"]).devices[0].findings if f.code == "SL102")
    assert "20 of 132 SMs" in held.claim
    assert any("grid of 112 = 132 - 20" in line for line in held.evidence)


def test_b200_spends_all_its_communication_exposed() -> None:
    view = explained(KINETO["b200"]).devices[0].view
    c = view.budget.communication

    assert c.union_ns == c.exposed_ns == pytest.approx(2_142_000, abs=1_000)
    assert c.wait_ns is None                                          # multimem: waiting cannot be told apart
    assert view.budget.idle_ns / view.budget.window_ns == pytest.approx(0.8627, abs=0.00005)


def test_b200_kernels_that_overlap_on_one_stream_are_kept() -> None:
    """Programmatic dependent launch: 74 kernels begin before their predecessor ends. None is moved or cut."""
    events = sorted((e for e in raw(shared(KINETO["b200"])) if e["cat"] == "kernel"), key=lambda e: ns(e["ts"]))
    overlapping = sum(ns(b["ts"]) < interval(a)[1] for a, b in pairwise(events))
    trace = read(shared(KINETO["b200"]))
    a = trace.activities
    kernels = a.kind == 0

    assert overlapping == 74
    assert a.ts_ns[kernels].size == 768
    assert sum(interval(e)[1] - interval(e)[0] for e in events) == int(a.dur_ns[kernels].sum())
    assert not trace.quality.repaired


def test_a100_ddp_is_idle_three_quarters_of_the_time() -> None:
    view = explained(KINETO["a100"]).devices[0].view
    c = view.budget.communication

    assert c.union_ns == pytest.approx(46_880_000, rel=0.005)
    assert c.exposed_ns == pytest.approx(39_560_000, rel=0.005)
    assert view.budget.idle_ns / view.budget.window_ns == pytest.approx(0.762, abs=0.0005)


@pytest.mark.parametrize("relative", all_kineto())
@pytest.mark.parametrize("window", ["all", "default", "2ms:7ms"])
def test_every_shared_trace_sums_and_is_classified(relative: str, window: str) -> None:
    for device in explained(relative, window).devices:
        view = device.view
        assert sum(p.ns for p in view.budget.parts) == view.budget.window_ns
        assert sum(b - a for a, b in view.windows) == view.budget.window_ns
        assert view.budget.busy_ns + view.budget.idle_ns == view.budget.window_ns
        assert view.unclassified_share <= 0.01


@pytest.mark.parametrize("name", ["a100", "b200"])
def test_idle_is_explained_where_every_launch_is_linked(name: str) -> None:
    view = explained(KINETO[name]).devices[0].view

    assert view.links is not None
    assert view.links.linked == view.links.activities
    assert view.budget["idle: unexplained"] <= 0.05 * view.budget.idle_ns


@pytest.mark.parametrize("relative", all_kineto())
def test_idle_causes_equal_a_recomputation_gap_by_gap(relative: str) -> None:
    """Each gap is walked alone, in plain Python, from the raw file: the synchronising calls of the launching thread
    cut out of it, the rest by when the next launch was issued."""
    path = shared(relative)
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events = json.loads(text, parse_float=str)["traceEvents"]
    calls = [e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")]
    by_id = {e["args"]["correlation"]: e for e in calls}
    syncs = [e for e in calls if "Synchronize" in e["name"]]
    active = sorted((e for e in raw(path) if ns(e["dur"]) > 0), key=lambda e: (
        ns(e["ts"]), e["args"]["stream"], e["name"], ns(e["dur"]), e["args"]["correlation"]))
    expected = {"idle: blocked": 0, "idle: launch-starved": 0, "idle: dependency": 0, "other": 0}
    reached = interval(active[0])[1]
    for e in active:
        start, end = interval(e)
        if start > reached:
            call = by_id.get(e["args"]["correlation"])
            mine = [s for s in syncs if call is None or (s["pid"], s["tid"]) == (call["pid"], call["tid"])]
            until = start if call is None else min(start, ns(call["ts"]))     # after the launch nothing holds it up
            blocked = length([(max(a, reached), min(b, until)) for a, b in map(interval, mine)])
            if call is None:
                cause = "idle: dependency" if e["args"]["correlation"] < min(by_id) else "other"
            else:
                cause = "idle: launch-starved" if ns(call["ts"]) >= reached else "idle: dependency"
            blocked = 0 if cause == "idle: dependency" else blocked
            expected["idle: blocked"] += blocked
            expected[cause] += start - reached - blocked
        reached = max(reached, end)
    budget = explained(relative).devices[0].view.budget

    for cause in ("idle: blocked", "idle: launch-starved", "idle: dependency"):
        assert budget[cause] == expected[cause], cause
    others = ("idle: outside a step", "idle: profiler overhead", "idle: unexplained")
    assert sum(budget[p] for p in others) == expected["other"]
