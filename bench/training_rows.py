"""Rows of measured training results: each becomes a model, a plan, a job and a machine, or the reason why it cannot.

Columns: source, model, gpu, num_gpus, precision, seq, mbs, gbs, tp, pp, cp, ep, vp, dp, recompute, metric, value,
notes.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from sublight.cluster import Cluster
from sublight.cluster import named as node_named
from sublight.device import by_key
from sublight.errors import InputError
from sublight.models import Model, gpt, named
from sublight.plan import Job, Training
from sublight.predict.machine import Machine
from sublight.predict.training.recipes import applied, recipe

# Names of the sources' tables -> the catalog's, and the family that is held out together.
NAMES = (
    (r"llama-?3[._-]?[123]?[_-]?405b", "meta-llama/Meta-Llama-3.1-405B", "Llama 3 405B"),
    (r"llama-?3[._-]?[123]?[_-]?70b", "meta-llama/Meta-Llama-3-70B", "Llama 3 70B"),
    (r"llama-?3[._-]?[123]?[_-]?8b", "meta-llama/Meta-Llama-3-8B", "Llama 3 8B"),
    (r"llama-?2[_-]?70b", "meta-llama/Llama-2-70b-hf", "Llama 2 70B"),
    (r"llama-?2[_-]?13b", "meta-llama/Llama-2-13b-hf", "Llama 2 13B"),
    (r"llama-?2[_-]?7b", "meta-llama/Llama-2-7b-hf", "Llama 2 7B"),
    (r"deepseek-?v4[ _-]?flash", "deepseek-ai/DeepSeek-V4-Flash", "DeepSeek V4"),
    (r"deepseek-?v4[ _-]?pro", "deepseek-ai/DeepSeek-V4-Pro", "DeepSeek V4"),
    (r"deepseek-?v3", "deepseek-ai/DeepSeek-V3", "DeepSeek V3"),
    (r"deepseek-?v2[ _-]?lite", "deepseek-ai/DeepSeek-V2-Lite", "DeepSeek V2 Lite"),
    (r"deepseek-?v2", "deepseek-ai/DeepSeek-V2", "DeepSeek V2"),
    (r"gpt[ _-]?oss[ _-]?120b", "openai/gpt-oss-120b", "gpt-oss"),
    (r"gpt[ _-]?oss[ _-]?20b", "openai/gpt-oss-20b", "gpt-oss"),
    (r"qwen3[ _-]?next", "Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen3-Next"),
    (r"qwen3[ _-]?(vl[ _-]?)?235b", "Qwen/Qwen3-235B-A22B", "Qwen3 235B"),
    (r"qwen3[ _-]?(vl[ _-]?)?30b", "Qwen/Qwen3-30B-A3B", "Qwen3 30B"),
    (r"qwen3[ _-]?32b", "Qwen/Qwen3-32B", "Qwen3 32B"),
    (r"qwen3[ _-]?14b", "Qwen/Qwen3-14B", "Qwen3 14B"),
    (r"qwen3[ _-]?8b", "Qwen/Qwen3-8B", "Qwen3 8B"),
    (r"kimi[ _-]?k2", "moonshotai/Kimi-K2-Instruct", "Kimi K2"),
    (r"mixtral[ _-]?8x7b", "mistralai/Mixtral-8x7B-v0.1", "Mixtral 8x7B"),
    (r"mixtral[ _-]?8x22b", "mistralai/Mixtral-8x22B-v0.1", "Mixtral 8x22B"),
    (r"nemotron[ _-]?3[ _-]?super", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "Nemotron 3 Super"),
    (r"nemotron[ _-]?3[ _-]?ultra", "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "Nemotron 3 Ultra"),
    (r"nemotron[ _-]?3[ _-]?nano", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Nemotron 3 Nano"),
    (r"nemotron[ _-]?h[ _-]?56b", "nvidia/Nemotron-H-56B-Base-8K", "Nemotron-H 56B"),
)
# Korthikanti et al., arXiv 2205.05198, table 3, and Narayanan et al., arXiv 2104.04473, table 1: width, layers, heads.
PAPERS = {"megatron-22b": (6144, 48, 64), "gpt3-175b": (12288, 96, 96), "turing-530b": (20480, 105, 128),
          "megatron-1t": (25600, 128, 160)}
# llm-foundry, scripts/train/yamls/pretrain/mpt-*.yaml: width, layers, heads.
MPT = {"125m": (768, 12, 12), "350m": (1024, 24, 16), "760m": (1536, 24, 12), "1b": (2048, 24, 16),
       "3b": (2560, 32, 20), "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 48, 56), "70b": (8192, 80, 64)}
NODES = {"A100": "hgx-a100", "H100": "hgx-h100", "H200": "hgx-h200", "B200": "hgx-b200", "B300": "hgx-b300",
         "GB200": "gb200-nvl72", "GB300": "gb300-nvl72", "H800": "hgx-h800", "H20": "hgx-h20",
         "A100-PCIe": "pcie-a100", "H100-PCIe": "pcie-h100", "L40S": "pcie-l40s"}


@dataclass(frozen=True)
class Case:
    """A row as predict takes it. counted: the model whose FLOPs the source counts, by which definition."""

    model: Model
    plan: Training
    job: Job
    where: Machine
    family: str
    counted: Model
    definition: str = "megatron"


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def case(row: dict[str, str]) -> Case:
    """Raises InputError with the reason where the row's inputs do not say what ran."""
    model, family = _model(row)
    plan = _plan(row)
    job = Job(seq=_whole(row, "seq"), gbs=_whole(row, "gbs"))
    framework, definition = _source(row)
    plan = replace(plan, framework=framework)
    if framework == "megatron-deepspeed":
        plan = replace(plan, sequence_parallel="+SP" in row["recompute"], zero=0, overlap_grad=False,
                       overlap_param=False, extra=(("attention", "unfused"),))
    if plan.version:
        plan = _with_recipe(plan, row)
    return Case(model, plan, job, _machine(row["gpu"], _whole(row, "num_gpus")), family, _counted(model), definition)


