"""Operator times: the form and its table twin, held-out shapes and devices, what-ifs, doubtful tables, collectives."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import loaded

from sublight import ops
from sublight.comm.expect import expect
from sublight.device import by_key
from sublight.errors import InputError
from sublight.ops.op import Op, Operand
from sublight.predict.machine import RATES, machine, whatif
from sublight.predict.operators import constants, op_time, silicon
from sublight.predict.operators.collective import graph_rows
from sublight.predict.operators.curves import FORMS, rates
from sublight.predict.operators.doubtful import copied, host_bound, steady
from sublight.predict.operators.tiles import Product, Rows, Tiled, parts
from sublight.work import Message

BENCH = Path(__file__).parent.parent / "bench"
TABLED = tuple(silicon.SYSTEMS)
needs_tables = pytest.mark.skipif(not silicon.available(), reason="no tables: pip install sublight[silicon]")

DENSE = (
    ops.Gemm(16, 4096, 4096), ops.Gemm(8192, 8192, 8192), ops.Gemm(64, 512, 128, batch=128),
    ops.Gemm(64, 4096, 4096, a="fp8", b="fp8"), ops.ScaledGemm(64, 7168, 2048, "fp8", "fp8", 4096),
    ops.ScaledGemm(64, 8192, 8192, "bf16", "int4", 64),
)
SMALL = (
    ops.Normalisation(64 * 4096, 4096, residual=True), ops.Rotary(64, 40, 128), ops.CacheWrite(64, 2048),
    ops.Elementwise((Operand(64 * 8192, "bf16"),), (Operand(64 * 4096, "bf16"),), 2),
    ops.Gather(64 * 4096, "bf16", Operand(64, "int64"), 4096), ops.Routing(64, 256, 8), ops.Permute(64, 8, 4096),
    ops.Softmax(64 * 1024), ops.CrossEntropy(64, 128256),
)
TRAFFIC = (
    ops.Communication("all_reduce", 8, 64 * 8192, "bf16"), ops.Communication("all_gather", 8, 1 << 26, "bf16"),
    ops.Communication("all_to_all", 16, 64 * 8 * 7168, "fp8"), ops.Communication("send_recv", 2, 64 * 8192, "bf16"),
    ops.Communication("reduce_scatter", 16, 1 << 24, "bf16"),
)
EVERY = (*DENSE, *SMALL, *TRAFFIC)
MACHINES = (("2x8xH200", "vllm"), ("2x8xB200", "trtllm"), ("2x8xA100", "sglang"), ("2x8xH800", "torch"))


@cache
def bench() -> ModuleType:
    return loaded(BENCH / "fit_operators.py")


def named(op: Op) -> str:
    return f"{type(op).__name__}-{getattr(op, 'm', getattr(op, 'collective', ''))}{getattr(op, 'a', '')}"


def every_table() -> Iterator[constants.Dense]:
    for device, libraries in constants._files().items():
        for library, forms in libraries.items():
            for form in FORMS:
                if form in forms and "rejected" not in forms[form]:
                    yield constants.dense(by_key(device), library, form)


# ---- the form


def seconds(tiled: Tiled, product: Product) -> float:
    """What gemm.py makes of the parts, where nothing is quantised."""
    found = parts(tiled, product)
    powers = sum(term**tiled.p for term in (found.tensor, found.on_chip, found.memory))
    return float(found.fixed + powers ** (1 / tiled.p))


@pytest.mark.parametrize("library", ["vllm", "trtllm"])
def test_the_form_of_one_product_is_the_form_of_a_table(library: str) -> None:
    device = by_key("h200")
    found = constants.dense(device, library, "bf16").tiled
    cold = Tiled(**{name: getattr(found, name) for name in ("fixed", "wave", "split", "tensor", "shrink", "slowing",
                                                            "on_chip", "memory", "p")})
    chosen = np.random.default_rng(7)
    m, n, k = (np.exp(chosen.uniform(0, 10, 200)).astype(int) + 1 for _ in range(3))
    moved = 2.0 * (m * k + n * k + m * n)
    table = Rows({"m": m, "n": n, "k": k, "moved": moved, "a_bytes": 2.0, "b_bytes": 2.0},
                 device.limits.sms, device.limits.l2_bytes)
    flops, memory = rates(device, "bf16")
    one = [seconds(cold, Product(int(a), int(b), int(c), 1, 2.0, 2.0, float(d), device.limits.sms, flops, memory))
           for a, b, c, d in zip(m, n, k, moved, strict=True)]
    assert one == pytest.approx(table.seconds(cold, flops, memory).tolist(), rel=1e-9)


def test_a_tile_more_than_fits_takes_another_wave() -> None:
    tiled = Tiled(0.0, 1e-6, 1.0, 1.0, 1.5, 0.0, 1e6, 1.0, 6.0)      # small tiles are slow: the largest is taken
    full, more = (seconds(tiled, Product(256 * 4, 128 * tiles, 4096, 1, 2, 2, 0.0, 8, 1e12, 1e12)) for tiles in (2, 3))
    assert more / full == pytest.approx(2.0, rel=0.01)          # 8 tiles of 8 SMs, then 12: two waves


# ---- accuracy, where the tables are


def held_out(one: Any, count: int) -> tuple[Any, Any, Any]:
    """(modelled by the shipped constants, roofline, measured) of a sample of held-out rows."""
    pick = bench().picked(bench().held_out(one.n, one.k), count)
    tiled = constants.dense(by_key(one.device), one.library, one.form).tiled
    return one.rows(pick).seconds(tiled, *one.rates), one.roofline(pick), one.seconds[pick]


def pooled(device: str) -> dict[bool, tuple[float, float]]:
    """bf16? -> (median error of constants, of the roofline) on held-out shapes of every table that is not rejected."""
    ours: dict[bool, list[Any]] = {}
    lines: dict[bool, list[Any]] = {}
    for one in bench().tables((device,)):
        if constants.rejected(one.device, one.library, one.form) is None:
            modelled, roofline, measured = held_out(one, 1500)
            ours.setdefault(one.form == "bf16", []).append(abs(modelled / measured - 1))
            lines.setdefault(one.form == "bf16", []).append(abs(roofline / measured - 1))
    return {plain: (float(np.median(np.concatenate(ours[plain]))), float(np.median(np.concatenate(lines[plain]))))
            for plain in ours}


@needs_tables
@pytest.mark.parametrize("device", ["h200", pytest.param("b200", marks=pytest.mark.heavy), *(
    pytest.param(key, marks=pytest.mark.heavy) for key in TABLED if key not in ("h200", "b200"))])
def test_held_out_shapes_by_constants_alone(device: str) -> None:
    found = pooled(device)
    assert found[True][0] <= 0.10, "bf16"
    assert found[False][0] <= 0.18, "quantised"
    assert found[True][0] < found[True][1] / 2, "beside the roofline"


@needs_tables
@pytest.mark.heavy
def test_a_device_held_out_is_served_by_the_others() -> None:
    errors = []
    for device in TABLED:
        for one in bench().tables((device,)):
            if constants.rejected(one.device, one.library, one.form) is None:
                modelled, measured = bench().carried(one)
                errors.append(abs(modelled / measured - 1))
    assert np.median(np.concatenate(errors)) <= 0.30


@needs_tables
def test_a_measured_product_is_what_the_table_says() -> None:
    """bf16 of 134 MB: too large for the L2, and nothing is quantised."""
    columns = silicon.table("h200", "gemm", "trtllm", "gemm_perf")
    assert columns is not None
    row = np.flatnonzero((columns["gemm_dtype"] == "bfloat16") & (columns["m"] == 64) & (columns["n"] == 8192)
                         & (columns["k"] == 8192))
    found = op_time(ops.Gemm(64, 8192, 8192), machine("8xH200", "trtllm"))
    assert found.basis == "table"
    assert found.seconds == pytest.approx(columns["latency"][row[0]] * 1e-3, rel=0.01)


@needs_tables
def test_tables_help_between_shapes() -> None:
    one = next(t for t in bench().tables(("h200",)) if (t.library, t.form) == ("trtllm", "bf16"))
    pick = bench().picked(bench().held_out(one.n, one.k), 400)
    found = constants.dense(by_key("h200"), "trtllm", "bf16")
    alone = bench().error(one.rows(pick).seconds(found.tiled, *one.rates), one.seconds[pick])
    through = bench().error(bench().between(one, found, pick), one.seconds[pick])
    assert np.median(through) < np.median(alone)


# ---- what-ifs


@pytest.mark.parametrize(("gpus", "library"), MACHINES)
@pytest.mark.parametrize("op", EVERY, ids=named)
def test_elasticities_sum_to_minus_one(op: Op, gpus: str, library: str) -> None:
    where = machine(gpus, library)
    found = op_time(op, where)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert set(found.shares) <= set(RATES)
    assert min(found.shares.values()) >= 0
    assert op_time(op, whatif(where, dict.fromkeys(RATES, 2.0))).seconds == pytest.approx(found.seconds / 2)


@pytest.mark.parametrize("op", [*DENSE, *SMALL], ids=named)
def test_a_share_is_the_elasticity(op: Op) -> None:
    where = machine("8xH100")
    for rate, share in op_time(op, where).shares.items():
        more = op_time(op, whatif(where, {rate: 1.001})).seconds
        assert (more / op_time(op, where).seconds - 1) / 0.001 == pytest.approx(-share, abs=2e-3)


@pytest.mark.parametrize("key", ["8xH200", "8xB200", "8xL40S"])
@pytest.mark.parametrize("op", [*DENSE, *SMALL], ids=named)
def test_constants_alone_are_never_below_the_bound(op: Op, key: str) -> None:
    where = machine(key)
    object.__setattr__(where, "tables", False)
    found = op_time(op, where)
    assert found.seconds >= found.least > 0 or found.least == 0
    assert found.basis in ("constants", "transfer", "judgement")


@pytest.mark.parametrize("library", ["vllm", "sglang", "trtllm"])
def test_few_rows_wait_for_memory_not_for_tensor_cores(library: str) -> None:
    """64 rows of fp8: 131 MB of weights, and a tenth of the tensor cores' time."""
    op = ops.ScaledGemm(64, 25600, 5120, "fp8", "fp8", 4096)
    where = machine("2xH200", library)
    assert op_time(op, where).shares["memory"] > 0.7
    assert op_time(op, whatif(where, {"memory": 2.0})).seconds < 0.7 * op_time(op, where).seconds


