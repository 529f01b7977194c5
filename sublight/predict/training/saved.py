"""This file knows about what a layer keeps for its backward pass: bytes a token, block by block.

    norm           its input and its output, which is the input of the block's first product (2 + 2 bytes an element)
    attention      queries, keys, values, the output and one fp32 sum a head; not fused also softmax and its dropout
    feed-forward   what the up projection gives, and what goes into the down projection
    experts        the same for top_k rows a token, and the rows themselves

For a GPT with attention that is not fused it comes to Korthikanti et al.'s 34 h + 5·a·s bytes a token (equations 1 to
6): 10 h + (24 h + 5·a·s)/tp without sequence parallelism, all of it over tp with.

Sources: Korthikanti et al., arXiv 2205.05198, section 4.1; Megatron-LM, core/transformer (mlp.py, moe/experts.py,
multi_latent_attention.py); Transformer Engine, attention's saved tensors. Eight-bit products keep their input in eight
bits (Transformer Engine, FP8 primer).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sublight.models import Layer
from sublight.models.feedforward import Dense, Mixture
from sublight.models.grouped import GroupedAttention
from sublight.models.latent import LatentAttention
from sublight.plan import Job, Training

EIGHT_BITS = {"fp8": 1.0, "fp8_block": 1.0 + 4 / 128, "mxfp8": 1.0 + 1 / 32, "nvfp4": 0.5 + 1 / 16}
RECURRENT = 12.0                         # bytes a width of a recurrent mixer: judgement (projections, convolution)


@dataclass(frozen=True, slots=True)
class Kept:
    """How a plan keeps activations. sequence: ranks that share what is not split by heads. product: bytes of an element
    that goes into a product."""

    tp: int
    etp: int
    sequence: int
    seq: int
    context_parallel: bool
    fused: bool
    dropout: bool
    product: float
    imbalance: float
    recompute: str
    modules: frozenset[str]

    @classmethod
    def of(cls, plan: Training, job: Job) -> Kept:
        extra = dict(plan.extra)
        named = extra.get("recompute_modules", "core_attn")
        modules = frozenset(named.split(",")) if plan.recompute == "selective" else frozenset()
        return cls(plan.tp, plan.etp, plan.tp if plan.sequence_parallel else 1, job.seq, plan.cp > 1,
                   extra.get("attention") != "unfused", extra.get("dropout") == "yes",
                   EIGHT_BITS.get(plan.precision, 2.0), plan.imbalance, plan.recompute, modules)

    def whole(self) -> Kept:
        """The same without recomputation."""
        return replace(self, recompute="none", modules=frozenset())


def saved_bytes(layer: Layer, width: int, kept: Kept) -> float:
    """Of one token of a micro-batch on one rank."""
    if kept.recompute == "full":         # the layer's input alone
        return 2.0 * width / kept.sequence
    total = 0.0
    for block in layer.blocks():
        total += 2.0 * width / kept.sequence
        total += 0.0 if "layernorm" in kept.modules else kept.product * width / kept.sequence
        total += 1.0 * width / kept.sequence if kept.dropout else 0.0
        total += _of_block(block, kept)
    return total + 2.0 * width / kept.sequence * max(0, layer.norms - len(layer.blocks()))


def _of_block(block: Any, kept: Kept) -> float:
    if isinstance(block, GroupedAttention):
        return _grouped(block, kept)
    if isinstance(block, LatentAttention):
        return _latent(block, kept)
    if isinstance(block, Dense):
        return _dense(block, kept)
    if isinstance(block, Mixture):
        return _mixture(block, kept)
    return RECURRENT * float(getattr(block, "width", 0)) / kept.tp


def _grouped(block: GroupedAttention, kept: Kept) -> float:
    heads, keys = block.heads / kept.tp, max(1.0, block.kv_heads / kept.tp)
    total = 2.0 * (heads * block.d_qk + keys * (block.d_qk + block.d_v)) + _output(block.d_v, heads, kept)
    if block.norms != "none":            # queries and keys before their norm
        total += 2.0 * (heads + keys) * block.d_qk
    if block.gate == "element":
        total += 2 * 2.0 * heads * block.d_v
    return total + _unfused(heads, kept)


def _output(d_v: int, heads: float, kept: Kept) -> float:
    """Attention's output, which is the input of a product too, and one fp32 sum a head. With context parallelism it is
    kept before and after its exchange (Transformer Engine, context_parallel.py)."""
    eight = kept.product if kept.product < 2 else 0.0
    return heads * d_v * (2.0 + eight + (2.0 if kept.context_parallel else 0.0)) + 4.0 * heads * kept.fused


def _unfused(heads: float, kept: Kept) -> float:
    """Softmax (2), its dropout's mask (1) and result (2), for each key of the sequence."""
    if kept.fused or "core_attn" in kept.modules:
        return 0.0
    return (5.0 if kept.dropout else 2.0) * heads * kept.seq


def _latent(block: LatentAttention, kept: Kept) -> float:
    heads, into = block.heads / kept.tp, block.nope + block.rope
    ranks = (block.q_rank or 0) + block.kv_rank
    total = 2 * 2.0 * ranks / kept.sequence + 2.0 * block.rope / kept.sequence       # before and after their norms
    if "mla_up_proj" not in kept.modules:
        total += 2.0 * heads * (2 * into + block.d_v)
    return total + _output(block.d_v, heads, kept) + _unfused(heads, kept)


def _dense(block: Dense, kept: Kept, module: str = "mlp") -> float:
    if module in kept.modules:
        return 0.0
    return block.inner * (2.0 * (2 if block.is_gated else 1) + kept.product) / kept.tp


def _mixture(block: Mixture, kept: Kept) -> float:
    beside = sum(_dense(dense, kept, "shared_experts") for dense in (block.shared, block.beside) if dense)
    if "moe" in kept.modules:
        return 0.0
    into, inner = block.latent or block.width, block.inner / kept.etp
    rows = block.top_k * kept.imbalance
    routed = rows * (kept.product * into + 2.0 * (2 if block.is_gated else 1) * inner)
    if "moe_act" not in kept.modules:
        routed += rows * kept.product * inner
    return routed + beside + 3 * 4.0 * block.experts / kept.sequence     # scores, probabilities and map, fp32
