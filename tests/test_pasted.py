"""Pasted text: what it contains is recognised, public issues get their answers, what is missing is asked for by name.
what is missing is asked for by name.

Facts of the issues are retyped in short texts of our own; figures and settings are theirs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublight.cli import main
from sublight.errors import InputError
from sublight.explain.answers import Given, PastedAnswer, answer
from sublight.observe import pasted_names
from sublight.observe.pasted import recognise
from sublight.show.pasted import document, markdown

LOW_UTILISATION = """\
Utilization of the GPUs is only about 20 % with DeepSeek-R1-Distill-Llama-8B.
GPU 0: NVIDIA L20Y
GPU 1: NVIDIA L20Y
llm = LLM(
    model="DeepSeek-R1-Distill-Llama-8B",
    tensor_parallel_size=8,
    enforce_eager=True,
    disable_custom_all_reduce=True,
    max_num_seqs=600,
    gpu_memory_utilization=0.92,
)
INFO 02-28 15:02:09 metrics.py:455] Avg prompt throughput: 307.6 tokens/s, Avg generation throughput: 3210.7 tokens/s, \
Running: 600 reqs, Swapped: 0 reqs, Pending: 4475 reqs, GPU KV cache usage: 59.2%, CPU KV cache usage: 0.0%.
INFO 02-28 15:02:09 metrics.py:471] Prefix cache hit rate: GPU: 91.98%, CPU: 0.00%
"""
FULL_CACHE = """\
vLLM Version: 0.4.2
qwen2-0.5b on one H800; the GPU is used 20 % only
""" + "".join(
    f"INFO 07-24 09:55:{at} metrics.py:334] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: {rate} "
    f"tokens/s, "
    f"Running: {running} reqs, Swapped: 0 reqs, Pending: {987 - running} reqs, GPU KV cache usage: {full}%, CPU KV "
    f"cache "
    "usage: 0.0%\n" for at, rate, running, full in ((30, 2136.3, 247, 99.7), (35, 1970.3, 241, 99.6), (40, 2349.2,
                                                                                                       233, 99.7)))
QUEUED = """\
Namespace(backend='vllm', dataset_name='sharegpt', model='meta-llama/Meta-Llama-3-8B-Instruct', num_prompts=1000, \
sharegpt_output_len=2000, random_input_len=1024, random_output_len=128, request_rate=inf, seed=0)
============ Serving Benchmark Result ============
Successful requests:                     1000
Benchmark duration (s):                  12105.85
Total input tokens:                      19495
Total generated tokens:                  1376769
Request throughput (req/s):              0.08
Output token throughput (tok/s):         113.73
---------------Time to First Token----------------
Mean TTFT (ms):                          515454.0
==================================================
"""


def answered(text: str, **more: object) -> PastedAnswer:
    return answer(recognise(text), Given(**more))  # type: ignore[arg-type]


def first(found: PastedAnswer) -> Any:
    return found.cases[0].case


def claims(found: PastedAnswer, topic: str) -> str:
    return "\n".join(" ".join((point.claim, *point.evidence, point.action)) for point in found.points
                     if point.topic == topic)


# ---------------------------------------------------------------- ten public issues


def test_an_8b_model_on_eight_ranks_wants_replicas() -> None:
    """vllm-project/vllm#14022: launch- and all-reduce-bound; one rank a replica, graphs on."""
    found = answered(LOW_UTILISATION)
    assert any("L20Y is not in the catalog" in text for text in found.missing)
    assert "measure of speed" in claims(found, "peak")

    found = answered(LOW_UTILISATION, gpus="8xH800")
    case: Any = found.cases[0]
    assert (case.case.plan.tp, case.case.model_words) == (8,
                                                          "meta-llama/Llama-3.1-8B")
    assert case.rows[0].verdict == "slower"
    assert {term.name.split(" ")[0] for term in case.terms} >= {"attention", "collectives", "matrix", "host:"}
    assert "limited by the engine's setting of 600 sequences, not by the cache" in claims(found, "capacity")
    assert "tp 1 x 8 replicas" in claims(found, "layout").split("\n")[0]
    assert "CUDA graphs are off" in claims(found, "host")


