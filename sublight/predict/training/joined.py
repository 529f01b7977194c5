"""This file knows about a training step put together: pieces times a framework's constants, hidden and exposed parts.

    step = m · slowest stage + waiting for the others + hops + gradients + parameters + optimizer + fixed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp

from sublight.plan import Training
from sublight.predict.optime import mixed_shares
from sublight.predict.training.constants import Constants, years
from sublight.predict.training.overlap import exposed
from sublight.predict.training.schedule import StageTime, waiting
from sublight.predict.training.spent import PassSpent, Pieces, Spent

HIDDEN = 0.8                             # of the ring's keys and values, beside attention: judgement


@dataclass(frozen=True, slots=True)
class Joined:
    """Seconds of a step by part; they sum to the step."""

    parts: Mapping[str, Spent]
    stages: tuple[StageTime, ...]

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts.values())

    @property
    def shares(self) -> dict[str, float]:
        """Of machine.RATES, summing to 1."""
        return mixed_shares((part.seconds, part.shares) for part in self.parts.values())


def joined(made: Pieces, plan: Training, known: Constants, tags: tuple[str, ...], *, fixed: float = 1.0) -> Joined:
    """The step. fixed: factor of the what-if on fixed costs."""
    each = {id(stage): tuple(_scaled(one, plan, known, tags, fixed) for one in stage[:2]) for stage in made.stages}
    passes = [each[id(stage)] for stage in made.stages]
    stages = tuple(StageTime(_sum(f), _sum(b), made.stages[i][1].weight * _compute(b))
                   for i, (f, b) in enumerate(passes))
    slowest = max(range(len(stages)), key=lambda index: stages[index].both)
    m = made.micro_batches
    parts = _times(m, *passes[slowest])
    typical = mixed_shares((part.seconds, part.shares) for part in parts.values())
    parts["waiting"] = Spent(waiting(plan.schedule, stages, m, plan.vpp), typical)
    hops = 2 * plan.vpp * (m + plan.pp - 1) * known.value("p2p", tags) if plan.pp > 1 else 0.0
    parts["hops"] = Spent(hops * made.hop.seconds, made.hop.shares)
    parts.update(_replicas(made, plan, known, tags, stages[slowest]))
    parts["fixed"] = Spent(known.value("fixed", tags) / fixed)
    return Joined({name: part for name, part in parts.items() if part.seconds > 0}, stages)


def _sum(parts: Mapping[str, Spent]) -> float:
    return sum(part.seconds for part in parts.values())


def _compute(parts: Mapping[str, Spent]) -> float:
    return sum(part.seconds for kind, part in parts.items() if kind not in ("tp", "ep", "cp", "host"))


def _times(m: int, *passes: Mapping[str, Spent]) -> dict[str, Spent]:
    """m micro-batches of a forward and a backward pass, by kind."""
    out: dict[str, Spent] = {}
    for kind in {kind: None for made in passes for kind in made}:
        rows = [(m * made[kind].seconds, made[kind].shares) for made in passes if kind in made]
        out[kind] = Spent(sum(seconds for seconds, _ in rows), mixed_shares(rows))
    return out


def factor(kind: str, plan: Training, known: Constants, tags: tuple[str, ...]) -> float:
    """By what a framework multiplies a kind of operator; of exchanges times what compute does not hide."""
    shown = 1.0
    if kind == "cp":
        shown = 1 - HIDDEN
    elif (kind == "tp" and plan.overlap_tp) or (kind == "ep" and plan.overlap_ep):
        shown = known.value(f"{kind} exposed", tags)
    return known.value(kind, tags) * shown * newer(plan, known, tags)


def newer(plan: Training, known: Constants, tags: tuple[str, ...]) -> float:
    """What releases gained since the one that the constants are of, 26.04."""
    return exp(-known.value("drift", tags) * years(plan))


def _scaled(made: PassSpent, plan: Training, known: Constants, tags: tuple[str, ...], fixed: float) -> dict[str, Spent]:
    """A pass by kind, with what the host adds where it is slower than the device."""
    out = {kind: Spent(part.seconds * factor(kind, plan, known, tags), part.shares)
           for kind, part in made.by_kind.items()}
    device = _sum(out)
    host = (made.calls * known.value("launch", tags) + made.experts * known.value("sync", tags)
            + made.products * known.value("grouped", tags)) * newer(plan, known, tags) / fixed
    if host > 0 and device > 0:
        sharp, slower = known.value("sharp", tags), max(device, host)
        out["host"] = Spent(slower * (1 + (min(device, host) / slower) ** sharp) ** (1 / sharp) - device)
    return out


def _replicas(
    made: Pieces, plan: Training, known: Constants, tags: tuple[str, ...], stage: StageTime,
) -> dict[str, Spent]:
    """What replicas exchange, where compute does not hide it. FSDP gathers before each pass, and scatters after each
    backward pass (Zhao et al., arXiv 2304.11277, section 3); others once a step, beside the last micro-batch."""
    share = {"gradients": known.value("gradients", tags) if plan.overlap_grad else 1.0,
             "parameters": known.value("parameters", tags) if plan.overlap_param else 1.0}
    again = made.micro_batches if plan.zero == 3 else 1
    gradients = exposed(made.gradients.seconds, stage.backward, share["gradients"])
    gathers = exposed(made.parameters.seconds, stage.forward, share["parameters"])
    if plan.zero == 3:
        gathers += exposed(made.parameters.seconds, max(0.0, stage.backward - made.gradients.seconds),
                           share["parameters"])
    factor = known.value("replicas", tags)
    return {"gradients": Spent(again * factor * gradients, made.gradients.shares),
            "parameters": Spent(again * factor * gathers, made.parameters.shares),
            "optimizer": Spent(known.value("optimizer", tags) * made.optimizer.seconds, made.optimizer.shares)}
