"""This file knows about engines: how they fill a step, what their host adds, and where those constants come from."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from sublight.errors import InputError
from sublight.plan import Serving


@dataclass(frozen=True, slots=True)
class Host:
    """Seconds that the engine adds where the device waits: to a step, to each sequence of it, to each prompt of it."""

    step: float
    sequence: float
    prompt: float = 0.0


@dataclass(frozen=True, slots=True)
class Rules:
    """How an engine fills a step. reserve: share of the answer's tokens for which cache is set aside at admission."""

    token_budget: int
    max_sequences: int
    memory_fraction: float
    reserve: float
    mixed: bool                          # prompts and decoding sequences share a step
    chunked: bool                        # a prompt may be cut to fit the budget
    poll_steps: int = 1                  # steps between two looks at the queue
    wait_steps: int = 0                  # as Serving has them
    wait_fill: float = 0.0
    balance_steps: int = 0


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    rules: Rules
    host: Host
    sources: Mapping[str, str]
    launch: float = 0.0                  # seconds of one kernel's launch, where no CUDA graph carries the step


@cache
def _rows() -> Mapping[str, Any]:
    return tomllib.loads(resources.files("sublight.catalog").joinpath("serving/engines.toml").read_text("utf-8"))


@cache
def engine(name: str) -> Engine:
    """Constants of an engine of catalog/serving/engines.toml. Raises InputError naming the nearest."""
    rows = _rows()
    if name not in rows:
        near = difflib.get_close_matches(name, rows, 3, 0.4) or sorted(rows)
        raise InputError(f"no engine '{name}' is known; nearest: {', '.join(near)}")
    row = rows[name]
    rules = Rules(row["token_budget"], row["max_sequences"], row["memory_fraction"], row["reserve"], row["mixed"],
                  row["chunked"])
    return Engine(name, rules, Host(row["host_step"], row["host_sequence"], row["host_prompt"]), dict(row["sources"]),
                  row["launch"])


def rules(plan: Serving) -> Rules:
    """The engine's defaults, with what the plan says otherwise."""
    usual = engine(plan.engine).rules
    return Rules(
        token_budget=plan.token_budget or usual.token_budget,
        max_sequences=plan.max_sequences or usual.max_sequences,
        memory_fraction=plan.memory_fraction or usual.memory_fraction, reserve=usual.reserve,
        mixed=usual.mixed, chunked=usual.chunked and plan.chunked_prefill, poll_steps=max(1, plan.poll_steps),
        wait_steps=plan.wait_steps, wait_fill=plan.wait_fill, balance_steps=plan.balance_steps,
    )
