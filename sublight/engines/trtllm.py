"""This file knows about TensorRT-LLM: what its settings mean for a plan, and back.

--tp_size counts all ranks of a stage; enable_attention_dp makes each of them an attention replica. Limits are of one
rank. Keys of the options file win over flags (llmapi/llm_utils.py, update_llm_args_with_extra_dict).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sublight.engines.arguments import Extra
from sublight.engines.flags import Version
from sublight.errors import InputError
from sublight.plan import Serving

SAME = ("pp", "token_budget", "max_sequences", "memory_fraction", "max_length", "kv", "chunked_prefill",
        "prefix_cache", "attention_kind", "all_reduce_kind")
GRAPHS = ("cuda_graph_config", "use_cuda_graph")


def plan(said: Mapping[str, Any], extra: list[Extra], version: Version) -> Serving:
    settings = {name: said[name] for name in SAME if name in said}
    world = said.get("world", 1)
    attention_dp = said.get("attention_dp", False)
    ep = said.get("ep") or world // (said.get("moe_tp") or world)
    return Serving(
        engine="trtllm", tp=1 if attention_dp else world, dp=world if attention_dp else 1, ep=ep,
        drafts=_drafts(said, extra), cuda_graphs=graphs(said, extra, version), extra=tuple(extra), **settings,
    )


def graphs(said: Mapping[str, Any], extra: list[Extra], version: Version) -> bool:
    if any(name.startswith("cuda_graph_config.") for name, _ in extra):
        return True
    for key in GRAPHS:
        if key in said:
            return said[key] is not None and said[key] is not False
    return version >= (1, 0)            # llm_args.py: a config by default since 1.0; before, only where one is given


def _drafts(said: Mapping[str, Any], extra: list[Extra]) -> int:
    kind = said.get("decoding")
    if kind is None:
        return 0
    layers = said.get("mtp_layers", said.get("draft_length"))
    if kind != "MTP" or layers is None:
        extra.append(("speculative_config.decoding_type", json.dumps(kind)))
    return 0 if layers is None else int(layers)


def settings(plan: Serving, version: Version) -> dict[str, Any]:
    world = plan.tp * plan.dp
    if plan.dp > 1 and plan.tp > 1:
        raise InputError(f"TensorRT-LLM has attention replicas of one rank each, got tp = {plan.tp} and dp = {plan.dp}")
    if world % plan.ep:
        raise InputError(f"ep = {plan.ep} does not divide the {world} ranks of tp x dp")
    out = {name: getattr(plan, name) for name in SAME}
    out |= {"world": world, "attention_dp": plan.dp > 1, "ep": plan.ep}
    if plan.cuda_graphs != graphs({}, list(plan.extra), version):
        if version < (0, 21):
            out["use_cuda_graph"] = plan.cuda_graphs
        else:
            out["cuda_graph_config"] = {} if plan.cuda_graphs else None
    if plan.drafts:
        other = "speculative_config.decoding_type" in dict(plan.extra)
        if not other:
            out["decoding"] = "MTP"
        out["draft_length" if other else "mtp_layers"] = plan.drafts
    return out
