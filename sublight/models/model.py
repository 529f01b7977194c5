"""This file knows about the Model: layers, and what parameters, bytes and cache they come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil

from sublight.models.block import PARTS, Block, Weight
from sublight.models.formats import BF16, FP32, NumberFormat
from sublight.models.step import Split
from sublight.work import BYTES


@dataclass(frozen=True, slots=True)
class HyperConnections:
    """Several residual streams, mixed before and after each block (DeepSeek-V4).

    A product of (2 + n)·n rows with all n streams makes the mixing weights. Source: Hugging Face transformers,
    models/deepseek_v4; Zhu et al., arXiv 2409.19606.
    """

    streams: int

    def weights(self, width: int) -> Iterator[Weight]:
        """Of one block."""
        rows = (2 + self.streams) * self.streams
        yield Weight("residual", "hyper-connection", rows * self.streams * width, FP32, shared_by="none")
        yield Weight("residual", "hyper-connection's vectors", rows + 3, FP32, shared_by="none", multiplied=False)


@dataclass(frozen=True, slots=True)
class Layer:
    """A mixer of tokens, a feed-forward layer, or both, each with its norms."""

    attention: Block | None
    mlp: Block | None
    norms: int = 2                       # as wide as the layer
    streams: HyperConnections | None = None
    residual_sources: int = 0            # block outputs that each block's input is chosen from (Kimi K3)
    norm: str = "rms"                    # or "mean" (layer norm, with a bias), "mean without bias"

    def blocks(self) -> tuple[Block, ...]:
        return tuple(block for block in (self.attention, self.mlp) if block is not None)

    def weights(self, width: int) -> Iterator[Weight]:
        for block in self.blocks():
            yield from block.weights()
            if self.streams:
                yield from self.streams.weights(width)
            if self.residual_sources:
                yield Weight("residual", "residual norm", width, shared_by="none", multiplied=False)
                yield Weight("residual", "residual query", width, shared_by="none", multiplied=False)
        each = 2 * width if self.norm == "mean" else width
        yield Weight("norms", "norms", self.norms * each, shared_by="none", multiplied=False)


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters by part. active: those that one token meets, of experts top_k.

    The embedding is a look-up of one row: `active` leaves its table out, `active_with_embedding` takes it in, and
    `active_without_head` leaves the head out too; cards use any of the three. A head that is tied to the embedding
    counts once in the total, and is active.
    """

    total_by_part: dict[str, int]
    active_by_part: dict[str, int]
    drafts: int                          # of layers that predict further tokens (MTP), not in the totals
    table: int                           # of the embedding, tied or not

    @property
    def total(self) -> int:
        return sum(self.total_by_part.values())

    @property
    def active(self) -> int:
        return sum(self.active_by_part.values())

    @property
    def active_without_head(self) -> int:
        """Of the layers alone, as cards of GLM, MiniMax and DeepSeek-V4 count."""
        return self.active - self.active_by_part["head"]

    @property
    def active_with_embedding(self) -> int:
        """With the embedding's own table; a tied one is in `active` already."""
        return self.active + (self.total_by_part["embedding"] if self.total_by_part["head"] else 0)


