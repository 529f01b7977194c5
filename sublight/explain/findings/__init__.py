"""One file per finding: `find(view)` yields it where the evidence is there. FINDINGS is all of them.

A new finding is one file here, one line below, a page in docs/findings, and a test with the fault planted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sublight.explain.findings import (
    above_bound,
    above_model,
    blocking_sync,
    dependency,
    exposed_communication,
    fusable_chains,
    gemm_waves,
    graph_blindness,
    host_copies,
    host_stall,
    incomplete_trace,
    launch_starved,
    memory_bound,
    network_bound,
    no_steady_step,
    short_kernels,
    slow_fabric,
    slow_format,
    sm_tax,
    sms_held,
    unclassified,
    unfused_attention,
    waiting,
)
from sublight.explain.view import View
from sublight.finding import Finding


class FindingModule(Protocol):
    """What each file here offers."""

    CODE: str
    TITLE: str

    def find(self, view: View) -> Iterable[Finding]:
        """The finding, where the view has evidence of it."""
        ...


FINDINGS: tuple[FindingModule, ...] = (
    incomplete_trace, graph_blindness, unclassified, no_steady_step,
    exposed_communication, sms_held, waiting, network_bound, slow_fabric,
    launch_starved, blocking_sync, short_kernels, host_copies, host_stall, dependency,
    memory_bound, above_bound, above_model, gemm_waves, slow_format, unfused_attention, fusable_chains, sm_tax,
)
