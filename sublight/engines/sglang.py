"""This file knows about SGLang: what its settings mean for a plan, and back.

--tp-size counts all ranks of a stage. With --enable-dp-attention they form --dp-size attention replicas, and the
limits of the flags are of all replicas together (srt/managers/scheduler.py and server_args.py divide them by dp-size).
Without it, --dp-size is a number of independent instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sublight.engines.arguments import Extra
from sublight.engines.flags import Version
from sublight.errors import InputError
from sublight.plan import Serving

SAME = ("pp", "memory_fraction", "max_length", "kv", "prefix_cache", "poll_steps", "two_batch_overlap",
        "attention_kind", "all_reduce_kind")
DEEPEP = {"low_latency": "deepep-ll", "normal": "deepep-normal", "auto": "deepep-auto"}
MODES = {kind: mode for mode, kind in DEEPEP.items()}
EAGLE = ("EAGLE", "NEXTN")               # two names of one algorithm: SpeculativeAlgorithm.from_string


def plan(said: Mapping[str, Any], extra: list[Extra], version: Version) -> Serving:
    settings = {name: said[name] for name in SAME if name in said}
    world, size = said.get("world", 1), said.get("dp_size", 1)
    dp = size if said.get("dp_attention") and size > 1 else 1
    if world % dp:
        raise InputError(f"--dp-size {dp} does not divide --tp-size {world}, as --enable-dp-attention needs")
    if said.get("dp_attention") and dp == 1:
        extra.append(("--enable-dp-attention", ""))             # has no effect on one replica
    kind = _exchange(said)
    grouped = said.get("ep_moe") or (kind or "").startswith("deepep")
    ep = world if grouped else said.get("ep", 1)
    chunk, chunked = said.get("chunk"), said.get("chunk") != -1
    budget = (chunk if chunked else said.get("prefill_tokens"))
    if chunked and "prefill_tokens" in said:
        extra.append(("--max-prefill-tokens", str(said["prefill_tokens"])))
    most = said.get("sequences")
    return Serving(
        engine="sglang", tp=world // dp, dp=dp, ep=ep, replicas=1 if dp > 1 else size, moe_kind=kind,
        token_budget=None if budget is None else max(1, budget // dp), chunked_prefill=chunked,
        max_sequences=None if most is None else max(1, most // dp), drafts=_drafts(said, extra),
        cuda_graphs=said.get("cuda_graphs", True) and said.get("decode_graphs") != "disabled",
        extra=tuple(extra), **settings,
    )


def _exchange(said: Mapping[str, Any]) -> str | None:
    kind: str | None = said.get("exchange")
    if kind == "deepep" or said.get("deepep_moe"):
        return DEEPEP.get(said.get("deepep_mode", "auto"), "deepep-auto")
    return None if kind in (None, "none") else kind


def _drafts(said: Mapping[str, Any], extra: list[Extra]) -> int:
    """Tokens guessed a step: without a tree, the verified ones less the one that is certain."""
    algorithm = said.get("algorithm")
    if algorithm is None:
        return 0
    steps, topk, verified = said.get("draft_steps"), said.get("draft_topk"), said.get("draft_tokens")
    chain = steps is not None and topk == 1 and verified == steps + 1
    if algorithm.upper() not in EAGLE or not chain:
        names = {"algorithm": "--speculative-algorithm", "draft_steps": "--speculative-num-steps",
                 "draft_topk": "--speculative-eagle-topk", "draft_tokens": "--speculative-num-draft-tokens"}
        extra.extend((flag, str(said[key])) for key, flag in names.items() if said.get(key) is not None)
    if verified is not None:
        return max(0, int(verified) - 1)
    return int(steps) if steps is not None else 0


def settings(plan: Serving, version: Version) -> dict[str, Any]:
    out = {name: getattr(plan, name) for name in SAME}
    world = plan.tp * plan.dp
    deepep = (plan.moe_kind or "").startswith("deepep")
    if deepep and plan.ep != world:
        raise InputError(f"SGLang with DeepEP has as many groups of experts as ranks (tp x dp = {world}), got ep = "
                         f"{plan.ep}")
    budget = None if plan.token_budget is None else plan.token_budget * plan.dp
    out |= {
        "world": world, "dp_size": plan.dp if plan.dp > 1 else plan.replicas, "dp_attention": plan.dp > 1,
        "chunk": budget if plan.chunked_prefill else -1,
        "prefill_tokens": None if plan.chunked_prefill else budget,
        "sequences": None if plan.max_sequences is None else plan.max_sequences * plan.dp,
        "cuda_graphs": plan.cuda_graphs,
    }
    out |= _grouping(plan, version, world, deepep)
    drafts_are_extra = any(name == "--speculative-algorithm" for name, _ in plan.extra)
    if plan.drafts and not drafts_are_extra:
        out |= {"algorithm": "EAGLE", "draft_steps": plan.drafts, "draft_topk": 1, "draft_tokens": plan.drafts + 1}
    return out


def _grouping(plan: Serving, version: Version, world: int, deepep: bool) -> dict[str, Any]:
    """How experts are spread. Before 0.5, in one group or in as many as ranks, by switches of their own."""
    if version < (0, 5):
        if plan.ep not in (1, world):
            raise InputError(f"SGLang before 0.5 has its experts in 1 group or in as many as ranks ({world}), got ep = "
                             f"{plan.ep}")
        mode = MODES[plan.moe_kind] if deepep and plan.moe_kind is not None else None
        return {"ep_moe": plan.ep > 1 and not deepep, "deepep_moe": deepep, "deepep_mode": mode or "auto",
                "exchange": None if deepep else plan.moe_kind}
    if deepep and plan.moe_kind is not None:
        return {"exchange": "deepep", "deepep_mode": MODES[plan.moe_kind]}
    return {"ep": plan.ep, "exchange": plan.moe_kind, "deepep_mode": "auto"}