@dataclass(frozen=True)
class Model:
    """What a config.json describes: a decoder. Frozen, and made of frozen parts.

    drafts: layers that predict further tokens (MTP), for speculation; not in the totals. aside: parts of the checkpoint
    that are named and left out of the work (vision towers), with their number of parameters where it is known.
    """

    name: str
    architecture: str
    layers: tuple[Layer, ...]
    vocabulary: int
    width: int
    tied: bool = False                   # the head is the embedding
    embedding: NumberFormat = BF16
    head: NumberFormat = BF16
    kv: str = "bf16"                     # number format of cached keys and values
    quantisation: str = "none"
    drafts: tuple[Layer, ...] = ()
    draft_inputs: int = 2                # hidden states that are joined before a draft layer
    positions: int = 0                   # rows of a table of positions (GPT-2)
    own_head: bool = False               # drafts have an embedding and a head of their own
    aside: tuple[tuple[str, int | None], ...] = ()
    context: int | None = None           # longest, where stated
    source: str = field(default="", compare=False)

    @property
    def hidden(self) -> int:
        """The width, as configs call it."""
        return self.width

    @cached_property
    def kinds(self) -> tuple[tuple[Layer, int], ...]:
        """Different layers and how many there are of each, in the order of their first."""
        return tuple(Counter(self.layers).items())

    def stage_kinds(self, split: Split) -> tuple[tuple[Layer, int], ...]:
        """Different layers of a stage and how many there are of each."""
        if split.pp == 1:
            return self.kinds
        key = (split.pp, split.stage, split.stages)
        if key not in self._stages:      # counting hashes every layer: once is enough
            self._stages[key] = tuple(Counter(self.layers[i] for i in split.layers(len(self.layers))).items())
        return self._stages[key]

    @cached_property
    def _stages(self) -> dict[tuple[int, int, tuple[int, ...] | None], tuple[tuple[Layer, int], ...]]:
        return {}

    def weights(self) -> Iterator[tuple[Weight, int]]:
        """Every parameter of the decoder, with how many layers have it. Drafts apart."""
        yield Weight("embedding", "embedding", self.vocabulary * self.width, self.embedding, 0), 1
        if self.positions:
            yield Weight("embedding", "positions", self.positions * self.width, self.embedding, 0, "none"), 1
        for layer, count in self.kinds:
            yield from ((weight, count) for weight in layer.weights(self.width))
        yield from ((weight, 1) for weight in self.head_weights())

    def head_weights(self) -> Iterator[Weight]:
        streams = self.layers[-1].streams
        if streams:
            rows = streams.streams
            yield Weight("residual", "head's hyper-connection", rows * rows * self.width, FP32, shared_by="none")
            yield Weight("residual", "head's vectors", rows + 1, FP32, shared_by="none", multiplied=False)
        if any(layer.residual_sources for layer in self.layers):
            yield Weight("residual", "output residual", 2 * self.width, shared_by="none", multiplied=False)
        each = 2 * self.width if self.layers[-1].norm == "mean" else self.width
        yield Weight("norms", "norm", each, shared_by="none", multiplied=False)
        table = self.vocabulary * self.width
        yield Weight("head", "lm_head", 0 if self.tied else table, self.head, table)

    def draft_weights(self) -> Iterator[Weight]:
        for layer in self.drafts:
            yield Weight("drafts", "eh_proj", self.draft_inputs * self.width * self.width, shared_by="none")
            yield Weight("norms", "norms", 3 * self.width, shared_by="none", multiplied=False)
            yield from layer.weights(self.width)
            if self.own_head:
                yield Weight("drafts", "embedding, head", 2 * self.vocabulary * self.width)

    def parameters(self) -> Parameters:
        total, active = dict.fromkeys(PARTS, 0), dict.fromkeys(PARTS, 0)
        for weight, count in self.weights():
            total[weight.part] += weight.elements * count
            active[weight.part] += weight.active_elements * count
        drafts = sum(weight.elements for weight in self.draft_weights())
        return Parameters(total, active, drafts, self.vocabulary * self.width)

    def multiplied(self) -> int:
        """Active parameters that are one multiplication a token: 2 x this x tokens are a pass's FLOPs, but for
        attention itself and what a norm or an activation does."""
        return sum(weight.active_elements * count for weight, count in self.weights()
                   if weight.multiplied and weight.part != "embedding")

    def bytes_by_format(self) -> dict[str, int]:
        """Bytes of the decoder's weights by number format, scales included."""
        out: dict[str, int] = {}
        for weight, count in self.weights():
            if weight.elements:
                out[weight.form.name] = out.get(weight.form.name, 0) + weight.form.nbytes(weight.elements) * count
        return out

    @property
    def weight_bytes(self) -> int:
        return sum(self.bytes_by_format().values())

    def bytes_on_rank(self, split: Split, *, drafts: bool = False) -> int:
        """Bytes of weights that one rank of a stage holds. A tied table is held once where first and last stage are
        the same, else by both."""
        held = sum(count * weight.form.nbytes(weight.on_rank(split))
                   for layer, count in self.stage_kinds(split) for weight in layer.weights(self.width))
        table = ceil(self.vocabulary / split.tp) * self.width
        if split.first:
            held += self.embedding.nbytes(table + self.positions * self.width)
        if split.last:
            held += sum(w.form.nbytes(w.on_rank(split)) for w in self.head_weights() if w.part != "head")
            held += 0 if self.tied and split.first else self.head.nbytes(table)
            if drafts:
                held += sum(w.form.nbytes(w.on_rank(split)) for w in self.draft_weights())
        return held

    def kv_bytes_per_token(self, split: Split | None = None, *, length: int | None = None) -> float:
        """Bytes of cache that one token takes, on one rank of a stage (without a split: all of the model).

        Of layers whose window is full at `length` tokens no more are taken: without a length they are left out, with
        one it is the mean over a sequence of that length. The state of recurrent layers is `state_bytes`.
        """
        split = split or Split()
        return sum(count * self._cached(layer, split, length) for layer, count in self.stage_kinds(split))

    def _cached(self, layer: Layer, split: Split, length: int | None) -> float:
        if layer.attention is None:
            return 0.0
        elements, beside = layer.attention.cached(split)
        window = layer.attention.cached_tokens()
        kept = 1.0 if window is None else 0.0 if length is None else min(1.0, window / max(1, length))
        return kept * (elements * BYTES[self.kv] + beside)

    def state_bytes(self, split: Split | None = None) -> int:
        """Bytes of a sequence that do not grow with it, on one rank of a stage."""
        split = split or Split()
        return sum(block.state(split) * count for layer, count in self.stage_kinds(split)
                   for block in layer.blocks())