def _with_recipe(plan: Training, row: dict[str, str]) -> Training:
    """What the source's own recipes say beyond the table: they overlap tensor parallelism with the products (user
    buffers), and name recomputation, graphs, dispatchers."""
    plan = replace(plan, overlap_tp=plan.tp > 1)
    if "tokendrop" in row["model"]:
        plan = replace(plan, extra=(*plan.extra, ("router", "drop")))
    if "Pre-Training" not in row["notes"] and "parentheses" not in row["notes"]:
        return plan                      # recipes of fine-tuning are others
    found = recipe(row["model"], row["gpu"], row["precision"], plan.version or "")
    if found is None:
        return plan
    stated = re.search(r"FSDP=(\d+)", row["notes"])
    made = applied(plan, found)
    more = {"graphs": "full" if "full_iteration" in found.graphs else ",".join(found.graphs),
            "attention": "fp8" if found.fp8_attention else "", "whole_layers": str(found.whole_layers or "")}
    extra = {**dict(made.extra), **{name: value for name, value in more.items() if value}}
    return replace(made, zero=plan.zero if stated else made.zero, extra=tuple(sorted(extra.items())))


def _source(row: dict[str, str]) -> tuple[str, str]:
    """(framework whose constants hold, definition of model FLOPs)."""
    source = row["source"]
    if "llm-foundry" in source:
        return "llm-foundry", "palm"
    if "vTrain" in source or "Korthikanti" in source:
        return "megatron-deepspeed", "megatron"
    if "torchtitan" in source:
        return "torchtitan", "megatron-full"
    return "megatron", "megatron-full" if "examples/llama" in source else "megatron"


def _number(row: dict[str, str], name: str) -> float | None:
    try:
        value = float(row[name])
    except ValueError:
        return None
    return None if value != value else value


def _whole(row: dict[str, str], name: str, default: int | None = None) -> int:
    value = _number(row, name)
    if value is None or value < 1:
        if default is None:
            raise InputError(f"{name} is not stated")
        return default
    return int(value)


