"""The JSON of an explanation keeps to its published schema, and the schema refuses what is not in it."""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import all_kineto, shared
from jsonschema import Draft202012Validator, ValidationError

from sublight.budget import GROUPS, PARTS
from sublight.explain import explain
from sublight.observe.kernel_name import CATEGORIES
from sublight.observe.read import read_all
from sublight.show.json import document

ROOT = Path(__file__).parent.parent
SCHEMA = json.loads((ROOT / "sublight/catalog/explain.schema.json").read_text("utf-8"))
SMALL = [*sorted((ROOT / "sublight/demo").glob("*.json.gz")), *sorted((ROOT / "docs/examples").glob("*.json"))]


@cache
def checker() -> Any:
    Draft202012Validator.check_schema(SCHEMA)
    return Draft202012Validator(SCHEMA)


def explained(*paths: Path, window: str = "default") -> dict[str, Any]:
    """The document as a reader of the text gets it."""
    made: dict[str, Any] = json.loads(json.dumps(document(explain(read_all(paths), window=window)), allow_nan=False))
    return made


def agrees(made: dict[str, Any]) -> None:
    """What the schema says, and the sums that a schema cannot say."""
    checker().validate(made)
    for device in made["devices"]:
        c = device["communication"]
        assert sum(part["ns"] for part in device["parts"]) == device["window_ns"]
        assert sum(end - start for start, end in device["windows"]) == device["window_ns"]
        assert device["busy_ns"] + device["idle_ns"] == device["window_ns"] <= device["span_ns"]
        assert c["hidden_ns"] + c["exposed_ns"] == c["union_ns"] <= device["window_ns"]
        if device["bounds"] is not None:
            parts = {part["name"]: part["ns"] for part in device["parts"] if part["group"] == "compute"}
            assert {p["name"]: p["at_bound_ns"] + p["above_ns"] + p["unknown_ns"]
                    for p in device["bounds"]["parts"]} == parts
            assert all(p["inferred_ns"] <= p["at_bound_ns"] + p["above_ns"] for p in device["bounds"]["parts"])
        if device["replay"] is not None:
            assert sum(device["replay"]["critical_ns"].values()) == device["replay"]["replayed_ns"]
            for answer in device["replay"]["what_ifs"]:
                assert (answer["refused"] is None) == (answer["gain_ns_low"] is not None)
                assert answer["refused"] or answer["gain_ns_low"] <= answer["gain_ns_high"]
    for collective in (made["ranks"] or {"collectives": ()})["collectives"]:
        assert len(collective["waiting_ns"]) == len(collective["ranks"]) > 1
        assert collective["last"] in collective["ranks"]
    quality = made["quality"]
    for key in ("events", "lost", "text_bytes"):
        assert quality[key] == sum(trace[key] for trace in quality["traces"])


@pytest.mark.parametrize("window", ["default", "all"])
@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.name)
def test_small_traces_keep_to_the_schema(path: Path, window: str) -> None:
    agrees(explained(path, window=window))


def test_two_ranks_keep_to_the_schema() -> None:
    made = explained(*SMALL[:2])
    agrees(made)
    assert [device["rank"] for device in made["devices"][:1]] == [0]
    assert len(made["quality"]["traces"]) == 2


@pytest.mark.parametrize(("what", "counted", "refused"), [("late", 2, False), ("clocks", 0, True)])
def test_what_ranks_tell_together_keeps_to_the_schema(what: str, counted: int, refused: bool) -> None:
    made = explained(*(path for path in SMALL if path.name.startswith(f"{what}_rank")))
    agrees(made)
    ranks = made["ranks"]
    assert sum(c["counted"] for c in ranks["collectives"]) == counted
    assert (ranks["refused"] is not None, ranks["stragglers"] == []) == (refused, refused)


def test_the_ranks_of_a_real_run_keep_to_the_schema() -> None:
    made = explained(*sorted(shared("kineto/v100_dlrm_8rank/dlrm_kineto").glob("*.json")))
    agrees(made)
    assert [s["rank"] for s in made["ranks"]["stragglers"]][:1] == ["rank 7"]


@pytest.mark.parametrize("relative", all_kineto())
def test_real_traces_keep_to_the_schema(relative: str) -> None:
    agrees(explained(shared(relative)))


def objects(schema: Any) -> list[dict[str, Any]]:
    """Every part of the schema that describes an object."""
    found = [schema] if isinstance(schema, dict) and schema.get("type") == "object" else []
    below = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else []
    return found + [inner for value in below for inner in objects(value)]


def test_the_schema_is_strict() -> None:
    for described in objects(SCHEMA):
        open_keys = "properties" not in described            # counts by kind: free keys, whole numbers
        assert described["additionalProperties"] is False or open_keys
        if not open_keys:
            assert set(described["required"]) == set(described["properties"])


@pytest.mark.parametrize("damage", [
    lambda d: d.update(host="node17"),
    lambda d: d["devices"][0].update(extra=1),
    lambda d: d["devices"][0].pop("span_ns"),
    lambda d: d["devices"][0].update(window_ns=1.5),
    lambda d: d["devices"][0]["parts"][0].update(name="idle: no such cause"),
    lambda d: d["devices"][0]["parts"][0].update(ns=0),
    lambda d: d["devices"][0]["communication"].update(wait_ns=-1),
    lambda d: d["quality"]["traces"][0].update(environment={}),
])
def test_the_schema_refuses(damage: Any) -> None:
    made = copy.deepcopy(explained(ROOT / "docs/examples/exposed.json"))
    damage(made)
    with pytest.raises(ValidationError):
        checker().validate(made)


def test_the_schema_knows_every_part_and_category() -> None:
    defined = SCHEMA["$defs"]
    assert defined["part"]["properties"]["name"]["enum"] == list(PARTS)
    assert set(defined["part"]["properties"]["group"]["enum"]) == set(GROUPS.values())
    known = set(defined["kernel"]["properties"]["category"]["enum"])
    assert known == set(CATEGORIES) | {"framework", "copy engine"}


def keys(schema: Any) -> set[str]:
    names = set(schema.get("properties", ())) if isinstance(schema, dict) else set()
    below = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else []
    return names.union(*(keys(value) for value in below))


def test_every_key_is_in_the_pages() -> None:
    pages = "".join((ROOT / f"docs/{name}.md").read_text("utf-8") for name in ("json", "quality"))
    told = set(re.findall(r"`([\w. \[\]]+)`", pages))
    listed = {"device activities", "runtime calls", "operators", "annotations", "profiler overhead"}
    missing = {key for key in keys(SCHEMA) - listed if key not in told and f"traces[].{key}" not in told}
    assert missing == set()
    assert all(name in pages for name in listed)
