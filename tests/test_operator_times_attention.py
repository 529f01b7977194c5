"""Times of attention, latent attention, indexers, experts and recurrent layers: form, bounds, what-ifs, held-out
shapes, tables, how rows fall to experts."""

from __future__ import annotations

import time
import zlib
from dataclasses import replace
from math import exp, log
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublight import ops
from sublight.bound import bound
from sublight.device import by_key
from sublight.errors import InputError
from sublight.models.step import Batch
from sublight.ops.moe import Experts
from sublight.ops.op import Op
from sublight.predict.machine import RATES, Machine, machine, whatif
from sublight.predict.operators import (
    attention,
    doubtful,
    experts,
    index,
    latent,
    measured,
    op_time,
    routing,
    silicon,
)
from sublight.predict.operators.fitted import nearest, shipped
from sublight.predict.operators.surface import Curve, Surface

needs_tables = pytest.mark.skipif(not silicon.available(), reason="no tables: pip install sublight[silicon]")


def grouped(batch: Batch, *, heads: int = 16, kv_heads: int = 2, d: int = 128, window: int | None = None,
            kv: str = "bf16") -> ops.Attention:
    return ops.Attention(batch.pairs(window=window), batch.rows, batch.keys(window=window), heads, kv_heads, d, d,
                         kv=kv, sequences=batch.sequences, window=window)


def mixture(tokens: int, *, ep: int = 1, form: str = "fp8_block", inner: int = 2048) -> Experts:
    made = experts.as_op(experts.Shape(form, 7168, inner, 8, 256, ep, "balanced"), tokens)
    assert made is not None
    return made


DECODE, PREFILL = Batch(64, 1, 2047, decode=True), Batch(2, 3000)
SPARSE = latent.as_op("sparse", 16, "fp8", 2, 512)
EVERY: tuple[Op, ...] = (
    grouped(DECODE), grouped(PREFILL), grouped(DECODE, window=128, d=64), grouped(PREFILL, window=128, d=64),
    replace(grouped(PREFILL), backward=True, sequences=None), latent.as_op("decode", 16, "bf16", 8, 4096),
    latent.as_op("prefill", 16, "bf16", 1, 4096), SPARSE, ops.IndexScores(64, 64 * 8192, 64 * 8192, 32, 128, 2048),
    ops.IndexScores(512, 4096, 512 * 3840, 32, 128, 2048), mixture(1), mixture(64, ep=8), mixture(8192),
    mixture(64, form="w4a16_mxfp4"), Experts(64, 8, 100, 4096, 1024), ops.GroupedGemm(4096, 4096, 4096, 16),
    ops.Recurrence(4096, 2, 32, 16, 128, 128, gates=64, chunk=64), ops.Recurrence(64, 64, 32, 16, 128, 128, gates=64),
    ops.ShortConvolution(4096, 2, 8192, 4),
)
MACHINES = (("8xH200", "vllm"), ("8xB200", "trtllm"), ("8xH800", "sglang"), ("8xH100", "torch"))


@pytest.mark.parametrize(("gpus", "library"), MACHINES)
@pytest.mark.parametrize("op", EVERY, ids=lambda op: type(op).__name__)
def test_every_rate_speeds_up_by_its_share(op: Op, gpus: str, library: str) -> None:
    """Elasticities sum to -1, none has the wrong sign, and each is the derivative of the time."""
    where = replace(machine(gpus, library), tables=False)
    found = op_time(op, where)
    assert found.seconds > 0
    assert found.spread > 0
    assert found.basis in ("constants", "transfer", "judgement")
    assert sum(found.shares.values()) == pytest.approx(1)
    assert min(found.shares.values()) >= 0
    assert set(found.shares) <= set(RATES)
    for rate, share in found.shares.items():
        faster = op_time(op, whatif(where, {rate: 1.001}))
        assert (faster.seconds / found.seconds - 1) / 0.001 == pytest.approx(-share, abs=2e-3)
    assert op_time(op, whatif(where, dict.fromkeys(RATES, 2.0))).seconds == pytest.approx(found.seconds / 2)


