"""One file per finding: `find(view)` yields it where the evidence is there. DIAGNOSES is all of them, worst first.

A new finding is one file here, one line below, a page in docs/findings, and a test with the fault planted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sublight.comm.doctor.findings import (
    below_expected,
    cliff,
    failed,
    slow_group,
    slow_node,
    slow_pair,
    straggler,
    warm_up,
)
from sublight.comm.doctor.view import Located, View


class FindingModule(Protocol):
    """What each file here offers."""

    CODE: str
    TITLE: str

    def find(self, view: View) -> Iterable[Located]:
        """The finding, where the view has evidence of it."""
        ...


DIAGNOSES: tuple[FindingModule, ...] = (
    slow_node, slow_group, slow_pair, straggler, below_expected, cliff, failed, warm_up,
)
