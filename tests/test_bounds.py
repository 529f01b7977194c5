"""A window against the speed of light: what adds up, how much is known on real traces, and what is our own error.

    part     ├──── at its bound ────┤─── above it ───┤── unknown ──┤      sums to the part of the budget, exactly
    owned    ├─ kernel ─┤── kernel ─────┤─── kernel ──┤─ kernel ───┤      and so does what its activities own
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import KINETO, all_kineto, shared
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto import Kineto
from strategies import traces
from structure import Sizes, at_bound, decoder_step, mm, written

from sublight.budget import COMPUTE, PARTS
from sublight.device import Device, Limits, by_key
from sublight.explain import explain
from sublight.explain.bounds import Bounds, owned_ns
from sublight.explain.timeline import part_of_activity
from sublight.explain.view import View
from sublight.explain.whatif import what_if
from sublight.observe.read import read
from sublight.trace import I32, I64, Trace

Windows = Sequence[tuple[int, int]]


def view_of(text: str, *, window: str = "all", device: Device | None = None) -> View:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(text)
        return explain(read(path), window=window, device=device, what_ifs=()).devices[0].view


def owned(view: View, windows: Windows) -> tuple[I64, I32]:
    """(what each activity owns of the windows, its part), of the view's device."""
    part = part_of_activity(view.trace)
    assert isinstance(view.device, int)
    return owned_ns(view.trace, view.timeline, view.device, part, windows), part


def by_part(view: View, windows: Windows) -> dict[str, int]:
    mine, part = owned(view, windows)
    sums = np.bincount(part, weights=mine, minlength=len(PARTS))
    return {PARTS[i]: int(ns) for i, ns in enumerate(sums) if ns}


def busy_parts(view: View, windows: Windows) -> dict[str, int]:
    return {part.name: part.ns for part in view.timeline.budget(windows).parts if part.group != "idle"}


@st.composite
def windows_in(draw: st.DrawFn, span: tuple[int, int]) -> list[tuple[int, int]]:
    """Disjoint windows inside a span, some of which touch."""
    cuts = sorted({*draw(st.lists(st.integers(*span), min_size=2, max_size=8)), span[0], span[1]})
    return [piece for piece in pairwise(cuts) if draw(st.booleans())]


# ---- what activities own


@pytest.mark.heavy
@settings(max_examples=150, deadline=None)
@given(traces(devices=2, max_activities=20), st.data())
def test_what_activities_own_sums_to_their_part(trace: Kineto, data: st.DataObject) -> None:
    view = view_of(trace.text())
    for windows in ([view.timeline.span], data.draw(windows_in(view.timeline.span))):
        assert by_part(view, windows) == busy_parts(view, windows)


@settings(max_examples=100, deadline=None)
@given(traces(max_activities=20), st.data())
def test_what_activities_own_adds_over_windows(trace: Kineto, data: st.DataObject) -> None:
    view = view_of(trace.text())
    cuts = sorted({*data.draw(st.lists(st.integers(*view.timeline.span), max_size=5)), *view.timeline.span})
    pieces = list(pairwise(cuts))

    whole = owned(view, [view.timeline.span])[0]
    assert (np.sum([owned(view, [piece])[0] for piece in pieces], axis=0) == whole).all()
    assert (owned(view, pieces)[0] == whole).all()


@settings(max_examples=100, deadline=None)
@given(traces(max_activities=20), st.data())
def test_a_nanosecond_belongs_to_the_first_of_its_part_that_runs(trace: Kineto, data: st.DataObject) -> None:
    view = view_of(trace.text())
    windows = data.draw(windows_in(view.timeline.span))
    assert owned(view, windows)[0].tolist() == slowly_owned(view, windows)


def slowly_owned(view: View, windows: Windows) -> list[int]:
    """Piece by piece of the timeline: of the activities of the owning part that run in it the earliest; ties by stream
    and name."""
    a, names = view.trace.activities, view.trace.names
    part = part_of_activity(view.trace)
    out = [0] * len(a.ts_ns)
    for (start, end), owner in zip(pairwise(view.timeline.edges_ns.tolist()), view.timeline.owner.tolist(),
                                   strict=True):
        running = [i for i in range(len(out)) if a.device[i] == view.device and part[i] == owner
                   and a.ts_ns[i] <= start and end <= a.end_ns[i]]
        if running:
            first = min(running, key=lambda i: (int(a.ts_ns[i]), int(a.stream[i]), names[int(a.name[i])], i))
            out[first] += sum(max(0, min(end, high) - max(start, low)) for low, high in windows)
    return out


@settings(max_examples=60, deadline=None)
@given(traces(devices=2), st.randoms(use_true_random=False))
def test_the_order_in_the_file_does_not_matter(trace: Kineto, random: Any) -> None:
    shuffled = list(trace.events)
    random.shuffle(shuffled)
    first, second = (view_of(text) for text in (trace.text(), trace.text(events=shuffled)))

    assert listed(first) == listed(second)
    assert first.bounds is not None
    assert second.bounds is not None
    assert first.bounds.parts == second.bounds.parts


