"""This file knows about the constants of NCCL's tuning model, one file of the catalog per version.

    >>> load().hop_us["network"]["Ring"]
    (2.7, 4.0, 14.0)
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

VERSION = "2.30.7"
Row = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Constants:
    """Figures of one version. Tables by algorithm are rows over protocols; tables of rates are rows over generations
    with a column per scale (one node, two, more)."""

    version: str
    source: Mapping[str, str]
    functions: tuple[str, ...]
    algorithms: tuple[str, ...]
    protocols: tuple[str, ...]
    generations: tuple[tuple[str, int], ...]
    base_us: Mapping[str, Row]
    hop_us: Mapping[str, Mapping[str, Row]]          # by "nvlink", "pcie", "network", then by algorithm
    latency: Mapping[str, Any]                       # the parts of latencies that are no table
    rates: Mapping[str, tuple[Row, ...]]             # 10^9 bytes a second, by "ll", "ring_ll128", "tree" …
    factors: Mapping[str, Any]
    correction: Mapping[str, Row]
    tree_entries: int
    limits: Mapping[str, Any]
    tuning_variables: tuple[str, ...]
    graph_variables: tuple[str, ...]
    other_variables: tuple[str, ...]     # that NCCL reads, and this model does not

    def generation(self, sm: int) -> int:
        """Row of the tables by generation for a compute capability such as 90."""
        return max(row for row, (_, since) in enumerate(self.generations) if sm >= since)


@cache
def load(version: str = VERSION) -> Constants:
    """The constants of a version that the catalog has."""
    file = resources.files("sublight.catalog").joinpath(f"nccl/{version}-tuning.toml")
    table = tomllib.loads(file.read_text("utf-8"))
    latency = table["latency_us"]
    return Constants(
        version=version, source=table["source"], functions=tuple(table["order"]["functions"]),
        algorithms=tuple(table["order"]["algorithms"]), protocols=tuple(table["order"]["protocols"]),
        generations=tuple((name, since) for name, since in table["order"]["generations"]),
        base_us=_rows(latency["base"]), hop_us={link: _rows(latency[link]) for link in ("nvlink", "pcie", "network")},
        latency=latency["parts"],
        rates={name: tuple(tuple(row) for row in rows) for name, rows in table["bandwidth"]["gb_per_second"].items()},
        factors=table["bandwidth"]["factor"],
        correction={name: tuple(row) for name, row in table["correction"].items() if name != "tree_entries"},
        tree_entries=table["correction"]["tree_entries"], limits=table["limits"],
        tuning_variables=tuple(table["environment"]["tuning"]), graph_variables=tuple(table["environment"]["graphs"]),
        other_variables=tuple(table["environment"]["others"]),
    )


def _rows(table: Mapping[str, list[float]]) -> dict[str, Row]:
    return {name: tuple(row) for name, row in table.items()}
