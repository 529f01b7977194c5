"""This file knows about a trace's communication against its fabric: what each collective should take, and did.

    kernels of one collective   ├─ waiting ─┤├ transfer ┤    ├ transfer ┤   of alike calls the shortest is the transfer,
                                                             └ shortest ┘   or, with several ranks, of who came last
    expected                                                 low ├──┼──┤ high
    verdict                     inside or below high: network-bound, with its rate; above: slower than the fabric
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sublight.cluster import Cluster, catalog
from sublight.comm.bus import bus_bytes
from sublight.comm.expected import Expected
from sublight.device import Device
from sublight.errors import InputError
from sublight.explain.exchanges import Kernel, Sizes, sizes
from sublight.explain.traffic import Direct, ranks_needed, untold
from sublight.explain.traffic import calls as calls_of
from sublight.explain.view import View
from sublight.explain.words import ms, number
from sublight.ops.from_call import COLLECTIVES, DTYPES
from sublight.trace import Collective
from sublight.work import BYTES, Message

AT_RATE, SLOWER, FASTER = "network-bound", "slower than the fabric", "faster than expected"
UNEVEN = {"all_to_allv", "alltoallv"}                # the record says how much in all, not how much to whom


@dataclass(frozen=True, slots=True)
class FabricRow:
    """All calls of one exchange, on the same sizes, in the window. Times in ns of whole kernels, not clipped to it."""

    what: str                            # "all_reduce", "dispatch" …
    sizes: str                           # "8.2 MB fp32", "4,096 x 7168 fp8, top-8"
    ranks: int
    nodes: int
    activities: tuple[int, ...]          # in Trace.activities
    measured_ns: int                     # summed
    transfer_ns: int                     # of one: the shortest, or what several ranks say
    expected: Expected
    bus_bytes: float                     # of one: bus bytes over seconds is the bus bandwidth

    @property
    def count(self) -> int:
        return len(self.activities)

    @property
    def verdict(self) -> str:
        seconds = self.transfer_ns / 1e9
        return SLOWER if seconds > self.expected.high else FASTER if seconds < self.expected.low else AT_RATE

    @property
    def bus_bandwidth(self) -> float:
        """Bytes a second, of the transfer."""
        return self.bus_bytes / max(self.transfer_ns, 1) * 1e9

    @property
    def expected_ns(self) -> tuple[int, int, int]:
        """(low, expected, high) of all calls together."""
        low, most, high = (round(s * 1e9 * self.count)
                           for s in (self.expected.low, self.expected.seconds, self.expected.high))
        return low, most, high


@dataclass(frozen=True, slots=True)
class Fabric:
    """The communication of a window against a cluster."""

    cluster: Cluster
    given: bool                          # by the user; else assumed, and told_by says what
    told_by: str
    several_ranks: bool                  # whether transfers are those of who came last
    rows: tuple[FabricRow, ...]          # by measured time, longest first
    assumptions: tuple[str, ...]
    refused: Mapping[str, int]           # why kernels have no expected time -> their summed ns

    @property
    def title(self) -> str:
        """"8 x 8 H800"."""
        what = f"{self.cluster.nodes} x {self.cluster.gpus_per_node} {self.cluster.node.device.title.split()[1]}"
        return what if self.given else f"{what} (assumed)"

    def total_ns(self) -> tuple[int, int, int, int]:
        """(measured, low, expected, high) of all rows."""
        columns = [(row.measured_ns, *row.expected_ns) for row in self.rows]
        measured, low, most, high = (sum(column) for column in zip(*columns, strict=True)) if columns else (0, 0, 0, 0)
        return measured, low, most, high


def cluster_of(device: Device, world: int | None) -> Cluster | None:
    """The usual nodes of a device that hold a world of that many ranks; None where the catalog has no such node."""
    family = device.key.rpartition("-")[0] or device.key           # "a100-sxm" of "a100-sxm-40"
    node = next((n for n in catalog() if n.device.key == device.key), None) or next(
        (n for n in catalog() if n.device.key.startswith(f"{family}-")), None)
    if node is None:
        return None
    gpus = min(world or node.gpus, node.gpus)
    return Cluster(node, -(-(world or gpus) // gpus), gpus)


def fabric(
    view: View, *, cluster: Cluster | None = None, exchange: Mapping[str, int | str] | None = None,
    transfers_ns: Mapping[int, int] | None = None,
) -> Fabric | None:
    """What the window's communication should take on `cluster` (None: the usual nodes of the trace's device, packed).

    `exchange` gives sizes of expert exchanges that the trace does not tell. `transfers_ns` is by activity what several
    ranks know of a transfer. None where there is no communication kernel, or no cluster to hold it against.
    """
    found = cluster or (cluster_of(view.catalogued, view.trace.world_size) if view.catalogued else None)
    calls = calls_of(view)
    without = {} if view.cpu_only else untold(view, calls)
    if found is None or not (calls or without):
        return None
    told_by = "as given" if cluster else (
        f"assumed: {found.node.title}, ranks packed: the trace names its GPU, not its nodes")
    exchanges = any(isinstance(what, Kernel) for what in calls)
    known = sizes(view.trace, view.trace.world_size, exchange or {}) if exchanges else Sizes()
    rows, refused, assumed = [], without, dict[str, None]()
    a = view.trace.activities
    for what, activities in calls.items():
        spent = a.dur_ns[list(activities)]
        if cluster is not None and (size := ranks_needed(what)) > cluster.ranks:
            answer: _Answer = f"{size} ranks, but --on names a cluster of {cluster.ranks}"
        elif isinstance(what, Collective):
            answer = _collective(what, found)
        elif isinstance(what, Direct):
            answer = _all_reduce(what, found)
        else:
            answer = _exchange(what, found, known, int(a.grid[activities[0]][0]))
        if isinstance(answer, str):
            refused[answer] = refused.get(answer, 0) + int(spent.sum())
            continue
        name, words, where, expected, bus = answer
        shortest = min((transfers_ns or {}).get(row, int(ns)) for row, ns in zip(activities, spent, strict=True))
        rows.append(FabricRow(name, words, where.ranks, where.nodes, activities, int(spent.sum()), shortest, expected,
                              bus))
        assumed.update(dict.fromkeys(expected.notes))
        if isinstance(what, Kernel):
            assumed.update(dict.fromkeys(known.told_by))
    rows.sort(key=lambda row: (-row.measured_ns, row.what, row.sizes))
    return Fabric(found, cluster is not None, told_by, bool(transfers_ns), tuple(rows), tuple(assumed), refused)


_Answer = tuple[str, str, Cluster, Expected, float] | str


def placed(cluster: Cluster, size: int, ranks: tuple[int, ...]) -> Cluster:
    """The part of a cluster that a group lies in: by its ranks, counted through node by node, else packed."""
    gpus = cluster.gpus_per_node
    if not ranks:
        return replace(cluster, nodes=-(-size // gpus), gpus_per_node=min(size, gpus))
    of_node = np.bincount(np.array(ranks) // gpus)
    return replace(cluster, nodes=int((of_node > 0).sum()), gpus_per_node=int(of_node.max()))


def _all_reduce(direct: Direct, cluster: Cluster) -> _Answer:
    from sublight.comm.expect import expect

    where = placed(cluster, direct.message.group, ())
    try:
        expected = expect(direct.message, where, dtype=direct.form, kind=direct.kind)
    except InputError as error:
        return str(error)
    expected = replace(expected, notes=("custom all-reduces: of the kernel alone, as under CUDA graphs",))
    words = f"{direct.kind} {_bytes(direct.message.nbytes)} {direct.form}"
    return "all_reduce", words, where, expected, bus_bytes(direct.message) or 0.0


def _collective(record: Collective, cluster: Cluster) -> _Answer:
    from sublight.comm.expect import expect

    kind = "all_to_all" if record.name in UNEVEN else COLLECTIVES.get(record.name)
    form = DTYPES.get(record.dtype)
    if kind is None or form is None or record.group_size < 1:
        return "records without a known collective, number format or group size"
    if kind == "send_recv":
        return "send and receive: the record does not name the peer"
    elements = record.elements_out if kind == "all_gather" else record.elements_in
    if record.name in UNEVEN:
        elements = max(record.elements_in, record.elements_out)
    message = Message(kind, record.group_size, int(elements * BYTES[form]))
    if message.group == 1 or not message.nbytes:
        return "collectives of one rank or of no bytes"
    where = placed(cluster, record.group_size, record.ranks)
    try:
        expected = expect(message, where, dtype=form)
    except InputError as error:
        return str(error)
    if record.name in UNEVEN:
        note = "uneven all-to-alls are taken as even ones of what the busier direction holds"
        expected = replace(expected, notes=(*expected.notes, note))
    return kind, f"{_bytes(message.nbytes)} {form}", where, expected, bus_bytes(message) or 0.0


def _exchange(told: Kernel, cluster: Cluster, known: Sizes, sms: int) -> _Answer:
    from sublight.comm.expect import expected_exchange
    from sublight.comm.expect.experts import Exchange, printed_bytes

    known = replace(known, hidden=told.hidden or known.hidden)
    if (counts := known.counts) is None:
        return (f"DeepEP {told.what}: {', '.join(known.missing)} not told by the trace; say --exchange "
                + ",".join(f"{name}=…" for name in known.missing))
    ranks = told.ranks or cluster.ranks
    where = placed(cluster, ranks, ())
    domains = -(-ranks // where.domain)
    if told.nodes is not None and told.nodes != domains:
        return (f"DeepEP {told.what}: the kernel's name tells {number(told.nodes, 'node')}, the cluster has "
                f"{number(domains, 'NVLink domain')} for {ranks} ranks")
    limit = min(known.group_limit, where.nodes) if known.group_limit and where.nodes > 1 else None
    try:
        exchange = Exchange(
            told.what, *counts, ranks, where.gpus_per_node, group_limit=limit, mode=told.mode,
            sms=sms if sms and told.mode == "normal" else None,
            form=known.form if told.what == "dispatch" else None)
        expected = expected_exchange(exchange, where)
    except InputError as error:
        return str(error)
    words = f"{exchange.tokens:,} x {exchange.hidden} {exchange.row_form}, top-{exchange.top_k}"
    return told.what + (" (cached)" if told.cached else ""), words, where, expected, printed_bytes(exchange)[1]


def row_words(row: FabricRow) -> str:
    """A row as a line of evidence."""
    e = row.expected
    return (f"{row.what} {row.sizes}, {number(row.ranks, 'rank')} on {number(row.nodes, 'node')}: "
            f"{number(row.count, 'run')}, transfer {ms(row.transfer_ns)}, "
            f"expected {ms(e.seconds * 1e9)} ({ms(e.low * 1e9)} to {ms(e.high * 1e9)}); "
            f"{row.bus_bandwidth / 1e9:.1f} GB/s bus; {row.verdict}")


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"

