"""This file knows about the memory of one GPU: what a plan puts there, by part, and what is left.

    usable = what the driver reports as the total (cudaMemGetInfo)
    vLLM          KV cache = share · usable - weights - peak of a profiled step - what libraries hold
    SGLang        KV cache = share · (usable - what libraries hold) - weights;  steps and graphs live in the rest
    TensorRT-LLM  KV cache = share · (usable - weights - peak of a profiled step - what libraries hold)

Defaults and constants: catalog/serving/memory.toml. How close they come to lines of logs: docs/memory.md.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from sublight.errors import InputError
from sublight.models import Layer, Model, Split, recast
from sublight.models.feedforward import Dense, Mixture
from sublight.models.grouped import GroupedAttention
from sublight.models.latent import LatentAttention
from sublight.plan import Serving
from sublight.predict.machine import Machine

GIB = 2**30
MIB = 2**20
MOST_PEERS = 7           # further GPUs whose buffers were measured; beyond, none was
MLA_WORKSPACE = 65536    # tokens whose keys and values MLA unfolds at once (vllm v1/attention/backends/mla/common.py)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Bytes of one GPU by part, and the bytes that there are."""

    parts: Mapping[str, int]
    capacity: int

    @property
    def used(self) -> int:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.used <= self.capacity


@cache
def facts() -> dict[str, Any]:
    """catalog/serving/memory.toml."""
    return tomllib.loads(resources.files("sublight.catalog").joinpath("serving/memory.toml").read_text("utf-8"))


