"""This file knows about windows: which stretch of a device's time is accounted for, and why that one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sublight.errors import InputError
from sublight.explain.links import Links
from sublight.explain.steps import Steps

UNITS_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class Window:
    """What the user asked for: "default", "step", "all", or an interval in ns from the first activity."""

    kind: str
    start_ns: int = 0
    end_ns: int = 0

    @classmethod
    def parse(cls, text: str) -> Window:
        """Raises InputError unless text is step, all or A:B (numbers with ns, us, ms or s; ms if none)."""
        if text in ("default", "step", "all"):
            return cls(text)
        found = re.fullmatch(r"([\d.]+)(ns|us|µs|ms|s)?:([\d.]+)(ns|us|µs|ms|s)?", text)
        try:
            if found:
                start = round(float(found[1]) * UNITS_NS[found[2] or "ms"])
                end = round(float(found[3]) * UNITS_NS[found[4] or "ms"])
                if start < end:
                    return cls("A:B", start, end)
        except ValueError:
            pass
        raise InputError(f"no window '{text}'; expected step, all, or A:B such as 10ms:25ms (with A before B)")


class OutsideError(InputError):
    """The window that was asked for lies behind a device's last activity."""


Chosen = tuple[str, str, tuple[tuple[int, int], ...]]


def chosen(
    wanted: Window, known: Steps, step_windows: tuple[tuple[int, int], ...], span: tuple[int, int],
    links: Links | None,
) -> Chosen:
    """(name, reason in words, disjoint windows in ns)."""
    low, high = span
    if wanted.kind == "A:B":
        start, end = low + wanted.start_ns, min(low + wanted.end_ns, high)
        if start >= high:
            raise OutsideError(
                f"the window begins {wanted.start_ns / 1e6:.3f} ms after the first activity, but the device's "
                f"span is only {(high - low) / 1e6:.3f} ms"
            )
        return "A:B", "as asked", ((start, end),)
    everything = ((low, high),)
    if wanted.kind == "all":
        return "all", "as asked: first to last activity", everything
    why_not = _why_no_steps(known, links)
    if why_not is None:
        together = sum(s.window[1] - s.window[0] for s in known.steps if s.window)
        overlapped = together > sum(end - start for start, end in step_windows)
        return "step", known.words + (", whose windows overlap" if overlapped else ""), step_windows
    if wanted.kind == "step":
        raise InputError(f"no window of steps: {why_not}; use --window all")
    return "all", why_not, everything


def _why_no_steps(known: Steps, links: Links | None) -> str | None:
    """Why steps cannot be the window, or None if they can."""
    if not known.steps:
        return known.words
    if known.found:
        return None                      # from the activities themselves: no launch is needed to place them
    empty = [s for s in known.steps if s.window is None]
    if empty:
        return f"{len(empty)} of {len(known.steps)} marked steps have no linked activity on this device"
    lost = sum(s.lost_launches for s in known.steps)
    if lost:
        return f"{lost} launches inside the marked steps have no kernel in the file"
    if links is not None and links.linked == 0:
        return "no activity is linked to its launch"
    return None