def test_a_full_cache_limits_a_small_model() -> None:
    """vllm-project/vllm#6737: the running batch is limited by the cache, not by the GPU."""
    found = answered(FULL_CACHE, isl=None)
    said = claims(found, "capacity")
    assert "the KV cache is full (99.7%)" in said
    assert "746 requests wait" in said
    assert "fp8 cache" in said
    assert first(found).where.device.key == "h800"
    assert first(found).model_words == "Qwen/Qwen2.5-0.5B"


def test_a_slow_single_stream_on_an_unknown_gpu_asks_for_it() -> None:
    """vllm-project/vllm#4760: 2.2 tokens/s; weights over bandwidth give far more, so the environment is broken."""
    text = ("python -m vllm.entrypoints.openai.api_server --model /data/functionary-small-v2.4/ --dtype=bfloat16 "
            "--max-model-len 2048 --enforce-eager --gpu-memory-utilization 0.94\non an rtx 3090 24gb\n"
            "INFO 05-11 metrics.py:229] Avg prompt throughput: 102.2 tokens/s, Avg generation throughput: 2.2 "
            "tokens/s, Running: 1 reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 0.8%, CPU KV cache "
            "usage: 0.0%\n")
    assert any("rtx 3090 is not in the catalog" in line for line in answered(text).missing)
    found = answered(text, gpus="1xL4")                          # even a GPU of a third of its bandwidth does more
    row = found.cases[0].rows[0]
    assert (row.reported, row.verdict) == (2.2, "slower")
    assert row.speed is not None
    assert row.speed < 0.25
    assert "no more is asked" in claims(found, "capacity")


def test_a_run_far_below_light_is_no_matter_of_tuning() -> None:
    """vllm-project/vllm#8104: 113 tokens/s and 515 s to the first token: waiting, far below the GPU."""
    assert any("--gpus" in text for text in answered(QUEUED).missing)
    found = answered(QUEUED, gpus="1xA100")
    rows = {row.name: row for row in found.cases[0].rows}
    assert rows["tokens/s"].reported == 113.73
    assert rows["tokens/s"].verdict == "slower"
    assert rows["tokens/s"].speed is not None
    assert rows["tokens/s"].speed < 0.1
    assert "something of the environment is wrong" in claims(found, "speed")
    assert "the rest is waiting" in claims(found, "queue")
    assert "of 1,000 that are asked" in claims(found, "capacity")


def test_tp8_against_tp4_is_replicas_against_ranks() -> None:
    """vllm-project/vllm#16300: QwQ-32B, 8 A100: under load two replicas of tp 4 do more than one of tp 8."""
    text = ("model QwQ-32B on 8*A100(80GB), vllm 0.7.2\n"
            "python benchmark_latency.py --model Qwen/QwQ-32B --tensor-parallel-size 8 --input-len 1 --output-len 200 "
            "--batch-size 128\n")
    found = answered(text)
    case = first(found)
    assert (case.plan.tp, case.plan.version, case.where.cluster.ranks) == (8, "0.7.2", 8)
    assert (case.load.isl, case.load.osl, case.load.concurrency) == (1, 200, 128)
    said = claims(found, "layout")
    assert "with more requests" in said
    assert "replicas gives" in said
    assert "ranks shorten a token, replicas serve more of them" in said
    assert "tp 8 x 1 replica" in said


def test_one_rank_against_two_of_a_small_mixture() -> None:
    """vllm-project/vllm#22331: gpt-oss-120b, a single stream: 90 tokens/s on one A100, 77 on two."""
    text = ("docker run --gpus all vllm/vllm-openai:gptoss --served-model-name gptoss --tensor-parallel-size=2 "
            "--model openai/gpt-oss-120b\nA100 80GB with NVLink. For TP=1, I get 90 tps; for TP=2, 77 tps\n")
    found = answered(text, isl=1024, osl=256, concurrency=1)
    said = claims(found, "layout")
    assert first(found).model_words == "openai/gpt-oss-120b"
    assert "tp 1 x 2 replicas" in said
    assert "tp 2 x 1 replica" in said
    terms = {term.name: term.share for term in found.cases[0].terms}
    assert terms["collectives between ranks"] > 0.02             # what two ranks pay and one does not


