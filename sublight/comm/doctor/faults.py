"""This file knows about faults in a table of nodes by nodes: slow nodes, slow pairs, and groups that are slow together.

Input is the logarithm of a bandwidth for each pair of nodes. A pair is as fast as its slowest part: a slow node slows
all
its pairs, a slow pair is one entry, and groups (leaves, rails) show as blocks. What explains the table with the fewest
parts
at the least spread is kept (a description length: the logarithm of the likelihood plus a price for each part, as in
Schwarz's
criterion, Ann. Stat. 6(2), 1978), and then every part must pass a test of its own. Centres are medians and spreads are
winsorised, so
that one odd pair moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma, log, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEAST_SLOW = 0.08                  # of a node or a pair, in logarithms: what is less is not called a fault
LEAST_GAP = 0.03                   # between the levels of two groups
GAP_IN_SPREADS = 2.2               # of what blocks spread by inside: the best of all partitions of noise shows 1 to 1.5
UNUSUAL = 1.6                      # times as much for few nodes, and for a group that is slow only within itself
FEW_NODES = 8
LEAST_GROUP = 3                    # nodes that are slow with everyone and alike: from here they share a cause
SHARE_OF_PAIRS = 2 / 3             # of a node's pairs that must be slow before the node is blamed
FALSE_ALARM = 0.002                # chance a table, shared by all nodes
PAIRS_OVER_NODES = 5.0             # the chance that all pairs share, over that
PRIOR_SPREAD, PRIOR_COUNT = 0.015, 1.0      # what repeated runs of nccl-tests differ by, worth so many measurements
SMALLEST_SPREAD = 0.003
SHARED_COUNT = 5.0                 # entries of the whole table that a block's own spread is weighed against
BEAM, MOST_TRIED, MOST_MOVES, MANY_NODES = 6, 24, 6, 16


@dataclass(frozen=True, slots=True)
class SlowNode:
    node: int
    deficit: float                 # in logarithms: 0.2 is 18 % slower
    slow_pairs: int
    pairs: int


@dataclass(frozen=True, slots=True)
class SlowPair:
    pair: tuple[int, int]
    deficit: float


@dataclass(frozen=True, slots=True)
class Split:
    """Two groups of nodes. kind: "between": slow from one to the other; "group": the second is slow with everyone;
    "inside": the second is slow within itself. Levels are logarithms."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    kind: str
    inside_first: float
    inside_second: float
    between: float
    spread: float


@dataclass(frozen=True, slots=True)
class Faults:
    level: float                   # of healthy pairs, a logarithm
    spread: float
    nodes: tuple[SlowNode, ...] = ()
    pairs: tuple[SlowPair, ...] = ()
    split: Split | None = None
    blocks: tuple[float, ...] = ()       # levels of healthy pairs inside the first group, between, inside the second

    def healthy(self, i: int, j: int) -> float:
        """What a healthy pair reaches where these two nodes are, a logarithm."""
        if self.split is None:
            return self.level
        return self.blocks[(i in self.split.second) + (j in self.split.second)]


@dataclass(frozen=True, slots=True)
class _Entries:
    """The measured pairs of a table: ends and logarithms."""

    i: Ints
    j: Ints
    y: Floats
    n: int
    alarm: float


def locate(
    *tables: Floats, least_slow: float = LEAST_SLOW, alarm: float = FALSE_ALARM, second: tuple[int, ...] | None = None
) -> Faults | None:
    """The faults of symmetric tables of logarithms with nan where nothing was measured, each table a test of the same
    nodes with its healthy level taken off (one table: any level). None below three pairs.
    alarm: chance of a false one. second: the second of two groups that another table showed."""
    n = len(tables[0])
    i, j = (np.tile(ends, len(tables)).astype(np.int64) for ends in np.triu_indices(n, 1))
    y = np.concatenate([table[np.triu_indices(n, 1)] for table in tables])
    known = np.isfinite(y)
    entries = _Entries(i[known], j[known], y[known], n, alarm)
    if len(entries.y) < 3:
        return None
    if second is not None:
        known_split = _levels(entries, np.isin(np.arange(entries.n), second))
        return _explained(entries, known_split, least_slow)[1]
    plain_cost, plain = _explained(entries, None, least_slow)
    split = _split(entries)
    if split is None:
        return plain
    if split.kind == "group" and len(split.second) < LEAST_GROUP and set(split.second) <= {
            node.node for node in plain.nodes}:
        return plain                     # two alike are two slow nodes, not a group
    cost, with_split = _explained(entries, split, least_slow)
    n, k = entries.n, len(split.second)
    price = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + 4.5        # which k of n nodes, and three levels
    return with_split if cost + price < plain_cost else plain