# ---- whose constants


def test_a_device_without_tables_takes_the_nearest_and_says_so() -> None:
    own, carried = (op_time(ops.Gemm(16, 4096, 4096), machine(gpus)) for gpus in ("8xH100", "8xH800"))
    assert carried.basis == "transfer"
    assert carried.seconds == pytest.approx(constants_only(ops.Gemm(16, 4096, 4096), "8xH100"), rel=0.05)
    assert carried.spread > own.spread


def constants_only(op: Op, gpus: str) -> float:
    where = machine(gpus)
    object.__setattr__(where, "tables", False)
    return op_time(op, where).seconds


@pytest.mark.parametrize(("device", "donor"), [("h800", "h100-sxm"), ("gh200-144", "h200"), ("l4", "l40s"),
                                               ("a100-pcie-80", "a100-sxm-80")])
def test_the_nearest_device_is_of_the_same_generation(device: str, donor: str) -> None:
    assert constants.dense(by_key(device), "vllm", "bf16").device == donor


@pytest.mark.parametrize("device", ["h200", "b200", "l40s"])
def test_the_host_bound_table_is_not_used(device: str) -> None:
    """vLLM 0.24's fp8-block products took at least 55 to 280 us."""
    assert "times" in str(constants.rejected(device, "vllm", "fp8_block"))
    found = op_time(ops.ScaledGemm(1, 1024, 1024, "fp8", "fp8", 4096), machine(f"8x{device}", "vllm"))
    assert found.seconds < 12e-6


