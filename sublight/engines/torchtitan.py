"""This file knows about torchtitan: what its options mean for a plan, and back.

Data parallel ranks shard parameters (FSDP) unless they are replicas; with both, replicas of shards (HSDP).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sublight.engines.arguments import Extra
from sublight.engines.flags import Version
from sublight.errors import InputError
from sublight.plan import Job, Training

SCHEDULES = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved", "InterleavedZeroBubble": "zero-bubble",
             "ZBVZeroBubble": "zbv", "DualPipeV": "dualpipe", "LoopedBFS": "looped-bfs"}
NAMES = {ours: theirs for theirs, ours in SCHEDULES.items()}
SAME = ("tp", "pp", "cp", "mbs", "recompute")
REPLICAS = "--parallelism.data_parallel_replicate_degree"
AUTOMATIC = -1


def plan(
    said: Mapping[str, Any], extra: list[Extra], version: Version, gpus: int | None,
) -> tuple[Training, Job | None]:
    settings = {name: said[name] for name in SAME if name in said}
    others = settings.get("tp", 1) * settings.get("pp", 1) * settings.get("cp", 1)
    replicas, shards = said.get("replicas", 1), said.get("shards", AUTOMATIC)
    if shards == AUTOMATIC:
        if gpus is not None and gpus % (others * replicas):
            raise InputError(f"the degrees' product {others * replicas} does not divide the {gpus} GPUs of the command")
        shards = 1 if gpus is None else gpus // (others * replicas)
    if replicas > 1 and shards > 1:
        extra.append((REPLICAS, str(replicas)))
    zero = 0 if shards == 1 and replicas > 1 else 2 if said.get("reshard") == "never" else 3
    name = said.get("schedule", "1F1B")
    made = Training(
        framework="torchtitan", dp=shards * replicas, ep=said.get("ep", 1), etp=said.get("etp", 1),
        schedule=SCHEDULES.get(name, name), zero=zero, precision=_precision(extra),
        overlap_tp=bool(said.get("overlap_tp")), sequence_parallel=said.get("sequence_parallel", True),
        extra=tuple(extra), **{"mbs": 8, "recompute": "selective", **settings},
    )
    seq, gbs = said.get("seq"), said.get("gbs")
    if seq is None:
        return made, None
    gbs = gbs if gbs not in (None, AUTOMATIC) else made.mbs * made.dp
    return made, Job(seq=seq, gbs=gbs)


def _precision(extra: list[Extra]) -> str:
    """Formats of products come from model.converters, which keep their own options: they stay as they are."""
    converters = " ".join(held for name, held in extra if name.endswith(("model.converters", "quantize.converters")))
    return "mxfp8" if "mx" in converters else "fp8" if "float8" in converters else "bf16"


def settings(plan: Training, job: Job | None, version: Version) -> dict[str, Any]:
    if plan.vpp != 1:
        raise InputError(f"torchtitan takes the chunks of a stage from its schedule and layers, got vpp = {plan.vpp}")
    name = NAMES.get(plan.schedule, plan.schedule)
    if name not in SCHEDULES:
        raise InputError(f"torchtitan has the schedules {', '.join(NAMES)}, got {plan.schedule!r}")
    out: dict[str, Any] = {name: getattr(plan, name) for name in SAME}
    replicas = int(dict(plan.extra).get(REPLICAS, "1"))
    if plan.zero == 0 and plan.dp > 1:
        out |= {"replicas": plan.dp, "shards": 1}
    elif plan.dp % replicas:
        raise InputError(f"{REPLICAS} {replicas} does not divide dp = {plan.dp}")
    else:
        out |= {"replicas": replicas, "shards": plan.dp // replicas}
    if plan.zero == 1:
        raise InputError("torchtitan shards gradients with the optimizer's states: zero = 0, 2 or 3 expected, got 1")
    out |= {"reshard": "never" if plan.zero == 2 else None, "schedule": name, "ep": plan.ep, "etp": plan.etp,
            "overlap_tp": plan.overlap_tp or None, "sequence_parallel": plan.sequence_parallel}
    if job is not None:
        out |= {"seq": job.seq, "gbs": job.gbs}
    return out
