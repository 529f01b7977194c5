"""Small communicators for tests of NCCL's model: graphs by hand, without a topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sublight.comm.nccl.choice import Model, model
from sublight.comm.nccl.graph import PATH_CLASSES, Graph, Searched

PATTERN = {"ring": 4, "tree": 1, "nvls": 5, "collnet": 3, "collnet direct": 6}


def graph(
    name: str, channels: int, rate: float, across: float | None = None, *, inside: str = "NVL", to_nic: str = "PIX",
    pattern: int | None = None, latency: float = 0.0, same: bool = False, heads: tuple[int, ...] = (),
) -> Graph:
    """A graph of so many channels; across None: as fast as inside."""
    return Graph(name, pattern or PATTERN[name], channels, rate, rate if across is None else across,
                 PATH_CLASSES.index(inside), PATH_CLASSES.index(to_nic), latency, same, 0,
                 tuple((head,) for head in heads), ())


def searched(
    *graphs: Graph, gpus: int = 8, nodes: int = 1, sm: int = 90, cpu: tuple[str, str] = ("x86_64", "GenuineIntel"),
    **more: Any,
) -> Searched:
    """What a search on such a node could have found. Without graphs: NVSwitch, 8 channels, a 400 Gbit/s NIC a GPU."""
    mine = graphs or (graph("ring", 8, 48), graph("tree", 8, 48, pattern=3), graph("nvls", 8, 40, 48))
    plain = Searched({g.name: g for g in mine}, gpus, nodes, sm, sm, *cpu, "", 8, 1.0, True, True, True, 48.0, True,
                     60.0, 400.0, ())
    return replace(plain, **more)


def tuned(*graphs: Graph, env: Mapping[str, str] | None = None, **more: Any) -> Model:
    """NCCL's model over it."""
    return model(searched(*graphs, **more), env)
