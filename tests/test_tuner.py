"""Regret, rows for tuner plugins, and what is wrong with such rows.

The reader below is written from the documented grammar (plugins/tuner/example/README.md at 2.30.7) and what plugin.c
does with a call; it shares nothing with the writer.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from conftest import shared
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl import tuned

from sublight.cli import main
from sublight.comm.nccl.choice import choose, model, winners
from sublight.comm.tuner.grammar import nccl, ncclx
from sublight.comm.tuner.lint import lint
from sublight.comm.tuner.regret import Regret, Run, pinned, regrets, rows, runs_of, spare
from sublight.errors import InputError
from sublight.observe.forced_runs import forced_words, looks_like, read_table
from sublight.show.tuner import regret as shown_regret

Regrets = tuple[Regret, ...]


# ---- an independent reader


COLLECTIVES = ["broadcast", "reduce", "allgather", "reducescatter", "allreduce"]
ALGORITHMS = ["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"]


@dataclass
class Config:
    fields: list[str]

    def matches(self, collective: str, nbytes: int, nodes: int, ranks: int) -> bool:
        what, low, high, *_, of_nodes, of_ranks, pipe, reg = self.fields
        return (what == collective and int(low) <= nbytes <= int(high) and int(of_nodes) in (-1, nodes)
                and int(of_ranks) in (-1, ranks) and pipe == "-1" and reg == "-1")


def read_config(text: str) -> list[Config]:
    """By the README: ten comma-separated fields, # comments, known tokens only."""
    out = []
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        fields = line.split(",")
        assert len(fields) == 10
        assert len(line) < 256
        assert fields[0] in COLLECTIVES
        assert 0 <= int(fields[1]) <= int(fields[2]) < 1 << 64
        assert fields[3] in ALGORITHMS
        assert fields[4] in ("ll", "ll128", "simple")
        assert int(fields[5]) == -1 or 1 <= int(fields[5]) <= 64
        assert all(int(f) == -1 or int(f) >= 1 for f in fields[6:9])
        assert fields[9] in ("-1", "0", "1")
        out.append(Config(fields))
    return out


def looked_up(configs: list[Config], collective: str, nbytes: int, nodes: int, ranks: int) -> tuple[str, str] | None:
    return next(((c.fields[3], c.fields[4]) for c in configs if c.matches(collective, nbytes, nodes, ranks)), None)


def token(name: str) -> str:
    return {"CollNetDirect": "collnet_direct", "NVLSTree": "nvls_tree"}.get(name, name.lower())


def run(nbytes: int, algorithm: str | None, protocol: str | None, us: float, *, channels: int | None = None,
        collective: str = "all_reduce", nodes: int = 4, ranks: int = 32) -> Run:
    return Run(collective, nodes, ranks, nbytes, algorithm, protocol, channels, us * 1e-6)


# ---- what is written reads back


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]), st.integers(1, 1 << 40))
def test_a_pinned_file_makes_the_plugin_take_what_the_model_takes(collective: str, nbytes: int) -> None:
    tuning = tuned(nodes=4)
    every = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]
    configs = read_config(nccl(pinned(tuning, every)))
    function = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter"}.get(
        collective, collective.title())
    algorithm, protocol = winners(tuning, function, np.array([nbytes]))[0]
    assert looked_up(configs, collective.replace("_", ""), nbytes, 4, 32) == (token(algorithm), token(protocol))
    assert looked_up(configs, collective.replace("_", ""), nbytes, 2, 16) is None


def test_rows_take_the_best_run_between_geometric_middles_and_the_model_elsewhere() -> None:
    tuning = tuned(nodes=4)
    found = regrets([run(1 << 20, "Ring", "LL128", 60), run(1 << 20, "Tree", "LL128", 80),
                     run(1 << 24, "Tree", "Simple", 150), run(1 << 24, "NVLSTree", "Simple", 200)], tuning)
    configs = read_config(nccl(rows(found, tuning, least=0.02)))
    expected = {1 << 20: ("ring", "ll128"), (1 << 22) - 1: ("ring", "ll128"), (1 << 22) + 1: ("tree", "simple"),
                1 << 40: ("tree", "simple"), 512: ("tree", "ll"), 200_000: ("tree", "ll128")}
    assert {n: looked_up(configs, "allreduce", n, 4, 32) for n in expected} == expected
    assert looked_up(configs, "allgather", 1 << 20, 4, 32) is None