def test_scales_that_an_engine_fuses_are_not_charged() -> None:
    """TensorRT-LLM's measured fp8 product quantises first, in 8 us; its step does not."""
    fp8 = ops.Gemm(1, 2048, 2048, a="fp8", b="fp8")
    assert op_time(fp8, machine("8xH200", "trtllm")).seconds < 7e-6
    found = constants.dense(by_key("h200"), "trtllm", "fp8").tiled
    assert 6e-6 < found.quantise_fixed < 11e-6


def test_a_format_that_the_device_does_not_multiply_runs_on_wider_ones() -> None:
    narrow = op_time(ops.Gemm(1, 8192, 8192, a="fp8", b="fp8"), machine("8xA100"))
    assert narrow.seconds < op_time(ops.Gemm(1, 8192, 8192), machine("8xA100")).seconds      # half the bytes
    assert op_time(ops.Gemm(8192, 8192, 8192, a="fp8", b="fp8"), machine("8xA100")).limiter == "tensor"


def test_a_number_format_without_a_rate_is_refused() -> None:
    with pytest.raises(InputError, match="fp64"):
        op_time(ops.Gemm(64, 64, 64, a="fp64", b="fp64"), machine("8xL40S"))


# ---- doubtful tables


def test_a_floor_three_times_a_siblings_rejects() -> None:
    assert set(host_bound({"vllm": 60e-6, "sglang": 4e-6, "trtllm": 11e-6})) == {"vllm"}
    assert host_bound({"vllm": 60e-6}) == {}