def test_a_published_figure_of_another_part() -> None:
    """NVIDIA/TensorRT-LLM#6294: 27,688 tokens/s are of an SXM; a PCIe has less bandwidth and fewer SMs."""
    text = ("I get 7099.5345 tokens/sec where 27,688.36 tokens/sec are published, ISL/OSL 128/128\n1 x H100 PCIe\n"
            "trtllm-bench --model nvidia/Llama-3.1-8B-Instruct-FP8 throughput --dataset /w/128_128_30000.jsonl "
            "--backend pytorch --kv_cache_free_gpu_mem_fraction 0.8\n")
    found = answered(text)
    said = claims(found, "device")
    assert "this is NVIDIA H100 PCIe 80 GB, not NVIDIA H100 SXM5 80 GB" in said
    assert "1.64x" in said
    assert "7,100, 27,688 tokens/s" in said
    assert (first(found).load.isl, first(found).load.osl) == (128, 128)
    assert first(found).model.weight_bytes < 10e9


@pytest.mark.parametrize(("text", "said"), [
    ("I train Qwen2.5-32B with Megatron on H200x2, throughput about 420, tp=4, pp=2, so MFU is 420/1979 = 21 %",
     ["420 TFLOP/s a GPU (the text) are 42.4% of the dense bf16 peak", "with 2:4 sparsity", "divide by 990 TFLOP/s"]),
    ("7B model on H100: MFU is 480 / 1979", ["480 TFLOP/s a GPU (the text) are 48.5%"]),
    ("nanoGPT says 104% MFU on my H100", ["an MFU of 104% cannot be", "dense bf16 peak of NVIDIA A100", "32.8% here"]),
])
def test_a_sparse_peak_or_another_gpu_s(text: str, said: list[str]) -> None:
    """NVIDIA/Megatron-LM#1565, fms-fsdp#89, karpathy/nanoGPT#464."""
    found = claims(answered(text), "peak")
    assert [part for part in said if part not in found] == []


def test_two_engines_with_different_room() -> None:
    """vllm-project/vllm#21348: Qwen3-235B FP8 on four H100: SGLang prints twice the tokens of vLLM."""
    text = ("On 4xH100 I start Qwen3-235B-A22B-FP8 with vLLM 0.9.2:\n"
            "vllm serve /path/to/Qwen3-235B-A22B-FP8 --tensor-parallel-size 4\n"
            "INFO kv_cache_utils: GPU KV cache size: 178,880 tokens\n"
            "INFO gpu_worker: Available KV cache memory: 8.11 GiB\n"
            "python3 -m sglang.launch_server --model /path/to/Qwen3-235B-A22B-FP8 --tp 4 --mem-fraction-static 0.93\n"
            "KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB\n")
    found = answered(text)
    assert [judged.case.engine for judged in found.cases] == ["vllm", "sglang"]
    said = claims(found, "difference")
    assert "178,880 and 367,404 tokens, 2.05x" in said
    assert "memory fraction: the engine's default, 0.93" in said
    room = claims(found, "capacity")
    assert "178,880 tokens (printed)" in room
    assert "367,404 tokens (printed)" in room
    assert "activations" in room                                 # what vLLM sets aside and SGLang does not


