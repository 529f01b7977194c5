"""Serving accuracy: what the bench may read, constants that have seen no row of a family, and how close it comes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from conftest import loaded, shared

from sublight.predict.operators import silicon
from sublight.predict.serving.correction import LOADS, Correction, correction, rows

BENCH = Path(__file__).parent.parent / "bench"
FAMILIES = ("deepseek", "llama-70b", "llama-8b", "qwen3-32b", "qwen3-235b", "minimax", "kimi", "glm-5", "gpt-oss-120b")


@pytest.fixture(scope="module")
def serving_rows() -> ModuleType:
    return loaded(BENCH / "serving_rows.py")


@pytest.fixture(scope="module")
def serving_fit(serving_rows: ModuleType) -> ModuleType:
    return loaded(BENCH / "serving_fit.py")


@pytest.fixture(scope="module")
def serving_accuracy(serving_rows: ModuleType, serving_fit: ModuleType) -> ModuleType:
    return loaded(BENCH / "serving_accuracy.py")


@pytest.mark.parametrize("kind", ["tables", "constants"])
def test_constants_are_there_without_each_family(kind: str) -> None:
    known = rows()[kind]
    assert set(known["without"]) == set(FAMILIES)
    for engine in ("vllm", "sglang", "trtllm"):
        assert 0.7 < known["all"][engine]["scale"] < 1.5
        for name in FAMILIES:
            assert known["without"][name][engine]["points"] <= known["all"][engine]["points"]
    deepseek = known["without"]["deepseek"]
    assert deepseek["sglang"]["points"] < known["all"]["sglang"]["points"]


def test_a_family_takes_constants_that_have_not_seen_it() -> None:
    every = correction("sglang", "b200")
    without = correction("sglang", "b200", family="deepseek")
    assert every != without
    assert correction("sglang", "b200", family="a family that nobody measured") == every


def test_an_unknown_device_takes_the_engine_and_wider_intervals() -> None:
    known, other = correction("vllm", "h200"), correction("vllm", "b300")
    assert other.tpot[0] < known.tpot[0]
    assert known.tpot[1] < other.tpot[1]
    assert "none of them on b300" in other.basis
    assert isinstance(correction("an engine that nobody measured", "h200"), Correction)


def test_intervals_grow_beyond_the_last_load() -> None:
    inside = correction("vllm", "h200", users=LOADS[-1])
    beyond = correction("vllm", "h200", users=LOADS[-1] + 1)
    assert beyond.tpot[1] > inside.tpot[1]


def test_only_inputs_are_read(serving_rows: ModuleType) -> None:
    for name in serving_rows.INPUTS:
        assert not name.endswith("_ms")
        assert not name.startswith("aic")


def row(**changes: str) -> dict[str, str]:
    plain = {
        "id": "x", "system": "h200_sxm", "backend": "vllm", "backend_version": "0.18.0", "mode": "agg",
        "model": "meta-llama/Llama-3.1-70B", "arch": "meta-llama/Meta-Llama-3.1-70B", "precision": "fp8",
        "isl": "1024", "osl": "1024", "concurrency": "16", "gemm_quant": "fp8", "moe_quant": "fp8", "tp": "4",
        "pp": "1", "attention_dp": "1", "moe_tp": "", "moe_ep": "", "batch_per_rank": "16",
    }
    return {**plain, **changes}


def test_a_row_becomes_a_case(serving_rows: ModuleType) -> None:
    one = serving_rows.case(row())
    assert (one.family, one.plan.tp, one.traffic.concurrency, one.traffic.shortest) == ("llama-70b", 4, 16, 0.8)
    assert "fp8" in one.model.bytes_by_format()
    # systems, families and names that the shipped rows do not have
    kept = row(system="gb300", model="nvidia/DeepSeek-R1-0528-NVFP4", arch="nvidia/DeepSeek-V3.1-NVFP4",
               precision="fp4", gemm_quant="nvfp4", moe_quant="nvfp4", backend="trtllm", moe_ep="4")
    assert serving_rows.case(kept).family == "deepseek"
    wide = row(system="b300_sxm", model="Qwen/Qwen3.5-397B-A17B", arch="Qwen/Qwen3.5-397B-A17B", backend="sglang",
               gemm_quant="fp8_block", moe_quant="fp8_block", moe_ep="1", tp="8")
    assert serving_rows.case(wide).family == "qwen3.5-397b"


def test_what_cannot_be_predicted_is_counted_with_its_reason(serving_rows: ModuleType) -> None:
    made, refused = serving_rows.all_simulated([
        row(model="who/Knows-1B", arch="who/Knows-1B"), row(system="abacus"), row(tp="3"),
        row(mode="disagg", prefill_num_workers="", decode_num_workers="")], tables=False)
    assert made == []
    assert sum(refused.values()) == 4
    assert any("no model" in reason for reason in refused)


def test_least_relative_error_is_found_and_drawn_to_the_prior(serving_fit: ModuleType) -> None:
    import numpy as np

    size = np.linspace(1, 10, 400)
    columns = np.stack([size, 0.01 * size, np.full(400, 1000.0), np.ones(400)], 1)
    measured = 1.3 * size + 0.02 + 0.03
    measured[::7] *= 5                                           # outliers do not move a median
    found = serving_fit.least_relative(columns, measured, np.ones(400))
    predicted = columns @ np.array(found)
    assert float(np.median(np.abs(predicted / measured - 1))) < 0.03


@pytest.mark.heavy
@pytest.mark.skipif(not silicon.available(), reason="needs the measured operator tables (extra silicon)")
def test_accuracy_on_a_tenth_of_the_rows(
    serving_rows: ModuleType, serving_accuracy: ModuleType,
) -> None:
    data = serving_rows.read(shared("silicon/serving.csv.gz"))
    rows = [one for one in data if one["mode"] == "agg"][::10]
    made, refused = serving_rows.all_simulated(rows)
    assert sum(refused.values()) <= 2
    off: dict[str, list[float]] = {"ttft": [], "tpot": []}
    inside = 0
    for measured, one, run in made:
        answer = dict(zip(serving_accuracy.COLUMNS, serving_accuracy.predicted(one, run, tables=True), strict=True))
        for name, errors in off.items():
            errors.append(abs(float(answer[f"{name}_ms"]) / float(measured[f"{name}_ms"]) - 1))
        inside += float(answer["tpot_lo_ms"]) <= float(measured["tpot_ms"]) <= float(answer["tpot_hi_ms"])
    mean = {name: sum(errors) / len(errors) for name, errors in off.items()}
    assert mean["tpot"] < 0.20
    assert mean["ttft"] < 0.36
    assert 0.70 < inside / len(made) < 0.90
