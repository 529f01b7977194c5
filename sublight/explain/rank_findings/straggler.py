"""SL104: a rank that comes late to collectives, so that the others wait for it."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.explain.ranks import Ranks
from sublight.explain.words import ms, number, percent
from sublight.finding import Finding

CODE, TITLE = "SL104", "straggler rank"
SMALLEST_SHARE = 0.01
RESIDUALS = 2                # per collective, that lateness must exceed to be no matter of clocks
OF_THE_WORST = 0.5
FEW = 3                      # collectives: the clocks were aligned by them, so that they cannot check each other


def find_ranks(ranks: Ranks) -> Iterable[Finding]:
    """Fires for the rank that costs most, and for those that cost half as much or more, where the lateness is at least
    1 % of the window, and beyond what the clocks leave open."""
    if ranks.residual is None or not ranks.stragglers:
        return
    worst = ranks.stragglers[0].late_ns
    for s in ranks.stragglers:
        noise = RESIDUALS * ranks.residual.median_ns * s.collectives
        if not s.late_ns or s.late_ns < max(SMALLEST_SHARE * ranks.window_ns, noise, OF_THE_WORST * worst):
            break
        each = f" ({ms(s.late_ns / ranks.steps)} a step)" if ranks.steps else ""
        others = [other for other in ranks.stragglers if other.member != s.member]
        least, most = ms(min(o.waiting_ns for o in others)), ms(max(o.waiting_ns for o in others))
        behind = [f"{ranks.labels[o.member]} {ms(o.late_ns)}" for o in others if 0 < o.late_ns < s.late_ns][:2]
        yield Finding(
            CODE, TITLE,
            f"{ranks.labels[s.member]} comes last to {s.last_in} of {number(s.collectives, 'collective')} and holds up "
            f"the others by {ms(s.late_ns)}{each}, {percent(s.late_ns / ranks.window_ns)} of the window",
            (f"if it alone had come with the one before it: {ms(s.alone_ns)}",
             f"it waits {ms(s.waiting_ns)} inside collectives; the others {least}"
             + (f" to {most}" if most != least else ""),
             *(("after it: " + ", ".join(behind),) if behind else ()),
             f"ends of {number(ranks.residual.collectives, 'collective')} agree within {ms(ranks.residual.median_ns)} "
             f"(median; at most {ms(ranks.residual.max_ns)}) after alignment of the clocks"),
            "Compare what it does before the collectives that it comes late to: more or slower kernels (SL105), a "
            "clock held down by heat or power, late launches, more input",
            "medium" if ranks.ranks_not_given or ranks.residual.collectives < FEW else "high",
            min(s.late_ns, ranks.window_ns), _caveats(ranks),
        )


def _caveats(ranks: Ranks) -> tuple[str, ...]:
    out = ["an upper limit: lateness shared with other ranks goes only when they come earlier too, and waiting that "
           "compute hides costs nothing"]
    if ranks.residual and ranks.residual.collectives < FEW:
        out.append("so few collectives were matched that nothing checks the alignment of the clocks")
    if ranks.ranks_not_given:
        out.append(f"{number(ranks.ranks_not_given, 'rank')} of the run not given: another may come later still")
    return tuple(out)