def test_a_gain_within_the_noise_keeps_nccls_own_choice() -> None:
    tuning = tuned(nodes=4)
    own = choose(tuning, "AllReduce", 1 << 30).best
    found = regrets([run(1 << 30, own.algorithm, own.protocol, 1000), run(1 << 30, "Tree", "Simple", 990)], tuning)
    for least, want in ((0.02, own.algorithm), (0.005, "Tree")):
        assert rows(found, tuning, least=least)[-1].algorithm == want


def test_without_a_model_nothing_is_said_of_sizes_below_the_smallest_measured() -> None:
    found = regrets([run(4096, None, None, 50), run(4096, "Tree", "LL", 40)])
    configs = read_config(nccl(rows(found, None, least=0.02)))
    assert looked_up(configs, "allreduce", 4095, 4, 32) is None
    assert looked_up(configs, "allreduce", 4096, 4, 32) == ("tree", "ll")


def test_ncclx_rows_are_intervals_of_the_share_of_a_rank_without_holes() -> None:
    lines = [line for line in ncclx(pinned(tuned(nodes=4), ["all_reduce"])).splitlines() if not line.startswith("#")]
    reach = -1
    for line in lines:
        collective, rest = line.split(",[", 1)
        bounds, _, fields = rest.partition("]" if "]" in rest else ")")
        low, high = bounds.split(",")
        assert (collective, int(low)) == ("allreduce", reach + 1)
        assert fields.split(",")[1:] == [*fields.split(",")[1:3], "16", "4", "8"]
        reach = int(high) if high else 1 << 64
    assert reach == 1 << 64


# ---- regret


def test_regret_is_the_loss_of_the_own_choice_against_the_best_run() -> None:
    runs = [run(1 << 20, None, None, 90), run(1 << 20, "Ring", "LL", 120), run(1 << 20, "Tree", "LL128", 60)]
    [found] = regrets(runs)
    assert (found.best.name, found.own, round(found.loss or 0, 3)) == ("Tree/LL128", "unforced run", 0.5)


def test_with_nothing_to_compare_there_is_no_regret() -> None:
    [found] = regrets([run(1 << 20, None, None, 90)])
    assert found.loss is None
    assert "Nothing to compare" in shown_regret([found], "table")


def test_what_the_model_takes_stands_for_an_unforced_run() -> None:
    tuning = tuned(nodes=4)
    [found] = regrets([run(1 << 10, "Tree", "LL", 40), run(1 << 10, "Ring", "LL", 30)], tuning)
    assert (found.own, found.best.name, round(found.loss or 0, 3)) == ("Tree/LL", "Ring/LL", 0.333)
    [unmeasured] = regrets([run(1 << 10, "Ring", "LL", 30)], tuning)
    assert (unmeasured.own, unmeasured.loss) == ("Tree/LL", None)
    with pytest.raises(InputError, match="is not known"):
        regrets([run(1 << 10, "Ring", "LL", 30)])
    with pytest.raises(InputError, match="is not known"):
        regrets([run(1 << 10, "Ring", "LL", 30, nodes=2, ranks=16)], tuning)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
def test_what_nvls_does_not_reduce_has_rows_too(collective: str) -> None:
    tuning = tuned(nodes=2)
    taken = pinned(tuning, [collective])
    last = spare(taken, tuning)
    assert bool(last) == any(row.algorithm.startswith("NVLS") for row in taken)
    assert not any(row.algorithm.startswith("NVLS") for row in last)
    function = {"all_reduce": "AllReduce", "reduce_scatter": "ReduceScatter"}[collective]
    for power in range(4, 36):
        left = [row for row in (*taken, *last)
                if row.low <= 1 << power <= row.high and not row.algorithm.startswith("NVLS")]
        best = choose(tuning, function, 1 << power, dtype="int8").best
        assert [(row.algorithm, row.protocol) for row in left] == [(best.algorithm, best.protocol)]
    assert [m for m in lint(nccl((*taken, *last)), tuning) if m.wrong] == []


# ---- expected times instead of runs


