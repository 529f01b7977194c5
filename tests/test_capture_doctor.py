"""sublight doctor: what recordings and commands lack, and corrected commands that lack nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import shared
from kineto import Kineto

from sublight.cli import main
from sublight.engines.shell import read as read_shell
from sublight.errors import InputError
from sublight.improve.capture import of_results, of_traces
from sublight.improve.capture_command import of_command
from sublight.improve.capture_script import of_script
from sublight.observe.read import read, read_all
from sublight.result import Result
from sublight.show import capture

MEGATRON = ("pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 4 --hidden-size 64 --num-attention-heads 4 "
            "--seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 8")
# Each command, what it lacks (the beginnings), and what its corrected one must say.
COMMANDS = {
    "nsys -t cuda": (
        "nsys profile -t cuda -o run python train.py",
        ["calls, kernels or ranges", "kernels inside CUDA graphs", "a range"],
        ["-t cuda,nvtx", "--cuda-graph-trace=node", "--capture-range=cudaProfilerApi"]),
    "nsys of ranks": (
        f"srun -n 8 nsys profile -t cuda,nvtx -o prof --cuda-graph-trace=node -c cudaProfilerApi python {MEGATRON}",
        ["a file for each rank", "a range of the engine's own"], ["prof_%q{SLURM_PROCID}", "--profile-step-end 14"]),
    "nsys of vllm": (
        "nsys profile --output=r vllm serve meta-llama/Llama-3.1-8B",
        ["kernels inside CUDA graphs", "a range", "processes that the engine forks", "a range of the engine's own"],
        ["VLLM_WORKER_MULTIPROC_METHOD=spawn", "--capture-range-end=repeat", "--profiler-config.profiler cuda"]),
    "nsys of trtllm": (
        "nsys profile -t cuda,nvtx --cuda-graph-trace node -c cudaProfilerApi --trace-fork-before-exec=true "
        "trtllm-serve Qwen/Qwen3-32B", ["a range of the engine's own"], ["TLLM_PROFILE_START_STOP=100-105"]),
    "vllm": (
        "vllm serve meta-llama/Llama-3.1-8B -tp 2", ["a profiler", "shapes", "an end"],
        ['"torch_profiler_record_shapes": true', '"max_iterations": 5']),
    "vllm, half": (
        "vllm serve meta-llama/Llama-3.1-8B --profiler-config.profiler torch --profiler-config.torch_profiler_dir=/p",
        ["shapes", "an end"], ['"torch_profiler_dir": "/p"']),
    "vllm of before": (
        "docker run --gpus all vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-32B", ["a profiler", "shapes"],
        ["-e VLLM_TORCH_PROFILER_DIR=", "-e VLLM_TORCH_PROFILER_RECORD_SHAPES=1"]),
    "sglang": (
        "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 4", ["a folder for traces"],
        ["SGLANG_TORCH_PROFILER_DIR="]),
    "trtllm": (
        "TLLM_PROFILE_START_STOP=5-6 trtllm-serve Qwen/Qwen3-32B --tp_size 4",
        ["a trace of the torch profiler", "steps: 1"],
        ["TLLM_PROFILE_START_STOP=100-105", "TLLM_TORCH_PROFILE_TRACE="]),
    "megatron": (
        f"torchrun --nproc-per-node 8 {MEGATRON} --profile --use-pytorch-profiler",
        ["shapes", "steps: 2", "ranks: 1 of 8", "a place for traces"],
        ["--pytorch-profiler-collect-shapes", "--profile-ranks 0 1 2 3 4 5 6 7", "--profile-step-end 14"]),
    "torchtitan": (
        "NGPU=8 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh --training.seq_len 4096",
        ["a profiler", "steps: one"], ["--profiler.enable_profiling", "--profiler.profiler_active 4"]),
    "torchtitan of before": (
        "CONFIG_FILE=llama3_8b.toml ./run_train.sh --profiling.profile_freq 10", ["a profiler"],
        ["--profiling.enable_profiling"]),
    "a benchmark": ("vllm bench serve --model x --num-prompts 1000 --save-result", ["--profile"], ["--profile"]),
    "a program": ("python no_such_program.py --lr 1", ["nothing that records"],
                  ["sublight record -- python no_such_program.py --lr 1"]),
}


def serious(text: str) -> list[str]:
    return [lack.what for lack in of_command(text).lacks if not lack.minor]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_told_what_it_lacks(name: str) -> None:
    text, lacks, says = COMMANDS[name]
    found = of_command(text)
    got = [lack.what for lack in found.lacks if not lack.minor]
    assert len(got) == len(lacks), got
    assert [what for what, begins in zip(got, lacks, strict=True) if not what.startswith(begins)] == []
    assert found.command is not None
    assert [part for part in says if part not in found.command] == []
    assert all(lack.serves and lack.do for lack in found.lacks)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "a program"])
def test_the_corrected_command_lacks_nothing(name: str) -> None:
    corrected = of_command(COMMANDS[name][0]).command
    assert corrected is not None
    assert serious(corrected) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_corrected_command_keeps_every_word(name: str) -> None:
    text = COMMANDS[name][0]
    corrected = of_command(text).command
    assert corrected is not None
    before, after = (set(read_shell(t).commands[0].words) for t in (text, corrected))
    changed = {"cuda", "prof", "-t", "--profiler-config.profiler", "torch", "--profiler-config.torch_profiler_dir=/p"}
    assert before - after <= changed


def test_secrets_are_not_shown() -> None:
    found = of_command("HF_TOKEN=hf_abc vllm serve meta-llama/Llama-3.1-8B --api-key sk-123 "
                       "--max-num-batched-tokens 8192")
    shown = capture.text(found) + capture.document(found) + capture.markdown(found)
    assert "hf_abc" not in shown
    assert "sk-123" not in shown
    assert "--max-num-batched-tokens 8192" in shown
    docker = of_command("docker run -e HF_TOKEN=hf_abc vllm/vllm-openai:v0.20.0 --model Qwen/Qwen3-32B")
    assert "hf_abc" not in capture.text(docker)


@pytest.mark.parametrize("text", ["ls -l", "", "nsys stats run.nsys-rep", "echo vllm serve x"])
def test_what_runs_no_model_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match=r"expected nsys profile"):
        of_command(text)


# ---- files


def step_trace(**how: bool) -> Kineto:
    k = Kineto(rank=None, **how)                                         # type: ignore[arg-type]
    for step in range(4):
        at = step * 10_000
        k.step(step, at, at + 9_000)
        k.op("aten::mm", at + 10, at + 900, dims=[[4, 4], [4, 4]] if how.get("record_shapes") else None)
        k.kernel("sm90_xmma_gemm_f16", at + 2_000, at + 8_000, launch=(at + 100, at + 300))
    return k


def test_a_good_trace_lacks_nothing(tmp_path: Path) -> None:
    found = of_traces([read(step_trace(record_shapes=True, with_stack=True).write(tmp_path / "t.json"))])
    assert [lack.what for lack in found.lacks] == []
    assert {"shapes", "stacks", "runtime calls", "operators"} <= set(found.has)


def test_shapes_and_stacks_that_are_not_there_are_said(tmp_path: Path) -> None:
    found = of_traces([read(step_trace().write(tmp_path / "t.json"))])
    assert [lack.what.split(":")[0] for lack in found.lacks if not lack.minor] == ["sizes of operators"]
    document = {"record_shapes": 0, "with_stack": 0, **step_trace().document()}
    (tmp_path / "said.json").write_text(json.dumps(document))
    said = of_traces([read(tmp_path / "said.json")])
    whats = {lack.what.split(":")[0]: lack.minor for lack in said.lacks}
    assert whats == {"sizes of operators": False, "Python stacks": True}


def test_ranks_without_a_number_are_said(tmp_path: Path) -> None:
    for name in ("a", "b"):
        step_trace(record_shapes=True).write(tmp_path / f"{name}.json")
    found = of_traces(read_all([tmp_path]))
    assert any(lack.what.startswith("the rank of 2 files") for lack in found.lacks)


def test_what_the_shared_traces_lack() -> None:
    found = of_traces(read_all([shared("kineto/h800_moe_ep64_train.json.gz")]))
    assert {lack.what.split(":")[0] for lack in found.lacks} == {
        "sizes of operators", "steps", "sizes and groups of collectives", "Python stacks"}
    found = of_traces(read_all([shared("kineto/v100_dlrm_8rank/dlrm_kineto")]))
    assert "8 ranks" in found.has
    assert {lack.what.split(":")[0] for lack in found.lacks} >= {"steps", "sizes and groups of collectives"}
    found = of_traces(read_all([shared("nsys/mfu_2gpu_after.sqlite")]))
    assert "2 ranks" in found.has
    assert all("record_shapes" not in lack.do or "torch.profiler" in lack.do for lack in found.lacks)


def test_one_run_of_a_benchmark_lacks_others() -> None:
    one = [Result("TTFT", "s", (1.0,), about={"tool": "vllm bench serve"})]
    whats = [lack.what.split(":")[0] for lack in of_results(one, "a.json").lacks]
    assert whats == ["runs", "samples of single requests"]
    assert [lack.what for lack in of_results(one * 5, "a.json").lacks if not lack.minor] == []


# ---- programs


GOOD = """
import torch
from torch.profiler import profile, schedule, ProfilerActivity
import torch.distributed as dist
dist.init_process_group("nccl")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True,
             schedule=schedule(wait=1, warmup=3, active=4),
             on_trace_ready=lambda p: p.export_chrome_trace(f"rank{dist.get_rank()}.json.gz")) as prof:
    for batch in data:
        train(batch)
        prof.step()
