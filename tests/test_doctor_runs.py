"""Runs of many nodes and of single rails: what all slow ones share is named, in each form that logs come in."""

from __future__ import annotations

import json
import random
from itertools import combinations
from pathlib import Path

import pytest
from planted_logs import Site, log

from sublight.cli import main
from sublight.comm.doctor.diagnosis import Diagnosis, diagnose
from sublight.comm.doctor.wording import command
from sublight.observe.measurements import read_measurements, read_one
from sublight.observe.nccl_tests import read_text
from sublight.show.doctor import text_map

ACCUSING = ("SL501", "SL502", "SL503", "SL504")


def run(hosts: tuple[str, ...], gbps: float, *, gpus: int = 1, device: int = 0, seed: int = 0, before: str = "",
        after: str = "") -> str:
    """Text of an all-gather on these nodes, bus bandwidth about so many GB/s; lines before it and after its ranks."""
    chance = random.Random(f"{hosts} {seed}")
    ranks = [(host, device + g) for host in hosts for g in range(gpus)]
    lines = [before, "# Collective test starting: all_gather_perf",
             "# nThread 1 nGpus 1 minBytes 67108864 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20"]
    lines += [f"#  Rank {k:2} Group  0 Pid {100 + k:6} on {host:>10} device {d:2} [0000:{0x19 + 17 * d:02x}:00] GPU"
              for k, (host, d) in enumerate(ranks)]
    lines += [after, "#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong"]
    part = (len(ranks) - 1) / len(ranks)
    for size in (1 << k for k in range(26, 31)):
        cells = ""
        for _ in range(2):
            seconds = size * part / (gbps * 1e9) * (1 + chance.gauss(0, 0.01))
            cells += f" {seconds * 1e6:.1f} {size / seconds / 1e9:.2f} {size * part / seconds / 1e9:.2f} 0"
        lines.append(f"{size:12} {size // 4:12} float none -1 {cells}")
    return "\n".join([*lines, f"# Avg bus bandwidth    : {gbps:g}", ""])


def diagnosed(texts: list[str]) -> Diagnosis:
    return diagnose([r for k, text in enumerate(texts) for r in read_one(text, f"{k}.log") or ()])


def said(found: Diagnosis) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return [(f.finding.code, f.nodes, f.rails) for f in found.findings if f.finding.code in ACCUSING]


HOSTS = tuple(f"fd00:aa::{k:x}" for k in range(16, 24))


@pytest.mark.parametrize("bad", [None, 0, 5])
def test_leaving_out_each_node_in_turn_shows_the_slow_one(bad: int | None) -> None:
    sets = [HOSTS, *(HOSTS[:k] + HOSTS[k + 1:] for k in range(8))]
    slow = None if bad is None else HOSTS[bad]
    found = diagnosed([run(hosts, 34 if slow in hosts else 40, gpus=8, seed=k) for k, hosts in enumerate(sets)])
    assert said(found) == ([] if slow is None else [("SL501", (slow,), ())])


def test_random_halves_show_the_slow_node_and_fixed_quarters_its_quarter() -> None:
    chance = random.Random(1)
    halves = [tuple(sorted(chance.sample(HOSTS, 4))) for _ in range(12)]
    assert said(diagnosed([run(h, 25 if HOSTS[2] in h else 40, seed=k) for k, h in enumerate(halves)])) == [
        ("SL501", (HOSTS[2],), ())]
    nodes = tuple(f"n{k}" for k in range(12))
    fixed = [nodes[k: k + 3] for k in (0, 3, 6, 9)]
    found = diagnosed([run(h, 25 if "n4" in h else 40) for h in fixed])
    assert said(found) == [("SL503", ("n3", "n4", "n5"), ())]
    assert found.verdict.startswith("one of 3 nodes, or what they share, is slow")


def test_a_rail_in_runs_over_all_nodes() -> None:
    by_device = [run(HOSTS, 32 if rail == 3 else 40, device=rail) for rail in range(8)]
    assert said(diagnosed(by_device)) == [("SL503", (), ("3@4c",))]
    by_port = [run(HOSTS, 32 if rail == 3 else 40, gpus=8, before=f"mpirun -x NCCL_IB_HCA=mlx5_{rail} all_gather_perf")
               for rail in range(8)]
    assert said(diagnosed(by_port)) == said(diagnosed(["\n".join(by_port)])) == [("SL503", (), ("mlx5_3",))]
    assert said(diagnosed([run(HOSTS, 40, device=rail, seed=rail) for rail in range(8)])) == []


@pytest.mark.parametrize(("before", "after"), [
    ("mpirun -np 16 -x NCCL_IB_HCA=mlx5_{} ./all_gather_perf -b 64M", ""), ("+ export NCCL_IB_HCA='=mlx5_{}:1'", ""),
    ("", "a:1:1 [0] NCCL INFO NCCL_IB_HCA set to mlx5_{}"),
    ("", "a:1:1 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_{}")])
def test_one_file_with_a_test_on_each_port(before: str, after: str) -> None:
    text = "\n".join(run(("a", "b"), 40, gpus=8, before=before.format(k), after=after.format(k)) for k in range(4))
    rails = [r.variant.partition("rail mlx5_")[2][0] for r in read_text(text, "x.log") if r.name == "time"]
    assert "".join(rails) == "0" * 10 + "1" * 10 + "2" * 10 + "3" * 10


