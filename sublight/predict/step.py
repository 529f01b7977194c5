"""This file knows about the time of one engine step on one rank: its operators, and what the host adds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sublight.models import Batch, Model, Split, ordered_ops, step_ops
from sublight.ops.op import Op
from sublight.predict.machine import Machine
from sublight.predict.operators import op_time
from sublight.predict.optime import OpTime, mixed_shares


@dataclass(frozen=True, slots=True)
class Row:
    """An operator of the step, and how often the rank calls it."""

    label: str
    op: Op
    count: int
    time: OpTime

    @property
    def seconds(self) -> float:
        return self.count * self.time.seconds


@dataclass(frozen=True, slots=True)
class Run:
    """What a step is of."""

    model: Model
    batches: tuple[Batch, ...]
    split: Split
    drafts: int = 0

    def ordered(self) -> Iterator[tuple[str, Op]]:
        """Its operators one by one, labelled, in the order in which a rank does them."""
        return ordered_ops(self.model, self.batches, self.split, drafts=self.drafts)


@dataclass(frozen=True, slots=True)
class StepTime:
    """One pass of one stage. host: seconds that the engine adds where the device waits for it."""

    rows: tuple[Row, ...]
    host: float = 0.0
    run: Run | None = field(default=None, compare=False)   # what was asked: it tells the order of the operators

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows) + self.host

    @property
    def shares(self) -> Mapping[str, float]:
        """Of machine.RATES, summing to 1."""
        return mixed_shares([(row.seconds, row.time.shares) for row in self.rows] + [(self.host, {"fixed": 1.0})])


def step_time(model: Model, batches: tuple[Batch, ...], split: Split, where: Machine, *, drafts: int = 0) -> StepTime:
    """The operators of one rank's step, each with its time."""
    return StepTime(tuple(Row(label, op, count, op_time(op, where))
                          for label, op, count in step_ops(model, batches, split, drafts=drafts)),
                    run=Run(model, batches, split, drafts))