@pytest.mark.parametrize("op", EVERY, ids=lambda op: type(op).__name__)
def test_the_bound_is_that_of_the_op(op: Op) -> None:
    """Said by fewer steps than op.work(), and the same; vector arithmetic never bounds these. Experts: of even rows,
    which is what op.experts_used counts."""
    if isinstance(op, ops.GroupedGemm):
        return
    where = replace(machine("8xH200", "vllm"), tables=False, routing="balanced")
    least = bound(op.work(), where.device.limits)
    assert least is not None
    if isinstance(op, Experts) and op.weights == "fp4":          # not multiplied there: widened to 16 bits
        return
    assert op_time(op, where).least == pytest.approx(least.seconds, rel=1e-9)


@pytest.mark.parametrize("op", [op for op in EVERY if not isinstance(op, ops.GroupedGemm)],
                         ids=lambda op: type(op).__name__)
def test_no_time_is_below_its_bound(op: Op) -> None:
    for gpus, library in MACHINES:
        found = op_time(op, replace(machine(gpus, library), tables=False))
        assert found.seconds >= found.least


@given(st.integers(1, 64), st.integers(1, 500), st.integers(0, 4000))
def test_sequences_are_found_from_pairs(sequences: int, tokens: int, context: int) -> None:
    """Of equally long ones under a causal mask: queries, keys and pairs tell how many there are."""
    batch = Batch(sequences, tokens, context)
    op = replace(grouped(batch), sequences=None)
    if batch.pairs() > batch.rows / 2 + 1e-9:
        assert attention.sequences_of(op) == pytest.approx(sequences)


def test_phases() -> None:
    """One new token over a cache is a decode, drafts too; a prompt and a chunk of one are not."""
    decodes = (Batch(8, 1, 99, decode=True), Batch(8, 4, 99, decode=True))
    prefills = (Batch(1, 4096), Batch(2, 512, 512), Batch(64, 1))
    assert [attention.is_decode(grouped(batch)) for batch in (*decodes, *prefills)] == [True, True, False, False, False]
    assert [latent.phase(latent.as_op(kind, 16, "bf16", 4, 512)) for kind in latent.TABLES] == list(latent.TABLES)


def test_a_longer_cache_and_more_sequences_take_longer() -> None:
    where = replace(machine("8xB200", "vllm"), tables=False)
    times = [op_time(grouped(Batch(b, 1, c, decode=True)), where).seconds for b, c in ((1, 99), (1, 9999), (32, 9999))]
    assert times == sorted(times)
    assert times[2] > 3 * times[1]


def test_a_cold_cache_takes_longer() -> None:
    """2,048 keys of 8 sequences, 16 MiB, stay in the L2 of a benchmark, not of a model's step."""
    where = replace(machine("8xH200", "sglang"), tables=False)
    op = grouped(Batch(8, 1, 2047, decode=True))
    cold, warm = op_time(op, where), op_time(op, replace(where, cold=False))
    assert warm.seconds < cold.seconds < warm.seconds + 2 * op.work().bytes_total / 4.8e12


def test_attention_on_a_device_without_the_format_is_refused() -> None:
    op = replace(grouped(DECODE), q="fp8")
    with pytest.raises(InputError, match=r"attention in fp8.*catalog/devices\.toml"):
        op_time(op, machine("8xA100", "vllm"))


def test_nvfp4_experts_are_widened_where_fp4_is_not_multiplied() -> None:
    hopper, blackwell = (op_time(mixture(8192, form="nvfp4"), replace(machine(gpus, "vllm"), tables=False))
                         for gpus in ("8xH200", "8xB200"))
    assert hopper.basis == "transfer"
    assert hopper.seconds > 2 * blackwell.seconds