def numbers(version: str | None) -> tuple[int, ...]:
    """"0.10.2rc1" -> (0, 10, 2). None, and a version without numbers ("nightly-…"), is later than any."""
    if version is None:
        return (10**6,)
    out: list[int] = []
    for part in version.removeprefix("v").split("."):
        digits = part[:len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        out.append(int(digits))
    return tuple(out) or (10**6,)


def usable(where: Machine) -> int:
    """Bytes of one GPU that programs see."""
    known = facts()["reported"].get(where.device.key)
    return int(known * GIB) if known is not None else int(facts()["rest"] * where.device.memory_bytes)


def splits(plan: Serving) -> tuple[Split, ...]:
    """One for each stage."""
    return tuple(Split(tp=plan.tp, dp=plan.dp, ep=plan.ep, pp=plan.pp, stage=stage) for stage in range(plan.pp))


def serving_memory(model: Model, plan: Serving, where: Machine, *, stage: int | None = None) -> Ledger:
    """What a serving engine puts on one GPU of a stage (None: the one with least room for a token of cache).

    Parts: "weights", "draft weights", "activations", "CUDA graphs", "runtime" (context, NCCL, workspaces), "kept free"
    (what the engine leaves), "KV cache" (the rest; 0 where nothing is left, and then used is above capacity).
    """
    stages = splits(plan)
    if stage is not None:
        return _ledger(_cast(model, plan.kv), plan, where, stages[stage])
    cast = _cast(model, plan.kv)
    tightest = min(stages, key=lambda split: _tokens(cast, plan, where, split, _length(cast, plan)))
    return _ledger(cast, plan, where, tightest)


def kv_tokens(model: Model, plan: Serving, where: Machine, *, length: int | None = None) -> int:
    """Tokens of cache that an attention replica can hold, in sequences of `length` (None: the plan's longest context).

    The length matters where windows or recurrent states are: a sequence takes so much whatever its length.
    """
    cast = _cast(model, plan.kv)
    size = length or _length(cast, plan)
    return min(_tokens(cast, plan, where, split, size) for split in splits(plan))


def sequence_bytes(model: Model, split: Split, length: int, *, drafts: bool = False) -> float:
    """Cache and states of one sequence on one GPU of a stage."""
    each = model.kv_bytes_per_token(split, length=length) + _scales(model, split)
    if drafts and split.last:            # layers that predict further tokens have a cache of their own
        each += sum(_draft_cache(model, layer, split) for layer in model.drafts)
    return length * each + model.state_bytes(split)


def _length(model: Model, plan: Serving) -> int:
    return plan.max_length or min(model.context or 8192, 8192)


def _tokens(model: Model, plan: Serving, where: Machine, split: Split, length: int) -> int:
    key = "tokens", id(model), plan, split, length
    if key not in where.memo:
        room = _ledger(model, plan, where, split).parts["KV cache"]
        each = sequence_bytes(model, split, length, drafts=plan.drafts > 0)
        where.memo[key] = model, int(room / each * length) if each > 0 else 10**12
    known: int = where.memo[key][1]
    return known


# A model with another cache, by (id of the model, format); the model is kept with it, so that the id stays its own.
_CAST: dict[tuple[int, str], tuple[Model, Model]] = {}


def _cast(model: Model, kv: str | None) -> Model:
    if kv is None or kv == model.kv:
        return model
    if (id(model), kv) not in _CAST:
        _CAST[id(model), kv] = model, recast(model, kv=kv)
    return _CAST[id(model), kv][1]


def _draft_cache(model: Model, layer: Layer, split: Split) -> float:
    return replace(model, layers=(layer,), drafts=()).kv_bytes_per_token(replace(split, pp=1, stage=0, stages=None))


def _scales(model: Model, split: Split) -> float:
    """fp8 caches of sparse latent attention keep the rotated part in 16 bits and a scale for each 128 (FlashMLA)."""
    if model.kv != "fp8":
        return 0.0
    return sum(count * (layer.attention.rope + layer.attention.kv_rank / 128 * 4)
               for layer, count in model.stage_kinds(split)
               if isinstance(layer.attention, LatentAttention) and layer.attention.indexer)


def _ledger(model: Model, plan: Serving, where: Machine, split: Split) -> Ledger:
    if plan.engine not in ENGINES:
        raise InputError(f"no memory of engine '{plan.engine}' is known; expected one of {', '.join(ENGINES)}")
    key = "memory", id(model), plan, split
    if key not in where.memo:            # with the model, so that its id stays its own
        made = ENGINES[plan.engine](model, plan, where, split, _weights(model, plan, where, split))
        where.memo[key] = model, made
    known: Ledger = where.memo[key][1]
    return known


def _vllm(model: Model, plan: Serving, where: Machine, split: Split, weights: dict[str, int]) -> Ledger:
    constants, version = facts()["vllm"], _of_version(facts()["vllm"]["versions"], plan.version)
    total = usable(where)
    share = plan.memory_fraction or version["fraction"]
    tokens, sequences = vllm_sizes(plan, where)
    steps = max(forward_peak(model, tokens, split),
                int(constants["logits_fp32"] * 4 * min(sequences, tokens) * model.vocabulary) if split.last else 0)
    runtime = _runtime(constants, split) + int(version["context"] * GIB)
    graphs = int(constants["graphs"] * GIB) if plan.cuda_graphs and version["graphs_counted"] else 0
    parts = {**weights, "activations": steps, "CUDA graphs": graphs, "runtime": runtime,
             "kept free": int((1 - share) * total)}
    return _with_cache(parts, total)


def vllm_sizes(plan: Serving, where: Machine) -> tuple[int, int]:
    """Tokens and sequences of a step: max_num_batched_tokens and max_num_seqs, given or by default."""
    version = _of_version(facts()["vllm"]["versions"], plan.version)
    large = usable(where) >= 70 * GIB and "a100" not in where.device.key
    prefix = "large_" if large else ""
    return plan.token_budget or version[f"{prefix}tokens"], plan.max_sequences or version[f"{prefix}sequences"]


def _sglang(model: Model, plan: Serving, where: Machine, split: Split, weights: dict[str, int]) -> Ledger:
    total, runtime = usable(where), _runtime(facts()["sglang"], split)
    reserve = int((1 - sglang_fraction(plan, where)) * (total - runtime))
    return _with_cache({**weights, "activations": reserve, "CUDA graphs": 0, "runtime": runtime, "kept free": 0}, total)


def sglang_fraction(plan: Serving, where: Machine) -> float:
    """mem_fraction_static, given or by default: what SGLang computes from its own sizes."""
    if plan.memory_fraction:
        return plan.memory_fraction
    constants, old = facts()["sglang"], facts()["sglang"]["old"]
    ranks = plan.tp * plan.dp            # its tp counts attention replicas too
    if numbers(plan.version) < numbers(old["until"]):
        return float(next(f for tp, f in reversed(list(zip(old["tp"], old["fraction"], strict=True))) if ranks >= tp))
    mib = where.device.memory_bytes / MIB
    sizes = next(row for row in constants["sizes"] if mib < row["below_mib"])
    graphs = sizes["graph_small"] if ranks < 4 else sizes["graph_large"]
    reserve = (constants["reserve_constant_mib"] + constants["reserve_mib_per_gpu"] * ranks * plan.pp
               + constants["reserve_mib_per_token"] * max(2048, plan.token_budget or sizes["tokens"])
               + constants["reserve_mib_per_graph_sequence"] * graphs)
    if plan.dp > 1:
        each = constants["reserve_mib_per_attention_replica"]
        if graphs > 300 and numbers(plan.version) >= numbers(constants["large_replicas_from"]):
            each += constants["reserve_mib_large_replicas"]
        reserve += each * graphs * plan.dp
    if mib > constants["reserve_least_above_mib"]:
        reserve = max(reserve, constants["reserve_least_mib"])
    reserve += constants["reserve_drafts_mib"] if plan.drafts else 0
    return float(round((mib - reserve) / mib, 3))


def _trtllm(model: Model, plan: Serving, where: Machine, split: Split, weights: dict[str, int]) -> Ledger:
    constants, total = facts()["trtllm"], usable(where)
    tokens = plan.token_budget or constants["tokens"]
    sequences = min(tokens, plan.max_sequences or constants["sequences"])
    steps = max(forward_peak(model, tokens, split),
                int(constants["logits_fp32"] * 4 * sequences * model.vocabulary) if split.last else 0)
    parts = {**weights, "activations": steps, "CUDA graphs": 0, "runtime": _runtime(constants, split)}
    free = max(0, total - sum(parts.values()))
    parts["kept free"] = int((1 - (plan.memory_fraction or constants["fraction"])) * free)
    return _with_cache(parts, total)


ENGINES = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}


