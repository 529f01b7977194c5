"""This file knows about sizes on a command line: 8K, 64M, 512:8G:x2.

    >>> sizes("8K,1M:4M")
    (8192, 1048576, 2097152, 4194304)
"""

from __future__ import annotations

import re

from sublight.errors import InputError

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
MOST = 1000


def size(text: str) -> int:
    """Bytes of "512", "8K", "1.5G" (powers of 1024, as nccl-tests takes them). Raises InputError for anything else."""
    found = SIZE.fullmatch(text.strip())
    value = float(found.group(1)) * FACTORS[found.group(2).upper()] if found else 0.0
    if not 1 <= value <= 1 << 50 or value != int(value):
        raise InputError(f"'{text}' is no size; expected whole bytes such as 512, 8K, 64M, 1.5G")
    return int(value)


def sizes(text: str) -> tuple[int, ...]:
    """Every size of a list: sizes and ranges FROM:TO:xFACTOR (x2 where no step is named) or FROM:TO:+STEP, between
    commas. Raises InputError for what is none."""
    found: list[int] = []
    for piece in filter(None, text.split(",")):
        parts = piece.split(":")
        if len(parts) == 1:
            found.append(size(piece))
        elif len(parts) == 2 or (len(parts) == 3 and parts[2][:1] in ("x", "+")):
            found += _range(size(parts[0]), size(parts[1]), parts[2] if len(parts) == 3 else "x2", piece)
        else:
            raise InputError(f"'{piece}' is no size and no range; expected 8K or FROM:TO:xFACTOR such as 512:8G:x2")
        if len(found) > MOST:
            raise InputError(f"'{text}' asks for more than {MOST} sizes")
    if not found:
        raise InputError("no sizes given; expected a list such as 8K,64M or 512:8G:x2")
    return tuple(dict.fromkeys(found))


def _range(low: int, high: int, step: str, piece: str) -> list[int]:
    by = size(step[1:])
    if high < low or (step[0] == "x" and by < 2):
        raise InputError(f"'{piece}' does not grow; expected FROM:TO:xFACTOR with TO at least FROM, FACTOR at least 2")
    found = [low]
    while len(found) <= MOST:
        following = found[-1] * by if step[0] == "x" else found[-1] + by
        if following > high:
            break
        found.append(following)
    return found
