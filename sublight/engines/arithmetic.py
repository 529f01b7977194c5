"""This file knows about integer arithmetic of shells, the `2 * CONC` of `$((2 * CONC))`.

    >>> evaluated("CONC > 16 ? CONC : 16", {"CONC": "64"}), evaluated("(7+64-1)/64*64", {}), evaluated("1/0", {})
    ('64', '64', None)
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|\$\{?\w+\}?|==|!=|<=|>=|&&|\|\||[-+*/%<>?:()!])")
Operation = Callable[[int, int], int]
LEVELS: tuple[Mapping[str, Operation], ...] = (
    {"||": lambda a, b: int(bool(a or b))}, {"&&": lambda a, b: int(bool(a and b))},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {"<": lambda a, b: int(a < b), ">": lambda a, b: int(a > b), "<=": lambda a, b: int(a <= b),
     ">=": lambda a, b: int(a >= b)},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": lambda a, b: int(a / b), "%": lambda a, b: a - b * int(a / b)},     # towards zero, as in C
)
MOST_DIGITS, MOST_TOKENS = 12, 200


def evaluated(text: str, variables: Mapping[str, str]) -> str | None:
    """The value, or None where a name is not set, or the text is no such arithmetic."""
    tokens: list[str] = []
    at = 0
    while text[at:].strip():
        match = TOKEN.match(text, at)
        if match is None or len(tokens) > MOST_TOKENS:
            return None
        tokens.append(match[1])
        at = match.end()
    try:
        value, rest = _choice(tokens, variables)
    except (LookupError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return None if rest else str(value)


def _choice(tokens: list[str], variables: Mapping[str, str]) -> tuple[int, list[str]]:
    value, rest = _binary(tokens, variables, 0)
    if rest[:1] != ["?"]:
        return value, rest
    first, rest = _choice(rest[1:], variables)
    if rest[:1] != [":"]:
        raise ValueError(rest)
    second, rest = _choice(rest[1:], variables)
    return (first if value else second), rest


def _binary(tokens: list[str], variables: Mapping[str, str], level: int) -> tuple[int, list[str]]:
    if level == len(LEVELS):
        return _single(tokens, variables)
    value, rest = _binary(tokens, variables, level + 1)
    while rest and rest[0] in LEVELS[level]:
        operation = LEVELS[level][rest[0]]
        other, rest = _binary(rest[1:], variables, level + 1)
        value = operation(value, other)
        if abs(value) >= 10**MOST_DIGITS:
            raise OverflowError(value)
    return value, rest


def _single(tokens: list[str], variables: Mapping[str, str]) -> tuple[int, list[str]]:
    token, rest = tokens[0], tokens[1:]
    if token in "-+!":
        value, rest = _single(rest, variables)
        return {"-": -value, "+": value, "!": int(not value)}[token], rest
    if token == "(":
        value, rest = _choice(rest, variables)
        if rest[:1] != [")"]:
            raise ValueError(rest)
        return value, rest[1:]
    text = token if token.isdigit() else variables[token.strip("${}")]
    if len(text) > MOST_DIGITS:
        raise OverflowError(text)
    return int(text), rest
