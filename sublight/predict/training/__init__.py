"""Training at step level: passes of each stage, schedules, collectives and what stays exposed, FLOPs and MFU."""

from __future__ import annotations

from sublight.predict.training.estimate import estimate, typical_step
from sublight.predict.training.flops import DEFINITIONS, model_flops
from sublight.predict.training.passes import Passes, passes
from sublight.predict.training.schedule import SCHEDULES, StageTime, waiting

__all__ = ["DEFINITIONS", "SCHEDULES", "Passes", "StageTime", "estimate", "model_flops", "passes", "typical_step",
           "waiting"]
