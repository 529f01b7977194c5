"""This file knows about flags of engines by version: catalog/engines/*.toml as one table each.

    >>> table("vllm").named("-tp").sets, table("sglang").flag("moe_a2a", (0, 4, 9)) is None
    ('tp', True)
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from sublight.errors import InputError

ENGINES = ("vllm", "sglang", "trtllm", "megatron", "torchtitan")
TYPES = ("int", "float", "size", "bool", "str", "json", "key", "variable")
NEWEST = (10**6,)                        # the version of a command that says none
ENDLESS = (10**9,)
Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag (or, without dashes: a key of an options file, or a variable of the environment) over some versions.

    type     int, float, size (1k = 1000, 1K = 1024), bool, str, json (an object, of which `keys` are read)
    sets     the setting that it gives; None: known, and without a place in a plan
    values   words of the engine -> our words; where several mean the same, the first is written
    template what an object says besides its keys when we write one
    on       what a bool sets: its presence means this
    place    "flag", "key" (of the options file), "variable" (of the environment)
    write    False: read only (an alias that an older spelling or another flag says better)
    """

    name: str
    type: str
    sets: str | None
    aliases: tuple[str, ...] = ()
    since: Version = ()
    until: Version = ENDLESS
    values: tuple[tuple[Any, Any], ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    template: tuple[tuple[str, Any], ...] = ()
    on: Any = True
    negative: str | None = None
    place: str = "flag"
    write: bool = True
    default: Any = None
    concept: str | None = None
    source: str = ""

    def within(self, version: Version) -> bool:
        return self.since <= version < self.until


@dataclass(frozen=True)
class Table:
    """What an engine's launch command may say."""

    engine: str
    title: str
    rows: tuple[Flag, ...]
    silent: tuple[tuple[str, Version, Version, Any], ...]     # setting, since, until, what silence means
    own: tuple[Mapping[str, Any], ...]                        # the engine's own defaults, first match wins
    facts: Mapping[str, Any]

    @property
    def by_name(self) -> Mapping[str, tuple[Flag, ...]]:
        return _by_name(self.engine)

    def all_named(self, name: str) -> tuple[Flag, ...]:
        return self.by_name.get(plain(name), ())

    def named(self, name: str, version: Version = NEWEST) -> Flag | None:
        """The flag of a name: of this version, else of the nearest that has it."""
        rows = self.all_named(name)
        return next((row for row in rows if row.within(version)), rows[-1] if rows else None)

    def flag(self, setting: str, version: Version) -> Flag | None:
        """The flag that this version would be given for a setting."""
        return next((row for row in self.rows if row.sets == setting and row.write and row.within(version)), None)

    def said(self, setting: str) -> tuple[Flag, ...]:
        """All flags that give a setting, of any version."""
        return tuple(row for row in self.rows if row.sets == setting)

    def when_silent(self, setting: str, version: Version) -> Any:
        """What it means that a command says nothing of a setting."""
        return next((value for name, since, until, value in self.silent
                     if name == setting and since <= version < until), None)

    def nearest(self, name: str) -> str | None:
        """A known flag that is spelled much like this one."""
        near = difflib.get_close_matches(plain(name), [n for n in self.by_name if n.startswith("-")], 1, 0.85)
        return near[0] if near else None


def plain(name: str) -> str:
    """A flag's name as the table has it: engines take - and _ alike."""
    return name.replace("_", "-")


def numbers(version: str | None) -> Version:
    """A version's numbers; without one, the newest that we know. A release candidate counts as its release.

    >>> numbers("v0.11.0rc2"), numbers("0.5.9.post1"), numbers("core_v0.15.0")
    ((0, 11, 0), (0, 5, 9), (0, 15, 0))
    """
    if version is None:
        return NEWEST
    match = re.search(r"\d+(?:\.\d+)*", version)
    if match is None:
        if version in ("latest", "nightly", "main", "dev"):
            return NEWEST
        raise InputError(f"a version like '0.11.0' expected, got {version!r}")
    return tuple(int(part) for part in match[0].split("."))[:3]


@cache
def table(engine: str) -> Table:
    """The table of an engine. Raises InputError for an unknown engine."""
    if engine not in ENGINES:
        near = difflib.get_close_matches(engine, ENGINES, 1, 0.5)
        hint = f"; is {near[0]!r} meant?" if near else ""
        raise InputError(f"an engine of {', '.join(ENGINES)} expected, got {engine!r}{hint}")
    text = resources.files("sublight.catalog").joinpath(f"engines/{engine}.toml").read_text("utf-8")
    raw = tomllib.loads(text)
    rows = tuple(_flag(row) for row in raw["flag"])
    silent = tuple((row["setting"], _version(row.get("since")), _version(row.get("until"), ENDLESS), row["value"])
                   for row in raw.get("silent", []))
    return Table(engine, raw["title"], rows, silent, tuple(raw.get("own", [])), raw)


def _version(text: str | None, absent: Version = ()) -> Version:
    return absent if text is None else tuple(int(part) for part in text.split("."))


def _flag(row: Mapping[str, Any]) -> Flag:
    assert row["type"] in TYPES, row
    place = "flag" if row["name"].startswith("-") else "variable" if row["name"].isupper() else "key"
    values = tuple((pair[0], pair[1]) for pair in row.get("values", []))
    return Flag(
        name=row["name"], type=row["type"], sets=row.get("sets"), aliases=tuple(row.get("aliases", [])),
        since=_version(row.get("since")), until=_version(row.get("until"), ENDLESS), values=values,
        keys=tuple(row.get("keys", {}).items()), template=tuple(row.get("template", {}).items()),
        on=row.get("on", True), negative=row.get("negative"), place=place, write=row.get("write", True),
        default=row.get("default"), concept=row.get("concept"), source=row.get("source", ""),
    )


@cache
def _by_name(engine: str) -> Mapping[str, tuple[Flag, ...]]:
    out: dict[str, list[Flag]] = {}
    for row in table(engine).rows:
        for name in _names(row):
            out.setdefault(plain(name), []).append(row)
    return {name: tuple(rows) for name, rows in out.items()}


def _names(row: Flag) -> Iterator[str]:
    yield row.name
    yield from row.aliases
    if row.negative is not None:
        yield row.negative
