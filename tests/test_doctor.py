"""The doctor names what is slow in small tables and logs, and the real faults of 17 nodes."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from conftest import shared
from numpy.typing import NDArray
from planted_logs import Site, log

from sublight.cli import main
from sublight.comm.doctor.diagnosis import Diagnosis, diagnose
from sublight.comm.doctor.faults import locate
from sublight.comm.doctor.findings import DIAGNOSES
from sublight.comm.doctor.view import Located
from sublight.observe.measurements import read_measurements, read_one
from sublight.result import Placement, Result
from sublight.show.doctor import text_map
from sublight.show.doctor_html import html
from sublight.show.doctor_json import document
from sublight.show.doctor_markdown import markdown
from sublight.work import Message


def with_code(diagnosis: Diagnosis, code: str) -> list[Located]:
    return [f for f in diagnosis.findings if f.finding.code == code]


def table(nodes: int, slow: dict[tuple[int, int], float], healthy: float = 40.0) -> NDArray[np.float64]:
    """Logarithms of a table: healthy but for the pairs given."""
    out = np.full((nodes, nodes), np.nan)
    for a, b in combinations(range(nodes), 2):
        out[a, b] = out[b, a] = np.log(slow.get((a, b), healthy) * (1 + 0.002 * ((a * 7 + b * 3) % 5)))
    return out


def pairs_csv(rates: dict[tuple[int, int], float | None], tests: tuple[str, ...] = ("alltoall_perf",)) -> str:
    rows = ["test,N,G,nodes,avg_bus_bw_GBs"]
    rows += [f'{test},2,8,"n{a},n{b}",{"" if rate is None else rate}'
             for test in tests for (a, b), rate in rates.items()]
    return "\n".join(rows)


# ---- one table


def test_a_healthy_table_has_no_faults() -> None:
    faults = locate(table(8, {}))
    assert faults is not None
    assert (faults.nodes, faults.pairs, faults.split) == ((), (), None)


def test_a_node_is_blamed_for_most_of_its_pairs_and_not_for_a_few() -> None:
    for slow_pairs, blamed in ((7, True), (5, True), (3, False), (1, False)):
        faults = locate(table(8, {(0, b): 20.0 for b in range(1, 1 + slow_pairs)}))
        assert faults is not None
        assert ([n.node for n in faults.nodes] == [0]) == blamed, slow_pairs
        assert len(faults.pairs) == (0 if blamed else slow_pairs)


def test_two_slow_nodes_do_not_hide_each_other() -> None:
    slow = {(a, b): 30.0 if 1 in (a, b) else 20.0 for a, b in combinations(range(6), 2) if {a, b} & {1, 4}}
    faults = locate(table(6, slow))
    assert faults is not None
    assert {n.node for n in faults.nodes} == {1, 4}


def test_groups_are_found_with_pairs_missing() -> None:
    values = table(10, {(a, b): 25.0 for a, b in combinations(range(10), 2) if (a < 4) != (b < 4)})
    values[0, 5] = values[5, 0] = values[2, 3] = values[3, 2] = np.nan
    faults = locate(values)
    assert faults is not None
    assert faults.split is not None
    assert {frozenset(faults.split.first), frozenset(faults.split.second)} == {
        frozenset(range(4)), frozenset(range(4, 10))}
    assert faults.split.kind == "between"
    assert (faults.nodes, faults.pairs) == ((), ())


def test_a_slow_pair_inside_groups_is_still_a_pair() -> None:
    slow = {(a, b): 25.0 for a, b in combinations(range(10), 2) if (a < 5) != (b < 5)} | {(1, 3): 12.0}
    faults = locate(table(10, slow))
    assert faults is not None
    assert faults.split is not None
    assert [p.pair for p in faults.pairs] == [(1, 3)]


def test_three_pairs_are_the_least() -> None:
    assert locate(table(2, {})) is None


# ---- the 17 nodes


@pytest.fixture(scope="module")
def seventeen() -> Diagnosis:
    return diagnose(read_measurements([str(shared("comm/xxrjun_17node_pairwise_summary.csv"))]).results)


def test_no_node_but_003_is_called_slow(seventeen: Diagnosis) -> None:
    assert [f.nodes for f in with_code(seventeen, "SL501")] == [("cnode2-003",)]
    said = " ".join(with_code(seventeen, "SL501")[0].finding.evidence)
    assert "send/receive at 4 GPUs a node: 11 of 15" in said
    assert "all-to-all at 4 GPUs a node: 4 of 8" in said


def test_the_pairs_that_are_slow_in_both_tests_at_one_gpu_are_listed(seventeen: Diagnosis) -> None:
    found = next(f for f in with_code(seventeen, "SL502") if "at 1 GPU a node" in f.finding.claim)
    expected = {("001", "004"), ("002", "003"), ("002", "006"), ("004", "006"), ("004", "009"), ("011", "012"),
                ("013", "016"), ("013", "017")}
    assert {(a[-3:], b[-3:]) for a, b in found.pairs} == expected
    assert "8 pairs" in found.finding.claim
    assert "all in all-to-all and send/receive" in found.finding.claim


def test_the_groups_at_eight_gpus_are_shown(seventeen: Diagnosis) -> None:
    (found,) = with_code(seventeen, "SL503")
    one = {f"cnode2-{n}" for n in ("001", "002", "003", "004", "006", "009", "012", "016", "017")}
    evidence = " ".join(found.finding.evidence)
    assert {frozenset(e.split(": ")[1].replace(" and ", ", ").split(", ")) for e in found.finding.evidence[:2]} == {
        frozenset(one), frozenset(set(seventeen.view.hosts) - one)}
    assert "23.5 GB/s and 23.5 GB/s inside, 14.4 GB/s between" in found.finding.claim
    assert "about 23.4 GB/s for cnode2-002, cnode2-003, cnode2-008, cnode2-009 and cnode2-016" in evidence
    assert "14.4 GB/s to 20.0 GB/s for the others" in evidence


def test_failed_and_absent_measurements_are_counted(seventeen: Diagnosis) -> None:
    (found,) = with_code(seventeen, "SL506")
    assert found.finding.claim.startswith("34 measurements of 810 failed, on 18 pairs of nodes; 6 combinations were "
                                          "not run")
    plain = document(seventeen)
    assert sum(f["times"] for f in plain["failed"]) == 34
    assert sum(len(n["pairs"]) for n in plain["not_run"]) == 6


# ---- findings


def test_times_of_a_report_name_the_straggler(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["comm", "doctor", "--times", "83610us,924us,377962us"]) == 0
    said = capsys.readouterr().out
    assert "SL504" in said
    assert "924.0 µs" in said
    assert main(["comm", "doctor", "--times", "950us,924us,990us"]) == 0
    assert "SL504" not in capsys.readouterr().out


def inspector(times_us: dict[int, int]) -> str:
    lines = [json.dumps({
        "header": {"id": "0x7f", "rank": rank, "n_ranks": len(times_us), "nnodes": 2},
        "metadata": {"inspector_output_format_version": "v4.0", "hostname": f"h{rank // 4}", "pid": 1},
        "coll_perf": {"coll": "AllReduce", "coll_sn": sn, "coll_msg_size_bytes": 1 << 20, "coll_exec_time_us": us + sn,
                      "coll_timing_source": "kernel_gpu", "coll_busbw_gbs": 9.0},
    }) for rank, us in times_us.items() for sn in range(5)]
    return "\n".join(lines)


def test_the_rank_that_waits_least_is_the_late_one() -> None:
    results = read_one(inspector({rank: 400 if rank == 5 else 2000 for rank in range(8)}), "a.log")
    assert results is not None
    (found,) = with_code(diagnose(results), "SL504")
    assert (found.ranks, found.nodes) == ((5,), ("h1",))


@pytest.mark.parametrize(("times", "ranks"), [
    ({rank: (900.0, 910.0, 930.0) if rank != 5 else (905.0, 1800.0, 9000.0) for rank in range(8)}, (5,)),
    ({rank: (900.0, 3000.0, 9000.0) if rank != 2 else (900.0, 950.0, 1000.0) for rank in range(8)}, (2,)),
    (dict.fromkeys(range(8), (900.0, 3000.0, 9000.0)), ()),
])
def test_ranks_of_deepep_are_told_apart(times: dict[int, tuple[float, ...]], ranks: tuple[int, ...]) -> None:
    lines = [f"[rank {rank}] Dispatch + combine bandwidth: 8.00 GB/s, avg_t={mean:.2f} us, min_t={least:.2f} us, "
             f"max_t={most:.2f} us" for rank, (least, mean, most) in times.items()]
    results = read_one("\n".join(lines), "low_latency.txt")
    assert results is not None
    (found,) = with_code(diagnose(results), "SL504")
    assert found.ranks == ranks


def test_a_slow_wire_is_no_straggler() -> None:
    line = "[rank {}] Dispatch + combine bandwidth: 8.00 GB/s, avg_t=2750.00 us, min_t=2600.00 us, max_t=2900.00 us"
    results = read_one("\n".join(line.format(rank) for rank in range(8)), "low_latency.txt")
    assert results is not None
    assert with_code(diagnose(results), "SL504") == []


def test_ranks_that_wait_alike_name_nobody() -> None:
    results = read_one(inspector({rank: 2000 + 10 * rank for rank in range(8)}), "a.log")
    assert results is not None
    assert with_code(diagnose(results), "SL504") == []


def series(rates: list[float], first_extra_s: float = 0.0) -> list[Result]:
    """Results of one test from 1 MiB on, GB/s by size, out of place and in place alike but for the first."""
    where = Placement(2, 1, ("a", "b"))
    out = []
    for place in ("out-of-place", "in-place"):
        for k, rate in enumerate(rates):
            nbytes = 1 << (20 + k)
            seconds = nbytes / rate / 1e9 + (first_extra_s if k == 0 and place == "out-of-place" else 0.0)
            out.append(Result("time", "s", (seconds,), Message("send_recv", 2, nbytes), where, place))
    return out


def test_a_fall_with_size_is_a_cliff_and_a_plateau_is_none() -> None:
    (found,) = with_code(diagnose(series([20, 30, 38, 12, 11])), "SL505")
    assert "from 38.0 GB/s at 4 MiB to 12.0 GB/s at 8 MiB" in found.finding.claim
    assert with_code(diagnose(series([20, 30, 38, 36, 37])), "SL505") == []


def test_a_slow_first_size_is_warm_up() -> None:
    assert len(with_code(diagnose(series([20, 30, 38, 39], first_extra_s=1e-4)), "SL507")) == 1
    assert with_code(diagnose(series([20, 30, 38, 39])), "SL507") == []


def test_a_late_node_is_not_called_slow_and_stays_on_the_map() -> None:
    site = Site(nodes=5, gpus=2, late_nodes={3: 2e-3})
    results = [r for a, b, rail in site.runs() for r in read_one(log(site, a, b, rail), f"{a}{b}.log") or ()]
    found = diagnose(results)
    (late,) = with_code(found, "SL504")
    assert late.nodes == ("gpu-04",)
    assert with_code(found, "SL501") == with_code(found, "SL503") == []
    assert all("gpu-04" in t["hosts"] for t in document(found)["tables"])


def test_slow_nodes_that_are_alike_are_a_group() -> None:
    rates: dict[tuple[int, int], float | None] = {
        (a, b): (25.0 if b > 7 else 40.0) + 0.05 * a for a, b in combinations(range(1, 11), 2)}
    results = read_one(pairs_csv(rates), "pairs.csv")
    assert results is not None
    found = diagnose(results)
    assert with_code(found, "SL501") == []
    (group,) = with_code(found, "SL503")
    assert set(group.nodes) == {"n8", "n9", "n10"}


def test_a_node_alone_is_compared_with_nodes_alone() -> None:
    results = [Result("time", "s", (1e-3 * (1.3 if k == 4 else 1 + 0.001 * k),), Message("all_reduce", 8, 1 << 28),
                      Placement(1, 8, (f"n{k}",)), "in-place") for k in range(1, 6)]
    (found,) = with_code(diagnose(results), "SL501")
    assert found.nodes == ("n4",)
    assert "by itself" in found.finding.claim


def test_codes_are_in_order_and_each_has_its_page() -> None:
    docs = Path(__file__).parent.parent / "docs/findings"
    assert sorted(m.CODE for m in DIAGNOSES) == [f"SL{n}" for n in range(501, 509)]
    for module in DIAGNOSES:
        assert (docs / f"{module.CODE}.md").read_text("utf-8").startswith(f"# {module.CODE}: {module.TITLE}\n")


def test_the_page_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    import re

    with pytest.raises(SystemExit):
        main(["comm", "doctor", "--help"])
    options = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", capsys.readouterr().out))
    page = (Path(__file__).parent.parent / "docs/comm-doctor.md").read_text("utf-8")
    assert {option for option in options if f"`{option}" not in page} - {"-J", "-level"} == set()


# ---- views and the command


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.csv"
    path.write_text(pairs_csv({(a, b): None if (a, b) == (1, 2) else 20.0 if 3 in (a, b) else 40.0
                               for a, b in combinations(range(1, 7), 2)}))
    return path


def test_every_format_names_the_node(faulty: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for form in ("table", "md", "html", "json"):
        assert main(["comm", "doctor", str(faulty), "--format", form]) == 0
        said = capsys.readouterr().out
        assert "n3 is slow with" in said, form
        target = tmp_path / f"out.{form}"
        assert main(["comm", "doctor", str(faulty), "--format", form, "-o", str(target)]) == 0
        assert "n3 is slow with" in target.read_text("utf-8")
        assert capsys.readouterr().out == ""


def test_the_screen_is_eighty_columns_wide(faulty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["comm", "doctor", str(faulty)])
    said = capsys.readouterr().out
    assert max(len(line) for line in said.splitlines()) <= 80
    assert said.index("SL501") < said.index("tests") < said.index("GB/s\n  █")


def test_the_page_loads_and_runs_nothing(faulty: Path) -> None:
    results = read_one(faulty.read_text(), "pairs.csv")
    assert results is not None
    page = html(diagnose(results))
    assert page.isascii()
    assert "<script" not in page
    assert "default-src 'none'" in page
    body = page.split("</style>")[1]
    assert [word for word in ("http://", "https://", "src=", "url(", "@import") if word in body] == []
    assert page.count("<svg") == page.count("As a table, GB/s") == 1
    assert page.count("<rect") == 30


def test_names_that_are_markup_stay_text() -> None:
    results = [Result("average bus bandwidth", "B/s", (4e10 if "<b>" not in (a, b) else 1e10,),
                      Message("send_recv", 2, 1), Placement(2, 1, (a, b)))
               for a, b in combinations(("a|b", "<b>", "c*d", "e", "f"), 2)]
    found = diagnose(results)
    assert "<b>" not in html(found).split("<main>")[1].replace("<b>SL", "")
    assert "\\<b\\>" in markdown(found)


def test_a_text_map_says_the_shared_name_once() -> None:
    lines = text_map("t", ("gpu-01", "gpu-02", "gpu-10"), [[None, 1.0, 0.5], [1.0, None, 0.3], [0.5, 0.3, None]])
    assert "names after gpu-" in lines[1]
    assert lines[-3:] == ["  01   █ ░", "  02 █   ·", "  10 ░ ·"]


@pytest.mark.parametrize("arguments", [
    [], ["no-such-file.log"], ["--times", "1,2"], ["--times", "1us,2us,3us"], ["--on", "hgx-h1000", "x.log"],
])
def test_bad_input_is_one_line_and_exit_code_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["comm", "doctor", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1


def test_nothing_is_written_where_reading_failed(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("hello\n")
    assert main(["comm", "doctor", str(tmp_path / "x.log"), "-o", str(tmp_path / "out.txt")]) == 2
    assert not (tmp_path / "out.txt").exists()