def test_a_budget_of_chunked_prefill() -> None:
    """vllm-project/vllm#7604: as large as the inter-token latency allows; chunks give no throughput of their own."""
    text = ("Llama-3-70B-Instruct-Gradient-1048k on 8 H100 SXM GPUs, vLLM 0.5.4\n"
            "python3 ./benchmarks/benchmark_throughput.py \\\n"
            "    --model gradientai/Llama-3-70B-Instruct-Gradient-1048k \\\n    --tensor-parallel-size 8 \\\n"
            "    --num-prompts 50 \\\n    --input-len 40000 \\\n    --output-len 256 \\\n"
            "    --enable-chunked-prefill \\\n    --max-num-batched-tokens 4096\n")
    found = answered(text)
    assert first(found).plan.token_budget == 4096
    said = claims(found, "budget")
    assert "cut into 10 steps of 4,096" in said
    assert "40,000 tokens a step: 1 steps a prompt" in said
    assert "whose step time your inter-token latency allows" in said
    assert "model's context" not in claims(found, "plan")        # the fine-tune has a longer one than its base


def test_untuned_experts_are_worth_what_they_weigh() -> None:
    """vllm-project/vllm#17619: is the tuning material here?"""
    text = ("vllm serve Qwen/Qwen3-235B-A22B-FP8 -tp 8 --enable-expert-parallel  # v0.8.5.post1\non 8xH100\n"
            "(VllmWorker rank=1) WARNING [fused_moe.py:668] Using default MoE config. Performance might be "
            "sub-optimal! Config file not found at /usr/lib/x.json\n")
    said = claims(answered(text, isl=1024, osl=256, concurrency=32), "experts")
    assert "of a decode step" in said
    assert "would gain" in said


def test_guesses_on_many_ranks_must_hold_to_pay() -> None:
    """sgl-project/sglang#6949: EAGLE on four ranks: 59 against 61 tokens/s."""
    text = ("python -m sglang.launch_server --model-path Qwen/QwQ-32B --tp 4 --speculative-algorithm EAGLE "
            "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4\n4xA100\n"
            "[2025-06-07 10:00:00 TP0] Decode batch. #running-req: 1, #token: 900, token usage: 0.01, accept len: "
            "1.05, gen throughput (token/s): 59.00, #queue-req: 0,\n")
    said = claims(answered(text), "speculation")
    assert "a step that verifies" in said
    assert "the log says 1.05" in said


def test_a_log_that_waits_for_its_host() -> None:
    """TensorRT-LLM prints both times of each step."""
    def line(number: int, host: float, device: str) -> str:
        return (f"[TRT-LLM] [I] iter = {number}, global_rank = 0, rank = 0, num_scheduled_requests = 8, "
                f"kv_cache_util = 0.1, currank_total_requests = 8/8, host_step_time = {host}ms, "
                f"prev_device_step_time = {device}, timestamp = x, "
                "states = {'num_ctx_requests': 0, 'num_ctx_tokens': 0, 'num_generation_tokens': 8}\n")

    slow = "".join(line(at, 12.0, "N/A" if at == 1 else "6.0ms") for at in range(1, 9))
    fast = "".join(line(at, 7.4, "7.3ms") for at in range(1, 9))
    assert "host-bound" in claims(answered(slow), "host")
    assert "about 50%" in claims(answered(slow), "host")
    assert "not host-bound" in claims(answered(fast), "host")


def test_a_newer_gpu_that_is_no_faster_has_an_expected_ratio() -> None:
    """vllm-project/vllm#18725: QwQ-32B, B200 about as fast as H200: which bound should have moved?"""
    text = "vllm serve Qwen/QwQ-32B -tp 1, once on 1xH200 and once on 1xB200, vllm 0.8.5"
    found = answered(text, isl=1024, osl=1024, concurrency=32)
    assert [judged.case.where.device.key for judged in found.cases] == ["h200", "b200"]  # type: ignore[union-attr]
    said = claims(found, "difference")
    assert "GPUs: NVIDIA H200 141 GB, NVIDIA B200" in said
    assert "tokens/s, the second over the first: expected 1." in said


def test_two_versions_differ_in_their_defaults_too() -> None:
    """As vllm-project/vllm#31030 asks: half the speed after an upgrade."""
    text = ("8xH100 before: vllm/vllm-openai:v0.7.3\ndocker run vllm/vllm-openai:v0.7.3 --model Qwen/Qwen3-8B -tp 2\n"
            "and after\ndocker run vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B -tp 2 --enforce-eager\n")
    said = claims(answered(text, gpus="2xH100"), "difference")
    assert "version: 0.7.3, 0.11.0" in said
    assert "token budget: 2048, 8192 (the first and the second by the engine's own default)" in said
    assert "cuda graphs: True, False" in said
    assert "change one setting at a time" in said


