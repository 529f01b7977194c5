"""This file knows about the time of latent attention: unfolded in prefill, absorbed in decode, sparse by an indexer.

The form is attention.py's: one cached key and value serves all heads, so the heads of a rank are rows of one product.
Constants: catalog/operators/latent.toml, from tables of the attention kernels alone. The tables of whole modules, which
hold the projections too, are not used: their parts are operators of their own here.
"""

from __future__ import annotations

from sublight.errors import InputError
from sublight.ops.attention import Attention
from sublight.predict.machine import Machine
from sublight.predict.operators import attention, measured
from sublight.predict.operators.fitted import Fitted, fitted


def is_latent(op: Attention) -> bool:
    """One key of its own width for all heads, or keys and values of unequal widths in every head."""
    return op.kv_width is not None or (op.heads == op.kv_heads and op.d_qk != op.d_v)


def kinds(op: Attention) -> tuple[str, ...]:
    phase = "decode" if attention.is_decode(op) else "prefill"
    if op.chosen is not None and op.pairs >= op.q_tokens * op.chosen // 2:
        return (f"sparse {op.kv}", "sparse fp8", f"{phase} {op.kv}", f"{phase} bf16")
    return f"{phase} {op.kv}", f"{phase} bf16"


def ours(op: Attention, where: Machine) -> tuple[Fitted, measured.Near | None]:
    constants = fitted("latent", kinds(op), where) or fitted("attention", attention.kinds(op), where)
    if constants is None:
        raise InputError("latent attention: expected constants in catalog/operators, got none; bench/fit_attention.py "
                         "writes them")
    return constants, None
