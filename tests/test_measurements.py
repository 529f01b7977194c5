"""Readers of communication logs: what each line becomes, what broken files leave, what is never shown."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import pytest
from conftest import shared
from planted_logs import Site, csv, log

from sublight.errors import InputError
from sublight.observe.measurements import read_measurements, read_one
from sublight.observe.nccl_tests import CUT_SHORT, WRONG
from sublight.observe.pairwise import host_list
from sublight.result import Result

SITE = Site(nodes=3, gpus=2, sizes=(1 << 20, 1 << 21, 1 << 22))


def only(results: tuple[Result, ...] | None, **wanted: object) -> list[Result]:
    assert results is not None
    return [r for r in results if all(getattr(r, key) == value for key, value in wanted.items())]


# ---- text of nccl-tests


def test_every_cell_of_a_table_is_read() -> None:
    results = read_one(log(SITE, 0, 1, 0), "run.log")
    times = only(results, name="time")
    assert len(times) == 2 * 3 * 2
    assert {r.message.collective for r in times if r.message} == {"all_to_all", "send_recv"}
    first = times[0]
    assert first.message is not None
    assert first.placement is not None
    assert (first.message.group, first.message.nbytes, first.variant) == (4, 1 << 20, "out-of-place")
    assert (first.placement.nodes, first.placement.gpus_per_node) == (2, 2)
    assert first.placement.hosts == ("gpu-01", "gpu-02")
    assert (first.placement.device, first.placement.library) == ("NVIDIA H100 80GB HBM3", "NCCL 2.28.7")
    assert first.samples[0] == pytest.approx(SITE.times(0, 1, 0, "alltoall")[0][1], rel=1e-3)
    averages = only(results, name="average bus bandwidth")
    assert [len(r.samples) for r in averages] == [1, 1]


def test_one_gpu_a_node_names_its_rail() -> None:
    site = Site(nodes=2, rails=2, sizes=(1 << 20, 1 << 21))
    times = only(read_one(log(site, 0, 1, 1), "x.log"), name="time")
    assert {r.variant.partition(", ")[2] for r in times} == {"rail 1@2c"}


def test_a_file_s_name_may_say_the_rail() -> None:
    site = Site(nodes=2, gpus=2, sizes=(1 << 20, 1 << 21))
    for name, rail in (("pair_rail3_a_b.log", "rail 3"), ("a_nic07.log", "rail 7"), ("trail3.log", "")):
        assert {r.variant.partition(", ")[2] for r in only(read_one(log(site, 0, 1, 0), name), name="time")} == {rail}


def test_a_failed_run_says_why_in_our_words() -> None:
    text = log(Site(nodes=2, failing=1.0, seed=3, sizes=(1 << 20, 1 << 21)), 0, 1, 0)
    failed = [r for r in read_one(text, "x.log") or () if r.failure]
    assert [r.failure for r in failed] == ["peer lost or network error"]
    assert failed[0].samples == ()


def test_a_table_that_breaks_off_keeps_its_rows_and_says_so() -> None:
    whole = log(SITE, 0, 1, 0)
    cut = whole[: whole.index("     4194304")]
    results = read_one(cut, "x.log")
    assert len(only(results, name="time")) == 4
    assert [r.failure for r in only(results, samples=())] == [CUT_SHORT]


def test_wrong_values_are_no_measurement() -> None:
    text = log(SITE, 0, 1, 0).replace("       0  ", "      17  ", 1)
    results = read_one(text, "x.log")
    assert results is not None
    assert sum(r.failure == WRONG for r in results) == 2          # the cell, and its test


@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "0: "])
def test_tags_of_launchers_are_taken_off(tag: str) -> None:
    plain = log(SITE, 0, 1, 0)
    tagged = "\n".join(tag + line for line in plain.splitlines())
    assert read_one(tagged, "x.log") == read_one(plain, "x.log")


def test_columns_are_found_by_their_heads() -> None:
    old = """# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20
#   Rank  0 Pid  12 on  alpha device  0 [0x07] Tesla V100
#   Rank  1 Pid  13 on  beta device  0 [0x07] Tesla V100
#                                              out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
     1048576        262144   float     sum   100.00   10.49   10.49  2e-07   200.00    5.24    5.24  2e-07