# ---------------------------------------------------------------- parts


def _explained(entries: _Entries, split: Split | None, least_slow: float) -> tuple[float, Faults]:
    """What nodes and pairs add to a split or to none: (description length, faults)."""
    y, spread_of = entries.y, np.ones(len(entries.y))
    if split is not None:
        y, spread_of = _levelled(entries, split)
    flat = _Entries(entries.i, entries.j, y, entries.n, entries.alarm)
    nodes = _slow_nodes(flat, least_slow)
    slow = {node.node for node in nodes}
    healthy = ~(_touching(flat, slow))
    level = _level(y[healthy])
    pairs, spread = _slow_pairs(flat, healthy, level, spread_of, least_slow)
    cost = _cost(y - _predicted(flat, sorted(slow), level), spread_of) + len(nodes) * (2.5 + log(entries.n))
    blocks = (split.inside_first, split.between, split.inside_second) if split else (0.0, 0.0, 0.0)
    found = Faults(level + max(blocks), spread, tuple(nodes), tuple(pairs), split, tuple(level + b for b in blocks))
    return cost, found


def _levelled(entries: _Entries, split: Split) -> tuple[Floats, Floats]:
    """The table without its groups' levels, and how much wider each block spreads than the narrowest."""
    second = np.isin(np.arange(entries.n), split.second)
    block = second[entries.i].astype(int) + second[entries.j].astype(int)
    level = np.array([split.inside_first, split.between, split.inside_second])[block]
    out = entries.y - level
    whole = _spread(out)

    def own(rest: Floats) -> float:
        spread = _spread(rest) if len(rest) else whole
        return sqrt((len(rest) * spread**2 + SHARED_COUNT * whole**2) / (len(rest) + SHARED_COUNT))

    spreads = np.array([own(out[block == b]) for b in range(3)])
    return out, (np.maximum(spreads, PRIOR_SPREAD) / max(PRIOR_SPREAD, float(spreads.min())))[block]


