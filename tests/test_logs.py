"""Logs of engines: step lines and start-up lines in the shapes of several versions, as Results and as settings."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublight.engines.flags import ENGINES
from sublight.observe.logs.log import Log
from sublight.observe.logs.read import host_and_device, read, step_times
from sublight.observe.logs.text import launch
from sublight.observe.results import from_text
from sublight.result import Result

VLLM_NEW = """\
(APIServer pid=7) INFO 03-01 10:00:00 [api_server.py:1805] vLLM API server version 0.11.0
(APIServer pid=7) INFO 03-01 10:00:00 [utils.py:326] non-default args: {'model_tag': 'Qwen/Qwen3-32B', 'api_key': \
['sk-secret'], \
'model': 'Qwen/Qwen3-32B', 'max_model_len': 32768, 'tensor_parallel_size': 4, 'gpu_memory_utilization': 0.95, \
'enable_prefix_caching': False, 'enable_expert_parallel': True, 'speculative_config': {'method': 'mtp', \
'num_speculative_tokens': 2}, 'download_dir': '/home/anna/models'}
(EngineCore_DP0 pid=9) INFO 03-01 10:00:40 [gpu_model_runner.py:4216] Model loading took 15.3 GiB memory and 20.1 \
seconds
(EngineCore_DP0 pid=9) INFO 03-01 10:01:00 [gpu_worker.py:360] Available KV cache memory: 48.25 GiB
(EngineCore_DP0 pid=9) INFO 03-01 10:01:00 [kv_cache_utils.py:1307] GPU KV cache size: 790,528 tokens
(EngineCore_DP0 pid=9) INFO 03-01 10:01:00 [kv_cache_utils.py:1312] Maximum concurrency for 32,768 tokens per \
request: 24.13x
(EngineCore_DP0 pid=9) INFO 03-01 10:01:20 [gpu_model_runner.py:4300] Graph capturing finished in 18 secs, took 1.23 GiB
(APIServer pid=7) INFO 03-01 10:02:00 [loggers.py:123] Engine 000: Avg prompt throughput: 5120.4 tokens/s, Avg \
generation \
throughput: 2048.0 tokens/s, Running: 64 reqs, Waiting: 3 reqs, Preemptions: 2, GPU KV cache usage: 41.5%, Prefix \
cache hit \
rate: 12.0%
(APIServer pid=7) INFO 03-01 10:02:00 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.31, Accepted \
throughput: \
1 tokens/s
(EngineCore_DP0 pid=9) INFO Iteration(17): 0 context requests, 0 context tokens, 64 generation requests, 192 \
generation tokens, \
iteration elapsed time: 21.50 ms, GPU KV cache usage: 41.5%
(EngineCore_DP0 pid=9) INFO Iteration(18): 1 context requests, 1024 context tokens, 64 generation requests, 192 \
generation \
tokens, iteration elapsed time: 55.00 ms, GPU KV cache usage: 41.6%
(APIServer pid=7) INFO 03-01 10:02:10 [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation \
throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 12.0%
"""
VLLM_ONE_LINE = ("INFO kv_cache_utils.py] GPU KV cache size: 178,880 tokens, Maximum concurrency for 131,072 tokens "
                 "per "
                 "request: 1.36x\n")
VLLM_OLD = """\
INFO 05-11 08:17:48 llm_engine.py:100] Initializing an LLM engine (v0.4.2) with config: \
model='meta-llama/Llama-2-7b-hf', \
speculative_config=None, tokenizer='x', dtype=torch.float16, max_seq_len=4096, tensor_parallel_size=2, \
enforce_eager=True, \
kv_cache_dtype=auto)
INFO 05-11 08:18:48 gpu_executor.py:80] # GPU blocks: 7406, # CPU blocks: 512
INFO 05-11 08:19:48 metrics.py:334] Avg prompt throughput: 102.2 tokens/s, Avg generation throughput: 31.5 tokens/s, \
Running: 5 \
reqs, Swapped: 1 reqs, Pending: 7 reqs, GPU KV cache usage: 99.8%, CPU KV cache usage: 3.0%
"""
SGLANG = """\
[2026-03-01 10:00:00] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-V3', tokenizer_path='x', tp_size=8, \
dp_size=8, \
enable_dp_attention=True, mem_fraction_static=0.85, api_key='sk-secret', host='node17', max_running_requests=512)
[2026-03-01 10:00:30 DP0 TP0] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=60.1 GB, \
mem \
usage=79.50 GB.
[2026-03-01 10:00:40 DP0 TP0] KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB
[2026-03-01 10:00:45 DP0 TP0] max_total_num_tokens=367404, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=512, context_len=131072, available_gpu_mem=10.20 GB
[2026-03-01 10:01:00 DP0 TP0] Prefill batch, #new-seq: 2, #new-token: 4096, #cached-token: 1024, token usage: 0.10, \
#running-req: 30, #queue-req: 4, cuda graph: False, input throughput (token/s): 8000.00
[2026-03-01 10:01:02 DP0 TP0] Decode batch, #running-req: 32, #token: 65536, token usage: 0.18, accept len: 2.40, \
accept rate: \
0.70, cuda graph: True, gen throughput (token/s): 1500.50, #queue-req: 0,
[2026-03-01 10:01:04 DP1 TP1] Decode batch [123], #running-req: 10, #full token: 685000, full token usage: 0.49, \
mamba num: 12, \
mamba usage: 0.67, cuda graph: False, gen throughput (token/s): 8.44, #queue-req: 2
[2025-06-07 10:00:00 TP0] Decode batch. #running-req: 1, #token: 900, token usage: 0.01, gen throughput (token/s): \
59.00, \
#queue-req: 0,
"""
TRTLLM = """\
[TensorRT-LLM] TensorRT-LLM version: 1.2.0
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV cache (263008).
[08/04/2026-19:08:13] [TRT-LLM] [I] [_torch][RANK 0] iter = 1, global_rank = 0, rank = 0, num_scheduled_requests = \
244, \
kv_cache_util = 0.125, currank_total_requests = 1/8, host_step_time = 90.0ms, prev_device_step_time = N/A, timestamp = \
2026-08-04 19:08:13, states = {'num_ctx_requests': 2, 'num_ctx_tokens': 2048, 'num_generation_tokens': 242, \
'cached_kv_tokens': 63821}
[TRT-LLM] [I] iter = 2, global_rank = 0, rank = 0, currank_total_requests = 1/8, host_step_time = 10.0ms, \
prev_device_step_time = 80.0ms, timestamp = x, num_scheduled_requests: 0, states = {'num_ctx_requests': 0, \
'num_ctx_tokens': 0, \
'num_generation_tokens': 0}
[TRT-LLM] [I] iter = 3, global_rank = 0, rank = 0, currank_total_requests = 1/8, host_step_time = 8.0ms, \
prev_device_step_time \
= 1456.7ms, timestamp = x, num_scheduled_requests: 4, states = {'num_ctx_requests': 0, 'num_ctx_tokens': 0, \
'num_generation_tokens': 4}
[TRT-LLM] [I] iter = 4, global_rank = 0, rank = 0, currank_total_requests = 1/8, host_step_time = 8.2ms, \
prev_device_step_time \
= 7.3ms, timestamp = x, num_scheduled_requests: 4, states = {'num_ctx_requests': 0, 'num_ctx_tokens': 0, \
'num_generation_tokens': 4}
"""
MEGATRON = """\
------------------------ arguments ------------------------
  tensor_model_parallel_size ...................... 2
  pipeline_model_parallel_size .................... 4
  micro_batch_size ................................ 1
  tensorboard_dir ................................. /home/anna/tb
