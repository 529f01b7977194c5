"""This file knows about mixtures of experts: routing, permuting tokens to experts, and the experts' products."""

from __future__ import annotations

from dataclasses import dataclass

from sublight.ops.gemm import GroupedGemm
from sublight.ops.op import Op, Operand, nbytes, vector_flops
from sublight.work import Work


@dataclass(frozen=True, slots=True)
class Routing(Op):
    """Chooses top_k of `experts` for each token from its scores: reads the scores, writes weights and indices."""

    tokens: int
    experts: int
    top_k: int
    form: str = "bf16"
    weights: str = "fp32"
    indices: str = "int32"

    def work(self) -> Work:
        chosen = self.tokens * self.top_k
        return Work.of(flops=vector_flops(self.form, 2 * chosen),       # exponential and scale of what was chosen
                       bytes_read=Operand(self.tokens * self.experts, self.form).nbytes,
                       bytes_written=nbytes([Operand(chosen, self.weights), Operand(chosen, self.indices)]))


@dataclass(frozen=True, slots=True)
class Permute(Op):
    """Copies each token to the rows of its experts, or (combine) sums those rows, weighted, into the token."""

    tokens: int
    top_k: int
    width: int
    form: str = "bf16"
    combine: bool = False

    def work(self) -> Work:
        token = Operand(self.tokens * self.width, self.form)
        rows = Operand(self.tokens * self.top_k * self.width, self.form)
        if self.combine:
            return Work.of(flops=vector_flops(self.form, 2 * rows.elements - token.elements),
                           bytes_read=rows.nbytes, bytes_written=token.nbytes)
        return Work.of(bytes_read=token.nbytes, bytes_written=rows.nbytes)


@dataclass(frozen=True, slots=True)
class Mixture:
    """The whole layer that the experts of a rank are a part of: what its router sees."""

    tokens: int                          # of all ranks that share the experts
    top_k: int
    experts: int
    groups: int = 1                      # of experts; a rank holds one


@dataclass(frozen=True, slots=True)
class Experts(Op):
    """A gated feed-forward layer of experts: up and gate (width -> 2·inner), activation, down (inner -> width).

    FLOPs: 2·tokens·top_k·(width·2·inner + inner·width), and two vector operations an inner element. Bytes: tokens in
    and out once, weights of the experts that are used; what passes between the products may stay on the chip.
    Source: Shazeer, arXiv 2002.05202 (gated feed-forward), Fedus et al., arXiv 2101.03961 (routing).
    """

    tokens: int
    top_k: int
    experts_used: int                    # at least top_k of them
    width: int
    inner: int
    activations: str = "bf16"
    weights: str = "bf16"
    weight_block: int | None = None
    tokens_form: str = "bf16"            # of what goes in and out
    gated: bool = True
    inferred: bool = False
    whole: Mixture | None = None         # None: it is not said which layer this is a part of

    def work(self) -> Work:
        rows, into = self.tokens * self.top_k, self.inner * (2 if self.gated else 1)
        up = GroupedGemm(rows, into, self.width, self.experts_used, self.activations, self.weights,
                         b_block=self.weight_block).work()
        down = GroupedGemm(rows, self.width, self.inner, self.experts_used, self.activations, self.weights,
                           b_block=self.weight_block).work()
        used = Operand(self.experts_used * self.width * (into + self.inner), self.weights)
        scales = Operand(used.elements // self.weight_block if self.weight_block else 0, "uint8")
        token = Operand(self.tokens * self.width, self.tokens_form)
        products = (up + down).flops
        return Work.of(flops={**products, **vector_flops(self.tokens_form, 2 * rows * self.inner)},
                       bytes_read=nbytes([token, used, scales]), bytes_written=token.nbytes, inferred=self.inferred)
