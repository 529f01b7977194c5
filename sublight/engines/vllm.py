"""This file knows about vLLM: what its settings mean for a plan, and back.

Experts are shared by all tp·dp ranks: by columns, or with --enable-expert-parallel in as many groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sublight.engines.arguments import Extra
from sublight.engines.flags import Version
from sublight.errors import InputError
from sublight.plan import Serving

SAME = ("tp", "pp", "dp", "token_budget", "max_sequences", "memory_fraction", "max_length", "kv", "chunked_prefill",
        "cuda_graphs", "prefix_cache", "drafts", "two_batch_overlap", "attention_kind", "moe_kind", "all_reduce_kind")


def plan(said: Mapping[str, Any], extra: list[Extra], version: Version) -> Serving:
    settings = {name: said[name] for name in SAME if name in said}
    if settings.get("max_length") == -1:              # "as long as fits", from 0.10 on
        settings["max_length"] = None
        extra.append(("--max-model-len", "-1"))
    if graphs_off(said):
        settings["cuda_graphs"] = False
    ranks = settings.get("tp", 1) * settings.get("dp", 1)
    return Serving(engine="vllm", ep=ranks if said.get("expert_parallel") else 1, extra=tuple(extra), **settings)


def graphs_off(said: Mapping[str, Any]) -> bool:
    """Whether the compilation's settings switch CUDA graphs off."""
    mode, level = said.get("graph_mode"), said.get("compile_level")
    return str(level) == "0" if mode is None else str(mode).upper() == "NONE"


def settings(plan: Serving, version: Version) -> dict[str, Any]:
    ranks = plan.tp * plan.dp
    if plan.ep not in (1, ranks):
        raise InputError(f"vLLM has its experts in 1 group or in as many as ranks (tp x dp = {ranks}), got ep = "
                         f"{plan.ep}")
    out = {name: getattr(plan, name) for name in SAME}
    return {**out, "expert_parallel": plan.ep > 1}
