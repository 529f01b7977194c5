"""This file knows about how fast an engine steps: surface of each stage, attention replicas in step, the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sublight.models import Model, Split
from sublight.plan import Serving
from sublight.predict.machine import Machine
from sublight.predict.serving.host import Host, engine
from sublight.predict.serving.surface import Surface, kernels, surface
from sublight.predict.step import StepTime

Piece = tuple[int, int]                  # new tokens of a prompt in this step, and its tokens that are cached already


@dataclass(frozen=True)
class Pace:
    """Seconds of the steps of one instance. Attention replicas (dp) step together: the slowest is waited for."""

    stages: tuple[Surface, ...]
    dp: int
    rows: int                            # tokens of a sequence in a decode step: 1, and those that are verified
    host: Host
    level: float = 1.0                   # measured over predicted, of this engine on this device
    launch: float = 0.0                  # seconds of a kernel's launch, where the host launches each; 0: CUDA graphs do

    @property
    def calls(self) -> int:
        """Kernels that are launched for a prompt."""
        return sum(stage.calls for stage in self.stages)

    def decode(self, b: int, length: float) -> float:
        """One step in which b sequences of `length` cached tokens each (their mean) decode."""
        here = -(-b // self.dp) if self.dp > 1 else b
        each = -(-here // len(self.stages))                      # micro-batches keep all stages busy
        seconds = 0.0
        for stage in self.stages:
            body, experts, head = stage.linear(each * self.rows)
            if self.dp > 1:
                experts = stage.linear(max(1.0, b / self.dp / len(self.stages)) * self.rows)[1]
            seconds = max(seconds, body + experts + head + stage.decode(each, length))
            if self.launch:
                seconds = max(seconds, stage.decode_calls * self.launch / self.level)
        return self.level * (len(self.stages) * seconds + self.host.step + self.host.sequence * here)

    def mixed(self, b: int, length: float, pieces: Sequence[Piece], finishing: int) -> float:
        """One step that prefills pieces of prompts while b sequences decode: one pass through the linear layers.

        finishing: prompts whose first token comes out of it.
        """
        here = -(-b // self.dp)
        tokens = sum(n for n, _ in pieces)
        ahead = -(-len(pieces) // self.dp)                       # pieces of the busiest replica
        busiest = tokens * ahead / len(pieces) + here * self.rows
        everyone = max(1.0, (tokens + b * self.rows) / self.dp)
        share = ahead / len(pieces)
        seconds = 0.0
        for stage in self.stages:
            body = stage.linear(busiest)[0]
            experts = stage.linear(everyone)[1]
            head = stage.linear(max(1, here * self.rows + -(-finishing // self.dp)))[2]
            attention = sum(stage.prefill(n, context) for n, context in pieces) * share
            device = body + experts + head + attention + (stage.decode(here, length) if b else 0.0)
            seconds += max(device, stage.calls * self.launch / self.level) if self.launch else device
        return self.level * (seconds + self.host.step + self.host.prompt * ahead + self.host.sequence * here)


def split(plan: Serving, stage: int = 0) -> Split:
    """How the ranks of one instance share the model."""
    return Split(tp=plan.tp, ep=plan.ep, pp=plan.pp, dp=plan.dp, stage=stage, imbalance=plan.imbalance)


def pace(model: Model, plan: Serving, where: Machine, host: Host, *, level: float = 1.0) -> Pace:
    """The pace of a plan. Raises InputError where its ranks do not divide the model."""
    first = split(plan)
    stages = tuple(surface(model, replace(first, stage=stage), where, drafts=plan.drafts if stage == plan.pp - 1 else 0)
                   for stage in range(plan.pp))
    slower = 1 / where.factor("fixed")
    host = Host(host.step * slower, host.sequence * slower, host.prompt * slower)
    return Pace(stages, plan.dp, 1 + plan.drafts, host, level, launch_seconds(plan, where))


def launch_seconds(plan: Serving, where: Machine) -> float:
    """Of each kernel, where the host launches them one by one; 0 with CUDA graphs."""
    return 0.0 if plan.cuda_graphs else engine(plan.engine).launch / where.factor("fixed")


def exposed(step: StepTime, plan: Serving, where: Machine) -> float:
    """Seconds by which launching a step's kernels one by one takes longer than the device's work of it."""
    calls = sum(row.count * kernels(row.op) for row in step.rows)
    return max(0.0, calls * launch_seconds(plan, where) - sum(row.seconds for row in step.rows))
