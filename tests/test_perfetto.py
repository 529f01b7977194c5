"""The clipped trace: what our own reader gets back from it, how large it may be, and whose words are in it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import KINETO, shared
from kineto import Kineto

from sublight.errors import InputError
from sublight.explain import Explanation, explain
from sublight.observe.read import read, read_all
from sublight.show import perfetto as module
from sublight.show.perfetto import perfetto
from sublight.trace import Trace

COLUMNS = ("ts_ns", "dur_ns", "kind", "device", "stream", "correlation", "external_id", "graph_node", "nbytes")


def written(explanation: Explanation, folder: Path) -> Path:
    path = folder / "clipped.json"
    path.write_text("".join(perfetto(explanation)), "ascii")
    return path


def rows_of(trace: Trace, rows: Any) -> list[tuple[Any, ...]]:
    """Activities as values, by their names' texts."""
    a = trace.activities
    columns = [getattr(a, c)[rows].tolist() for c in COLUMNS]
    names = [trace.names[i] for i in a.name[rows].tolist()]
    return sorted(zip(names, *columns, a.grid[rows].tolist(), a.block[rows].tolist(), strict=True))


def document(explanation: Explanation) -> dict[str, Any]:
    found: dict[str, Any] = json.loads("".join(perfetto(explanation)))
    return found


def spans(doc: dict[str, Any], track: str) -> list[tuple[str, int, int]]:
    """(name, start, end) in ns after the base of the events on one of our tracks."""
    tracks = {(e["pid"], e["tid"]) for e in doc["traceEvents"]
              if e["name"] == "thread_name" and e["args"]["name"] == track}
    return [(e["name"], round(e["ts"] * 1000), round(e["ts"] * 1000) + round(e["dur"] * 1000))
            for e in doc["traceEvents"] if (e["pid"], e["tid"]) in tracks and e["ph"] == "X"]


def two_steps() -> Kineto:
    """
    host     ├ step 1 ───────┤├ step 2 ──────────┤
    stream 7   ▇▇▇ 10…40        ▇▇▇ 100…130
    stream 20      ▇▇▇▇ 30…70                            exposed 40…70
    """
    k = Kineto(world_size=2)
    k.step(1, 0, 50_000)
    k.step(2, 50_000, 150_000)
    op = k.op("aten::mm", 500, 3_000, dims=[[8, 8], [8, 8]])
    k.kernel("nvjet_tst", 10_000, 40_000, launch=(1_000, 2_000), op=op, grid=(132, 1, 1))
    k.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 30_000, 70_000, stream=20, launch=(3_000, 4_000))
    op = k.op("aten::add", 50_500, 53_000)
    k.kernel("nvjet_tst", 100_001, 130_003, launch=(51_000, 52_000), op=op, grid=(132, 1, 1))
    return k


# ---------------------------------------------------------------- there and back


@pytest.mark.parametrize("window", ["default", "all"])
@pytest.mark.parametrize("which", list(KINETO))
def test_every_activity_of_the_window_comes_back_exactly(which: str, window: str, tmp_path: Path) -> None:
    explanation = explain(read(shared(KINETO[which])), window=window)
    view = explanation.devices[0].view
    back = read(written(explanation, tmp_path))
    assert rows_of(back, np.arange(len(back.activities.ts_ns))) == rows_of(view.trace, view.rows)
    assert (back.quality.lost, dict(back.quality.repaired)) == (0, {})


@pytest.mark.parametrize("which", list(KINETO))
def test_the_budget_comes_back_exactly(which: str, tmp_path: Path) -> None:
    """Calls and steps are there too, so that even the causes of idle time are the same."""
    explanation = explain(read(shared(KINETO[which])))
    view = explanation.devices[0].view
    again = explain(read(written(explanation, tmp_path))).devices[0].view
    assert again.budget == view.budget
    assert [s.label for s in again.step_rows] == [s.label for s in view.step_rows]
    assert (again.info, again.trace.rank) == (view.info, view.trace.rank)


def test_a_window_that_cuts_an_activity_keeps_it_whole(tmp_path: Path) -> None:
    explanation = explain(read(two_steps().write(tmp_path / "trace.json")), window="35us:45us")
    back = read(written(explanation, tmp_path))
    assert sorted((back.activities.end_ns - back.activities.ts_ns).tolist()) == [40_000]
    assert spans(document(explanation), "owner") == [("exposed communication", 45_000, 55_000)]


