"""This file knows about what a run was, as far as its traces say from an allow-list: device, software, recording, and
how good the recording is. Flags, host names and command lines of a file are never read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sublight.explain import View
from sublight.explain.words import percent, recorded_extras
from sublight.guard.typical import Typical
from sublight.result import Result
from sublight.trace import WHOLE_GRAPHS

# Of Result.about: outcomes, which tell runs apart and are no settings
MEASURED = {"run", "started", "completed", "failed", "duration", "isl", "osl", "steps", "samples"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One entry of both runs, in words. None: the trace does not say."""

    name: str
    a: str | None
    b: str | None

    @property
    def differs(self) -> bool:
        return self.a != self.b


def settings(a: Typical, b: Typical) -> tuple[Setting, ...]:
    """Everything that is known of both, in one order; those that differ are what matters."""
    of_a, of_b = _of(a), _of(b)
    return tuple(Setting(name, of_a.get(name), of_b.get(name)) for name in dict.fromkeys((*of_a, *of_b)))


def _of(run: Typical) -> dict[str, str]:
    views = [m.view for m in run.members]
    ranks = {m.rank if m.rank is not None else i for i, m in enumerate(run.members)}
    out = {
        "device": _each(views, lambda v: v.info.name or (v.catalogued.title if v.catalogued else None)),
        "SMs": _each(views, lambda v: str(v.sms) if v.sms else None),
        "device memory": _each(views, _memory),
        "ranks read": str(len(ranks)),
        "ranks of the run": _each(views, lambda v: str(v.trace.world_size) if v.trace.world_size else None),
        "backend": _each(views, lambda v: v.trace.recording.backend),
        "engine": _each(views, lambda v: v.engine),
    }
    versions = {what: None for v in views for what, _ in v.trace.recording.versions}
    for what in versions:
        out[what] = _each(views, lambda v, what=what: dict(v.trace.recording.versions).get(what))  # type: ignore[misc]
    out |= {
        "CUDA graphs": _each(views, _graphs),
        "recorded with": _each(views, lambda v: v.trace.recording.tool),
        "shapes and stacks": _each(views, lambda v: " and ".join(sorted(recorded_extras(v))) or "neither"),
        "steps": _each(views, lambda v: v.step_kind or "none"),
        "kernels of a step": f"{len(run.members[0].sequence):,}",
        "damage": _each(views, _damage),
    }
    return {name: value for name, value in out.items() if value is not None}


def settings_of_results(a: Sequence[Result], b: Sequence[Result]) -> tuple[Setting, ...]:
    """What the results say that they belong to: tool, versions, model, arguments, load. What they measured is left
    out."""
    of_a, of_b = _said_of(a), _said_of(b)
    return tuple(Setting(name, of_a.get(name), of_b.get(name)) for name in dict.fromkeys((*of_a, *of_b)))


def _said_of(results: Sequence[Result]) -> dict[str, str]:
    values: dict[str, dict[str, None]] = {}
    for result in results:
        for name, value in _flat(result.about):
            values.setdefault(name, {})[value] = None
    return {name: "; ".join(several) for name, several in values.items()}


def _flat(about: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in about.items():
        if name in MEASURED:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", f"{value:g}" if isinstance(value, float) else str(value)


def _each(views: Iterable[View], what: Callable[[View], str | None]) -> str | None:
    """What all devices say, once."""
    said = list(dict.fromkeys(value for view in views if (value := what(view)) is not None))
    return "; ".join(said) if said else None


def _memory(view: View) -> str | None:
    return f"{view.info.memory_bytes / 2**30:.1f} GiB" if view.info.memory_bytes else None


def _graphs(view: View) -> str | None:
    links = view.links
    if links is None or not links.kernel_ns:
        return None
    if view.trace.quality.kept.get(WHOLE_GRAPHS):
        return "recorded as a whole"
    share = links.graph_ns / links.kernel_ns
    return "none" if not share else f"{percent(round(share, 2))} of kernel time"


def _damage(view: View) -> str:
    quality, links = view.trace.quality, view.links
    said = [f"{count:,} {what}" for count, what in (
        (quality.lost, "events lost"), (sum(quality.repaired.values()), "repaired"),
        (links.launches_without_activity if links else 0, "launches without kernel"),
    ) if count]
    return ", ".join([*said, *(["cut short"] if quality.cut_short else [])]) or "none"