# ---- constants -----------------------------------------------------------------------------------------------------


def test_constants_of_the_nearest_device() -> None:
    """An H800 has those of an H200 or H100, wider; a library's own device goes before another library's."""
    own = nearest("attention", ("decode 128 bf16-bf16",), by_key("h200"), "vllm")
    other = nearest("attention", ("decode 128 bf16-bf16",), by_key("h800"), "vllm")
    assert own
    assert other
    assert own.basis == "constants"
    assert other.basis == "transfer"
    assert other.device in ("h200", "h100-sxm")
    assert other.library == "vllm"
    assert other.spread > 0
    card = nearest("attention", ("decode 128 bf16-bf16",), by_key("l4"), "vllm")
    assert card
    assert card.device == "l40s"
    left = nearest("attention", ("decode 128 bf16-bf16",), by_key("h200"), "vllm", without=frozenset({"h200"}))
    assert left
    assert left.device == "h100-sxm"


# ---- how rows fall to experts --------------------------------------------------------------------------------------


@given(st.integers(1, 4096), st.sampled_from((1, 2, 8)), st.sampled_from((8, 64, 256)), st.sampled_from((1, 2, 8)),
       st.sampled_from(("balanced", "uniform", "power_law_1.01", "power_law_1.2")))
def test_rows_of_the_busiest_group(tokens: int, top_k: int, count: int, groups: int, how: str) -> None:
    """At least the mean, at most all of them; tiles hold the rows; no more experts than there are."""
    found = routing.rows(tokens, top_k, count, groups, how)
    total = tokens * top_k
    assert total / groups * 0.9 <= found.rows <= total * 1.1 + 1         # of two tokens one row more may be drawn
    assert found.padded >= found.rows * 0.999
    assert 0 < found.used <= count / groups + 1e-9


def test_skew_uses_fewer_experts_and_loads_one_group() -> None:
    even, drawn, skewed = (routing.rows(256, 8, 256, 8, how) for how in ("balanced", "uniform", "power_law_1.2"))
    assert even.used == 32
    assert skewed.used < drawn.used <= 32
    assert skewed.rows > 1.2 * even.rows
    assert skewed.most > 5 * even.most


def test_a_histogram_of_shares() -> None:
    """Half of the rows on one of four experts, a quarter on the next; no expert more than once a token."""
    found = routing.rows(1024, 2, 4, 1, (4.0, 2.0, 1.0, 1.0))
    assert found.rows == pytest.approx(2048, rel=0.01)
    assert found.most == pytest.approx(1024, rel=0.01)
    with pytest.raises(InputError, match="routing 'zipf': expected balanced"):
        routing.rows(64, 8, 256, 1, "zipf")


def test_imbalance_that_a_split_states_goes_before_the_machine_s_routing() -> None:
    """Twice the mean on the busiest group: the time of an even batch twice as large."""
    even = mixture(4096, ep=8)
    stated = replace(even, tokens=2 * even.tokens)
    where = replace(machine("8xH200", "trtllm"), tables=False, routing="balanced")
    skewed = replace(where, routing="power_law_1.2")
    assert op_time(stated, skewed).seconds == pytest.approx(op_time(mixture(8192, ep=8), where).seconds, rel=0.02)
    assert op_time(even, skewed).seconds > 1.1 * op_time(even, where).seconds


# ---- tables that are rejected --------------------------------------------------------------------------------------


def flat(seconds: float, shapes: int = 10) -> dict[int, dict[float, float]]:
    return {shape: {8.0: seconds, 32.0: 2 * seconds} for shape in range(shapes)}


