"""This file knows about pipeline schedules: how long a rank waits for other stages in a step.

    f, b, w   forward, backward (with w, and with what is recomputed), and weights' gradients of one micro-batch
    p, m, v   stages, micro-batches, chunks of a stage

    >>> even = [StageTime(1.0, 2.0, 1.0)] * 8
    >>> waiting("1f1b", even, 16), waiting("interleaved", even, 16, 4), waiting("zero-bubble", even, 16)
    (21.0, 5.25, 7.0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sublight.errors import InputError

SCHEDULES = ("1f1b", "interleaved", "zero-bubble", "dualpipe", "gpipe")


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds of one micro-batch on one stage."""

    forward: float
    backward: float
    weight: float = 0.0

    @property
    def both(self) -> float:
        return self.forward + self.backward


def waiting(schedule: str, stages: Sequence[StageTime], micro_batches: int, chunks: int = 1) -> float:
    """Seconds of a step in which the slowest stage waits for the others: fill and drain.

        1f1b, gpipe   Σ of f + b over the other stages: (p - 1)(f + b) where stages are even
        interleaved   that over v (Narayanan et al., arXiv 2104.04473, section 2.2)
        zero-bubble   f + b - 2w of each other stage, ZB-H1 (Qi et al., arXiv 2401.10241, table 2: T_F + T_B - T_W)
        dualpipe      (p/2 - 1)(f&b + b - 3w) (DeepSeek-V3 report, arXiv 2412.19437, table 2), f&b: a forward and a
                      backward chunk that overlap, here f + b

    A step takes m times the slowest stage's f + b and this. Raises InputError for a schedule that is not known.
    """
    if schedule not in SCHEDULES:
        raise InputError(f"no schedule '{schedule}'; known: {', '.join(SCHEDULES)}")
    if len(stages) < 2 or micro_batches < 1:
        return 0.0
    slowest = max(range(len(stages)), key=lambda index: stages[index].both)
    others = [stage for index, stage in enumerate(stages) if index != slowest]
    if schedule == "zero-bubble":
        return sum(max(0.0, stage.both - 2 * stage.weight) for stage in others)
    if schedule == "dualpipe":
        mean = sum(stage.forward + 2 * stage.backward - 3 * stage.weight for stage in stages) / len(stages)
        return max(0.0, (len(stages) / 2 - 1) * mean)
    fill: float = sum(stage.both for stage in others)
    return fill / max(1, chunks) if schedule == "interleaved" else fill
