"""This file knows about the answer to "is this number normal?": an estimate, the steps it is made of, the memory, what
each rate is worth, and the same under a what-if."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log

from sublight.models import Model
from sublight.plan import Disaggregated, Job, Plan, Traffic, Training, Workload
from sublight.predict.estimate import Estimate
from sublight.predict.machine import RATES, Machine
from sublight.predict.memory import Ledger
from sublight.predict.step import StepTime

SHOWN_RATES = {"memory": "HBM", "tensor": "tensor rate", "vector": "other compute", "nvlink": "NVLink", "nic": "NIC",
               "fixed": "fixed costs"}


def limiter_words(limiter: str) -> str:
    """A limiter as it is shown: a rate by its name there, anything else as it is.

    >>> limiter_words("memory"), limiter_words("KV capacity")
    ('HBM', 'KV capacity')
    """
    return SHOWN_RATES.get(limiter, limiter)


@dataclass(frozen=True)
class Answer:
    """Everything that `sublight predict` shows."""

    model: Model
    plan: Plan
    workload: Workload
    where: Machine
    estimate: Estimate
    steps: Mapping[str, StepTime]        # "prefill", "decode" or "training": one typical step each
    memory: Mapping[str, Ledger]         # by role ("GPU", "prefill", "decode", "stage 0" …)
    faster: Mapping[str, float] = field(default_factory=dict)        # of the what-if: rate -> factor
    whatif: Estimate | None = None       # the estimate with those rates
    notes: tuple[str, ...] = ()

    def elasticity(self, step: str) -> dict[str, float]:
        """Per cent of a step's time for one per cent of each rate: they sum to -1. Of training the whole step's, with
        its exchanges between stages and replicas."""
        shares = self.estimate.shares if isinstance(self.plan, Training) else self.steps[step].shares
        return {name: -shares.get(rate, 0.0) for rate, name in SHOWN_RATES.items()}

    def streamed(self, step: str) -> float | None:
        """Seconds that all bytes of a step's operators take at the memory's rate, None where that is not known. No
        bound, since the L2 may hold some; but no L2 holds the weights of a model from one step to the next."""
        rate = self.where.device.limits.memory_bytes_per_second
        moved = sum(row.count * row.op.work().bytes_total for row in self.steps[step].rows)
        return moved / (rate * self.where.factor("memory")) if rate else None


def answer(
    model: Model, plan: Plan, workload: Workload, where: Machine, *, faster: Mapping[str, float] | None = None,
    notes: tuple[str, ...] = (),
) -> Answer:
    """Predict, without and with the what-if's rates.

    Raises InputError where the plan is not valid, or plan and workload are not of one kind.
    """
    other = replace(where, faster={**where.faster, **faster}) if faster else None
    estimate = _estimate(model, plan, workload, where)
    return Answer(
        model, plan, workload, where, estimate, typical_steps(model, plan, workload, where),
        _memory(model, plan, workload, where), dict(faster or {}),
        None if other is None else _estimate(model, plan, workload, other), notes,
    )


def _estimate(model: Model, plan: Plan, workload: Workload, where: Machine) -> Estimate:
    if isinstance(plan, Training):
        assert isinstance(workload, Job)
        from sublight.predict import training

        found = training.estimate(model, plan, workload, where)
        return replace(found, shares=_slopes(model, plan, workload, where, found.value("step time")))
    assert isinstance(workload, Traffic)
    from sublight.predict import serving

    return serving.estimate(model, plan, workload, where)


SMALL = 1.001                            # of a rate, for slopes


def _slopes(model: Model, plan: Training, job: Job, where: Machine, seconds: float) -> dict[str, float]:
    """-d ln time / d ln rate of a training step, rate by rate: what overlaps has no share of its own, so that shares of
    its parts would not tell. They sum to 1, since all rates together scale the step."""
    from sublight.predict import training

    out = {}
    for rate in RATES:
        other = replace(where, faster={**where.faster, rate: where.factor(rate) * SMALL})
        after = training.estimate(model, plan, job, other).value("step time")
        out[rate] = max(0.0, log(seconds / after) / log(SMALL))
    return out


def _memory(model: Model, plan: Plan, workload: Workload, where: Machine) -> dict[str, Ledger]:
    if isinstance(plan, Training):
        assert isinstance(workload, Job)
        from sublight.predict.training.memory import training_memory

        last = plan.pp - 1
        stages = {"stage 0": 0} if last == 0 else {"stage 0": 0, f"stage {last}": last}
        return {name: training_memory(model, plan, workload, where, stage=stage) for name, stage in stages.items()}
    from sublight.predict.memory import serving_memory

    if isinstance(plan, Disaggregated):
        return {"prefill": serving_memory(model, plan.prefill, where),
                "decode": serving_memory(model, plan.decode, where)}
    return {"GPU": serving_memory(model, plan, where)}


def typical_steps(model: Model, plan: Plan, workload: Workload, where: Machine) -> dict[str, StepTime]:
    """One prefill of a whole prompt (or of a token budget) and one decode step of the mean batch; or a training step's
    first stage."""
    if isinstance(plan, Training):
        assert isinstance(workload, Job)
        from sublight.predict import training

        return {"training": training.typical_step(model, plan, workload, where)}
    assert isinstance(workload, Traffic)
    from sublight.predict.serving.typical import typical_steps as steps

    return steps(model, plan, workload, where)
