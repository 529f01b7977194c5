"""A launch command as people write it is read into a plan; secrets are not kept, and nothing is run."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublight.engines import Launch, emit, parse
from sublight.engines.shell import words_of
from sublight.errors import InputError
from sublight.plan import Job, Serving, Training

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


@pytest.mark.parametrize(("text", "version", "field", "value"), [
    ("vllm serve a/b -O0", None, "cuda_graphs", False),
    ("vllm serve a/b -O 0 --compilation-config '{\"cudagraph_mode\":\"FULL\"}'", None, "cuda_graphs", True),
    ("vllm serve a/b", "0.7.3", "chunked_prefill", False),               # had to be asked for before the V1 engine
    ("vllm serve a/b", "0.8.0", "chunked_prefill", True),
    ("vllm serve a/b", "0.7.3", "prefix_cache", False),
    ("vllm serve a/b --enable-chunked-prefill=False", "0.8.3", "chunked_prefill", False),
    ("trtllm-serve a/b", "1.0.0", "chunked_prefill", False),
    ("trtllm-serve a/b", "0.20.0", "cuda_graphs", False),
    ("trtllm-serve a/b", "1.0.0", "cuda_graphs", True),
    ("python pretrain_gpt.py --tensor-model-parallel-size 4 --expert-model-parallel-size 8", None, "etp", 4),
    ("python pretrain_gpt.py --tensor-model-parallel-size 4", None, "etp", 1),
    ("python pretrain_gpt.py --tensor-model-parallel-size 4", None, "precision", "fp32"),
    ("torchrun -m torchtitan.train --parallelism.fsdp_reshard_after_forward never", None, "zero", 2),
    ("NGPU=8 ./run_train.sh --parallelism.data_parallel_replicate_degree 8", None, "zero", 0),
    ("NGPU=8 ./run_train.sh --parallelism.data_parallel_replicate_degree 2", None, "dp", 8),
])
def test_what_silence_and_switches_mean(text: str, version: str | None, field: str, value: object) -> None:
    assert getattr(parse(text, version=version).plan, field) == value


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


def test_workers_of_a_public_recipe() -> None:
    launch = parse("""
        num_decode=9
        SGL_ENABLE_JIT_DEEPGEMM=1 python3 -m sglang.launch_server --model-path ${model_path} \\
          --disaggregation-mode decode --host ${node_ip} --nnodes ${num_decode} \\
          --tp-size $((${num_decode}*8)) --dp-size $((${num_decode}*8)) \\
          --enable-dp-attention --enable-deepep-moe --deepep-mode low_latency --mem-fraction-static 0.846 \\
          --chunked-prefill-size 81920 --max-running-requests $((${num_decode}*2048)) --context-length 4096 \\
          --enable-two-batch-overlap --cuda-graph-bs 256 --disable-radix-cache
    """, version="0.4.6")
    assert isinstance(launch.plan, Serving)
    assert (launch.plan.tp, launch.plan.dp, launch.plan.ep, launch.gpus, launch.role) == (1, 72, 72, 72, "decode")
    assert (launch.plan.max_sequences, launch.plan.moe_kind, launch.model) == (256, "deepep-ll", "${model_path}")


def test_a_small_model_on_two_devices() -> None:
    launch = parse("vllm serve /data/qwen2.5-1.5B --tensor-parallel-size 2 --host 127.0.0.1 --port 6006 "
                   "--served-model-name qwen2.5-1.5B --api-key xxx --gpu-memory-utilization 0.95 --max_model_len 8192 "
                   "--enforce-eager")
    assert launch.plan == Serving(
        engine="vllm", tp=2, memory_fraction=0.95, max_length=8192, cuda_graphs=False,
        extra=(("--host", "127.0.0.1"), ("--port", "6006"), ("--served-model-name", "qwen2.5-1.5B"),
               ("--api-key", "***")))


def test_a_command_in_a_variable() -> None:
    assert parse('CMD="vllm serve a/b -tp 4"\nrun_remote "$CMD"').plan.tp == 4


# ---- secrets and safety


@pytest.mark.parametrize("text", [
    "vllm serve a/b --api-key sk-1234567890abcdef",
    "vllm serve a/b --hf-token=hf_abcdefghijkl",
    "export HF_TOKEN=hf_abcdefghijkl; vllm serve a/b --hf-token $HF_TOKEN --foo $HF_TOKEN",
    "MY_API_KEY=sk-1234567890abcdef vllm serve a/b --foo \"$MY_API_KEY\"",
    "export MY_TOKEN=sk-1; vllm serve a/b --foo $MY_TOKEN",           # by its variable's name alone
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
