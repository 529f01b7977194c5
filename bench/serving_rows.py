"""Rows of measured serving points as what predict takes: a model in their number formats, a plan, traffic, a machine.

Only what a row says of its inputs is read: never a measured value, never a column of a peer.
"""

from __future__ import annotations

import csv
import difflib
import gzip
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from sublight.errors import InputError
from sublight.models import Model, catalog, named, recast
from sublight.plan import Disaggregated, Serving, Traffic
from sublight.predict.machine import Machine, machine
from sublight.predict.serving.estimate import accepted_tokens, simulation
from sublight.predict.serving.family import family
from sublight.predict.serving.host import engine
from sublight.predict.serving.pace import pace
from sublight.predict.serving.recipes import Recipe, Workers, acceptances, facts

Row = Mapping[str, str]
GPUS = {"a100_sxm": (8, "A100"), "h100_sxm": (8, "H100"), "h200_sxm": (8, "H200"), "b200_sxm": (8, "B200"),
        "b300_sxm": (8, "B300"), "gb200": (72, "GB200"), "gb300": (72, "GB300"), "l40s": (8, "L40S"),
        "gb200_sxm": (72, "GB200"), "gb300_sxm": (72, "GB300"), "h20_sxm": (8, "H20")}
BLACKWELL = ("b200_sxm", "b300_sxm", "gb200", "gb300", "gb200_sxm", "gb300_sxm")
INPUTS = ("id", "system", "backend", "backend_version", "model", "arch", "precision", "mode", "isl", "osl",
          "concurrency", "gemm_quant", "moe_quant", "batch_per_rank", "tp", "pp", "attention_dp", "moe_tp", "moe_ep",
          *(f"{side}_{name}" for side in ("prefill", "decode") for name in (
              "num_workers", "batch_size", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")))


@dataclass(frozen=True)
class Case:
    """What predict takes, with what is public about the run."""

    id: str
    system: str
    backend: str
    version: str
    family: str
    model: Model
    plan: Serving | Disaggregated
    traffic: Traffic
    where: Machine
    recipe: Recipe


def read(path: Path) -> list[dict[str, str]]:
    """The rows of serving.csv.gz."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def number(row: Row, name: str, otherwise: int = 1) -> int:
    value = row.get(name) or ""
    return max(1, round(float(value))) if value else otherwise


@cache
def known_model(name: str, arch: str, precision: str, gemm: str, moe: str, kv: str | None, blackwell: bool) -> Model:
    """The catalog's model with the formats that the row names. Raises InputError where it is not known."""
    names = {key.lower(): key for key in catalog()}
    fp4 = precision == "fp4" and "gpt-oss" not in name
    tried = _candidates(name, fp4) + _candidates(arch, fp4)
    found = next((names[text.lower()] for text in tried if text.lower() in names), None)
    found = found or _nearest(name, fp4) or _nearest(arch, fp4)
    if found is None:
        raise InputError(f"no model '{name}' ({arch}) in the catalog")
    return _in_formats(named(found), precision, gemm, moe, kv, blackwell)


def _nearest(name: str, fp4: bool) -> str | None:
    """The name most like it among those of its family: a checkpoint of another date, or of another maker."""
    short = name.split("/")[-1].lower()
    keys = {key.split("/")[-1].lower(): key for key in catalog() if family(key) == family(name)}
    wanted = {low: key for low, key in keys.items() if ("fp4" in low) == fp4} or keys
    near = difflib.get_close_matches(short, wanted, 1, 0.6)
    return wanted[near[0]] if near else None


def _candidates(name: str, fp4: bool) -> list[str]:
    short = name.split("/")[-1]
    bare = short.removesuffix("-FP8").removesuffix("-NVFP4").removesuffix("-FP4")
    plain = [name, name.replace("zhipuai/", "zai-org/"), f"nvidia/{short}"]
    variants = [f"nvidia/{bare}-NVFP4", f"nvidia/{bare}-FP4"]
    other = [f"{key}/{bare}" for key in ("deepseek-ai", "Qwen", "meta-llama", "moonshotai", "zai-org", "MiniMaxAI")]
    return [*variants, *plain, *other] if fp4 else [*plain, *other, *variants]


def _in_formats(model: Model, precision: str, gemm: str, moe: str, kv: str | None, blackwell: bool) -> Model:
    """fp8 checkpoints of the model's own are kept; fp4 ones of mixtures leave attention in 16 bits."""
    if "gpt-oss" in model.name.lower():
        return recast(model, experts="mxfp4_fp8" if blackwell else None, kv=kv)
    kv = kv or ("fp8" if precision in ("fp8", "fp4") else None)
    if kv == "bf16" and model.kv == "fp8":
        kv = None                        # recipes say "auto": the format that the checkpoint names
    forms = set(model.bytes_by_format())
    if precision == "fp8" and not any(form.startswith("fp8") for form in forms):
        form = gemm if gemm in ("fp8", "fp8_block") else "fp8_block" if moe else "fp8"
        return recast(model, attention=form, mlp=form, experts=form, kv=kv)
    if precision == "fp4" and "nvfp4" not in forms:
        mixture = any("experts" in weight.part for weight, _ in model.weights())
        return recast(model, attention="bf16" if mixture else "nvfp4", mlp="nvfp4", experts="nvfp4", kv=kv)
    return recast(model, kv=kv) if kv and model.kv != kv else model


@cache
def where(system: str, backend: str, gpus: int, tables: bool = True, experts: str | None = None) -> Machine:
    """The machine of a row, with the newest tables: those of older versions are scarce, and some are of kernels that
    were never tuned. Raises InputError for a system that is not known."""
    if system not in GPUS:
        raise InputError(f"no system '{system}'; known: {', '.join(sorted(GPUS))}")
    node, name = GPUS[system]
    shape = f"{node}x{name}" if gpus <= node else f"{-(-gpus // node)}x{node}x{name}"
    return replace(machine(shape, backend), tables=tables, experts=experts)


def case(row: Row, *, tables: bool = True) -> Case:
    """Raises InputError, with the reason, for a row that cannot be predicted."""
    mode, backend = row["mode"], row["backend"]
    recipe = _recipe(row)
    model = known_model(row["model"], row["arch"], row["precision"], row["gemm_quant"], row["moe_quant"], recipe.kv,
                        row["system"] in BLACKWELL)
    plan: Serving | Disaggregated
    if mode == "agg":
        plan = _plan(row, "", recipe, model)
        users = number(row, "concurrency", number(row, "batch_per_rank") * plan.dp)
    else:
        prefill, decode = _plan(row, "prefill_", recipe, model), _plan(row, "decode_", recipe, model)
        plan = Disaggregated(replace(prefill, drafts=0), decode, number(row, "prefill_num_workers"),
                             number(row, "decode_num_workers"))
        users = number(row, "concurrency", number(row, "decode_batch_size") * decode.dp * plan.decode_workers)
    traffic = Traffic(number(row, "isl"), number(row, "osl"), concurrency=users, shortest=recipe.shortest,
                      requests=recipe.requests_per_user * users, burst=recipe.burst)
    kernels = recipe.experts
    if isinstance(plan, Disaggregated) and backend == "sglang" and plan.decode.dp > 1 and row["precision"] == "fp8":
        kernels = "deepgemm"             # what DeepEP feeds (SGLang, moe_runner_backend deep_gemm)
    here = where(row["system"], backend, plan.gpus, tables, kernels)
    return Case(row["id"], row["system"], backend, row["backend_version"], family(row["model"]), model, plan, traffic,
                here, recipe)


def kind_of(recipe: Recipe) -> str:
    """Of its protocol: "other" and "odd" where nobody has stated it, "cold" where kernels are compiled inside the
    run."""
    return {"gap": "other", "fixed": "other", "thousands": "odd",
            "InferenceX, before warm-ups": "cold"}.get(recipe.protocol, "")


def _recipe(row: Row) -> Recipe:
    """What is public about the run. Raises InputError for rows whose workers are not counted."""
    mode = row["mode"]
    if mode != "agg" and not (row["prefill_num_workers"] and row["decode_num_workers"]):
        raise InputError("disaggregated without worker counts")
    sides = [Workers(number(row, f"{side}_num_workers"), number(row, f"{side}_tp_size"),
                     number(row, f"{side}_attention_dp_size"), number(row, f"{side}_moe_ep_size"))
             for side in ("prefill", "decode")] if mode != "agg" else [None, None]
    return facts(
        system=row["system"], backend=row["backend"], version=row["backend_version"], model=row["model"],
        precision=row["precision"], mode=mode, isl=number(row, "isl"), osl=number(row, "osl"),
        concurrency=number(row, "concurrency", number(row, "batch_per_rank")),
        tp=number(row, "tp") if mode == "agg" else None,
        attention_dp=number(row, "attention_dp") if mode == "agg" else None,
        ep=number(row, "moe_ep") if mode == "agg" else None, prefill=sides[0], decode=sides[1],
    )


def _plan(row: Row, prefix: str, recipe: Recipe, model: Model) -> Serving:
    suffix = "_size" if prefix else ""
    tp, dp = number(row, f"{prefix}tp{suffix}"), number(row, f"{prefix}attention_dp{suffix}")
    ep = recipe.ep or number(row, f"{prefix}moe_ep{suffix}")
    if recipe.attention_dp and not prefix:
        tp, dp = max(1, tp * dp // recipe.attention_dp), recipe.attention_dp
    if prefix and row["backend"] == "sglang" and dp > 1:
        ep = tp * dp                     # every public setup with attention replicas runs DeepEP: NVIDIA/srt-slurm
    version = row["backend_version"]
    drafts, acceptance = recipe.drafts, recipe.acceptance or 0.0
    if recipe.drafts_or:                 # either is as likely: the faster one has the smaller expected relative error
        drafts, acceptance = recipe.drafts_or, acceptances()[recipe.drafts_or]
    return Serving(
        engine=row["backend"], version=version if version[:1].isdigit() else None, tp=tp, dp=dp,
        ep=ep if tp * dp % ep == 0 else 1, pp=number(row, f"{prefix}pp{suffix}"), token_budget=recipe.token_budget,
        max_sequences=recipe.max_sequences, memory_fraction=recipe.memory_fraction, poll_steps=recipe.poll_steps,
        wait_steps=recipe.wait_steps, wait_fill=recipe.wait_fill, balance_steps=recipe.balance_steps,
        drafts=drafts if model.drafts else 0, acceptance=acceptance,
    )


@dataclass(frozen=True)
class Simulated:
    """Means of a run of one instance, in seconds, before any constant that was fitted end to end."""

    ttft: float
    tpot: float
    accepted: float                      # tokens of a sequence and decode step
    calls: int                           # kernels of a prompt


def simulated(one: Case) -> Simulated:
    """Runs a case. Raises InputError where its ranks do not divide the model."""
    run = simulation(one.model, one.plan, one.traffic, one.where)
    first, last = (one.plan.prefill, one.plan.decode) if isinstance(one.plan, Disaggregated) else (one.plan, one.plan)
    return Simulated(sum(run.ttft) / len(run.ttft), sum(run.tpot) / max(1, len(run.tpot)), accepted_tokens(last),
                     pace(one.model, first, one.where, engine(first.engine).host).calls)


def all_simulated(
    rows: Iterable[Row], *, tables: bool = True, watch: Callable[[int], None] | None = None,
) -> tuple[list[tuple[Row, Case, Simulated]], Counter[str]]:
    """Every row that can be predicted, and why others cannot. Equal configurations are run once."""
    known: dict[tuple[object, ...], Simulated] = {}
    out, refused = [], Counter[str]()
    for index, row in enumerate(rows):
        try:
            one = case(row, tables=tables)
            key = (id(one.model), one.plan, one.traffic, id(one.where))
            if key not in known:
                known[key] = simulated(one)
        except InputError as error:
            refused[str(error)] += 1
            continue
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            refused[f"our own fault: {type(error).__name__}: {error}"] += 1      # of one row: others go on
            continue
        out.append((row, one, known[key]))
        if watch:
            watch(index)
    return out, refused
