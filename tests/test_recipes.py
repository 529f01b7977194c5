"""Public recipes of serving benchmarks: what labels say, each rule with its source, cells well formed."""

from __future__ import annotations

import csv
import gzip
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from conftest import shared

from sublight.errors import InputError
from sublight.predict.serving import recipes
from sublight.predict.serving.recipes import Recipe, Workers, facts

TABLE = recipes._table()
RULES = [(kind, rule) for kind in ("protocol", "drafts", "layout", "engine") for rule in TABLE[kind]]
MATCHED = {"system", "backend", "version", "model", "precision", "mode", "shape", "users", "ep", "gpus", "dp",
           "speculative"}
GIVEN = {field.name for field in fields(Recipe)} | {"when", "name", "settles"}
ONE = re.compile(r"\d+:\d+(:dp)? \d+(-\d+)?")
TWO = re.compile(r"\d+:\d+(:dp)? \d+:\d+(:dp)? \d+(,\d+)* mtp\d")


def deepseek(**changes: Any) -> Recipe:
    row: dict[str, Any] = {
        "system": "b200_sxm", "backend": "trtllm", "version": "1.2.0rc6.post3", "model": "deepseek-ai/DeepSeek-R1",
        "precision": "fp4", "mode": "agg", "isl": 8192, "osl": 1024, "concurrency": 16, "tp": 4, "ep": 1}
    return facts(**(row | changes))


def test_an_image_that_ran_with_mtp_only_guesses_three_tokens_or_one_with_attention_replicas() -> None:
    assert deepseek().drafts == 3
    assert deepseek(tp=1, attention_dp=8, ep=8, concurrency=64).drafts == 1
    assert deepseek(version="1.2.0rc6.post2").drafts == 0


def test_a_budget_holds_one_prompt_and_the_tokens_to_verify() -> None:
    # (3 + 1) x 16 users + 8192 + 64, up to a multiple of 64
    assert deepseek().token_budget == 8320
    # without drafts: 8192 + 16 + 64, up to a multiple of 64
    assert deepseek(version="1.2.0rc6.post2").token_budget == 8320
    assert deepseek(version="1.2.0rc6.post2", isl=1024, osl=1024).token_budget == 8192


def test_a_cell_of_one_recipe_decides_and_a_cell_of_two_is_said() -> None:
    old = {"version": "1.1.0rc2.post2", "system": "h200_sxm", "precision": "fp8", "ep": 8}
    only_mtp = deepseek(**old, tp=1, attention_dp=8, concurrency=256)
    assert (only_mtp.drafts, only_mtp.drafts_or) == (1, None)
    both = deepseek(**old, tp=8, concurrency=16)
    assert (both.drafts, both.drafts_or) == (0, 3)
    assert "0 and 3 drafts" in both.notes[0]


def test_sglang_on_b200_looks_at_its_queue_every_ten_or_thirty_steps() -> None:
    sglang = {"backend": "sglang", "version": "0.5.9", "ep": 4}
    assert deepseek(**sglang, concurrency=8).poll_steps == 10
    assert deepseek(**sglang, concurrency=16).poll_steps == 30
    assert deepseek(**sglang, system="h200_sxm", precision="fp8").poll_steps == 1


def test_a_layout_that_the_labels_leave_out() -> None:
    old = deepseek(version="", concurrency=64)
    assert (old.ep, old.attention_dp, old.balance_steps, old.warmups_per_user) == (4, 4, 60, 0)
    assert deepseek(version="", concurrency=8).ep is None


def test_prompts_of_llama_wait_for_company_below_eight_gpus() -> None:
    llama = {"model": "meta-llama/Llama-3.1-70B", "version": "", "isl": 1024}
    assert (deepseek(**llama).wait_steps, deepseek(**llama).wait_fill) == (20, 0.9)
    assert deepseek(**llama, tp=8).wait_steps == deepseek(**llama, osl=8192).wait_steps == 0


