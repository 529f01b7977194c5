"""Rows of measured serving points as what predict takes: a model in their number formats, a plan, traffic, a machine.

Only what a row says of its inputs is read: never a measured value, never a column of a peer.
"""

from __future__ import annotations

import csv
import gzip
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from sublight.errors import InputError
from sublight.models import Model, catalog, named, recast
from sublight.plan import Disaggregated, Serving, Traffic
from sublight.predict.machine import Machine, machine
from sublight.predict.serving.family import family

Row = Mapping[str, str]
GPUS = {"a100_sxm": (8, "A100"), "h100_sxm": (8, "H100"), "h200_sxm": (8, "H200"), "b200_sxm": (8, "B200"),
        "b300_sxm": (8, "B300"), "gb200": (72, "GB200"), "gb300": (72, "GB300"), "l40s": (8, "L40S"),
        "gb200_sxm": (72, "GB200"), "gb300_sxm": (72, "GB300"), "h20_sxm": (8, "H20")}
BLACKWELL = ("b200_sxm", "b300_sxm", "gb200", "gb300", "gb200_sxm", "gb300_sxm")
INPUTS = ("id", "system", "backend", "backend_version", "model", "arch", "precision", "mode", "isl", "osl",
          "concurrency", "gemm_quant", "moe_quant", "batch_per_rank", "tp", "pp", "attention_dp", "moe_tp", "moe_ep")


@dataclass(frozen=True)
class Case:
    """What predict takes. protocol: of catalog/serving/protocols.toml."""

    id: str
    system: str
    backend: str
    family: str
    model: Model
    plan: Serving | Disaggregated
    traffic: Traffic
    where: Machine
    protocol: str
    version: str


def read(path: Path) -> list[dict[str, str]]:
    """The rows of serving.csv.gz."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def number(row: Row, name: str, otherwise: int = 1) -> int:
    value = row.get(name) or ""
    return max(1, round(float(value))) if value else otherwise


@cache
def known_model(name: str, arch: str, precision: str, gemm: str, moe: str, blackwell: bool) -> Model:
    """The catalog's model with the formats that the row names. Raises InputError where it is not known."""
    names = {key.lower(): key for key in catalog()}
    fp4 = precision == "fp4" and "gpt-oss" not in name
    tried = _candidates(name, fp4) + _candidates(arch, fp4)
    found = next((names[text.lower()] for text in tried if text.lower() in names), None)
    if found is None:
        raise InputError(f"no model '{name}' ({arch}) in the catalog")
    return _in_formats(named(found), precision, gemm, moe, blackwell)


def _candidates(name: str, fp4: bool) -> list[str]:
    short = name.split("/")[-1]
    bare = short.removesuffix("-FP8").removesuffix("-NVFP4").removesuffix("-FP4")
    plain = [name, name.replace("zhipuai/", "zai-org/"), f"nvidia/{short}"]
    variants = [f"nvidia/{bare}-NVFP4", f"nvidia/{bare}-FP4"]
    other = [f"{key}/{bare}" for key in ("deepseek-ai", "Qwen", "meta-llama", "moonshotai", "zai-org", "MiniMaxAI")]
    return [*variants, *plain, *other] if fp4 else [*plain, *other, *variants]


def _in_formats(model: Model, precision: str, gemm: str, moe: str, blackwell: bool) -> Model:
    """fp8 checkpoints of the model's own are kept; fp4 ones of mixtures leave attention in 16 bits."""
    if "gpt-oss" in model.name.lower():
        return recast(model, experts="mxfp4_fp8", kv="fp8") if blackwell else model
    kv = "fp8" if precision in ("fp8", "fp4") else None
    forms = set(model.bytes_by_format())
    if precision == "fp8" and not any(form.startswith("fp8") for form in forms):
        form = gemm if gemm in ("fp8", "fp8_block") else "fp8_block" if moe else "fp8"
        return recast(model, attention=form, mlp=form, experts=form, kv=kv)
    if precision == "fp4" and "nvfp4" not in forms:
        mixture = any("experts" in weight.part for weight, _ in model.weights())
        return recast(model, attention="bf16" if mixture else "nvfp4", mlp="nvfp4", experts="nvfp4", kv=kv)
    return recast(model, kv=kv) if kv and model.kv != kv else model


@cache
def where(system: str, backend: str, version: str, gpus: int) -> Machine:
    """The machine of a row. Raises InputError for a system that is not known."""
    if system not in GPUS:
        raise InputError(f"no system '{system}'; known: {', '.join(sorted(GPUS))}")
    node, name = GPUS[system]
    shape = f"{node}x{name}" if gpus <= node else f"{-(-gpus // node)}x{node}x{name}"
    return machine(shape, backend, version=version or None)


@cache
def protocols() -> Mapping[str, Any]:
    text = resources.files("sublight.catalog").joinpath("serving/protocols.toml").read_text("utf-8")
    return tomllib.loads(text)


def protocol(isl: int, osl: int, backend: str) -> str:
    """Which benchmark asks in this shape."""
    if [isl, osl] in protocols()["inferencex"]["shapes"]:
        return "inferencex"
    return f"other-{backend}" if f"other-{backend}" in protocols() else "other"


def case(row: Row, *, tables: bool = True) -> Case:
    """Raises InputError, with the reason, for a row that cannot be predicted."""
    from dataclasses import replace

    mode, backend = row["mode"], row["backend"]
    model = known_model(row["model"], row["arch"], row["precision"], row["gemm_quant"], row["moe_quant"],
                        row["system"] in BLACKWELL)
    plan: Serving | Disaggregated
    if mode == "agg":
        plan = _plan(row, "", backend)
        users = number(row, "concurrency", number(row, "batch_per_rank") * plan.dp)
    elif row["prefill_num_workers"] and row["decode_num_workers"]:
        prefill, decode = _plan(row, "prefill_", backend), _plan(row, "decode_", backend)
        plan = Disaggregated(prefill, decode, number(row, "prefill_num_workers"), number(row, "decode_num_workers"))
        users = number(row, "concurrency", number(row, "decode_batch_size") * decode.dp * plan.decode_workers)
    else:
        raise InputError("disaggregated without worker counts")
    isl, osl = number(row, "isl"), number(row, "osl")
    kind = protocol(isl, osl, backend)
    how = protocols()[kind]
    traffic = Traffic(isl, osl, concurrency=users, requests=how["requests_per_user"] * users, shortest=how["shortest"],
                      burst=how["burst"])
    here = where(row["system"], backend, row["backend_version"], plan.gpus)
    here = here if tables else replace(here, tables=False)
    return Case(row["id"], row["system"], backend, family(row["model"]), model, plan, traffic, here, kind,
                row["backend_version"])


def _plan(row: Row, prefix: str, backend: str) -> Serving:
    suffix = "_size" if prefix else ""
    tp, dp = number(row, f"{prefix}tp{suffix}"), number(row, f"{prefix}attention_dp{suffix}")
    ep = number(row, f"{prefix}moe_ep{suffix}")
    return Serving(engine=backend, version=row["backend_version"] or None, tp=tp, pp=number(row, f"{prefix}pp{suffix}"),
                   dp=dp, ep=ep if tp * dp % ep == 0 else 1)
