"""This file knows about blocks, of which layers are made: a block says its weights, its cache, its Ops on one rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from sublight.errors import InputError
from sublight.models.formats import BF16, NumberFormat
from sublight.models.step import Batch, Split
from sublight.ops import Communication, Elementwise, Gemm, Normalisation
from sublight.ops.op import Op, Operand
from sublight.ops.scaled_gemm import ScaledGemm

Labelled = tuple[str, Op]                # "attention.qkv", and the operator

# Parts in which parameters are counted.
PARTS = ("embedding", "attention", "mlp", "router", "experts", "shared experts", "norms", "residual", "head")


@dataclass(frozen=True, slots=True)
class Weight:
    """Elements of one module. active: those that one token meets. shared_by: how ranks share it.

        "heads"    by tp ranks, at most `limit` ways: further ranks hold copies (keys and values)
        "experts"  by all ranks of a stage
        "none"     each rank holds all of it
    """

    part: str
    name: str
    elements: int
    form: NumberFormat = BF16
    active: int | None = None            # None: all of them
    shared_by: str = "heads"
    limit: int | None = None
    multiplied: bool = True              # each active element is one multiplication a token (not: norms, biases)

    @property
    def active_elements(self) -> int:
        return self.elements if self.active is None else self.active

    def on_rank(self, split: Split) -> int:
        """Elements that one rank holds."""
        ways = {"none": 1, "heads": split.tp, "experts": split.ranks}[self.shared_by]
        return -(-self.elements // (ways if self.limit is None else min(ways, self.limit)))


class Block(ABC):
    """A mixer of tokens or a feed-forward layer. Families are frozen dataclasses below it."""

    @abstractmethod
    def weights(self) -> Iterator[Weight]:
        """Every parameter, once."""

    @abstractmethod
    def ops(self, step: tuple[Batch, ...], split: Split) -> Iterator[Labelled]:
        """What one rank does in a step, in order, with its collectives."""

    def cached(self, split: Split) -> tuple[float, float]:
        """What a rank caches for each token: elements in the number format of the cache, and bytes beside them."""
        del split
        return 0.0, 0.0

    def cached_tokens(self) -> int | None:
        """After how many tokens of a sequence no more are cached (a window); None: never."""
        return None

    def state(self, split: Split) -> int:
        """Bytes of a sequence on a rank, whatever its length."""
        del split
        return 0

    def check(self, split: Split) -> None:
        """Raises InputError where the ranks do not divide this block."""
        del split


def rows(step: tuple[Batch, ...]) -> int:
    return sum(batch.rows for batch in step)


def product(m: int, n: int, k: int, form: NumberFormat, *, bias: bool = False, out: str = "bf16") -> Op:
    """A linear layer on m tokens."""
    addend = Operand(n, "bf16") if bias else None
    if form.per_scale_byte:
        return ScaledGemm(m, n, k, form.activations, form.weights, form.per_scale_byte, out, addend)
    return Gemm(m, n, k, a=form.activations, b=form.weights, out=out, addend=addend)


def norm(
    tokens: int, width: int, *, residual: bool = False, groups: int = 1, weighted: bool = True, kind: str = "rms",
) -> Op:
    """A norm of `groups` pieces of a token, each `width` wide: "rms", "mean" (with a bias), "mean without bias"."""
    bias = "bf16" if kind == "mean" else None
    return Normalisation(tokens * groups * width, width, "rms" if kind == "rms" else "mean",
                         weight="bf16" if weighted else None, bias=bias, residual=residual)


def all_reduce(tokens: int, width: int, ranks: int) -> Op:
    return Communication("all_reduce", ranks, tokens * width, "bf16")


def gated(elements: int, *, is_gated: bool = True) -> Op:
    """Activation of a feed-forward layer, times the up projection where there are two."""
    read = Operand(elements * (2 if is_gated else 1), "bf16")
    return Elementwise((read,), (Operand(elements, "bf16"),), operations=2)


def gate(elements: int, gates: int) -> Op:
    """An output times the sigmoid of a gate."""
    return Elementwise((Operand(elements, "bf16"), Operand(gates, "bf16")), (Operand(elements, "bf16"),), operations=2)


def divided(what: str, size: int, ranks: int) -> int:
    """A share of heads or columns. Raises InputError where ranks do not divide it."""
    if size % ranks:
        raise InputError(f"tp = {ranks} does not divide {size} {what}")
    return size // ranks


def copied(size: int, ranks: int, what: str) -> int:
    """A share of key and value heads: each rank holds one at least, in copies where ranks are more."""
    if size % ranks and ranks % size:
        raise InputError(f"tp = {ranks} neither divides {size} {what} nor is a multiple of them")
    return max(1, size // ranks)
