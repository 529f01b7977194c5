"""This file knows about the rows of a difference: runs, settings, parts, changes, ranks. No format."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from sublight.explain.words import cut, ms, number, percent
from sublight.guard.attribute import Difference, PartChange
from sublight.guard.changes import Change
from sublight.guard.runs import words
from sublight.guard.typical import Typical
from sublight.observe.kernel_name import classify

Row = tuple[str, ...]
SPACES = re.compile(r"(?:at::native|c10|std|\(anonymous namespace\))::|\(int\)|\bvoid (?=\w)")
NUMBERS = re.compile(r"<(?:\d+, )+")
NUMBERED = re.compile(r"\[\d+\]$")
CASTS = re.compile(r"(?:at::native|c10|<unnamed>|\(anonymous namespace\))::|\((?:int|bool|unsigned long)\)(?=\d)|"
                   r"\bvoid (?=\w)")
MOST_CHANGES, MOST_NAMES, NAME, WHOLE_NAME = 16, 3, 58, 240
SETTINGS_HEAD = ("what differs", "A", "B")
MEMBERS_HEAD = ("", "A", "B", "B − A")
KINDS = {"longer gap": "gap longer", "shorter gap": "gap shorter"}


def signed(ns: float) -> str:
    """A difference of times: "+1.234 ms", "−12.3 µs", "0 ns"."""
    return ms(ns) if not ns else ("+" if ns > 0 else "−") + ms(abs(ns))


def share(ns: int, of_ns: int) -> str:
    """A difference as a share: "+1.2 %"."""
    if not of_ns:
        return ""
    return ("+" if ns > 0 else "−" if ns < 0 else "") + percent(abs(ns / of_ns))


def verdict(d: Difference) -> str:
    """One sentence: how much longer B's step takes, and the largest parts of that."""
    if not d.ns:
        rest = "" if all(not part.ns for part in d.parts) else "; what changed inside cancels out"
        return f"B's step takes as long as A's, {ms(d.a.step_ns)}{rest}."
    more = "longer" if d.ns > 0 else "less"
    parts = sorted((part for part in d.parts if part.ns), key=lambda part: -abs(part.ns))[:3]
    told = ", ".join(f"{part.name} {signed(part.ns)}" for part in parts)
    return (f"B's step takes {ms(abs(d.ns))} {more} ({share(d.ns, d.a.step_ns)}): {ms(d.a.step_ns)} in A, "
            f"{ms(d.b.step_ns)} in B. Of that: {told}.")


def judged(d: Difference) -> str:
    """Whether B's step is worse, as far as one recording of each tells."""
    v = d.verdict
    between = f"{percent_of(v.change)}, between {percent_of(v.low)} and {percent_of(v.high)}"
    what = "recordings" if d.a.recordings or d.b.recordings else "recordings of each side, in turns,"
    more = [f"at least {v.more_runs} more {what} would be needed to tell"] if v.more_runs else []
    return f"{'; '.join((f'Step time: {v.state}, {between}', *v.evidence, *more))}."


def collectives_line(d: Difference) -> str | None:
    """Whether collectives take longer to transfer or wait for a peer, where several ranks tell; None where nothing of
    both changed."""
    a, b = d.inside
    if a is None or b is None or (a.waiting_ns, a.transfer_ns) == (b.waiting_ns, b.transfer_ns):
        return None
    said = [f"{what} {ms(before)} in A, {ms(after)} in B ({signed(after - before)})" for what, before, after in (
        ("waiting for peers", a.waiting_ns, b.waiting_ns), ("transfer", a.transfer_ns, b.transfer_ns))]
    return f"Inside matched collectives, a step of one device: {'; '.join(said)}."


def percent_of(change: float) -> str:
    """A change as a share: "+1.2 %"."""
    if not math.isfinite(change):
        return "unbounded"
    return f"{change:+.1%}".replace("%", " %").replace("-", "−")


def run_line(name: str, run: Typical) -> str:
    """What one side is: files, ranks, and which step is compared."""
    files = dict.fromkeys(file for m in run.members for file in m.view.trace.quality.files)
    first = next(iter(files)) if len(files) == 1 else f"{len(files)} files"
    which = run.members[0].kept
    said = [f"{name}: {run.title or first}"]
    if run.recordings:
        said.append(f"{len(run.recordings)} recordings")
    devices = len({m.label for m in run.members})
    if devices > 1:
        said.append(number(devices, "device"))
    said.append(f"step {ms(run.step_ns)}")
    pause = ", each up to the start of the next" if which.with_pause else ""
    said.append(f"mean of {run.repetitions:,} repetitions{pause}" if run.repetitions > 1 else "one repetition")
    apart = sum(m.kept.apart for m in run.members)
    if apart:
        said.append(f"{number(apart, 'repetition')} of other length set apart")
    return f"{' · '.join(said)} ({which.words})"