def test_a_format_slower_than_a_wider_one_is_rejected() -> None:
    """At the limits, and not where too few shapes are in common to tell."""
    assert doubtful.slow_format(flat(1.19), {"bfloat16": flat(1.0)}, {"trtllm": flat(0.4)}) is None
    assert doubtful.slow_format(flat(1.21), {"bfloat16": flat(1.0)}, {}) == "1.21 times the library's bfloat16"
    assert doubtful.slow_format(flat(3.1), {}, {"trtllm": flat(1.0), "sglang": flat(2.0)}) == "3.10 times trtllm's"
    assert doubtful.slow_format(flat(9.0), {"bfloat16": flat(1.0, 9)}, {"trtllm": {99: {8.0: 1.0}}}) is None


@needs_tables
def test_fp8_of_vllm_on_hopper_is_rejected() -> None:
    """Of 0.24.0, whose kernel nobody tuned: slower than bfloat16. The rule finds it; 0.19.0 stands in on H200."""
    few: dict[str, dict[experts.Shape, dict[float, float]]] = {"fp8": {}, "bfloat16": {}}
    for form, found in few.items():
        only = (("moe_dtype", form), ("hidden_size", 4096))
        table = next(measured.tables("h200", "moe", "vllm", "moe_perf", None, experts.KEYS, only))
        assert table.version == "0.24.0"
        for shape, points in experts.curves_of(table).items():
            found[replace(shape, form="")] = {t: s for t, s in points.items() if t <= doubtful.FEW_ROWS}
    assert doubtful.slow_format(few["fp8"], {"bfloat16": few["bfloat16"]}, {})
    assert ("h200", "vllm", "0.24.0", "fp8") in experts.rejected()
    kept = experts.all_curves("h200", "vllm", None, None, (("moe_dtype", "fp8"), ("hidden_size", 4096)))
    assert [len(curves) > 0 for curves in kept] == [False, True]
    assert experts.stand_in("h200", "vllm", "fp8") is None
    assert experts.stand_in("h100-sxm", "vllm", "fp8") == "trtllm"


@pytest.mark.parametrize("tables", [False, pytest.param(True, marks=needs_tables)])
def test_the_sibling_of_a_rejected_table_stands_in(tables: bool) -> None:
    """Mixtral on H100: TensorRT-LLM's time, less sure, and faster than twice the bytes."""
    ours, sibling = (replace(machine("4xH100", library), tables=tables) for library in ("vllm", "trtllm"))
    fp8, wide = (experts.as_op(experts.Shape(form, 4096, 3584, 2, 8, 1, "balanced"), 32)
                 for form in ("fp8", "bfloat16"))
    assert fp8
    assert wide
    found, other = op_time(fp8, ours), op_time(fp8, sibling)
    assert found.basis == "transfer"
    assert found.seconds == pytest.approx(other.seconds)
    assert found.spread > other.spread
    assert found.seconds < 0.75 * op_time(wide, ours).seconds


@pytest.mark.parametrize("library", silicon.BACKENDS)
@pytest.mark.parametrize("device", silicon.SYSTEMS)
def test_no_constants_make_fewer_bytes_slower(device: str, library: str) -> None:
    """GLM-4.5 on four, 32 tokens, by constants: every format that was fitted against bfloat16's. Not compared: weights
    of four bits with TensorRT-LLM on Blackwell, of which only layers of gpt-oss were measured, at 2.3 times a
    sibling's time."""
    shape = experts.Shape("bfloat16", 5120, 384, 8, 160, 1, "balanced")
    wide = experts.model(shape, 32, device, library)
    for form in experts.FORMS:
        alone = form == "w4a16_mxfp4" and library == "trtllm" and device in ("b200", "b300", "gb200", "gb300")
        if shipped("experts", device, library, form) and not alone:
            assert experts.model(replace(shape, form=form), 32, device, library) < 1.2 * wide, form


def test_the_bound_is_of_the_rows_that_the_time_has() -> None:
    """Skewed tokens use fewer experts than even ones: less to read at the least, and never above the time."""
    op = experts.as_op(experts.Shape("nvfp4", 4096, 14336, 2, 8, 1, "balanced"), 4)
    assert op
    for library in silicon.BACKENDS:
        where = replace(machine("4xB200", library), tables=False)
        even, skewed = (op_time(op, replace(where, routing=how)) for how in ("balanced", "power_law_1.2"))
        assert skewed.least < 0.8 * even.least
        assert even.seconds >= even.least
        assert skewed.seconds >= skewed.least


