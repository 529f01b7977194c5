"""This file knows about what is missing from a text, and what to capture next to say more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sublight.explain.answers.answer import Judged
from sublight.observe.pasted import Pasted
from sublight.plan import Serving, Training

STEPS = {
    "vllm": "step times: start vLLM with --enable-logging-iteration-details, and paste a minute of its log",
    "sglang": "step lines: SGLang's log under load (\"Decode batch …\"), a minute of it",
    "trtllm": "step times: print_iter_log: true in the options file; its lines have host and device times",
    "megatron": "throughput: Megatron with --log-throughput, a few iterations after the first",
    "torchtitan": "a few step lines after the first",
}
AFTER = "; sublight explain on the file"
TRACE = {
    "vllm": "a trace: --profiler-config '{\"profiler\": \"torch\", \"torch_profiler_dir\": \"./p\"}', then "
            "/start_profile and /stop_profile around a few steps" + AFTER,
    "sglang": "a trace: POST /start_profile with {\"num_steps\": 5, \"record_shapes\": true}" + AFTER,
    "trtllm": "a trace: TLLM_PROFILE_START_STOP=100-105 TLLM_TORCH_PROFILE_TRACE=trace.json" + AFTER,
    "megatron": "a trace: --profile --use-pytorch-profiler --profile-step-start 10 --profile-step-end 12" + AFTER,
    "torchtitan": "a trace: the profiler's config with enable_profiling" + AFTER,
}
START = {"vllm": "the start of the log: \"GPU KV cache size\" and the version", "sglang": "the start of the log: "
         "\"max_total_num_tokens\" and server_args", "trtllm": "the start of the log: \"max tokens in paged KV cache\""}


def missing(cases: Sequence[Judged]) -> tuple[str, ...]:
    """What an answer lacks, by name."""
    return tuple(dict.fromkeys(text for found in cases for text in found.case.missing))


def capture(pasted: Pasted, cases: Sequence[Judged]) -> tuple[str, ...]:
    """What would say more than the text does, most useful first."""
    if not cases and pasted.trains:
        return ("the launch command of the training run", STEPS["megatron"], TRACE["megatron"])
    return tuple(dict.fromkeys(text for found in cases for text in _next(pasted, found)))


def _next(pasted: Pasted, found: Judged) -> Iterator[str]:
    case = found.case
    log = case.log
    if isinstance(case.plan, Serving) and not case.table and not pasted.asked:
        yield "a benchmark's summary: vllm bench serve or sglang.bench_serving with your lengths and users"
    has_steps = log is not None and any(step.kind in ("iteration", "decode", "step") for step in log.steps)
    if not has_steps and case.engine in STEPS:
        yield STEPS[case.engine]
    if isinstance(case.plan, Serving) and case.engine in START and (
            log is None or not {"kv_tokens", "kv_blocks"} & log.facts.keys()):
        yield START[case.engine]
    slow = any(row.verdict == "slower" for row in found.rows)
    if case.engine in TRACE and (slow or isinstance(case.plan, Training) or not found.rows):
        yield TRACE[case.engine]
