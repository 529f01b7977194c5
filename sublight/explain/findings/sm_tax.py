"""SL307: how much of the time above the bound beside communication comes from the SMs that communication holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sublight.bound import bound
from sublight.device import Limits
from sublight.explain.bounds import said
from sublight.explain.calls import OpCall
from sublight.explain.findings.sms_held import held_blocks
from sublight.explain.owned_calls import beside_communication, owned_calls
from sublight.explain.view import View
from sublight.explain.words import cut, ms, number, of_window, percent, units
from sublight.finding import Finding
from sublight.ops.op import Op

CODE, TITLE = "SL307", "SM tax of communication on bounds"
SMALLEST_SHARE = 0.005       # of the window, as what the bounds differ by


@dataclass(slots=True)
class _Row:
    """Calls of one operator beside communication, in ns."""

    count: int = 0
    took: float = 0.0
    whole: float = 0.0                   # least time with all SMs
    left: float = 0.0                    # least time with those that communication leaves
    inferred: bool = False

    @property
    def explained(self) -> float:
        return min(self.left, self.took) - min(self.whole, self.took)


def find(view: View) -> Iterable[Finding]:
    """Fires where the bounds of compute beside communication rise by 0.5 % of the window with the SMs that are left."""
    mine, held = owned_calls(view), held_blocks(view)
    if mine is None or not held or not view.budget.communication.hidden_ns:
        return
    sms, a = mine.limits.sms, view.trace.activities
    held = min(held, sms - 1)
    beside = beside_communication(view)
    rows: dict[tuple[str, str], _Row] = {}
    answers: dict[tuple[Op, ...], float | None] = {}
    for call, _ in mine.calls():
        members = list(call.activities)
        near, whole = int(beside[members].sum()), int(a.dur_ns[members].sum())
        if call.bound is None or not near or call.work is None or call.work.messages:
            continue
        if call.ops not in answers:
            answers[call.ops] = _seconds_left(call, mine.limits, sms - held)
        left = answers[call.ops]
        if left is None:
            continue
        row = rows.setdefault((call.name, "; ".join(dict.fromkeys(map(said, call.ops)))), _Row())
        share = near / whole * 1e9
        row.count, row.took, row.inferred = row.count + 1, row.took + near, row.inferred or call.inferred
        row.whole, row.left = row.whole + call.bound.seconds * share, row.left + left * share
    explained = sum(row.explained for row in rows.values())
    if explained <= 0 or view.share(int(explained)) < SMALLEST_SHARE:
        return
    took, least, left_ns = (sum(getattr(row, name) for row in rows.values()) for name in ("took", "whole", "left"))
    above = sum(max(row.took - row.whole, 0.0) for row in rows.values())
    ranked = sorted(rows.items(), key=lambda item: (-item[1].explained, item[0]))
    what = units(view)
    yield Finding(
        CODE, TITLE,
        f"beside communication, which holds {held} of {sms} {what}, kernels of known work run for "
        f"{of_window(view, int(took))}, {ms(above)} of it above their bound; the {what} that are held explain "
        f"{ms(explained)} ({percent(explained / above)}) of that",
        (f"bound on all {sms} {what}: {ms(least)}; on the {sms - held} left: {ms(left_ns)}; measured: {ms(took)}",
         *(f"{name} ({cut(ops, 48)}): {ms(row.took)} of {number(row.count, 'call')}, bound {ms(row.whole)}, on what is "
           f"left {ms(row.left)}{'; inferred' if row.inferred else ''}" for (name, ops), row in ranked[:4])),
        f"An explanation, not a further gain: see SL102 for what fewer held {what} would save. What is left above the "
        "bound has another cause: shared memory bandwidth, tiles (SL303), clocks",
        "medium", None,
        ("arithmetic alone is scaled; memory is not, since some of the SMs saturate it",
         "a block is taken to hold one whole SM"),
    )


def _seconds_left(call: OpCall, limits: Limits, sms: int) -> float | None:
    """The least time of a call's ops, one after the other, on so many SMs; at least that on all."""
    each = [bound(op.work(), limits, sms=sms) for op in call.ops]
    if call.bound is None or not each or None in each:
        return None
    return max(call.bound.seconds, sum(b.seconds for b in each if b))