@needs_tables
def test_rows_faster_than_their_bound_are_left_out() -> None:
    """nvfp4 of TensorRT-LLM on B200, halves of eight experts: 24 us where their weights alone take 33."""
    op = experts.as_op(experts.Shape("nvfp4", 4096, 7168, 2, 8, 1, "power_law_1.01"), 32)
    assert op
    where = machine("4xB200", "trtllm")
    found = op_time(op, where)
    assert found.basis == "table"
    assert found.seconds >= found.least > 30e-6
    shape = experts.Shape("nvfp4", 4096, 7168, 2, 8, 1, "power_law_1.01")
    assert experts.possible(shape, {32.0: 24e-6, 64.0: 60e-6}, "b200") == {64.0: 60e-6}
    assert op_time(op, whatif(where, {"memory": 2.0})).seconds < found.seconds


# ---- between measured points ---------------------------------------------------------------------------------------


def test_between_points_of_a_surface() -> None:
    """Along ln x, between two b by their share, held beyond the ends."""
    curve = Curve.of({1.0: 1.0, 4.0: 4.0})
    assert exp(curve.at(log(2))) == pytest.approx(2)
    assert exp(curve.at(log(9))) == pytest.approx(4)
    plane = Surface.of({(1, 1): 1.0, (1, 4): 4.0, (4, 1): 2.0, (4, 4): 8.0})
    assert exp(plane.at(log(2), log(2))) == pytest.approx(2 * 2 ** 0.5)
    assert exp(plane.at(log(99), log(0.5))) == pytest.approx(2)


@needs_tables
@pytest.mark.parametrize("library", ["vllm", pytest.param("sglang", marks=pytest.mark.heavy),
                                     pytest.param("trtllm", marks=pytest.mark.heavy)])
def test_a_measured_point_is_met(library: str) -> None:
    """Of a benchmark (warm caches): the table's own latency, of decode, prefill and experts."""
    where = replace(machine("8xH200", library), cold=False, routing="balanced")
    for decode, name, axis, at in ((True, "generation_attention_perf", "step", (16, 1023)),
                                   (False, "context_attention_perf", "isl", (2, 1024))):
        table = next(measured.tables("h200", "attention", library, name, None, attention.KEYS))
        points = table.points(table.groups[32, 4, 128, 0, "bfloat16", "bfloat16"], "batch_size", axis)
        op = attention.as_op(attention.Geometry(32, 4, 128, 0, "bf16", "bf16"), at[0], at[1] + decode, decode=decode)
        found = op_time(op, where)
        assert found.basis == "table"
        assert found.seconds == pytest.approx(points[at], rel=1e-6)
    shape, curves = next((shape, curves) for curves in experts.all_curves("h200", library, None) for shape in curves
                         if shape.form == "fp8_block" and shape.routing == "balanced" and shape.experts == 128)
    experts_op = experts.as_op(shape, 1024)
    assert experts_op
    assert op_time(experts_op, where).seconds == pytest.approx(curves[shape][1024], rel=1e-6)


@needs_tables
def test_ratios_of_tables_leave_what_ifs_true() -> None:
    where = machine("8xH200", "vllm")
    op = grouped(Batch(64, 1, 8191, decode=True))
    found, twice = op_time(op, where), op_time(op, whatif(where, {"memory": 2.0}))
    assert found.basis == "table"
    assert found.shares["memory"] > 0.6
    assert 0.5 < twice.seconds / found.seconds < 0.7


