"""This file knows about the verdict: one sentence that says what a device's window is made of."""

from __future__ import annotations

from sublight.budget import BLOCKED, DEPENDENCY, IDLE, OTHER_THREADS, OUTSIDE_OPS, STARVED
from sublight.explain.findings.sms_held import held_blocks
from sublight.explain.refusals import LOST_LAUNCHES
from sublight.explain.view import View
from sublight.explain.words import ms, percent, recorded_extras
from sublight.trace import WHOLE_GRAPHS

CAUSES = {
    STARVED: "waiting for launches", BLOCKED: "while the host waits in a synchronising call",
    DEPENDENCY: "waiting for work that was launched in time", OUTSIDE_OPS: "running no operator",
    OTHER_THREADS: "while other threads run operators",
}


def headline(view: View) -> str:
    """One sentence: what bounds the window, and the two figures that show it."""
    budget = view.budget
    if not budget.window_ns:
        return "The window is empty."
    if (lost := _lost(view)) is not None:
        return lost
    compute, exposed = budget.group_ns("compute"), budget.communication.exposed_ns
    largest = max((p for p in budget.parts), key=lambda p: p.ns)
    total = ms(budget.window_ns)
    idle_words = _idle(view)
    if budget.idle_ns >= max(compute, exposed):
        who = "The thread" if view.cpu_only else "The device"
        return f"{who} is idle for {percent(view.share(budget.idle_ns))} of {total}{idle_words}{_slowed(view)}."
    if exposed >= compute:
        kind = "communication or waiting for peers" if budget.communication.undivided_ns else "communication"
        return (f"{percent(view.share(exposed))} of {total} is {kind}, with nothing computing beside it; compute takes "
                f"{percent(view.share(compute))}.")
    said = [f"Compute takes {percent(view.share(compute))} of {total}"]
    if largest.group == "compute":
        said[0] += f" ({largest.name} {percent(view.share(largest.ns))})"
    union = budget.communication.union_ns
    if exposed == union and exposed >= 0.01 * budget.window_ns:
        said.append(f"{percent(view.share(exposed))} is exposed communication")
    elif union >= 0.05 * budget.window_ns:
        text = f"communication is in flight for {percent(view.share(union))}"
        held, sms = held_blocks(view), view.sms
        if budget.communication.hidden_ns and held and sms:
            text += f", mostly hidden, holding {min(held, sms)} of {sms} SMs" if exposed * 2 < union else ""
        text += f"; {percent(view.share(exposed))} is exposed"
        said.append(text)
    if budget.idle_ns >= 0.01 * budget.window_ns:
        said.append(f"{percent(view.share(budget.idle_ns))} is idle{idle_words}{_slowed(view)}")
    return "; ".join(said) + "."


def _idle(view: View) -> str:
    budget = view.budget
    causes = sorted(((budget[p], p) for p in IDLE if budget[p]), reverse=True)
    if not causes or causes[0][1] not in CAUSES:
        return ""
    ns, part = causes[0]
    share = "" if len(causes) == 1 else f"{percent(ns / budget.idle_ns)} of that "
    return f", {share}{CAUSES[part]}"


def _slowed(view: View) -> str:
    """Recording stacks or shapes makes the host slow, and the device idle: said where idle time is."""
    extras = recorded_extras(view)
    return f" (recorded with {' and '.join(extras)}, which inflates it)" if extras else ""


def _lost(view: View) -> str | None:
    """Where activity is missing from the file, idle time means nothing: the verdict is refused."""
    links, empty = view.links, sum(step.window is None for step in view.steps)
    if links is not None and links.launches_without_activity > LOST_LAUNCHES * links.launches:
        why = f"{links.launches_without_activity} of {links.launches} launches have no kernel in the file"
    elif links is not None and links.partial_replays:
        why = f"{links.partial_replays} of {links.graph_launches} CUDA-graph launches show only some of their kernels"
    elif graphs := view.trace.quality.kept.get(WHOLE_GRAPHS):
        why = f"{graphs} CUDA graphs were recorded as a whole, without the kernels and gaps inside"
    elif 2 * empty > len(view.steps):
        why = f"{empty} of {len(view.steps)} marked steps have no activity in the file"
    else:
        return None
    return (f"No verdict on idle time: {why}. What is there fills {percent(view.share(view.budget.busy_ns))} of "
            f"{ms(view.budget.window_ns)}.")
