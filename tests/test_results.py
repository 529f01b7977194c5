"""Benchmark results as Results: each format's real shape, and what is missing, not finite, failed, mixed or cut."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublight.errors import InputError
from sublight.observe.results import from_text, read, read_results
from sublight.result import Result

VLLM: dict[str, Any] = {
    "date": "20260301-101500", "endpoint_type": "openai", "backend": "vllm", "label": None, "model_id": "Qwen/Qwen3-8B",
    "tokenizer_id": "Qwen/Qwen3-8B", "num_prompts": 4, "gpu": "secret-host-17", "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 2, "duration": 8.0, "completed": 3, "failed": 1, "total_input_tokens": 3072,
    "total_output_tokens": 384, "request_throughput": 0.375, "request_goodput": None, "output_throughput": 48.0,
    "total_token_throughput": 432.0, "max_output_tokens_per_s": 60.0, "mean_ttft_ms": 110.0, "median_ttft_ms": 100.0,
    "std_ttft_ms": 10.0, "p99_ttft_ms": 130.0, "mean_tpot_ms": 20.0, "median_tpot_ms": 20.0, "p99_tpot_ms": 22.0,
    "mean_itl_ms": 20.0, "median_itl_ms": 19.0, "p99_itl_ms": 41.0, "mean_e2el_ms": 2650.0, "p90_e2el_ms": 2700.0,
}
DETAILED: dict[str, Any] = {**VLLM, "input_lens": [1024] * 4, "output_lens": [3, 3, 0, 3],
            "ttfts": [0.1, 0.12, 0.0, 0.11],
            "itls": [[0.02, 0.02], [0.021, 0.019], [], [0.02, 0.022]], "generated_texts": ["a", "b", "", "c"],
            "errors": ["", "", "Traceback: /home/anna/x.py", ""]}
SGLANG: dict[str, Any] = {
    "tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": 16.0, "max_concurrency": None,
    "sharegpt_output_len": None, "random_input_len": 1024, "random_output_len": 128, "random_range_ratio": 0.5,
    "server_info": {"version": "0.5.9", "tp_size": 8, "mem_fraction_static": 0.85, "api_key": "sk-secret",
                    "model_path": "/home/anna/m", "host": "node17", "disable_cuda_graph": False},
    "duration": 30.0, "completed": 480, "total_input_tokens": 360000, "total_output_tokens": 46080,
    "total_output_tokens_retokenized": 46000, "request_throughput": 16.0, "input_throughput": 12000.0,
    "output_throughput": 1536.0, "total_throughput": 13536.0, "mean_e2e_latency_ms": 900.0,
    "median_e2e_latency_ms": 880.0, "p99_e2e_latency_ms": 1500.0, "mean_ttft_ms": 60.0, "median_ttft_ms": 55.0,
    "p99_ttft_ms": 200.0, "mean_tpot_ms": 6.6, "median_tpot_ms": 6.5, "p99_tpot_ms": 9.0, "mean_itl_ms": 6.6,
    "p95_itl_ms": 12.0, "concurrency": 14.4, "accept_length": 2.7,
}
AIPERF: dict[str, Any] = {
    "schema_version": "1.4", "aiperf_version": "0.13.0", "request_latency": {"unit": "ms", "avg": 2413.5, "p50": 2431.0,
    "p99": 2439.0, "count": 10}, "time_to_first_token": {"unit": "ms", "avg": 195.0, "p50": 175.0, "p90": 251.0},
    "inter_token_latency": {"unit": "ms", "avg": 35.2, "p50": 34.7}, "output_token_throughput": {"unit": "tokens/sec",
    "avg": 52.7}, "output_token_throughput_per_user": {"unit": "tokens/sec/user", "avg": 28.4, "p50": 28.5},
    "request_throughput": {"unit": "requests/sec", "avg": 0.82}, "request_count": {"unit": "requests", "avg": 10.0},
    "error_request_count": {"unit": "requests", "avg": 2.0}, "input_sequence_length": {"unit": "tokens", "avg": 256.0},
    "output_sequence_length": {"unit": "tokens", "avg": 64.0}, "was_cancelled": False,
    "input_config": {"endpoint": {"model_names": ["Qwen/Qwen3-0.6B"], "api_key": "sk-secret",
                                  "urls": ["http://node17"]},
                     "loadgen": {"concurrency": 4}},
}
PYTEST: dict[str, Any] = {
    "machine_info": {"node": "node17", "python_version": "3.12.3", "cpu": {"brand_raw": "AMD EPYC 7V13 64-Core "
                                                                                        "Processor"}},
    "commit_info": {"id": "0" * 40, "project": "x"}, "version": "5.1.0",
    "benchmarks": [{"group": None, "name": "test_gemm[4096]", "fullname": "/home/anna/t.py::test_gemm[4096]",
                    "params": None,
                    "stats": {"min": 0.0010, "max": 0.0014, "mean": 0.0011, "stddev": 0.0001, "rounds": 5,
                              "median": 0.00105,
                              "iqr": 0.0001, "q1": 0.00102, "q3": 0.00115, "iterations": 1,
                              "data": [0.0010, 0.00105, 0.00102, 0.0014, 0.00103]}}],
}
GOOGLE: dict[str, Any] = {
    "context": {"date": "2026-03-01", "host_name": "node17", "executable": "/home/anna/bench", "num_cpus": 16,
                "mhz_per_cpu": 3000, "library_build_type": "release", "library_version": "v1.9.0"},
    "benchmarks": [
        *({"name": "BM_copy/4096", "run_name": "BM_copy/4096", "run_type": "iteration", "repetitions": 3,
           "repetition_index": at, "iterations": 1000, "real_time": value, "cpu_time": value, "time_unit": "us"}
          for at, value in enumerate((10.0, 11.0, 10.5))),
        {"name": "BM_copy/4096_mean", "run_name": "BM_copy/4096", "run_type": "aggregate", "aggregate_name": "mean",
         "real_time": 10.5, "cpu_time": 10.5, "time_unit": "us"},
        {"name": "BM_copy/4096_median", "run_name": "BM_copy/4096", "run_type": "aggregate", "aggregate_name": "median",
         "real_time": 10.5, "cpu_time": 10.5, "time_unit": "us"},
    ],
}
def _spread(mean: float, count: int = 40) -> dict[str, Any]:
    """As GuideLLM summarises a quantity of the requests of each status."""
    return {"successful": {"mean": mean, "median": mean, "count": count, "total_sum": mean * count,
                           "percentiles": {"p50": 0.9 * mean, "p99": 2 * mean, "p999": 3 * mean}},
            "errored": {"mean": 0.0, "count": 0}, "incomplete": None, "total": {"mean": 7 * mean, "count": count + 1}}


def _guidellm(streams: int) -> dict[str, Any]:
    return {
        "type_": "generative_benchmark", "start_time": 1_767_225_600.0 + streams, "duration": 30.0,
        "config": {"id_": "x", "strategy": {"type_": "concurrent", "streams": streams, "worker_count": 1},
                   "constraints": {"max_duration": {"token": "sk-secret"}}},
        "scheduler_state": {"node_id": 0},
        "requests": {"successful": [{"request_args": "sk-secret", "output": "anna"}]},
        "metrics": {
            "request_totals": {"successful": 40, "errored": 1, "incomplete": 0, "total": 41},
            "requests_per_second": _spread(1.5), "request_latency": _spread(2.0),
            "time_to_first_token_ms": _spread(90.0), "time_per_output_token_ms": _spread(16.0),
            "inter_token_latency_ms": _spread(15.0), "output_tokens_per_second": _spread(190.0),
            "tokens_per_second": _spread(570.0), "prompt_token_count": _spread(256.0),
            "output_token_count": _spread(128.0),
        },
    }


# guidellm 0.8.1, guidellm/benchmark/schemas
GUIDELLM: dict[str, Any] = {
    "metadata": {"version": 2, "guidellm_version": "0.8.1", "platform": "Linux-node17"},
    "config": {"target": "http://node17:8000", "backend": {"api_key": "sk-secret"}},
    "benchmarks": [_guidellm(8), _guidellm(16)],
}
# tensorrt_llm/bench/dataclasses/reporting.py
TRTLLM: dict[str, Any] = {
    "engine": {"model": "Qwen/Qwen3-8B", "model_path": "/home/anna/m", "engine_dir": "None", "version": "1.1.0",
               "backend": "Pytorch", "dtype": "bfloat16", "kv_cache_dtype": None, "quantization": "FP8"},
    "machine": {"name": "NVIDIA H100 80GB HBM3", "memory.total": 79.6},
    "world_info": {"tp_size": 2, "pp_size": 1, "ep_size": 1, "world_size": 2, "max_batch_size": 256,
                   "max_num_tokens": 8192, "kv_cache_percentage": 0.9, "issue_rate": 1e5},
    "request_info": {"num_requests": 1000, "avg_num_concurrent_requests": 250.3, "avg_input_length": 128.0,
                     "avg_output_length": 128.0},
    "performance": {"total_latency_ms": 20_000.0, "avg_request_latency_ms": 4_500.0, "request_throughput_req_s": 50.0,
                    "system_output_throughput_tok_s": 6_400.0, "system_total_throughput_tok_s": 12_800.0,
                    "request_latency_percentiles_ms": {"p50": 4_400.0, "p99": 6_000.0, "minimum": 900.0}},
    "streaming_metrics": {"avg_ttft_ms": 300.0, "avg_tpot_ms": 33.0, "ttft_percentiles": {"p50": 250.0, "p99": 900.0}},
    "dataset": {"name": "/home/anna/d.jsonl"},
}
SECRETS = ("sk-secret", "node17", "anna", "secret-host")


def written(path: Path, *documents: Any) -> Path:
    path.write_text("\n".join(json.dumps(document) for document in documents) + "\n")
    return path


def by_name(results: tuple[Result, ...]) -> dict[str, Result]:
    return {result.name: result for result in results}


def of(document: Any) -> dict[str, Result]:
    return by_name(from_text(json.dumps(document)).results)


# ---------------------------------------------------------------- the formats


def test_vllm_s_summary_is_means_with_percentiles(tmp_path: Path) -> None:
    found = by_name(read_results(written(tmp_path / "r.json", VLLM)))
    assert found["TTFT"].samples == (0.11,)
    assert found["TTFT"].percentiles == {50.0: 0.1, 99.0: 0.13}
    assert found["latency"].percentiles == {90.0: 2.7}
    assert (found["tokens/s"].samples, found["tokens/s"].unit) == ((48.0,), "tokens/s")
    about = found["TTFT"].about
    assert {name: about[name] for name in ("model", "concurrency", "requests", "completed", "failed", "isl",
                                           "osl")} == {
        "model": "Qwen/Qwen3-8B", "concurrency": 2, "requests": 4, "completed": 3, "failed": 1, "isl": 1024.0,
        "osl": 128.0}
    assert about["all_at_once"] is True
    assert found["TTFT"].source == "r.json"


def test_vllm_s_details_are_samples_without_the_failed_request(tmp_path: Path) -> None:
    reading = read(written(tmp_path / "r.json", DETAILED))
    found = by_name(reading.results)
    assert found["TTFT"].samples == (0.1, 0.12, 0.11)
    assert found["ITL"].samples == (0.02, 0.02, 0.021, 0.019, 0.02, 0.022)
    assert found["TPOT"].samples == pytest.approx((0.02, 0.02, 0.021))
    assert any("1 of 4 listed requests failed" in note for note in reading.notes)
    assert any("1 of 4 requests failed" in note for note in reading.notes)


def test_appended_runs_are_numbered(tmp_path: Path) -> None:
    results = read_results(written(tmp_path / "r.json", VLLM, {**VLLM, "mean_ttft_ms": 120.0}))
    assert [(r.about["run"], r.samples) for r in results if r.name == "TTFT"] == [(1, (0.11,)), (2, (0.12,))]


def test_sglang_s_line_with_its_server(tmp_path: Path) -> None:
    found = by_name(read_results(written(tmp_path / "r.jsonl", SGLANG)))
    assert found["latency"].percentiles == {50.0: 0.88, 99.0: 1.5}
    assert found["ITL"].percentiles == {95.0: 0.012}
    assert found["acceptance length"].samples == (2.7,)
    about = found["TPOT"].about
    assert about["server"] == {"version": "0.5.9", "tp_size": 8, "mem_fraction_static": 0.85,
                               "disable_cuda_graph": False}
    assert (about["tool"], about["rate"], about["nominal_isl"], about["isl"]) == ("sglang bench_serving", 16.0, 1024,
                                                                                  750.0)


def test_aiperf_s_metrics_in_base_units() -> None:
    reading = from_text(json.dumps(AIPERF))
    found = by_name(reading.results)
    assert found["TTFT"].samples == (0.195,)
    assert found["TPOT"].percentiles == {50.0: pytest.approx(0.0347)}
    assert found["tokens/s/user"].samples == (28.4,)
    assert found["requests/s"].unit == "1/s"
    assert (found["TTFT"].about["model"], found["TTFT"].about["concurrency"]) == ("Qwen/Qwen3-0.6B", 4)
    assert "2 requests failed" in reading.notes[0]


def test_aiperf_s_requests_are_samples() -> None:
    def row(first: float, error: object = None, phase: str = "profiling") -> dict[str, Any]:
        return {"metadata": {"was_cancelled": False, "benchmark_phase": phase}, "error": error, "metrics": {
            "time_to_first_token": {"value": first, "unit": "ms"}, "input_sequence_length": {"value": 20,
                                                                                             "unit": "tokens"},
            "inter_token_latency": {"value": 4, "unit": "ms"}}}

    reading = from_text("\n".join(map(json.dumps, (row(10, phase="warmup"), row(2), row(3), row(9,
                                                                                                error={"code": 500})))))
    assert by_name(reading.results)["TTFT"].samples == (0.002, 0.003)
    assert by_name(reading.results)["TTFT"].about["isl"] == 20
    assert len(reading.notes) == 2


def test_guidellm_s_benchmarks_are_runs_of_their_own_load() -> None:
    reading = from_text(json.dumps(GUIDELLM))
    first = {r.name: r for r in reading.results if r.about["run"] == 1}
    assert first["TTFT"].samples == (0.09,)                      # of what succeeded, not the total
    assert first["TTFT"].percentiles == {50.0: pytest.approx(0.081), 99.0: pytest.approx(0.18),
                                         99.9: pytest.approx(0.27)}
    assert first["TPOT"].samples == (0.015,)                     # inter-token latency; the other counts the first token
    assert (first["latency"].samples, first["tokens/s"].samples, first["requests/s"].unit) == ((2.0,), (190.0,), "1/s")
    assert first["tokens/s"].percentiles == {}                   # they are of moments, not of requests
    about = first["TPOT"].about
    assert {name: about[name] for name in ("tool", "version", "concurrency", "isl", "osl", "completed", "failed")} == {
        "tool": "guidellm", "version": "0.8.1", "concurrency": 8, "isl": 256.0, "osl": 128.0, "completed": 40,
        "failed": 1}
    assert {r.about["concurrency"] for r in reading.results} == {8, 16}
    assert [note for note in reading.notes if "1 requests failed" in note] == [
        f"benchmark {number}: 1 requests failed; they are in no figure" for number in (1, 2)]


def test_guidellm_s_missing_metrics_are_said() -> None:
    one = _guidellm(8)
    one["metrics"]["time_to_first_token_ms"] = _spread(float("nan"))
    del one["metrics"]["request_latency"]
    reading = from_text(json.dumps({**GUIDELLM, "benchmarks": [one]}))
    assert {"the file says no TTFT", "the file says no latency", "TTFT: mean: 1 value, no finite number, left out"} <= {
        *reading.notes}
    assert {"TTFT", "latency"}.isdisjoint(by_name(reading.results))


def test_trtllm_bench_s_report() -> None:
    found = of(TRTLLM)
    assert (found["TTFT"].samples, found["TTFT"].percentiles) == ((0.3,), {50.0: 0.25, 99.0: 0.9})
    assert (found["TPOT"].samples, found["latency"].samples) == ((0.033,), (4.5,))
    assert found["latency"].percentiles == {50.0: pytest.approx(4.4), 99.0: pytest.approx(6.0)}
    assert (found["tokens/s"].samples, found["total tokens/s"].samples) == ((6_400.0,), (12_800.0,))
    about = found["TPOT"].about
    assert (about["tool"], about["model"], about["isl"], about["requests"], about["server"]["tp_size"]) == (
        "trtllm-bench", "Qwen/Qwen3-8B", 128.0, 1000, 2.0)
    alone = from_text(json.dumps({key: value for key, value in TRTLLM.items() if key != "streaming_metrics"}))
    assert "TTFT" not in by_name(alone.results)                  # without --streaming there is none
    assert alone.notes == ()


def test_pytest_benchmark_s_rounds() -> None:
    result, = from_text(json.dumps(PYTEST)).results
    assert (result.name, result.variant, len(result.samples)) == ("time", "test_gemm[4096]", 5)
    assert result.percentiles == {0.0: 0.001, 25.0: 0.00102, 50.0: 0.00105, 75.0: 0.00115, 100.0: 0.0014}
    assert result.about["cpu"] == "AMD EPYC 7V13 64-Core Processor"


def test_google_benchmark_s_repetitions_and_aggregates() -> None:
    result, = from_text(json.dumps(GOOGLE)).results
    assert result.samples == pytest.approx((1e-5, 1.1e-5, 1.05e-5))
    only = {**GOOGLE, "benchmarks": GOOGLE["benchmarks"][3:]}
    result, = from_text(json.dumps(only)).results
    assert result.samples == pytest.approx((1.05e-5,))
    debug = {**GOOGLE, "context": {"library_build_type": "debug"}}
    assert "debugging" in from_text(json.dumps(debug)).notes[0]


def test_the_table_that_a_benchmark_prints() -> None:
    text = """\
