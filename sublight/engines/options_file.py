"""This file knows about options files: the part of YAML that engines' files use, and nested keys as paths.

    >>> flat(parsed("moe_config:\\n  backend: TRTLLM\\ncuda_graph_config: {batch_sizes: [1, 2]}"))
    {'moe_config.backend': 'TRTLLM', 'cuda_graph_config.batch_sizes': [1, 2]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sublight.errors import InputError

WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "null": None, "~": None,
         "": None}
Line = tuple[int, str, int]              # indentation, text, number


def parsed(text: str) -> dict[str, Any]:
    """The mapping of a file. Raises InputError for parts of YAML that options do not need (anchors, block text)."""
    lines = [(len(bare) - len(bare.lstrip()), bare.strip(), number)
             for number, line in enumerate(text.splitlines(), 1)
             if (bare := _uncommented(line).rstrip()).strip() and bare.strip() != "---"]
    value, rest = _block(lines, 0) if lines else ({}, [])
    if rest or not isinstance(value, dict):
        where = rest[0][2] if rest else 1
        raise InputError(f"an options file of 'key: value' lines expected, line {where} is none")
    return value


def _uncommented(line: str) -> str:
    """The line without its comment: # at the start or behind a blank, outside quotes."""
    mark, at = "", 0
    while at < len(line):
        char = line[at]
        if mark:
            at += 1 if mark == '"' and char == "\\" else 0
            mark = "" if char == mark else mark
        elif char in "'\"" and (not line[:at].strip() or line[at - 1] in " :[{,-"):
            mark = char
        elif char == "#" and (at == 0 or line[at - 1] in " \t"):
            return line[:at]
        at += 1
    return line


def _block(lines: list[Line], depth: int) -> tuple[Any, list[Line]]:
    indent = lines[0][0]
    if lines[0][1].startswith("- ") or lines[0][1] == "-":
        return _items(lines, indent)
    out: dict[str, Any] = {}
    while lines and lines[0][0] == indent and not lines[0][1].startswith("- "):
        _, text, number = lines[0]
        match = re.match(r"""(?:"([^"]+)"|'([^']+)'|([^\s:{}\[\]'"][^:]*)):(?:\s+(.*))?$""", text)
        if match is None or depth > 30:
            raise InputError(f"options file, line {number}: 'key: value' expected, got {text[:60]!r}")
        key, value = match[1] or match[2] or match[3].strip(), match[4]
        lines = lines[1:]
        if value is None and lines and (lines[0][0] > indent or (lines[0][0] == indent and lines[0][1][0] == "-")):
            out[key], lines = _block(lines, depth + 1)
        else:
            out[key] = scalar(value or "", number)
    if lines and lines[0][0] > indent:
        raise InputError(f"options file, line {lines[0][2]}: deeper than the lines before it")
    return out, lines


def _items(lines: list[Line], indent: int) -> tuple[list[Any], list[Line]]:
    out: list[Any] = []
    while lines and lines[0][0] == indent and lines[0][1][:1] == "-":
        _, text, number = lines[0]
        inner = text[1:].strip()
        lines = lines[1:]
        if re.match(r"[\w.]+:(\s|$)", inner):
            nested = [(indent + 2, inner, number)]
            while lines and lines[0][0] > indent:
                nested.append(lines[0])
                lines = lines[1:]
            value, _ = _block(nested, 1)
            out.append(value)
        else:
            out.append(scalar(inner, number))
    return out, lines


def scalar(text: str, number: int = 1) -> Any:
    """One value: JSON, a flow list or mapping, a quoted or a bare word."""
    text = text.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if text[0] in "&*|>!":
        raise InputError(f"options file, line {number}: {text[:20]!r} is a part of YAML that is not read")
    if text[0] in "[{":
        return _flow(text, number)
    if text[0] == "'" == text[-1]:
        return text[1:-1].replace("''", "'")
    try:
        return json.loads(text)
    except ValueError:
        return text


def _flow(text: str, number: int) -> Any:
    """[1, a] or {a: 1}, without nesting of bare words that hold commas."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    if text[-1] != {"[": "]", "{": "}"}[text[0]]:
        raise InputError(f"options file, line {number}: {text[:40]!r} does not end on its line")
    parts = [part for part in _parts(text[1:-1]) if part.strip()]
    if text[0] == "[":
        return [scalar(part, number) for part in parts]
    pairs = [part.partition(":") for part in parts]
    return {str(scalar(key, number)): scalar(value, number) for key, _, value in pairs}


def _parts(text: str) -> list[str]:
    out, depth = [""], 0
    for char in text:
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            out.append("")
        else:
            out[-1] += char
    return out


def flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested keys as paths with dots; an empty mapping stays a value."""
    out: dict[str, Any] = {}
    for key, held in value.items():
        path = f"{before}{key}"
        if isinstance(held, Mapping) and held:
            out |= flat(held, f"{path}.")
        else:
            out[path] = held
    return out


def nested(paths: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Paths as nested mappings; a mapping that is set in parts and as a whole keeps its parts."""
    out: dict[str, Any] = {}
    for path, value in paths:
        *parents, last = path.split(".")
        place = out
        for parent in parents:
            below = place.get(parent)
            if not isinstance(below, dict):
                below = place[parent] = {}
            place = below
        if not (value == {} and isinstance(place.get(last), dict)):
            place[last] = value
    return out


def written(value: Mapping[str, Any], indent: int = 0) -> str:
    """The text of a file."""
    lines = []
    for key, held in value.items():
        if isinstance(held, Mapping) and held:
            lines.append(f"{' ' * indent}{key}:\n{written(held, indent + 2)}")
        else:
            lines.append(f"{' ' * indent}{key}: {_said(held)}")
    return "\n".join(lines)


def _said(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./-]*", value) and value.lower() not in WORDS:
        return value
    return json.dumps(value)
