"""SL305: attention as separate products, scaling, masking and softmax, whose scores go through memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from sublight.bound import bound
from sublight.explain.calls import OpCall
from sublight.explain.owned_calls import OwnedCalls, owned_calls
from sublight.explain.view import View
from sublight.explain.words import ms, number, of_window
from sublight.finding import Finding
from sublight.ops.attention import Attention, unmasked_pairs
from sublight.ops.elementwise import Elementwise
from sublight.ops.gemm import Gemm
from sublight.ops.reduction import Softmax

CODE, TITLE = "SL305", "attention not fused"
SMALLEST_SHARE = 0.01        # of the window, as what fusing saves at most
REPEATED = 2                 # times of the same sizes: once may be chance
MOST_BETWEEN = 8             # calls between a product and the softmax: scale, mask, casts, dropout
MASKING = ("add", "masked_fill", "where")


@dataclass(frozen=True, slots=True)
class Unfused:
    """One softmax(Q·Kᵀ)·V in parts. calls are those on its scores; fused is the least work that does the same."""

    calls: tuple[OpCall, ...]
    fused: Attention

    @property
    def sizes(self) -> str:
        """"bmm, mul, _softmax, bmm: 96 x 3,137 x 3,137 scores, d 64"."""
        first = self.calls[0].ops[0]
        assert isinstance(first, Gemm)
        names = ", ".join(call.name.rsplit("::", 1)[-1] for call in self.calls)
        return f"{names}: {first.batch:,} x {first.m:,} x {first.n:,} scores, d {first.k}"


def find(view: View) -> Iterable[Finding]:
    """Fires where products and a softmax of matching sizes follow each other on a thread at least twice, and fusing
    them could save 1 % of the window."""
    mine = owned_calls(view)
    if mine is None:
        return
    groups: dict[str, list[Unfused]] = {}
    for thread in _threads(view, mine):
        for one in unfused(thread):
            groups.setdefault(one.sizes, []).append(one)
    rows = []
    for sizes, several in groups.items():
        known = [n for n in (_times(view, mine, one) for one in several) if n is not None]
        if len(known) >= REPEATED:
            owned, least = (sum(n[i] for n in known) for i in (0, 1))
            rows.append((owned - least, owned, least, len(known), sizes, any(
                call.inferred for one in several for call in one.calls)))
    rows.sort(key=lambda row: (-row[0], row[4]))
    gain, total = sum(row[0] for row in rows), sum(row[1] for row in rows)
    if gain <= 0 or view.share(gain) < SMALLEST_SHARE:
        return
    yield Finding(
        CODE, TITLE,
        f"{of_window(view, total)} goes to attention in separate kernels, which write and read all scores; fused it "
        f"needs at least {ms(total - gain)}",
        tuple(f"{sizes}; {ms(owned)} in {number(count, 'run')}, fused at least {ms(least)}"
              f"{'; inferred' if inferred else ''}" for _, owned, least, count, sizes, inferred in rows[:5]),
        "Use torch.nn.functional.scaled_dot_product_attention or FlashAttention (Hugging Face: "
        'attn_implementation="sdpa" or "flash_attention_2")',
        "medium", gain,
        ("an upper limit: the fused bound has a causal mask where something may mask, and one head's keys and values",
         "that these calls are one attention is inferred from their order and sizes"),
    )


def _threads(view: View, mine: OwnedCalls) -> Iterator[list[OpCall]]:
    """The calls that own time of the window, by thread, in the order in which the host made them."""
    o = view.trace.ops
    by_thread: dict[int, list[OpCall]] = {}
    for call, _ in mine.calls():
        if call.row is not None:
            by_thread.setdefault(int(o.thread[call.row]), []).append(call)
    for calls in by_thread.values():
        yield sorted(calls, key=lambda call: (int(o.ts_ns[call.row or 0]), call.row or 0))


def unfused(calls: list[OpCall]) -> Iterator[Unfused]:
    """Every product of scores, softmax over them, and product with the values, in one thread's calls."""
    at = 0
    while at < len(calls):
        found = _attention(calls, at)
        if found is None:
            at += 1
        else:
            one, at = found
            yield one


def _attention(calls: list[OpCall], first: int) -> tuple[Unfused, int] | None:
    scores = _only(calls[first])
    if not isinstance(scores, Gemm) or scores.batch < 2:
        return None
    elements = scores.batch * scores.m * scores.n
    parts, masked, normalised = [calls[first]], scores.addend is not None, False
    for i in range(first + 1, min(first + 2 + MOST_BETWEEN, len(calls))):
        call, op = calls[i], _only(calls[i])
        if isinstance(op, Gemm):
            if normalised and (op.batch, op.m, op.k) == (scores.batch, scores.m, scores.n):
                pairs = scores.batch * unmasked_pairs(scores.m, scores.n, causal="end" if masked else None)
                # Heads may share their keys, and a batch its cache: keys and values of one are needed at least.
                fused = Attention(pairs, scores.batch * scores.m, scores.n, 1, 1, scores.k, op.n, scores.a, scores.b,
                                  op.out, scores.math)
                return Unfused((*parts, call), fused), i + 1
            return None
        if isinstance(op, Softmax) and op.elements == elements and not op.backward and not normalised:
            normalised = True
            parts.append(call)
        elif isinstance(op, Elementwise) and any(o.elements == elements for o in (*op.writes, *op.reads)):
            masked |= not normalised and any(word in call.name for word in MASKING)
            parts.append(call)
        else:                                                        # what no rule knows may mask as well
            masked |= not normalised
    return None


def _only(call: OpCall) -> object:
    return call.ops[0] if len(call.ops) == 1 else None


def _times(view: View, mine: OwnedCalls, one: Unfused) -> tuple[int, int] | None:
    """(what its parts own, what the fused operator needs at least), both of the window; None without a bound."""
    least = bound(one.fused.work(), mine.limits)
    if least is None:
        return None
    members = np.array([i for call in one.calls for i in call.activities])
    owned, within = int(mine.owned[members].sum()), int(mine.inside[members].sum())
    whole = max(int(view.trace.activities.dur_ns[members].sum()), 1)
    return owned, min(int(least.seconds * 1e9) * within // whole, owned)
