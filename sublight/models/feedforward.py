"""This file knows about feed-forward layers: dense ones, and mixtures of experts with what goes beside them.

    T     tokens that the ranks of a stage have together
    rows  (token, expert) pairs on one rank
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from sublight.errors import InputError
from sublight.models.block import Block, Labelled, Weight, all_reduce, divided, gate, gated, norm, product, rows
from sublight.models.formats import BF16, NumberFormat
from sublight.models.step import Batch, Split
from sublight.ops import Communication, Elementwise, Experts, Gather, Routing
from sublight.ops.moe import Mixture as Whole
from sublight.ops.op import Operand


@dataclass(frozen=True, slots=True)
class Dense(Block):
    """Up and gate, activation, down. Without a gate one product less (squared ReLU of Nemotron)."""

    width: int
    inner: int
    up: NumberFormat = BF16
    down: NumberFormat = BF16
    is_gated: bool = True
    bias: bool = False
    part: str = "mlp"

    def weights(self) -> Iterator[Weight]:
        into = self.inner * (2 if self.is_gated else 1)
        yield Weight(self.part, "up_proj", self.width * into, self.up)
        yield Weight(self.part, "down_proj", self.inner * self.width, self.down)
        if self.bias:
            yield Weight(self.part, "biases", into + self.width, multiplied=False)

    def check(self, split: Split) -> None:
        divided("columns of a feed-forward layer", self.inner, split.tp)

    def ops(self, step: tuple[Batch, ...], split: Split) -> Iterator[Labelled]:
        yield from self.products(rows(step), split)
        if split.tp > 1:
            yield f"{self._label}.all_reduce", all_reduce(rows(step), self.width, split.tp)

    @property
    def _label(self) -> str:
        return "mlp" if self.part == "mlp" else "shared"

    def products(self, t: int, split: Split) -> Iterator[Labelled]:
        """Without the all-reduce, which a mixture shares with its experts."""
        inner = divided("columns of a feed-forward layer", self.inner, split.tp)
        into = inner * (2 if self.is_gated else 1)
        yield f"{self._label}.up", product(t, into, self.width, self.up, bias=self.bias)
        yield f"{self._label}.activation", gated(t * inner, is_gated=self.is_gated)
        yield f"{self._label}.down", product(t, self.width, inner, self.down, bias=self.bias)


def used(experts: int, rows_of_rank: float) -> int:
    """Distinct experts of a rank that get at least one row, expected, where each row falls on any of them alike.

    E·(1 - (1 - 1/E)^rows): rows drawn one by one; a token's own experts differ, so this is a little low for one token,
    where the rows themselves are the limit.
    """
    if experts == 0 or rows_of_rank <= 0:
        return 0
    expected: float = experts * (1.0 - (1.0 - 1.0 / experts) ** rows_of_rank)
    return max(1, min(experts, round(expected)))


@dataclass(frozen=True, slots=True)
class Mixture(Block):
    """top_k of `experts` for each token, an expert that all tokens meet, and a dense layer beside them where there is
    one. With `latent`, tokens are projected down before the experts and up after them (Nemotron 3, Kimi K3).

    Source: DeepSeekMoE, arXiv 2401.06066; Hugging Face transformers, models/qwen3_moe, deepseek_v3, nemotron_h.
    """

    width: int
    experts: int
    top_k: int
    inner: int
    form: NumberFormat = BF16
    is_gated: bool = True
    bias: bool = False                   # of router and experts
    correction: bool = False             # a bias of the router's choice, one an expert
    latent: int | None = None
    latent_norm: bool = False
    shared: Dense | None = None
    shared_gate: bool = False            # the shared expert's output times one sigmoid a token
    beside: Dense | None = None          # a dense layer whose output is added (Gemma 4)
    scales: int = 0                      # further parameters of the router
    hashed: bool = False                 # experts come from a table by token id, scores from the router all the same

    def weights(self) -> Iterator[Weight]:
        each = self._each()
        yield Weight("router", "router", self.width * self.experts, shared_by="none")
        yield Weight("experts", "experts", self.experts * each, self.form, self.top_k * each, "experts")
        extra = (self.experts if self.bias else 0) + (self.experts if self.correction else 0) + self.scales
        if extra:
            yield Weight("router", "router's vectors", extra, shared_by="none", multiplied=False)
        if self.bias:
            one = self.inner * (2 if self.is_gated else 1) + self._into()
            yield Weight("experts", "biases", self.experts * one, BF16, self.top_k * one, "experts", multiplied=False)
        if self.latent:
            yield Weight("experts", "latent projections", 2 * self.width * self.latent, shared_by="none")
        if self.latent and self.latent_norm:
            yield Weight("norms", "latent norm", self.latent, shared_by="none", multiplied=False)
        if self.shared:
            yield from self.shared.weights()
        if self.shared_gate:
            yield Weight("shared experts", "gate", self.width, shared_by="none")
        if self.beside:
            yield from self.beside.weights()

    def _into(self) -> int:
        return self.latent or self.width

    def _each(self) -> int:
        return self._into() * self.inner * (3 if self.is_gated else 2)

    def check(self, split: Split) -> None:
        if self.experts % split.ep:
            raise InputError(f"ep = {split.ep} does not divide {self.experts} experts")
        divided("columns of an expert", self.inner, split.expert_tp)
        for dense in (self.shared, self.beside):
            if dense:
                dense.check(split)

    def ops(self, step: tuple[Batch, ...], split: Split) -> Iterator[Labelled]:
        self.check(split)
        t = rows(step)
        scored = product(t, self.experts, self.width, BF16, bias=self.bias, out="fp32")
        yield "moe.router", scored
        if self.hashed:
            yield "moe.table", Gather(t * self.top_k, "int64", Operand(t, "int64"), self.top_k)
        yield "moe.routing", Routing(t, self.experts, self.top_k, form="fp32")
        if self.latent:
            yield "moe.latent_down", product(t, self.latent, self.width, BF16)
        if self.latent and self.latent_norm:
            yield "moe.latent_norm", norm(t, self.latent)
        yield from self._routed(t, split)
        if self.latent:
            yield "moe.latent_up", product(t, self.width, self.latent, BF16)
        for dense in (self.shared, self.beside):
            if dense:
                yield from dense.products(t, split)
        if self.shared_gate:
            yield "shared.gate_proj", product(t, 1, self.width, BF16)
            yield "shared.gate", gate(t * self.width, t)
        for dense in (self.shared, self.beside):
            if dense:
                out = Operand(t * self.width, "bf16")
                yield "moe.add", Elementwise((out, out), (out,), 1)
        if split.tp > 1:                 # of what tp ranks hold parts of: with dp, experts came back whole
            if split.dp == 1:
                yield "moe.all_reduce", all_reduce(t, self.width, split.tp)
            elif self.shared or self.beside:
                yield "shared.all_reduce", all_reduce(t, self.width, split.tp)

    def _routed(self, t: int, split: Split) -> Iterator[Labelled]:
        """Tokens to their experts, the products, and back. Where attention is replicated (dp), ranks hold different
        tokens: they are exchanged (ep) or gathered (no ep), each tp rank sending its share of the tokens."""
        everyone, width = t * split.dp, self._into()
        own = ceil(t / split.tp)         # of the tokens that tp ranks hold alike
        if split.dp > 1:
            yield ("moe.dispatch", Communication("all_to_all", split.ranks, own * self.top_k * width,
                                                 self._sent())) if split.ep > 1 else \
                ("moe.gather", Communication("all_gather", split.ranks, own * split.ranks * width, "bf16"))
        yield "moe.experts", self.on_rank(everyone, split)
        if split.dp > 1:
            yield ("moe.combine", Communication("all_to_all", split.ranks, own * self.top_k * width, "bf16")) \
                if split.ep > 1 else \
                ("moe.scatter", Communication("reduce_scatter", split.ranks, own * split.ranks * width, "bf16"))
            if split.tp > 1:
                yield "moe.all_gather", Communication("all_gather", split.tp, own * split.tp * width, "bf16")

    def _sent(self) -> str:
        """Format in which tokens travel to experts: eight bits where the experts take no more (DeepEP)."""
        return "fp8" if self.form.activations in ("fp8", "fp4") else "bf16"

    def on_rank(self, everyone: int, split: Split) -> Experts:
        """The experts of one rank: its own of all (ep), its columns of them (the rest)."""
        local, inner = self.experts // split.ep, divided("columns of an expert", self.inner, split.expert_tp)
        pairs = everyone * self.top_k / split.ep * (split.imbalance if split.ep > 1 else 1.0)
        tokens, top_k = (everyone, self.top_k) if split.ep == 1 else (ceil(pairs), 1)
        return Experts(
            tokens, top_k, max(used(local, pairs), min(local, top_k)), self._into(), inner, self.form.activations,
            self.form.weights, self.form.per_scale_byte, gated=self.is_gated,
            whole=Whole(everyone, self.top_k, self.experts, split.ep),
        )