def test_an_unknown_row_gets_the_usual_protocol() -> None:
    row = facts(system="mars", backend="vllm", version="9", model="new/Model", precision=None, mode="agg", isl=300,
                osl=30, concurrency=7)
    assert (row.shortest, row.requests_per_user, row.burst, row.drafts, row.protocol) == (0.8, 10, True, 0, "unknown")
    assert row.token_budget == 8192


def test_fixed_lengths_of_rows_that_inferencex_never_ran() -> None:
    assert deepseek(model="Qwen/Qwen3-32B", backend="sglang", version="0.5.1.post1").shortest == 1.0
    assert deepseek(model="Qwen/Qwen3-32B", backend="vllm", version="0.12.0").shortest == 0.8


def test_a_disaggregated_layout_tells_the_drafts() -> None:
    row = {"system": "gb200", "mode": "disagg", "version": "0.8.1.post2", "isl": 1024, "tp": None, "ep": None}
    one, four = Workers(1, 1, 4, 4), Workers(4, 8, 1, 8)
    assert deepseek(**row, concurrency=8, prefill=one, decode=four).drafts == 3
    assert deepseek(**row, concurrency=192, prefill=one, decode=four).drafts == 0
    both = deepseek(**row, concurrency=24, prefill=one, decode=four)
    assert (both.drafts, both.drafts_or) == (0, 3)
    settled = deepseek(**row, model="deepseek-ai/DeepSeek-V3", concurrency=24, prefill=one, decode=four)
    assert (settled.drafts, settled.drafts_or) == (0, None)
    assert "without drafts" in deepseek(**row, concurrency=24).notes[0]


def test_wrong_labels_are_refused() -> None:
    with pytest.raises(InputError, match="backend expected"):
        deepseek(backend="tgi")


@pytest.mark.parametrize(("kind", "rule"), RULES)
def test_each_rule_has_a_source_and_says_nothing_unknown(kind: str, rule: dict[str, Any]) -> None:
    assert rule["source"].startswith(("stated: ", "judgement: ", "fitted "))
    assert set(rule["when"]) <= MATCHED
    assert set(rule) <= GIVEN, kind


@pytest.mark.parametrize("recipe", recipes._recipes(), ids=lambda recipe: str(recipe["key"]))
def test_cells_are_well_formed(recipe: dict[str, Any]) -> None:
    assert recipe["source"]
    assert set(recipe["when"]) <= MATCHED
    form = TWO if recipe["when"]["mode"] == "disagg" else ONE
    assert [cell for cells in recipe["cells"].values() for cell in cells if not form.fullmatch(cell)] == []


def _rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def test_rows_labelled_deepseek_v3_are_of_recipes_without_drafts() -> None:
    """What the rule of that label rests on: each such row lies in a cell of a recipe without drafts where there are
    two, and none is of an image that ran with drafts only."""
    rows = [row for row in _rows(shared("silicon/serving.csv.gz"))
            if row["mode"] == "agg" and row["model"] == "deepseek-ai/DeepSeek-V3"]
    assert len(rows) > 200
    assert not [row["id"] for row in rows if row["backend_version"] == "1.2.0rc6.post3"]
    for row in rows:
        labels = _labels(row) | {"model": "deepseek-ai/DeepSeek-R1"}
        assert facts(**labels).drafts == 0, row["id"]


def _labels(row: dict[str, str]) -> dict[str, Any]:
    def number(name: str) -> int:
        return int(row[name] or 1)

    labels: dict[str, Any] = {
        "system": row["system"], "backend": row["backend"], "version": row["backend_version"], "model": row["model"],
        "precision": row["precision"], "mode": row["mode"], "isl": number("isl"), "osl": number("osl"),
        "concurrency": number("concurrency")}
    if row["mode"] == "agg":
        return labels | {"tp": number("tp"), "attention_dp": number("attention_dp"), "ep": number("moe_ep")}
    if not row["prefill_num_workers"]:
        return labels
    return labels | {role: Workers(number(f"{role}_num_workers"), number(f"{role}_tp_size"),
                                   number(f"{role}_attention_dp_size"), number(f"{role}_moe_ep_size"))
                     for role in ("prefill", "decode")}