def listed(view: View) -> Counter[tuple[Any, ...]]:
    a, names = view.trace.activities, view.trace.names
    mine, _ = owned(view, [view.timeline.span])
    return Counter((names[n], *row) for n, *row in zip(
        a.name.tolist(), a.ts_ns.tolist(), a.dur_ns.tolist(), a.stream.tolist(), mine.tolist(), strict=True))


def test_a_window_takes_its_share_of_a_kernels_bound_along() -> None:
    #  window   ├── the first quarter of the kernel ──┤
    limits = by_key("h100-sxm").limits
    placed = at_bound(mm(4_096, 4_096, 4_096), limits)
    (trace,) = written([(replace(placed, ns=(4 * placed.ns[0],)),)], device="h100-sxm")
    bounds = view_of(trace.text(), window=f"0:{placed.ns[0]}ns").bounds
    assert bounds is not None
    (part,) = bounds.parts

    assert abs(part.at_bound_ns - placed.ns[0] // 4) <= 1
    assert part.at_bound_ns + part.above_ns == placed.ns[0]


def product(k: Kineto, at: int, end: int, m: int, *, stream: int = 7, device: int = 0) -> None:
    """A product of (m, 4096) and (4096, 4096) from 0 to `end`, called at `at`."""
    args: dict[str, Any] = {
        "Input type": ["c10::BFloat16"] * 2, "Input Strides": [[4_096, 1]] * 2, "Concrete Inputs": ["", ""]}
    op = k.op("aten::mm", at, at + 400, dims=[(m, 4_096), (4_096, 4_096)], **args)
    k.kernel("cublas_gemm_bf16_kernel", 0, end, stream=stream, device=device, launch=(at + 100, at + 200), op=op)


def bound_ns(m: int) -> int:
    return at_bound(mm(m, 4_096, 4_096), by_key("h100-sxm").limits).ns[0]


def test_what_owns_no_time_still_takes_its_bound() -> None:
    #  stream 7    ├──────────── gemm ────────────┤     owns all, could be much shorter
    #  stream 20   ├──────────── gemm ────────────┤     owns nothing, could be half as long
    k = Kineto()
    long_ns = 2 * bound_ns(8_192)
    product(k, -5_000, long_ns, 1_024)
    product(k, -4_000, long_ns, 8_192, stream=20)
    view = view_of(k.text())
    found = bounds_of(view)
    answer = what_if(view, "gemm=bound", found.of_activity_ns)

    assert found.owned_ns.tolist() == [long_ns, 0]
    assert found.of_activity_ns.tolist() == [bound_ns(1_024) - 1, bound_ns(8_192) - 1]
    assert answer.gain_ns_low == answer.gain_ns_high == long_ns - (bound_ns(8_192) - 1)


def test_calls_on_another_device_are_listed_there() -> None:
    k = Kineto()
    product(k, -5_000, bound_ns(4_096), 4_096)
    product(k, -4_000, bound_ns(4_096) // 2, 4_096, device=1)
    with tempfile.TemporaryDirectory() as folder:
        both = explain(read(k.write(Path(folder) / "trace.json")), window="all", what_ifs=()).devices

    assert [len(bounds_of(one.view).faster_than_bound) for one in both] == [0, 1]


# ---- real traces


@cache
def trace_of(relative: str) -> Trace:
    return read(shared(relative))


@cache
def real(relative: str, window: str = "all") -> View:
    return explain(trace_of(relative), window=window, what_ifs=()).devices[0].view


def bounds_of(view: View) -> Bounds:
    assert view.bounds is not None
    return view.bounds


def middle(relative: str) -> str:
    """A window that begins and ends inside of kernels."""
    span_ns = real(relative).span_ns
    return f"{span_ns // 3}ns:{span_ns // 3 * 2 + 1}ns"


@pytest.mark.parametrize("window", ["all", "default", "middle"])
@pytest.mark.parametrize("relative", all_kineto())
def test_the_three_sum_to_each_part_of_a_real_trace(relative: str, window: str) -> None:
    view = real(relative, middle(relative) if window == "middle" else window)
    compute = {part.name: part.ns for part in view.budget.parts if part.name in COMPUTE}

    assert {p.name: p.at_bound_ns + p.above_ns + p.unknown_ns for p in bounds_of(view).parts} == compute
    for part in bounds_of(view).parts:
        assert min(part.at_bound_ns, part.above_ns, part.unknown_ns, part.inferred_ns) >= 0
        assert part.inferred_ns <= part.at_bound_ns + part.above_ns
    assert by_part(view, view.windows) == busy_parts(view, view.windows)
    assert bounds_of(view).owned_ns.sum() == view.budget.busy_ns


@pytest.mark.parametrize("relative", all_kineto())
def test_a_real_trace_is_the_sum_of_its_pieces(relative: str) -> None:
    view = real(relative)
    low, high = view.timeline.span
    edges = [low + (high - low) * i // 7 for i in range(8)]
    pieces = list(pairwise(edges))

    whole = owned(view, [(low, high)])[0]
    assert (np.sum([owned(view, [piece])[0] for piece in pieces], axis=0) == whole).all()
    assert (owned(view, pieces)[0] == whole).all()


@pytest.mark.parametrize(("relative", "window", "known", "inferred"), [
    (KINETO["b200"], "all", 0.40, 0.85), (KINETO["b200"], "default", 0.40, 0.85),
    (KINETO["h100"], "all", 0.60, 0.60),
])
def test_most_kernel_time_has_a_bound(relative: str, window: str, known: float, inferred: float) -> None:
    found = bounds_of(real(relative, window))
    assert found.known_share >= known
    assert found.inferred_share >= max(inferred, found.known_share)
    moe = relative == KINETO["b200"]             # its experts, half of the time, are only inferred
    assert (found.inferred_share - found.known_share > 0.4) == moe
    concluded = sum(part.inferred_ns for part in found.parts)
    assert (concluded > 0.4 * real(relative, window).budget.busy_ns) == moe


def test_where_nothing_was_recorded_all_is_unknown() -> None:
    found = bounds_of(real(KINETO["h800"]))
    assert found.known_share == found.inferred_share == 0.0
    assert sum(part.unknown_ns for part in found.parts) == real(KINETO["h800"]).budget.group_ns("compute") > 0
    assert found.calls == ()


# ---- our own errors


@pytest.mark.parametrize("relative", all_kineto())
def test_no_real_call_is_faster_than_its_bound(relative: str) -> None:
    assert bounds_of(real(relative)).faster_than_bound == ()


def ten_times_slower(device: Device) -> Device:
    """An entry whose every rate is wrong by an order of magnitude."""
    limits = device.limits

    def tenth(rate: float | None) -> float | None:
        return None if rate is None else rate / 10

    return replace(device, limits=Limits(
        sms=limits.sms, max_clock_hz=tenth(limits.max_clock_hz),
        tensor_flops_per_clock=limits.tensor_flops_per_clock, vector_flops_per_clock=limits.vector_flops_per_clock,
        memory_bytes_per_second=tenth(limits.memory_bytes_per_second), l2_bytes=limits.l2_bytes,
        link_bytes_per_second=tenth(limits.link_bytes_per_second),
    ))


def test_a_catalog_entry_that_is_too_slow_is_noticed() -> None:
    device = by_key("h100-sxm")
    (trace,) = written([decoder_step(Sizes(), device.limits)], device="h100-sxm", world=8)
    right, wrong = (bounds_of(view_of(trace.text(), device=d)) for d in (device, ten_times_slower(device)))

    assert right.faster_than_bound == ()
    bounded = [c.name for c in right.joined.calls if c.bound and c.bound.seconds * 1e9 > 1]
    assert Counter(line.split(": ")[0] for line in wrong.faster_than_bound) == Counter(bounded)
    assert "aten::addmm" in bounded
    assert "record_param_comms" in bounded
    assert all(part.above_ns == 0 for part in wrong.parts if part.name != "softmax/loss")


@pytest.mark.parametrize("key", ["b200", "h100"])
def test_a_real_trace_notices_it_too(key: str) -> None:
    view = real(KINETO[key])
    assert view.catalogued is not None
    wrong = explain(trace_of(KINETO[key]), window="all", device=ten_times_slower(view.catalogued), what_ifs=())
    found = bounds_of(wrong.devices[0].view)
    assert len(found.faster_than_bound) > 10
    assert all("ns measured" in line for line in found.faster_than_bound)


@pytest.mark.parametrize(("ticks_short", "listed"), [(0, 0), (1, 0), (2, 1)])
def test_one_tick_of_the_files_clock_is_allowed(ticks_short: int, listed: int) -> None:
    #  a clock of whole microseconds may show a kernel of 138.9 µs as one of 138, and no shorter
    placed = at_bound(mm(4_096, 4_096, 4_096), by_key("h100-sxm").limits)
    whole_us = placed.ns[0] // 1_000
    k = Kineto()
    at = 10_000
    args: dict[str, Any] = {
        "Input type": ["c10::BFloat16"] * 2, "Input Strides": [[4_096, 1]] * 2, "Concrete Inputs": ["", ""]}
    for i, dur_us in enumerate([whole_us + 1 - ticks_short] + [whole_us + 1] * 40):
        op = k.op("aten::mm", i * 5_000, i * 5_000 + 4_000, dims=[(4_096, 4_096)] * 2, **args)
        k.kernel("cublas_gemm_bf16_kernel", at + 300_000, at + 300_000 + dur_us * 1_000, op=op,
                 launch=(i * 5_000 + 1_000, i * 5_000 + 2_000))
        at += dur_us * 1_000
    view = view_of(k.text())

    assert view.trace.quality.clock_ns == 1_000
    assert len(bounds_of(view).faster_than_bound) == listed
