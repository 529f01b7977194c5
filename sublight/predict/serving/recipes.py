"""This file knows about the public recipes of published serving benchmarks: what a row's labels say about how it ran.

    >>> row = facts(system="b200_sxm", backend="sglang", version="0.5.9", model="deepseek-ai/DeepSeek-R1",
    ...             precision="fp4", mode="agg", isl=8192, osl=1024, concurrency=64, tp=4)
    >>> row.poll_steps, row.max_sequences, row.token_budget, row.drafts
    (30, 256, 16384, 0)

The facts are in catalog/serving/recipes.toml and disaggregated.toml, each with its source; docs/serving-protocols.md
says how they were read. None was chosen by a measured time.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

from sublight.errors import InputError

__all__ = ["Recipe", "Workers", "acceptances", "facts"]

BACKENDS = ("trtllm", "vllm", "sglang")
MODES = ("agg", "disagg")


@dataclass(frozen=True, slots=True)
class Workers:
    """Equal workers of one role: how many, and the tp, attention replicas and ep of each."""

    count: int
    tp: int
    attention_dp: int = 1
    ep: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.attention_dp


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a published row was served and measured, as far as its recipe is public. None: not known, or not set.

    drafts              tokens guessed a step (0: no speculative decoding)
    drafts_or           drafts of another recipe that the same labels fit; the row may be of either
    acceptance          share of the guessed tokens that are accepted, where there are drafts
    poll_steps          decode steps between two looks at the queue
    wait_steps          prompts wait up to so many steps until wait_fill of the token budget has come (TensorRT-LLM)
    balance_steps       prompts wait up to so many steps until each attention replica has one (TensorRT-LLM)
    max_sequences       of one attention replica's step; None: so many that memory decides
    token_budget        tokens of one step (SGLang: of one prefill chunk)
    graph_batch         largest batch with a CUDA graph
    experts             kernels of the experts ("trtllm-gen", "cutlass", "deepgemm"), where the recipe names them
    memory_fraction     of the device; for TensorRT-LLM of what the weights leave free
    kv                  format of the cache; bf16 where the recipe says auto, unless the checkpoint names another
    shortest            lengths are drawn evenly from shortest to 1 times the nominal
    ep, attention_dp    where the labels leave the true layout out; None: as labelled
    """

    drafts: int = 0
    drafts_or: int | None = None
    acceptance: float | None = None
    poll_steps: int = 1
    wait_steps: int = 0
    wait_fill: float = 0.0
    balance_steps: int = 0
    max_sequences: int | None = None
    token_budget: int | None = None
    graph_batch: int | None = None
    memory_fraction: float | None = None
    kv: str | None = None
    experts: str | None = None
    prefix_cache: bool = False
    shortest: float = 0.8
    requests_per_user: int = 10
    warmups_per_user: int = 2
    burst: bool = True
    chat_template: bool = False
    ep: int | None = None
    attention_dp: int | None = None
    protocol: str = ""
    notes: tuple[str, ...] = ()
    source: tuple[str, ...] = ()


def facts(*, system: str, backend: str, version: str | None, model: str, precision: str | None, mode: str, isl: int,
          osl: int, concurrency: int, tp: int | None = None, attention_dp: int | None = None, ep: int | None = None,
          prefill: Workers | None = None, decode: Workers | None = None) -> Recipe:
    """What is public about the run behind a row with these labels. Without a layout, rules that need one do not hold.

    `tp`, `attention_dp`, `ep`: of an aggregated row; `prefill`, `decode`: of a disaggregated one.
    Raises InputError for a backend or mode that no row has.
    """
    if backend not in BACKENDS or mode not in MODES:
        raise InputError(f"backend expected one of {', '.join(BACKENDS)} and mode agg or disagg, "
                         f"got {backend!r} and {mode!r}")
    row: dict[str, Any] = {
        "system": system, "backend": backend, "version": version or "", "model": model, "precision": precision or "",
        "mode": mode, "shape": f"{isl}/{osl}", "users": concurrency, "ep": ep,
        "gpus": None if tp is None else tp * (attention_dp or 1), "dp": (attention_dp or 1) > 1,
    }
    return _recipe(row, isl, (prefill, decode) if prefill and decode else None)


def _recipe(row: dict[str, Any], isl: int, workers: tuple[Workers, Workers] | None) -> Recipe:
    layout = _first("layout", row)
    known: dict[str, Any] = {name: row["gpus"] for name in ("ep", "attention_dp") if layout.get(name) == "gpus"}
    row = row | {"ep": known.get("ep", row["ep"]), "dp": row["dp"] or "attention_dp" in known}
    drafts, other, notes, source = _drafts(row, workers)
    row["speculative"] = drafts > 0
    protocol, engine = _first("protocol", row), _first("engine", row)
    amounts = {"isl": isl, "users": row["users"], "drafts": drafts}
    for name in ("max_sequences", "token_budget", "graph_batch"):
        if name in engine:
            known[name] = amounts[name] = _amount(engine[name], amounts)
    plain = {name: value for name, value in (protocol | engine).items()
             if name in Recipe.__dataclass_fields__ and name not in known and name not in ("source", "notes")}
    if not row["dp"]:
        plain.pop("balance_steps", None)
    kernels = _first("experts", row)
    sources = (protocol.get("source"), source, layout.get("source"), engine.get("source"), kernels.get("source"))
    acceptance = _table()["acceptance"].get(str(drafts)) if drafts else None
    return Recipe(experts=kernels.get("kernels"),
                  drafts=drafts, drafts_or=other, acceptance=acceptance, protocol=protocol.get("name", ""),
                  notes=(*notes, *engine.get("notes", ())), source=tuple(text for text in sources if text),
                  **plain, **known)