@needs_tables
def test_tables_that_hold_another_operator_are_left_out() -> None:
    """SGLang's latent prefill on Hopper was absorbed, its decode with an fp8 cache converted the whole pool."""
    decode = {key[1] for key in latent.measured_points("h200", "sglang", None, "decode")}
    assert latent.measured_points("h200", "sglang", None, "prefill") == {}
    assert decode == {"bf16"}
    assert {key[1] for key in latent.measured_points("b200", "sglang", None, "decode")} == {"bf16", "fp8"}


@needs_tables
@pytest.mark.parametrize(("device", "gpus"), [("h200", "8xH200"),
                                          pytest.param("b200", "8xB200", marks=pytest.mark.heavy)])
def test_held_out_attention_by_constants_alone(device: str, gpus: str) -> None:
    """Every 97th point of geometries that no constant was fitted on (bench/fit_attention.py splits by this hash)."""
    errors = []
    for library in silicon.BACKENDS:
        where = replace(machine(gpus, library), tables=False, cold=False)
        for decode, name, axis in ((True, "generation_attention_perf", "step"),
                                   (False, "context_attention_perf", "isl")):
            table = next(measured.tables(device, "attention", library, name, None, attention.KEYS))
            for (h, k, d, w, kv, q), rows in table.groups.items():
                g = attention.Geometry(h, k, d, w, attention.FORMS[kv], attention.FORMS[q])
                if zlib.crc32(repr(g).encode()) % 2 == 1:
                    for (b, x), seconds in list(table.points(rows, "batch_size", axis).items())[::97]:
                        op = attention.as_op(g, int(b), int(x) + decode, decode=decode)
                        errors.append(abs(op_time(op, where).seconds / seconds - 1))
    assert len(errors) > 500
    assert median(errors) < 0.12


@needs_tables
@pytest.mark.heavy
@pytest.mark.parametrize(("device", "gpus"), [("h200", "8xH200"), ("b200", "8xB200")])
def test_held_out_experts_by_constants_alone(device: str, gpus: str) -> None:
    errors = []
    for library in silicon.BACKENDS:
        for shape, points in list(experts.all_curves(device, library, None)[0].items())[::71]:
            where = held_machine(gpus, library, shape.routing)
            sizes = (shape.width, shape.inner, shape.top_k, shape.experts, shape.groups)
            if zlib.crc32(repr(sizes).encode()) % 2 == 1:
                for tokens, seconds in list(points.items())[::5]:
                    op = experts.as_op(shape, tokens)
                    if op is not None:
                        errors.append(abs(op_time(op, where).seconds / seconds - 1))
    assert len(errors) > 100
    assert median(errors) < 0.25


def held_machine(gpus: str, library: str, how: str) -> Machine:
    return replace(machine(gpus, library), tables=False, cold=False, routing=how)


def test_a_call_takes_microseconds() -> None:
    """Of sizes that were not asked before; the fastest of three tries, since others share this machine."""
    where = replace(machine("8xH200", "vllm"), tables=False)
    asked = [grouped(Batch(37, 1, context, decode=True)) for context in range(1000, 1500)]
    asked_experts = [mixture(tokens) for tokens in range(1000, 1500)]
    best = []
    for these in (asked, asked_experts):
        tries = []
        for _ in range(3):
            where.memo.clear()
            op_time(these[0], where)
            start = time.process_time()
            for op in these[1:]:
                op_time(op, where)
            tries.append((time.process_time() - start) / (len(these) - 1))
        best.append(min(tries))
    assert max(best) < 60e-6


def test_an_indexer_chooses_only_among_more_keys_than_it_keeps() -> None:
    where = replace(machine("8xH200", "sglang"), tables=False)
    few, many = (op_time(ops.IndexScores(64, 64 * keys, 64 * keys, 32, 128, 2048), where) for keys in (2048, 2200))
    assert many.seconds > few.seconds + 4e-6
    assert index.is_decode(ops.IndexScores(64, 64 * 99, 64 * 99, 32, 128, 2048))
