"""A trace at the speed of light, explained on the same device, has no gap; planted faults are found at their size.

What is explained is read from the files: they hold names, sizes and times, and nothing of how they were made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto import Kineto
from structure import (
    COMMUNICATION,
    COMPUTE,
    NAMES,
    Placed,
    Sizes,
    Step,
    all_reduce,
    at_bound,
    changed,
    decoder_step,
    least_ns,
    linear,
    mm,
    places,
    written,
)

from sublight.budget import STARVED
from sublight.device import Device, by_key
from sublight.explain import Explained, Explanation, explain
from sublight.explain.bounds import CallRow, PartBound
from sublight.finding import Finding
from sublight.observe.read import read_all
from sublight.work import Work

FORMS = {"v100-sxm2-32": ("fp16",)}        # without bf16 and tf32
ANY_FORM = ("bf16", "fp16", "fp32")
# What each planted fault is called. Others of a trace's findings are opportunities that it really has.
FAULTS = {"SL101", "SL103", "SL104", "SL105", "SL106", "SL201", "SL202", "SL205", "SL206", "SL302"}
US = 1_000
SIZES = Sizes()


def read_back(traces: Sequence[Kineto], *, window: str = "step", device: Device | None = None,
              what_ifs: Sequence[str] = ()) -> Explanation:
    with TemporaryDirectory() as folder:
        files = [k.write(Path(folder) / f"rank{k.rank}.json") for k in traces]
        return explain(read_all(files), window=window, device=device, what_ifs=what_ifs)


def alone(steps: Sequence[Step], *, device: str = "h100-sxm", what_ifs: Sequence[str] = ()) -> Explained:
    """The only rank that is written, of eight."""
    (one,) = read_back(written(steps, device=device, world=8), what_ifs=what_ifs).devices
    return one


def parts(one: Explained) -> dict[str, PartBound]:
    assert one.view.bounds is not None
    return {part.name: part for part in one.view.bounds.parts}


def rows(one: Explained) -> dict[str, CallRow]:
    assert one.view.bounds is not None
    return {f"{row.name} {row.ops}": row for row in one.view.bounds.calls}


def events(one: Explained, part: str) -> int:
    return sum(row.count for row in one.view.kernels if row.part == part)


def found(one: Explained | Explanation, code: str) -> Finding:
    (finding,) = (f for f in (one.findings if isinstance(one, Explained) else one.rank_findings) if f.code == code)
    return finding


def faults(one: Explained | Explanation) -> set[str]:
    several = one.findings if isinstance(one, Explained) else one.rank_findings
    return {finding.code for finding in several} & FAULTS


def gain(one: Explained, text: str) -> int:
    """Of a what-if that is known exactly."""
    (answer,) = (w for w in one.what_ifs if w.text == text)
    assert answer.refused is None
    assert answer.gain_ns_low is not None
    assert answer.gain_ns_low == answer.gain_ns_high
    return answer.gain_ns_low


def within_1_percent(ns: int | None, planted: int) -> bool:
    return ns is not None and abs(ns - planted) <= 0.01 * planted


def work_of(work: Work) -> tuple[object, ...]:
    """In a form that can be counted."""
    return (tuple(sorted(work.flops.items())), work.bytes_read, work.bytes_written, work.messages, work.inferred)


# ---- at the speed of light ------------------------------------------------------------------------------------


@st.composite
def sizes(draw: st.DrawFn, device: str) -> Sizes:
    """Large enough that products and attention take more than a microsecond on every device."""
    return Sizes(
        batch=draw(st.integers(2, 8)), length=128 * draw(st.integers(8, 32)), heads=draw(st.integers(16, 40)),
        d=draw(st.sampled_from((64, 96, 128))), inner=64 * draw(st.integers(32, 256)),
        vocabulary=draw(st.integers(8_000, 130_000)), layers=draw(st.integers(1, 3)),
        form=draw(st.sampled_from(FORMS.get(device, ANY_FORM))), group=draw(st.sampled_from((1, 2, 4, 8))),
    )


@pytest.mark.heavy
@pytest.mark.parametrize("device", NAMES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_is_placed_at_its_bound_has_no_gap(device: str, data: st.DataObject) -> None:
    limits = by_key(device).limits
    drawn = data.draw(sizes(device))
    step = decoder_step(drawn, limits)
    traces = written([step] * data.draw(st.integers(1, 3)), device=device, world=8)
    named = data.draw(st.booleans())
    if not named:                        # then the caller says which device it is
        traces[0].device_name = "a device"
    (one,) = read_back(traces, device=None if named else by_key(device)).devices
    view, found_parts = one.view, parts(one)

    assert view.bounds is not None
    assert view.bounds.device_key == device
    assert view.budget.idle_ns == 0
    assert found_parts.keys() == {p.name for p in view.budget.parts if p.group == "compute"}
    assert found_parts.keys() >= {"gemm", "attention", "normalisation", "activation", "softmax/loss", "elementwise"}
    for name, part in found_parts.items():
        assert part.unknown_ns == 0
        assert part.inferred_ns == 0
        assert 0 <= part.above_ns <= events(one, name)
    for row in view.bounds.calls:        # communication too
        assert 0 <= row.owned_ns - row.bound_ns <= row.count * 2
    assert view.bounds.faster_than_bound == ()
    assert view.bounds.known_share == view.bounds.inferred_share == 1.0
    assert faults(one) <= {"SL101"}
    assert all(r.bound_ns > US * r.count for r in view.bounds.calls if r.category in ("gemm", "attention"))


@pytest.mark.heavy
@pytest.mark.parametrize("device", NAMES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_file_says_the_work_that_was_placed(device: str, data: st.DataObject) -> None:
    step = decoder_step(data.draw(sizes(device)), by_key(device).limits)
    (one,) = read_back(written([step] * 2, device=device, world=8)).devices
    assert one.view.bounds is not None

    placed = Counter(work_of(op.work()) for p in step * 2 for op in p.ops)
    read = Counter(work_of(call.work) for call in one.view.bounds.joined.calls if call.work)
    assert read == placed


def test_a_format_that_the_device_lacks_has_no_bound() -> None:
    device = "v100-sxm2-32"
    step = decoder_step(replace(SIZES, form="fp16", group=1), by_key(device).limits)
    at = places(step, "aten::addmm")[0]
    bf16 = changed(step, at, call=linear(SIZES.batch, SIZES.length, 3 * SIZES.width, SIZES.width, form="bf16"))
    one = alone([bf16], device=device)

    assert parts(one)["gemm"].unknown_ns == step[at].ns[0]
    assert parts(one)["attention"].unknown_ns == 0


@pytest.mark.parametrize("short_ns", [2, 10, 1_000])
def test_less_than_the_bound_is_reported(short_ns: int) -> None:
    limits = by_key("h100-sxm").limits
    placed = at_bound(mm(4_096, 4_096, 4_096), limits)
    assert placed.ns[0] - least_ns(placed.ops[0], limits) < 1
    for less, listed in ((0, 0), (short_ns + 1, 1)):
        one = alone([(replace(placed, ns=(placed.ns[0] - less,)),)])
        assert one.view.bounds is not None
        assert len(one.view.bounds.faster_than_bound) == listed
        assert parts(one)["gemm"].above_ns <= 1


# ---- planted faults, each alone -------------------------------------------------------------------------------


def healthy(device: str = "h100-sxm", *, transfer_ns: int | None = None, drawn: Sizes = SIZES) -> Step:
    """Without a transfer there is no communication."""
    return decoder_step(drawn if transfer_ns else replace(drawn, group=1), by_key(device).limits,
                        transfer_ns=transfer_ns)


def slowed(step: Step, at: int, times: int) -> Step:
    return changed(step, at, ns=tuple(ns * times for ns in step[at].ns))


def held_up(step: Step, gap_ns: int) -> Step:
    """The host comes late with the first product: after a short kernel, so that it is silent for less than 1 ms."""
    return changed(step, places(step, "aten::addmm")[0], gap_ns=gap_ns)


@pytest.mark.parametrize("device", NAMES)
@pytest.mark.parametrize("name", ["aten::addmm", "aten::mm"])
def test_a_product_at_half_its_bound_is_found(device: str, name: str) -> None:
    step = healthy(device, drawn=replace(SIZES, form=FORMS.get(device, ANY_FORM)[0]))
    at = places(step, name)[0]
    one = alone([slowed(step, at, 2)] * 3, device=device, what_ifs=["gemm=bound"])
    planted = 3 * sum(step[at].ns)

    assert planted <= parts(one)["gemm"].above_ns <= planted + events(one, "gemm")
    assert within_1_percent(parts(one)["gemm"].above_ns, planted)
    worst = max(rows(one).values(), key=lambda row: row.owned_ns - row.bound_ns)
    assert worst.name == name
    assert within_1_percent(worst.owned_ns - worst.bound_ns, planted)
    assert within_1_percent(gain(one, "gemm=bound"), planted)
    others = [part for part in parts(one).values() if part.name != "gemm"]
    assert all(part.above_ns <= events(one, part.name) for part in others)
    assert faults(one) <= {"SL302"}                       # which begins at half: here a matter of rounding


def test_a_product_at_a_quarter_is_a_finding() -> None:
    step = healthy(drawn=replace(SIZES, layers=1))
    at = places(step, "aten::addmm")[0]
    one = alone([slowed(step, at, 4)] * 3)

    assert faults(one) == {"SL302"}
    assert within_1_percent(found(one, "SL302").gain_ns_at_most, 3 * 3 * step[at].ns[0])


@pytest.mark.parametrize("device", NAMES)
@pytest.mark.parametrize("gap_ns", [30 * US, 100 * US])
def test_a_launch_gap_is_found(device: str, gap_ns: int) -> None:
    step = held_up(healthy(device, drawn=replace(SIZES, form=FORMS.get(device, ANY_FORM)[0])), gap_ns)
    one = alone([step] * 3, device=device, what_ifs=["launch=0", "gemm=0"])

    assert one.view.budget[STARVED] == one.view.budget.idle_ns == 3 * gap_ns
    assert gain(one, "launch=0") == 3 * gap_ns
    share = one.view.share(3 * gap_ns)
    assert faults(one) == ({"SL201"} if share >= 0.01 else set())
    if share >= 0.01:
        assert found(one, "SL201").gain_ns_at_most == 3 * gap_ns
    assert all(part.above_ns <= events(one, part.name) for part in parts(one).values())


@pytest.mark.parametrize("transfer_ns", [50 * US, 200 * US])
def test_exposed_communication_is_found(transfer_ns: int) -> None:
    step = healthy(transfer_ns=transfer_ns)
    one = alone([step] * 3, what_ifs=["communication=hidden", "communication=0"])
    planted = 3 * 2 * SIZES.layers * transfer_ns

    assert faults(one) == {"SL101"}
    assert found(one, "SL101").gain_ns_at_most == one.view.budget.communication.exposed_ns == planted
    assert gain(one, "communication=hidden") == gain(one, "communication=0") == planted
    assert one.view.budget.idle_ns == 0


def beside(step: Step) -> Step:
    """The same work, but compute waits for communication at the end of the step only."""
    free = [replace(p, waits=() if p.waits == (COMMUNICATION,) else p.waits) for p in step]
    return (*free[:-1], replace(free[-1], waits=(COMMUNICATION,)))


def test_hidden_communication_gains_nothing_where_compute_is_critical() -> None:
    #  stream 7    ├ norm ┤├ gemm ┤├ … ┤├ gemm ┤├ … ┤├ loss ┤
    #  stream 20                   ├─ all-reduce ─┤
    one = alone([beside(healthy(transfer_ns=200 * US))] * 3, what_ifs=["communication=hidden", "communication=0"])

    assert one.view.budget.communication.hidden_ns == 3 * 2 * SIZES.layers * 200 * US
    assert one.view.budget.communication.exposed_ns == 0
    assert gain(one, "communication=hidden") == gain(one, "communication=0") == 0
    assert faults(one) == set()


def test_half_covered_communication_gains_the_other_half() -> None:
    #  stream 7    ├ gemm ┤├ gemm ┤        ├ gemm ┤├ gemm ┤     the third waits for the all-reduce
    #  stream 20           ├─ all-reduce ─┤
    product = at_bound(mm(8_192, 8_192, 4_096), by_key("h100-sxm").limits)
    transfer = Placed(all_reduce(1 << 26, 8), (2 * product.ns[0],), COMMUNICATION, (COMPUTE,))
    step = (product, transfer, product, replace(product, waits=(COMMUNICATION,)), product)
    one = alone([step] * 3, what_ifs=["communication=hidden"])

    assert one.view.budget.communication.exposed_ns == 3 * product.ns[0]
    assert found(one, "SL101").gain_ns_at_most == 3 * product.ns[0]
    assert gain(one, "communication=hidden") == 3 * product.ns[0]


LATE = 2                                 # the straggler


def straggling(step: Step, late_ns: int) -> Step:
    return changed(step, places(step, "aten::_flash_attention_forward")[0], late_ns={LATE: late_ns})


def test_a_straggler_is_found() -> None:
    step = straggling(healthy(transfer_ns=100 * US, drawn=replace(SIZES, group=4)), 80 * US)
    run = read_back(written([step] * 3, device="h100-sxm", ranks=4))

    assert run.ranks is not None
    assert run.ranks.counted == 3 * 2 * SIZES.layers
    assert faults(run) == {"SL104"}
    assert found(run, "SL104").claim.startswith(f"rank {LATE} comes last to 3 of ")
    assert found(run, "SL104").gain_ns_at_most == 3 * 80 * US
    late = {s.member: s for s in run.ranks.stragglers}
    assert [late[m].late_ns for m in range(4)] == [0, 0, 3 * 80 * US, 0]
    assert [late[m].waiting_ns for m in range(4)] == [3 * 80 * US, 3 * 80 * US, 0, 3 * 80 * US]
    assert {s.transfer_ns for s in run.ranks.stragglers} == {3 * 2 * SIZES.layers * 100 * US}
    for member, one in enumerate(run.devices):       # what it is late with
        above = parts(one)["attention"].above_ns
        assert within_1_percent(above, 3 * 80 * US) if member == LATE else above <= events(one, "attention")


# ---- and all at once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["h100-sxm", "h800", "a100-sxm-80", "b200"])
def test_planted_faults_are_found_side_by_side(device: str) -> None:
    steps, gap_ns, drawn = 4, 30 * US, replace(SIZES, group=4, batch=2)
    compute_ns = sum(ns for p in healthy(device, drawn=drawn) for ns in p.ns)
    late_ns, transfer_ns = compute_ns // 20, compute_ns // 40     # so that compute can hide it
    step = healthy(device, transfer_ns=transfer_ns, drawn=drawn)
    product = places(step, "aten::mm")[1]
    planted = held_up(straggling(slowed(step, product, 2), late_ns), gap_ns)
    traces = written([planted] * steps, device=device, ranks=4, lead_ns=100 * US)
    run = read_back(traces, what_ifs=["launch=0", "communication=hidden"])
    moved_ns = 2 * SIZES.layers * transfer_ns

    assert run.ranks is not None
    assert faults(run) == {"SL104"}
    assert found(run, "SL104").claim.startswith(f"rank {LATE} ")
    assert within_1_percent(found(run, "SL104").gain_ns_at_most, steps * late_ns)
    assert [s.late_ns for s in sorted(run.ranks.stragglers, key=lambda s: s.member)] == [0, 0, steps * late_ns, 0]
    for member, one in enumerate(run.devices):
        waited_ns = 0 if member == LATE else late_ns
        assert one.view.budget[STARVED] == one.view.budget.idle_ns == steps * gap_ns
        assert within_1_percent(parts(one)["gemm"].above_ns, steps * sum(step[product].ns))
        assert found(one, "SL101").gain_ns_at_most == steps * (moved_ns + waited_ns)
        assert within_1_percent(gain(one, "communication=hidden"), steps * (moved_ns + waited_ns))
        assert within_1_percent(gain(one, "launch=0"), steps * gap_ns)
        attention = parts(one)["attention"].above_ns
        assert attention <= events(one, "attention") if member != LATE else within_1_percent(
            attention, steps * late_ns)
        starved = {"SL201"} if one.view.share(steps * gap_ns) >= 0.01 else set()
        assert faults(one) - {"SL302"} == {"SL101"} | starved
        if starved:
            assert found(one, "SL201").gain_ns_at_most == steps * gap_ns
