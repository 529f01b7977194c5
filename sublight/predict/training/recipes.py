"""This file knows about recipes: how a framework's published configuration trains a model on a GPU, beyond its layout.

    >>> found = recipe("DeepSeekV3", "GB200", "MXFP8", "26.04")
    >>> found.recompute, found.dispatcher, found.moments
    (('mlp',), 'hybridep', 'bf16')
    >>> recipe("Falcon 40B", "H100", "BF16", "26.04") is None
    True

Facts and their sources: catalog/training/recipes.toml (Megatron-Bridge's performance recipes, by NeMo container).
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from sublight.plan import Training

# Names of precisions, in recipes and in tables of results. "FP8" alone is current scaling, one scale a tensor.
PRECISIONS = {
    "bf16": "bf16", "fp8": "fp8_cs", "fp8cs": "fp8_cs", "fp8mx": "fp8_mx", "mxfp8": "fp8_mx", "fp8sc": "fp8_sc",
    "fp8block": "fp8_sc", "fp8finegrained": "fp8_mx", "nvfp4": "nvfp4",
}
EIGHT_BITS = ("fp8_cs", "fp8_mx", "fp8_sc")
# Other names of models: of the hub, and of tables
ALIASES = {
    "llama38b": "llama3_8b", "metallama38b": "llama3_8b", "llama370b": "llama3_70b", "metallama370b": "llama3_70b",
    "llama31405b": "llama31_405b", "nemotron3super120ba12b": "nemotron_3_super", "kimik2instruct": "kimi_k2",
    "nemotron3nano30ba3b": "nemotron_3_nano", "nemotronh56bbase8k": "nemotronh_56b",
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a recipe says. container: whose recipe it is, where the one asked for has none of its own."""

    container: str
    source: str
    recompute: tuple[str, ...] = ()      # modules
    whole_layers: int = 0                # layers of a stage that are computed again entirely
    offloaded_layers: int = 0
    offloaded: tuple[str, ...] = ()      # modules
    graphs: tuple[str, ...] = ()         # what CUDA graphs capture
    fsdp: bool = False
    dispatcher: str | None = None        # of tokens to experts
    ep_overlap: bool = False
    fp8_attention: bool = False
    layout: str | None = None            # of the pipeline's chunks
    moments: str = "fp32"
    gradients: str = "bf16"


def recipe(model: str, gpu: str, precision: str, container: str) -> Recipe | None:
    """The recipe of a model on a GPU, in a precision, of a container ("26.04", "NeMo container 26.04.01").

    Where a precision in eight bits has no recipe, another of eight bits is taken. None where there is no such model or
    GPU.
    """
    rows = _rows()
    version = _container(container)
    name, form = _model(model), PRECISIONS.get(_plain(precision))
    table = rows.get(version, {})
    if name not in table or form is None:
        return None
    for wanted in (form, *(EIGHT_BITS if form in EIGHT_BITS else ())):
        for row in table[name]["rows"]:
            if f"{gpu.lower()} {wanted}" in row["on"]:
                return _recipe(version, table["source"], name, row)
    return None


def applied(plan: Training, found: Recipe) -> Training:
    """The plan with what the recipe says of it: recomputation, graphs, FSDP, overlap, formats of the optimizer."""
    recompute = "full" if found.whole_layers else "selective" if found.recompute else plan.recompute
    extra = {**dict(plan.extra), "gradients": found.gradients, "moments": found.moments}
    if found.recompute:
        extra["recompute_modules"] = ",".join(found.recompute)
    if found.offloaded_layers:
        extra["offloaded_layers"] = str(found.offloaded_layers)
    extra.update({name: value for name, value in (("dispatcher", found.dispatcher), ("layout", found.layout)) if value})
    return replace(plan, recompute=recompute, cuda_graphs=bool(found.graphs), zero=3 if found.fsdp else plan.zero,
                   overlap_ep=found.ep_overlap, extra=tuple(sorted(extra.items())))


def _recipe(version: str, source: str, name: str, row: dict[str, Any]) -> Recipe:
    said: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value
                            for key, value in row.items() if key != "on"}
    moments = "bf16" if name in _rows()["moments_bf16"] else "fp32"
    return replace(Recipe(version, source), moments=moments, gradients=_rows()["gradients"], **said)


@cache
def _rows() -> dict[str, Any]:
    return tomllib.loads(resources.files("sublight.catalog").joinpath("training/recipes.toml").read_text("utf-8"))


def _container(text: str) -> str:
    found = re.search(r"\d\d\.\d\d", text)
    version = found.group() if found else text
    return str(_rows()["instead"].get(version, version))


def _plain(text: str) -> str:
    """In small letters and digits, without what stands in brackets."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\(.*\)", "", text.lower()))


@cache
def _model(text: str) -> str:
    """"DeepSeekV3 (w/o MTP)", "deepseek-ai/DeepSeek-V3" -> "deepseek_v3"."""
    plain = _plain(text.rsplit("/", 1)[-1] if "(" not in text else text)
    known = {_plain(name): name for table in _rows().values() if isinstance(table, dict) for name in table}
    return known.get(plain) or ALIASES.get(plain, plain)
