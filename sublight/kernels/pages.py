"""This file knows about a KV cache in pages: how a case fills it, and which rows of it a sequence has.

    table [batch, max_pages]    page numbers of a sequence, in order; entries that it does not use name the canary page
    lengths [batch]             tokens of a sequence; its last page may be partly unused

Slots that no sequence uses hold NaN, and so does the whole canary page: a kernel that reads beyond a length shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, nan
from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = Any

# How the lengths of a case fall.
FULL, RAGGED, EMPTY = "full", "ragged", "empty"


@dataclass(frozen=True, slots=True)
class Pages:
    """Where the tokens of each sequence lie."""

    table: Tensor
    lengths: Tensor
    page: int

    @classmethod
    def drawn(cls, *, batch: int, kv_length: int, page: int, how: str, random: Any) -> Pages:
        """Pages in no order, the canary page among them. full: all sequences are kv_length long. ragged: one is, others
        are empty, of one token, of whole pages or of any length. empty: none has a token."""
        most = ceil(kv_length / page)
        order = torch.randperm(batch * most + 1, generator=random).to(torch.int32)
        lengths = torch.full((batch,), kv_length if how != EMPTY else 0, dtype=torch.int32)
        if how == RAGGED:
            kinds = (kv_length, 0, 1, max(1, kv_length // page) * page, page + 1)
            drawn = torch.randint(0, kv_length + 1, (batch,), generator=random).tolist()
            lengths = torch.tensor([min(kv_length, kinds[i] if i < len(kinds) else drawn[i]) for i in range(batch)],
                                   dtype=torch.int32)
        used = torch.arange(most) * page < lengths[:, None]
        return cls(torch.where(used, order[1:].view(batch, most), order[0]), lengths, page)

    @property
    def count(self) -> int:
        """Pages of the cache."""
        return int(self.table.numel()) + 1

    def filled(self, tokens: Tensor) -> Tensor:
        """The cache [pages, page, ..] of tokens [batch, kv_length, ..]."""
        cache = tokens.new_full((self.count, self.page, *tokens.shape[2:]), nan)
        for b, length in enumerate(self.lengths.tolist()):
            at = torch.arange(length)
            cache[self.table[b, at // self.page].long(), at % self.page] = tokens[b, :length]
        return cache


def rows_of(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """[length, ..]: the tokens of one sequence, whose row of the table this is."""
    pages = ceil(length / cache.shape[1])
    return cache[table[:pages].long()].flatten(0, 1)[:length]