def on_8(device: str) -> Regrets:
    from sublight.cluster import parse
    from sublight.comm.nccl.graph import graphs
    from sublight.comm.topology.from_cluster import system_of
    from sublight.comm.tuner.expected import expected_runs

    cluster = parse(f"8x{device}")
    tuning = model(graphs(system_of(cluster), gpus=8))
    return regrets(expected_runs(tuning, cluster, [1 << power for power in range(19, 30)]), tuning)


@pytest.mark.parametrize("device", ["H100", "B200"])
def test_expected_times_show_where_nvls_is_taken_too_early_or_rightly(device: str) -> None:
    found = {regret.nbytes: regret for regret in on_8(device)}
    assert found[1 << 19].own == found[1 << 19].best.name == "Ring/LL"           # only one candidate: no regret
    assert found[1 << 29].own == found[1 << 29].best.name == "NVLS/Simple"
    losses = {nbytes: regret.loss for nbytes, regret in found.items() if regret.loss}
    assert all(1 << 21 <= nbytes <= 1 << 27 for nbytes in losses)                # a little early, and no more than that
    assert 0.02 < max(losses.values()) < 0.3
    assert found[max(losses, key=lambda nbytes: losses[nbytes])].best.algorithm == "Ring"


def test_expected_times_whose_intervals_meet_say_nothing() -> None:
    from sublight.cluster import parse
    from sublight.comm.expect import expect
    from sublight.work import Message

    for regret in on_8("B200"):
        message = Message("all_reduce", 8, regret.nbytes)
        fp16, int8 = (expect(message, parse("8xB200"), dtype=dtype) for dtype in ("bf16", "int8"))
        apart = fp16.high < int8.low or int8.high < fp16.low
        assert (regret.loss is not None) == (apart and regret.own.startswith("NVLS"))


def test_expected_times_do_not_tell_algorithms_apart_across_nodes() -> None:
    from sublight.cluster import parse
    from sublight.comm.tuner.expected import expected_runs

    with pytest.raises(InputError, match="inside one NVLink domain"):
        expected_runs(tuned(nodes=2), parse("2x8xH100"), [1 << 20])


# ---- tables of runs


HEADER = "collective,size_bytes,algorithm,protocol,channels,nodes,ranks,pipeOps,regBuff,cost_metric,bandwidth_gbps"
TABLE = HEADER + """,latency_us
allreduce,1024,tree,simple,2,1,8,-1,-1,0.15,45.2,12.5
allreduce,1024,nvls_tree,ll128,-1,2,16,-1,-1,0.12,52.1,10.8
all_reduce,4194304,default,,,2,16,-1,-1,0,100,
"""


def test_a_table_as_nccls_script_reads_it_becomes_runs() -> None:
    assert looks_like(TABLE)
    one, two, three = runs_of(read_table(TABLE, "t.csv"))
    assert (one.algorithm, one.protocol, one.channels, one.nodes, one.ranks) == ("Tree", "Simple", 2, 1, 8)
    assert [one.seconds, two.seconds] == pytest.approx([12.5e-6, 10.8e-6])
    assert (two.algorithm, two.protocol, two.channels) == ("NVLSTree", "LL128", None)
    assert three.algorithm is None
    assert three.seconds == pytest.approx(4194304 / 100e9)


@pytest.mark.parametrize(("change", "words"), [
    (("tree", "trea"), "row 2: no algorithm 'trea'; nearest: tree"), (("1024", "1K"), "row 2: bytes is '1K'"),
    (("12.5", "-1"), "row 2: no time"), (("ranks", "rank"), "nearest: ranks"),
    (("2,1,8", "2,3,8"), "8 ranks on 3 nodes"),
    (("simple", "fast"), "no protocol 'fast'")])
