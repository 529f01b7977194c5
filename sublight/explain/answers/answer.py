"""This file knows about what an answer to a pasted text consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sublight.models import Model
from sublight.observe.logs.log import Log
from sublight.plan import Job, Serving, Traffic, Training
from sublight.predict.machine import Machine
from sublight.result import Result


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says besides the text; it wins over the text."""

    gpus: str | None = None
    model: str | None = None
    isl: int | None = None
    osl: int | None = None
    concurrency: int | None = None


@dataclass(frozen=True)
class Case:
    """One run that the text speaks of. None: the text does not say it, and `missing` asks for it by name.

    gpus: how many the text names. own: fields of the plan that have the engine's own defaults of this version. sources:
    where model, plan, GPUs and load come from.
    """

    name: str
    engine: str
    plan: Serving | Training | None = None
    model: Model | None = None
    model_words: str = ""
    where: Machine | None = None
    load: Traffic | Job | None = None
    table: tuple[Result, ...] = ()
    log: Log | None = None
    gpus: int | None = None
    own: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A reported figure beside the expected one (with an 80 % interval)."""

    name: str
    unit: str
    reported: float | None
    expected: float | None = None
    low: float | None = None
    high: float | None = None
    lower_is_better: bool = False

    @property
    def speed(self) -> float | None:
        """Reported over expected as a speed: 0.5 is half as fast as expected."""
        if not self.reported or not self.expected:
            return None
        return self.expected / self.reported if self.lower_is_better else self.reported / self.expected

    @property
    def verdict(self) -> str:
        """"as expected", "slower", "faster", or "" where one of the two is missing."""
        if self.speed is None or self.low is None or self.high is None or self.reported is None:
            return ""
        if self.low <= self.reported <= self.high:
            return "as expected"
        return "slower" if self.speed < 1 else "faster"


@dataclass(frozen=True, slots=True)
class Term:
    """A part of the expected step."""

    name: str
    seconds: float
    share: float
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """One thing that the text supports. topic: "capacity", "layout", "host", "peak", "queue", "plan" …"""

    topic: str
    claim: str
    evidence: tuple[str, ...] = ()
    action: str = ""


@dataclass(frozen=True)
class Judged:
    """A case with what is expected of it."""

    case: Case
    rows: tuple[Row, ...] = ()
    terms: tuple[Term, ...] = ()         # of a decode step, or of a training step's first stage
    step_words: str = ""
    limiter: str = ""
    basis: str = ""
    points: tuple[Point, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PastedAnswer:
    """What was recognised, and what follows from it."""

    recognised: tuple[str, ...]
    cases: tuple[Judged, ...]
    points: tuple[Point, ...]
    missing: tuple[str, ...]
    capture: tuple[str, ...]
    unread: str
    notes: tuple[str, ...] = ()