"""


def test_a_program_is_read_not_run(tmp_path: Path) -> None:
    path = tmp_path / "good.py"
    path.write_text(GOOD)
    found = of_script(path)
    assert found is not None
    assert (found.profiles, [lack.what for lack in found.lacks]) == (True, [])
    for cut, lack in (("record_shapes=True,", "shapes"), ("active=4", "several steps"),
                      ("prof.step()", "profiler.step()"), ("ProfilerActivity.CPU, ", "both activities"),
                      ("{dist.get_rank()}", "the rank in the name")):
        path.write_text(GOOD.replace(cut, "active=1" if cut == "active=4" else "pass" if cut == "prof.step()" else ""))
        found = of_script(path)
        assert found is not None
        assert [row.what.split(" after")[0] for row in found.lacks] == [lack], cut
    path.write_text("import cProfile\ncProfile.profile()")
    assert (found := of_script(path)) is not None
    assert not found.profiles
    path.write_text("def (")
    assert of_script(path) is None


# ---- the command line


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = step_trace(record_shapes=True).write(tmp_path / "t.json")
    assert main(["doctor", str(path)]) == 0
    assert "lacks nothing that findings need" in capsys.readouterr().out
    assert main(["doctor", "--format", "json", "--", "nsys", "profile", "-t", "cuda", "python", "x.py"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == "sublight.capture/1"
    assert shown["command"].startswith("nsys profile -t cuda,nvtx ")
    assert main(["doctor", "--format", "md", "vllm serve meta-llama/Llama-3.1-8B"]) == 0
    assert "| shapes | SL302" in capsys.readouterr().out
    script = tmp_path / "run.sh"
    script.write_text("export TP=2\nvllm serve meta-llama/Llama-3.1-8B -tp $TP\n")
    assert main(["doctor", str(script)]) == 0
    assert "-tp 2 --profiler-config" in capsys.readouterr().out
    for wrong in ([], ["no_such_file.json"], ["ls", "-l"]):
        assert main(["doctor", *wrong]) == 2
        assert re.search("expected", capsys.readouterr().err)


def test_the_terminal_is_80_columns(tmp_path: Path) -> None:
    shown = capture.text(of_traces(read_all([Path(__file__).parent.parent / "docs/examples/exposed.json"])))
    assert max(map(len, shown.splitlines())) <= 80


def test_it_starts_fast_and_reads_nothing_it_is_not_asked_for() -> None:
    code = ("import sys; from sublight.cli import main; main(['doctor', 'python x.py']); "
            "assert 'torch' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
