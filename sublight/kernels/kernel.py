"""This file knows about kernels as things that can be called: who offers one, for which shapes, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TypeAlias

from sublight.kernels.contract import Shape, Tensor, Tensors

# run(inputs, outputs): fills the outputs that it was given, or (Kernel.returns) puts tensors of its own in their place.
Run: TypeAlias = Callable[[Tensors, MutableMapping[str, Tensor]], None]


def _nothing() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One way to compute an operator.

    build(shape, constants) compiles, packs weights and plans, once for a shape; what it returns is called and timed.
    constants are the inputs that the contract calls constant; run sees them too, and must not rely on having packed
    them unless `packs` says so.
    """

    op: str                                                 # the contract's name
    name: str                                               # "torch", "inductor", "sublight", "triton"
    build: Callable[[Shape, Tensors], Run]
    refuses: Callable[[Shape], str | None]                  # why not this shape on this machine; None: it can
    where: str = "cpu"                                      # "cpu" or "cuda"
    returns: bool = False                                   # it makes its own outputs rather than filling given ones
    packs: tuple[str, ...] = ()                             # constants that build keeps in a form of its own
    provider: str = ""                                      # "torch", "sublight": whose version belongs to a result
    key: Callable[[], Mapping[str, str]] = field(default=_nothing)
                                                            # what a result depends on besides: {"source": hash,
                                                            # "compiler": "g++ 12.2.0", "flags": "-O3 …", "layout": …}
