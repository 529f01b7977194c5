"""This file knows about the table of docs/engines.md: which flag says a concept, made from catalog/engines.

    python docs/engines_table.py > table.md
"""

from __future__ import annotations

from collections.abc import Iterator

from sublight.engines.flags import ENDLESS, ENGINES, Flag, Version, table

DASH = "–"


def lines() -> Iterator[str]:
    """The table, a line each."""
    known = [table(name) for name in ENGINES]
    concepts = dict.fromkeys(row.concept for one in known for row in one.rows if row.concept)
    yield "| concept | " + " | ".join(one.title for one in known) + " |"
    yield "|---" * (len(known) + 1) + "|"
    for concept in concepts:
        cells = [", ".join(dict.fromkeys(_said(row) for row in one.rows if row.concept == concept)) or DASH
                 for one in known]
        yield f"| {concept} | " + " | ".join(cells) + " |"


def _said(row: Flag) -> str:
    names = [row.name, *(alias for alias in row.aliases if not alias.startswith("--"))]
    said = " ".join(f"`{name}`" for name in names)
    return said + _range(row.since, row.until)


def _range(since: Version, until: Version) -> str:
    first, last = ".".join(map(str, since)), ".".join(map(str, until))
    if since and until < ENDLESS:
        return f" ({first} to before {last})"
    return f" (from {first})" if since else f" (before {last})" if until < ENDLESS else ""


if __name__ == "__main__":
    print("\n".join(lines()))