def settings_rows(d: Difference) -> list[Row]:
    """What is recorded otherwise in B."""
    return [(s.name, s.a or "not said", s.b or "not said") for s in d.settings if s.differs]


def parts_head(d: Difference) -> Row:
    return ("part of the step", "A", "B", "B − A", *(("by the bounds", "left") if d.bounded else ()))


def parts_rows(d: Difference) -> list[Row]:
    """One line a part, largest change first, then the whole step."""
    parts = sorted(d.parts, key=lambda part: (-abs(part.ns), part.name))
    rows = [(part.name, ms(part.a.ns), ms(part.b.ns), signed(part.ns), *_bounds(d, part)) for part in parts]
    explained = sum(part.explained_ns for part in d.parts)
    whole = (signed(explained), signed(d.ns - explained)) if d.bounded else ()
    return [*rows, ("= step", ms(d.a.step_ns), ms(d.b.step_ns), signed(d.ns), *whole)]


def _bounds(d: Difference, part: PartChange) -> Row:
    if not d.bounded:
        return ()
    if not part.a.known_ns and not part.b.known_ns:
        return ("", signed(part.ns))
    return signed(part.explained_ns), signed(part.left_ns)


def bounds_line(d: Difference) -> str | None:
    """How much of each step has a known bound, and how far each is from it."""
    if not d.bounded:
        return None
    said = []
    for name, run in (("A", d.a), ("B", d.b)):
        entries = run.entries.values()
        known, bound = sum(e.known_ns for e in entries), sum(e.bound_ns for e in entries)
        at = f", which could run in {percent(bound / known)} of its time" if known else ""
        said.append(f"of {name}'s step {percent(known / run.step_ns)} has a known bound{at}")
    return f"By the bounds: what other hardware or other work explains; {'; '.join(said)}"


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One change in words."""

    ns: str
    kind: str
    what: str
    detail: str


def change_rows(d: Difference, most: int | None = MOST_CHANGES) -> list[ChangeRow]:
    """The largest changes in words; the rest as one line, so that they sum to the difference."""
    few = d.changes if most is None else d.changes[:most]
    told = labels(_names(few))
    rows = [change_row(change, told) for change in few]
    rest = d.changes[len(few):]
    if rest:
        rows.append(ChangeRow(signed(sum(c.ns for c in rest)), "other", f"{len(rest)} smaller ones",
                              f"from {signed(min(c.ns for c in rest))} to {signed(max(c.ns for c in rest))}"))
    return rows


def _names(few: Sequence[Change]) -> list[str]:
    """Of the kernels that these changes show, in order; a change that puts small ones together shows none."""
    return [name for change in few if change.kind != "other" for name in (
        *change.before_names[:MOST_NAMES], *change.after_names[:MOST_NAMES])]


def change_row(change: Change, told: Mapping[str, str]) -> ChangeRow:
    """A change in words. told: how the kernels' names are shown."""
    mark = "~" if change.doubtful else ""
    return ChangeRow(mark + signed(change.ns), _kind(change), _what(change, told), _detail(change))


def _kind(change: Change) -> str:
    ratio = change.ratio
    if change.kind in ("slower", "faster") and ratio is not None:
        return f"{change.kind} {ratio:.2f}x"
    return KINDS.get(change.kind, change.kind)


def short(name: str, width: int = NAME) -> str:
    """A kernel's name as tables show it: without the namespaces and numbers that say nothing."""
    return cut(NUMBERS.sub("<", SPACES.sub("", classify(name).short or name)), width)


def labels(names: Iterable[str], width: int = NAME) -> dict[str, str]:
    """How each name is shown. Names that are short the same way, as kernels that differ in a template argument are,
    get a number each: `elementwise_kernel<gpu_kernel_impl_nocast<at…> [2]`; `footnotes` says them in full."""
    alike: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        alike.setdefault(short(name, width), []).append(name)
    numbers = count(1)
    return {name: label if len(group) == 1 else f"{label} [{next(numbers)}]"
            for label, group in alike.items() for name in group}


def footnotes(told: Mapping[str, str]) -> list[str]:
    """Names that got a number, nearly whole; where their beginnings are the same, their ends."""
    numbered = [(CASTS.sub("", name), found[0]) for name, label in told.items() if (found := NUMBERED.search(label))]
    heads = [cut(name, WHOLE_NAME) for name, _ in numbered]
    return [f"{number} {head if heads.count(head) == 1 else '…' + name[1 - WHOLE_NAME:]}"
            for (name, number), head in zip(numbered, heads, strict=True)]


