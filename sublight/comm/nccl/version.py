"""This file knows about the constants of one NCCL version, and about its 32-bit arithmetic."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

VERSION = "2.30.7"


@cache
def constants(version: str = VERSION) -> dict[str, Any]:
    """The link rates, speeds and limits of that version: catalog/nccl/VERSION.toml."""
    text = resources.files("sublight.catalog").joinpath("nccl").joinpath(f"{version}.toml").read_text("utf-8")
    return tomllib.loads(text)


def single(value: float) -> float:
    """The nearest 32-bit float: NCCL computes with these, and equal or not depends on it."""
    return float(np.float32(value))


@cache
def nvlink_rate(sm: int) -> float:
    """10^9 bytes a second of one NVLink of a GPU of that compute capability."""
    for row in constants()["nvlink"]:
        if sm == row["sm"] or (sm > row["sm"] and not row.get("exactly")):
            return single(row["rate"])
    return single(constants()["nvlink"][-1]["rate"])


def speeds(sm: int, *, across_nodes: bool) -> tuple[float, ...]:
    """The rates of a channel that NCCL tries, best first."""
    row = next(row for row in constants()["speeds"] if sm >= row["sm"])
    return tuple(single(rate) for rate in row["inter" if across_nodes else "intra"])


def whole(text: str) -> int:
    """An integer as C's strtol reads it, base by prefix: "0x10" 16, "010" 8, "12 abc" 12, "" 0."""
    import re

    found = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)", text)
    if found is None:
        return 0
    sign, digits = found.groups()
    if digits[:2] in ("0x", "0X"):
        size = int(digits, 16)
    elif digits.startswith("0"):
        octal = re.match(r"[0-7]+", digits)
        size = int(octal.group(), 8) if octal else 0
    else:
        size = int(digits)
    return -size if sign == "-" else size


def hexadecimal(text: str) -> int:
    """As C's strtoull with base 16: "0x1f", "1f", and what follows is dropped."""
    import re

    found = re.match(r"\s*(?:0[xX])?([0-9a-fA-F]+)", text)
    return int(found.group(1), 16) if found else 0


def bus_number(text: str) -> int:
    """The number that a PCI address means: "0000:1b:00.0" is 0x1b000. Reads up to 16 digits."""
    digits = ""
    for letter in text:
        if letter in ".:":
            continue
        if letter not in "0123456789abcdefABCDEF" or len(digits) == 16:
            break
        digits += letter
    return min(int(digits or "0", 16), 2**63 - 1)


def setting(environment: dict[str, str] | Any, name: str, default: int) -> int:
    """The integer of a variable as NCCL reads it: unset or empty is the default."""
    text = environment.get(name, "")
    return whole(text) if text else default
