"""The tables of planted bugs in the docs say what running them says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

import wrong_attention
import wrong_rows
from planted import field_rule

WRONG = (*wrong_attention.WRONG, *wrong_rows.WRONG)
PAGE = Path(__file__).parent.parent / "docs" / "kernel-contracts-attention.md"
ROW = re.compile(r"^\| (?P<name>[^|]+?) \| (?P<field>passes|fails|-) \|$")


def said() -> dict[tuple[str, str], str]:
    """(operator, bug) -> what the field's rule does."""
    found, op = {}, ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            op = line.split("`")[1] if "`" in line else ""
        elif op and (row := ROW.match(line)):
            found[op, row["name"]] = row["field"]
    return found


def test_every_planted_bug_is_on_the_page_and_one_of_each_operator_passes_the_fields_rule() -> None:
    page = said()
    assert set(page) == {(wrong.op, wrong.name) for wrong in WRONG}
    assert {op for (op, _), field in page.items() if field == "passes"} == {wrong.op for wrong in WRONG}


@pytest.mark.heavy
@pytest.mark.parametrize("op", sorted({wrong.op for wrong in WRONG}))
def test_the_tables_are_what_running_the_bugs_says(op: str) -> None:
    page = said()
    assert {wrong.name: field_rule(wrong) for wrong in WRONG if wrong.op == op} == {
        name: field for (of, name), field in page.items() if of == op}