def named(names: tuple[str, ...], told: Mapping[str, str]) -> str:
    """Some kernels: those that take longest, and how many more."""
    said = ", ".join(told.get(name) or short(name) for name in names[:MOST_NAMES])
    return said + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")


def _what(change: Change, told: Mapping[str, str]) -> str:
    names = change.before_names or change.after_names
    if change.kind == "other":
        both = {*change.before_names, *change.after_names}
        return f"{change.family}: {number(len(both), 'name')} with a small change"
    if change.gap:
        return f"before {named(change.after_names or names, told)}"
    if change.kind == "replaced":
        gone = tuple(n for n in change.before_names if n not in change.after_names)
        new = tuple(n for n in change.after_names if n not in change.before_names)
        return f"{named(gone or change.before_names, told)} by {named(new or change.after_names, told)}"
    return named(tuple(dict.fromkeys((*change.before_names, *change.after_names))), told)


def _detail(change: Change) -> str:
    a, b = change.before, change.after
    names = {*change.before_names, *change.after_names}       # an operator of a CPU-only run has no other name
    said = [change.family] if change.family not in ("", *names) and change.kind != "other" else []
    operators = [operator for operator in change.operators if operator not in names]
    if operators:
        told = ", ".join(operators[:2])
        said.append(told + (f" and {len(operators) - 2} more" if len(operators) > 2 else ""))
    if change.kind == "other":
        return ", ".join(said)
    what = "gap" if change.gap else "run"
    runs = (number(1, what) if _count(a.runs) == _count(b.runs) == "1" else
            f"{_count(b.runs)} {what}s" if _count(a.runs) == _count(b.runs) else
            f"{_count(a.runs)} → {_count(b.runs)} {what}s")
    lengths = [ms(side.each_ns) for side in (a, b) if side.runs]
    each = " → ".join(dict.fromkeys(lengths))
    said.append(f"{runs} a step of {each}")
    if a.bound_ns and b.bound_ns:
        said.append(f"bound {ms(a.bound_ns)} → {ms(b.bound_ns)}")
    return "; ".join(said)


def _count(runs: float) -> str:
    return f"{runs:,.0f}" if abs(runs - round(runs)) < 0.005 else f"{runs:,.2f}"


def member_rows(d: Difference) -> list[Row]:
    """The mean step of each device, where there are several: those of the same label side by side."""
    def steps(run: Typical) -> dict[str, float]:
        of: dict[str, list[int]] = {}
        for m in run.members:            # of several recordings, the same label in each
            of.setdefault(m.label, []).extend(end - start for start, end in m.kept.windows)
        return {label: sum(windows) / len(windows) for label, windows in of.items()}

    a, b = steps(d.a), steps(d.b)
    if max(len(a), len(b)) < 2:
        return []
    return [(label, ms(a[label]) if label in a else "", ms(b[label]) if label in b else "",
             signed(b[label] - a[label]) if label in a and label in b else "") for label in dict.fromkeys((*a, *b))]


def refusals(d: Difference) -> list[str]:
    """What either file cannot support of what is compared: idle time, its causes, kernel counts."""
    out: dict[str, None] = {}
    for side, run in (("A", d.a), ("B", d.b)):
        for refusal in (r for m in run.members for r in m.view.refusals):
            if "idle" in refusal.what:
                out[f"{side} cannot tell {refusal.what}: {refusal.why}; capture {refusal.capture}"] = None
    return list(out)


def notes(d: Difference, most: int | None = MOST_CHANGES) -> list[str]:
    """What a reader must know to trust the tables; most: of the changes that are shown."""
    out = [*refusals(d), *footnotes(labels(_names(d.changes[:most])))]
    several = d.a.recordings or d.b.recordings
    if any(change.doubtful for change in d.changes):
        means = "recordings' means" if several else "repetitions' means"
        out.append(f"~ is within twice the standard error of the {means}: it may be chance")
    if d.changes and not several and d.verdict.state == "cannot tell":
        out.append("One recording of each: what changed did so between these two; whether it would come again, several "
                   "of each side tell (sublight diff A1 A2 … --against B1 B2 …)")
    paused = {run.members[0].kept.with_pause for run in (d.a, d.b)}
    if len(paused) > 1:
        out.append("only one of the two steps includes the pause before the next one: the other file holds one step")
    out += words(d.a, d.b)
    if (line := bounds_line(d)) is not None:
        out.append(line)
    hidden = d.b.hidden_ns - d.a.hidden_ns
    if d.a.hidden_ns or d.b.hidden_ns:
        both = f"{ms(d.a.hidden_ns)} → {ms(d.b.hidden_ns)}"
        out.append(f"Beside the parts: hidden communication {both} ({signed(hidden)})")
    return out
