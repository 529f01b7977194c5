"""This file knows about runs that are far below what is expected: what no tuning explains, against a floor of light."""

from __future__ import annotations

from collections.abc import Iterator

from sublight.explain.answers.answer import Judged, Point
from sublight.models import Split
from sublight.models.feedforward import Mixture
from sublight.plan import Serving

FAR = 10.0                               # times slower: judgement; settings of a running engine change less


def points(found: Judged) -> Iterator[Point]:
    """One point where a speed is far off, by its best-known figure."""
    slow = [row for row in found.rows if row.verdict == "slower" and row.speed is not None]
    rates = [row for row in slow if row.name != "TTFT"] or slow
    if not rates:
        return
    worst = min(rates, key=lambda row: row.speed or 1.0)
    factor = 1 / (worst.speed or 1.0)
    if factor < FAR:
        return
    yield Point("speed", f"{worst.name} is {factor:,.0f}x slower than expected, more than settings of a running engine "
                "explain: something of the environment is wrong", tuple(_floor(found)),
                "check that the model runs on this GPU and not on the CPU, that nothing is offloaded "
                "(--cpu-offload-gb), that other jobs leave the GPU alone, its clock (nvidia-smi -q -d "
                "CLOCK,PERFORMANCE), and CUDA graphs")


def _floor(found: Judged) -> Iterator[str]:
    """Weights over bandwidth: no decode step of a dense model is faster."""
    case = found.case
    if not isinstance(case.plan, Serving) or case.model is None or case.where is None:
        return
    bandwidth = case.where.device.limits.memory_bytes_per_second
    if not bandwidth or any(isinstance(layer.mlp, Mixture) for layer in case.model.layers):
        return
    plan = case.plan
    held = case.model.bytes_on_rank(Split(tp=plan.tp, dp=plan.dp, ep=plan.ep, pp=plan.pp, stage=0))
    seconds = held * plan.pp / bandwidth
    yield (f"the weights of a rank, {held / 2**30:.1f} GiB, are read in {seconds * 1e3:.2g} ms at "
           f"{bandwidth / 1e12:.3g} TB/s: {1 / seconds:,.0f} tokens/s for one sequence at the speed of light")
