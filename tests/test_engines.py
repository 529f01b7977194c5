"""A command read is a plan, a plan written is the command; what no flag says is refused, what we do not know stays."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import loaded
from hypothesis import given, settings
from hypothesis import strategies as st

from sublight.engines import ENGINES, Launch, default, defaults, emit, parse, settled
from sublight.engines.arithmetic import evaluated
from sublight.engines.flags import ENDLESS, numbers, table
from sublight.engines.options_file import flat, nested, parsed, written
from sublight.engines.shell import quoted, read, words_of
from sublight.errors import InputError
from sublight.plan import Job, Serving, Training

GIB = 2**30
SERVING = ("vllm", "sglang", "trtllm")
VERSIONS = {
    "vllm": ("0.6.6", "0.8.5", "0.10.2", "0.11.0", "0.15.1", "0.19.0", None),
    "sglang": ("0.4.0", "0.4.6", "0.4.10", "0.5.3", "0.5.9", "0.5.14", None),
    "trtllm": ("0.20.0", "0.21.0", "1.0.0", "1.2.0", "1.3.0", None),
    "megatron": ("0.9.0", "0.11.0", "0.13.0", "0.15.0", "0.19.0", None),
    "torchtitan": ("0.1.0", "0.2.2", "0.3.0", None),
}


# ---- commands as people write them: facts of public issues, recipes and documentation, retyped


def test_an_8b_model_on_eight_gpus() -> None:
    launch = parse("python -m vllm.entrypoints.openai.api_server --model meta-llama/Llama-3.1-8B-Instruct "
                   "-tp 8 --enforce-eager --disable-custom-all-reduce --max-num-seqs 600 --port 8000")
    assert (launch.engine, launch.model, launch.gpus) == ("vllm", "meta-llama/Llama-3.1-8B-Instruct", 8)
    assert launch.plan == Serving(engine="vllm", tp=8, max_sequences=600, cuda_graphs=False, all_reduce_kind="nccl",
                                  extra=(("--port", "8000"),))


def test_an_image_says_the_version_and_starts_its_server() -> None:
    launch = parse("""
        docker run --runtime nvidia --gpus all --ipc=host -p 8000:8000 \\
            -v ~/.cache/huggingface:/root/.cache/huggingface \\
            --env "HUGGING_FACE_HUB_TOKEN=hf_abcdefghijklmnop" -e NCCL_DEBUG=INFO \\
            vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-32B-FP8 -tp=2 --max-model-len 32k --kv-cache-dtype fp8_e4m3
    """)
    assert (launch.version, launch.model) == ("0.11.0", "Qwen/Qwen3-32B-FP8")
    assert launch.plan == Serving(engine="vllm", version="0.11.0", tp=2, max_length=32000, kv="fp8")
    assert launch.environment == ("HUGGING_FACE_HUB_TOKEN", "NCCL_DEBUG")
    assert "hf_" not in repr(launch)


def test_experts_over_attention_replicas() -> None:
    launch = parse("VLLM_ALL2ALL_BACKEND=deepep_low_latency VLLM_USE_DEEP_GEMM=1 vllm serve deepseek-ai/DeepSeek-R1 "
                   "-dp 16 --enable-expert-parallel --data-parallel-size-local 8 --no-enable-prefix-caching",
                   version="0.10.2")
    assert (launch.plan.dp, launch.plan.ep, launch.gpus) == (16, 16, 16)
    assert isinstance(launch.plan, Serving)
    assert (launch.plan.moe_kind, launch.plan.prefix_cache) == ("deepep-ll", False)
    assert launch.unknown == (("--data-parallel-size-local", "8"),)
    assert launch.environment == ("VLLM_ALL2ALL_BACKEND", "VLLM_USE_DEEP_GEMM")


def test_speculation_and_compilation_are_json() -> None:
    launch = parse("""vllm serve openai/gpt-oss-120b --speculative-config '{"method": "eagle3", "model": "a/b",
        "num_speculative_tokens": 3}' --compilation-config '{"cudagraph_mode":"NONE"}' -O.level=3""")
    assert isinstance(launch.plan, Serving)
    assert (launch.plan.drafts, launch.plan.cuda_graphs) == (3, False)
    again = parse(emit(launch.model, launch.plan)).plan
    assert again == launch.plan
    held = json.loads(words_of(dict(launch.unknown)["--speculative-config"])[0])
    assert held == {"method": "eagle3", "model": "a/b", "num_speculative_tokens": 3}
    more = emit(launch.model, replace(launch.plan, drafts=5))
    assert '"num_speculative_tokens":5' in more
    assert '"method":"eagle3"' in more
    assert "--speculative-config" not in emit(launch.model, replace(launch.plan, drafts=0, extra=launch.unknown))


