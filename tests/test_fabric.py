"""Communication against its fabric: sizes from records, the transfer, the interval, the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import KINETO, shared
from kineto import Kineto

from sublight.cluster import parse
from sublight.comm.expect import expect
from sublight.explain import explain
from sublight.explain.fabric import AT_RATE, FASTER, SLOWER, Fabric, placed
from sublight.observe.read import read, read_all
from sublight.show.rows import fabric_lines
from sublight.trace import Trace
from sublight.work import Message

GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ELEMENTS = 1 << 25
MESSAGE = Message("all_reduce", 8, 2 * ELEMENTS)
NODE = parse("8xH100")
EXPECTED = expect(MESSAGE, NODE, dtype="bf16")

SMALL = Message("all_reduce", 8, 1 << 20)
EXPECTED_SMALL = expect(SMALL, NODE, dtype="bf16")       # tens of microseconds


def small_all_reduce(ns: int) -> Kineto:
    # stream 7   ├───────── gemm 100 µs ─────────┤
    # stream 20     ├─ all-reduce of 1 MiB, ns ─┤      hidden: it costs one SM of 132
    k = Kineto(world_size=8)
    k.kernel(GEMM, 0, 100_000, launch=(-2_000, -1_000))
    k.kernel(NCCL, 0, ns, stream=20, launch=(-2_000, -1_000), **record(elements=SMALL.nbytes // 2))
    return k


def record(name: str = "allreduce", elements: int = ELEMENTS, size: int = 8, ranks: str = "") -> dict[str, Any]:
    return {"Collective name": name, "dtype": "BFloat16", "In msg nelems": elements, "Out msg nelems": elements,
            "Group size": size, "Process Group Name": "0", "Process Group Ranks": ranks}


def written(folder: Path, durations_ns: list[int], *, rank: int = 0, begin_ns: int = 0, **more: Any) -> Path:
    """One call after the other, with a compute kernel between."""
    k, at = Kineto(rank=rank, world_size=8), 1_000_000
    for i, ns in enumerate(durations_ns):
        k.kernel(GEMM, at, at + 500_000, launch=(at - 900_000 + 10 * i, at - 900_000 + 10 * i + 5))
        at += 500_000 + begin_ns
        k.kernel(NCCL, at, at + ns, stream=20, launch=(at - 890_000, at - 889_000), **record(**more))
        at += ns
    return k.write(folder / f"rank{rank}.json")


def held(trace: Trace, **options: Any) -> Fabric:
    found = explain(trace, window="all", **options).devices[0].view.fabric
    assert found is not None
    return found


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


@pytest.mark.parametrize(("factor", "verdict", "code"), [
    (1.0, AT_RATE, "SL107"), (EXPECTED.high / EXPECTED.seconds * 1.2, SLOWER, "SL108"),
    (EXPECTED.low / EXPECTED.seconds * 0.98, FASTER, None),
])
def test_the_verdict_is_where_the_transfer_lies(tmp_path: Path, factor: float, verdict: str, code: str | None) -> None:
    trace = read(written(tmp_path, [ns(EXPECTED.seconds * factor)] * 3))
    (row,) = held(trace, cluster=NODE).rows
    assert (row.verdict, row.count, row.ranks, row.nodes) == (verdict, 3, 8, 1)
    found = {f.code for f in explain(trace, window="all", cluster=NODE).devices[0].findings}
    assert found & {"SL107", "SL108"} == ({code} if code else set())


def test_a_slow_fabric_is_found_and_sized(tmp_path: Path) -> None:
    trace = read(written(tmp_path, [ns(3 * EXPECTED.seconds)] * 3))
    (finding,) = [f for f in explain(trace, window="all", cluster=NODE).devices[0].findings if f.code == "SL108"]
    assert finding.gain_ns_at_most == pytest.approx(3 * ns(3 * EXPECTED.seconds - EXPECTED.low), abs=3)
    assert finding.confidence == "medium"
    (assumed,) = [f for f in explain(trace, window="all").devices[0].findings if f.code == "SL108"]
    assert assumed.confidence == "low"
    assert "(assumed)" in assumed.claim


def test_the_shortest_of_alike_calls_is_the_transfer(tmp_path: Path) -> None:
    (row,) = held(read(written(tmp_path, [900_000, 350_000, 600_000])), cluster=NODE).rows
    assert (row.transfer_ns, row.measured_ns) == (350_000, 1_850_000)
    assert row.bus_bandwidth == pytest.approx(MESSAGE.nbytes * 2 * 7 / 8 / 350e-6)


def test_with_several_ranks_the_transfer_is_that_of_who_came_last(tmp_path: Path) -> None:
    late = 200_000
    files = [written(tmp_path, [400_000 + late] * 4), written(tmp_path, [400_000] * 4, rank=1, begin_ns=late)]
    explanation = explain(read_all([str(f) for f in files]), window="all", cluster=NODE)
    assert explanation.ranks is not None
    assert explanation.ranks.refused is None
    for device in explanation.devices:
        assert device.view.fabric is not None
        (row,) = device.view.fabric.rows
        assert row.transfer_ns == 400_000
        assert device.view.fabric.several_ranks


@pytest.mark.parametrize(("size", "ranks", "nodes", "gpus"), [
    (8, (), 1, 8), (16, (), 2, 8), (4, (0, 8, 16, 24), 4, 1), (8, (0, 1, 2, 3, 8, 9, 10, 11), 2, 4), (2, (), 1, 2),
    (12, (), 2, 8),
])
def test_a_group_lies_where_its_ranks_are(size: int, ranks: tuple[int, ...], nodes: int, gpus: int) -> None:
    found = placed(parse("4x8xH100"), size, ranks)
    assert (found.nodes, found.gpus_per_node) == (nodes, gpus)


def test_ranks_of_the_record_decide_the_nodes(tmp_path: Path) -> None:
    trace = read(written(tmp_path, [5_000_000] * 3, size=4, ranks="[0, 8, 16, 24]"))
    (row,) = held(trace, cluster=parse("4x8xH100")).rows
    assert (row.ranks, row.nodes) == (4, 4)
    elided = read(written(tmp_path, [5_000_000] * 3, size=4, ranks="[0, 8, ..., 24]"))
    (row,) = held(elided, cluster=parse("4x8xH100")).rows
    assert (row.ranks, row.nodes) == (4, 1)


@pytest.mark.parametrize(("more", "why"), [
    ({"name": "send"}, "peer"), ({"name": "gather"}, "known collective"), ({"size": 1}, "one rank"),
    ({"elements": 0}, "no bytes"),
])
def test_what_cannot_be_expected_is_refused_by_name(tmp_path: Path, more: dict[str, Any], why: str) -> None:
    found = held(read(written(tmp_path, [400_000] * 3, **more)), cluster=NODE)
    assert found.rows == ()
    ((reason, spent),) = found.refused.items()
    assert why in reason
    assert spent == 1_200_000


@pytest.mark.parametrize(("operator", "kernel", "kind"), [
    ("symm_mem::multimem_all_reduce_", "void multimem_all_reduce_kernel<c10::BFloat16, 16>(int)", "nvls"),
    ("symm_mem::one_shot_all_reduce", "void one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(int)", "one-shot"),
])
def test_arguments_tell_the_size_of_reductions_over_symmetric_memory(
    tmp_path: Path, operator: str, kernel: str, kind: str,
) -> None:
    k = Kineto(world_size=8, record_shapes=True)
    k.kernel(NCCL, 0, 400_000, stream=20, launch=(-900, -800), **record())       # tells that groups are of 8
    types: dict[str, Any] = {"Input type": ["c10::BFloat16", "", ""], "Input Strides": [[5120, 1], [], []],
                             "Concrete Inputs": ["", "sum", "0"]}
    op = k.op(operator, 399_000, 400_000, dims=[[128, 5120], [], []], **types)
    k.kernel(kernel, 500_000, 520_000, launch=(399_100, 399_200), op=op)
    found = held(read(k.write(tmp_path / "trace.json")), cluster=NODE)
    small = expect(Message("all_reduce", 8, 2 * 128 * 5120), NODE, kind=kind)
    (row,) = [row for row in found.rows if row.sizes.startswith(kind)]
    assert (row.count, row.transfer_ns, row.expected.seconds) == (1, 20_000, small.seconds)
    assert not found.refused


def test_the_whole_is_what_the_rows_sum_to(tmp_path: Path) -> None:
    found = held(read(written(tmp_path, [900_000, 350_000])), cluster=NODE)
    measured, low, most, high = found.total_ns()
    assert measured == 1_250_000
    assert (low, most, high) == (ns(2 * EXPECTED.low), ns(2 * EXPECTED.seconds), ns(2 * EXPECTED.high))


def test_the_exchanges_of_the_h800_trace_have_an_expected_time() -> None:
    found = held(read(shared(KINETO["h800"])), cluster=parse("8x8xH800"))
    measured, low, most, high = found.total_ns()
    assert measured == 80_452_000
    assert not found.refused
    assert {(row.what, row.count, row.nodes, row.ranks) for row in found.rows} == {
        ("combine", 8, 8, 64), ("dispatch", 4, 8, 64), ("dispatch (cached)", 4, 8, 64)}
    assert 0.4 * measured < low < most < high < measured
    for said in ("tokens 4096", "top-k 8", "hidden 7168", "at most 4 nodes"):
        assert any(said in line for line in found.assumptions)


def test_sizes_that_are_given_change_what_is_expected() -> None:
    trace = read(shared(KINETO["h800"]))
    half = held(trace, cluster=parse("8x8xH800"), exchange={"tokens": 2048})
    assert half.total_ns()[2] < 0.6 * held(trace, cluster=parse("8x8xH800")).total_ns()[2]


def test_small_calls_are_limited_by_latency_and_told_so(tmp_path: Path) -> None:
    """16 KiB over 8 GPUs: fewer bytes would save nothing."""
    small = expect(Message("all_reduce", 8, 1 << 14), NODE, dtype="bf16")
    path = written(tmp_path, [ns(small.seconds)] * 100, elements=1 << 13)
    trace = read(path)
    found = {f.code: f for f in explain(trace, window="all", cluster=NODE).devices[0].findings}
    assert "latency of its calls, not their bytes" in found["SL107"].claim
    assert "fewer bytes or a faster network will not help" in found["SL107"].action


def test_what_the_file_does_not_size_is_refused_by_name(tmp_path: Path) -> None:
    k = Kineto(world_size=8)
    k.kernel(GEMM, 0, 100_000, launch=(-2_000, -1_000))
    k.kernel("multimem_all_reduce_kernel<c10::BFloat16, 4>", 100_000, 150_000, launch=(-2_000, -1_000))
    k.kernel(NCCL, 150_000, 180_000, stream=20, launch=(-2_000, -1_000))
    found = held(read(k.write(tmp_path / "untold.json")), cluster=NODE)
    assert not found.rows
    assert dict(found.refused) == {"PyTorch multimem: the file does not say what they move": 50_000,
                                   "NCCL ring: the file does not say what they move": 30_000}


def test_more_ranks_than_the_given_cluster_has_are_refused(tmp_path: Path) -> None:
    trace = read(written(tmp_path, [400_000], size=16))
    found = held(trace, cluster=NODE)
    assert not found.rows
    assert list(found.refused) == ["16 ranks, but --on names a cluster of 8"]


@pytest.mark.parametrize("where", ["64x1xH100", "16x4xGB200"])
def test_an_exchange_between_other_nodes_than_its_kernel_tells_is_refused(tmp_path: Path, where: str) -> None:
    k = Kineto(world_size=64)
    k.kernel("void deep_ep::internode::dispatch<false, 8, false, 8>(int4*)", 0, 4_000_000, launch=(-2_000, -1_000))
    sizes = {"tokens": 4096, "top_k": 8, "hidden": 7168, "experts": 256, "form": "fp8"}
    trace = read(k.write(tmp_path / "dispatch.json"))
    found = held(trace, cluster=parse(where), exchange=sizes)
    assert not found.rows
    assert "the kernel's name tells 8 nodes" in next(iter(found.refused))
    assert held(trace, cluster=parse("8x8xH100"), exchange=sizes).rows


def test_calls_faster_than_the_fabric_are_not_said_to_wait(tmp_path: Path) -> None:
    found = held(read(written(tmp_path, [1_000])), cluster=NODE)
    assert any("more than they took" in line for line in fabric_lines(found))
    found = held(read(written(tmp_path, [900_000])), cluster=NODE)
    assert any("the rest is waiting" in line for line in fabric_lines(found))