def _drafts(row: Mapping[str, Any], workers: tuple[Workers, Workers] | None
            ) -> tuple[int, int | None, tuple[str, ...], str]:
    """Drafts, those of another recipe with these labels, notes, source."""
    found = _recipes_with_the_cell(row, workers)
    counts = sorted({drafts for drafts, _, _ in found})
    rule = _first("drafts", row)
    if not found or (len(counts) > 1 and rule.get("settles")):
        return rule.get("drafts", 0), None, tuple(rule.get("notes", ())), rule.get("source", "")
    source = "; ".join(f"{key}: {where}" for _, key, where in found)
    if len(counts) == 1:
        return counts[0], None, (), source
    note = f"these labels fit recipes with {' and '.join(map(str, counts))} drafts; taken as {counts[0]}"
    return counts[0], counts[-1], (note,), source


def _recipes_with_the_cell(row: Mapping[str, Any], workers: tuple[Workers, Workers] | None
                           ) -> list[tuple[int, str, str]]:
    found = []
    for recipe in _recipes():
        if not _holds(recipe["when"], row):
            continue
        for cell in recipe["cells"].get(row["shape"], ()):
            drafts = _drafts_of_cell(cell, recipe, row, workers)
            if drafts is not None and (drafts, recipe["key"], recipe["source"]) not in found:
                found.append((drafts, recipe["key"], recipe["source"]))
    return found


def _drafts_of_cell(cell: str, recipe: Mapping[str, Any], row: Mapping[str, Any],
                    workers: tuple[Workers, Workers] | None) -> int | None:
    """Drafts of a cell that holds the row: "4:4:dp 64-256" (gpus:ep), or of two roles "1:4:dp 4:8 12,24 mtp3"."""
    parts = cell.split()
    if len(parts) == 2:
        if parts[0] != f"{row['gpus']}:{row['ep'] or 1}" + (":dp" if row["dp"] else ""):
            return None
        first, _, last = parts[1].partition("-")
        inside = int(first) <= row["users"] <= int(last or first)
        return (recipe.get("drafts_dp", recipe["drafts"]) if row["dp"] else recipe["drafts"]) if inside else None
    if workers is None or parts[0] != _written(workers[0]) or parts[1] != _written(workers[1]):
        return None
    return int(parts[3][3:]) if str(row["users"]) in parts[2].split(",") else None


def _written(role: Workers) -> str:
    return f"{role.count}:{role.gpus}" + (":dp" if role.attention_dp > 1 else "")


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(resources.files("sublight").joinpath("catalog/serving/recipes.toml").read_text("utf-8"))


def acceptances() -> dict[int, float]:
    """Share of the guessed tokens that are accepted, by how many are guessed a step."""
    return {int(drafts): value for drafts, value in _table()["acceptance"].items() if drafts.isdigit()}


@cache
def _recipes() -> tuple[dict[str, Any], ...]:
    path = resources.files("sublight").joinpath("catalog/serving/disaggregated.toml")
    more = tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
    return (*_table()["recipe"], *more.get("recipe", ()))


def _first(kind: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """The first rule of a table that holds for the row; empty where none does."""
    return next((rule for rule in _table()[kind] if _holds(rule["when"], row)), {})


def _holds(when: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    return all(_fits(wanted, row[name]) for name, wanted in when.items())


def _fits(wanted: Any, got: Any) -> bool:
    if got is None:
        return False
    if isinstance(wanted, Mapping):
        return bool(wanted.get("from", -math.inf) <= got <= wanted.get("to", math.inf))
    if isinstance(wanted, str):
        return fnmatchcase(str(got).lower(), wanted.lower())
    if isinstance(wanted, Iterable):
        return any(_fits(one, got) for one in wanted)
    return bool(wanted == got)


def _amount(rule: int | Mapping[str, float], known: Mapping[str, int]) -> int:
    """A number, or a sum over the row's amounts: {isl = 1, verify = 1, plus = 64, multiple = 64}."""
    if isinstance(rule, int):
        return rule
    sequences = known.get("max_sequences", known["users"])
    amounts = {"isl": known["isl"], "users": known["users"], "sequences": sequences,
               "verify": (known["drafts"] + 1) * sequences, "plus": 1}
    total = sum(rule[name] * amount for name, amount in amounts.items() if name in rule)
    multiple = rule.get("multiple", 1)
    return max(int(rule.get("least", 1)), int(-(-total // multiple) * multiple))
