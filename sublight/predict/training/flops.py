"""This file knows about model FLOPs of training: what each source counts, and against which peak MFU is taken.

All are of one token, forward and backward, without recomputation:

    "megatron"        3 · 2 · (multiplied parameters) + 3 · causal attention (half the square). Megatron-LM,
                      training/training.py, num_floating_point_operations; windows are not narrowed, layers that predict
                      further tokens count with a head each.
    "megatron-full"   the same with the whole square of attention, as Megatron-LM's older examples print.
    "palm"            6 N + 12 · layers · width · seq, N all parameters: PaLM, arXiv 2204.02311, appendix B, and
                      llm-foundry, scripts/train/benchmarking (there 3 · (2 N + 4 · layers · width · seq)).

    >>> from sublight.models import named
    >>> llama = named("meta-llama/Meta-Llama-3-70B")
    >>> [round(model_flops(llama, 8192, kind) / 1e9) for kind in ("megatron", "megatron-full", "palm")]
    [449, 481, 488]
"""

from __future__ import annotations

from sublight.errors import InputError
from sublight.models import Batch, Layer, Model, Split, layer_ops
from sublight.models.grouped import GroupedAttention
from sublight.ops import Attention, Recurrence

DEFINITIONS = ("megatron", "megatron-full", "palm")


def model_flops(model: Model, seq: int, definition: str = "megatron") -> float:
    """Model FLOPs of one token of a sequence of `seq`, by one of DEFINITIONS. Raises InputError for another name."""
    if definition not in DEFINITIONS:
        raise InputError(f"no definition of model FLOPs '{definition}'; known: {', '.join(DEFINITIONS)}")
    if definition == "palm":
        return 6.0 * model.parameters().total + 12.0 * len(model.layers) * model.width * seq
    share = 1.0 if definition == "megatron" else 2.0
    mixers = sum(count * _mixer(layer, model.width, seq, share) for layer, count in model.kinds)
    drafts = sum(_mixer(layer, model.width, seq, share) for layer in model.drafts)
    return 6.0 * (model.multiplied() + _drafts(model)) + 3.0 * (mixers + drafts)


def _drafts(model: Model) -> float:
    """Multiplied parameters of layers that predict further tokens, each with its join and the shared head."""
    own = sum(w.active_elements for w in model.draft_weights() if w.multiplied and w.part != "drafts")
    each = model.draft_inputs * model.width ** 2 + model.vocabulary * model.width
    return own + len(model.drafts) * each


def _mixer(layer: Layer, width: int, seq: int, share: float) -> float:
    """Forward operations of one token in attention or a recurrence; `share`: of the causal half, 2 is the square."""
    total = 0.0
    for _, op in layer_ops(layer, width, (Batch(1, seq),), Split()):
        if isinstance(op, Attention):
            full = isinstance(layer.attention, GroupedAttention) and layer.attention.indexer is None
            pairs = seq * (seq + 1) // 2 if full else op.pairs
            total += op.heads * pairs * 2 * (op.d_qk + op.d_v) * share / seq
        elif isinstance(op, Recurrence):
            total += op.work().flops_total / seq
    return total
