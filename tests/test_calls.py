"""Which kernels carry out which operator call, how much of the time that explains, and that no kernel beats light.

    op      ├ aten::linear ───────────────┤
              ├ aten::addmm ─────────┤
    launch       │        │
    kernels         ├ gemm ┤├ split-K sum ┤          one call: aten::addmm
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import KINETO, all_kineto, shared
from kineto import Kineto

from sublight.device import Device, by_key, find
from sublight.explain.calls import OpCalls, op_calls
from sublight.explain.links import link
from sublight.observe.kineto import read_kineto
from sublight.ops import Gemm
from sublight.trace import KERNEL, Trace


@cache
def joined(relative: str) -> tuple[Trace, Device, OpCalls]:
    trace = read_kineto(str(shared(relative)))
    device = find(next(iter(trace.devices.values())))
    assert device is not None
    return trace, device, op_calls(trace, link(trace), device.limits)


def share(trace: Trace, chosen: Any) -> float:
    """Of the summed time of kernels."""
    a = trace.activities
    kernels = a.kind == KERNEL
    return float(a.dur_ns[kernels & chosen].sum() / a.dur_ns[kernels].sum())


@pytest.mark.parametrize(("key", "known", "bounded"), [("b200", 0.43, 0.99), ("h100", 0.65, 0.69)])
def test_most_kernel_time_that_can_have_a_bound_has_one(key: str, known: float, bounded: float) -> None:
    """44 % of the B200 trace's is not vllm::moe_forward; 70 % of the H100 trace's was launched in the window."""
    trace, _, calls = joined(KINETO[key])
    assert share(trace, calls.known()) >= known
    assert share(trace, calls.bounded()) >= bounded


def test_a_trace_without_arguments_has_no_bounds() -> None:
    trace, _, calls = joined(KINETO["h800"])
    assert calls.calls == ()
    assert share(trace, calls.bounded()) == 0.0


@pytest.mark.parametrize("relative", all_kineto())
def test_no_call_beats_its_bound(relative: str) -> None:
    """Its kernels' time, overlaps once, is at least the bound, but for one tick of the file's clock."""
    trace, _, calls = joined(relative)
    assert faster_than_light(trace, calls) == []


def faster_than_light(trace: Trace, calls: OpCalls) -> list[tuple[str, float, int]]:
    """(name, bound in ns, busy ns) of calls that beat their bound."""
    a = trace.activities
    return [
        (call.name, call.bound.seconds * 1e9, ns) for call in calls.calls
        if call.bound and call.bound.seconds * 1e9 > (ns := busy_ns(a.ts_ns, a.end_ns, call.activities))
        + trace.quality.clock_ns
    ]


def busy_ns(start: Any, end: Any, rows: tuple[int, ...]) -> int:
    total, until = 0, -(1 << 62)
    for s, e in sorted((int(start[i]), int(end[i])) for i in rows):
        total += max(0, e - max(s, until))
        until = max(until, e)
    return total


@pytest.mark.parametrize("relative", all_kineto())
def test_every_activity_is_part_of_one_call_at_most(relative: str) -> None:
    _, _, calls = joined(relative)
    rows = [row for call in calls.calls for row in call.activities]
    assert len(rows) == len(set(rows))
    for index, call in enumerate(calls.calls):
        assert (calls.of_activity[list(call.activities)] == index).all()
    assert np.flatnonzero(calls.of_activity >= 0).tolist() == sorted(rows)


# ---- small traces -----------------------------------------------------------------------------------------------

GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
BF16 = "c10::BFloat16"
MM: dict[str, Any] = {
    "Input Dims": [[64, 32], [32, 16]], "Input type": [BF16, BF16], "Input Strides": [[32, 1], [16, 1]],
    "Concrete Inputs": ["", ""],
}
LINEAR: dict[str, Any] = {
    "Input Dims": [[64, 32], [16, 32], []], "Input type": [BF16, BF16, ""], "Input Strides": [[32, 1], [32, 1], []],
    "Concrete Inputs": ["", "", ""],
}


def calls_of(k: Kineto, folder: Path) -> tuple[Trace, OpCalls]:
    trace = read_kineto(str(k.write(folder / "trace.json")))
    return trace, op_calls(trace, link(trace), by_key("h100-sxm").limits)


def launches(k: Kineto, *at: int, op: int | None = None) -> None:
    """A launch at each time, and its kernel of 1 µs 10 µs later."""
    for t in at:
        k.kernel(GEMM, t + 10_000, t + 11_000, launch=(t, t + 100), op=op)


def test_a_call_has_all_its_kernels_and_its_work_once(tmp_path: Path) -> None:
    k = Kineto()
    launches(k, 200, 400)
    k.op("aten::linear", 0, 1000, **LINEAR)
    k.op("aten::mm", 100, 900, **MM)
    _, calls = calls_of(k, tmp_path)
    assert [call.name for call in calls.calls] == ["aten::mm"]
    assert len(calls.calls[0].activities) == 2
    assert calls.calls[0].ops == (Gemm(64, 16, 32, math="tf32"),)
    assert calls.calls[0].bound is not None
    assert calls.known().all()


def test_an_operator_without_a_rule_belongs_to_the_one_around_it(tmp_path: Path) -> None:
    k = Kineto()
    launches(k, 200, 400)
    k.op("aten::linear", 0, 1000, **LINEAR)
    k.op("mine::secret", 100, 300)
    k.op("aten::mm", 350, 900, **MM)                     # then what is around it has this work too
    _, calls = calls_of(k, tmp_path)
    assert [(call.name, len(call.activities)) for call in calls.calls] == [("aten::linear", 2)]


def test_an_operator_that_nobody_knows_has_no_bound(tmp_path: Path) -> None:
    k = Kineto()
    launches(k, 200)
    k.op("mine::secret", 0, 1000, **MM)
    _, calls = calls_of(k, tmp_path)
    assert [(call.name, call.work, call.bound) for call in calls.calls] == [("mine::secret", None, None)]
    assert not calls.bounded().any()


def test_a_call_without_strides_is_marked(tmp_path: Path) -> None:
    k = Kineto()
    launches(k, 200)
    k.op("aten::mm", 0, 1000, **{key: MM[key] for key in ("Input Dims", "Input type")})
    _, calls = calls_of(k, tmp_path)
    assert calls.bounded().all()
    assert not calls.known().any()


def test_a_kernel_outside_of_operators_has_no_call(tmp_path: Path) -> None:
    k = Kineto()
    launches(k, 200, 5000)
    k.op("aten::mm", 0, 1000, **MM)
    _, calls = calls_of(k, tmp_path)
    assert calls.of_activity.tolist() == [0, -1]


def test_a_kernel_of_a_graph_has_no_call(tmp_path: Path) -> None:
    k = Kineto()
    k.op("aten::mm", 0, 1000, **MM)
    k.graph_launch((200, 300), [(GEMM, 2000, 3000, 7), (GEMM, 3000, 4000, 7)])
    _, calls = calls_of(k, tmp_path)
    assert calls.of_activity.tolist() == [-1, -1]


def test_an_external_id_tells_where_the_launch_is_not_in_the_file(tmp_path: Path) -> None:
    k = Kineto()
    k.kernel(GEMM, 2000, 3000, op=k.op("aten::mm", 0, 1000, **MM))
    _, calls = calls_of(k, tmp_path)
    assert [call.name for call in calls.calls] == ["aten::mm"]


def test_an_external_id_of_an_operator_that_had_ended_is_not_trusted(tmp_path: Path) -> None:
    k = Kineto()
    stale = k.op("aten::mm", 0, 100, **MM)
    k.op("aten::linear", 150, 1000, **LINEAR)
    launches(k, 200, op=stale)
    _, calls = calls_of(k, tmp_path)
    assert [call.name for call in calls.calls] == ["aten::linear"]


def test_a_kernel_that_beats_its_bound_is_noticed(tmp_path: Path) -> None:
    k = Kineto()
    large: dict[str, Any] = {"Input Dims": [[8192, 8192], [8192, 8192]], "Input type": ["c10::BFloat16"] * 2,
             "Input Strides": [[8192, 1], [8192, 1]], "Concrete Inputs": ["", ""]}
    launches(k, 200)
    k.op("aten::mm", 0, 1000, **large)
    trace, calls = calls_of(k, tmp_path)
    assert [(name, ns) for name, _, ns in faster_than_light(trace, calls)] == [("aten::mm", 1000)]
