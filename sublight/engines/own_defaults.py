"""This file knows about engines' own defaults: what a setting is that a launch command leaves to the engine.

    >>> filled = defaults(Serving(engine="vllm", version="0.11.0"), memory_bytes=80 * 2**30, device="NVIDIA H100")
    >>> filled.token_budget, filled.max_sequences, filled.memory_fraction
    (8192, 1024, 0.9)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sublight.engines.flags import ENDLESS, numbers, table
from sublight.errors import InputError
from sublight.plan import Serving

MIB, GIB = 2**20, 2**30
GRAPH_FLAGS = ("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode", "--max-cudagraph-capture-size",
               "cuda_graph_config.max_batch_size")
LATENT_PIECES_MIB = 1536                 # server_args.py 0.5.10: in place of 8 MiB a captured size
FIELDS = ("token_budget", "max_sequences", "memory_fraction")


@dataclass(frozen=True, slots=True)
class Own:
    """A value that the engine takes by itself, and where that is written."""

    value: float
    source: str


def defaults(plan: Serving, *, memory_bytes: int | None = None, device: str | None = None,
             latent: bool = False) -> Serving:
    """A plan whose open fields (token_budget, max_sequences, memory_fraction) have the values that its engine takes.

    memory_bytes  of one device, as the driver reports it; device: its name
    latent        the model has latent attention (MLA): some versions of SGLang keep more memory free for it

    Raises InputError where a default depends on the device and it is not given.
    """
    for name in FIELDS:
        if getattr(plan, name) is None:
            own = default(plan, name, memory_bytes=memory_bytes, device=device, latent=latent)
            value: Any = own.value if name == "memory_fraction" else int(own.value)
            if name == "max_sequences" and plan.engine == "vllm" and plan.token_budget is not None:
                value = min(value, plan.token_budget)             # arg_utils.py, 0.11.0 on
            plan = replace(plan, **{name: value})
    return plan


def default(plan: Serving, name: str, *, memory_bytes: int | None = None, device: str | None = None,
            latent: bool = False) -> Own:
    """One of them, with its source. name: a field of FIELDS, or graph_batch, the most sequences of a captured step."""
    situation = _Situation(plan, memory_bytes, device, latent)
    if name == "graph_batch" and (said := _said_graph(plan)) is not None:
        return Own(said, "the command's own flag")
    for row in table(plan.engine).own:
        if row["field"] == name and situation.fits(row):
            return Own(situation.value(row), row["source"])
    raise InputError(f"no default of {name} is known for {plan.engine} {plan.version or ''}".rstrip())


@dataclass(frozen=True, slots=True)
class _Situation:
    """What a default may depend on."""

    plan: Serving
    memory_bytes: int | None
    device: str | None
    latent: bool

    @property
    def ranks(self) -> int:
        """Of a stage: SGLang's tp-size."""
        return self.plan.tp * self.plan.dp

    @property
    def memory_mib(self) -> float:
        if self.memory_bytes is None:
            raise InputError(f"{self.plan.engine}'s defaults depend on the device's memory: give memory_bytes")
        return self.memory_bytes / MIB

    def fits(self, row: Mapping[str, Any]) -> bool:
        version = numbers(self.plan.version)
        if not _version(row.get("since"), ()) <= version < _version(row.get("until"), ENDLESS):
            return False
        gib = 1024
        name = (self.device or "").lower()
        return (
            self.memory_mib >= row["memory_from_gib"] * gib if "memory_from_gib" in row else True
        ) and (
            self.memory_mib < row["memory_below_gib"] * gib if "memory_below_gib" in row else True
        ) and not ("not_device" in row and re.search(row["not_device"], name)) and (
            re.search(row["device"], name) is not None if "device" in row else True
        ) and row.get("chunked", self.plan.chunked_prefill) == self.plan.chunked_prefill and (
            row.get("ranks_from", 0) <= self.ranks * self.plan.pp
        ) and self.ranks < row.get("ranks_below", self.ranks + 1)

    def value(self, row: Mapping[str, Any]) -> float:
        if "reserve" in row:
            return self._kept(row["reserve"])
        value: float = row["value"]
        if "wide_mib" in row and self.memory_mib > row["wide_from_gib"] * 1024:
            mib = self.memory_mib
            return min(value + float(row["wide_mib"]) * (1 - value) / mib, (mib - float(row["wide_kept_mib"])) / mib)
        if row.get("at_least") == "max_length":
            return max(value, float(self.plan.max_length or 0))
        if row["field"] == "token_budget" and self.plan.engine == "sglang":
            return max(1, value // self.plan.dp)
        return value

    def _kept(self, reserve: Mapping[str, float]) -> float:
        """The share that is left when activations and graphs have their part."""
        plan, mib = self.plan, self.memory_mib
        chunk = self._chunk() if "a_token" in reserve else 0
        graph = default(plan, "graph_batch", memory_bytes=self.memory_bytes).value if "a_graph" in reserve else 0.0
        kept = reserve["mib"] + reserve.get("a_rank", 0) * self.ranks * plan.pp
        kept += reserve.get("a_token", 0) * max(chunk, 2048) + reserve.get("a_graph", 0) * graph
        if plan.dp > 1:
            kept += reserve.get("replicas", 0) + reserve.get("a_graph_replica", 0) * graph * plan.dp
            if graph > reserve.get("wide_graph", graph):
                kept += reserve["a_wide_graph_replica"] * graph * plan.dp
        if "a_piece" in reserve and plan.cuda_graphs:
            kept += LATENT_PIECES_MIB if self.latent else reserve["a_piece"] * _pieces(chunk)
        if mib > reserve.get("least_from_gib", float("inf")) * 1024:
            kept = max(kept, reserve["least"])
        kept += reserve.get("drafts", 0) if plan.drafts else 0
        return round((mib - kept) / mib, 3)

    def _chunk(self) -> int:
        """Tokens of a chunk of all attention replicas together, before the engine divides them."""
        plan = self.plan
        if plan.token_budget is not None:
            return plan.token_budget * plan.dp
        own = default(replace(plan, dp=1, tp=self.ranks), "token_budget", memory_bytes=self.memory_bytes)
        return int(own.value)


def _version(text: str | None, absent: tuple[int, ...]) -> tuple[int, ...]:
    return absent if text is None else numbers(text)


def _said_graph(plan: Serving) -> float | None:
    return next((float(held) for name, held in plan.extra if name in GRAPH_FLAGS and held.isdigit()), None)


def _pieces(tokens: int) -> int:
    """Sizes at which a prefill's graphs are captured up to `tokens` (server_args.py 0.5.10,
    _generate_piecewise_cuda_graph_tokens)."""
    spans = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, tokens + 1, 512))
    return sum(1 for span in spans for size in range(*span) if size <= tokens)