def test_times_of_an_absolute_clock_come_back_exactly(tmp_path: Path) -> None:
    k = Kineto(base_ns=None)
    k.kernel("k", 1_700_000_000_123_456_789, 1_700_000_000_123_456_790, launch=(1_700_000_000_123_000_001,) * 2)
    k.kernel("k", 1_700_000_000_223_456_789, 1_700_000_000_323_456_791)
    explanation = explain(read(k.write(tmp_path / "trace.json")))
    back = read(written(explanation, tmp_path))
    assert back.activities.ts_ns.tolist() == [1_700_000_000_123_456_789, 1_700_000_000_223_456_789]
    assert back.activities.dur_ns.tolist() == [1, 100_000_002]


def test_several_ranks_stay_apart(tmp_path: Path) -> None:
    """Each rank's device and host are processes of their own, and their correlations do not meet."""
    paths = []
    for rank in range(3):
        k = two_steps()
        k.rank = rank
        paths.append(k.write(tmp_path / f"rank{rank}.json"))
    explanation = explain(read_all(paths))
    back = explain(read(written(explanation, tmp_path)), window="all")
    assert [d.view.device for d in back.devices] == [0, 1, 2]
    links = back.devices[0].view.links
    assert links is not None
    assert (links.activities, links.linked, links.linked_to_op) == (9, 9, 6)
    trace = back.traces[0]
    assert len(set(trace.activities.correlation.tolist())) == 9
    hosts = [trace.threads[i].split("/")[0] for i in trace.calls.thread[links.call].tolist()]
    assert {(host, device) for host, device in zip(hosts, trace.activities.device.tolist(), strict=True)} == {
        (host, device) for device, host in enumerate(sorted(set(hosts)))}
    assert [d.view.budget.window_ns for d in back.devices] == [120_003] * 3


def test_a_cpu_only_trace(tmp_path: Path) -> None:
    k = Kineto(device_name=None)
    k.op("aten::mm", 1_000, 5_000)
    k.op("aten::add", 6_001, 9_000)
    explanation = explain(read(k.write(tmp_path / "trace.json")))
    again = explain(read(written(explanation, tmp_path)))
    assert again.devices[0].view.budget == explanation.devices[0].view.budget


# ---------------------------------------------------------------- what we add


def test_tracks_of_owners_gaps_exposed_communication_and_steps(tmp_path: Path) -> None:
    doc = document(explain(read(two_steps().write(tmp_path / "trace.json")), window="all"))
    assert doc["baseTimeNanoseconds"] == 1_700_000_000_000_000_000
    assert spans(doc, "steps") == [("step 1", 10_000, 70_000), ("step 2", 100_001, 130_003)]
    assert spans(doc, "owner") == [
        ("gemm", 10_000, 40_000), ("exposed communication", 40_000, 70_000), ("idle: dependency", 70_000, 100_001),
        ("gemm", 100_001, 130_003)]
    assert spans(doc, "gaps, by cause") == [("idle: dependency", 70_000, 100_001)]
    assert spans(doc, "exposed communication") == [("exposed communication", 40_000, 70_000)]


def test_slices_of_our_tracks_never_overlap(tmp_path: Path) -> None:
    """Steps whose windows overlap on the device get a track each."""
    k = Kineto()
    k.step(1, 0, 10_000)
    k.step(2, 10_000, 20_000)
    k.kernel("a", 30_000, 90_000, launch=(1_000, 2_000))
    k.kernel("b", 50_000, 120_000, stream=8, launch=(11_000, 12_000))
    doc = document(explain(read(k.write(tmp_path / "trace.json"))))
    assert spans(doc, "steps") == [("step 1", 30_000, 90_000)]
    assert spans(doc, "steps (1)") == [("step 2", 50_000, 120_000)]
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in doc["traceEvents"]:
        if e.get("cat") == "sublight":
            tracks.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for found in tracks.values():
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(found))


# ---------------------------------------------------------------- size