@pytest.mark.parametrize("ports", ["mlx5", "mlx5_0,mlx5_1", "^mlx5_2"])
def test_more_than_one_port_is_no_rail(ports: str) -> None:
    text = run(("a", "b"), 40, gpus=8, before=f"mpirun -x NCCL_IB_HCA={ports} ./all_gather_perf")
    assert all("rail" not in r.variant for r in read_text(text, "x.log"))


def test_a_port_of_one_launch_is_not_that_of_the_next() -> None:
    text = run(("a", "b"), 40, gpus=8, before="mpirun -x NCCL_IB_HCA=mlx5_1 ./all_gather_perf") + run(
        ("a", "b"), 40, gpus=8, before="mpirun ./all_gather_perf")
    assert [("rail" in r.variant) for r in read_text(text, "x.log") if r.name == "time"] == [True] * 10 + [False] * 10


@pytest.mark.parametrize("form", ["rail{}/{}_{}.log", "{1}_{2}_mlx5_{0}.log"])
def test_a_rail_by_its_folder_or_file(form: str, tmp_path: Path) -> None:
    for rail in range(4):
        for a, b in combinations(("a", "b", "c", "d"), 2):
            path = tmp_path / form.format(rail, a, b)
            path.parent.mkdir(exist_ok=True)
            path.write_text(run((a, b), 30 if rail == 2 else 40, gpus=8, seed=rail))
    assert said(diagnose(read_measurements([str(tmp_path)]).results)) == [("SL503", (), ("2",))]


def test_pairs_that_were_not_run_are_not_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = Site(nodes=6, missing=0.1, seed=3)
    for a, b, rail in site.runs():
        (tmp_path / f"{a}_{b}.log").write_text(log(site, a, b, rail))
    assert len(site.runs()) < 15
    assert main(["comm", "doctor", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "not run" in text
    assert "failed." not in text
    assert "0 measurements" not in text


@pytest.mark.parametrize("nodes", [6, 8, 12])
def test_two_nodes_that_are_slow_alike_are_two_nodes_and_three_a_group(nodes: int) -> None:
    for number, codes in ((2, ["SL501", "SL501"]), (3, ["SL503"])):
        slow = dict.fromkeys(range(1, 1 + number), 0.3)
        site = Site(nodes=nodes, seed=5, noise_line=0.02, noise_run=0.01, slow_nodes=slow)
        found = diagnosed([log(site, a, b, rail) for a, b, rail in site.runs()])
        accused = [f for f in found.findings if f.finding.code in ACCUSING]
        assert [f.finding.code for f in accused] == codes
        assert {n for f in accused for n in f.nodes} == {site.name(n) for n in site.slow_nodes}


def test_a_command_to_run_again_quotes_addresses() -> None:
    assert "-H [fd00::1]:8,gpu-1:8 " in command(("fd00::1", "gpu-1"), 8, "all_reduce")


def test_the_only_pair_of_a_node_is_said_to_be_so_and_is_the_node_s_where_that_is_known() -> None:
    nodes = tuple(f"n{k}" for k in range(7))
    star = [run(("n0", other), 24 if other == "n3" else 40, gpus=8) for other in nodes[1:]]
    (found,) = [f for f in diagnosed(star).findings if f.finding.code in ACCUSING]
    assert found.pairs == (("n0", "n3"),)
    assert "n3 was measured with one other node only: the node or the pair" in found.finding.caveats
    others = [run(pair, 24 if "n3" in pair else 40, gpus=4) for pair in combinations(nodes, 2)]
    assert said(diagnosed(star + others)) == [("SL501", ("n3",), ())]


def test_a_late_process_of_a_json_file_is_on_a_host() -> None:
    per = [[100.0 if process == 3 else 130.0] * 5 for process in range(4)]
    rows = [{"size": 1 << 20, "out_of_place": {"time": 130.0, "bus_bw": 8.0, "nwrong": 0},
             "out_of_place_per_iter": {"times_us": [130.0] * 5, "per_process_max_times_us": per}}]
    hosts = ("a", "b", "a", "b")             # ranks dealt out in turn
    devices = [{"hostname": host, "device": k // 2, "device_hex": "0000:19:00", "device_info": "GPU"}
               for k, host in enumerate(hosts)]
    text = json.dumps({"nccl_version": 22807, "args": ["all_reduce_perf"], "config": {"devices": devices},
                       "results": rows, "average_bus_bandwidth": {"bandwidth": 8.0}})
    assert [(f.nodes, f.ranks) for f in diagnosed([text]).findings if f.finding.code == "SL504"] == [(("b",), (3,))]


def test_too_few_nodes_to_name_one_are_not_called_healthy() -> None:
    three = [run(pair, 20 if "b" in pair else 40) for pair in combinations("abc", 2)]
    found = diagnosed(three)
    assert said(found) == []
    assert found.verdict.startswith("No fault named, but all-gather spans 20.0 GB/s to 40.")
    assert diagnosed([run(pair, 40) for pair in combinations("abc", 2)]).verdict == "Nothing is slow among 3 nodes."


def test_a_map_of_names_with_a_domain_has_a_head() -> None:
    hosts = tuple(f"p5-{k:02}.eu.internal" for k in range(3))
    lines = text_map("t", hosts, [[None, 1.0, 0.5], [1.0, None, 1.0], [0.5, 1.0, None]])
    assert lines[1].endswith("names after p5-, before .eu.internal")
    assert lines[2:5] == ["     0 0 0", "     0 1 2", "  00   █ ░"]
