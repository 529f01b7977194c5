"""NCCL's choice per size, equal to NCCL 2.30.7's, and the reason that is given for it.

    time  ╲ Ring/LL          ╱ Simple        the lowest line at a size is what NCCL takes;
           ╲________________╱                the sizes where lines cross are exact to the byte
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import shared
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl import graph, searched, tuned
from test_nccl_tuning import CASES, a_model, on_shared, rows_of

from sublight.cli import main
from sublight.comm.nccl import compare, reasons
from sublight.comm.nccl.choice import COLLECTIVES, Model, choose, function_of, model, switches, times, winners
from sublight.errors import InputError

ALL = tuple(COLLECTIVES.values())


@pytest.mark.parametrize("nvls", [True, False], ids=["NVLS on", "NVLS off"])
def test_all_1275_choices_of_the_golden_table_are_nccls(nvls: bool) -> None:
    rows, missed = rows_of("nccl2.30.7_selection.csv"), []
    assert len(rows) == 1275
    columns = ("algo", "proto") if nvls else ("algo_noNVLS", "proto_noNVLS")
    for row in rows:
        tuning = on_shared(row["system"], int(row["gpus_per_node"]), int(row["nodes"]), nvls)
        best = choose(tuning, row["coll"], int(row["bytes"])).best
        if (best.algorithm, best.protocol) != tuple(row[c] for c in columns):
            missed.append(f"{row} got {best.name}")
        elif nvls and best.time_us is not None:
            assert best.time_us == pytest.approx(float(row["pred_us"]), abs=0.0051, rel=1e-6)
    assert missed == []


def test_other_bandwidths_or_another_correction_of_trees_would_miss() -> None:
    """The golden choices can tell: without NVLS in the model, or without the correction, they are not met."""
    rows = [row for row in rows_of("nccl2.30.7_selection.csv") if row["coll"] == "AllReduce"]
    plain = []
    for row in rows:
        tuning = on_shared(row["system"], int(row["gpus_per_node"]), int(row["nodes"]), True)
        flat = dict.fromkeys(tuning.constants.correction, (1.0,) * 24)
        flattened = replace(tuning, constants=replace(tuning.constants, correction=flat))
        best = choose(flattened, row["coll"], int(row["bytes"])).best
        plain.append((best.algorithm, best.protocol) == (row["algo"], row["proto"]))
    assert sum(plain) < 0.99 * len(plain)


# ---- switch points


def some_models() -> list[Model]:
    return [tuned(), tuned(nodes=4), tuned(nodes=2, sm=80), tuned(nodes=3, sm=100, cpu=("arm64", "ARM")),
            tuned(nodes=8, gpus=1), *(a_model(case) for case in CASES[:8])]


@pytest.mark.parametrize("place", range(13))
def test_between_two_switches_the_choice_is_the_same_and_at_each_it_is_another(place: int) -> None:
    tuning = some_models()[place]
    random = np.random.default_rng(place)
    for function in ALL:
        if all(line.off for line in tuning.lines.values() if line.function == function):
            continue
        found = switches(tuning, function)
        for before, after in itertools.pairwise(found):
            assert before.after == after.before
        edges = [1, *(s.nbytes for s in found), (1 << 33) + 1]
        takes = [winners(tuning, function, np.array([1]))[0], *(s.after for s in found)]
        for low, high, take in zip(edges, edges[1:], takes, strict=False):
            sizes = np.unique(np.r_[low, high - 1, random.integers(low, high, 40)])
            assert set(winners(tuning, function, sizes)) == {take}, (function, low, high)
        assert all(s.before != s.after for s in found)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 12), st.sampled_from(ALL), st.integers(1, 1 << 34))
def test_the_choice_is_the_least_time_and_the_ranking_is_sorted(place: int, function: str, nbytes: int) -> None:
    tuning = some_models()[place]
    try:
        got = choose(tuning, function, nbytes)
    except InputError:
        return
    known = [c.time_us for c in got.ranked if c.time_us is not None]
    assert known == sorted(known)
    least = min(float(time[0]) for time in times(tuning, function, np.array([nbytes])).values())
    assert got.best.time_us == least
    assert all(c.off for c in got.ranked if c.time_us is None)


def test_of_equal_times_the_first_in_nccls_order_wins() -> None:
    tuning = tuned()
    ring, tree = tuning.lines["AllReduce", "Ring", "LL"], tuning.lines["AllReduce", "Tree", "LL"]
    tied = {key: (replace(line, latency_us=ring.latency_us, bandwidth=ring.bandwidth) if line is tree else line)
            for key, line in tuning.lines.items()}
    assert choose(replace(tuning, lines=tied), "AllReduce", 64).best.name == "Tree/LL"


# ---- types and operations


@pytest.mark.parametrize(("dtype", "op", "reduced"), [
    ("fp16", "sum", True), ("bf16", "max", True), ("fp32", "sum", True), ("fp32", "max", False), ("int8", "sum", False),
    ("fp16", "avg", False), ("fp8e4m3", "sum", False), ("int32", "min", True), ("fp16", "prod", False)])
def test_the_switch_reduces_some_types_only(dtype: str, op: str, reduced: bool) -> None:
    best = choose(tuned(), "AllReduce", 1 << 30, dtype=dtype, op=op)
    assert (best.best.algorithm == "NVLS") is reduced
    if not reduced:
        nvls = next(c for c in best.ranked if c.algorithm == "NVLS" and c.protocol == "Simple")
        assert nvls.off == f"NVLS does not reduce {dtype} with {op}"


def test_an_all_gather_moves_bytes_whatever_the_type() -> None:
    for nbytes in (1 << 10, 1 << 24, 1 << 30):
        one, two = (choose(tuned(), "AllGather", nbytes, dtype=dtype) for dtype in ("fp16", "fp8e5m2"))
        assert one == two


def test_fp8_on_more_than_eight_ranks_leaves_the_ring() -> None:
    few, many = (choose(tuned(nodes=nodes, env={"NCCL_NVLS_ENABLE": "0"}), "AllReduce", 1 << 33, dtype="fp8e4m3")
                 for nodes in (1, 4))
    assert (few.best.algorithm, many.best.algorithm) == ("Ring", "Tree")


def test_fp8_reductions_need_hopper() -> None:
    with pytest.raises(InputError, match=r"from compute capability 9\.0"):
        choose(tuned(sm=80), "AllReduce", 1 << 20, dtype="fp8e4m3")


@pytest.mark.parametrize("name", ["all_to_all", "send_recv"])
def test_what_the_model_does_not_cover_is_said_by_name(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is not in NCCL's tuning model"):
        function_of(name)


def test_forcing_what_is_off_leaves_nothing_as_in_nccl() -> None:
    with pytest.raises(InputError, match=r"every one is off \(.*; .*\)"):
        choose(tuned(env={"NCCL_ALGO": "nvlstree"}), "AllReduce", 1 << 20)


# ---- reasons


def test_a_reason_names_the_term_that_wins_and_the_next() -> None:
    tuning = tuned(nodes=4)
    small, large = (choose(tuning, "AllReduce", nbytes) for nbytes in (1 << 10, 1 << 33))
    assert reasons.because(tuning, small).startswith("latency 35.2 µs against 65.5 µs of Tree/LL128, 85")
    assert reasons.because(tuning, large).startswith("bandwidth 198.2 GB/s against 187.9 GB/s of NVLSTree/Simple, 4.8")
    assert reasons.decided_by(small) == "latency"
    assert reasons.decided_by(large) == "bandwidth"


def test_a_switch_says_whether_lines_meet_or_a_step_comes() -> None:
    tuning = tuned(nodes=4)
    words = {s.nbytes: reasons.switching(tuning, "AllReduce", s) for s in switches(tuning, "AllReduce")}
    assert "more bandwidth (59.16 against 4.335 GB/s) makes up for more latency (65.5 against 35.2 µs)" in words[141737]
    assert words[1 << 22].endswith("(NCCL corrects the bandwidth of trees by powers of two)")


def test_the_plateau_of_a_ring_is_a_step() -> None:
    tuning = tuned(graph("ring", 2, 10), graph("tree", 2, 1), nodes=4, sm=70)
    step = 64 * tuning.comm.channels * tuning.comm.ranks
    before, after = times(tuning, "AllReduce", np.array([step - 1, step]))["Ring", "Simple"]
    lat = float(tuning.lines["AllReduce", "Ring", "Simple"].latency_us)
    assert after - before == pytest.approx(0.9 * lat, rel=1e-3)


def test_rules_are_listed_once_with_what_they_rule_out() -> None:
    found = {rule.reason: rule.names for rule in reasons.rules(tuned(), ("AllReduce", "AllGather"))}
    assert found["NVLSTree is for two nodes or more"] == ("NVLSTree",)
    assert found["CollNet is off (NCCL_COLLNET_ENABLE is not 1)"] == ("CollNetDirect", "CollNetChain")


# ---- against


def test_without_nvls_only_what_depended_on_it_changes() -> None:
    here, there = tuned(nodes=4), tuned(nodes=4, env={"NCCL_NVLS_ENABLE": "0"})
    lines = compare.lines_differ(here, there, ("AllReduce", "AllGather"))
    assert [d.what for d in lines] == ["AllReduce NVLSTree/Simple"]
    changed = compare.choices_differ(here, there, "AllReduce")
    assert changed
    assert {c.here for c in changed} == {("NVLSTree", "Simple")}
    for c in changed:
        sizes = np.array([c.first, (c.first + c.last) // 2, c.last])
        assert set(winners(here, "AllReduce", sizes)) == {c.here}
        assert set(winners(there, "AllReduce", sizes)) == {c.there}
    assert compare.choices_differ(here, there, "AllGather") == ()


def test_a_model_does_not_differ_from_itself() -> None:
    one, two = tuned(nodes=2), model(searched(nodes=2))
    assert compare.graphs_differ(one, two) == compare.lines_differ(one, two, ALL) == ()


# ---- the command


def topology() -> str:
    return str(shared("comm/synthetic_h100_8.xml"))


def test_the_command_answers_why_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["comm", "nccl", topology(), "--nodes", "4", "--bytes", "1K,64M:1G:x4",
                 "--against", "NCCL_NVLS_ENABLE=0"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for words in ("4 nodes of 8 GPUs", "NVLSTree/Simple", "Against NCCL_NVLS_ENABLE=0", "all_to_all, send_recv"):
        assert words in text
    assert main([*arguments, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [s["bytes"] for s in document["collectives"][0]["sizes"]] == [1 << 10, 1 << 26, 1 << 28, 1 << 30]
    assert document["against"]["choices"]
    assert main([*arguments, "--format", "md"]) == 0
    assert capsys.readouterr().out == f"```text\n{text}```\n"


@pytest.mark.parametrize("more", [
    ["--env", "NCCL_ALGOS=ring"], ["--coll", "all_to_all"], ["--bytes", "8Q"], ["--bytes", "8:4:x2"],
    ["--against", "nodes=x"], ["--dtype", "fp15"], ["--nodes", "0"], ["--env", "NCCL_ALGO=nvlstree"],
    ["--against", "80xGB200"], ["--coll", ","], ["--against", "nodes=²"], ["--against", f"nodes={10**22}"],
    ["--env", "NCCL_P2P_LEVEL=nvl"],
    ["-o", "/nowhere/x"]])
def test_a_wrong_option_is_one_line_and_exit_code_2(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["comm", "nccl", topology(), *more]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1


def test_output_goes_to_a_file_whole(tmp_path: Path) -> None:
    target = tmp_path / "answer.json"
    assert main(["comm", "nccl", topology(), "--format", "json", "-o", str(target)]) == 0
    assert json.loads(target.read_text())["nccl"] == "2.30.7"
