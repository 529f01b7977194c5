"""What must hold for every trace: exact sums, and no change from what does not matter."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto import Kineto
from strategies import TRANSFER, account, activities, span, step_windows, traces

from sublight.budget import PARTS
from sublight.explain import Explanation, explain
from sublight.explain.view import View
from sublight.observe.read import read_all
from sublight.show.json import document

settings.register_profile("sublight", deadline=None, max_examples=80)
settings.load_profile("sublight")


def explained(*texts: str, window: str = "all") -> Explanation:
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, text in enumerate(texts):
            paths.append(Path(folder) / f"{i}.json")
            paths[-1].write_text(text)
        return explain(read_all(paths), window=window)


def answer(explanation: Explanation) -> list[dict[str, Any]]:
    """All that is said of the devices, without what tells of the file itself."""
    devices: list[dict[str, Any]] = document(explanation)["devices"]
    return devices


def view(*texts: str, window: str = "all") -> View:
    return explained(*texts, window=window).devices[0].view


@given(traces(devices=1))
def test_the_parts_equal_a_slow_recomputation(trace: Kineto) -> None:
    budget = view(trace.text()).budget
    expected = account(trace)

    assert budget.window_ns == expected.window_ns == sum(p.ns for p in budget.parts)
    assert budget.group_ns("compute") == expected.compute_ns
    assert budget.group_ns("communication") == budget.communication.exposed_ns == expected.exposed_ns
    assert budget.group_ns("copies") == expected.copies_ns
    assert budget.idle_ns == expected.idle_ns
    assert budget.communication.union_ns == expected.union_ns
    undivided = any(e["name"] in TRANSFER for e in activities(trace))
    unknown = undivided and not expected.wait_ns
    assert budget.communication.wait_ns == (None if unknown else expected.wait_ns)
    assert all(p.ns > 0 for p in budget.parts)


@given(traces(), st.data())
def test_a_window_is_the_sum_of_its_pieces(trace: Kineto, data: st.DataObject) -> None:
    line = view(trace.text()).timeline
    low, high = line.span
    cuts = sorted(data.draw(st.lists(st.integers(low, high), max_size=4)))
    edges = [low, *cuts, high]
    pieces = [line.budget([(a, b)]) for a, b in pairwise(edges) if b > a]
    whole = line.budget([(low, high)])

    for part in PARTS:
        assert sum(p[part] for p in pieces) == whole[part]
    assert sum(p.communication.hidden_ns for p in pieces) == whole.communication.hidden_ns
    assert sum(p.window_ns for p in pieces) == whole.window_ns


@pytest.mark.heavy
@given(traces(devices=2), st.randoms(use_true_random=False))
def test_the_order_of_events_does_not_matter(trace: Kineto, random: Any) -> None:
    shuffled = list(trace.events)
    random.shuffle(shuffled)

    assert answer(explained(trace.text(events=shuffled))) == answer(explained(trace.text()))


@pytest.mark.heavy
@given(traces(devices=2), st.randoms(use_true_random=False), st.integers(2, 4))
def test_a_rank_in_several_files_is_the_same_rank(trace: Kineto, random: Any, files: int) -> None:
    pieces: list[list[Any]] = [[] for _ in range(files)]
    for event in trace.events:
        random.choice(pieces).append(event)
    texts = [trace.text(events=piece) for piece in pieces]

    assert answer(explained(*texts)) == answer(explained(trace.text()))


@given(traces(devices=2), st.integers(-10**15, 10**15))
def test_a_shift_in_time_does_not_matter(trace: Kineto, shift_ns: int) -> None:
    moved = json.loads(trace.text(), parse_float=str)
    moved["baseTimeNanoseconds"] += shift_ns

    text = json.dumps(moved)
    assert answer(explained(text)) == answer(explained(trace.text()))


@given(traces())
def test_steps_are_cut_as_a_slow_recomputation_cuts_them(trace: Kineto) -> None:
    expected = step_windows(trace)
    found = view(trace.text())

    rows = {f"ProfilerStep#{row.label}": row.window_ns for row in found.step_rows if row.window_ns is not None}
    assert rows == {name: end - start for name, (start, end) in expected.items()}
    for row in found.step_rows:
        if row.window_ns is not None:
            cut = account(trace, window=expected[f"ProfilerStep#{row.label}"])
            assert (row.busy_ns, row.exposed_communication_ns) == (cut.busy_ns, cut.exposed_ns)


@given(traces())
def test_the_span_is_first_to_last_activity(trace: Kineto) -> None:
    low, high = span(trace)

    assert view(trace.text()).span_ns == high - low
