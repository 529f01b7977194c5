"""This file knows about the JSON of a diagnosis. docs/comm-doctor.md says what each key means."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sublight.comm.doctor.against import against_expected
from sublight.comm.doctor.diagnosis import Diagnosis
from sublight.comm.doctor.view import Located
from sublight.show.doctor_rows import heat_maps
from sublight.work import Message

SCHEMA = "sublight.comm.doctor/1"


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as plain values: seconds, bytes, bytes per second."""
    from sublight import __version__

    view = diagnosis.view
    return {
        "schema": SCHEMA,
        "version": __version__,
        "verdict": diagnosis.verdict,
        "hardware": {"node": diagnosis.node.key if diagnosis.node else None, "from": diagnosis.node_from},
        "nodes": list(view.hosts),
        "results": len(view.results),
        "findings": [_finding(f) for f in diagnosis.findings],
        "failed": [_failed(*item) for item in _failures(diagnosis).items()],
        "not_run": [{"collective": a.collective, "gpus_per_node": a.setting.gpus_per_node,
                     "rail": a.setting.rail or None, "pairs": [list(p) for p in a.pairs]} for a in view.absent],
        "tables": [{
            "collective": h.table.collective, "gpus_per_node": h.table.setting.gpus_per_node,
            "rail": h.table.setting.rail or None, "hosts": list(h.hosts), "healthy_bytes_per_second": h.healthy,
            "bytes_per_second": h.levels} for h in heat_maps(diagnosis)],
        "against_expected": [{
            "collective": t.collective, "nodes": t.nodes, "gpus_per_node": t.gpus_per_node, "runs": t.runs,
            "sizes": [{
                "bytes": r.nbytes, "runs": r.runs, "fastest_seconds": r.fastest_seconds,
                "median_seconds": r.median_seconds, "slowest_seconds": r.slowest_seconds,
                "expected_seconds": r.expected.seconds, "expected_low": r.expected.low,
                "expected_high": r.expected.high, "limiter": r.expected.limiter} for r in t.rows],
        } for t in against_expected(view)],
    }


def _finding(located: Located) -> dict[str, Any]:
    f = located.finding
    return {
        "code": f.code, "title": f.title, "claim": f.claim, "evidence": list(f.evidence), "action": f.action,
        "confidence": f.confidence, "caveats": list(f.caveats), "nodes": list(located.nodes),
        "pairs": [list(pair) for pair in located.pairs], "rails": list(located.rails), "ranks": list(located.ranks),
    }


def _failures(diagnosis: Diagnosis) -> Counter[tuple[str, int, tuple[str, ...], str]]:
    return Counter((r.message.collective if isinstance(r.message, Message) else r.name,
                    r.placement.gpus_per_node if r.placement else 0, r.placement.hosts if r.placement else (),
                    r.failure or "")
                   for r in diagnosis.view.failures)


def _failed(key: tuple[str, int, tuple[str, ...], str], number: int) -> dict[str, Any]:
    collective, gpus, hosts, failure = key
    return {"collective": collective, "gpus_per_node": gpus or None, "hosts": list(hosts), "failure": failure,
            "times": number}
