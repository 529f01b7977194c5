"""SL306: memory-bound kernels one after the other, each of which reads what the one before it wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from sublight.explain.calls import OpCall
from sublight.explain.owned_calls import OwnedCalls, owned_calls
from sublight.explain.view import View
from sublight.explain.words import cut, ms, number, of_window
from sublight.finding import Finding
from sublight.ops.elementwise import Elementwise, Rotary
from sublight.ops.fused import Gated
from sublight.ops.normalisation import Normalisation
from sublight.ops.op import Op, Operand, nbytes
from sublight.trace import MEMCPY

CODE, TITLE = "SL306", "fusable memory-bound chains"
SMALLEST_SHARE = 0.01        # of the window, as what fusing saves at most
LONG = 3                     # kernels of a chain that is always worth a look
SHORT, SHORT_SHARE = 2, 0.05  # of the window, that shorter ones must own


@dataclass(frozen=True, slots=True)
class Chain:
    """Different calls next to each other on a stream, each of which can read what the one before it wrote."""

    calls: tuple[OpCall, ...]

    @property
    def names(self) -> str:
        return " → ".join(call.name.rsplit("::", 1)[-1] for call in self.calls)

    @property
    def nbytes(self) -> int:
        """What a single kernel has to move at least: what the first one reads and the last one writes."""
        return nbytes(reads(self.calls[0].ops[0])) + nbytes(writes(self.calls[-1].ops[0]))


def reads(op: Op) -> tuple[Operand, ...]:
    """What a fusable operator reads of its activations."""
    if isinstance(op, Elementwise):
        return op.reads
    if isinstance(op, Gated):
        return (Operand(2 * op.rows * op.width, op.form),)
    return writes(op)


def writes(op: Op) -> tuple[Operand, ...]:
    if isinstance(op, Elementwise):
        return op.writes
    if isinstance(op, Gated):
        return (Operand(op.rows * op.width, op.out or op.form),)
    if isinstance(op, Normalisation):
        return (Operand(op.elements, op.form),) * (2 if op.residual else 1)
    assert isinstance(op, Rotary)
    return (Operand(op.tokens * op.heads * op.d_rotated, op.form),)


def find(view: View) -> Iterable[Finding]:
    """Fires where chains of at least three calls, or of two that own 5 % of the window, could save 1 % of it as one
    kernel each."""
    mine = owned_calls(view)
    if mine is None or not mine.limits.memory_bytes_per_second:
        return
    groups: dict[str, list[tuple[int, int, Chain]]] = {}
    for chain in chains(view, mine):
        groups.setdefault(chain.names, []).append((*_times(view, mine, chain), chain))
    rows = []
    for names, several in groups.items():
        owned, gain = sum(n[0] for n in several), sum(n[1] for n in several)
        if len(several[0][2].calls) >= LONG or view.share(owned) >= SHORT_SHARE:
            rows.append((gain, owned, len(several), names, any(c.inferred for n in several for c in n[2].calls)))
    rows.sort(key=lambda row: (-row[0], row[3]))
    gain, owned = sum(row[0] for row in rows), sum(row[1] for row in rows)
    if gain <= 0 or view.share(gain) < SMALLEST_SHARE:
        return
    yield Finding(
        CODE, TITLE,
        f"{of_window(view, owned)} goes to {number(sum(row[2] for row in rows), 'chain')} of memory-bound kernels, "
        f"each reading what the one before it wrote; what they must move takes {ms(owned - gain)}",
        tuple(f"{cut(names, 70)}: {ms(total)} in {number(count, 'chain')}, at most {ms(saved)} less as one kernel each"
              f"{'; inferred' if inferred else ''}" for saved, total, count, names, inferred in rows[:5]),
        "Let a compiler fuse them (torch.compile), or use a fused kernel (RMSNorm with its residual, SwiGLU, rotary "
        "embedding: Liger, Apex, the serving engine's own)",
        "medium", gain,
        ("an upper limit: what the first kernel reads and the last one writes, at the memory's rate or the best that a "
         "kernel of the chain reached",
         "that each reads what the one before it wrote is inferred from sizes, formats and order on the stream"),
    )


def _fusable(call: OpCall) -> bool:
    op = call.ops[0] if len(call.ops) == 1 else None
    if isinstance(op, Normalisation):
        return not op.backward and op.elements > 0
    return isinstance(op, Elementwise | Gated | Rotary) and any(o.elements for o in writes(op))


def chains(view: View, mine: OwnedCalls) -> Iterator[Chain]:
    """Chains of two calls and more, the longest possible, on each stream of the window."""
    a, names = view.trace.activities, view.trace.names
    rows = view.rows[mine.inside[view.rows] > 0]
    of_ops = {id(call.ops): call for call in mine.joined.calls}          # calls that are alike share their tuple of ops
    fits_ops = {ops for ops, call in of_ops.items() if _fusable(call)}
    fusable = np.array([*(id(call.ops) in fits_ops for call in mine.joined.calls), False])
    host = np.array(["HtoD" in name or "DtoH" in name for name in names] or [False])
    good = fusable[mine.joined.of_activity[rows]] & ~((a.kind[rows] == MEMCPY) & host[a.name[rows]])
    for stream in np.unique(a.stream[rows]).tolist():
        on = a.stream[rows] == stream
        run: list[OpCall] = []
        for call, fits in zip(mine.joined.of_activity[rows[on]].tolist(), good[on].tolist(), strict=True):
            if not fits:
                yield from _closed(run)
                run = []
                continue
            one = mine.joined.calls[call]
            if run and one is run[-1]:
                continue
            if run and (not _follows(run[-1], one) or any(_same(one, other) for other in run)):
                yield from _closed(run)
                run = []
            run.append(one)
        yield from _closed(run)


def _closed(run: list[OpCall]) -> Iterator[Chain]:
    if len(run) >= SHORT:
        yield Chain(tuple(run))


def _follows(one: OpCall, then: OpCall) -> bool:
    """Can the second read what the first wrote? The same number of elements, in the same format, and as many results:
    what only scales the rows of something larger is another chain's end."""
    size = max(o.elements for o in writes(then.ops[0]))
    return any(o.elements == size and o in reads(then.ops[0]) for o in writes(one.ops[0]))


def _same(one: OpCall, other: OpCall) -> bool:
    """The same operator on the same sizes again: more likely another tensor's turn than another step with this one."""
    return one.name == other.name and one.ops == other.ops


def _times(view: View, mine: OwnedCalls, chain: Chain) -> tuple[int, int]:
    """(what a chain owns, what one kernel in its place saves at most), of the window."""
    a = view.trace.activities
    rate = (mine.limits.memory_bytes_per_second or 0.0) / 1e9           # bytes a ns
    for call in chain.calls:
        took = int(a.dur_ns[list(call.activities)].sum())
        if call.work is not None and took:
            rate = max(rate, call.work.bytes_total / took)               # L2 may be faster than the memory
    members = np.array([i for call in chain.calls for i in call.activities])
    owned, within = int(mine.owned[members].sum()), int(mine.inside[members].sum())
    left = chain.nbytes / rate * within / max(int(a.dur_ns[members].sum()), 1)
    return owned, max(owned - int(left), 0)
