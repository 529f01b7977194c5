"""This file knows about one step of a model: which tokens are new, what they may see, and which ranks share the work.

    n, c    new tokens of a sequence, and cached ones before them
"""

from __future__ import annotations

from dataclasses import dataclass

from sublight.errors import InputError


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences that are equally long: `tokens` new ones each, after `context` cached ones.

    A prefill makes one logit row a sequence; a decode one for each new token (more than one where drafts are verified).

    >>> Batch(sequences=2, tokens=3, context=4).pairs(), Batch(sequences=1, tokens=1, context=9999).pairs(window=128)
    (36, 128)
    """

    sequences: int
    tokens: int
    context: int = 0
    decode: bool = False

    @property
    def rows(self) -> int:
        return self.sequences * self.tokens

    @property
    def outputs(self) -> int:
        """Rows whose logits are needed."""
        return self.rows if self.decode else self.sequences

    @property
    def seen(self) -> int:
        """Tokens of all sequences, cached and new."""
        return self.sequences * (self.context + self.tokens)

    def pairs(self, *, window: int | None = None, chunk: int | None = None) -> int:
        """(query, key) pairs that a causal mask leaves: at most `window` keys a query, or those of its own chunk."""
        first, last = self.context + 1, self.context + self.tokens      # keys that a query may see
        if chunk is not None:
            return self.sequences * (_within(last, chunk) - _within(first - 1, chunk))
        narrow = last if window is None else min(last, window)
        growing = (first + narrow) * (narrow - first + 1) // 2 if first <= narrow else 0
        full = 0 if window is None else max(0, last - max(narrow, first - 1)) * window
        return self.sequences * (growing + full)

    def keys(self, *, window: int | None = None, chunk: int | None = None) -> int:
        """Distinct keys that these queries see, over all sequences."""
        each = self.context + self.tokens
        if chunk is not None:
            each -= self.context // chunk * chunk
        return self.sequences * (each if window is None else min(each, self.tokens + window - 1))

    def chosen(self, most: int) -> int:
        """Distinct keys that are read where each query reads `most` of its own choice and no two choose the same."""
        return self.sequences * min(self.context + self.tokens, most * self.tokens)

    def compressed_pairs(self, ratio: int, most: int | None = None) -> int:
        """Pairs with entries that stand for `ratio` whole tokens each, at most `most` of them a query."""
        first, last = self.context + 1, self.context + self.tokens
        limit = last if most is None else min(last, most * ratio + ratio - 1)    # floor(p / ratio) <= most so far
        grow = _floors(limit, ratio) - _floors(first - 1, ratio) if limit >= first else 0
        full = 0 if most is None else max(0, last - max(limit, first - 1)) * most
        return self.sequences * (grow + full)


def _within(count: int, chunk: int) -> int:
    """Σ of (p mod chunk) + 1 over positions p < count."""
    whole, rest = divmod(count, chunk)
    return whole * chunk * (chunk + 1) // 2 + rest * (rest + 1) // 2


def _floors(last: int, ratio: int) -> int:
    """Σ of floor(p / ratio) over p = 1 … last."""
    whole, rest = divmod(last + 1, ratio)
    return ratio * whole * (whole - 1) // 2 + whole * rest


@dataclass(frozen=True, slots=True)
class Split:
    """How the ranks of one model instance share it.

    tp   ranks that share each attention layer by heads, and each dense layer by columns
    dp   attention replicas, each with its own sequences; experts are shared by all tp·dp ranks
    ep   groups of experts among those ranks; the tp·dp/ep ranks of a group share each of its experts by columns
    pp   stages of layers; `stage` is the one in question, `stages` how many layers each has (even where not given)

    imbalance: rows of the busiest group of experts over the mean; the rank in question is that one.
    """

    tp: int = 1
    ep: int = 1
    pp: int = 1
    dp: int = 1
    stage: int = 0
    stages: tuple[int, ...] | None = None
    imbalance: float = 1.0

    def __post_init__(self) -> None:
        sizes = {"tp": self.tp, "ep": self.ep, "pp": self.pp, "dp": self.dp}
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 65536:
                raise InputError(f"{name} expected a number of ranks from 1 to 65536, got {size!r}")
        if self.ranks % self.ep:
            raise InputError(f"ep = {self.ep} does not divide the {self.ranks} ranks of tp x dp that share the experts")
        if not 1 <= self.imbalance <= self.ep:
            raise InputError(f"imbalance expected from 1 (rows fall alike) to ep = {self.ep}, got {self.imbalance!r}")
        if not 0 <= self.stage < self.pp:
            raise InputError(f"stage {self.stage} of {self.pp}: stages count from 0")
        if self.stages is not None and len(self.stages) != self.pp:
            raise InputError(f"{len(self.stages)} stages are given for pp = {self.pp}")

    @property
    def ranks(self) -> int:
        """Of one stage: they share the experts."""
        return self.tp * self.dp

    @property
    def expert_tp(self) -> int:
        """Ranks that share each expert."""
        return self.ranks // self.ep

    @property
    def first(self) -> bool:
        return self.stage == 0

    @property
    def last(self) -> bool:
        return self.stage == self.pp - 1

    def layers(self, count: int) -> range:
        """Those of this stage. Even; what is left over goes to the stages before the last, which has the head too
        (as vLLM splits them, distributed/utils.py, get_pp_indices)."""
        if self.pp > count:
            raise InputError(f"pp = {self.pp} is more than the {count} layers")
        sizes = list(self.stages) if self.stages is not None else [count // self.pp] * self.pp
        if self.stages is None:
            for back in range(count % self.pp):
                sizes[-2 - back] += 1
        if sum(sizes) != count or min(sizes) < 0:
            raise InputError(f"stages {sizes} hold {sum(sizes)} layers, the model has {count}")
        start = sum(sizes[:self.stage])
        return range(start, start + sizes[self.stage])