@pytest.mark.parametrize("which", list(KINETO))
def test_the_estimate_is_never_below_the_size(which: str) -> None:
    explanation = explain(read(shared(KINETO[which])), window="all")
    parts = module._parts(explanation)
    estimate = sum(p.bytes_of(what) for p in parts for what in ("activities", "gaps", *module.DISPENSABLE))
    size = sum(map(len, perfetto(explanation)))
    assert 0.7 * estimate < size < estimate + 20_000


@pytest.mark.parametrize("dropped", [
    {}, {"operators": 300}, {"operators": 300, "calls": 3}, {"operators": 300, "calls": 3, "owners": 4},
])
def test_what_is_dropped_for_size_and_that_it_is_said(
    dropped: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = two_steps()
    for i in range(298):
        k.op("aten::empty", 2_000 + i, 2_001 + i)
    explanation = explain(read(k.write(tmp_path / "trace.json")))
    parts = module._parts(explanation)
    sizes = {what: parts[0].bytes_of(what) for what in ("activities", "gaps", "owners", "calls", "operators")}
    kept = sum(size for what, size in sizes.items() if what not in dropped)
    monkeypatch.setattr(module, "MOST_BYTES", kept)
    doc = document(explanation)
    assert doc["sublight"]["dropped"] == dropped
    assert all(f"{n:,} {what}" in doc["sublight"]["note"] for what, n in dropped.items())
    kinds = {e.get("cat") for e in doc["traceEvents"]}
    assert ("cpu_op" in kinds, "cuda_runtime" in kinds) == ("operators" not in dropped, "calls" not in dropped)
    assert "kernel" in kinds


def test_a_window_too_large_is_refused_with_one_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    k = Kineto()
    for i in range(2_000):
        k.kernel("kernel", 1_000_000 * i, 1_000_000 * i + 900_000, launch=(10 * i, 10 * i + 1))
    trace = read(k.write(tmp_path / "trace.json"))
    monkeypatch.setattr(module, "MOST_BYTES", 100_000)
    with pytest.raises(InputError, match=r"2,000 device activities.*--window \d+ms:\d+ms") as caught:
        perfetto(explain(trace))
    window = str(caught.value).rsplit(" ", 1)[1]
    explanation = explain(trace, window=window)
    size = sum(map(len, perfetto(explanation)))
    assert size < 110_000
    assert len(explanation.devices[0].view.rows) > 100


# ---------------------------------------------------------------- whose words


def test_only_names_of_kernels_operators_calls_and_steps_get_in(tmp_path: Path) -> None:
    k = two_steps()
    k.annotate("secret annotation", 100, 40_000)
    k.gpu_annotate("secret gpu annotation", 10_000, 40_000)
    k.overhead("secret overhead", 5_000, 6_000)
    more: dict[str, Any] = {"Call stack": "secret stack", "Concrete Inputs": ["secret input"]}
    k.op("aten::view", 3_500, 3_600, **more)
    k.kernel("k", 41_000, 42_000, launch=(5_000, 5_500), host="secret host")
    for kind in ("process_name", "process_labels", "thread_name"):
        k.raw({"name": kind, "ph": "M", "ts": 0, "pid": 4242, "tid": 4242, "args": {"name": "secret thread"}})
    text = "".join(perfetto(explain(read(k.write(tmp_path / "trace.json")), window="all")))
    assert "secret" not in text
    doc = json.loads(text)
    assert {e["name"] for e in doc["traceEvents"] if e.get("cat") not in ("sublight", None)} == {
        "nvjet_tst", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "k", "aten::mm", "aten::add", "aten::view",
        "cudaLaunchKernel", "ProfilerStep#1", "ProfilerStep#2"}


def test_the_text_is_ascii_and_json_whatever_the_names(tmp_path: Path) -> None:
    k = Kineto()
    names = ("a\"b\\c", "</script>", "k\u2028", "名前", "\U0001f680", "x" * 10_000)
    for i, name in enumerate(names):
        k.kernel(name, 1_000 + 100 * i, 1_050 + 100 * i, launch=(10 * i, 10 * i + 5))
    explanation = explain(read(k.write(tmp_path / "trace.json")))
    text = "".join(perfetto(explanation))
    assert text.isascii()
    assert set(names) <= {e["name"] for e in json.loads(text)["traceEvents"]}
