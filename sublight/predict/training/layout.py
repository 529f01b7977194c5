"""This file knows about how a plan lays a model out: number formats, layers of a stage, ranks that share experts."""

from __future__ import annotations

from functools import cache

from sublight.models import Model, Split, recast
from sublight.models.feedforward import Mixture
from sublight.models.recurrent import Mamba2
from sublight.plan import Training

FP8_PRECISIONS = {"fp8": "fp8", "fp8_block": "fp8_block", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}
_RECAST: dict[tuple[int, str], tuple[Model, Model]] = {}   # by identity: hashing a model costs more than a step


def in_precision(model: Model, precision: str) -> Model:
    """The model as it is multiplied in training: linear layers of blocks in `precision`, the rest in 16 bits.

    Embedding and head, attention itself and the router stay in bf16 (NVIDIA Transformer Engine's recipes; DeepSeek-V3
    report, arXiv 2412.19437, section 3.3.1). Hybrids in NVFP4 keep their mixers in wider formats: in mxfp8 here
    (Nemotron 3 white paper, arXiv 2512.20856: Mamba's output in MXFP8, attention's products in bf16).
    """
    key = (id(model), precision)
    if key not in _RECAST or _RECAST[key][0] is not model:
        if len(_RECAST) > 64:
            _RECAST.clear()
        _RECAST[key] = (model, _in_precision(model, precision))
    return _RECAST[key][1]


def _in_precision(model: Model, precision: str) -> Model:
    form = FP8_PRECISIONS.get(precision, "bf16")
    mixers = "mxfp8" if form == "nvfp4" and any(isinstance(layer.attention, Mamba2) for layer in model.layers) else form
    return recast(model, attention=mixers, mlp=form, experts=form, head="bf16", kv="bf16")


def expert_split(plan: Training) -> Split:
    """Ranks that share experts, as models.Split counts them: tp ranks, and replicas of attention beside them."""
    shared = plan.ep * plan.etp
    dp = shared // plan.tp if shared > plan.tp and shared % plan.tp == 0 else 1
    ep = plan.ep if (plan.tp * dp) % plan.ep == 0 else 1
    return Split(tp=plan.tp, ep=ep, dp=dp, imbalance=min(plan.imbalance, float(ep)))


def stage_of(model: Model, plan: Training, stage: int) -> Split:
    """The layers of a pipeline's stage. Evenly where stages divide them; else, and where layers that predict further
    tokens follow the last, the last stage has fewer by what head and drafts weigh (as Megatron-Bridge's layouts of
    DeepSeek-V3 do: 8, 8, 8, 8, 8, 8, 8, 5).

    >>> from sublight.models import named
    >>> v3 = named("deepseek-ai/DeepSeek-V3")
    >>> [len(stage_of(v3, Training(pp=8), stage).layers(61)) for stage in range(8)]
    [9, 8, 8, 8, 8, 8, 8, 4]
    """
    count = len(model.layers)
    if plan.pp == 1 or (count % plan.pp == 0 and not model.drafts):
        return Split(pp=plan.pp, stage=stage)
    head = model.vocabulary * model.width
    each = (model.multiplied() - head) / count
    extra = head / each + len(model.drafts) * (1 + head / each)
    last = max(1, min(count - plan.pp + 1, round((count + extra) / plan.pp - extra)))
    others, rest = divmod(count - last, plan.pp - 1)
    stages = tuple(others + (index < rest) for index in range(plan.pp - 1))
    return Split(pp=plan.pp, stage=stage, stages=(*stages, last))


@cache
def experts_of(model: Model) -> tuple[int, int, int]:
    """(experts, top_k, layers that have them); zeros for a dense model."""
    found = [layer.mlp for layer in model.layers if isinstance(layer.mlp, Mixture)]
    return (found[0].experts, found[0].top_k, len(found)) if found else (0, 0, 0)
