"""One file per check of a topology: `find(box)` yields its finding where the box shows it. CHECKS is all of them.

A new check is one file here, one line below, a page in docs/findings, and a test with the fault planted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from sublight.comm.topology.box import Box
from sublight.comm.topology.lint import (
    duplicates,
    gdr_off,
    narrow_bridge,
    nic_far,
    nic_missing,
    nic_rates,
    nic_shared,
    no_switch,
    numa_unknown,
    numbering,
    nvlink_absent,
    nvlink_count,
    nvlink_target,
    slow_link,
    unread_link,
)
from sublight.finding import Finding


class Check(Protocol):
    """What each file here offers."""

    CODE: str
    TITLE: str

    def find(self, box: Box) -> Iterable[Finding]:
        """The finding, where the box shows it."""
        ...


CHECKS: tuple[Check, ...] = (
    nic_far, no_switch, numa_unknown, slow_link, unread_link, narrow_bridge, nvlink_target, nvlink_count, nvlink_absent,
    nic_shared, gdr_off, nic_rates, nic_missing, duplicates, numbering,
)


def lint_all(boxes: Sequence[Box]) -> tuple[Finding, ...]:
    """Everything that the checks find in the hosts of a file; claims say which host where there are several."""
    if len(boxes) == 1:
        return lint(boxes[0])
    return tuple(replace(finding, claim=f"host {number}: {finding.claim}")
                 for number, box in enumerate(boxes, 1) for finding in lint(box))


def lint(box: Box) -> tuple[Finding, ...]:
    """Everything that the checks find, in their order."""
    return tuple(finding for check in CHECKS for finding in check.find(box))