def _slow_nodes(entries: _Entries, least_slow: float) -> list[SlowNode]:
    """Nodes whose pairs with healthy nodes are slow. Sets of nodes are tried by a beam, since two slow nodes hide each
    other; then each must stand by itself."""
    def cost(chosen: tuple[int, ...]) -> float:
        healthy = ~_touching(entries, set(chosen))
        if not healthy.any():
            return np.inf
        predicted = _predicted(entries, chosen, _level(entries.y[healthy]))
        return _cost(entries.y - predicted) + len(chosen) * (2.5 + log(entries.n))

    able = _slowest(entries)
    best: tuple[float, tuple[int, ...]] = (cost(()), ())
    beam: list[tuple[int, ...]] = [()]
    for _ in range(max(1, entries.n // 2 - (entries.n > 3))):
        tried = {tuple(sorted((*chosen, node))) for chosen in beam for node in able if node not in chosen}
        ranked = sorted((cost(chosen), chosen) for chosen in tried)[:BEAM]
        if not ranked or ranked[0][0] >= best[0]:
            if len(ranked) == 0 or ranked[0][0] > best[0] + 8:
                break
        else:
            best = ranked[0]
        beam = [chosen for _, chosen in ranked]
        if len(beam[0]) >= len(best[1]) + 3:
            break
    return _proved(entries, list(best[1]), least_slow)


def _slowest(entries: _Entries) -> list[int]:
    """The nodes worth trying: those with the slowest pairs in the median."""
    middle = [float(np.median(own)) if len(own := entries.y[(entries.i == k) | (entries.j == k)]) else np.inf
              for k in range(entries.n)]
    return [int(k) for k in np.argsort(middle)[:MOST_TRIED]]


def _proved(entries: _Entries, chosen: list[int], least_slow: float) -> list[SlowNode]:
    """Those of the chosen nodes that pass: slow by enough, in most of their pairs, and beyond chance."""
    while chosen:
        healthy = ~_touching(entries, set(chosen))
        level = _level(entries.y[healthy])
        spread = _spread(entries.y - _predicted(entries, chosen, level))
        needed = student(entries.alarm / entries.n, len(entries.y) - 1 - len(chosen) + PRIOR_COUNT)
        tests: list[tuple[float, SlowNode]] = []
        for node in chosen:
            own = entries.y[_with_healthy(entries, node, chosen)]
            if len(own) == 0:
                tests.append((-np.inf, SlowNode(node, 0.0, 0, 0)))
                continue
            deficit = level - float(np.median(own))
            slow = int((own < level - max(deficit, least_slow) / 2).sum())
            strength = deficit / (1.25 * spread * sqrt(1 / len(own) + 1 / max(int(healthy.sum()), 1)))
            enough = deficit >= least_slow and slow >= SHARE_OF_PAIRS * len(own) and len(own) >= 2
            tests.append((strength if enough and strength > needed else -1 / (1 + max(strength, 0)),
                          SlowNode(node, deficit, slow, len(own))))
        worst = min(tests, key=lambda t: t[0])
        if worst[0] > 0:
            return [node for _, node in sorted(tests, key=lambda t: -t[1].deficit)]
        chosen.remove(worst[1].node)
    return []


def _slow_pairs(
    entries: _Entries, healthy: NDArray[np.bool_], level: float, spread_of: Floats, least_slow: float
) -> tuple[list[SlowPair], float]:
    """Pairs of healthy nodes that are slow beyond chance, and the spread of the others."""
    rest = (entries.y - level) / spread_of
    number = entries.i * entries.n + entries.j
    which, at, runs = np.unique(number, return_inverse=True, return_counts=True)
    mean = np.bincount(at, rest) / runs
    deficit = -np.bincount(at, entries.y - level) / runs
    able = np.bincount(at, healthy) > 0
    out = np.zeros(len(which), dtype=bool)
    spread = PRIOR_SPREAD
    for _ in range(4):
        inside = healthy & ~out[at]
        if inside.sum() < 2:
            break
        spread = _spread(rest[inside])
        chance = PAIRS_OVER_NODES * entries.alarm / max(int(able.sum()), 1)
        needed = student(chance, int(inside.sum()) - 1 + PRIOR_COUNT) * spread / np.sqrt(runs)
        found = able & (mean < -needed) & (deficit > least_slow)
        if (found == out).all():
            break
        out = found
    pairs = [SlowPair((int(which[k]) // entries.n, int(which[k]) % entries.n), float(deficit[k]))
             for k in np.flatnonzero(out)]
    return pairs, spread


# ---------------------------------------------------------------- groups


def _split(entries: _Entries) -> Split | None:
    """The partition into two groups, of two nodes or more each, that explains most; None where levels hardly differ."""
    if entries.n < 6:
        return None
    best: tuple[float, NDArray[np.bool_]] | None = None
    whole = _cost(entries.y - np.median(entries.y))
    for now, second in sorted(((_split_cost(entries, s), s) for s in _starts(entries)), key=lambda c: c[0])[:2]:
        if entries.n < MANY_NODES or now < whole - entries.n:      # many nodes without groups: nothing to refine
            now, second = _refined(entries, now, second)
        if np.isfinite(now) and (best is None or now < best[0]):
            best = (now, second)
    return None if best is None else _named(entries, best[1])


def _refined(entries: _Entries, now: float, second: NDArray[np.bool_]) -> tuple[float, NDArray[np.bool_]]:
    """A partition with nodes moved to the other side as long as that explains more, best move first."""
    for _ in range(MOST_MOVES):
        flips = []
        for node in range(entries.n):
            flipped = second.copy()
            flipped[node] = not flipped[node]
            flips.append((_split_cost(entries, flipped), node))
        cost, node = min(flips)
        if cost >= now - 1e-9:
            break
        now, second = cost, second.copy()
        second[node] = not second[node]
    return now, second


def _starts(entries: _Entries) -> list[NDArray[np.bool_]]:
    """Partitions to begin with: signs of the leading eigenvectors, and nodes above and below the widest gap."""
    matrix = np.zeros((entries.n, entries.n))
    rest = np.clip(entries.y - np.median(entries.y), -1.0, 1.0)
    rest = rest - rest.mean()
    matrix[entries.i, entries.j] = matrix[entries.j, entries.i] = rest
    values, vectors = np.linalg.eigh(matrix)
    order = np.argsort(-np.abs(values))[:4]
    starts = [vectors[:, k] > 0 for k in order]
    counts = np.maximum((matrix != 0).sum(1), 1)
    means = matrix.sum(1) / counts
    ranked = np.sort(means)
    gap = int(np.argmax(np.diff(ranked)))
    starts.append(means <= (ranked[gap] + ranked[gap + 1]) / 2)
    return [s for s in starts if 2 <= s.sum() <= entries.n - 2]


def _blocks(entries: _Entries, second: NDArray[np.bool_]) -> Ints:
    return second[entries.i].astype(np.int64) + second[entries.j].astype(np.int64)


def _split_cost(entries: _Entries, second: NDArray[np.bool_]) -> float:
    if not 2 <= second.sum() <= entries.n - 2:
        return np.inf
    block = _blocks(entries, second)
    rest = entries.y.copy()
    for b in range(3):
        if (inside := block == b).any():
            rest[inside] -= np.median(rest[inside])
    return _cost(rest)


def _levels(entries: _Entries, second: NDArray[np.bool_]) -> Split | None:
    """A partition with the levels that a table gives it; None where a block has no entry."""
    blocks = [entries.y[_blocks(entries, second) == b] for b in range(3)]
    if not all(len(block) for block in blocks):
        return None
    one, between, two = (float(np.median(block)) for block in blocks)
    first = np.flatnonzero(~second)
    return Split(tuple(first.tolist()), tuple(np.flatnonzero(second).tolist()), "known", one, two, between, max(
        _spread(block - np.median(block)) for block in blocks))


def _named(entries: _Entries, second: NDArray[np.bool_]) -> Split | None:
    """A partition with its kind, faster group first; None where it is no more than noise."""
    found = _levels(entries, second)
    if found is None:
        return None
    if found.inside_second > found.inside_first:
        second = ~second
    blocks = [entries.y[_blocks(entries, second) == b] for b in range(3)]
    spreads = [_spread(block - np.median(block)) for block in blocks]
    one, between, two = (float(np.median(block)) for block in blocks)
    if between < two - LEAST_GAP / 2 and two - between > (one - two) / 2:
        kind, gap = "between", two - between
    elif one - between > between - two:
        kind, gap = "group", one - max(between, two)
        if len(blocks[0]) < 3 or second.sum() > entries.n / 2:       # a few fast pairs make no healthy group
            return None
    else:
        kind, gap = "inside", min(one, between) - two
        if second.sum() < 3:               # one entry is a pair
            return None
    inside = sqrt(sum(len(b) * s**2 for b, s in zip(blocks, spreads, strict=True)) / max(len(entries.y) - 3, 1))
    unusual = UNUSUAL if kind == "inside" or entries.n < FEW_NODES else 1.0
    if gap < max(LEAST_GAP, GAP_IN_SPREADS * unusual * inside):
        return None
    first = np.flatnonzero(~second)
    return Split(tuple(first.tolist()), tuple(np.flatnonzero(second).tolist()), kind, one, two, between, max(spreads))


# ---------------------------------------------------------------- arithmetic


def _touching(entries: _Entries, nodes: set[int]) -> NDArray[np.bool_]:
    chosen = np.zeros(entries.n, dtype=bool)
    chosen[list(nodes)] = True
    touched: NDArray[np.bool_] = chosen[entries.i] | chosen[entries.j]
    return touched


def _with_healthy(entries: _Entries, node: int, chosen: list[int] | tuple[int, ...]) -> NDArray[np.bool_]:
    """The pairs of a node with nodes that are not chosen."""
    others = _touching(entries, set(chosen) - {node})
    own: NDArray[np.bool_] = ((entries.i == node) | (entries.j == node)) & ~others
    return own


def _predicted(entries: _Entries, chosen: list[int] | tuple[int, ...], level: float) -> Floats:
    """The level of each pair: that of its slower end."""
    by_node = np.full(entries.n, level)
    for node in chosen:
        own = entries.y[_with_healthy(entries, node, chosen)]
        if len(own):
            by_node[node] = min(level, float(np.median(own)))
    slower: Floats = np.minimum(by_node[entries.i], by_node[entries.j])
    return slower


def _level(y: Floats) -> float:
    return float(np.median(y)) if len(y) else 0.0


def _cost(rest: Floats, spread_of: Floats | None = None) -> float:
    """The description length of what is left of a table: where an entry lies far off, the price of naming it alone."""
    wide = rest if spread_of is None else rest / spread_of
    spread, price = _spread(wide), 1.0 + log(len(rest))
    own = 0.0 if spread_of is None else float(np.log(spread_of).sum())
    return len(rest) * log(spread) + own + float(np.minimum((wide / spread) ** 2 / 2, price).sum())


def _spread(rest: Floats) -> float:
    """A standard deviation: from mean absolute values, those beyond four medians cut; with a prior, never zero."""
    size = np.abs(rest)
    typical = max(float(np.median(size)), SMALLEST_SPREAD)
    found = 1.2533 * float(np.minimum(size, 4 * typical).mean())
    n = len(size)
    return max(SMALLEST_SPREAD, sqrt((PRIOR_COUNT * PRIOR_SPREAD**2 + n * found**2) / (PRIOR_COUNT + n)))


def student(chance: float, freedom: float) -> float:
    """Student's t that is exceeded with this chance: the expansion about the normal quantile (Hill, CACM 13(10),
    1970)."""
    z = -NormalDist().inv_cdf(min(max(chance, 1e-12), 0.5))
    v = max(freedom, 3.0)
    return z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
