"""Several ranks of one run: collectives matched, clocks aligned, waiting split from transfer, stragglers named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from conftest import shared
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto import Kineto

from sublight.explain import explain
from sublight.explain.matching import ENDS_DISAGREE, NO_PARTNER, NOT_SYNCHRONISING, TOO_MANY_RANKS, kind_of
from sublight.explain.rank_findings import find_ranks
from sublight.explain.ranks import Ranks, ranks_of
from sublight.observe.read import read_all
from sublight.trace import Trace

GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
DISPATCH = "void deep_ep::internode::dispatch<false, 8, false, 8>(int4*, float*)"
US, MS = 1_000, 1_000_000


def ranks(traces: Sequence[Trace], window: str = "default") -> Ranks:
    several = ranks_of([device.view for device in explain(traces, window=window).devices])
    assert several is not None
    return several


def read_back(built: Sequence[Kineto]) -> tuple[Trace, ...]:
    with TemporaryDirectory() as folder:
        return read_all([k.write(Path(folder) / f"rank{k.rank}.json") for k in built])


def moved(trace: Trace, by_ns: int) -> Trace:
    """The same trace on a clock that is ahead."""
    tables = {name: getattr(trace, name) for name in ("activities", "calls", "ops", "annotations", "overhead")}
    return replace(trace, **{name: replace(t, ts_ns=t.ts_ns + by_ns) for name, t in tables.items()})


@dataclass(frozen=True)
class Meeting:
    """One collective: when each rank arrives, and for how long data moves once all are there."""

    arrives: tuple[int, ...]
    transfer: int = 50 * US
    name: str = ALL_REDUCE
    jitter: tuple[int, ...] = ()             # of each rank's end
    record: tuple[tuple[str, Any], ...] = ()


def run(meetings: Sequence[Meeting], *, skip: dict[int, set[int]] | None = None, ahead: Sequence[int] = (),
        steps: bool = False, stream: int = 20) -> list[Kineto]:
    """One trace a rank: compute until it arrives, then the collective until all came and the data moved.

    rank 0   ├ gemm ┤├──────── all-reduce ────────┤├ gemm …
    rank 1   ├──────── gemm ───────┤├─ all-reduce ┤├ gemm …

    skip: by rank the collectives that its recording lacks, with the compute before them.
    """
    world = len(meetings[0].arrives)
    built = [Kineto(rank=rank, world_size=world, base_ns=1_700_000_000_000_000_000 + (ahead[rank] if ahead else 0))
             for rank in range(world)]
    for rank, k in enumerate(built):
        free = 0
        for number, m in enumerate(meetings):
            end = max(m.arrives) + m.transfer + (m.jitter[rank] if m.jitter else 0)
            if number not in (skip or {}).get(rank, set()):
                launch = (free - 3 * US, free - 2 * US)
                if steps:
                    k.step(number, free - 4 * US, free)
                k.kernel(GEMM, free, m.arrives[rank], launch=launch)
                k.kernel(m.name, m.arrives[rank], end, stream=stream, launch=launch, **dict(m.record))
            free = end
    return built


def regular(count: int, *, late: dict[int, int] | None = None, world: int = 4, name: str = ALL_REDUCE) -> list[Meeting]:
    """Collectives 1 ms apart, a little irregularly, to which all ranks come together, but for those that are late."""
    out, at = [], 0
    for number in range(count):
        at += 1_000 * US + 137 * US * (number % 3) + 11 * US * number
        arrives = tuple(at + (late or {}).get(rank, 0) for rank in range(world))
        out.append(Meeting(arrives, name=name))
        at = max(arrives) + 50 * US
    return out


# ---- the eight ranks of a real run


@cache
def v100() -> tuple[Trace, ...]:
    folder = shared("kineto/v100_dlrm_8rank/dlrm_kineto")
    return read_all(sorted(folder.glob("*.json")))


def test_v100_all_collectives_are_matched() -> None:
    r = ranks(v100())
    assert r.counted == 8
    assert r.communication_kernels == (8,) * 8
    assert r.unmatched == ({},) * 8
    assert [c.kind for c in r.collectives()] == ["send/recv"] * 4 + ["all-reduce", "send/recv"] + ["all-reduce"] * 2
    assert r.refused is None
    assert r.ranks_not_given == 0


def test_v100_ends_agree_within_7_us_and_who_came_last() -> None:
    r = ranks(v100())
    assert r.residual is not None
    assert r.residual.max_ns <= 7 * US
    assert r.residual.median_ns <= 3 * US
    assert [c.last for c in r.collectives()] == [7, 7, 7, 7, 7, 5, 5, 4]
    first = r.collectives()[0]
    assert round(first.spread_ns / MS, 2) == 7.62
    assert sorted(range(8), key=lambda m: first.waiting_ns[m])[:3] == [7, 6, 2]      # these three were late


def test_v100_waiting_and_transfer_are_the_time_in_collectives() -> None:
    r = ranks(v100())
    for s in r.stragglers:
        a = r.views[s.member].trace.activities
        names = r.views[s.member].trace.names
        own = sum(int(d) for d, n in zip(a.dur_ns, a.name, strict=True) if names[n].startswith("nccl"))
        assert s.waiting_ns + s.transfer_ns == own
    assert all(ns >= 0 for c in r.collectives() for ns in c.waiting_ns)


def test_v100_the_straggler_is_rank_7() -> None:
    (finding,) = find_ranks(ranks(v100()))
    assert finding.code == "SL104"
    assert finding.claim.startswith("rank 7 comes last to 5 of 8 collectives")
    worst = ranks(v100()).stragglers[0]
    assert (worst.member, worst.last_in) == (7, 5)
    assert 1.30 * MS < worst.alone_ns < 1.32 * MS < finding.gain_ns_at_most  # type: ignore[operator]


@pytest.mark.heavy
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-5 * MS, 5 * MS), min_size=7, max_size=7))
def test_v100_planted_offsets_are_recovered_within_10_us(offsets: list[int]) -> None:
    traces = v100()
    r = ranks([traces[0], *(moved(t, ns) for t, ns in zip(traces[1:], offsets, strict=True))])
    assert [abs(c.offset_ns - ns) <= 10 * US for c, ns in zip(r.clocks[1:], offsets, strict=True)] == [True] * 7
    assert [c.last for c in r.collectives()] == [7, 7, 7, 7, 7, 5, 5, 4]
    assert r.clocks[0].offset_ns == 0


def test_v100_an_epoch_between_two_clocks_costs_no_precision() -> None:
    traces = v100()
    far = -1_690_000_000_123_456_789
    r = ranks([*traces[:7], moved(traces[7], far)])
    assert abs(r.clocks[7].offset_ns - far) <= 10 * US
    assert r.collectives()[0].last == 7


def test_offsets_are_exact_to_the_nanosecond_however_large() -> None:
    far = -1_690_000_000_123_456_789
    traces = read_back(run(regular(3)))
    r = ranks([traces[0], moved(traces[1], far), *traces[2:]])
    assert [c.offset_ns for c in r.clocks] == [0, far, 0, 0]


def test_times_of_the_traces_are_not_moved() -> None:
    before = [t.activities.ts_ns.copy() for t in v100()]
    r = ranks(v100())
    assert all((t.activities.ts_ns == ts).all() for t, ts in zip(v100(), before, strict=True))
    assert [view.trace for view in r.views] == list(v100())


# ---- what is planted is found


@st.composite
def some_meetings(draw: st.DrawFn) -> list[Meeting]:
    world = draw(st.integers(2, 5))
    at, out = 0, []
    for _ in range(draw(st.integers(3, 8))):
        at += draw(st.integers(300 * US, 3 * MS))
        arrives = tuple(at + draw(st.integers(0, 2 * MS)) for _ in range(world))
        jitter = tuple(draw(st.integers(-3 * US, 3 * US)) for _ in range(world))
        out.append(Meeting(arrives, draw(st.integers(10 * US, 400 * US)), jitter=jitter))
        at = max(arrives) + 500 * US
    return out


@settings(max_examples=60, deadline=None)
@given(meetings=some_meetings(), data=st.data())
def test_planted_offsets_are_recovered_within_10_us_and_waiting_adds_up(
    meetings: list[Meeting], data: st.DataObject
) -> None:
    world = len(meetings[0].arrives)
    ahead = [0, *(data.draw(st.integers(-5 * MS, 5 * MS)) for _ in range(world - 1))]
    r = ranks(read_back(run(meetings, ahead=ahead)))
    assert r.counted == len(meetings)
    assert max(abs(c.offset_ns - ns) for c, ns in zip(r.clocks, ahead, strict=True)) <= 10 * US
    for m, c in zip(meetings, r.collectives(), strict=True):
        durations = [max(m.arrives) + m.transfer + m.jitter[i] - m.arrives[i] for i in range(world)]
        assert [c.transfer_ns + ns for ns in c.waiting_ns] == durations
        assert abs(c.transfer_ns - m.transfer) <= 3 * US
        assert min(c.waiting_ns) == 0
        ordered = sorted(m.arrives)
        if ordered[-1] - ordered[-2] > 20 * US:
            assert c.last == m.arrives.index(ordered[-1])
    assert sum(s.late_ns for s in r.stragglers) == sum(
        int((g.arrivals_ns[:, -1] - g.arrivals_ns[:, (len(g.members) - 1) // 2]).sum()) for g in r.groups)
    for row in r.rows:
        assert row.waiting_ns is not None
        parts = (row.compute_ns, row.exposed_communication_ns, row.waiting_ns, row.copies_ns, row.idle_ns)
        assert min(parts) >= 0
        assert sum(parts) == row.window_ns


@pytest.mark.parametrize("late_ns", [2 * MS, 500 * US])
@pytest.mark.parametrize("ahead", [(0, 0, 0, 0), (0, 3 * MS, -4 * MS, 999)])
def test_a_planted_straggler_is_found_with_its_size(late_ns: int, ahead: tuple[int, ...]) -> None:
    # rank 0, 1, 3   ├── gemm ──┤├──── all-reduce ────┤
    # rank 2         ├── gemm ──────────────┤├────────┤      six times
    jittered = [replace(m, jitter=(0, 2 * US, -US, US)) for m in regular(6, late={2: late_ns})]
    r = ranks(read_back(run(jittered, ahead=ahead)))
    worst = r.stragglers[0]
    assert (worst.member, worst.last_in, worst.collectives) == (2, 6, 6)
    assert abs(worst.late_ns - 6 * late_ns) <= 0.01 * 6 * late_ns
    assert abs(worst.alone_ns - 6 * late_ns) <= 0.01 * 6 * late_ns
    finding = next(f for f in find_ranks(r) if f.code == "SL104")
    assert finding.claim.startswith("rank 2 comes last to 6 of 6 collectives")
    assert finding.confidence == "high"


def test_the_cost_of_two_late_ranks_is_shared_between_them() -> None:
    # arrivals   0 and 1 at 0, 2 at 300, 3 at 500 µs    median 0: 2 and 3 share the first 300, 3 owes the other 200
    meetings = [replace(m, arrives=(t, t, t + 300 * US, t + 500 * US)) for m in regular(3) for t in m.arrives[:1]]
    r = ranks(read_back(run(meetings)))
    assert {s.member: s.late_ns for s in r.stragglers} == {0: 0, 1: 0, 2: 3 * 150 * US, 3: 3 * 350 * US}
    assert {s.member: s.alone_ns for s in r.stragglers} == {0: 0, 1: 0, 2: 0, 3: 3 * 200 * US}


def test_of_two_ranks_the_later_owes_all() -> None:
    r = ranks(read_back(run(regular(3, late={1: 400 * US}, world=2))))
    assert [(s.member, s.late_ns) for s in r.stragglers] == [(1, 1_200 * US), (0, 0)]


def test_ranks_that_come_together_hold_nobody_up() -> None:
    assert find_ranks(ranks(read_back(run(regular(6))))) == ()


def test_sl104_begins_at_one_per_cent_of_the_window() -> None:
    # rank 1 comes late ns after the others to each of three all-reduces; the window grows with it
    empty = ranks(read_back(run(regular(3)))).window_ns
    least = -(-empty // (3 * 99))                   # 3 · late = 1 % of (empty + 3 · late)
    for late_ns, found in ((least, ["SL104"]), (least - 1, [])):
        r = ranks(read_back(run(regular(3, late={1: late_ns}))))
        assert r.window_ns == empty + 3 * late_ns
        assert [f.code for f in find_ranks(r)] == found


def test_sl104_wants_more_than_the_clocks_leave_open() -> None:
    late = regular(3, late={1: 14 * US})
    assert [f.code for f in find_ranks(ranks(read_back(run(late))))] == ["SL104"]
    jittered = [replace(m, jitter=tuple(9 * US * (rank == n + 1) for rank in range(4))) for n, m in enumerate(late)]
    r = ranks(read_back(run(jittered)))
    assert r.residual is not None
    assert r.residual.median_ns == 9 * US
    assert find_ranks(r) == ()


@pytest.mark.parametrize(("more_ns", "found"), [(600 * US, True), (30 * US, False)])
def test_sl105_sees_a_rank_that_computes_longer(more_ns: int, found: bool) -> None:
    r = ranks(read_back(run(regular(4, late={3: more_ns}), steps=True)))
    (row, *_) = r.imbalance
    assert len(r.imbalance) == 4
    assert row.slowest == 3
    assert row.max_ns - row.min_ns == more_ns
    assert row.excess_ns == more_ns * 3 // 4
    codes = [f.code for f in find_ranks(r)]
    assert ("SL105" in codes) == found
    if found:
        finding = next(f for f in find_ranks(r) if f.code == "SL105")
        assert finding.gain_ns_at_most == 4 * more_ns * 3 // 4
        assert "rank 3 computes longest in 4 of 4 steps" in finding.evidence


def test_sl106_refuses_waiting_where_a_clock_was_set_during_the_run() -> None:
    # ends   rank 0   |     |     |     |
    #        rank 1   |     |         |     |      the same collectives, its clock set by 3 ms between them
    together = regular(8, world=2)
    built = run(together)
    middle = together[3].arrives[0] + 60 * US
    for event in built[1].events:
        if event["ts"].ns > middle:
            event["ts"] = type(event["ts"])(event["ts"].ns + 3 * MS)
    r = ranks(read_back(built))
    (finding,) = find_ranks(r)
    assert finding.code == "SL106"
    assert r.residual is not None
    assert r.residual.apart > r.residual.collectives // 2
    assert r.refused is not None
    assert "after their clocks were aligned" in r.refused
    assert r.stragglers == ()
    assert [row.waiting_ns for row in r.rows] == [None, None]


def test_a_collective_whose_ends_disagree_counts_for_nobody() -> None:
    # the fourth of six ends 5 ms later on rank 1 than elsewhere, and delays nobody
    r = ranks(read_back(run([replace(m, jitter=(0, 400 * US * (n == 3), 0, 0)) for n, m in enumerate(regular(6))])))
    assert r.refused is None
    assert [c.counted for c in r.collectives()] == [True, True, True, False, True, True]
    assert all(s.collectives == 5 for s in r.stragglers)


# ---- matching


@pytest.mark.parametrize("skip", [{1: {0}}, {1: {5}}, {0: {0, 1}}, {0: {4, 5}, 2: {0}}, {1: {2}}, {0: {0}, 1: {3}}],
                         ids=str)
@pytest.mark.parametrize("ahead", [(0, 0, 0, 0), (0, 4 * MS, -5 * MS, 1)])
def test_collectives_that_a_recording_lacks_do_not_shift_the_others(
    skip: dict[int, set[int]], ahead: tuple[int, ...]
) -> None:
    # rank 0   A  A  A  A  A  A
    # rank 1      A  A  A  A  A          all alike: only the distances of their ends tell
    together = regular(6, late={3: 100 * US})
    r = ranks(read_back(run(together, skip=skip, ahead=ahead)))
    lacking = set().union(*skip.values())
    assert r.counted == 6 - len(lacking)
    assert max(abs(c.offset_ns - ns) for c, ns in zip(r.clocks, ahead, strict=True)) <= 10 * US
    assert [c.last for c in r.collectives()] == [3] * r.counted
    for member, left in enumerate(r.unmatched):
        assert left == ({NO_PARTNER: n} if (n := 6 - len(skip.get(member, ())) - r.counted) else {})


def test_steps_that_only_some_ranks_recorded_are_left_out() -> None:
    r = ranks(read_back(run(regular(5, late={1: 300 * US}), skip={2: {0, 1}, 3: {4}}, steps=True)))
    assert r.counted == 2
    assert [(row.label, [ns is not None for ns in row.compute_ns]) for row in r.imbalance] == [
        ("0", [True, True, False, True]), ("1", [True, True, False, True]), ("2", [True] * 4), ("3", [True] * 4),
        ("4", [True, True, True, False])]
    assert r.steps == 5


def test_steps_tell_apart_what_is_exactly_periodic() -> None:
    # every step alike to the nanosecond; rank 1 lacks the first and is 5 ms behind, so that the raw clocks mislead
    meetings = [Meeting((t + 900 * US, t + 950 * US)) for t in range(0, 8_000 * US, 1_000 * US)]
    r = ranks(read_back(run(meetings, skip={1: {0}}, ahead=(0, -5 * MS), steps=True)))
    assert r.clocks[1].offset_ns == -5 * MS
    assert {c.last for c in r.collectives()} == {1}


def test_a_rank_without_collectives_is_left_out() -> None:
    r = ranks(read_back([*run(regular(4, late={1: 200 * US}))[:3], _computes_only(3)]))
    assert r.counted == 4
    assert r.communication_kernels == (4, 4, 4, 0)
    assert [c.members for c in r.collectives()] == [(0, 1, 2)] * 4
    assert next(s for s in r.stragglers if s.member == 3).collectives == 0
    assert r.clocks[3].reference == 3


def _computes_only(rank: int) -> Kineto:
    k = Kineto(rank=rank, world_size=4)
    k.kernel(GEMM, 0, MS)
    return k


def test_nothing_in_common_is_said() -> None:
    r = ranks(read_back([_computes_only(0), _computes_only(1)]))
    assert r.refused == "no rank runs communication kernels"
    assert find_ranks(r) == ()
    other = run(regular(3, world=2, name=BROADCAST))
    r = ranks(read_back(other))
    assert r.refused == "no collective that synchronises was found on more than one rank"
    assert r.unmatched == ({NOT_SYNCHRONISING: 3},) * 2


def test_a_single_rank_has_no_ranks() -> None:
    (only,) = read_back(run(regular(2, world=1)))
    assert ranks_of([device.view for device in explain(only).devices]) is None
    assert ranks_of([]) is None


def test_ranks_that_were_not_given_are_counted() -> None:
    r = ranks(read_back(run(regular(4, late={1: 200 * US}))[:2]))
    assert r.ranks_not_given == 2
    (finding, *_) = find_ranks(r)
    assert finding.confidence == "medium"
    assert "2 ranks of the run not given: another may come later still" in finding.caveats


def test_streams_may_have_other_numbers() -> None:
    built = [run(regular(4), stream=20 + rank)[rank] for rank in range(4)]
    assert ranks(read_back(built)).counted == 4


def record(group: int, size: int, nelems: int = 1024) -> tuple[tuple[str, Any], ...]:
    return (("Collective name", "allreduce"), ("In msg nelems", nelems), ("Out msg nelems", nelems),
            ("Group size", size), ("dtype", "BFloat16"), ("Process Group Name", str(group)))


def test_process_groups_meet_on_their_own() -> None:
    # rank 0 and 1 are group 1, 2 and 3 group 2, in turn with 0 and 2 (group 3), 1 and 3 (group 4)
    pairs = {0: (1, 3), 1: (1, 4), 2: (2, 3), 3: (2, 4)}
    built = [Kineto(rank=rank, world_size=4, base_ns=1_700_000_000_000_000_000 + rank * MS) for rank in range(4)]
    for rank, k in enumerate(built):
        for number in range(6):
            group = pairs[rank][number % 2]
            at = 2 * MS * number
            arrives = at + (500 * US if rank == 3 else 100 * US + 10 * US * rank)
            others = [500 * US if r == 3 else 100 * US + 10 * US * r for r in range(4) if group in pairs[r]]
            k.kernel(ALL_REDUCE, arrives, at + max(others) + 50 * US, stream=20, **dict(record(group, 2)))
    r = ranks(read_back(built))
    assert {(g.label, g.members) for g in r.groups} == {
        ("process group 1", (0, 1)), ("process group 2", (2, 3)), ("process group 3", (0, 2)),
        ("process group 4", (1, 3))}
    assert [c.offset_ns for c in r.clocks] == [0, MS, 2 * MS, 3 * MS]          # rank 3 by way of 1 or 2
    assert [c.reference for c in r.clocks] == [0] * 4
    assert r.stragglers[0].member == 3


def test_records_with_other_sizes_are_other_collectives() -> None:
    # sizes   rank 0   1  2  3  4        rank 1 began one later: order alone would take 2 for 1
    #         rank 1      2  3  4  5
    # the same time passes between all of them, so that ends do not tell
    def sized(rank: int, first: int) -> Kineto:
        k = Kineto(rank=rank, world_size=2)
        for size in range(first, first + 4):
            k.kernel(ALL_REDUCE, size * MS, size * MS + 100 * US, stream=20, **dict(record(0, 2, size)))
        return k

    r = ranks(read_back([sized(0, 1), sized(1, 2)]))
    assert r.counted == 3
    assert r.unmatched == ({NO_PARTNER: 1},) * 2


def test_a_record_lost_in_the_middle_shifts_nothing() -> None:
    # sizes   rank 0   1  2  3  4  5        rank 1   1  2  4  5
    def sized(rank: int, sizes: Sequence[int]) -> Kineto:
        k = Kineto(rank=rank, world_size=2)
        for size in sizes:
            k.kernel(ALL_REDUCE, size * MS, size * MS + 100 * US, stream=20, **dict(record(0, 2, size)))
        return k

    r = ranks(read_back([sized(0, (1, 2, 3, 4, 5)), sized(1, (1, 2, 4, 5))]))
    assert r.counted == 4
    assert r.unmatched == ({NO_PARTNER: 1}, {})


def test_a_group_with_more_ranks_than_it_has_is_left_out() -> None:
    r = ranks(read_back(run([replace(m, record=record(0, 2)) for m in regular(3)])))
    assert r.counted == 0
    assert r.unmatched == ({TOO_MANY_RANKS: 3},) * 4


def test_sends_between_two_ranks_are_no_collectives_of_all() -> None:
    # rank 0 and 1 exchange 1 ms before 2 and 3 do; the all-reduces on another stream hold the clocks
    built = run(regular(6))
    for rank, k in enumerate(built):
        for number in range(4):
            at = 2 * MS * number + (MS if rank > 1 else 0)
            k.kernel(SEND_RECV, at, at + 80 * US, stream=30)
    r = ranks(read_back(built))
    assert r.unmatched == ({ENDS_DISAGREE: 4},) * 4
    assert {c.kind for c in r.collectives()} == {"all-reduce"}


def test_an_exchange_of_all_ranks_counts_where_its_ends_agree() -> None:
    alike = [replace(m, name=DISPATCH if n % 2 else ALL_REDUCE) for n, m in enumerate(regular(6))]
    assert ranks(read_back(run(alike))).counted == 6


@pytest.mark.parametrize(("name", "kind"), [
    ("_allgather_base", "all-gather"), ("reduce_scatter_tensor_coalesced", "reduce-scatter"),
    ("all_to_allv", "all-to-all"), ("allreduce_coalesced", "all-reduce"), ("broadcast", "broadcast"),
    ("send", "point to point"), ("recv", "point to point"), ("barrier", "barrier"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce-scatter"),
    ("ncclKernel_Reduce_RING_LL_Sum_float(ncclWorkElem)", "reduce"), (SEND_RECV, "send/recv"),
    ("void multimem_all_reduce_kernel<c10::BFloat16, 4>(c10::BFloat16*)", "all-reduce"),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(int)", "all-reduce"),
    ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", None), (DISPATCH, None),
])
def test_what_names_say(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind


def test_only_collectives_in_the_window_count() -> None:
    whole = ranks(read_back(run(regular(6, late={1: 300 * US}))), window="all")
    part = ranks(read_back(run(regular(6, late={1: 300 * US}))), window="0ms:4ms")
    assert whole.counted == 6
    assert 0 < part.counted < 6
    assert len(part.collectives()) == 6                    # the clocks know all of them
    assert part.imbalance[0].label == "window"


def test_hidden_waiting_is_not_in_the_strip() -> None:
    # compute ├───────────────── gemm ─────────────────┤      the all-reduce beside it
    built = run(regular(3, late={1: 400 * US}, world=2))
    built[0].kernel(GEMM, 0, 20 * MS, stream=9)
    r = ranks(read_back(built))
    assert r.rows[0].waiting_ns == 0
    assert next(s for s in r.stragglers if s.member == 0).waiting_ns == 1_200 * US
    assert np.isclose(r.rows[0].share(r.rows[0].compute_ns), 1.0)


def test_waiting_on_two_streams_at_once_counts_once_in_the_strip() -> None:
    # stream 20   ├──── waits ────┤ ┤
    # stream 30     ├──── waits ────┤ ┤        20 µs later
    built = run(regular(3, late={1: 400 * US}, world=2))
    for k in built:
        for event in [e for e in k.events if e["name"] == ALL_REDUCE]:
            later = type(event["ts"])(event["ts"].ns + 20 * US)
            k.raw(event | {"tid": 30, "ts": later, "args": event["args"] | {"stream": 30}})
    r = ranks(read_back(built))
    assert r.rows[0].waiting_ns == 3 * 420 * US
    assert r.stragglers[1].waiting_ns == 2_400 * US