def test_a_wrong_table_is_named_by_row_and_column(change: tuple[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_table(TABLE.replace(*change, 1), "t.csv")


def test_what_was_forced_is_said_as_the_variables_say_it() -> None:
    assert [forced_words(w) for w in ("ring/ll128", "NVLSTree", "default")] == ["Ring/LL128/", "NVLSTree//", "default"]
    with pytest.raises(InputError, match="nearest: ring"):
        forced_words("rng/simple")


# ---- lint


GOOD = "allreduce,0,18446744073709551615,ring,simple,8,2,16,-1,-1"


def linted(*lines: str) -> list[str]:
    return [f"{m.line}: {m.text}" for m in lint("\n".join(lines)) if "no row for" not in m.text]


def test_a_good_row_is_not_complained_of() -> None:
    assert linted("# a comment", "", GOOD) == []
    assert not any(m.wrong for m in lint(nccl(pinned(tuned(nodes=4), ["all_reduce", "broadcast"]))))


@pytest.mark.parametrize(("line", "words"), [
    (GOOD.replace("ring", "Tree"), "no algorithm 'Tree': the plugin silently takes ring (meant: tree?)"),
    (GOOD.replace("allreduce", "alltoall"), "no collective 'alltoall': the plugin silently takes allreduce"),
    (GOOD.replace("simple", "LL"), "no protocol 'LL': the plugin silently takes simple (meant: ll?)"),
    (GOOD.replace(",8,", ",-1,"), "plugin.c hands NCCL 1"),
    (GOOD.replace(",8,", ",65,"), "channels 65: expected 1 to 64"),
    (GOOD.replace("18446744073709551615", "4294967295"), "4294967295 is not all sizes"),
    (GOOD.replace("18446744073709551615", "64K"), "max_bytes '64K' is read as 64"),
    (GOOD.replace(",0,", ",900,").replace("18446744073709551615", "800"), "never matches: min_bytes 900 is above"),
    (GOOD.replace(",2,16", ",16,2"), "never matches: 2 ranks on 16 nodes"),
    (GOOD.replace(",2,16", ",0,16"), "never matches: nNodes 0"),
    (GOOD.replace("allreduce", "broadcast").replace("ring", "tree"), "NCCL has no tree for broadcast"),
    (GOOD.replace("ring,simple", "nvls,ll"), "nvls runs with simple only"),
    (GOOD.replace("ring", "pat"), "NCCL has no pat for allreduce"),
    (GOOD.replace("ring", "nvls_tree").replace(",2,16", ",1,8"), "nvls_tree is for two nodes or more"),
    (GOOD.replace(",8,", ",,"), "an empty field"),
    ("allreduce,0,10,ring", "4 fields, expected 8 to 10"),
    (" # note", "a comment must begin in the first column"),
    (GOOD + " " * 250, "longer than 255 bytes"),
    ("collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks", "a header without #")])
def test_each_mistake_is_named(line: str, words: str) -> None:
    assert any(words in text for text in linted(line, GOOD)), linted(line, GOOD)


def test_the_first_row_that_matches_hides_later_ones() -> None:
    wide, narrow = "allreduce,0,1000,ring,ll,4,-1,-1", "allreduce,500,900,tree,ll,4,2,16"
    assert "2: never counts: line 1 matches first" in linted(wide, narrow)
    assert not any("never counts" in text for text in linted(narrow, wide))
    assert any("from 500 to 1000 bytes line 1 matches first" in text
               for text in linted(wide, wide.replace("0,1000", "500,2000")))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(
    st.sampled_from(["allreduce", "broadcast"]), st.integers(0, 6), st.integers(0, 6),
    st.sampled_from(["ring", "tree"]), st.sampled_from([-1, 1, 2]), st.sampled_from([-1, 1, 2, 4]),
), min_size=1, max_size=5))
def test_a_row_that_is_said_never_to_count_is_never_what_the_plugin_takes(
    drawn: list[tuple[str, int, int, str, int, int]],
) -> None:
    lines = [f"{what},{low},{high},{algorithm},simple,4,{nodes},{ranks}"
             for what, low, high, algorithm, nodes, ranks in drawn]
    dead = {m.line for m in lint("\n".join(lines)) if m.text.startswith(("never", "no effect"))}
    for what in ("allreduce", "broadcast"):
        for nbytes, nodes, ranks in itertools.product(range(8), (1, 2, 3), (1, 2, 4)):
            for number, (of, low, high, algorithm, of_nodes, of_ranks) in enumerate(drawn, 1):
                matches = (of == what and low <= nbytes <= high and of_nodes in (-1, nodes) and of_ranks in (-1, ranks))
                if matches and ranks >= nodes and (what == "allreduce" or algorithm == "ring"):
                    assert number not in dead, (lines, nbytes, nodes, ranks)
                    break


