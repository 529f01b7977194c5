"""This file knows about the time of layers with a state of fixed size: in chunks for prefill, token by token in decode.

    recurrence    fixed + tile·B·heads/SMs + chunk·n/64 + p-norm(tensor, memory): chunks of a sequence follow each other
    decode        fixed + tile·B·heads/SMs + memory
    convolution   fixed + memory

States that fit the L2 were there when tables were measured, and are not in a step of a model (Machine.cold).
Constants: catalog/operators/recurrent.toml. Of Mamba 2 only the convolution was measured: its recurrence has those of
the delta net, with a wider interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sublight.bound import bound
from sublight.device import Limits
from sublight.errors import InputError
from sublight.ops.op import Op
from sublight.ops.recurrent import Recurrence, ShortConvolution
from sublight.predict.machine import Machine
from sublight.predict.operators.fitted import Fitted, fitted
from sublight.predict.optime import OpTime, combined

CHUNK = 64
EDGE = 4.0                               # how sharply data outgrows an L2
UNMEASURED = 1.5                         # judgement: spread of Mamba 2 with constants of the delta net, over theirs


@dataclass(frozen=True, slots=True)
class Load:
    tensor: float                        # seconds at the peaks
    memory: float
    vector: float
    blocks: float                        # thread blocks over SMs
    chunks: float                        # of one sequence, one after the other
    kept: float                          # share of the bytes that an L2 holds from one call to the next
    least: float


def load(op: Recurrence | ShortConvolution, limits: Limits) -> Load:
    """Raises InputError where the device has no rate for the format."""
    work, least = op.work(), bound(op.work(), limits)
    rate, vector = limits.memory_bytes_per_second, limits.flops_per_second("vector", "fp32")
    peak = limits.flops_per_second("tensor", op.form)
    if rate is None or vector is None or peak is None:
        raise InputError(f"a recurrent layer in {op.form}: expected a device with known rates, got one without; add "
                         "them to catalog/devices.toml")
    tensor = sum(n for (unit, _), n in work.flops.items() if unit == "tensor") / peak
    scalar = work.flops.get(("vector", "fp32"), 0) / vector
    chunked = isinstance(op, Recurrence) and op.chunk is not None
    blocks = op.sequences * (op.heads if isinstance(op, Recurrence) else op.channels / 128) / limits.sms
    return Load(tensor, work.bytes_total / rate, scalar, blocks,
                op.tokens / max(1, op.sequences) / CHUNK if chunked else 0.0,
                1.0 / (1.0 + (work.bytes_total / limits.l2_bytes) ** EDGE),
                least.seconds if least else 0.0)


def terms(c: Mapping[str, float], x: Any, *, cold: bool) -> tuple[Any, dict[str, Any]]:
    """(fixed seconds, seconds by rate)."""
    fixed = c["fixed"] + c["tile"] * x.blocks + c["chunk"] * x.chunks
    memory = x.memory / c["memory"] * (1.0 if cold else 1.0 - c["kept"] * x.kept)
    return fixed, {"memory": memory, "tensor": x.tensor / c["tensor"], "vector": x.vector / c["vector"]}


def seconds(c: Mapping[str, float], x: Any) -> Any:
    """Of the form, caches warm as tables were measured."""
    fixed, parts = terms(c, x, cold=False)
    p = c["p"]
    return fixed + sum(part ** p for part in parts.values()) ** (1 / p)


def kinds(op: Recurrence | ShortConvolution) -> tuple[str, ...]:
    """Names of constants, best first."""
    if isinstance(op, ShortConvolution):
        own = "convolution decode" if op.tokens <= op.sequences else "convolution prefill"
        return own, "convolution prefill"
    phase = "decode" if op.chunk is None else "prefill"
    name = "kda" if op.gates > 2 * op.heads else "gdn"
    return tuple(dict.fromkeys((f"{name} {phase}", f"gdn {phase}")))


def time(op: Op, where: Machine) -> OpTime:
    assert isinstance(op, Recurrence | ShortConvolution)
    c = _constants(op, where)
    x = load(op, where.device.limits)
    fixed, parts = terms(c.values, x, cold=where.cold)
    unmeasured = isinstance(op, Recurrence) and not op.delta
    return combined(parts, where, fixed=fixed, p=c.values["p"], spread=c.spread * (UNMEASURED if unmeasured else 1.0),
                    basis="transfer" if unmeasured else c.basis, least=x.least)


def _constants(op: Recurrence | ShortConvolution, where: Machine) -> Fitted:
    found = fitted("recurrent", kinds(op), where)
    if found is None:
        raise InputError("recurrent layers: expected constants in catalog/operators/recurrent.toml, got none; bench/"
                         "fit_recurrent.py writes them")
    return found
