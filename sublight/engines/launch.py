"""This file knows about a launch: what a command starts, read into a plan."""

from __future__ import annotations

from dataclasses import dataclass

from sublight.plan import Job, Serving, Training


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch command starts. None: the command does not say.

    environment  names of variables that the command sets, without their values
    notes        what was assumed, or understood although this version would not take it
    """

    engine: str                          # "vllm", "sglang", "trtllm", "megatron", "torchtitan"
    version: str | None
    model: str | None
    plan: Serving | Training
    job: Job | None = None
    gpus: int | None = None
    environment: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def role(self) -> str | None:
        """"prefill" or "decode" of a worker that does only that; None: it does both, or does not say."""
        held = dict(self.plan.extra)
        transfer = held.get("--kv-transfer-config", "")
        if held.get("--disaggregation-mode") == "prefill" or "kv_producer" in transfer:
            return "prefill"
        return "decode" if held.get("--disaggregation-mode") == "decode" or "kv_consumer" in transfer else None

    @property
    def unknown(self) -> tuple[tuple[str, str], ...]:
        """Flags that no field of the plan holds, in order, with their values as shell text; of an options file its
        keys, with dots between levels, and values as JSON."""
        return self.plan.extra
