"""SL303: matrix products whose tiles do not fill the device's last wave, or whose rows do not begin at 16 bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sublight.explain.bounds import said
from sublight.explain.calls import OpCall
from sublight.explain.findings.sms_held import held_blocks
from sublight.explain.owned_calls import OwnedCalls, beside_communication, owned_calls
from sublight.explain.view import View
from sublight.explain.words import cut, ms, number, of_window, percent, units
from sublight.finding import Finding
from sublight.observe.kernel_name import classify
from sublight.ops.arguments import Tensor, arguments
from sublight.ops.gemm import Gemm
from sublight.ops.op import Op
from sublight.trace import KERNEL, Trace
from sublight.work import BYTES

CODE, TITLE = "SL303", "wave quantisation and misaligned sizes in GEMMs"
SMALLEST_SHARE = 0.02        # of the window, as time that such GEMMs lose at most
SMALLEST_LOSS = 0.10         # of a GEMM, as SM time without a tile; below it no tile fits better
ALIGNED_BYTES = 16           # of the beginning of a row: what one vector load, or a TMA descriptor's stride, needs
SPLIT = 2                    # so many blocks for each tile: the product is split along k, and its parts are the tiles
SPLIT_NAMES = ("splitk", "split_k", "streamk", "stream_k")

CAVEATS = {
    "of waves, an upper limit: one tile runs on an SM at a time, each as long as the others": "waves",
    "which side of a tile lies along m is not in a kernel's name: where the grid does not tell, the side that loses "
    "more is taken": "waves",
    "of rows, an upper limit: all their time above the bound; other causes may have a part in it": "rows",
}


@dataclass(frozen=True, slots=True)
class Waves:
    """How a product's tiles fill the SMs, one tile an SM at a time."""

    tiles: int
    workers: int             # tiles at a time
    sms: int

    @property
    def loss(self) -> float:
        """Share of the SMs' time without a tile."""
        return self.of(1_000_000) / 1_000_000

    def of(self, ns: int) -> int:
        """What is lost of a time."""
        slots = -(-self.tiles // self.workers) * self.sms
        return ns * (slots - self.tiles) // slots


def find(view: View) -> Iterable[Finding]:
    """Fires where products lose at most 2 % of the window to unfilled waves of at least 10 % and to misaligned rows."""
    mine = owned_calls(view)
    if mine is None:
        return
    shape = _Shape(view, mine)
    lines: dict[str, list[int]] = {}
    words: dict[int, str] = {}                   # by the tuple of ops, which calls that are alike share
    lost = {"waves": 0, "rows": 0}
    for call, owned in mine.calls():
        if len(call.ops) != 1 or not isinstance(call.ops[0], Gemm) or call.bound is None:
            continue
        above = max(owned - shape.bound_ns(call), 0)
        waves, rows = shape.waves(call), shape.rows(call)
        if rows:
            loss, why = above, ("rows of " + " and ".join(dict.fromkeys(rows))
                                + f": not a multiple of {ALIGNED_BYTES} bytes")
        elif waves is not None and waves[0].loss >= SMALLEST_LOSS:
            loss = min(waves[0].of(shape.gemm_owned(call)), above)
            why = (f"{waves[0].tiles:,} tiles of {'x'.join(map(str, waves[1][:2]))}, {waves[0].workers} at a time on "
                   f"{waves[0].sms} {units(view)}: {percent(waves[0].loss)} of their time has no tile")
        else:
            continue
        lost["rows" if rows else "waves"] += loss
        if id(call.ops) not in words:
            words[id(call.ops)] = f"{call.name} ({cut(said(call.ops[0]), 48)})"
        of_line = lines.setdefault(f"{words[id(call.ops)]}: {why}", [0, 0, 0])
        for i, value in enumerate((loss, owned, 1)):
            of_line[i] += value
    total = sum(lost.values())
    if not total or view.share(total) < SMALLEST_SHARE:
        return
    ranked = sorted(lines.items(), key=lambda line: (-line[1][0], line[0]))
    causes = [f"{ms(lost['waves'])} to waves that do not fill the {units(view)}"] if lost["waves"] else []
    causes += [f"{ms(lost['rows'])} to rows that do not begin at {ALIGNED_BYTES} bytes"] if lost["rows"] else []
    yield Finding(
        CODE, TITLE, f"GEMMs lose at most {of_window(view, total)} to their sizes: {', '.join(causes)}",
        tuple(f"{text}; at most {ms(loss)} of {ms(owned)} in {number(count, 'call')}"
              for text, (loss, owned, count) in ranked[:5]),
        _action(lost), "medium", total,
        tuple(caveat for caveat, ns in CAVEATS.items() if lost[ns]),
    )


def _action(lost: dict[str, int]) -> str:
    pad = (f"Pad the sizes so that each row is a multiple of {ALIGNED_BYTES} bytes (8 elements of bf16, 16 of fp8): "
           "heads, vocabulary, patches or tokens that are odd cost most")
    fill = ("Try another tile, split-K or stream-K for these sizes (cuBLASLt heuristics or autotuning, "
            "max-autotune), or sizes whose tiles fill whole waves (batch or tokens a step)")
    return ". Then: ".join(text for text, ns in ((pad, lost["rows"]), (fill, lost["waves"])) if ns)


class _Shape:
    """How the products of a window lie on its device. Asked once for a kernel, grid and sizes."""

    def __init__(self, view: View, mine: OwnedCalls) -> None:
        self.view, self.mine = view, mine
        self.held = held_blocks(view) or 0
        self.beside = beside_communication(view)
        self.known: dict[tuple[int, tuple[int, ...], Gemm, bool, bool], tuple[Waves, tuple[int, ...]] | None] = {}
        self.found: dict[tuple[int, tuple[Op, ...]], list[str]] = {}

    def rows(self, call: OpCall) -> list[str]:
        """As misaligned() says."""
        question = int(self.view.trace.ops.args[call.row]) if call.row is not None else -1, call.ops
        if question not in self.found:
            self.found[question] = misaligned(self.view.trace, call)
        return self.found[question]

    def bound_ns(self, call: OpCall) -> int:
        """Its bound, as far as it lies inside the window."""
        members = list(call.activities)
        whole = int(self.view.trace.activities.dur_ns[members].sum())
        least = int(call.bound.seconds * 1e9) if call.bound else 0
        return least * int(self.mine.inside[members].sum()) // max(whole, 1)

    def _products(self, call: OpCall) -> list[int]:
        a = self.view.trace.activities
        return [i for i in call.activities if a.kind[i] == KERNEL
                and (known := classify(self.view.trace.names[int(a.name[i])])).category == "gemm" and known.tile]

    def gemm_owned(self, call: OpCall) -> int:
        """What the kernels with tiles own: not the sum of split parts, nor memsets."""
        return int(self.mine.owned[self._products(call)].sum())

    def waves(self, call: OpCall) -> tuple[Waves, tuple[int, ...]] | None:
        """The waves and the tile; None where the tile is not known or several kernels share the product."""
        products = self._products(call)
        if len(products) != 1:
            return None
        i, a, op = products[0], self.view.trace.activities, call.ops[0]
        assert isinstance(op, Gemm)
        beside, alone = bool(self.beside[i] > 0), bool(self.beside[i] < self.mine.inside[i])
        grid = tuple(a.grid[i].tolist())
        question = int(a.name[i]), grid, op, beside, alone
        if question not in self.known:
            sms = self.mine.limits.sms
            counts = [sms] * alone + [max(sms - self.held, 1)] * beside or [sms]
            name = self.view.trace.names[int(a.name[i])]
            tile = classify(name).tile or (1, 1)
            found = [w for n in counts for w in waves_of(op, name, tile, grid, n)]
            self.known[question] = (max(found, key=lambda w: w.loss), tile) if found else None
        return self.known[question]


def waves_of(op: Gemm, name: str, tile: tuple[int, ...], grid: tuple[int, ...], sms: int) -> list[Waves]:
    """Of both ways in which a tile can lie; one where the grid tells which it is.

    >>> waves_of(Gemm(m=3840, n=1920, k=448), "gemm", (192, 192), (20, 10, 1), 132)[0].of(8_250)
    2000
    """
    blocks = int(np.prod(grid, dtype=np.int64))
    if min(tile[:2]) < 1:
        return []
    ways = {op.batch * -(-op.m // tm) * -(-op.n // tn) for tm, tn in (tile[:2], tile[1::-1])}
    ways = {blocks} if blocks in ways else ways
    out = []
    for tiles in sorted(ways - {0}):
        persistent = not blocks or (blocks <= sms and tiles > blocks)
        if persistent and any(word in name.lower() for word in SPLIT_NAMES):
            continue                                                # its blocks share tiles: no wave is known
        if blocks >= SPLIT * tiles:
            tiles = blocks
        out.append(Waves(tiles, min(blocks, sms) if persistent and blocks else sms, sms))
    return out


def misaligned(trace: Trace, call: OpCall) -> list[str]:
    """Rows of a product's matrices that do not begin at multiples of 16 bytes: "5,185 bf16". Without strides, rows are
    taken to lie one after the other."""
    op = call.ops[0]
    if call.row is None or not isinstance(op, Gemm) or trace.ops.args[call.row] < 0:
        return []
    given = arguments(trace.op_args[int(trace.ops.args[call.row])])
    matrices = [t for t in given.values if isinstance(t, Tensor)] if given else []
    matrices.append(Tensor((op.m, op.n), op.out))
    out = []
    for t in matrices:
        row = _row(t)
        if row is not None and t.form in BYTES and row * BYTES[t.form] % ALIGNED_BYTES:
            out.append(f"{row:,} {t.form}")
    return out


def _row(t: Tensor) -> int | None:
    """Elements from one row of a matrix to the next; None where it has one row, or is none."""
    if len(t.dims) < 2 or min(t.dims[-2:]) < 2:
        return None
    if t.strides is None:
        return t.dims[-1]
    across, along = (abs(s) for s in t.strides[-2:])
    return across if along == 1 else along if across == 1 else None
