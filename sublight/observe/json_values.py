"""This file knows about values of a JSON document that may be missing, of another kind, not finite, or cut off."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, final

PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:+=,\[\]()<>/%-]{0,160}")
MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")


@final
class Values:
    """Reads what it is asked for, and counts what is no finite number, by key."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.unusable: Counter[str] = Counter()

    def number(self, key: str) -> float | None:
        """A finite number; None where it is absent, null or something else."""
        if key not in self.raw or self.raw[key] is None:
            return None
        value = finite(self.raw[key])
        if value is None:
            self.unusable[key] += 1
        return value

    def whole(self, key: str) -> int | None:
        value = self.number(key)
        return None if value is None else round(value)

    def numbers(self, key: str) -> list[float | None]:
        """A list with None where an element is no finite number; empty where there is no list."""
        held = self.raw.get(key)
        if not isinstance(held, list):
            return []
        made = [finite(value) for value in held]
        self.unusable[key] += sum(value is None for value in made)
        return made

    def part(self, key: str) -> Values:
        """An object inside, which counts for itself; an empty one where there is none."""
        held = self.raw.get(key)
        return Values(held if isinstance(held, dict) else {})

    def word(self, key: str) -> str | None:
        """A short plain text: what is shown of a file. None for anything else."""
        return plain(self.raw.get(key))

    def moment(self, key: str) -> float | None:
        """A time of day as seconds, by which runs can be put in order: ISO 8601, or vLLM's 20260131-235959. Without a
        time zone it counts as UTC. None for anything else."""
        held = self.raw.get(key)
        if not isinstance(held, str):
            return None
        try:
            made = datetime.strptime(held, "%Y%m%d-%H%M%S") if re.fullmatch(r"\d{8}-\d{6}", held) else \
                datetime.fromisoformat(held)
            return (made if made.tzinfo else made.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None

    def notes(self) -> list[str]:
        """What was left out, in words; keys are of our own lists."""
        return [f"{key}: {count} value{'s' if count > 1 else ''}, no finite number, left out"
                for key, count in sorted(self.unusable.items()) if count]


def finite(value: Any) -> float | None:
    """A number that is one: no bool, no NaN, no infinity. Digits in a text count.

    >>> finite(3), finite("2.5"), finite(float("nan")), finite("inf"), finite(True)
    (3.0, 2.5, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        made = float(value)
    except (ValueError, OverflowError):
        return None
    return made if math.isfinite(made) else None


def plain(value: Any) -> str | None:
    """A text that may be shown: short, of harmless letters, no path of a machine."""
    if not isinstance(value, str) or PLAIN.fullmatch(value) is None or value.startswith("/"):
        return None
    return value


def model_name(value: Any) -> str | None:
    """A model as it may be shown: a name of the hub, or the last part of a path.

    >>> model_name("Qwen/Qwen3-8B"), model_name("/home/me/models/Qwen3-8B/"), model_name("a b")
    ('Qwen/Qwen3-8B', 'Qwen3-8B', None)
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        return None
    value = value.strip().rstrip("/")
    if value.startswith(("/", ".", "~")) or value.count("/") > 1 or "\\" in value:
        value = re.split(r"[/\\]", value)[-1]
    return value if MODEL.fullmatch(value) else None


def documents(text: str) -> tuple[list[Any], int, bool]:
    """The JSON documents of a text: one, one a line, or a list of them; how many lines are none; whether the last one
    was cut off, and its whole members were kept."""
    try:
        whole = json.loads(text)
        return (whole if isinstance(whole, list) else [whole]), 0, False
    except (ValueError, RecursionError):
        pass
    lines = [line for line in text.splitlines() if line.strip()]
    made, bad = [], []
    for line in lines:
        try:
            made.append(json.loads(line))
        except (ValueError, RecursionError):
            bad.append(line)
    if any(isinstance(value, dict) for value in made):
        cut = bool(bad) and bad[-1] == lines[-1]
        return [value for value in made if isinstance(value, dict)], len(bad) - cut, cut
    kept = _whole_members(text)
    return ([kept] if kept else []), 0, bool(kept)


def _whole_members(text: str) -> dict[str, Any]:
    """Members of an object that was cut off, up to the last one that is whole: a comma follows it."""
    decoder, kept = json.JSONDecoder(), dict[str, Any]()
    at = text.find("{") + 1
    space = re.compile(r"\s*")
    while 0 < at < len(text):
        try:
            key, at = decoder.raw_decode(text, _end(space, text, at))
            at = _end(space, text, at)
            if not isinstance(key, str) or text[at:at + 1] != ":":
                break
            value, at = decoder.raw_decode(text, _end(space, text, at + 1))
        except (ValueError, RecursionError):
            break
        at = _end(space, text, at)
        if text[at:at + 1] not in (",", "}"):
            break
        kept[key] = value
        at += 1
    return kept


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()
