"""This file knows about the JSON of an explanation. docs/json.md says what each key means; its schema is
catalog/explain.schema.json."""

from __future__ import annotations

from typing import Any

from sublight.explain import Explained, Explanation
from sublight.explain.findings.sms_held import held_blocks
from sublight.explain.headline import headline
from sublight.explain.model_terms import AgainstModel
from sublight.explain.ranks import Ranks
from sublight.explain.view import View
from sublight.finding import Finding

SCHEMA = "sublight.explain/1"


def document(explanation: Explanation) -> dict[str, Any]:
    """The explanation as plain values. All times are integer nanoseconds."""
    from sublight import __version__

    return {
        "schema": SCHEMA,
        "version": __version__,
        "devices": [_device(explained) for explained in explanation.devices],
        "ranks": None if explanation.ranks is None else _ranks(explanation, explanation.ranks),
        "quality": _quality(explanation),
    }


def _ranks(explanation: Explanation, ranks: Ranks) -> dict[str, Any]:
    left = ranks.residual
    return {
        "labels": list(ranks.labels),
        "refused": ranks.refused,
        "clock_offsets_ns": [clock.offset_ns for clock in ranks.clocks],
        "residual": None if left is None else {
            "collectives": left.collectives, "median_ns": left.median_ns, "max_ns": left.max_ns,
        },
        "ranks_not_given": ranks.ranks_not_given,
        "stragglers": [
            {"rank": ranks.labels[s.member], "collectives": s.collectives, "waiting_ns": s.waiting_ns,
             "transfer_ns": s.transfer_ns, "last_in": s.last_in, "late_ns": s.late_ns, "alone_ns": s.alone_ns}
            for s in ranks.stragglers
        ],
        "collectives": [
            {"name": c.name, "kind": c.kind, "group": c.group, "ranks": [ranks.labels[m] for m in c.members],
             "counted": c.counted, "last": ranks.labels[c.last], "spread_ns": c.spread_ns, "alone_ns": c.alone_ns,
             "transfer_ns": c.transfer_ns, "waiting_ns": list(c.waiting_ns)}
            for c in ranks.collectives()
        ],
        "findings": [_finding(f) for f in explanation.rank_findings],
    }


def _device(explained: Explained) -> dict[str, Any]:
    view = explained.view
    budget, c = view.budget, view.budget.communication
    low, _ = view.timeline.span
    return {
        "rank": view.trace.rank,
        "rank_source": view.trace.rank_source,
        "device": view.device,
        "device_name": view.info.name,
        "catalog_key": view.catalogued.key if view.catalogued else None,
        "sms": view.sms if not view.cpu_only else None,
        "verdict": headline(view),
        "window": view.window,
        "window_reason": view.window_reason,
        "windows": [[start - low, end - low] for start, end in view.windows],
        "window_ns": budget.window_ns,
        "span_ns": view.span_ns,
        "busy_ns": budget.busy_ns,
        "idle_ns": budget.idle_ns,
        "communication": {
            "union_ns": c.union_ns, "hidden_ns": c.hidden_ns, "exposed_ns": c.exposed_ns, "wait_ns": c.wait_ns,
            "undivided_ns": c.undivided_ns, "held_sms": _held(view),
        },
        "parts": [{"name": part.name, "group": part.group, "ns": part.ns} for part in budget.parts],
        "unclassified_share": view.unclassified_share,
        "findings": [_finding(f) for f in explained.findings],
        "refused": [{"what": r.what, "why": r.why, "capture": r.capture} for r in view.refusals],
        "replay": _replay(explained),
        "bounds": _bounds(view),
        "fabric": _fabric(view),
        "model": _model(view.model),
        "steps": [
            {"label": s.label, "window_ns": s.window_ns, "busy_ns": s.busy_ns, "idle_ns": s.idle_ns,
             "exposed_communication_ns": s.exposed_communication_ns, "activities": s.activities,
             "lost_launches": s.lost_launches}
            for s in view.step_rows
        ],
        "kernels": [
            {"name": k.name, "short": k.short, "kind": k.kind, "category": k.category, "library": k.library,
             "family": k.family, "number_format": k.number_format, "count": k.count, "ns": k.ns,
             "grid_blocks": k.grid_blocks}
            for k in view.kernels
        ],
    }


def _replay(explained: Explained) -> dict[str, Any] | None:
    played = explained.replay
    return None if played is None else {
        "measured_ns": played.measured_ns, "replayed_ns": played.replayed_ns, "error": played.error,
        "unexplained_delay_ns": played.unexplained_delay_ns, "unexplained_share": played.unexplained_share,
        "inferred_edges": played.inferred_edges, "event_edges": played.event_edges,
        "critical_ns": dict(played.critical), "refused": played.refused,
        "what_ifs": [
            {"text": w.text, "gain_ns_low": w.gain_ns_low, "gain_ns_high": w.gain_ns_high,
             "next_limit": w.next_limit or None, "refused": w.refused, "caveats": list(w.caveats)}
            for w in explained.what_ifs
        ],
    }


def _bounds(view: View) -> dict[str, Any] | None:
    bounds = view.bounds
    return None if bounds is None else {
        "device_key": bounds.device_key, "known_share": bounds.known_share, "inferred_share": bounds.inferred_share,
        "faster_than_bound": list(bounds.faster_than_bound),
        "parts": [
            {"name": p.name, "at_bound_ns": p.at_bound_ns, "above_ns": p.above_ns, "unknown_ns": p.unknown_ns,
             "inferred_ns": p.inferred_ns} for p in bounds.parts
        ],
        "calls": [
            {"name": c.name, "ops": c.ops, "category": c.category, "count": c.count, "owned_ns": c.owned_ns,
             "bound_ns": c.bound_ns, "streamed_ns": c.streamed_ns, "limiter": c.limiter, "inferred": c.inferred}
            for c in bounds.calls
        ],
    }