def test_a_run_that_is_reported_is_not_said_to_be_impossible() -> None:
    """Two nodes of H20 run DeepSeek-R1 (as in sgl-project/sglang#8561); where the computed ledger does not fit, it is
    the ledger that is wrong."""
    text = ("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 16 --nnodes 2 "
            "--enable-dp-attention --dp 16 --moe-a2a-backend deepep\n2x8xH20\n")
    ran = text + ("============ Serving Benchmark Result ============\nSuccessful requests:                     512\n"
                  "Max request concurrency:                 128\nBenchmark duration (s):                  400.2\n"
                  "Total input tokens:                      524288\nTotal generated tokens:                  262144\n"
                  "Output token throughput (tok/s):         655.0\n"
                  "==================================================\n")
    assert "cannot run as it stands" in claims(answered(text), "plan")
    found = answered(ran)
    assert "yet the text reports that it did" in claims(found, "plan")
    assert "cannot run" not in claims(found, "plan")
    assert "0 tokens" not in claims(found, "capacity")
    assert len(found.cases[0].notes) == len(set(found.cases[0].notes)) == 1


def test_a_figure_in_prose_is_a_run_too() -> None:
    """vllm-project/vllm#31030: gpt-oss-120b on one GPU of 80 GB does run."""
    text = "vllm 0.10.2: 60 tok/s, vllm 0.12.0: 28 tok/s, on 1xH100\nvllm serve openai/gpt-oss-120b\n"
    assert "cannot run" not in claims(answered(text), "plan")


@pytest.mark.parametrize(("line", "lengths"), [
    ("2k in 500 out", (2048, 500)), ("2,000 tokens in, 512 tokens out", (2000, 512)),
    ("1024 input/128 output", (1024, 128)), ("8 in 9 out of 10", (None, None)),
    ("log in 3 times and out 2 times", (None, None)), ("5 in 10 runs out of memory", (None, None)),
])
def test_lengths_in_prose(line: str, lengths: tuple[int | None, int | None]) -> None:
    assert pasted_names.lengths(line) == lengths


@pytest.mark.parametrize("text", [
    "throughput per GPU (TFLOP/s/GPU): 130 on 16 H100", "130 TFLOP/s on 16 x H100", "TFLOPS: 130, 16xH100",
])
def test_flops_before_and_behind_their_unit(text: str) -> None:
    """NVIDIA/Megatron-LM#756: 130 TFLOP/s a GPU."""
    assert "130 TFLOP/s a GPU (the text) are 13.1% of the dense bf16 peak" in claims(answered(text), "peak")


# ---------------------------------------------------------------- what a text contains


def test_lines_that_say_nothing_are_counted_and_not_repeated() -> None:
    text = "hello there\nvllm serve Qwen/Qwen3-8B -tp 2\nplease help, the password is hunter2\n2xH100\nthanks\n"
    found = answered(text)
    assert found.unread == "not recognised: 3 of 5 lines (line 1, 3, 5)"
    assert "hunter2" not in json.dumps(document(found)) + markdown(found)


def test_secrets_paths_and_hosts_stay_inside() -> None:
    text = ("HF_TOKEN=hf_abcdefghijklmnop vllm serve /home/anna/secret-project/Qwen3-8B -tp 2 --api-key "
            "sk-verysecretkey1 --host node17.corp.example --unknown-flag /home/anna/x\n2xH100\n"
            "INFO utils.py] non-default args: {'model': '/home/anna/secret-project/Qwen3-8B', 'api_key': "
            "'sk-verysecretkey1', 'host': 'node17.corp.example', 'tensor_parallel_size': 2}\n")
    shown = json.dumps(document(answered(text))) + markdown(answered(text))
    for secret in ("hf_abc", "sk-very", "anna", "node17", "secret-project"):
        assert secret not in shown, secret
    assert "--unknown-flag" in shown


