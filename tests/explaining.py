"""Explains a hand-written trace of one device: what tests of findings ask again and again."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from kineto import Kineto

from sublight.explain import Explained, explain
from sublight.observe.read import read


def explained(trace: Kineto, *, window: str = "all") -> Explained:
    """The only device of a trace."""
    with TemporaryDirectory() as folder:
        (device,) = explain(read(trace.write(Path(folder) / "trace.json")), window=window).devices
    return device


def codes(trace: Kineto, *, window: str = "all") -> list[str]:
    return [finding.code for finding in explained(trace, window=window).findings]
