"""The period of a run from its kernels' names: letters are kernels. Planted ones are found; layers are no steps."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import shared
from hypothesis import given, settings
from hypothesis import strategies as st

from sublight.observe.period import Period, Repetitions, period
from sublight.observe.read import read_all
from sublight.trace import I32, I64, Trace


def numbers(text: str) -> I32:
    return np.array([ord(letter) for letter in text], np.int32)


def found(text: str) -> Repetitions:
    repetitions = period(numbers(text)).repetitions
    assert repetitions is not None
    return repetitions


def cut(text: str) -> tuple[int, int, int, int, int]:
    """(period, repetitions, warm-up, cut at the start, cut at the end)"""
    r = found(text)
    return r.period, len(r.starts), r.warm_up, r.cut_start, r.cut_end


def test_whole_repetitions() -> None:
    assert cut("abcde" * 3) == (5, 3, 0, 0, 0)
    assert found("abcde" * 3).starts == (0, 5, 10)


def test_ends_are_cut_where_the_pauses_are() -> None:
    #        d e | a b c d e | a b c d e | a b
    text = "de" + "abcde" * 2 + "ab"
    start = np.cumsum([100 if letter == "a" else 1 for letter in text])
    r = period(numbers(text), start).repetitions
    assert r is not None
    assert (r.starts, r.cut_start, r.cut_end, r.period_ns) == ((2, 7), 2, 2, 104)


def test_a_warm_up_is_set_apart() -> None:
    """Its kernels are other ones here and there: it is no end of the period."""
    assert cut("axcyez" + "abcde" * 4) == (5, 4, 6, 0, 0)


@pytest.mark.parametrize("text", [
    "xyz" + "abcd" * 6 + "uvw",          # one step: what begins and ends it is in none of its layers
    "xyz" + "abcd" * 6,
    "abcd" * 6 + "uvw",
    "abcdefgh",
    "aaaaaaaaaaaa",                      # a loop of one kernel
    "",
    "ab",
])
def test_layers_of_one_step_are_no_steps(text: str) -> None:
    assert period(numbers(text)).repetitions is None


def test_layers_are_said_to_be_inside() -> None:
    inside = period(numbers("xyz" + "abcd" * 6 + "uvw")).inside
    assert inside is not None
    assert (inside.period, inside.times, inside.unlike) == (4, 6, 6)


@pytest.mark.parametrize("layers", [2, 12, 100])
def test_steps_of_many_layers_are_steps(layers: int) -> None:
    step = "xyz" + "abcd" * layers + "uvw"
    assert cut(step * 3) == (len(step), 3, 0, 0, 0)


def test_a_step_cut_between_two_others_is_not_taken_for_a_warm_up() -> None:
    """Layers of the step before, its end, the next one's beginning, and that one's layers."""
    assert period(numbers("abcd" * 5 + "uvw" + "xyz" + "abcd" * 12)).repetitions is None


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(0, 30), min_size=6, max_size=60), st.integers(3, 8), st.data())
def test_a_planted_period_is_found(step: list[int], times: int, data: st.DataObject) -> None:
    """With a kernel that comes once a step, so that no shorter period exists; cut anywhere at both ends."""
    step = [*step, 31]
    before, after = data.draw(st.integers(0, len(step) - 1)), data.draw(st.integers(0, len(step) - 1))
    sequence = step[len(step) - before :] + step * times + step[:after]
    r = period(np.array(sequence, np.int32)).repetitions
    assert r is not None
    assert (r.period, r.warm_up, r.match) == (len(step), 0, 1.0)
    assert r.cut_start + r.cut_end + len(r.starts) * r.period == len(sequence)
    assert len(r.starts) in (times, times + 1)


@settings(deadline=None, max_examples=60)
@given(st.permutations(range(40)), st.integers(0, 4), st.integers(2, 20))
def test_sequences_without_a_period_have_none(order: list[int], cut_off: int, times: int) -> None:
    """Each block is another order of the same kernels."""
    rng = np.random.default_rng(times)
    blocks = [rng.permutation(order) for _ in range(times)]
    assert period(np.concatenate(blocks)[cut_off:].astype(np.int32)).repetitions is None


# ---- real traces, their marks hidden


def launched(trace: Trace, device: int) -> tuple[I32, I64]:
    a = trace.activities
    here = np.flatnonzero(a.device == device)
    here = here[np.lexsort((a.ts_ns[here], a.correlation[here]))]
    return a.name[here], a.ts_ns[here]


def of(relative: str) -> list[tuple[Trace, int, Period]]:
    return [(trace, device, period(*launched(trace, device))) for trace in read_all([shared(relative)])
            for device in np.unique(trace.activities.device).tolist()]


def test_a100_has_its_three_steps() -> None:
    from sublight.explain import explain

    ((trace, device, what),) = of("kineto/a100_ddp_rank0.json.gz")
    r = what.repetitions
    assert r is not None
    assert (r.period, r.starts, r.cut_start, r.cut_end) == (1_258, (0, 1_258, 2_516), 0, 0)
    _, starts = launched(trace, device)
    marked = [step.window[0] for step in explain(trace).devices[0].view.steps if step.window]
    assert [int(starts[at]) for at in r.starts] == marked


@pytest.mark.parametrize(("name", "blocks"), [("before", 16), ("after", 15)])
def test_both_exports_repeat_a_block_of_157(name: str, blocks: int) -> None:
    """A slice of 0.3 s of a longer step: its ranges are named blocks.3 to blocks.19, and blocks.9 to blocks.23."""
    for _, _, what in of(f"nsys/mfu_2gpu_{name}.sqlite"):
        assert what.repetitions is not None
        assert (what.repetitions.period, len(what.repetitions.starts), what.repetitions.match) == (157, blocks, 1.0)


@pytest.mark.parametrize("name", [
    "kineto/h800_moe_ep64_train.json.gz", "kineto/h100_qwen15_05b.json.gz", "kineto/b200_vllm_tp8_eager.json.gz",
    "kineto/v100_dlrm_8rank/dlrm_kineto",
])
def test_one_step_is_one_step_and_five_copies_are_five(name: str) -> None:
    for trace, device, what in of(name):
        assert what.repetitions is None
        names, starts = launched(trace, device)
        a = trace.activities
        stride = int(a.end_ns[a.device == device].max() - starts.min()) + 100_000
        times = np.concatenate([starts + i * stride for i in range(5)])
        copies = period(np.concatenate([names] * 5), times).repetitions
        assert copies is not None
        assert (copies.period, copies.period_ns, len(copies.starts)) == (len(names), stride, 5)
