"""This file knows about the time of a step as a function of its load: evaluated at nodes, read between them.

    m     tokens that go through the linear layers of one attention replica
    b, l  sequences that decode on one replica, and the mean of their cached tokens
    n, c  new tokens of a prompt's piece, and tokens of it that are cached already

A step = body(m) + experts(m) + head(rows) + decode(b, l) + Σ prefill(n, c): linear layers are multiplied once for all
tokens, attention runs for each kind of batch.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, log

from sublight.models import Batch, Model, Split, step_ops
from sublight.ops import Attention, Experts, ScaledGemm
from sublight.ops.index import IndexScores
from sublight.ops.op import Op
from sublight.ops.recurrent import Recurrence, ShortConvolution
from sublight.predict.machine import Machine
from sublight.predict.operators import op_time

# Nodes: between them times are taken to be linear (tokens, sequences) or a power (pieces of prompts).
TOKENS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
          8192, 12288, 16384, 24576, 32768, 65536, 131072)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
LENGTHS = (0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)
PIECES = (1, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 1 << 20)
CONTEXTS = (0, 512, 2048, 8192, 32768, 131072, 1 << 20)
OF_ONE_BATCH = (Attention, IndexScores, Recurrence, ShortConvolution)
CALLS: dict[type[Op], int] = {Experts: 8, ScaledGemm: 2}
ALSO_OF_ONE_BATCH = ("attention.kv_b", "attention.absorb_q", "attention.absorb_v")


def kernels(op: Op) -> int:
    """Kernels of an operator, about."""
    return CALLS.get(type(op), 1)


def of_one_batch(label: str, op: Op) -> bool:
    """Whether an operator runs for each batch of a step apart: everything else is done once for all of its tokens."""
    return isinstance(op, OF_ONE_BATCH) or label.removeprefix("draft.") in ALSO_OF_ONE_BATCH


def _around(grid: tuple[int, ...], value: float) -> tuple[int, int]:
    """The nodes between which a value lies (or the outermost two)."""
    high = min(max(bisect_right(grid, value), 1), len(grid) - 1)
    return grid[high - 1], grid[high]


@dataclass
class Surface:
    """Seconds of the steps of one model under one split on one machine. Not frozen: it remembers its nodes."""

    model: Model
    split: Split
    where: Machine
    drafts: int = 0
    _linear: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    _tokens: dict[float, tuple[float, float, float]] = field(default_factory=dict)
    _decode: dict[tuple[int, int], float] = field(default_factory=dict)
    _rows: dict[float, list[float | None]] = field(default_factory=dict)
    _prefill: dict[tuple[int, int], float] = field(default_factory=dict)
    _pieces: dict[tuple[int, int], float] = field(default_factory=dict)

    @cached_property
    def calls(self) -> int:
        """Kernels that the host launches for a prompt, about: an operator is one, with a quantisation before it two, a
        mixture of experts eight (route, sort, quantise, two products, activation, combine, add)."""
        step = step_ops(self.model, (Batch(1, 512),), self.split)
        return sum(count * kernels(op) for _, op, count in step)

    @cached_property
    def decode_calls(self) -> int:
        """The same of a decode step, with its drafts."""
        batch = (Batch(1, 1 + self.drafts, 512, decode=True),)
        step = step_ops(self.model, batch, self.split, drafts=self.drafts)
        return sum(count * kernels(op) for _, op, count in step)

    def linear(self, m: float) -> tuple[float, float, float]:
        """Seconds of the linear layers of m tokens (norms and collectives with them), of their experts, of the head."""
        found = self._tokens.get(m)
        if found is None:
            low, high = _around(TOKENS, m)
            a, b = self._linear_node(low), self._linear_node(high)
            part = max(0.0, (m - low) / (high - low))
            found = (a[0] + part * (b[0] - a[0]), a[1] + part * (b[1] - a[1]), a[2] + part * (b[2] - a[2]))
            self._tokens[m] = found
        return found

    def _linear_node(self, m: int) -> tuple[float, float, float]:
        if m not in self._linear:
            body = experts = head = 0.0
            for label, op, count in step_ops(self.model, (Batch(m, 1, 0, decode=True),), self.split):
                if of_one_batch(label, op):
                    continue
                seconds = count * op_time(op, self.where).seconds
                if label.startswith("head"):
                    head += seconds
                elif label.startswith("moe."):
                    experts += seconds
                else:
                    body += seconds
            self._linear[m] = (body, experts, head)
        return self._linear[m]

    def decode(self, b: float, length: float) -> float:
        """Seconds of what b decoding sequences add to the linear layers: attention, and drafts."""
        row = self._rows.get(b)
        if row is None:
            row = self._rows[b] = [None] * len(LENGTHS)
        high = min(max(bisect_right(LENGTHS, length), 1), len(LENGTHS) - 1)
        low_seconds, high_seconds = row[high - 1], row[high]
        if low_seconds is None:
            low_seconds = row[high - 1] = self._decode_at(b, LENGTHS[high - 1])
        if high_seconds is None:
            high_seconds = row[high] = self._decode_at(b, LENGTHS[high])
        start, end = LENGTHS[high - 1], LENGTHS[high]
        return low_seconds + (length - start) / (end - start) * (high_seconds - low_seconds)

    def _decode_at(self, b: float, length: int) -> float:
        low, high = _around(SEQUENCES, b)
        a, z = self._decode_node(low, length), self._decode_node(high, length)
        return a + max(0.0, (b - low) / (high - low)) * (z - a)

    def _decode_node(self, b: int, length: int) -> float:
        key = b, length
        if key not in self._decode:
            batch = (Batch(b, 1 + self.drafts, length, decode=True),)
            self._decode[key] = sum(
                count * op_time(op, self.where).seconds
                for label, op, count in step_ops(self.model, batch, self.split, drafts=self.drafts)
                if of_one_batch(label, op) or label.startswith("draft."))
        return self._decode[key]

    def prefill(self, n: int, context: int = 0) -> float:
        """Seconds of what the attention of a prompt's piece adds to the linear layers."""
        key = n, context
        if key not in self._pieces:
            low, high = _around(CONTEXTS, context)
            a = self._prefill_at(n, low)
            z = self._prefill_at(n, high) if context > low else a
            self._pieces[key] = a + (context - low) / (high - low) * (z - a)
        return self._pieces[key]

    def _prefill_at(self, n: int, context: int) -> float:
        low, high = _around(PIECES, n)
        a, z = self._prefill_node(low, context), self._prefill_node(high, context)
        if a <= 0 or z <= 0:
            return max(a, z, 0.0)
        return exp(log(a) + log(n / low) / log(high / low) * (log(z) - log(a)))

    def _prefill_node(self, n: int, context: int) -> float:
        key = n, context
        if key not in self._prefill:
            self._prefill[key] = sum(
                count * op_time(op, self.where).seconds
                for label, op, count in step_ops(self.model, (Batch(1, n, context),), self.split)
                if of_one_batch(label, op))
        return self._prefill[key]


MOST_SURFACES = 512
_SURFACES: dict[tuple[object, ...], Surface] = {}


def surface(model: Model, split: Split, where: Machine, *, drafts: int = 0) -> Surface:
    """The surface of a configuration, kept for the next question about it."""
    cluster = where.cluster
    key = (id(model), split, drafts, id(cluster.node), cluster.nodes, cluster.gpus_per_node, cluster.fabric,
           cluster.layout, cluster.nodes_per_leaf, cluster.oversubscription, where.library, where.version, where.tables,
           where.routing, where.experts, where.cold, tuple(sorted(where.faster.items())))
    found = _SURFACES.get(key)
    if found is None:
        if len(_SURFACES) >= MOST_SURFACES:
            del _SURFACES[next(iter(_SURFACES))]
        found = _SURFACES[key] = Surface(model, split, where, drafts)    # holds model and node: their ids stay theirs
    return found
