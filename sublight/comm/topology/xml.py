"""This file knows about NCCL's topology XML: a file becomes a small tree of our own, or one clear error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Tag:
    """An element: its name, its attributes as written, what stands inside it."""

    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    children: tuple[Tag, ...] = ()
