"""A plan written is the command that reads as the plan; what an engine's version cannot be told is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublight.engines import emit, parse, parse_all, settled
from sublight.engines.flags import numbers, table
from sublight.errors import InputError
from sublight.plan import Disaggregated, Job, Serving, Training

SERVING = ("vllm", "sglang", "trtllm")
VERSIONS = {
    "vllm": ("0.6.6", "0.8.5", "0.10.2", "0.11.0", "0.15.1", "0.19.0", None),
    "sglang": ("0.4.0", "0.4.6", "0.4.10", "0.5.3", "0.5.9", "0.5.14", None),
    "trtllm": ("0.20.0", "0.21.0", "1.0.0", "1.2.0", "1.3.0", None),
    "megatron": ("0.9.0", "0.11.0", "0.13.0", "0.15.0", "0.19.0", None),
    "torchtitan": ("0.1.0", "0.2.2", "0.3.0", None),
}


# ---- refusals


@pytest.mark.parametrize(("text", "match"), [
    ("ls -l", "no launch command found: expected one of 'vllm serve'"),
    ("vllm serve a/b -tp", r"a value \(int\) expected after -tp, got the end of the command"),
    ("vllm serve a/b -tp --max-num-seqs 4", "got the flag --max-num-seqs"),
    ("vllm serve a/b -tp two", "-tp expected an integer, got 'two'"),
    ("vllm serve a/b -tp $TP", r"got \$TP, which the text does not set: .* TP=… in a line before the command"),
    ("vllm serve a/b --max-num-seqs 1.5", "integer or a size like 8k"),
    ("vllm serve a/b --gpu-memory-utilization 1.5", r"share of memory in \(0, 1\] expected, got 1.5"),
    ("vllm serve a/b -tp 0", "tp expected 1 or more, got 0"),
    ("vllm serve a/b --speculative-config '{method: x}'", "expected a JSON object in quotes"),
    ("vllm serve 'a/b", "a closing ' expected for the one that opens in line 1"),
    ("sglang serve --model a/b --tp 8 --dp 3 --enable-dp-attention", "--dp-size 3 does not divide --tp-size 8"),
    ("torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 3", "does not divide the 8 GPUs"),
    ("python pretrain_gpt.py --num-layers-per-virtual-pipeline-stage 2 --pipeline-model-parallel-size 4",
     "only with --num-layers"),
])
def test_bad_input_says_what_was_expected(text: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        parse(text)


@pytest.mark.parametrize(("plan", "version", "match"), [
    (Serving(engine="vllm", tp=4, dp=2, ep=4), None, "1 group or in as many as ranks"),
    (Serving(engine="vllm", dp=4), "0.7.3", r"vLLM 0.7.3 has no flag that says dp = 4.*from 0.8.3"),
    (Serving(engine="vllm", poll_steps=4), None, "vLLM has no flag that says poll steps = 4"),
    (Serving(engine="vllm", two_batch_overlap=True), "0.9.2", "--enable-dbo from 0.11.0"),
    (Serving(engine="sglang", pp=2), "0.4.0", "pp = 2"),
    (Serving(engine="sglang", tp=8, ep=4), "0.4.6", "before 0.5"),
    (Serving(engine="trtllm", tp=2, dp=4), None, "attention replicas of one rank each"),
    (Serving(engine="trtllm", two_batch_overlap=True), None, "two batch overlap = True"),
    (Training(schedule="dualpipe"), None, "runs the schedule '1f1b'"),
    (Training(precision="int8"), None, "precision of bf16"),
    (Training(overlap_ep=True), "0.12.0", "from 0.14"),
    (Training(framework="torchtitan", zero=1), None, "zero = 0, 2 or 3 expected"),
    (Training(framework="torchtitan", zero=3, mbs=8, recompute="selective", ep=2), "0.1.0", "ep = 2"),
])
def test_what_an_engine_cannot_be_told_is_refused(plan: Serving | Training, version: str | None, match: str) -> None:
    with pytest.raises(InputError, match=match):
        emit("a/b", plan, version=version)


def test_a_plan_goes_to_its_kind_of_engine() -> None:
    with pytest.raises(InputError, match="started with a Training plan"):
        emit("a/b", Serving(), "megatron")
    with pytest.raises(InputError, match="is 'sglang' meant"):
        emit("a/b", Serving(), "sglan")
    with pytest.raises(InputError, match="a job of training has no place"):
        emit("a/b", Serving(), "vllm", job=Job(1, 1))


def test_a_flag_that_is_nearly_known_is_hinted_at_and_passes_through() -> None:
    launch = parse("vllm serve a/b --max-num-seq 64")
    assert launch.unknown == (("--max-num-seq", "64"),)
    assert launch.notes == ("--max-num-seq is not known and passes through as it is; --max-num-seqs is known",)


# ---- emit and parse are inverses


def serving(engine: str, version: str | None) -> st.SearchStrategy[Serving]:
    """Plans that the engine can be told."""
    number = numbers(version)
    small, limit = st.sampled_from([1, 2, 4, 8]), st.none() | st.integers(1, 200_000)

    def has(setting: str) -> bool:
        return any(row.write and row.within(number) for row in table(engine).said(setting))

    @st.composite
    def build(draw: st.DrawFn) -> Serving:
        def flag(setting: str, value: Any, other: Any) -> Any:
            return draw(st.sampled_from([value, other])) if has(setting) else other

        tp, dp = draw(small), 1
        if engine == "trtllm":
            tp, dp = draw(st.sampled_from([(tp, 1), (1, tp)]))
        elif engine == "sglang" or number >= (0, 8, 3):
            dp = draw(small)
        group = has("expert_parallel") or engine != "vllm"
        if engine == "sglang" and number < (0, 4, 1):
            group = False
        ep = draw(st.sampled_from([1, tp * dp])) if group else 1
        moe = None
        if engine == "vllm":
            moe = flag("moe_kind", draw(st.sampled_from(["deepep-ll", "deepep-normal"])), None)
        if engine == "sglang" and ep == tp * dp and (has("exchange") or has("deepep_moe")):
            moe = draw(st.sampled_from([None, "deepep-ll", "deepep-normal", "deepep-auto"]))
        drafts = draw(st.integers(0, 7)) if engine != "vllm" or number >= (0, 8, 3) else 0
        if engine == "sglang" and number < (0, 4, 1):
            drafts = 0
        extra = draw(st.lists(st.sampled_from([("--port", "80"), ("--foo", ""), ("--bar-list", "1 2"),
                                               ("--named", "'a b'")]), unique=True))
        return Serving(
            engine=engine, version=version, tp=tp, dp=dp, ep=ep, moe_kind=moe, drafts=drafts, extra=tuple(extra),
            pp=draw(small) if has("pp") else 1, replicas=draw(st.sampled_from([1, 3])), token_budget=draw(limit),
            max_sequences=draw(limit), max_length=draw(limit),
            memory_fraction=draw(st.none() | st.sampled_from([0.5, 0.85, 0.9, 0.123])),
            kv=draw(st.sampled_from([None, "fp8"])),
            chunked_prefill=draw(st.booleans()) if engine != "sglang" else True, cuda_graphs=draw(st.booleans()),
            prefix_cache=draw(st.booleans()), poll_steps=flag("poll_steps", 10, 1),
            two_batch_overlap=flag("two_batch_overlap", True, False),
            attention_kind=draw(st.sampled_from([None, "FLASHINFER"])),
            all_reduce_kind=flag("all_reduce_kind", "nccl", None),
            acceptance=draw(st.sampled_from([0.0, 0.7])))
    return build()


@pytest.mark.heavy
@pytest.mark.parametrize(("engine", "version"), [(e, v) for e in SERVING for v in VERSIONS[e]])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_serving_plan_comes_back(engine: str, version: str | None, data: st.DataObject) -> None:
    plan = data.draw(serving(engine, version))
    back = parse(emit("org/model-1.5", plan))
    assert back.model == "org/model-1.5"
    assert back.version == version
    assert replace(back.plan, extra=()) == replace(settled(plan), extra=())
    assert sorted(back.unknown) == sorted(plan.extra)
    assert back.gpus == plan.gpus


def training(framework: str, version: str | None) -> st.SearchStrategy[Training]:
    number = numbers(version)
    small = st.sampled_from([1, 2, 4])

    @st.composite
    def build(draw: st.DrawFn) -> Training:
        tp, pp, cp, dp = (draw(small) for _ in range(4))
        if framework == "torchtitan":
            zero = draw(st.sampled_from([0, 2, 3])) if dp > 1 else draw(st.sampled_from([2, 3]))
            return Training(
                framework=framework, version=version, tp=tp, pp=pp, cp=cp, dp=dp, zero=zero, mbs=draw(small),
                ep=draw(small) if number >= (0, 2) else 1, etp=draw(small) if (0, 2) <= number < (0, 3) else 1,
                schedule=draw(st.sampled_from(["1f1b", "gpipe", "interleaved", "zero-bubble", "dualpipe"])),
                recompute=draw(st.sampled_from(["none", "selective", "full"])) if number < (0, 3) else "selective",
                overlap_tp=draw(st.booleans()), sequence_parallel=draw(st.booleans()) if number >= (0, 3) else True)
        vpp = draw(st.sampled_from([1, 2])) if pp > 1 else 1
        precisions = ["bf16", "fp16", "fp32", "fp8", *(["mxfp8", "fp8-block"] if number >= (0, 12) else []),
                      *(["nvfp4"] if number >= (0, 15) else [])]
        return Training(
            framework=framework, version=version, tp=tp, pp=pp, cp=cp, dp=dp, ep=draw(small), vpp=vpp, mbs=draw(small),
            etp=draw(small) if number >= (0, 10) else tp, schedule="interleaved" if vpp > 1 else "1f1b",
            zero=draw(st.integers(0, 3)) if number >= (0, 12) else draw(st.integers(0, 1)),
            sequence_parallel=draw(st.booleans()), recompute=draw(st.sampled_from(["none", "selective", "full"])),
            precision=draw(st.sampled_from(precisions)), cuda_graphs=number >= (0, 11) and draw(st.booleans()),
            overlap_grad=draw(st.booleans()), overlap_param=draw(st.booleans()), overlap_tp=draw(st.booleans()),
            overlap_ep=number >= (0, 14) and draw(st.booleans()), optimizer=draw(st.sampled_from(["adam", "sgd"])),
            extra=(("--num-layers", "32"), ("--num-experts", "8")) if draw(st.booleans()) or vpp > 1 else ())
    return build()


@pytest.mark.heavy
@pytest.mark.parametrize(("framework", "version"), [(f, v) for f in ("megatron", "torchtitan") for v in VERSIONS[f]])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_training_plan_comes_back(framework: str, version: str | None, data: st.DataObject) -> None:
    plan = data.draw(training(framework, version))
    if framework == "megatron" and numbers(version) < (0, 10) and plan.ep == 1 and not plan.extra:
        plan = replace(plan, etp=1)
    job = data.draw(st.sampled_from([None, Job(seq=4096, gbs=64)]))
    back = parse(emit("llama3/llama3_8b", plan, job=job))
    assert (back.model, back.version, back.gpus) == ("llama3/llama3_8b", version, plan.gpus)
    assert replace(back.plan, extra=()) == replace(settled(plan), extra=())
    assert sorted(back.unknown) == sorted(plan.extra)
    assert back.job == job


def test_what_is_written_is_short() -> None:
    assert emit("a/b", Serving(engine="vllm", tp=2)) == "vllm serve a/b --tensor-parallel-size 2"
    assert emit("a/b", Serving(engine="vllm", replicas=8), version="0.19.0") == (
        "# vllm 0.19.0, 8 instances\nvllm serve a/b")
    assert emit("a/b", Serving(engine="trtllm", kv="fp8")) == (
        "cat > options.yml << 'EOF'\nkv_cache_config:\n  dtype: fp8\nEOF\n"
        "trtllm-serve a/b --enable_chunked_prefill --extra_llm_api_options options.yml")
    assert emit("a/b", Serving(engine="vllm", dp=8, ep=8, moe_kind="deepep-ll"), version="0.10.0").split("\n")[1] == (
        "VLLM_ALL2ALL_BACKEND=deepep_low_latency vllm serve a/b --data-parallel-size 8 --enable-expert-parallel")


def test_one_plan_for_another_engine() -> None:
    plan = Serving(engine="vllm", version="0.19.0", dp=8, ep=8, token_budget=4096, max_sequences=64)
    text = emit("a/b", plan, "sglang", "0.5.9")
    assert text == ("# sglang 0.5.9\npython -m sglang.launch_server --model-path a/b --tp-size 8 --dp-size 8 "
                    "--enable-dp-attention --chunked-prefill-size 32768 --max-running-requests 512 --ep-size 8")
    assert parse(text).plan == replace(plan, engine="sglang", version="0.5.9")


# ---- prefill and decode workers


@pytest.mark.parametrize(("engine", "version"), [("vllm", "0.19.0"), ("sglang", "0.5.9"), ("trtllm", "1.2.0")])
def test_a_disaggregated_plan_makes_two_commands(engine: str, version: str) -> None:
    prefill = Serving(engine=engine, version=version, tp=4, token_budget=16384, kv="fp8")
    decode = Serving(engine=engine, version=version, dp=8, ep=8, max_sequences=128, kv="fp8")
    text = emit("a/b", Disaggregated(prefill, decode, prefill_workers=3, decode_workers=1), engine, version)
    first, second = parse_all(text)
    assert replace(first.plan, extra=()) == replace(prefill, replicas=3)
    assert replace(second.plan, extra=()) == decode
    assert (first.gpus, second.gpus) == (12, 8)
    if engine != "trtllm":
        assert (first.role, second.role) == ("prefill", "decode")


def test_versions_without_roles_are_refused() -> None:
    with pytest.raises(InputError, match=r"no workers that only prefill or only decode; from 0.9.0 on it has"):
        emit("a/b", Disaggregated(Serving(), Serving()), "vllm", "0.8.5")