-------------------- end of arguments ---------------------
 [2025-11-28 18:43:17] iteration        1/    5000 | consumed samples:         1024 | elapsed time per iteration \
(ms): 98000.1 | \
throughput per GPU (TFLOP/s/GPU): 40.1 | learning rate: 1.0E-04 | global batch size:  1024 | lm loss: 1.2E+01 | \
number of \
skipped iterations:   0 | number of nan iterations:   0 |
 [2025-11-28 18:48:17] iteration        2/    5000 | consumed samples:         2048 | elapsed time per iteration \
(ms): 61674.3 | \
throughput per GPU (TFLOP/s/GPU): 68.2 | learning rate: 1.0E-04 | global batch size:  1024 | number of skipped \
iterations:   0 | \
number of nan iterations:   1 |
 [2025-11-28 18:53:25] iteration        3/    5000 | consumed samples:         3072 | elapsed time per iteration \
(ms): 61614.9 | \
tokens per GPU (tokens/s/GPU): 9640.7 | compute per GPU (TFLOP/s/GPU): 68.4 (avg 68.3) | global batch size:  1024 |
"""
TITAN = """\
[rank0]:[titan] 2026-03-24 10:00:00,000 - root - INFO - CUDA capacity: NVIDIA H100 with 79.1GiB memory
[titan] 2026-03-24 10:00:01,000 - root - INFO - Peak FLOPS used for computing MFU: 9.890e+14
[titan] 2026-03-24 10:00:02,000 - root - INFO - Training starts at step 1, with local batch size 1, global batch size \
8, \
sequence length 8192, total steps 1000 (warmup 200)
[titan] \x1b[31mstep:  1  \x1b[32mloss: 12.2  grad_norm:  3.1  \x1b[33mmemory: 40.10GiB(50.6%)  \x1b[34mtps: 900  \
\x1b[36mtflops: 52.0  \x1b[35mmfu: 5.26%\x1b[39m
[titan] 2026-03-24 10:01:00,000 - root - INFO - step: 10  loss:  9.81  grad_norm:  2.31  memory: 47.61GiB(60.15%)  \
tps: 2,793  \
tflops: 161.76  mfu: 16.36%
[titan] 2026-03-24 10:02:00,000 - root - INFO - step: 20  loss:  8.10  memory: 47.61GiB(60.15%)  tps: 2,801  tflops: \
162.22  \
mfu: 16.40%
"""


def log_of(text: str) -> Log:
    (log,), _ = read(text.splitlines())
    return log


def by_name(results: tuple[Result, ...]) -> dict[str, Result]:
    return {result.name + (f" {result.variant}" if result.variant else ""): result for result in results}


# ---------------------------------------------------------------- vLLM


def test_vllm_s_start_is_capacity_and_settings() -> None:
    log = log_of(VLLM_NEW)
    assert log.version == "0.11.0"
    assert log.facts["kv_tokens"] == 790528
    assert log.facts["kv_bytes"] == 48.25 * 2**30
    assert log.facts["weight_bytes"] == 15.3 * 2**30
    assert log.facts["graph_bytes"] == 1.23 * 2**30
    assert (log.facts["max_length"], log.facts["full_requests"]) == (32768, 24.13)
    made: Any = launch("vllm", log.arguments, log.version)
    assert made is not None
    plan: Any = made.plan
    assert (made.model, plan.tp, plan.ep, plan.memory_fraction,
            plan.max_length) == (
        "Qwen/Qwen3-32B", 4, 4, 0.95, 32768)
    assert (plan.prefix_cache, plan.drafts) == (False,
                                                2)


def test_vllm_s_intervals_and_iterations() -> None:
    log = log_of(VLLM_NEW)
    first = log.steps[0].values
    assert (first["running"], first["waiting"], first["preempted"]) == (64, 3, 2)
    assert first["kv_usage"] == pytest.approx(0.415)
    assert first["prefix_hit"] == pytest.approx(0.12)
    assert first["acceptance_length"] == 2.31                    # of the line that follows
    assert step_times(log) == {"decode": [0.0215], "mixed": [0.055]}

    reading = from_text(VLLM_NEW)
    found = by_name(reading.results)
    assert found["tokens/s"].samples == (2048.0,)
    assert found["step time decode"].samples == (0.0215,)
    assert found["KV cache"].unit in ("tokens", "bytes")
    assert "1 lines of an idle engine are left out" in reading.notes


def test_vllm_s_capacity_in_one_line() -> None:
    log = log_of(VLLM_ONE_LINE)
    assert (log.facts["kv_tokens"], log.facts["max_length"]) == (178880, 131072)


def test_an_old_vllm_says_blocks_and_pending() -> None:
    log = log_of(VLLM_OLD)
    assert log.version == "0.4.2"
    assert log.facts["kv_blocks"] == 7406
    values = log.steps[0].values
    assert (values["waiting"], values["running"]) == (7, 5)
    assert values["kv_usage"] == pytest.approx(0.998)            # of the GPU, not of the CPU
    made: Any = launch("vllm", log.arguments, log.version)
    assert made is not None
    assert (made.model, made.plan.tp, made.plan.cuda_graphs) == ("meta-llama/Llama-2-7b-hf", 2, False)


def test_of_several_ranks_the_least_room_counts() -> None:
    text = "".join(f"(Worker pid={at}) INFO [w] GPU KV cache size: {tokens:,} tokens\n"
                   for at, tokens in ((1, 1000), (2, 900), (3, 950)))
    assert log_of(text).facts["kv_tokens"] == 900


# ---------------------------------------------------------------- SGLang


def test_sglang_s_start() -> None:
    log = log_of(SGLANG)
    assert (log.facts["kv_tokens"], log.facts["max_length"], log.facts["max_sequences"]) == (367404, 131072, 512)
    assert log.facts["weight_bytes"] == 79.5 * 2**30
    made: Any = launch("sglang", log.arguments)
    assert made is not None
    assert (made.model, made.plan.dp, made.plan.tp) == ("deepseek-ai/DeepSeek-V3", 8, 1)
    assert made.plan.memory_fraction == 0.85


def test_sglang_s_batches_of_all_shapes() -> None:
    log = log_of(SGLANG)
    prefill, decode, hybrid, old = (step.values for step in log.steps)
    assert (prefill["new_tokens"], prefill["cached_tokens"], prefill["waiting"]) == (4096, 1024, 4)
    assert prefill["prompt_rate"] == 8000.0
    assert (decode["running"], decode["tokens"], decode["acceptance_length"], decode["graph"]) == (32, 65536, 2.4, 1.0)
    assert (decode["generation_rate"], decode["replica"]) == (1500.5, 0)
    assert (hybrid["running"], hybrid["tokens"], hybrid["kv_usage"], hybrid["graph"]) == (10, 685000, 0.49, 0.0)
    assert (old["running"], old["generation_rate"]) == (1, 59.0)


# ---------------------------------------------------------------- TensorRT-LLM


def test_trtllm_s_two_orders_of_fields() -> None:
    log = log_of(TRTLLM)
    assert log.version == "1.2.0"
    assert log.facts["kv_tokens"] == 263008
    first, second = log.steps[0].values, log.steps[1].values
    assert (first["scheduled"], first["context_tokens"], first["generation_tokens"]) == (244, 2048, 242)
    assert "previous_device_seconds" not in first
    assert second["scheduled"] == 0


def test_device_time_is_of_the_line_before_and_idle_steps_are_out() -> None:
    """The device's time of an empty step is its idle time: 1457 ms are of step 2, which scheduled nothing."""
    assert host_and_device(log_of(TRTLLM)) == [pytest.approx((0.090, 0.080)), pytest.approx((0.008, 0.0073))]
    found = by_name(from_text(TRTLLM).results)
    assert found["device step time"].samples == pytest.approx((0.080, 0.0073))


# ---------------------------------------------------------------- training


def test_megatron_s_iterations_without_the_first() -> None:
    reading = from_text(MEGATRON)
    found = by_name(reading.results)
    assert found["step time"].samples == pytest.approx((61.6743, 61.6149))
    assert found["model FLOP/s/GPU"].samples == pytest.approx((68.2e12, 68.4e12))
    assert found["tokens/s/GPU"].samples == (9640.7,)
    assert any("iteration 1" in note for note in reading.notes)
    assert "1 NaN iterations" in reading.notes


def test_megatron_s_dump_of_arguments() -> None:
    log = log_of(MEGATRON)
    made: Any = launch("megatron", log.arguments)
    assert made is not None
    assert (made.plan.tp, made.plan.pp) == (2, 4)
    assert "tensorboard_dir" not in log.arguments


def test_torchtitan_s_steps_with_and_without_colours() -> None:
    log = log_of(TITAN)
    assert (log.facts["peak_flops"], log.facts["seq"], log.facts["gbs"]) == (9.89e14, 8192, 8)
    reading = from_text(TITAN)
    found = by_name(reading.results)
    assert found["tokens/s/GPU"].samples == (2793.0, 2801.0)
    assert found["MFU"].samples == pytest.approx((0.1636, 0.164))
    assert found["memory"].samples[0] == pytest.approx(47.61 * 2**30)
    assert log.steps[0].values["token_rate"] == 900


# ---------------------------------------------------------------- all


def test_several_engines_in_one_text() -> None:
    logs, taken = read((VLLM_NEW + "nothing\n" + SGLANG + MEGATRON).splitlines())
    assert [log.engine for log in logs] == ["vllm", "sglang", "megatron"]
    assert VLLM_NEW.count("\n") not in taken


@pytest.mark.parametrize("text", [VLLM_NEW, VLLM_OLD, SGLANG, MEGATRON, TRTLLM, TITAN])
def test_settings_of_free_form_stay_inside(text: str) -> None:
    shown = repr(read(text.splitlines())[0]) + repr(from_text(text))
    assert [secret for secret in ("sk-secret", "anna", "node17") if secret in shown] == []


@pytest.mark.parametrize("text", [VLLM_NEW, VLLM_OLD, SGLANG, TRTLLM, MEGATRON, TITAN])
def test_lines_that_are_cut_anywhere_do_no_harm(text: str) -> None:
    for at in range(0, len(text), 37):
        read(text[:at].splitlines())


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([VLLM_NEW, SGLANG, TRTLLM, MEGATRON, TITAN]), st.data())
def test_digits_that_are_anything_do_no_harm(text: str, data: st.DataObject) -> None:
    lines = text.splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    word = data.draw(st.sampled_from(["nan", "1.2.3", "", "-1", "9" * 400, "1e400"]))
    lines[at] = lines[at].replace("1", word)
    logs, _ = read(lines)
    assert {log.engine for log in logs} <= set(ENGINES)


def test_a_long_log_of_other_things_is_fast() -> None:
    lines = ["INFO:     10.0.0.1:5 - \"POST /v1/completions HTTP/1.1\" 200 OK"] * 100_000 + VLLM_NEW.splitlines()
    since = time.process_time()
    logs: Any = read(lines)[0]
    assert logs[0].facts["kv_tokens"] == 790528
    assert time.process_time() - since < 10.0