============ Serving Benchmark Result ============
Backend:                                 sglang
Traffic request rate:                    inf
Max request concurrency:                 64
Successful requests:                     512
Benchmark duration (s):                  100.00
Total input tokens:                      524288
Total generated tokens:                  65536
Total generated tokens (retokenized):    65500
Request throughput (req/s):              5.12
Input token throughput (tok/s):          5242.88
Output token throughput (tok/s):         655.36
Total token throughput (tok/s):          5898.24
Concurrency:                             63.10
----------------End-to-End Latency----------------
Mean E2E Latency (ms):                   12300.00
Median E2E Latency (ms):                 12000.00
---------------Time to First Token----------------
Mean TTFT (ms):                          900.00
Median TTFT (ms):                        700.00
P99 TTFT (ms):                           2,500.00
==================================================
"""
    found = by_name(from_text(text).results)
    assert found["latency"].samples == (12.3,)
    assert found["TTFT"].percentiles == {50.0: 0.7, 99.0: 2.5}
    assert found["total tokens/s"].samples == (5898.24,)
    assert (found["TTFT"].about["concurrency"], found["TTFT"].about["isl"], found["TTFT"].about["osl"]) == (64, 1024,
                                                                                                            128)


def test_offline_benchmarks_print_one_line() -> None:
    found = by_name(from_text("Throughput: 7.10 requests/s, 4000.5 total tokens/s, 1000.2 output tokens/s\n").results)
    assert (found["requests/s"].samples, found["tokens/s"].samples) == ((7.1,), (1000.2,))
    assert by_name(from_text("Avg latency: 4.25 seconds\n").results)["batch latency"].samples == (4.25,)


# ---------------------------------------------------------------- damage


def test_missing_keys_are_said() -> None:
    old = {key: value for key, value in VLLM.items() if "tpot" not in key and key not in ("failed", "endpoint_type")}
    reading = from_text(json.dumps(old))
    assert "the file says no TPOT" in reading.notes
    assert "TPOT" not in by_name(reading.results)


def test_what_is_no_number_is_left_out_and_counted() -> None:
    text = json.dumps({**VLLM, "mean_ttft_ms": float("nan"), "p99_ttft_ms": float("inf"), "output_throughput": "n/a"})
    reading = from_text(text)
    found = by_name(reading.results)
    assert "TTFT" not in found or found["TTFT"].samples == ()
    assert "tokens/s" not in found
    assert any("mean_ttft_ms: 1 value" in note for note in reading.notes)


def test_lists_with_holes() -> None:
    reading = from_text(json.dumps({**DETAILED, "ttfts": [0.1, float("nan"), 0.0, 0.11]}))
    assert by_name(reading.results)["TTFT"].samples == (0.1, 0.11)
    assert any("2 of 4 listed requests" in note for note in reading.notes)


def test_nothing_completed_is_a_failure_and_no_zero() -> None:
    found = of({**VLLM, "completed": 0, "failed": 4, "mean_ttft_ms": 0.0, "output_throughput": 0.0})
    assert found["TTFT"].samples == ()
    assert found["TTFT"].failure == "none of 4 requests completed"


def test_versions_that_were_mixed_are_said(tmp_path: Path) -> None:
    newer = {**SGLANG, "server_info": {**SGLANG["server_info"],
                                       "version": "0.5.10"}}
    reading = read(written(tmp_path / "r.jsonl", SGLANG, newer))
    assert any("0.5.10" in note and "0.5.9" in note for note in reading.notes)


def test_a_file_that_ends_in_the_middle(tmp_path: Path) -> None:
    lines = json.dumps(SGLANG) + "\n" + json.dumps(SGLANG)[:300]
    reading = from_text(lines)
    assert len([result for result in reading.results if result.name == "TTFT"]) == 1
    assert any("ends in the middle" in note for note in reading.notes)

    cut = json.dumps({**VLLM, "ttfts": [0.1] * 50})[:-60]
    reading = from_text(cut)
    assert by_name(reading.results)["TTFT"].samples == (0.11,)
    assert any("ends in the middle" in note for note in reading.notes)

    packed = gzip.compress(json.dumps(DETAILED).encode())
    (tmp_path / "r.json.gz").write_bytes(packed[:-20])
    assert any("cut or damaged" in note for note in read(tmp_path / "r.json.gz").notes)


def test_a_number_that_was_cut_is_not_read() -> None:
    at = json.dumps(VLLM).index('"output_throughput": 48.0') + len('"output_throughput": 4')
    assert "tokens/s" not in by_name(from_text(json.dumps(VLLM)[:at]).results)


@pytest.mark.parametrize("text", ['{"a": 1}', "[]", "hello", '{"traceEvents": []}', "{", "[1, 2]",
                                  '{"benchmarks": []}'])
def test_unknown_content_says_what_was_expected(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match="expected JSON of vllm bench serve"):
        read(tmp_path / "x.json")


def test_an_empty_file_and_a_binary_one(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(InputError, match="x is empty; expected JSON"):
        read(tmp_path / "x")
    (tmp_path / "y").write_bytes(b"abc\0def")
    with pytest.raises(InputError, match="y is no text"):
        read(tmp_path / "y")


@pytest.mark.parametrize("document", [VLLM, DETAILED, SGLANG, AIPERF, PYTEST, GOOGLE, GUIDELLM, TRTLLM],
                         ids=["vllm", "details", "sglang", "aiperf", "pytest", "google", "guidellm", "trtllm"])
def test_free_text_of_a_file_stays_inside(document: dict[str, Any]) -> None:
    shown = repr(from_text(json.dumps(document)))
    assert [secret for secret in SECRETS if secret in shown] == []


VALUES: Any = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                           lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner,
                                                                                       max_size=3),
                           max_leaves=4)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([DETAILED, SGLANG, AIPERF, PYTEST, GOOGLE, GUIDELLM, TRTLLM]), st.data())
def test_any_value_in_any_place_is_no_crash(document: dict[str, Any], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(document)))
    changed = {**document, key: data.draw(VALUES)}
    try:
        reading = from_text(json.dumps(changed))
    except InputError:
        return
    assert all(value == value and abs(value) != float("inf") for result in reading.results for value in result.samples)