def _plan(row: dict[str, str]) -> Training:
    gpus = _whole(row, "num_gpus")
    tp, pp, cp = (_whole(row, name, None if name != "cp" else 1) for name in ("tp", "pp", "cp"))
    if gpus % (tp * pp * cp):
        raise InputError(f"tp x pp x cp = {tp * pp * cp} does not divide {gpus} GPUs")
    dp, vpp = gpus // (tp * pp * cp), _whole(row, "vp", 1)
    notes = row["notes"]
    version = re.search(r"container (\d\d\.\d\d(?:\.\d\d)?)", notes)
    fsdp = re.search(r"FSDP=(\d+)", notes)
    zero = 3 if "FULL_SHARD" in notes or (fsdp and int(fsdp[1]) > 0) or "torchtitan" in row["source"] else \
        2 if "SHARD_GRAD_OP" in notes else 1
    return Training(
        version=version[1] if version else None, tp=tp, pp=pp, cp=cp, dp=dp, ep=_whole(row, "ep", 1), vpp=vpp,
        mbs=_whole(row, "mbs"), schedule="interleaved" if vpp > 1 and pp > 1 else "1f1b", recompute=_recompute(row),
        zero=zero, precision=_precision(row), overlap_tp="async" in notes.lower(),
        extra=(("adapters", "lora"),) if "LoRA" in notes else (),
    )


def _recompute(row: dict[str, str]) -> str:
    text = row["recompute"].lower()
    return "full" if text.startswith("full") else "selective" if text not in ("", "none") else "none"


def _precision(row: dict[str, str]) -> str:
    text = row["precision"].lower()
    for name in ("nvfp4", "mxfp8"):
        if name in text:
            return name
    if "fp8" in text:
        fine = "-mx" in text or "fine-grained" in text
        return ("mxfp8" if row["gpu"] not in ("H100", "H200") else "fp8_block") if fine else "fp8"
    return "fp16" if text == "fp16" else "bf16"


@cache
def _machine(gpu: str, gpus: int) -> Machine:
    plain = re.sub(r"\s*\d+\s*GB|\s*SXM\d?", "", gpu).replace(" ", "-").strip("-")
    if plain not in NODES:
        raise InputError(f"no node for the GPU '{gpu}'")
    node = node_named(NODES[plain])
    if "40GB" in gpu.replace(" ", "") and plain == "A100":
        node = replace(node, device=by_key("a100-sxm-40"))
    inside = min(gpus, node.gpus)
    return Machine(Cluster(node, -(-gpus // inside), inside), "torch")


def _model(row: dict[str, str]) -> tuple[Model, str]:
    return _model_of(row["model"], _whole(row, "seq"))


@cache
def _model_of(name: str, seq: int) -> tuple[Model, str]:
    text = name.lower()
    sizes = re.fullmatch(r"gpt h(\d+) l(\d+) a(\d+)", text)
    if sizes or text in PAPERS:
        width, depth, heads = (int(x) for x in sizes.groups()) if sizes else PAPERS[text]
        # 51,200: GPT-2's vocabulary, padded (Narayanan et al., section 5)
        return gpt(width=width, depth=depth, heads=heads, vocabulary=51200, positions=seq), f"GPT h{width}"
    if text.startswith("mpt-") and text[4:] in MPT:
        width, depth, heads = MPT[text[4:]]
        return gpt(width=width, depth=depth, heads=heads, vocabulary=50368, positions=seq, bias=False), name
    for pattern, known, family in NAMES:
        if re.match(pattern, text.replace("_", "-").replace(" ", "-")) or re.match(pattern, text):
            return _variant(named(known), text), family
    raise InputError(f"no public description of the model '{name}' in the catalog")


def _variant(model: Model, text: str) -> Model:
    """Cut to so many layers, or without layers that predict further tokens."""
    cut = re.search(r"cut to (\d+) layers", text)
    if cut:
        count = int(cut[1])
        dense = sum(1 for layer in model.layers if layer.mlp == model.layers[0].mlp)
        # one dense layer before those with experts: SimuMax, docs/b200/b200_release_v1.2_summary.md, "dense_layers=1"
        first = 1 if dense < len(model.layers) and count > 1 else 0
        layers = model.layers[:first] + model.layers[-(count - first):]
        return replace(model, layers=layers, drafts=())
    if "w/o mtp" in text:
        return replace(model, drafts=())
    # the sources' FLOPs a token say which models predict further tokens: DeepSeek's one, Nemotron 3's two (one layer,
    # twice)
    return replace(model, drafts=model.drafts * 2) if "nemotron" in text else model


@cache
def _counted(model: Model) -> Model:
    """Megatron-Bridge counts gpt-oss' experts as if they had no gate: 27.15 GFLOP a token, not 34.4, in every row."""
    if "gpt-oss" not in model.name:
        return model
    layers = {layer: replace(layer, mlp=replace(layer.mlp, is_gated=False))  # type: ignore[type-var]
              for layer in set(model.layers)}
    return replace(model, layers=tuple(layers[layer] for layer in model.layers))