def _fabric(view: View) -> dict[str, Any] | None:
    held = view.fabric
    return None if held is None else {
        "cluster": {"node": held.cluster.node.key, "nodes": held.cluster.nodes,
                    "gpus_per_node": held.cluster.gpus_per_node, "given": held.given, "told_by": held.told_by},
        "several_ranks": held.several_ranks, "assumptions": list(held.assumptions), "refused": dict(held.refused),
        "rows": [
            {"what": row.what, "sizes": row.sizes, "ranks": row.ranks, "nodes": row.nodes, "count": row.count,
             "measured_ns": row.measured_ns, "transfer_ns": row.transfer_ns, "bus_bytes": round(row.bus_bytes),
             "bus_bytes_per_second": row.bus_bandwidth,
             "expected_ns": round(row.expected.seconds * 1e9), "expected_ns_low": round(row.expected.low * 1e9),
             "expected_ns_high": round(row.expected.high * 1e9),
             "terms_ns": {name: round(s * 1e9) for name, s in row.expected.terms.items()},
             "limiter": row.expected.limiter, "basis": row.expected.basis, "verdict": row.verdict}
            for row in held.rows
        ],
    }


def _model(held: AgainstModel | None) -> dict[str, Any] | None:
    return None if held is None else {
        "model": held.model, "device_key": held.device_key, "phase": held.run.phase,
        "layers": list(held.run.layers), "passes": len(held.run.passes),
        "split": {"tp": held.run.split.tp, "dp": held.run.split.dp, "ep": held.run.split.ep},
        "facts": [{"name": f.name, "value": f.value, "how": f.how, "why": f.why} for f in held.facts],
        "terms_ns": dict(held.terms_ns), "network_ns_low": held.network_interval_ns[0],
        "network_ns_high": held.network_interval_ns[1], "products_and_attention_ns": held.products_ns,
        "products_and_attention_least_ns": held.products_least_ns, "peaks": list(held.peaks),
        "limiter": held.limiter, "verdict": held.verdict, "network_told_by": held.network_told_by,
        "network_notes": list(held.network_notes),
        "formats": {"products": held.formats[0], "attention": held.formats[1]},
        "notes": list(held.notes), "refused": list(held.refused),
        "families": [
            {"name": f.name, "compute_ns": f.compute_ns, "memory_ns": f.memory_ns, "network_ns": f.network_ns,
             "least_ns": f.least_ns, "measured_ns": f.measured_ns} for f in held.families
        ],
        "parts": [
            {"name": p.name, "family": p.family, "kernels": p.kernels, "operators": p.operators,
             "measured_ns": p.measured_ns, "least_ns": p.least_ns, "above_ns": p.above_ns, "matched": p.matched,
             "why_not": p.why_not or None} for p in held.parts
        ],
        "operators": [
            {"label": r.label, "ops": r.ops, "category": r.category, "count": r.count, "compute_ns": r.compute_ns,
             "memory_ns": r.memory_ns, "network_ns": r.network_ns, "least_ns": r.least_ns, "limiter": r.limiter,
             "measured_ns": r.measured_ns} for r in held.rows
        ],
    }


def _held(view: View) -> int | None:
    held = held_blocks(view)
    return held if held is None or not view.sms else min(held, view.sms)


def _finding(f: Finding) -> dict[str, Any]:
    return {"code": f.code, "title": f.title, "claim": f.claim, "evidence": list(f.evidence), "action": f.action,
            "confidence": f.confidence, "gain_ns_at_most": f.gain_ns_at_most, "caveats": list(f.caveats)}


def _quality(explanation: Explanation) -> dict[str, Any]:
    traces = [_trace_quality(trace, explanation) for trace in explanation.traces]
    keys = ("events", "lost", "text_bytes")
    return {key: sum(t[key] for t in traces) for key in keys} | {
        "cut_short": any(t["cut_short"] for t in traces), "traces": traces,
    }


def _trace_quality(trace: Any, explanation: Explanation) -> dict[str, Any]:
    q = trace.quality
    links = next((d.view.links for d in explanation.devices if d.view.trace is trace), None)
    return {
        "rank": trace.rank, "files": list(q.files), "text_bytes": q.text_bytes, "events": q.events,
        "kept": dict(q.kept), "ignored": dict(q.ignored), "lost": q.lost, "untimed": dict(q.untimed),
        "repaired": dict(q.repaired), "cut_short": q.cut_short, "clock_ns": q.clock_ns, "notes": list(q.notes),
        "faster_than_bound": [
            call for d in explanation.devices if d.view.trace is trace and d.view.bounds is not None
            for call in d.view.bounds.faster_than_bound
        ],
        "recorded_shapes": trace.recording.shapes, "recorded_stacks": trace.recording.stacks,
        "links": None if links is None else {
            "activities": links.activities, "linked": links.linked, "linked_to_operator": links.linked_to_op,
            "launches": links.launches, "launches_without_activity": links.launches_without_activity,
            "captured_launches": links.captured_launches,
            "graph_launches": links.graph_launches, "partial_replays": links.partial_replays,
            "graph_ns": links.graph_ns, "kernel_ns": links.kernel_ns,
            "before_launch": links.before_launch, "largest_lead_ns": links.largest_lead_ns,
        },
    }
