"""This file knows about recomputation: which forward operators a backward pass repeats."""

from __future__ import annotations

from dataclasses import replace

from sublight.plan import Training
from sublight.predict.training.call import Call

# What recomputes a module: the labels of its operators begin so (Megatron-LM, --recompute-modules)
MODULES: dict[str, tuple[str, ...]] = {
    "core_attn": ("attention.core", "attention.prefill"), "mla_up_proj": ("attention.q_b", "attention.kv_b"),
    "layernorm": ("attention.norm", "mlp.norm"), "mlp": ("mlp.up", "mlp.activation", "mlp.down"),
    "moe_act": ("moe.experts.activation",), "shared_experts": ("shared.",), "moe": ("moe.", "shared."),
}


def recomputed(layers: list[Call], plan: Training) -> tuple[Call, ...]:
    """Of the layers' forward operators those that the backward pass repeats.

    Selective without names of modules repeats unfused attention's scores (Korthikanti et al., section 5). extra of a
    plan: ("recompute_modules", "mla_up_proj,mlp"), and ("whole_layers", "5") of full recomputation in some layers.
    """
    extra = dict(plan.extra)
    if plan.recompute == "full":
        whole = int(extra.get("whole_layers", "0"))
        held = sum(call.count for call in layers if call.label == "attention.norm")
        share = min(1.0, whole / held) if whole and held else 1.0
        return tuple(replace(call, count=round(share * call.count)) for call in layers if share * call.count >= 0.5)
    if plan.recompute != "selective":
        return ()
    modules = extra.get("recompute_modules", "core_attn" if extra.get("attention") == "unfused" else "").split(",")
    starts = tuple(start for module in modules for start in MODULES.get(module, ()))
    return tuple(call for call in layers if starts and call.label.startswith(starts))