def test_deepep_on_sglang_counts_all_ranks() -> None:
    launch = parse("""
        python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3-0324 --trust-remote-code --tp 16 --dp 16 \\
          --enable-dp-attention --moe-a2a-backend deepep --deepep-mode normal --mem-fraction-static 0.85 \\
          --chunked-prefill-size 524288 --max-running-requests 8192 --enable-two-batch-overlap \\
          --cuda-graph-bs 1 2 4 8 16 --nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:5000 > log.txt 2>&1 &
    """)
    assert isinstance(launch.plan, Serving)
    assert (launch.plan.tp, launch.plan.dp, launch.plan.ep, launch.gpus) == (1, 16, 16, 16)
    assert (launch.plan.token_budget, launch.plan.max_sequences) == (524288 // 16, 8192 // 16)
    assert (launch.plan.moe_kind, launch.plan.two_batch_overlap) == ("deepep-normal", True)
    assert ("--cuda-graph-bs", "1 2 4 8 16") in launch.unknown
    assert "log.txt" not in repr(launch)


def test_independent_replicas_of_sglang() -> None:
    launch = parse("sglang serve --model-path Qwen/Qwen3-8B --dp-size 4 --disable-radix-cache")
    assert launch.plan == Serving(engine="sglang", replicas=4, prefix_cache=False)
    assert launch.gpus == 4


def test_a_chain_of_drafts() -> None:
    launch = parse("python -m sglang.launch_server --model deepseek-ai/DeepSeek-R1 --tp-size 8 --speculative-algorithm "
                   "NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4")
    assert isinstance(launch.plan, Serving)
    assert (launch.plan.drafts, launch.unknown) == (3, ())
    tree = parse("python -m sglang.launch_server --model a/b --speculative-algorithm EAGLE3 --speculative-num-steps 5 "
                 "--speculative-eagle-topk 8 --speculative-num-draft-tokens 32")
    assert isinstance(tree.plan, Serving)
    assert tree.plan.drafts == 31
    assert parse(emit(tree.model, tree.plan)).plan == tree.plan


def test_switches_that_older_versions_had() -> None:
    launch = parse("python3 -m sglang.launch_server --model-path a/b --tp 8 --enable-ep-moe", version="0.4.6")
    assert isinstance(launch.plan, Serving)
    assert (launch.plan.ep, launch.notes) == (8, ())
    late = parse("python3 -m sglang.launch_server --model-path a/b --tp 8 --enable-ep-moe", version="0.5.9")
    assert late.notes == ("--enable-ep-moe went before SGLang 0.5.5, this is 0.5.9",)


RECIPE = """
TP=8; CONC=64; ISL=1024; MTP=3
MAX_NUM_TOKENS=$(( ((MTP+1)*CONC+ISL+64+63)/64*64 ))
cat > mtp.yml << EOF
cuda_graph_config:
    enable_padding: true
    max_batch_size: $CONC
enable_attention_dp: true
kv_cache_config:
    dtype: fp8               # the cache
    free_gpu_memory_fraction: 0.8
    enable_block_reuse: false
moe_config: {backend: CUTLASS}
speculative_config:
    decoding_type: MTP
    num_nextn_predict_layers: ${MTP}
EOF
mpirun -n 1 --oversubscribe trtllm-serve nvidia/DeepSeek-R1-0528-FP4 --port=8888 --max_batch_size=$CONC \\
    --max_num_tokens=$MAX_NUM_TOKENS --tp_size=$TP --ep_size=$TP --extra_llm_api_options=mtp.yml | tee server.log
"""


def test_an_options_file_that_the_text_writes() -> None:
    launch = parse(RECIPE)
    assert launch.plan == Serving(
        engine="trtllm", dp=8, ep=8, token_budget=1344, max_sequences=64, memory_fraction=0.8, kv="fp8",
        chunked_prefill=False, prefix_cache=False, drafts=3,
        extra=(("--port", "8888"), ("cuda_graph_config.enable_padding", "true"),
               ("cuda_graph_config.max_batch_size", "64"), ("moe_config.backend", '"CUTLASS"')))
    again = parse(emit(launch.model, launch.plan))
    assert (again.plan, again.model) == (launch.plan, "nvidia/DeepSeek-R1-0528-FP4")


def test_an_options_file_given_beside_the_command() -> None:
    command = "trtllm-serve a/b --tp_size 4 --config opts.yaml"
    launch = parse(command, files={"opts.yaml": "cuda_graph_config: null\nattn_backend: FLASHINFER\n"})
    assert isinstance(launch.plan, Serving)
    assert (launch.plan.cuda_graphs, launch.plan.attention_kind) == (False, "FLASHINFER")
    unknown = parse(command)
    assert unknown.unknown == (("--extra_llm_api_options", "opts.yaml"),)
    assert "not part of the text" in unknown.notes[0]
    assert isinstance(unknown.plan, Serving)
    with pytest.raises(InputError, match="names one whose text is not known"):
        emit("a/b", replace(unknown.plan, kv="fp8"))


MEGATRON = """
#!/bin/bash
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"16"}
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
)
MODEL_ARGS=(
    --num-layers 32          # of Mixtral 8x7B
    --hidden-size 4096
    --num-experts 8
    --seq-length 4096
)
PARALLEL="--tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 \\
--expert-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} $PARALLEL "--bf16" --micro-batch-size 1 \\
    --global-batch-size 256 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\
    --overlap-grad-reduce --overlap-param-gather --optimizer adam
"""


def test_a_training_script_with_arrays() -> None:
    launch = parse(MEGATRON)
    assert (launch.engine, launch.gpus, launch.job) == ("megatron", 128, Job(seq=4096, gbs=256))
    assert launch.plan == Training(
        framework="megatron", pp=4, dp=32, ep=8, etp=1, vpp=2, schedule="interleaved", recompute="full", zero=1,
        extra=(("--num-layers", "32"), ("--hidden-size", "4096"), ("--num-experts", "8")))


def test_fp8_and_sharding_of_megatron() -> None:
    launch = parse("srun -N 4 --ntasks-per-node=8 python pretrain_gpt.py --tensor-model-parallel-size 2 --bf16 "
                   "--fp8-format hybrid --fp8-recipe blockwise --use-megatron-fsdp --use-distributed-optimizer "
                   "--data-parallel-sharding-strategy optim_grads_params --cuda-graph-impl transformer_engine")
    assert isinstance(launch.plan, Training)
    assert (launch.plan.precision, launch.plan.zero, launch.plan.dp) == ("fp8-block", 3, 16)
    assert (launch.plan.cuda_graphs, launch.plan.sequence_parallel) == (True, False)
    assert parse(emit(None, launch.plan, version="0.15.0")).plan.extra == launch.unknown


def test_torchtitan_by_its_script() -> None:
    launch = parse("NGPU=64 CONFIG_FILE=./torchtitan/models/llama3/train_configs/llama3_70b.toml ./run_train.sh "
                   "--parallelism.tensor_parallel_degree=8 --parallelism.pipeline_parallel_degree 2 --training.seq_len "
                   "8192 --training.local_batch_size 2 --parallelism.pipeline_parallel_schedule Interleaved1F1B "
                   "--activation_checkpoint.mode full --model.converters float8")
    assert (launch.model, launch.gpus) == ("./torchtitan/models/llama3/train_configs/llama3_70b.toml", 64)
    assert launch.plan == Training(
        framework="torchtitan", tp=8, pp=2, dp=4, mbs=2, schedule="interleaved", recompute="full", zero=3,
        precision="fp8", extra=(("--model.converters", "float8"),))
    assert launch.job == Job(seq=8192, gbs=8)


@pytest.mark.parametrize(("text", "tp"), [
    ("bash -c 'pip install vllm==0.9.2 && vllm serve a/b -tp 4'", 4),
    ("nsys profile -o x --cuda-graph-trace=node vllm serve a/b --tensor_parallel_size 4", 4),
    ("$ vllm serve a/b --tensor-parallel-size=4", 4),
    ("echo vllm serve a/b -tp 2; vllm serve a/b -tp 4", 4),
    ("if [ $X = 1 ]; then vllm serve a/b -tp 4; else vllm serve a/b -tp 8; fi", 4),
    ("export TP=4\nvllm serve <model> -tp $TP", 4),
    ("A=(vllm serve a/b)\nA+=(-tp 4)\n\"${A[@]}\" > x.log", 4),
])
def test_wrappers_and_shell(text: str, tp: int) -> None:
    assert parse(text).plan.tp == tp


def test_a_pinned_package_says_the_version() -> None:
    assert parse("pip install 'sglang[all]==0.5.3'\npython -m sglang.launch_server --model a/b").version == "0.5.3"


def test_two_starts_are_said() -> None:
    assert "the first is read" in parse("vllm serve a/b & vllm serve c/d").notes[0]


# ---- secrets and safety


@pytest.mark.parametrize("text", [
    "vllm serve a/b --api-key sk-1234567890abcdef",
    "vllm serve a/b --hf-token=hf_abcdefghijkl",
    "export HF_TOKEN=hf_abcdefghijkl; vllm serve a/b --hf-token $HF_TOKEN --foo $HF_TOKEN",
    "MY_API_KEY=sk-1234567890abcdef vllm serve a/b --foo \"$MY_API_KEY\"",
    "vllm serve a/b --otlp-traces-endpoint http://user:sk-1234567890@host:1",
    "trtllm-serve a/b --config x.yml --api_key nvapi-12345678",
])
def test_secrets_are_never_kept(text: str) -> None:
    launch = parse(text)
    for said in (repr(launch), emit(launch.model, replace(launch.plan, extra=tuple(
            pair for pair in launch.unknown if "config" not in pair[0] and "options" not in pair[0])))):
        assert not any(secret in said for secret in ("sk-1", "hf_a", "nvapi-1"))


def test_a_secret_of_an_options_file_is_never_kept() -> None:
    launch = parse("trtllm-serve a/b --config x.yml", files={"x.yml": "server: {api_key: topsecret}"})
    assert "topsecret" not in repr(launch)


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    launch = parse(f"vllm serve a/b --seed $(touch {mark}) --foo `touch {mark}`")
    emit(launch.model, launch.plan)
    assert not mark.exists()


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="vllm serve-tp18$(){}[]'\"\\\n=#<>&|;,.:ab ", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    for whole in (text, "vllm serve a/b " + text, "trtllm-serve a/b --config o.yml " + text):
        with contextlib.suppress(InputError):
            assert isinstance(parse(whole, files={"o.yml": text}), Launch)


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


# ---- what an engine takes by itself


@pytest.mark.parametrize(("version", "memory_gib", "device", "budget", "sequences", "share"), [
    ("0.6.6", 80, "NVIDIA H100", 2048, 256, 0.9),
    ("0.8.3", 80, "NVIDIA H100", 8192, 1024, 0.9),
    ("0.8.5", 80, "NVIDIA A100-SXM4-80GB", 8192, 1024, 0.9),
    ("0.9.0", 80, "NVIDIA A100-SXM4-80GB", 2048, 256, 0.9),
    ("0.11.0", 80, "NVIDIA H100", 8192, 1024, 0.9),
    ("0.19.0", 24, "NVIDIA L4", 2048, 256, 0.9),
    ("0.20.0", 180, "NVIDIA B200", 8192, 1024, 0.92),
    ("0.33.0", 180, "NVIDIA B200", 16384, 1024, 0.92),
])
def test_defaults_of_vllm(
    version: str, memory_gib: int, device: str, budget: int, sequences: int, share: float,
) -> None:
    plan = defaults(Serving(engine="vllm", version=version), memory_bytes=memory_gib * GIB, device=device)
    assert (plan.token_budget, plan.max_sequences, plan.memory_fraction) == (budget, sequences, share)


def test_a_default_gives_way_to_what_is_said() -> None:
    plan = defaults(Serving(engine="vllm", token_budget=512, memory_fraction=0.5), memory_bytes=80 * GIB, device="h100")
    assert (plan.token_budget, plan.max_sequences, plan.memory_fraction) == (512, 512, 0.5)
    whole = Serving(engine="vllm", version="0.6.6", chunked_prefill=False, max_length=4096)
    assert defaults(whole, memory_bytes=80 * GIB).token_budget == 4096


@pytest.mark.parametrize(("version", "mib", "plan", "budget", "share"), [
    ("0.4.0", 81559, Serving(tp=8), 8192, 0.81),
    ("0.4.6.post5", 143771, Serving(tp=8), 8192, 1 - 18432 / 143771),
    ("0.4.10", 81559, Serving(tp=8), 8192, round(1 - (9.5 + 4) * 1024 / 81559, 3)),
    ("0.5.9", 81559, Serving(tp=8), 8192, round(1 - (512 + 8192 * 1.5 + 512 * 2 + 1024) / 81559, 3)),
    ("0.5.9", 81559, Serving(tp=1, token_budget=2048), 2048, round(1 - 10240 / 81559, 3)),
    ("0.5.9", 143771, Serving(dp=8, ep=8), 1024,
     round(1 - (512 + 8192 * 1.5 + 512 * 2 + 1024 + 512 * 8 * 4.5) / 143771, 3)),
    ("0.5.12", 183359, Serving(tp=8, drafts=3), 16384,
     round(1 - (512 + 16384 * 1.5 + 512 * 2 + 1024 + 74 * 8 + 4096) / 183359, 3)),
])
def test_defaults_of_sglang(version: str, mib: int, plan: Serving, budget: int, share: float) -> None:
    filled = defaults(replace(plan, engine="sglang", version=version), memory_bytes=mib * 2**20)
    assert filled.token_budget == budget
    assert filled.memory_fraction == pytest.approx(share, abs=1e-9)


def test_defaults_of_tensorrt_llm_need_no_device() -> None:
    plan = defaults(Serving(engine="trtllm", version="1.1.0", tp=8))
    assert (plan.token_budget, plan.max_sequences, plan.memory_fraction) == (8192, 2048, 0.9)


def test_a_default_that_depends_on_the_device_asks_for_it() -> None:
    with pytest.raises(InputError, match="depend on the device's memory: give memory_bytes"):
        defaults(Serving(engine="sglang"))


def test_graphs_that_the_command_limits() -> None:
    plan = Serving(engine="sglang", version="0.5.9", tp=8, extra=(("--cuda-graph-max-bs", "64"),))
    assert default(plan, "graph_batch", memory_bytes=80 * GIB).value == 64
    assert default(replace(plan, extra=()), "graph_batch", memory_bytes=80 * GIB).value == 512


# ---- the data


@pytest.mark.parametrize("engine", ENGINES)
def test_flags_say_what_a_plan_has(engine: str) -> None:
    known = table(engine)
    fields = set(Serving.__dataclass_fields__) | set(Training.__dataclass_fields__)
    module = __import__(f"sublight.engines.{engine}", fromlist=["x"])
    source = Path(str(module.__file__)).read_text("utf-8") + Path(
        str(module.__file__)).with_name("read_command.py").read_text("utf-8")
    for row in known.rows:
        assert row.since < row.until, row.name
        assert row.sets is None or row.sets in fields or f'"{row.sets}"' in source, f"nothing reads {row.sets}"
        for other in known.all_named(row.name):
            overlap = max(row.since, other.since) < min(row.until, other.until)
            assert other is row or not overlap, f"{row.name} has two meanings in one version"
    assert known.facts["program"]


@pytest.mark.parametrize("engine", SERVING)
def test_every_default_has_a_source(engine: str) -> None:
    rows = table(engine).own
    assert {"token_budget", "max_sequences", "memory_fraction"} <= {row["field"] for row in rows}
    assert all(row["source"] and ("value" in row or "reserve" in row) for row in rows)


def test_versions_are_numbers() -> None:
    assert numbers("v0.5.9.post1") < numbers("0.5.10") < numbers(None) < ENDLESS
    assert numbers("latest") == numbers(None)
    with pytest.raises(InputError, match="a version like"):
        numbers("newest")


def test_the_page_has_the_table_of_the_data() -> None:
    root = Path(__file__).parent.parent / "docs"
    lines = "\n".join(loaded(root / "engines_table.py").lines())
    assert lines in (root / "engines.md").read_text("utf-8"), "run docs/engines_table.py and paste its table again"


# ---- shell, arithmetic, options files


def test_words_of_a_shell_text() -> None:
    script = read("A='x y' # no\nf \"$A\" $A ${B:-2} $((2*3)) \\\n  end > o.txt 2>&1; g 'it''s'")
    assert [command.words for command in script.commands if command.words] == [
        ("f", "x y", "x", "y", "2", "6", "end"), ("g", "its")]


def test_conditions_are_not_evaluated() -> None:
    script = read("N=1\nif [ $Q ]; then N=2; fi\nf $N")
    assert (script.commands[-1].words, script.doubtful) == (("f", "1"), True)


@given(st.lists(st.text(alphabet="ab \"'\\$(){}#;&\n=", max_size=12).filter(
    lambda word: "$" not in word), min_size=1, max_size=4))
def test_a_quoted_word_reads_as_it_was(words: list[str]) -> None:
    assert read(" ".join(["f", *map(quoted, words)])).commands[0].words == ("f", *words)


@pytest.mark.parametrize(("text", "value"), [
    ("1+2*3", "7"), ("(1+2)*3", "9"), ("-7/2", "-3"), ("7 % 4", "3"), ("A>2 ? A : 2", "5"), ("A == 5 && 0", "0"),
    ("1/0", None), ("B", None), ("2**3", None), ("$(x)", None), ("9" * 13, None), ("", None), ("1 2", None),
])
def test_arithmetic(text: str, value: str | None) -> None:
    assert evaluated(text, {"A": "5"}) == value


JSONS: Any = st.recursive(st.none() | st.booleans() | st.integers(-99, 99) | st.text(alphabet="ab: #'\"-", max_size=6),
                          lambda inner: st.lists(inner, max_size=3), max_leaves=4)
MAPS: Any = st.recursive(st.dictionaries(st.text(alphabet="abc_", min_size=1, max_size=4), JSONS, max_size=3),
                         lambda inner: st.dictionaries(st.text(alphabet="abc_", min_size=1, max_size=4),
                                                       inner | JSONS, max_size=3), max_leaves=6)


@given(MAPS)
def test_an_options_file_reads_as_it_was_written(value: dict[str, Any]) -> None:
    assert parsed(written(value)) == value
    assert nested(list(flat(value).items())) == value


def test_blocks_of_an_options_file() -> None:
    text = "a:\n- 1\n- two\nb:\n  - x: 1\n    y: [3, 'f']\nc: {d: {e: off}}\n# end\n---\n'q r': \"s # t\""
    assert parsed(text) == {"a": [1, "two"], "b": [{"x": 1, "y": [3, "f"]}], "c": {"d": {"e": False}}, "q r": "s # t"}


@pytest.mark.parametrize("text", ["a: &x 1", "a: |\n  b", "nothing", "a: 1\n   b: 2", "a: [1,\n 2]", "- 1\n- 2"])
def test_parts_of_yaml_that_are_not_read_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="options file"):
        parsed(text)
