"""This file knows about the JSON of a difference. docs/diff.md says what each key means."""

from __future__ import annotations

from typing import Any

from sublight.guard.attribute import Difference
from sublight.guard.changes import Amount, Change
from sublight.guard.member import Key
from sublight.guard.typical import Entry, Typical
from sublight.guard.waiting import Inside
from sublight.show.diff_results import fields
from sublight.show.diff_rows import refusals, verdict

SCHEMA = "sublight.diff/1"


def document(d: Difference) -> dict[str, Any]:
    """The difference as plain values. Times that sum are integer nanoseconds."""
    from sublight import __version__

    return {
        "schema": SCHEMA, "version": __version__, "verdict": verdict(d),
        "a": _run(d.a, d.inside[0]), "b": _run(d.b, d.inside[1]), "difference_ns": d.ns, "bounded": d.bounded,
        "step_time": fields(d.verdict),
        "refused": refusals(d),
        "settings": [{"name": s.name, "a": s.a, "b": s.b, "differs": s.differs} for s in d.settings],
        "parts": [
            {"name": p.name, "a_ns": p.a.ns, "b_ns": p.b.ns, "ns": p.ns,
             **({"a_bound_ns": p.a.bound_ns, "b_bound_ns": p.b.bound_ns, "a_bound_known_ns": p.a.known_ns,
                 "b_bound_known_ns": p.b.known_ns, "explained_ns": p.explained_ns, "left_ns": p.left_ns}
                if d.bounded else {})}
            for p in d.parts
        ],
        "changes": [_change(change) for change in d.changes],
        "keys": [{**_key(row.key), "a": _entry(row.a), "b": _entry(row.b), "ns": row.ns} for row in d.keys],
    }


def _files(run: Typical) -> list[str]:
    return list(dict.fromkeys(file for m in run.members for file in m.view.trace.quality.files))


def _run(run: Typical, inside: Inside | None) -> dict[str, Any]:
    return {
        "title": run.title or None, "files": _files(run),
        "step_ns": run.step_ns, "repetitions": run.repetitions, "hidden_communication_ns": run.hidden_ns,
        "recordings": [{"files": _files(one), "step_ns": one.step_ns, "repetitions": one.repetitions}
                       for one in run.recordings],
        "inside_collectives": None if inside is None else {
            "waiting_ns": inside.waiting_ns, "transfer_ns": inside.transfer_ns, "collectives": inside.collectives},
        "members": [
            {"label": m.label, "rank": m.rank, "steps": m.kept.words, "with_pause": m.kept.with_pause,
             "set_apart": m.kept.apart, "step_ns": [end - start for start, end in m.kept.windows]}
            for m in run.members
        ],
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind, "ns": change.ns, "group": change.group, "family": change.family,
        "operators": list(change.operators), "before_names": list(change.before_names),
        "after_names": list(change.after_names), "before": _amount(change.before), "after": _amount(change.after),
        "ratio": change.ratio, "standard_error_ns": change.scatter_ns, "doubtful": change.doubtful,
        "keys": [_key(key) for key in change.keys],
    }


def _amount(amount: Amount) -> dict[str, Any]:
    return {"ns": amount.ns, "runs": amount.runs, "each_ns": amount.each_ns, "bound_ns": amount.bound_ns}


def _entry(entry: Entry) -> dict[str, Any]:
    return {"ns": entry.ns, "runs": entry.runs, "each_ns": entry.each_ns, "standard_error_ns": entry.scatter_ns}


def _key(key: Key) -> dict[str, str]:
    return {"part": key.part, "operator": key.operator, "name": key.name}