"""
    results = read_one(old, "all_reduce_perf.out")
    times = only(results, name="time")
    assert [r.variant.split(",")[0] for r in times] == ["out-of-place", "in-place"]
    assert [r.samples[0] for r in times] == pytest.approx([1e-4, 2e-4])
    assert {r.message.collective for r in results or () if r.message} == {"all_reduce"}


def test_per_iteration_columns_become_shortest_and_longest() -> None:
    text = """# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid 12 on alpha device  0 [0000:07:00] X
#  size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv% \
time algbw busbw #wrong i_min i_max i_p99 i_cv%
 1048576 262144 float sum -1 100.0 10.4 10.4 0 90.0 500.0 450.0 60.0 101.0 10.3 10.3 0 91.0 110.0 109.0 2.0
# Avg bus bandwidth    : 10.4
"""
    results = read_one(text, "x.log")
    assert [r.samples[0] for r in only(results, name="longest time")] == [pytest.approx(5e-4), pytest.approx(1.1e-4)]


def test_the_real_logs_are_read_whole() -> None:
    files = ("comm/xxrjun_nccl_N10_G4.log", "comm/xxrjun_pairwise_N2_G8_002_003.log")
    read = read_measurements([str(shared(file)) for file in files])
    tests = {(r.message.collective, r.placement.nodes) for r in read.results if r.message and r.placement}
    assert tests == {(c, 10) for c in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")} | {
        ("all_to_all", 2), ("send_recv", 2)}
    assert [r for r in read.results if r.failure] == []
    (row,) = [r for r in read.results if r.name == "time" and r.message and r.placement and r.placement.nodes == 2
              and r.message.collective == "send_recv" and r.message.nbytes == 17179869184 and r.variant == "in-place"]
    assert list(row.samples) == pytest.approx([1.134616])


# ---- JSON


def nccl_json() -> dict[str, object]:
    def body(us: float) -> dict[str, object]:
        return {"time": us, "alg_bw": 1.0, "bus_bw": 2.0, "nwrong": 0.0}

    devices = [{"rank": k, "group": 0, "pid": 1, "hostname": f"h{k}", "device": 0, "device_hex": "0000:1b:00",
                "device_info": "NVIDIA H200"} for k in range(2)]
    per_iter = {"times_us": [50.0, 60.0, 70.0], "min_us": 50.0, "max_us": 70.0,
                "per_process_max_times_us": [[50.0, 60.0, 70.0], [40.0, 41.0, 42.0]]}
    rows = [{"size": 1024 << k, "count": 1, "type": "float", "redop": "sum", "root": "-1", "out_of_place": body(60.0),
             "out_of_place_per_iter": per_iter, "in_place": body(61.0)} for k in range(3)]
    return {"version": 3, "args": ["/home/x/all_reduce_perf", "-b"], "env": ["SECRET_TOKEN=hunter2"],
            "nccl_version": 22903,
            "config": {"nthreads": 1, "ngpus": 1, "minimum_bytes": 1024, "maximum_bytes": 4096, "step_factor": 2,
                       "devices": devices},
            "results": rows, "out_of_bounds": {"count": 0}, "average_bus_bandwidth": {"bandwidth": 2.0},
            "errors": [], "end_time": "x"}


def test_json_has_iterations_and_processes() -> None:
    results = read_one(json.dumps(nccl_json()), "x.json")
    times = only(results, name="time", variant="out-of-place, rail 0@1b")
    assert [len(r.samples) for r in times] == [3, 3, 3]
    slow = only(results, name="time", variant="out-of-place, process 1, rail 0@1b")
    assert list(slow[0].samples) == pytest.approx([4e-5, 4.1e-5, 4.2e-5])
    assert "hunter2" not in repr(results)
    assert "/home/x" not in repr(results)


def test_json_of_a_killed_run_is_repaired() -> None:
    text = json.dumps(nccl_json())
    cut = text[: text.rindex('"in_place"')]
    results = read_one(cut, "x.json")
    assert {r.message.nbytes for r in only(results, name="time") if r.message} == {1024, 2048}
    assert [r.failure for r in results or () if r.failure] == [CUT_SHORT]
    with pytest.raises(InputError, match="breaks off before"):
        read_one(text[: text.index('"in_place"')], "x.json")


def test_inspector_lines_are_grouped_and_a_half_line_is_left() -> None:
    one = {"header": {"id": "0x1", "rank": 3, "n_ranks": 8, "nnodes": 2},
           "metadata": {"inspector_output_format_version": "v4.0", "hostname": "h1", "pid": 5},
           "coll_perf": {"coll": "ReduceScatter", "coll_sn": 7, "coll_msg_size_bytes": 4096, "coll_exec_time_us": 30,
                         "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 1.0, "coll_busbw_gbs": 0.9}}
    later = json.loads(json.dumps(one))
    later["coll_perf"] |= {"coll_sn": 8, "coll_exec_time_us": 40}
    by_cpu = json.loads(json.dumps(one))
    by_cpu["coll_perf"] |= {"coll_sn": 9, "coll_timing_source": "collective_cpu"}
    text = "\n".join(map(json.dumps, (later, one, by_cpu))) + '\n{"header": {"id": "0x1", "ra'
    (time,) = only(read_one(text, "x.log"), name="time")
    assert list(time.samples) == pytest.approx([3e-5, 4e-5])
    assert (time.variant, time.message and time.message.collective) == ("rank 3, comm 0x1", "reduce_scatter")
    assert only(read_one(json.dumps(one, indent=2), "x.log"), name="time")[0].samples[0] == pytest.approx(3e-5)


# ---- DeepEP


@pytest.mark.parametrize(("line", "expected"), [
    ("[rank 3] Dispatch + combine bandwidth: 42.24 GB/s, avg_t=521.97 us, min_t=517.44 us, max_t=527.33 us",
     {("mean time", "dispatch + combine, rank 3", 521.97e-6), ("shortest time", "dispatch + combine, rank "
         "3", 517.44e-6),
      ("longest time", "dispatch + combine, rank 3", 527.33e-6), ("bandwidth", "dispatch + combine, rank 3", 42.24e9)}),
    ("[rank 0] Dispatch bandwidth: 21.2 GB/s, avg_t=353.9 us | Combine bandwidth: 30.5 GB/s, avg_t=400.0 us",
     {("bandwidth", "dispatch, rank 0", 21.2e9), ("mean time", "dispatch, rank 0", 353.9e-6),
      ("bandwidth", "combine, rank 0", 30.5e9), ("mean time", "combine, rank 0", 400e-6)}),
    ("[rank 1] Dispatch send/recv time: 20.5 + 30.5 us | Combine send/recv time: 40.0 + 10.0 us",
     {("mean time", "dispatch send and receive, rank 1", 51e-6), ("mean time", "combine send and receive, rank "
         "1", 50e-6)}),
    ("[tuning] Best dispatch (FP8): SMs 24, NVL chunk 20, RDMA chunk 28: 35 + 4027 us, 44.40 GB/s (RDMA), 88.6 GB/s "
     "(NVL)",
     {("bandwidth", "dispatch fp8, RDMA", 44.4e9), ("bandwidth", "dispatch fp8, NVL", 88.6e9),
      ("mean time", "dispatch fp8", 4027e-6)}),
    ("[tuning] Best combine: SMs 24, NVL chunk 12: 158.00 GB/s (NVL), t: 920.00 us",
     {("bandwidth", "combine, NVL", 158e9), ("mean time", "combine", 920e-6)}),
    ("   - EP:   4/16 | expanded dispatch: 115 GB/s (SO), 376 GB/s (SU), 1064.000 us, 400593024 bytes | copy: 4 GB/s, "
     "1 us",
     {("mean time", "expanded dispatch, rank 4", 1064e-6), ("bandwidth", "expanded dispatch, RDMA, rank 4", 115e9)}),
])
def test_lines_of_deepep(line: str, expected: set[tuple[str, str, float]]) -> None:
    got = {(r.name, r.variant, round(r.samples[0], 9)) for r in read_one(line, "x.txt") or ()}
    assert got == {(a, b, round(c, 9)) for a, b, c in expected}


# ---- tables of pairs


def test_a_row_without_a_value_is_a_failure() -> None:
    text = "test,N,G,nodes,avg_bus_bw_GBs\nsendrecv_perf,2,4,\"n[01,03]\",12.5\nsendrecv_perf,2,4,n[05-06],\n"
    one, two = read_one(text, "x.csv") or ()
    assert (one.samples, one.placement and one.placement.hosts) == ((12.5e9,), ("n01", "n03"))
    assert (two.samples, two.failure, two.placement and two.placement.hosts) == ((), "no value", ("n05", "n06"))


def test_two_columns_of_nodes_and_a_rail() -> None:
    (one,) = read_one("src,dst,rail,bandwidth_gbps\na,b,mlx5_3,400\n", "x.csv") or ()
    assert one.placement is not None
    assert (one.placement.hosts, one.variant, one.samples) == (("a", "b"), "rail mlx5_3", (50e9,))


def test_a_bad_row_is_named() -> None:
    with pytest.raises(InputError, match=r"x\.csv line 3: expected a bandwidth"):
        read_one("test,N,G,nodes,busbw\nsendrecv,2,1,\"a,b\",3\nsendrecv,2,1,\"a,b\",fast\n", "x.csv")
    with pytest.raises(InputError, match=r"x\.csv line 2: expected the nodes"):
        read_one("test,N,G,nodes,busbw\nsendrecv,2,1,,3\n", "x.csv")


def test_host_lists_do_not_eat_the_memory() -> None:
    assert host_list("n[1-3]x,m") == ("n1x", "n2x", "n3x", "m")
    for bomb in ("n[1-999999999]", "[1-99][1-99][1-99]"):
        with pytest.raises(InputError, match="more than"):
            host_list(bomb)


# ---- files


def test_folders_archives_and_compression_give_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    texts = {f"{a}_{b}.log": log(SITE, a, b, 0) for a, b, _ in SITE.runs()}
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "README.md").write_text("nothing\n")
    (folder / "empty.log").write_text("")
    plain = read_measurements([str(folder)])
    assert (plain.files, plain.not_read) == (3, 2)
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        for name, text in texts.items():
            archive.writestr(f"inside/{name}", text)
    for name, text in texts.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    assert set(read_measurements([str(tmp_path / "logs.zip")]).results) == set(plain.results)
    packed = read_measurements([str(tmp_path / f"{name}.gz") for name in texts])
    assert len(packed.results) == len(plain.results)


def test_a_summary_beside_its_logs_counts_once(tmp_path: Path) -> None:
    for a, b, _ in SITE.runs():
        (tmp_path / f"{a}{b}.log").write_text(log(SITE, a, b, 0))
    alone = read_measurements([str(tmp_path)])
    (tmp_path / "summary.csv").write_text(csv(SITE))
    assert read_measurements([str(tmp_path)]).results == alone.results


@pytest.mark.parametrize(("name", "content", "said"), [
    ("a.log", "hello world\n", "is of no known format; expected text or -J JSON of nccl-tests"),
    ("a.log", "", "is empty; expected text or -J JSON of nccl-tests"),
    ("a.json", '{"a": 1}', "is of no known format"),
    ("a.zip", "PK\x03\x04 nothing", "zip"),
])
def test_bad_files_are_one_clear_error(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=said):
        read_measurements([str(tmp_path / name)])


def test_names_that_are_not_plain_become_numbers() -> None:
    rows = "test,N,G,nodes,busbw\nsendrecv,2,1,\"good-1,<script>\",3\nsendrecv,2,1,\"<script>,x y/z\",3\n"
    from sublight.observe.measurements import _plain_hosts

    shown = _plain_hosts(list(read_one(rows, "x.csv") or ()))
    assert [r.placement.hosts for r in shown if r.placement] == [("good-1", "node 1"), ("node 1", "x", "node 3")]


def test_damaged_files_are_read_or_refused_by_name() -> None:
    import random

    from sublight.comm.doctor.diagnosis import diagnose
    from sublight.show.doctor_json import document

    chance, refused = random.Random(7), 0
    whole = [log(SITE, 0, 1, 0), csv(SITE), json.dumps(nccl_json()),
             "[rank 3] Dispatch + combine bandwidth: 42.24 GB/s, avg_t=521.97 us, min_t=517.44 us, max_t=527.33 us\n"]
    for _ in range(200):
        text = list(chance.choice(whole))
        for _ in range(chance.randint(1, 20)):
            at = chance.randrange(len(text))
            text[at: at + chance.choice((0, 1, 20))] = chance.choice(("9", ".", ",", "\n", '"', "{", "e5", "#", " "))
        try:
            results = read_one("".join(text), "x.log")
            json.dumps(document(diagnose(results or ())), allow_nan=False)
        except InputError:
            refused += 1
    assert refused < 200
