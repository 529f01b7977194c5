"""A predicted step is a trace: written at the speed of light it shows no gap, neither by the ops that it records nor,
stripped of them, by the model that is named; what is planted in it is found at its size."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from sublight.bound import bound
from sublight.device import catalog, find
from sublight.errors import InputError
from sublight.explain import Asked, Explained, explain
from sublight.explain.model_terms import AgainstModel, PartRow
from sublight.explain.words import recording_caveats
from sublight.models import Batch, Split, named, ordered_ops, step_ops
from sublight.models.backward import training_ops
from sublight.observe.kernel_name import classify
from sublight.observe.read import read_all
from sublight.ops import OPS, Communication, Elementwise, Gemm, Operand
from sublight.ops.written import parsed, written
from sublight.plan import Job, Training
from sublight.predict import kernel_names
from sublight.predict.machine import machine
from sublight.predict.optime import OpTime
from sublight.predict.step import Row, Run, StepTime
from sublight.predict.trace import described, trace, unrolled
from sublight.predict.training.estimate import typical_step
from sublight.show.kineto import write
from sublight.trace import Trace

US = 1_000
Events = list[dict[str, Any]]

LLAMA, DEEPSEEK, MIXTRAL, OSS = ("meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3", "mistralai/Mixtral-8x7B-v0.1",
                                 "openai/gpt-oss-120b")
# Name, sequences, ranks, cluster, what explain is told.
CASES: dict[str, tuple[str, Batch, Split, str, dict[str, Any]]] = {
    "prefill": (LLAMA, Batch(1, 2048), Split(tp=2), "2xH100", {"phase": "prefill", "tokens": 2048}),
    "decode": (LLAMA, Batch(64, 1, 4096, decode=True), Split(tp=2), "2xH200",
               {"phase": "decode", "tokens": 64, "context": 4096}),
    "several": (LLAMA, Batch(4, 512, 128), Split(), "1xB200",
                {"phase": "prefill", "tokens": 2048, "sequences": 4, "context": 128}),
    "experts": (DEEPSEEK, Batch(1, 4096), Split(dp=8, ep=8), "8xH200", {"phase": "prefill", "tokens": 4096}),
    "latent decode": (DEEPSEEK, Batch(32, 1, 2048, decode=True), Split(tp=8, ep=8), "8xH200",
                      {"phase": "decode", "tokens": 32, "context": 2048}),
    "windows": (OSS, Batch(1, 1024), Split(tp=2), "2xB200", {"phase": "prefill", "tokens": 1024}),
    "training": (LLAMA, Batch(1, 4096), Split(tp=2), "2xH100", {"phase": "train", "tokens": 4096}),
    "training experts": (MIXTRAL, Batch(1, 4096), Split(tp=2), "2xH100", {"phase": "train", "tokens": 4096}),
}


def predicted(case: str, **options: Any) -> Trace:
    name, batch, split, gpus, told = CASES[case]
    where = machine(gpus)
    if told["phase"] == "train":
        return trace(StepTime(()), where, order=training_ops(named(name), (batch,), split), at="bound", **options)
    order = ordered_ops(named(name), (batch,), split)
    return trace(StepTime(()), where, order=order, at="bound", **options)


def through_a_file(made: Trace, change: Callable[[Events], Events] = list) -> Trace:
    with TemporaryDirectory() as folder:
        path = write(made, Path(folder) / "predicted.json")
        document = json.loads(path.read_text())
        document["traceEvents"] = change(document["traceEvents"])
        path.write_text(json.dumps(document))
        (read,) = read_all([str(path)])
    return read


def without_identity(events: Events, *, launches: bool = True) -> Events:
    """Names, streams and times of kernels, and marks of steps; launches where asked for."""
    kept = {"device", "stream", *(("correlation",) if launches else ())}
    out = [e for e in events if e["cat"] in ("kernel", "user_annotation", *(("cuda_runtime",) if launches else ()))]
    return [{**e, "args": {k: v for k, v in e["args"].items() if k in kept}} if e["cat"] == "kernel" else e
            for e in out]


@cache
def original(case: str) -> Trace:
    return predicted(case)


def held(case: str, change: Callable[[Events], Events] = without_identity) -> tuple[Explained, AgainstModel]:
    name, _, split, _, told = CASES[case]
    asked = Asked(named(name), tp=split.tp, ep=split.ep, **told)
    (one,) = explain(through_a_file(original(case), change), what_ifs=[], model=asked).devices
    assert one.view.model is not None
    return one, one.view.model


def parts(found: AgainstModel) -> dict[str, PartRow]:
    return {part.name: part for part in found.parts}


# ---- what is written ----------------------------------------------------------------------------------------------


def test_every_kind_of_op_has_a_kernel_name_of_its_category() -> None:
    assert set(kernel_names.CATEGORY) == set(OPS)
    categories = {name.split(" fp8")[0].split(" backward")[0].split(" index")[0].split(" permute")[0]: name
                  for name in kernel_names.NAMES}
    for label, name in kernel_names.NAMES.items():
        category = max((c for c in categories if label.startswith(c)), key=len)
        assert classify(name).category == category.removesuffix(" convolution"), label
    for name in kernel_names.COLLECTIVES.values():
        assert classify(name).category == "communication"


@pytest.mark.parametrize("case", CASES)
def test_kernels_are_named_by_the_category_of_their_op(case: str) -> None:
    name, batch, split, _, _ = CASES[case]
    for label, op in dict.fromkeys(ordered_ops(named(name), (batch,), split)):
        assert classify(kernel_names.kernel_name(label, op)).category == kernel_names.category(label, op)


@pytest.mark.parametrize("case", CASES)
def test_an_op_is_read_as_it_was_written(case: str) -> None:
    name, batch, split, _, told = CASES[case]
    made = training_ops if told["phase"] == "train" else ordered_ops
    for _, op in dict.fromkeys(made(named(name), (batch,), split)):
        again = parsed(written(op))
        assert type(again) is type(op)
        assert again is not None
        assert again.work() == op.work()


@pytest.mark.parametrize("text", [
    "", "7", "[]", "{}", '{"op":"Gemm"}', '{"op":"Gemm","m":1,"n":1,"k":1,"other":1}', '{"op":"NoSuch"}',
    '{"op":"Gemm","m":-1,"n":1,"k":1}', '{"op":"Gemm","m":1.5,"n":1,"k":1}', '{"op":"Gemm","m":1,"n":1,"k":"two"}',
    '{"op":"Gemm","m":1,"n":1,"k":1,"a":"no such format"}', '{"op":"Elementwise","reads":[7],"writes":[]}',
    '{"op":"Gemm","m":1,"n":1,"k":1,"addend":{"elements":1,"form":"bf16","more":1}}', '{"op":[1]}',
    '{"op":"Gemm","m":99999999999999999999,"n":1,"k":1}', '{"op":"Communication","collective":"x","group":2,'
    '"elements":1,"form":"bf16"}',
])
def test_what_was_not_written_is_no_op(text: str) -> None:
    assert parsed(text) is None


@pytest.mark.parametrize("case", ["prefill", "experts", "training experts"])
def test_the_file_holds_the_trace(case: str) -> None:
    made, read = original(case), through_a_file(original(case))
    assert (read.names, read.devices, read.world_size) == (made.names, made.devices, made.world_size)
    shift = int(made.calls.ts_ns[0] - read.calls.ts_ns[0])
    for table in ("activities", "calls", "ops", "annotations"):
        for column in fields(getattr(made, table)):
            ours, theirs = getattr(getattr(made, table), column.name), getattr(getattr(read, table), column.name)
            if column.name == "ts_ns":
                theirs = theirs + shift
            if column.name in ("args", "collective"):
                values = {"args": "op_args", "collective": "collectives"}[column.name]
                ours = [getattr(made, values)[i] if i >= 0 else None for i in ours]
                theirs = [getattr(read, values)[i] if i >= 0 else None for i in theirs]
                assert ours == theirs
            else:
                assert np.array_equal(ours, theirs), (table, column.name)


def test_devices_of_predictions_are_those_of_the_catalog() -> None:
    assert [device.key for device in catalog() if find(described(device)) is not device] == []


# ---- at the speed of light ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_a_predicted_step_has_no_gap_by_its_own_ops(case: str) -> None:
    (one,) = explain(through_a_file(original(case)), what_ifs=[]).devices
    view = one.view
    assert view.bounds is not None
    assert view.bounds.known_share == 1.0
    assert view.bounds.faster_than_bound == ()
    assert view.budget.idle_ns == 0
    assert recording_caveats(view) == ()                          # what was not recorded slowed no host
    for part in view.bounds.parts:
        kernels = sum(row.count for row in view.kernels if row.part == part.name)
        assert part.unknown_ns == 0
        assert 0 <= part.above_ns <= kernels


@pytest.mark.parametrize("launches", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_stripped_of_its_identity_it_has_none_by_its_model(case: str, launches: bool) -> None:
    one, found = held(case, lambda events: without_identity(events, launches=launches))
    assert one.view.bounds is not None
    assert one.view.bounds.known_share == 0                       # the file tells nothing of the work
    assert one.view.budget.idle_ns == 0
    assert "SL308" not in {f.code for f in one.findings}
    assert found.refused == ()
    assert {part.name for part in one.view.budget.parts if part.group == "compute"} <= {p.name for p in found.parts}
    for part in found.parts:
        assert part.matched, part
        assert part.above_ns is not None
        assert 0 <= part.above_ns <= part.kernels, part
    for row in found.rows:
        assert row.measured_ns is not None
        assert row.least_ns is not None
        assert 0 <= row.measured_ns - row.least_ns <= row.count


@pytest.mark.parametrize("plan", [Training(tp=2), Training(tp=2, sequence_parallel=False), Training(precision="fp8"),
                                  Training(tp=4, mbs=2)])
def test_a_predicted_step_of_training_has_none_by_its_model(plan: Training) -> None:
    where = machine("4xH100", "torch")
    step = typical_step(named(LLAMA), plan, Job(seq=2048, gbs=8), where)
    read = through_a_file(trace(step, where, at="bound"), without_identity)
    asked = Asked(named(LLAMA), tokens=2048 * plan.mbs, sequences=plan.mbs, tp=plan.tp)
    (one,) = explain(read, what_ifs=[], model=asked).devices
    assert one.view.model is not None
    for part in one.view.model.parts:
        assert part.matched, part
        assert part.above_ns is not None
        assert 0 <= part.above_ns <= part.kernels


def test_another_number_of_tokens_shows() -> None:
    name, _, split, _, told = CASES["prefill"]
    read = through_a_file(original("prefill"), without_identity)
    (one,) = explain(read, what_ifs=[], model=Asked(named(name), tp=split.tp, ep=1, **{**told, "tokens": 4096})).devices
    assert one.view.model is not None
    assert not parts(one.view.model)["gemm"].matched               # half the time that its products need at least
    assert "faster than light" in parts(one.view.model)["gemm"].why_not


# ---- planted ------------------------------------------------------------------------------------------------------


def slowed(events: Events, chosen: Sequence[int], times: float) -> Events:
    """Some kernels, counted in their order, take longer, and all behind them comes later."""
    return _moved(events, dict.fromkeys(chosen, ("dur", times)))


def late(events: Events, at: int, gap_ns: int) -> Events:
    """One kernel and all behind it come later, their launches too."""
    return _moved(events, {at: ("gap", gap_ns)})


def _moved(events: Events, changes: dict[int, tuple[str, float]]) -> Events:
    kernels = sorted((e for e in events if e["cat"] == "kernel"), key=lambda e: e["ts"])
    launches = {e["args"]["correlation"]: e for e in events if e["cat"] == "cuda_runtime"}
    by, launch_by = 0, 0
    for i, e in enumerate(kernels):
        what, value = changes.get(i, ("", 0.0))
        if what == "gap":
            by, launch_by = by + round(value), launch_by + round(value)
            launches[e["args"]["correlation"]]["ts"] = round(e["ts"] + (by - 4_000) / 1e3, 3)
        elif launch_by:
            launches[e["args"]["correlation"]]["ts"] = round(e["ts"] + (by - 4_000) / 1e3, 3)
        e["ts"] = round(e["ts"] + by / 1e3, 3)
        if what == "dur":
            longer = round(e["dur"] * 1e3 * (value - 1))
            e["dur"], by = round(e["dur"] + longer / 1e3, 3), by + longer
    for e in events:
        if e["cat"] == "user_annotation":
            e["dur"] = round(e["dur"] + 1e7, 3)
    return events


def of_label(case: str, label: str) -> list[int]:
    """Which kernels of a case carry an operator out, counted in their order."""
    made = original(case)
    names = [made.names[i] for i in made.ops.name.tolist()]
    return [i for i, name in enumerate(names) if name == f"predicted::{label}"]


def within_1_percent(ns: int, planted: float) -> bool:
    return abs(ns - planted) <= 0.01 * planted


@pytest.mark.parametrize(("case", "label"), [
    ("prefill", "mlp.up"), ("decode", "attention.out"), ("decode", "attention.decode"), ("experts", "attention.out"),
    ("experts", "moe.experts"), ("training", "mlp.down.weight_grad"), ("training experts", "moe.experts.up.input_grad"),
])
def test_a_family_at_half_its_speed_is_found(case: str, label: str) -> None:
    chosen = of_label(case, label)
    assert chosen
    one, found = held(case, lambda events: without_identity(slowed(events, chosen, 2.0)))
    mine = [row for row in found.rows if row.label == label]
    planted = sum(row.least_ns or 0 for row in mine)
    above = sum((row.measured_ns or 0) - (row.least_ns or 0) for row in mine)
    assert planted > 0
    assert sum(row.count for row in mine) == len(chosen)
    assert within_1_percent(above, planted)
    part = parts(found)[mine[0].category]
    assert part.above_ns is not None
    assert within_1_percent(part.above_ns, planted)
    for row in found.rows:                                          # and nothing else
        if row.label != label:
            assert (row.measured_ns or 0) - (row.least_ns or 0) <= row.count
    said = [f for f in one.findings if f.code == "SL308"]
    if one.view.share(planted) > 0.01 and planted > 2 * US * len(chosen):
        assert len(said) == 1
        assert said[0].evidence[0].startswith(f"{label} (")
        assert within_1_percent(said[0].gain_ns_at_most or 0, planted)
    assert {f.code for f in one.findings} <= {"SL101", "SL203", "SL304", "SL308"}


@pytest.mark.parametrize("case", ["prefill", "decode", "experts", "training"])
def test_a_gap_of_30_microseconds_is_found(case: str) -> None:
    gap_ns, at = 30 * US, of_label(case, "attention.out")[5]
    one, found = held(case, lambda events: without_identity(late(events, at, gap_ns)))
    assert one.view.budget.idle_ns == gap_ns
    assert one.view.budget["idle: launch-starved"] == gap_ns
    assert all(part.matched and (part.above_ns or 0) <= part.kernels for part in found.parts)
    one, _ = held(case, lambda events: without_identity(late(events, at, gap_ns), launches=False))
    assert one.view.budget.idle_ns == gap_ns


@pytest.mark.parametrize(("case", "label"), [
    ("prefill", "mlp.all_reduce"), ("experts", "moe.dispatch"), ("training", "attention.all_reduce.grad"),
])
def test_exposed_communication_is_found(case: str, label: str) -> None:
    chosen = of_label(case, label)
    clean, before = held(case)
    one, found = held(case, lambda events: without_identity(slowed(events, chosen, 3.0)))
    planted = 2 * sum(row.least_ns or 0 for row in before.rows if row.label == label)
    exposed = one.view.budget.communication.exposed_ns - clean.view.budget.communication.exposed_ns
    above = parts(found)["communication"].above_ns
    assert above is not None
    assert within_1_percent(exposed, planted)
    assert within_1_percent(above, planted)
    assert {f.code for f in one.findings} >= {"SL101"}
    shown = next(f for f in one.findings if f.code == "SL101")
    assert shown.gain_ns_at_most == one.view.budget.communication.exposed_ns


# ---- what a step says ---------------------------------------------------------------------------------------------


def test_an_expected_step_takes_as_long_as_predicted() -> None:
    where = machine("2xH100", "vllm")
    model, batches, split = named(LLAMA), (Batch(8, 1, 1024, decode=True),), Split(tp=2)
    rows = tuple(Row(label, op, count, OpTime((1 + len(label)) * 1e-6, {"fixed": 1.0}, 0.1, "judgement"))
                 for label, op, count in step_ops(model, batches, split))
    step = StepTime(rows, host=0.0005, run=Run(model, batches, split))
    made = trace(step, where, steps=3)
    end = int((made.activities.ts_ns + made.activities.dur_ns).max() - made.activities.ts_ns.min())
    each = sum(max(1, round(row.time.seconds * 1e9)) * row.count for row in step.rows)
    assert end == 3 * each + 2 * 500_000
    (one,) = explain(through_a_file(made), what_ifs=[], window="all").devices
    assert one.view.budget.idle_ns == one.view.budget["idle: launch-starved"] == 2 * 500_000
    assert [len(made.annotations.ts_ns), made.quality.kept["device activities"]] == [3, len(made.activities.ts_ns)]


def test_communication_may_run_beside_compute() -> None:
    #  stream 7    ├ gemm ┤├ gemm ┤├ gemm ┤
    #  stream 20           ├ all-reduce ┤
    gemm, moved = Gemm(8192, 8192, 4096), Communication("all_reduce", 2, 1 << 26, "bf16")
    where = machine("2xH100")
    least = bound(gemm.work(), where.device.limits)
    assert least is not None
    order = [("a", gemm), ("sum", moved), ("b", gemm), ("c", gemm)]
    hidden = trace(StepTime(()), where, order=order, at="bound", beside=("sum",))
    (one,) = explain(hidden, what_ifs=[]).devices
    assert one.view.budget.communication.exposed_ns == 0
    assert one.view.budget.communication.hidden_ns > 0
    (one,) = explain(trace(StepTime(()), where, order=order, at="bound"), what_ifs=[]).devices
    assert one.view.budget.communication.hidden_ns == 0


def test_rows_are_unrolled_pass_by_pass() -> None:
    time = OpTime(1e-6, {"fixed": 1.0}, 0.1, "judgement")
    op = Elementwise((Operand(1, "bf16"),), (Operand(1, "bf16"),))
    rows = [Row(label, op, count, time) for label, count in (
        ("forward.in", 1), ("forward.a", 3), ("forward.b", 2), ("forward.out", 1), ("backward.out", 1),
        ("backward.a", 3))]
    assert [label.replace("forward.", "").replace("backward.", "-") for label, _ in unrolled(rows)] == [
        "in", "a", "a", "b", "a", "b", "out", "-out", "-a", "-a", "-a"]


def test_what_cannot_be_placed_is_refused() -> None:
    where = machine("1xH20")
    with pytest.raises(InputError, match="no bound"):
        trace(StepTime(()), where, order=[("gemm", Gemm(8, 8, 8))], at="bound")
    with pytest.raises(InputError, match="got 'best'"):
        trace(StepTime(()), machine("1xH100"), at="best")
    with pytest.raises(InputError, match="steps"):
        trace(StepTime(()), machine("1xH100"), steps=0)
