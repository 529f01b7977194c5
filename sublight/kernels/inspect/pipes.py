"""This file knows about the pipes of an SM: what each opcode occupies, and what one SM can do in a clock.

Figures and their sources: catalog/kernels/pipes.toml and opcodes.toml.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

OTHER = "other"
RATES = ("issue", "fp32", "imad", "alu", "xu", "fp64", "fp16", "lsu", "shared_bytes")


@dataclass(frozen=True, slots=True)
class Pipes:
    """What one SM of an architecture can do in a clock. A rate that is not there has no source."""

    arch: str                                # "sm_90"
    capability: tuple[int, int]
    rates: Mapping[str, float]               # of RATES
    tensor: Mapping[str, float]              # dense FLOPs by number format of the inputs
    sources: Mapping[str, str]


def pipes_of(arch: str) -> Pipes | None:
    """The entry of an architecture; None where the catalog has none.

    >>> pipes_of("sm_90a").tensor["bf16"], pipes_of("sm_75")
    (4096, None)
    """
    return _pipes().get(plain(arch))


def plain(arch: str) -> str:
    """Without the letters that choose features: "sm_100f" is "sm_100"."""
    found = re.match(r"(?:sm_)?(\d+)", arch.lower())
    return f"sm_{found[1]}" if found else arch


@cache
def _pipes() -> dict[str, Pipes]:
    return {arch: Pipes(arch, (row["capability"][0], row["capability"][1]), {k: row[k] for k in RATES if k in row},
                        dict(row["tensor"]), dict(row["sources"]))
            for arch, row in _read("pipes.toml").items()}


@cache
def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("sublight.catalog").joinpath("kernels").joinpath(name).read_text("utf-8"))


@cache
def _opcodes() -> dict[str, str]:
    return {opcode: pipe for pipe, row in _read("opcodes.toml").items() if pipe != "deserved"
            for opcode in row["opcodes"]}


def pipe_of(name: str) -> str:
    """What an opcode occupies, by its name without modifiers: "fp32", "alu" …; "other" where we do not know it.

    >>> pipe_of("FFMA"), pipe_of("UMOV"), pipe_of("FROBNICATE")
    ('fp32', 'uniform', 'other')
    """
    return _opcodes().get(name, OTHER)


def title_of(pipe: str) -> str:
    row = _read("opcodes.toml").get(pipe)
    return str(row["title"]) if row else "not known to us"


def charged(pipe: str) -> bool:
    """Whether a rate may be known for it. Others count in issue alone."""
    row = _read("opcodes.toml").get(pipe)
    return bool(row and row.get("charged", True))


def deserved(form: str, arch: str) -> str | None:
    """The instruction that a number format of the inputs deserves; None: the tensor cores do not take it.

    >>> deserved("fp8", "sm_90a"), deserved("fp8", "sm_80")
    ('QGMMA', None)
    """
    found = _read("opcodes.toml")["deserved"].get(plain(arch), {}).get(form)
    return None if found is None else str(found)

