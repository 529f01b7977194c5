"""Two runs side by side: differences of known size planted into real traces are named, sized and ranked; every
difference is attributed to the nanosecond; diff(A, B) = −diff(B, A); differences add up over several runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from conftest import shared
from hypothesis import given, settings
from kineto import Kineto
from planted_traces import Put, joined, put_in, repeated, replaced, slower, unmarked
from strategies import traces

from sublight.budget import COMPUTE
from sublight.explain.timeline import part_of_activity
from sublight.guard import Difference, diff
from sublight.guard.attribute import difference
from sublight.guard.changes import OPPOSITE, Change
from sublight.guard.match import swaps
from sublight.guard.typical import Typical, shared_out, typical
from sublight.observe.kernel_name import classify
from sublight.observe.read import read, read_all
from sublight.trace import Trace

CLOSE = 0.02                             # of a planted difference
STEP_GAP_NS = 200_000


@cache
def a100() -> Trace:
    """Three marked steps, limited by the host."""
    return read(shared("kineto/a100_ddp_rank0.json.gz"))


@cache
def h800() -> Trace:
    """Three copies of one step without any mark, its communication nearly all hidden."""
    return repeated(unmarked(read(shared("kineto/h800_moe_ep64_train.json.gz"))), 3)


def rows_of(trace: Trace, holds: Callable[[str], bool]) -> list[int]:
    """Activities with such names."""
    wanted = [i for i, name in enumerate(trace.names) if holds(name)]
    return np.flatnonzero(np.isin(trace.activities.name, wanted)).tolist()


def longest(trace: Trace, holds: Callable[[str], bool]) -> str:
    """Of the kernels with such names the one that takes longest in all."""
    a = trace.activities
    rows = rows_of(trace, holds)
    return trace.names[int(np.argmax(np.bincount(a.name[rows], weights=a.dur_ns[rows])))]


def family(category: str, name: str | None) -> Callable[[str], bool]:
    return lambda kernel: (classify(kernel).category, classify(kernel).family) == (category, name)


def first_of_each(trace: Trace, rows: list[int], times: int) -> list[int]:
    """The first row of each repetition, where rows come equally often in each."""
    assert len(rows) % times == 0
    return rows[:: len(rows) // times]


def gap_before(trace: Trace, rows: list[int], ns: int) -> list[Put]:
    """The same gap more before each of these activities."""
    return [Put(int(trace.activities.ts_ns[row]), ns) for row in rows]


def undisturbed(trace: Trace, rows: list[int], puts: list[Put]) -> list[int]:
    """Those during which nothing is put in."""
    a = trace.activities
    return [row for row in rows if not any(a.ts_ns[row] <= p.at_ns <= a.end_ns[row] for p in puts)]


def exposed(trace: Trace, rows: list[int]) -> tuple[list[Put], int]:
    """Compute that ran beside these communication kernels only begins when they have ended; and how much that is."""
    a = trace.activities
    compute = np.flatnonzero(part_of_activity(trace) < len(COMPUTE))
    puts, total = [], 0
    for row in rows:
        end = int(a.end_ns[row])
        inside = compute[(a.ts_ns[compute] > a.ts_ns[row]) & (a.ts_ns[compute] < end)]
        first = next(int(i) for i in inside.tolist()           # nothing else that computes runs across its start
                     if not ((a.ts_ns[compute] < a.ts_ns[i]) & (a.end_ns[compute] > a.ts_ns[i])).any())
        at = int(a.ts_ns[first])
        puts.append(Put(at, end - at, stays=row))
        total += joined([(int(a.ts_ns[i]), min(int(a.end_ns[i]), end)) for i in inside.tolist() if a.ts_ns[i] >= at])
    return puts, total


def largest(d: Difference, count: int) -> list[Change]:
    assert sum(change.ns for change in d.changes) == d.ns == d.b.step_ns - d.a.step_ns
    assert sum(part.ns for part in d.parts) == sum(key.ns for key in d.keys) == d.ns
    return list(d.changes[:count])


def rest_is_small(d: Difference, planted: int, besides_ns: float = 0.0) -> None:
    """All other changes together are under 2 % of the planted ones, but for what is known to come with them."""
    left = sum(abs(change.ns) for change in d.changes[planted:])
    assert left <= besides_ns + CLOSE * sum(abs(change.ns) for change in d.changes[:planted])


# ---- planted differences


ATTENTION = family("attention", "FlashAttention 3")
LAYOUT = family("copy", "layout")
CAST = "per_channel_cast_and_transpose<256, 128, true"


def test_a_slower_family_is_named() -> None:
    puts, _ = slower(a100(), rows_of(a100(), LAYOUT), 1.3)
    d = diff([a100()], [put_in(a100(), puts)])
    (found,) = largest(d, 1)
    assert (found.kind, found.group, found.family) == ("slower", "compute", "copy · cuDNN · layout")
    assert len(found.before_names) > 1
    assert found.ratio == pytest.approx(1.3, rel=0.001)
    _, of_two_steps = slower(a100(), in_compared_steps(a100(), rows_of(a100(), LAYOUT)), 1.3)
    assert found.ns == pytest.approx(of_two_steps / 2, rel=CLOSE)
    rest_is_small(d, 1)


def in_compared_steps(trace: Trace, rows: list[int]) -> list[int]:
    (m,) = typical([trace]).members
    ts = trace.activities.ts_ns
    return [row for row in rows if any(low <= ts[row] < high for low, high in m.kept.windows)]


def test_a_kernel_replaced_by_two_is_named() -> None:
    old = longest(a100(), LAYOUT)
    rows = in_compared_steps(a100(), rows_of(a100(), old.__eq__))
    puts, _ = slower(a100(), rows_of(a100(), old.__eq__), 1.5)
    b = replaced(put_in(a100(), puts), old, ("void first_half(float*)", "void second_half(float*)"))
    d = diff([a100()], [b])
    (found,) = largest(d, 1)
    assert found.kind == "replaced"
    assert found.before_names == (old,)
    assert set(found.after_names) == {"void first_half(float*)", "void second_half(float*)"}
    assert found.after.runs == 2 * found.before.runs == len(rows)
    assert found.ns == pytest.approx(slower(a100(), rows, 1.5)[1] / 2, rel=CLOSE)
    rest_is_small(d, 1)


def test_a_gap_a_step_is_named() -> None:
    trace = a100()
    softmax = rows_of(trace, lambda name: classify(name).category == "softmax/loss")
    b = put_in(trace, gap_before(trace, first_of_each(trace, softmax, 3), STEP_GAP_NS))
    d = diff([trace], [b])
    assert d.ns == STEP_GAP_NS
    (found,) = largest(d, 1)
    assert (found.kind, found.ns) == ("longer gap", STEP_GAP_NS)
    assert [classify(name).category for name in found.after_names] == ["softmax/loss"]
    rest_is_small(d, 1)


def test_newly_exposed_communication_is_named() -> None:
    dispatch = first_of_each(h800(), rows_of(h800(), lambda name: "internode::dispatch<false, 8, true" in name), 3)
    puts, uncovered = exposed(h800(), dispatch)
    d = diff([h800()], [put_in(h800(), puts)])
    (found,) = largest(d, 1)
    assert (found.kind, found.group) == ("more exposed", "communication")
    assert "dispatch" in found.after_names[0]
    assert found.ns == pytest.approx(uncovered / 3, rel=CLOSE)
    assert found.ratio == pytest.approx(1, abs=1e-3)
    assert d.b.hidden_ns - d.a.hidden_ns == pytest.approx(-uncovered / 3, rel=CLOSE)
    rest_is_small(d, 1, besides_ns=(sum(p.ns for p in puts) - uncovered) / 3)    # gaps between what was moved


def test_all_at_once_are_named_and_ranked_by_size() -> None:
    a = h800()
    attention, more = slower(a, rows_of(a, ATTENTION), 1.3)
    old = longest(a, lambda name: CAST in name)
    cast, cast_more = slower(a, rows_of(a, old.__eq__), 1.4)
    routing = first_of_each(a, rows_of(a, lambda name: "unique_group_indices_impl" in name), 3)
    puts = [*attention, *cast, *gap_before(a, routing, STEP_GAP_NS)]
    dispatch = first_of_each(a, undisturbed(a, rows_of(a, lambda name: "internode::dispatch<" in name), puts), 3)
    freed, uncovered = exposed(a, dispatch)
    puts += freed
    b = replaced(put_in(a, puts), old, ("void cast_rows(int)", "void scale_rows(int)"))
    d = diff([a], [b])
    assert d.ns == pytest.approx(sum(p.ns for p in puts) / 3, abs=2)
    expected = [("slower", more / 3), ("more exposed", uncovered / 3), ("replaced", cast_more / 3),
                ("longer gap", STEP_GAP_NS)]
    assert [ns for _, ns in expected] == sorted((ns for _, ns in expected), reverse=True)
    found = largest(d, 4)
    assert [change.kind for change in found] == [kind for kind, _ in expected]
    assert [change.ns for change in found] == pytest.approx([ns for _, ns in expected], rel=CLOSE)
    assert found[0].family.startswith("attention")
    assert set(found[2].after_names) == {"void cast_rows(int)", "void scale_rows(int)"}
    rest_is_small(d, 4, besides_ns=(sum(p.ns for p in freed) - uncovered) / 3)


# ---- what always holds


def mirrored(change: Change) -> tuple[object, ...]:
    return OPPOSITE[change.kind], -change.ns, change.keys, change.after, change.before


@settings(deadline=None, max_examples=60)
@given(traces(), traces(devices=2), traces())
def test_differences_are_antisymmetric_and_add_up(
    tmp_path_factory: pytest.TempPathFactory, one: Kineto, two: Kineto, three: Kineto,
) -> None:
    folder = tmp_path_factory.mktemp("diff")
    a, b, c = (_step(k, folder / f"{i}.json") for i, k in enumerate((one, two, three)))
    ab, ba, bc, ac = difference(a, b), difference(b, a), difference(b, c), difference(a, c)
    assert (ab.ns, ab.ns + bc.ns) == (-ba.ns, ac.ns)
    keys = {row.key for d in (ab, bc, ac) for row in d.keys}
    by_key = [{row.key: row.ns for row in d.keys} for d in (ab, ba, bc, ac)]
    for key in keys:
        there, back, on, direct = (d.get(key, 0) for d in by_key)
        assert (there, there + on) == (-back, direct)
    for name in {part.name for d in (ab, bc, ac) for part in d.parts}:
        there, back, on, direct = (sum(p.ns for p in d.parts if p.name == name) for d in (ab, ba, bc, ac))
        assert (there, there + on) == (-back, direct)
    assert sorted(map(mirrored, ba.changes), key=repr) == sorted(
        ((c.kind, c.ns, c.keys, c.before, c.after) for c in ab.changes), key=repr)


def _step(k: Kineto, path: Path) -> Typical:
    return typical([read(k.write(path))])


def test_a_run_against_itself_has_no_difference() -> None:
    d = diff([a100()], [a100()])
    assert (d.ns, d.changes) == (0, ())
    assert not any(s.differs for s in d.settings)


def test_shares_sum_to_the_whole_that_was_rounded() -> None:
    assert shared_out([5, 5, 5, 1], 2, 8) == [3, 3, 2, 0]


# ---- the pair of Nsight Systems exports


@cache
def pair() -> Difference:
    before, after = (read_all([shared(f"nsys/mfu_2gpu_{name}.sqlite")]) for name in ("before", "after"))
    return diff(before, after)


def test_the_pair_is_compared_by_repetition() -> None:
    """68 runs of flash_fwd in one slice and 60 in the other are two a repetition in both."""
    d = pair()
    assert (d.a.repetitions, d.b.repetitions) == (32, 30)
    flash = [row for row in d.keys if "flash_fwd" in row.key.name and not row.key.gap]
    assert [(row.a.runs, row.b.runs) for row in flash] == [(2.0, 2.0)]
    assert not [c for c in d.changes if c.kind in ("more runs", "fewer runs", "new", "gone") and "flash" in str(c)]


def test_the_pair_names_what_changed_and_sums_to_the_nanosecond() -> None:
    d = pair()
    largest(d, 0)
    names = {name: sum(p.ns for p in d.parts if p.name == name) for name in (p.name for p in d.parts)}
    assert max(names, key=lambda name: names[name]) == "idle: launch-starved"
    gaps = [c for c in d.changes if c.kind == "longer gap"]
    assert gaps[0].operators == ("aten::copy_",)
    assert any(c.kind == "slower" and c.after_names[0].startswith("ncclDevKernel_SendRecv") for c in d.changes)
    assert all("repetition" in m.kept.words for m in (*d.a.members, *d.b.members))


def test_the_pair_agrees_with_plain_sql() -> None:
    """Mean time between the first of the same kernels, from the file itself."""
    import sqlite3

    for run, name in ((pair().a, "before"), (pair().b, "after")):
        path = shared(f"nsys/mfu_2gpu_{name}.sqlite")
        with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as file:
            for member in run.members:
                low, high = member.kept.windows[0][0], member.kept.windows[-1][1]
                (spent,) = file.execute(
                    "SELECT sum(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s "
                    "ON s.id = k.demangledName WHERE k.deviceId = ? AND s.value LIKE '%flash_fwd%' AND "
                    "k.start >= ? AND k.start < ?", (member.view.device, low - origin(member, file),
                                                     high - origin(member, file))).fetchone()
                mine = sum(int(ns) for key, ns in zip(member.keys, member.owned_ns, strict=True)
                           if "flash_fwd" in key.name and not key.gap)
                assert mine == pytest.approx(spent, abs=2)


def origin(member: object, file: object) -> int:
    """Times of the file are since the session began; those of a trace since the epoch."""
    import sqlite3

    from sublight.guard.member import Member

    assert isinstance(member, Member)
    assert isinstance(file, sqlite3.Connection)
    (first,) = file.execute("SELECT min(start) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE deviceId = ?",
                            (member.view.device,)).fetchone()
    a = member.view.trace.activities
    kernels = (a.device == member.view.device) & (a.kind == 0)
    return int(a.ts_ns[kernels].min()) - int(first)


# ---- what took whose place


def sequence(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(("", letter) for letter in text)


def places(a: str, b: str) -> set[frozenset[str]]:
    """Swaps between two sequences of kernels, a letter each, without operators."""
    runs_a, runs_b = ({("", letter): float(text.count(letter)) for letter in text} for text in (a, b))
    return set(swaps(runs_a, runs_b, sequence(a), sequence(b)))


def test_kernels_between_the_same_neighbours_took_each_others_place() -> None:
    assert places("nogonog", "nxygnxyg") == {frozenset("oxy")}
    assert places("nogpo", "nxgpx") == {frozenset("ox")}
    assert places("agbg", "agbg") == set()
    assert places("abcd", "abXcd") == set()                   # new, in nobody's place
    assert places("no", "nx") == {frozenset("ox")}            # at the end


def test_a_long_run_of_other_kernels_is_another_program() -> None:
    assert places("nabcdeg", "nvwxyzg") == set()


def test_kernels_of_one_operator_took_each_others_place() -> None:
    #  aten::mm launches the old kernel 12 times in A; in B the old one 4 times and a new one 8 times
    a = {("aten::mm", "old"): 12.0, ("aten::add", "add"): 3.0}
    b = {("aten::mm", "old"): 4.0, ("aten::mm", "new"): 8.0, ("aten::add", "add"): 3.0}
    assert set(swaps(a, b, (), ())) == {frozenset({"old", "new"})} == set(swaps(b, a, (), ()))


def test_kernels_that_both_runs_have_are_not_swapped_by_their_counts() -> None:
    """One operator on other sizes takes other kernels: no kernel replaced another."""
    a = {("aten::mm", "small"): 12.0, ("aten::mm", "large"): 4.0}
    b = {("aten::mm", "small"): 4.0, ("aten::mm", "large"): 12.0}
    assert swaps(a, b, (), ()) == ()
