"""This file knows about Megatron-LM: what the arguments of its training scripts mean for a plan, and back.

Experts are cut into as many columns as the dense layers, unless --expert-tensor-parallel-size says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sublight.engines.arguments import Extra
from sublight.engines.flags import Version
from sublight.errors import InputError
from sublight.plan import Job, Training

SAME = ("tp", "pp", "cp", "ep", "mbs", "overlap_grad", "overlap_param", "overlap_tp", "overlap_ep", "optimizer")
SHARDED = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
STRATEGY = {zero: name for name, zero in SHARDED.items()}
FP8 = {"delayed": "fp8", "tensorwise": "fp8-tensor", "blockwise": "fp8-block", "mxfp8": "mxfp8", "custom": "fp8-custom"}
RECIPES = {word: recipe for recipe, word in FP8.items()}


def plan(
    said: Mapping[str, Any], extra: list[Extra], version: Version, gpus: int | None,
) -> tuple[Training, Job | None]:
    settings = {name: said[name] for name in SAME if name in said}
    tp, pp, cp = (settings.get(name, 1) for name in ("tp", "pp", "cp"))
    moe = settings.get("ep", 1) > 1 or any(name == "--num-experts" for name, _ in extra)
    vpp = _chunks(said, extra, pp)
    dp = 1
    if gpus is not None:
        if gpus % (tp * pp * cp):
            raise InputError(f"tp x pp x cp = {tp * pp * cp} does not divide the {gpus} GPUs of the command")
        dp = gpus // (tp * pp * cp)
    made = Training(
        framework="megatron", dp=dp, etp=said.get("etp", tp if moe else 1), vpp=vpp,
        schedule="interleaved" if vpp > 1 else "1f1b",
        sequence_parallel=said.get("sequence_parallel", tp == 1), recompute=_recompute(said, extra),
        zero=_zero(said, extra), precision=_precision(said), cuda_graphs=_graphs(said, extra), extra=tuple(extra),
        **{"overlap_grad": False, "overlap_param": False, **settings},
    )
    seq, gbs = said.get("seq"), said.get("gbs")
    return made, None if seq is None or gbs is None else Job(seq=seq, gbs=gbs)


def _chunks(said: Mapping[str, Any], extra: list[Extra], pp: int) -> int:
    """Chunks of layers a stage: said, or from the layers of one chunk."""
    if "vpp" in said:
        return int(said["vpp"])
    if "chunk_layers" not in said:
        return 1
    layers = next((held for name, held in extra if name == "--num-layers"), None)
    if layers is None or not layers.isdigit():
        raise InputError("--num-layers-per-virtual-pipeline-stage says how many chunks a stage has only with "
                         "--num-layers; add it")
    chunks, rest = divmod(int(layers), pp * int(said["chunk_layers"]))
    if rest or not chunks:
        raise InputError(f"--num-layers-per-virtual-pipeline-stage {said['chunk_layers']} does not divide the "
                         f"{layers} layers over {pp} stages")
    return chunks


def _recompute(said: Mapping[str, Any], extra: list[Extra]) -> str:
    kind = said.get("recompute", "none")
    method, layers = said.get("recompute_method"), said.get("recompute_layers")
    if not (kind == "full" and method in (None, "uniform") and layers in (None, 1)):
        extra.extend((flag, str(value)) for flag, value in
                     (("--recompute-method", method), ("--recompute-num-layers", layers)) if value is not None)
    return str(kind)


def _zero(said: Mapping[str, Any], extra: list[Extra]) -> int:
    if said.get("torch_fsdp"):
        extra.append(("--use-torch-fsdp2", ""))
        return 3
    if "sharding" in said and said.get("megatron_fsdp"):
        return _sharded(str(said["sharding"]))
    return 1 if said.get("distributed_optimizer") else 0


def _sharded(strategy: str) -> int:
    if strategy not in SHARDED:
        raise InputError(f"--data-parallel-sharding-strategy expected one of {', '.join(SHARDED)}, got {strategy!r}")
    return SHARDED[strategy]


def _precision(said: Mapping[str, Any]) -> str:
    if said.get("fp4"):
        return "nvfp4"
    if said.get("fp8"):
        recipe = said.get("fp8_recipe", "delayed")
        return FP8.get(recipe, f"fp8-{recipe}")
    return "bf16" if said.get("bf16") else "fp16" if said.get("fp16") else "fp32"


def _graphs(said: Mapping[str, Any], extra: list[Extra]) -> bool:
    kind = said.get("graph_kind")
    if kind not in (None, "none", "local"):
        extra.append(("--cuda-graph-impl", str(kind)))
    return bool(said.get("graphs")) or kind not in (None, "none")


def settings(plan: Training, job: Job | None, version: Version) -> dict[str, Any]:
    expected = "interleaved" if plan.vpp > 1 else "1f1b"
    if plan.schedule != expected:
        raise InputError(f"Megatron-LM runs the schedule {expected!r} with vpp = {plan.vpp}, got {plan.schedule!r}")
    if plan.vpp > 1 and plan.pp == 1:
        raise InputError(f"vpp = {plan.vpp} needs stages to interleave, got pp = 1")
    names = {name for name, _ in plan.extra}
    moe = plan.ep > 1 or "--num-experts" in names
    out: dict[str, Any] = {name: getattr(plan, name) for name in SAME}
    out["etp"] = None if plan.etp == (plan.tp if moe else 1) else plan.etp
    out["sequence_parallel"] = None if plan.tp == 1 else plan.sequence_parallel or None
    out |= {"recompute": plan.recompute, **_sharding(plan, names), **_formats(plan.precision)}
    if plan.recompute == "full" and "--recompute-method" not in names:
        out |= {"recompute_method": "uniform", "recompute_layers": 1}
    out |= _chunk_settings(plan, version)
    if plan.cuda_graphs and "--cuda-graph-impl" not in names:
        out["graph_kind" if version >= (0, 15) else "graphs"] = "local" if version >= (0, 15) else True
    if job is not None:
        out |= {"seq": job.seq, "gbs": job.gbs}
    return out


def _sharding(plan: Training, names: set[str]) -> dict[str, Any]:
    if plan.zero not in STRATEGY:
        raise InputError(f"zero expected from 0 to 3, got {plan.zero}")
    if plan.zero < 2 or "--use-torch-fsdp2" in names:
        return {"distributed_optimizer": plan.zero == 1}
    return {"distributed_optimizer": True, "megatron_fsdp": True, "sharding": STRATEGY[plan.zero]}


def _formats(precision: str) -> dict[str, Any]:
    if precision in ("bf16", "fp16"):
        return {precision: True}
    if precision in RECIPES:
        recipe = RECIPES[precision]
        return {"bf16": True, "fp8": "hybrid" if precision != "mxfp8" else "e4m3",
                "fp8_recipe": None if recipe == "delayed" else recipe}
    if precision == "nvfp4":
        return {"bf16": True, "fp4": "e2m1"}
    if precision == "fp32":
        return {}
    raise InputError(f"a precision of bf16, fp16, fp32, nvfp4, {', '.join(RECIPES)} expected, got {precision!r}")


def _chunk_settings(plan: Training, version: Version) -> dict[str, Any]:
    """Chunks a stage are said by number where the version can."""
    if plan.vpp == 1 or version >= (0, 11):
        return {"vpp": plan.vpp}
    layers = next((held for name, held in plan.extra if name == "--num-layers"), "")
    if not layers.isdigit() or int(layers) % (plan.pp * plan.vpp):
        raise InputError("this version says vpp by layers of a chunk: --num-layers, divisible, must be in the plan's "
                         "extra flags")
    return {"chunk_layers": int(layers) // (plan.pp * plan.vpp)}