@pytest.mark.parametrize(("text", "tp", "engine"), [
    ("$ vllm serve Qwen/Qwen3-8B -tp 4", 4, "vllm"),
    ("I ran `vllm serve Qwen/Qwen3-8B --tensor-parallel-size 4` and it's slow", 4, "vllm"),
    ("MODEL=Qwen/Qwen3-8B\nTP=4\npython -m vllm.entrypoints.openai.api_server --model $MODEL -tp $TP", 4, "vllm"),
    ("sglang serve\n    --model-path Qwen/Qwen3-8B\n    --tp 4\n", 4, "sglang"),
    ("python -m sglang.launch_server \\\n --model-path Qwen/Qwen3-8B \\\n --tp 4", 4, "sglang"),
    ("trtllm-serve Qwen/Qwen3-8B --tp_size 4", 4, "trtllm"),
    ("engine = sgl.Engine(model_path='Qwen/Qwen3-8B', tp_size=4)", 4, "sglang"),
    ("INFO Initializing a V1 LLM engine (v0.9.2) with config: model='Qwen/Qwen3-8B', tensor_parallel_size=4, dtype=x",
     4, "vllm"),
    ("[2025] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=4, port=30000)", 4, "sglang"),
])
def test_commands_are_found_wherever_they_stand(text: str, tp: int, engine: str) -> None:
    found = answered(text, gpus="4xH100")
    case = first(found)
    assert (case.engine, case.plan.tp, case.model_words) == (engine, tp, "Qwen/Qwen3-8B")


def test_megatron_s_command_and_log() -> None:
    text = ("torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --seq-length 4096 "
            "--global-batch-size 128 --micro-batch-size 1\n8xH100\n"
            + "".join(f" iteration {at:8d}/ 1000 | consumed samples: {128 * at} | elapsed time per iteration (ms): "
                      f"{seconds} | throughput per GPU (TFLOP/s/GPU): {rate} | global batch size: 128 |\n"
                      for at, seconds, rate in ((1, 30000.0, 60.0), (2, 4900.0, 395.0), (3, 4900.0, 395.0))))
    found = answered(text, model="meta-llama/Llama-3.1-8B")
    rows = {row.name: row for row in found.cases[0].rows}
    assert rows["step time"].reported == 4.9
    assert rows["step time"].expected is not None
    assert "395 TFLOP/s a GPU (megatron's log) are 39.9% of the dense bf16 peak" in claims(found, "peak")


def test_two_summaries_of_one_command_are_two_cases() -> None:
    def table(rate: float) -> str:
        return ("============ Serving Benchmark Result ============\nSuccessful requests: 100\n"
                "Benchmark duration (s): 50.0\n"
                "Maximum request concurrency: 16\nTotal input tokens: 102400\nTotal generated tokens: 25600\n"
                f"Output token throughput (tok/s): {rate}\nMean TPOT (ms): {16e3 / rate}\n{'=' * 50}\n")

    found = answered(f"vllm serve Qwen/Qwen3-8B\n1xH100\nbefore\n{table(1800.0)}after\n{table(900.0)}")
    assert [judged.case.name for judged in found.cases] == ["A", "B"]
    assert "reported 0.50x" in claims(found, "difference")
    assert "same settings" in claims(found, "difference")


def test_a_benchmark_s_json_between_other_text() -> None:
    result = {"model_id": "Qwen/Qwen3-8B", "num_prompts": 100, "max_concurrency": 16, "request_rate": "inf",
              "duration": 50.0,
              "completed": 100, "total_input_tokens": 102400, "total_output_tokens": 25600, "request_throughput": 2.0,
              "output_throughput": 512.0, "mean_ttft_ms": 90.0, "mean_tpot_ms": 20.0}
    found = answered(f"this is what I see on 1xH100:\n{json.dumps(result)}\nis it right?")
    rows = {row.name: row for row in found.cases[0].rows}
    assert rows["TPOT"].reported == 0.02
    assert rows["TPOT"].verdict == "slower"
    assert found.unread == "not recognised: 1 of 3 lines (line 3)"