def test_a_row_that_more_work_undercuts_is_dropped() -> None:
    """n·k      0 0 0 0   1 1
       m        1 2 3 4   1 2
       µs       2 9 3 4   5 4     9 for 2 rows, 3 for 3; 5 and 4 lie within the tolerance"""
    keep = steady(np.array([0, 0, 0, 0, 1, 1]), np.array([1, 2, 3, 4, 1, 2]), np.array([2.0, 9, 3, 4, 5, 4]))
    assert keep.tolist() == [True, False, True, True, True, True]


def test_one_measurement_under_two_names_is_noticed() -> None:
    measured = np.random.default_rng(0).uniform(1, 2, 50)
    assert copied(measured, measured.copy())
    assert not copied(measured, measured * np.random.default_rng(1).normal(1, 0.01, 50))


@needs_tables
def test_eager_all_reduces_are_kept_apart() -> None:
    sizes, times = graph_rows("h200", "vllm", 8)
    assert len(sizes) > 5
    assert times[0] < 7e-6                                       # eager ones: 20 us and more


# ---- collectives


@pytest.mark.parametrize("gpus", ["8xH200", "2x8xH100", "72xGB200"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "send_recv"])
def test_between_two_knots_a_collective_is_what_fabric_expects(gpus: str, collective: str) -> None:
    where = machine(gpus, "torch")
    group = min(where.cluster.ranks, 16) if collective != "send_recv" else 2
    for elements in (5_000, 700_000, 90_000_000):
        found = op_time(ops.Communication(collective, group, elements, "bf16"), where)
        crossing = 2 * where.cluster.domain if collective == "send_recv" and where.cluster.nodes > 1 and \
            where.cluster.domain < where.cluster.ranks else group
        direct = expect(Message(collective, crossing, 2 * elements), where.cluster).seconds
        assert found.seconds == pytest.approx(direct, rel=0.12)


def test_where_shares_of_traffic_lie() -> None:
    inside, across = machine("8xH200"), machine("2x8xH200")
    big = 1 << 30
    assert op_time(ops.Communication("all_gather", 8, big, "bf16"), inside).limiter == "nvlink"
    assert op_time(ops.Communication("all_gather", 16, big, "bf16"), across).limiter == "nic"
    assert op_time(ops.Communication("send_recv", 2, big, "bf16"), across).limiter == "nic"
    assert op_time(ops.Communication("all_reduce", 8, 1024, "bf16"), inside).limiter == "fixed"
    assert op_time(ops.Communication("all_reduce", 1, 1024, "bf16"), inside).seconds == 0


def test_engines_take_their_own_all_reduce_in_one_domain() -> None:
    small = ops.Communication("all_reduce", 8, 16 * 4096, "bf16")
    assert constants_only(small, "8xH200") < 0.6 * op_time(small, machine("8xH200", "torch")).seconds


# ---- small kernels


def test_a_decode_layers_small_kernels_take_about_ten_microseconds() -> None:
    """Two norms with residual, rotary, cache write, activation, for 16 tokens: 1.5 to 3 us each."""
    where = machine("8xH200", "vllm")
    layer = (ops.Normalisation(16 * 4096, 4096, residual=True),) * 2 + (
        ops.Rotary(16, 40, 128), ops.CacheWrite(16, 2048),
        ops.Elementwise((Operand(16 * 28672, "bf16"),), (Operand(16 * 14336, "bf16"),), 2))
    assert 7e-6 < sum(op_time(op, where).seconds for op in layer) < 15e-6


# ---- speed


def test_a_time_that_is_known_takes_microseconds() -> None:
    where = machine("8xH200")
    for op in EVERY:
        op_time(op, where)
    start = time.process_time()
    for _ in range(200):
        for op in EVERY:
            op_time(op, where)
    assert (time.process_time() - start) / 200 / len(EVERY) < 20e-6


def test_constants_say_where_they_are_from() -> None:
    for found in every_table():
        assert found.source.startswith("fitted on aiconfigurator-core")
        assert 0 < found.spread_small < 0.5
        assert 0 < found.tiled.memory <= 1
        assert 0 < found.tiled.tensor <= 1
        assert math.isfinite(found.tiled.p)