def test_a_row_that_nccl_never_offers_hides_nothing() -> None:
    never = "broadcast,0,1000,tree,ll,4,-1,-1"
    assert not any("never counts" in text for text in linted(never, never.replace("tree", "ring")))


def test_sizes_and_collectives_without_a_row_get_one_channel() -> None:
    texts = [m.text for m in lint("allreduce,10,99,ring,ll,4,-1,-1\nallreduce,200,300,ring,ll,4,-1,-1\n")]
    assert "allreduce of this job has no row for bytes 0 to 9, 100 to 199, 301 and more: one channel there" in texts
    assert "no row for allgather, broadcast, reduce, reducescatter: one channel there" in texts


def test_with_a_topology_rows_are_named_that_it_rules_out() -> None:
    row = "allreduce,0,18446744073709551615,nvls,simple,8,4,32"
    assert not any("topology" in m.text for m in lint(row))
    words = "no effect on this topology: NVLS across nodes needs CollNet"
    assert any(words in m.text for m in lint(row, tuned(nodes=4)))
    assert not any("topology" in m.text for m in lint(row, tuned(nodes=2)))


# ---- the command


def test_the_command_shows_regret_and_writes_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, out = tmp_path / "runs.csv", tmp_path / "tuner.conf"
    table.write_text("collective,bytes,algorithm,protocol,nodes,ranks,time_us\nall_reduce,1048576,default,,4,32,90\n"
                     "all_reduce,1048576,Ring,LL,4,32,120\nall_reduce,1048576,Tree,LL128,4,32,60\n")
    assert main(["comm", "tuner", "--runs", str(table)]) == 0
    assert "50.0 % longer than Tree/LL128" in " ".join(capsys.readouterr().out.split())
    assert main(["comm", "tuner", "--runs", str(table), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["loss"] == pytest.approx(0.5)
    topology = str(shared("comm/synthetic_h100_8.xml"))
    job = ["comm", "tuner", topology, "--nodes", "4"]
    assert main([*job, "--runs", str(table), "--emit", "nccl", "-o", str(out)]) == 0
    configs = read_config(out.read_text())
    assert looked_up(configs, "allreduce", 1048576, 4, 32) == ("tree", "ll128")
    for collective in COLLECTIVES:
        assert all(looked_up(configs, collective, nbytes, 4, 32) for nbytes in (0, 1 << 20, 1 << 50))
    assert main([*job, "--lint", str(out)]) == 0


def test_output_of_nccl_tests_is_read_with_what_was_forced(capsys: pytest.CaptureFixture[str]) -> None:
    log = shared("comm/xxrjun_nccl_N1_G8_cnode3-005.log")
    assert main(["comm", "tuner", "8xH100", "--runs", f"default={log}", "--runs", f"Ring/Simple={log}"]) == 0
    captured = capsys.readouterr()
    assert "NVLS/Simple (as predicted)" in captured.out
    assert "all_to_all, send_recv left out" in captured.err
    assert "all_to_all" not in captured.out


def test_runs_on_hosts_that_nvlink_joins_belong_to_one_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("collective,bytes,algorithm,protocol,nodes,ranks,time_us\nall_reduce,1073741824,NVLS,Simple,2,8,3000\n"
                     "all_reduce,1073741824,Ring,Simple,2,8,2900\n")
    assert main(["comm", "tuner", "2x4xGB200", "--runs", str(table)]) == 0
    assert "all_reduce on 1 node, 8 ranks" in capsys.readouterr().out


def test_lint_exits_with_1_where_a_row_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.conf").write_text(GOOD.replace("ring", "Tree") + "\n")
    assert main(["comm", "tuner", "--lint", str(tmp_path / "t.conf")]) == 1
    assert "line 1: wrong" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [
    [], ["--runs", "/nowhere.csv"], ["--emit", "nccl"], ["--lint", "/nowhere"],
    ["8xH100", "--emit", "nccl", "--least", "nan"], ["--lint", str(Path(__file__)), "--emit", "nccl"],
    ["8xH100", "--emit", "nccl", "--format", "json"]])
def test_nothing_to_do_or_to_read_is_one_line_and_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["comm", "tuner", *arguments]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