@pytest.mark.parametrize(("line", "found"), [
    ("8xH100", ("h100-sxm", 8)), ("2x8xH100", ("h100-sxm", 16)), ("8 x A100-SXM4-80GB", ("a100-sxm-80", 8)),
    ("H200x2", ("h200", 2)), ("single L40S", ("l40s", 1)), ("1 x H100 PCIe", ("h100-pcie", 1)),
    ("8xA100-40G", ("a100-sxm-40", 8)), ("4 × NVIDIA H20-3e", (None, 4)), ("rtx 3090 24gb", (None, None)),
    ("two B200s", ("b200", 2)),
])
def test_gpus_in_prose(line: str, found: tuple[str | None, int | None]) -> None:
    gpu, = pasted_names.gpus(line)
    assert (gpu.key, gpu.count) == found


@pytest.mark.parametrize("line", ["commit a10b20c", "A100k users", "L4D2", "h100ms", "model-a10-x"])
def test_words_that_are_no_gpu(line: str) -> None:
    assert pasted_names.gpus(line) == [] or line == "model-a10-x"


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_recognised_without_an_error(text: str) -> None:
    recognise(text)


# ---------------------------------------------------------------- the command


def run(arguments: list[str], text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "sublight", "explain", *arguments], input=text, capture_output=True,
                          text=True, timeout=120, check=False)


def test_standard_input_and_a_file_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "vllm serve Qwen/Qwen3-8B -tp 2 on 2xH100\n"
    (tmp_path / "issue.txt").write_text(text)
    assert main(["explain", str(tmp_path / "issue.txt"), "--format", "md"]) == 0
    of_file = capsys.readouterr().out
    done = run(["-", "--format", "md"], text)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == of_file
    assert "tp 2" in of_file


@pytest.mark.parametrize(("pieces", "said"), [
    (["\n", "vllm serve Qwen/Qwen3-8B\n", "1xH100\n"], "GPUs: 1 x H100"),
    (['{"date": 1,', '"num_prompts": 5, "request_throughput": 2.0, "duration": 3, "mean_ttft_ms": 5.0}'],
     "benchmark summary"),
    (["\n", '{"traceEvents": [{"ph": "X", "name": "k", "cat": "kernel", "ts": 0, "dur": 5, "args": {}}]}'], "trace"),
])
def test_a_pipe_that_hands_over_little_by_little(pieces: list[str], said: str) -> None:
    process = subprocess.Popen([sys.executable, "-m", "sublight", "explain", "-"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdin is not None
    for piece in pieces:
        process.stdin.write(piece)
        process.stdin.flush()
        time.sleep(0.5)
    out, _ = process.communicate(timeout=60)
    assert said in out, out


def test_json_is_base_units() -> None:
    done = run(["-", "--format", "json", "--gpus", "1xH100", "--isl", "1024", "--osl", "256", "--concurrency", "8"],
               "vllm serve Qwen/Qwen3-8B")
    row = next(row for row in json.loads(done.stdout)["cases"][0]["figures"] if row["name"] == "TPOT")
    assert row["unit"] == "s"
    assert 0.001 < row["expected"] < 0.05


@pytest.mark.parametrize(("arguments", "text", "said"), [
    (["-"], "hello", "got something else"), (["-", "--format", "svg"], "vllm serve m/x", "--format svg is of a trace"),
    (["-", "--whatif", "gemm=2x"], "vllm serve m/x", "--whatif is of a trace"),
    (["-", "--gpus", "8xQ100"], "vllm serve m/x", "no node 'Q100'"),
])
def test_what_cannot_be_is_one_line(arguments: list[str], text: str, said: str) -> None:
    done = run(arguments, text)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_nothing_recognised_is_an_error() -> None:
    with pytest.raises(InputError, match="launch command"):
        answered("nothing to see here")
