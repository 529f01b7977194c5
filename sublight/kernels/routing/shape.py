"""This file knows about the sizes and switches of routing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """logits [tokens, experts]; weights [tokens, top_k] fp32 and ids [tokens, top_k] int32, both by falling weight."""

    tokens: int
    experts: int
    top_k: int
    renormalise: bool = True             # the chosen weights of a token sum to one
    form: str = "fp32"                   # of the logits