def _with_cache(parts: dict[str, int], total: int) -> Ledger:
    return Ledger({**parts, "KV cache": max(0, total - sum(parts.values()))}, total)


def _runtime(constants: Mapping[str, Any], split: Split) -> int:
    group = split.ranks * split.pp
    return int((constants["runtime_first"] + constants["runtime_further"] * min(group - 1, MOST_PEERS)) * GIB)


def _of_version(rows: list[dict[str, Any]], version: str | None) -> dict[str, Any]:
    return ([row for row in rows if numbers(row["from"]) <= numbers(version)] or rows[:1])[-1]


def _weights(model: Model, plan: Serving, where: Machine, split: Split) -> dict[str, int]:
    """Of one GPU; latent attention keeps its unfolding a second time, in 16 bits, for the absorbed form."""
    held = model.bytes_on_rank(split)
    more = sum(count * (_absorbed(layer, split) + _padding(layer, plan.engine, where, split))
               for layer, count in model.stage_kinds(split))
    parts = {"weights": held + more}
    if plan.drafts and model.drafts:
        parts["draft weights"] = model.bytes_on_rank(split, drafts=True) - held
    return parts


def _absorbed(layer: Layer, split: Split) -> int:
    block = layer.attention
    if not isinstance(block, LatentAttention):
        return 0
    return 2 * block.kv_rank * block.heads * (block.nope + block.d_v) // split.tp


def _padding(layer: Layer, engine: str, where: Machine, split: Split) -> int:
    """Bytes by which kernels for fp4 weights and 16-bit tokens widen an expert."""
    block, padded = layer.mlp, facts()["padding"].get(engine)
    if padded is None or not isinstance(block, Mixture) or block.form.name != "mxfp4":
        return 0
    width, inner = block.latent or block.width, block.inner // split.expert_tp
    capability = where.device.capability or (0, 0)
    to_width, to_inner = padded["blackwell" if capability >= (10, 0) else "before"]
    wider = -(-width // to_width) * to_width * (-(-inner // to_inner) * to_inner) - width * inner
    return block.form.nbytes(block.experts // split.ep * (3 if block.is_gated else 2) * wider)


def forward_peak(model: Model, tokens: int, split: Split) -> int:
    """Bytes of tensors that live at once in a prefill of so many tokens, where each is freed when it is read.

    The widest block's own, and three rows of the width: residual, input and output.
    """
    widest = max((_block_bytes(block, tokens, split) for layer, _ in model.stage_kinds(split)
                  for block in layer.blocks()), default=0)
    return widest + 3 * 2 * tokens * model.width


def _block_bytes(block: Any, tokens: int, split: Split) -> int:
    tp = split.tp
    if isinstance(block, Dense):
        return 2 * tokens * block.inner * (3 if block.is_gated else 2) // tp
    if isinstance(block, Mixture):
        pairs, inner = tokens * split.dp * block.top_k // max(1, split.ep), block.inner // split.expert_tp
        routed = 2 * pairs * (max((2 if block.is_gated else 1) * inner, block.latent or block.width) + inner)
        beside = max((_block_bytes(dense, tokens, split) for dense in (block.shared, block.beside) if dense), default=0)
        return max(routed, beside)
    if isinstance(block, GroupedAttention):
        return 2 * tokens * (block.heads * (block.d_qk + block.d_v) + 2 * block.kv_heads * block.d_qk) // tp
    if isinstance(block, LatentAttention):
        unfolded = block.heads * (2 * block.nope + block.rope + 2 * block.d_v) // tp
        kept = MLA_WORKSPACE * (block.kv_rank + block.rope + block.heads * (block.nope + block.d_v) // tp)
        return 2 * (tokens * unfolded + kept)
    return 8 * tokens * getattr(block, "width", 0) // tp         # recurrent mixers: projections of four widths
