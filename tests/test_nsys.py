"""Nsight Systems exports as traces: small ones of known rows, and two real ones held against plain SQL."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import shared
from nsys import CUPTI, DOMAIN, MARK, PLACE, START_END, Nsys

from sublight.cli import main
from sublight.errors import InputError
from sublight.explain import explain
from sublight.observe import nsys_tables
from sublight.observe.read import read, read_all
from sublight.trace import KERNEL, MEMCPY, MEMSET, NO_ID, Trace

GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
REAL = ("nsys/mfu_2gpu_before.sqlite", "nsys/mfu_2gpu_after.sqlite")
EPOCH = 1_779_782_330_000_000_000


def one(n: Nsys, folder: Path) -> Trace:
    return read(n.write(folder / "t.sqlite"))


def named(trace: Trace, table: Any) -> list[str]:
    return [trace.names[i] for i in table.name]


# ---- what is read


def test_rows_become_activities_calls_and_links(tmp_path: Path) -> None:
    n = Nsys()
    p = n.process(pid=144)
    p.kernel(GEMM, 1_000, 4_000, launch=(200, 300), grid=(132, 2, 1))
    p.copy(1, 4_500, 5_000, 4_096, launch=(400, 500), memories=(0, 2))
    p.memset(5_000, 5_100, 64, launch=(510, 520))
    p.call("cudaStreamSynchronize_v3020", 600, 5_200)
    t = one(n, tmp_path)
    a = t.activities
    assert a.kind.tolist() == [KERNEL, MEMCPY, MEMSET]
    assert a.ts_ns.tolist() == [1_000, 4_500, 5_000]
    assert a.dur_ns.tolist() == [3_000, 500, 100]
    assert a.grid.tolist() == [[132, 2, 1], [0, 0, 0], [0, 0, 0]]
    assert a.nbytes.tolist() == [0, 4_096, 64]
    assert named(t, a) == [GEMM, "Memcpy HtoD (Pageable -> Device)", "Memset (Device)"]
    assert named(t, t.calls) == ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize"]
    assert t.threads == ("144/144",)
    view = explain(t).devices[0].view
    assert view.links is not None
    assert (view.links.linked, view.links.launches_without_activity) == (3, 0)
    assert view.budget.window_ns == 4_100


def test_times_are_those_of_the_session_since_the_epoch(tmp_path: Path) -> None:
    n = Nsys()
    n.process().kernel(GEMM, 61_000, 64_000, launch=(60_200, 60_300))
    n.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH, systemClockNs=60_000)
    assert one(n, tmp_path).activities.ts_ns.tolist() == [EPOCH + 1_000]


def test_normalised_times_stay_as_they_are(tmp_path: Path) -> None:
    n = Nsys()
    n.process().kernel(GEMM, EPOCH + 5, EPOCH + 9, launch=(EPOCH, EPOCH + 1))
    n.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH, systemClockNs=0)
    assert one(n, tmp_path).activities.ts_ns.tolist() == [EPOCH + 5]


def test_each_process_with_a_device_is_a_rank(tmp_path: Path) -> None:
    """Both use correlation 1 and call their device 0; TARGET_INFO_CUDA_DEVICE says which GPU that is."""
    n = Nsys()
    second, first, idle = n.process(pid=200), n.process(pid=300), n.process(pid=400)
    second.kernel(GEMM, 1_000, 2_000, launch=(100, 200), device=1)
    first.kernel(ADD, 1_500, 2_500, launch=(300, 400))
    idle.call("cudaFree", 0, 10)
    n.gpu(0, "NVIDIA H100 80GB HBM3", 132, 85_000_000_000)
    n.gpu(1, "NVIDIA L4", 58, 24_000_000_000)
    n.row("TARGET_INFO_CUDA_DEVICE", gpuId=1, cudaId=0, pid=300)
    n.row("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=1, pid=200)
    traces = read_all([n.write(tmp_path / "t.sqlite")])
    assert [(t.rank, t.threads, named(t, t.activities)) for t in traces] == [
        (0, ("300/300",), [ADD]), (1, ("200/200",), [GEMM])]
    assert [t.devices[d].name for t, d in zip(traces, (0, 1), strict=True)] == ["NVIDIA L4", "NVIDIA H100 80GB HBM3"]
    assert traces[0].quality.ignored["events of processes without device activity"] == 1
    assert sum(t.quality.text_bytes for t in traces) == (tmp_path / "t.sqlite").stat().st_size
    assert [d.view.links.linked for d in explain(traces).devices if d.view.links] == [1, 1]
    with pytest.raises(InputError, match="holds 2 ranks, expected one"):
        read(tmp_path / "t.sqlite")


def test_several_devices_of_one_process_are_one_trace(tmp_path: Path) -> None:
    n = Nsys()
    p = n.process()
    p.kernel(GEMM, 1_000, 2_000, launch=(100, 200))
    p.kernel(GEMM, 1_000, 3_000, launch=(300, 400), device=1)
    t = one(n, tmp_path)
    assert [(d.view.device, d.view.budget.window_ns) for d in explain(t).devices] == [(0, 1_000), (1, 2_000)]


def test_the_rank_in_the_files_name_counts_where_one_process_is_in_it(tmp_path: Path) -> None:
    n = Nsys()
    n.process().kernel(GEMM, 1_000, 2_000, launch=(100, 200))
    assert read(n.write(tmp_path / "run_rank3.sqlite")).rank == 3


def test_a_folder_of_exports_is_a_run(tmp_path: Path) -> None:
    n = Nsys()
    n.process().kernel(GEMM, 1_000, 2_000, launch=(100, 200))
    for rank in (10, 2):
        n.write(tmp_path / f"rank{rank}.sqlite")
    assert [t.rank for t in read_all([tmp_path])] == [2, 10]


# ---- NVTX


def test_fault_13_ranges_without_an_end_are_counted_others_are_annotations_operators_and_steps(tmp_path: Path) -> None:
    #  step 1    ├───────────────────────────────────┤
    #  operators   ├─ aten::linear ──────────────┤  ├ aten::view ┤
    #                 ├─ aten::addmm ────┤
    #  calls             launch                launch
    n = Nsys()
    p = n.process()
    p.range("step 1", 0, 2_000)
    p.range("aten::linear, seq = 5, op_id = 12", 100, 1_000)
    p.range("aten::addmm, op_id = 13", 200, 700)
    p.range("aten::view, seq = 6, op_id = 14", 1_100, 1_200)
    p.range("a registered one", 0, 50, kind=START_END, registered=True)
    p.range("never ended", 0, None, kind=START_END)
    p.range("a mark", 5, None, kind=MARK)
    p.range("NCCL", 0, None, kind=DOMAIN)
    p.kernel(GEMM, 3_000, 4_000, launch=(300, 310))
    p.kernel(ADD, 4_000, 5_000, launch=(800, 810))
    t = one(n, tmp_path)
    assert named(t, t.ops) == ["aten::linear", "aten::addmm"]
    assert named(t, t.annotations) == ["step 1", "a registered one"]
    assert t.activities.external_id.tolist() == [t.ops.external_id[1], t.ops.external_id[0]]
    assert t.quality.untimed == {"range without an end": 1}
    assert t.quality.ignored == {"NVTX marks, domains and categories": 2, "operators that made no runtime call": 1}
    view = explain(t).devices[0].view
    assert [(step.label, step.window) for step in view.steps] == [("1", (3_000, 5_000))]


def test_an_operator_of_another_thread_launched_nothing_here(tmp_path: Path) -> None:
    n = Nsys()
    p = n.process()
    p.range("aten::mm, op_id = 1", 0, 1_000, thread=77)
    p.range("aten::add, op_id = 2", 0, 1_000, thread=78)
    p.call("cudaEventQuery", 10, 20, thread=78)
    p.kernel(GEMM, 3_000, 4_000, launch=(300, 310))
    t = one(n, tmp_path)
    assert named(t, t.ops) == ["aten::add"]
    assert t.activities.external_id.tolist() == [NO_ID]


@pytest.mark.parametrize("table", ["NVTX_EVENTS_V2", "NVTX_EVENTS_V3"])
def test_fault_14_other_names_of_the_table_of_ranges(tmp_path: Path, table: str) -> None:
    n = Nsys()
    p = n.process()
    p.kernel(GEMM, 3_000, 4_000, launch=(300, 310))
    p.range("step 1", 0, 2_000)
    n.schema[table] = n.schema["NVTX_EVENTS"]
    n.rows[table] = n.rows.pop("NVTX_EVENTS")
    t = one(n, tmp_path)
    assert named(t, t.annotations) == ["step 1"]


@pytest.mark.parametrize(("text", "label"), [
    ("[Executor] _forward_step 60: 1 ctx reqs, 9 ctx tokens, 32 gen reqs", "60"), ("iteration_12", "12"),
    ("Train Step #7", "7"), ("step[EXTEND bs=15 toks=15360]", "EXTEND bs=15 toks=15360"),
])
def test_marks_of_steps(tmp_path: Path, text: str, label: str) -> None:
    n = Nsys()
    p = n.process()
    p.kernel(GEMM, 3_000, 4_000, launch=(300, 310))
    p.range(text, 0, 2_000)
    assert [step.label for step in explain(one(n, tmp_path)).devices[0].view.steps] == [label]


# ---- versions, absences, graphs


@pytest.mark.parametrize("gone", ["graphNodeId", "demangledName", "globalPid", "gridX", "contextId"])
def test_a_column_that_a_version_lacks(tmp_path: Path, gone: str) -> None:
    n = Nsys()
    n.process().kernel("gemm<1>", 1_000, 4_000, launch=(200, 300))
    n.schema[CUPTI + "KERNEL"] = tuple(c for c in n.schema[CUPTI + "KERNEL"] if c != gone)
    t = one(n, tmp_path)
    assert named(t, t.activities) == ["gemm" if gone == "demangledName" else "gemm<1>"]
    assert t.quality.events == 2
    view = explain(t).devices[0].view
    assert view.links is not None
    assert view.links.linked == 1


def test_calls_without_correlation_ids_launch_nothing_that_can_be_told(tmp_path: Path) -> None:
    n = Nsys()
    p = n.process()
    p.kernel("gemm<1>", 1_000, 4_000, launch=(200, 300))
    p.range("aten::mm, seq = 1, op_id = 2", 100, 400)
    n.schema[CUPTI + "RUNTIME"] = tuple(c for c in n.schema[CUPTI + "RUNTIME"] if c != "correlationId")
    t = one(n, tmp_path)
    assert named(t, t.ops) == ["aten::mm"]
    assert t.activities.external_id.tolist() == [NO_ID]
    view = explain(t).devices[0].view
    assert view.links is not None
    assert view.links.linked == view.links.linked_to_op == 0


def test_a_range_keeps_what_stands_behind_a_comma(tmp_path: Path) -> None:
    n = Nsys()
    p = n.process()
    p.kernel(GEMM, 1_000, 4_000, launch=(200, 300))
    texts = ("forward, layer 3", "forward, layer 4", "aten::mm, seq = 1, op_id = 2", "aten::mm, op_id = 3")
    for at, text in enumerate(texts):
        p.range(text, 100 + at, 400 - at)
    t = one(n, tmp_path)
    assert named(t, t.annotations) == ["forward, layer 3", "forward, layer 4"]
    assert named(t, t.ops) == ["aten::mm", "aten::mm"]


def test_columns_are_half_as_wide_where_all_their_numbers_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nsys_tables, "CHUNK_ROWS", 2)
    n = Nsys()
    p = n.process()
    p.kernel(GEMM, 1_000, 4_000, launch=(200, 300))
    p.kernel(GEMM, 5_000, 7_000, launch=(400, 500))
    t = one(n, tmp_path)
    a = t.activities
    assert [column.dtype.itemsize for column in (a.ts_ns, a.dur_ns, a.end_ns)] == [8, 4, 8]
    p.kernel(GEMM, 10_000, 10_000 + (1 << 31), launch=(8_000, 8_100))
    t = one(n, tmp_path)
    assert t.activities.dur_ns.dtype.itemsize == 8
    assert t.activities.dur_ns.tolist() == [3_000, 2_000, 1 << 31]


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_are_read_chunk_by_chunk_whatever_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sparse: bool,
) -> None:
    monkeypatch.setattr(nsys_tables, "CHUNK_ROWS", 8)
    n = Nsys()
    p = n.process()
    for i in range(50):
        p.kernel(GEMM, 1_000 * i, 1_000 * i + 500, launch=(1_000 * i, 1_000 * i + 10))
    path = n.write(tmp_path / "run.sqlite")
    if sparse:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(f"UPDATE {CUPTI}KERNEL SET rowid = rowid * rowid * 1000")
    t = read(str(path))
    assert t.activities.ts_ns.tolist() == [1_000 * i for i in range(50)]


def test_nodes_of_graphs_keep_their_number(tmp_path: Path) -> None:
    n = Nsys()
    p = n.process()
    launch = p.call("cudaGraphLaunch_v10000", 100, 200)
    for i in range(3):
        p.kernel(GEMM, 1_000 * i + 1_000, 1_000 * i + 1_900, launch=launch, graphNodeId=40 + i)
    p.range("aten::mm, op_id = 1", 0, 300)
    t = one(n, tmp_path)
    assert t.activities.graph_node.tolist() == [40, 41, 42]
    assert t.activities.external_id.tolist() == [NO_ID] * 3           # which operator is the graph's own business
    view = explain(t).devices[0].view
    assert view.links is not None
    assert (view.links.graph_launches, view.links.graph_ns) == (1, 2_700)


def test_graphs_recorded_as_a_whole_refuse_idle_time_and_counts(tmp_path: Path, capsys: Any) -> None:
    n = Nsys()
    p = n.process()
    p.graph(1_000_000, 2_000_000, launch=(100, 200))
    p.graph(2_500_000, 3_000_000, launch=(300, 400))
    p.kernel(GEMM, 3_000_000, 3_100_000, launch=(500, 600))
    path = n.write(tmp_path / "t.sqlite")
    refusal = explain(read(path)).devices[0].view.refusals[0]
    assert refusal.what.startswith("how idle the device is, and which kernels ran how often")
    assert refusal.capture == "nsys profile --cuda-graph-trace=node"
    assert main(["explain", str(path)]) == 0
    said = capsys.readouterr().out
    assert "No verdict on idle time: 2 CUDA graphs were recorded as a whole" in said
    assert "--cuda-graph-trace=node" in said


def test_what_to_capture_is_said_in_words_of_nsys(tmp_path: Path) -> None:
    n = Nsys()
    n.process().kernel(GEMM, 1_000, 4_000, launch=(200, 300))
    refusals = explain(one(n, tmp_path)).devices[0].view.refusals
    assert [r.what for r in refusals] == ["operators behind kernels", "figures per step", "sizes of operators"]
    assert all("nsys" in r.capture or "torch.profiler" in r.capture for r in refusals)
    assert not any("schedule" in r.capture for r in refusals)


# ---- damage and other files


def test_rows_without_numbers_are_lost_and_counted(tmp_path: Path) -> None:
    n = Nsys()
    p = n.process()
    p.kernel(GEMM, 1_000, 4_000, launch=(200, 300))
    p.kernel(GEMM, 5_000, 6_000, launch=(400, 500))
    p.kernel(GEMM, 7_000, 1 << 62, launch=(600, 700))
    p.kernel(GEMM, 9_000, 8_000, launch=(800, 900))
    n.rows[CUPTI + "KERNEL"][1]["start"] = "soon"
    n.rows[CUPTI + "KERNEL"][0]["streamId"] = None
    t = one(n, tmp_path)
    assert t.activities.ts_ns.tolist() == [1_000]
    assert t.activities.stream.tolist() == [0]
    assert t.quality.lost == 1
    assert t.quality.untimed == {"no usable time stamp": 1, "ends before it starts": 1}


@pytest.mark.parametrize("text", ["a\x1fb", "\x1e77", "\x1e", "caf\xe9 \u202e"])
def test_texts_that_look_like_our_own_signs(tmp_path: Path, text: str) -> None:
    n = Nsys()
    p = n.process()
    p.kernel(GEMM, 3_000, 4_000, launch=(300, 310))
    p.range(text, 0, 2_000)
    p.range("step 1", 0, 2_000, registered=True)
    t = one(n, tmp_path)
    assert len(t.annotations.ts_ns) == 2
    assert "step 1" in named(t, t.annotations)
    assert not any(ord(c) < 32 or c == "\u202e" for name in t.names for c in name)


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    n = Nsys()
    n.process().kernel(GEMM, 3_000, 4_000, launch=(300, 310))
    path = n.write(tmp_path / "t.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE StringIds SET value = CAST(x'67ff6d' AS TEXT) WHERE value = ?", (GEMM,))
    db.close()
    t = read(path)
    assert named(t, t.activities) == ["g\ufffdm"]


def many(folder: Path) -> Path:
    n = Nsys()
    p = n.process()
    for i in range(3_000):
        p.kernel(GEMM, 10_000 + 100 * i, 10_090 + 100 * i, launch=(100 * i, 100 * i + 50))
    return n.write(folder / "t.sqlite")


def test_a_file_cut_short_keeps_what_came_before(tmp_path: Path) -> None:
    whole = many(tmp_path).read_bytes()
    cut = tmp_path / "cut.sqlite"
    fates = Counter[str]()
    for share in (0.02, 0.2, 0.4, 0.6, 0.8, 0.99):
        cut.write_bytes(whole[: int(len(whole) * share)])
        try:
            t = read(cut)
        except InputError:
            fates["refused"] += 1
        else:
            assert t.quality.cut_short
            assert 0 < len(t.activities.ts_ns) <= 3_000
            fates["read"] += 1
    assert fates["read"] >= 1


def test_damage_anywhere_is_an_error_or_counted_never_a_traceback(tmp_path: Path) -> None:
    whole = many(tmp_path).read_bytes()
    rng = np.random.default_rng(6)
    bad = tmp_path / "bad.sqlite"
    noticed = 0
    for _ in range(40):
        data = bytearray(whole)
        for at in rng.integers(16, len(data), 30).tolist():
            data[at] ^= int(rng.integers(1, 256))
        bad.write_bytes(data)
        try:
            q = read_all([bad])[0].quality
        except InputError:
            noticed += 1
        else:
            noticed += q.damaged or bool(q.untimed) or q.events != 6_000
    assert noticed > 0


@pytest.mark.parametrize(("name", "said"), [
    ("run.nsys-rep", "nsys export --type sqlite --output run.sqlite run.nsys-rep"),
    ("run.qdrep", "nsys export --type sqlite --output run.sqlite run.qdrep"),
    ("my run$1.nsys-rep", r"nsys export --type sqlite --output 'my run\$1.sqlite' 'my run\$1.nsys-rep'"),
])
def test_a_report_gets_the_command_that_exports_it(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_bytes(b"\x17\xd6" * 100)
    with pytest.raises(InputError, match=said):
        read(tmp_path / name)
    if name.endswith(".nsys-rep"):
        with pytest.raises(InputError, match=said):      # a folder of them, too
            read_all([tmp_path])


def test_a_log_beside_the_file_is_noted(tmp_path: Path) -> None:
    path = many(tmp_path)
    assert read(path).quality.notes == ()
    (tmp_path / "t.sqlite-wal").write_bytes(b"x")
    assert len(read(path).quality.notes) == 1


def test_another_sqlite_file_is_said_to_be_none(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "t.sqlite") as db:
        db.execute("CREATE TABLE songs (title TEXT)")
    db.close()
    with pytest.raises(InputError, match="no export of Nsight Systems"):
        read(tmp_path / "t.sqlite")


def test_nothing_is_written_beside_the_file(tmp_path: Path) -> None:
    path = many(tmp_path)
    before = path.read_bytes(), path.stat().st_mtime_ns
    tmp_path.chmod(0o500)
    try:
        read(path)
    finally:
        tmp_path.chmod(0o700)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [p.name for p in tmp_path.iterdir()] == ["t.sqlite"]


def test_environment_and_command_lines_are_never_shown(tmp_path: Path, capsys: Any) -> None:
    n = Nsys()
    p = n.process()
    p.kernel(GEMM, 1_000, 400_000, launch=(200, 300))
    p.range("secret_annotation", 0, 10)
    for table in ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "META_DATA_EXPORT"):
        n.row(table, name="PROCESS_0:ENVIRONMENT_VARIABLE", value="TOKEN=hf_secret")
    n.gpu(0, "secret host /home/me", 132, 1)
    n.string("python train.py --key=secret")                          # a process's output lies in StringIds, too
    path = str(n.write(tmp_path / "t.sqlite"))
    for form in ("table", "json", "md", "html", "svg", "perfetto"):
        assert main(["explain", path, "--format", form]) == 0
        assert "secret" not in capsys.readouterr().out


# ---- the real ones


def sql(path: Path, query: str) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


@pytest.mark.parametrize("name", REAL)
def test_kernel_time_per_name_is_that_of_plain_sql(name: str) -> None:
    path = shared(name)
    expected = sql(path, "SELECT deviceId, value, count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL "
                         "JOIN StringIds ON id = demangledName GROUP BY 1, 2")
    found: dict[tuple[int, str], list[int]] = {}
    for t in read_all([path]):
        a = t.activities
        for i in np.flatnonzero(a.kind == KERNEL).tolist():
            row = found.setdefault((int(a.device[i]), t.names[a.name[i]]), [0, 0])
            row[0] += 1
            row[1] += int(a.dur_ns[i])
    assert found == {(device, kernel): [count, ns] for device, kernel, count, ns in expected}
    assert len(expected) >= 40


@pytest.mark.parametrize("name", REAL)
def test_idle_time_is_that_of_plain_sql(name: str) -> None:
    path = shared(name)
    explanation = explain(read_all([path]), window="all")
    for device in explanation.devices:
        rows = sql(path, " UNION ALL ".join(
            f"SELECT start, end FROM {CUPTI}{table} WHERE deviceId = {device.view.device}"
            for table in ("KERNEL", "MEMCPY", "MEMSET")) + " ORDER BY start")
        idle, reached = 0, rows[0][0]
        for start, end in rows:
            idle += max(start - reached, 0)
            reached = max(reached, end)
        assert device.view.budget.idle_ns == idle > 10_000_000
        assert device.view.budget.window_ns == reached - rows[0][0]


@pytest.mark.parametrize("name", REAL)
def test_real_exports_are_explained(name: str, capsys: Any) -> None:
    path = shared(name)
    explanation = explain(read_all([path]))
    assert len(explanation.devices) == 2
    for device in explanation.devices:
        view = device.view
        assert sum(part.ns for part in view.budget.parts) == view.budget.window_ns
        assert view.unclassified_share <= 0.01
        assert device.replay is not None
        assert abs(device.replay.error) <= 0.05
        assert view.links is not None
        assert view.links.linked >= 0.99 * view.links.activities
        assert view.links.linked_to_op >= 0.98 * view.links.activities
    assert main(["explain", str(path)]) == 0
    assert capsys.readouterr().out.count("Replay: error") == 2


def test_a_repeated_export_is_a_whole_multiple(tmp_path: Path) -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("repeat_nsys", Path(__file__).parent.parent / "bench/repeat_nsys.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    small = shared(REAL[0])
    assert module.repeat(small, tmp_path / "big.sqlite", 9_000) == 3
    one_each, three = read_all([small]), read_all([tmp_path / "big.sqlite"])
    for a, b in zip(one_each, three, strict=True):
        assert len(b.activities.ts_ns) == 3 * len(a.activities.ts_ns)
        assert int(b.activities.dur_ns.sum()) == 3 * int(a.activities.dur_ns.sum())
        assert len(np.unique(b.activities.correlation)) == 3 * len(np.unique(a.activities.correlation))
        assert b.quality.kept["operators"] == 3 * a.quality.kept["operators"]


def test_the_schema_of_the_builder_is_that_of_real_files() -> None:
    """Every column of the tests' tables that this real file has is spelled as there."""
    path = shared(REAL[0])
    n = Nsys()
    for table in (CUPTI + "KERNEL", CUPTI + "MEMCPY", CUPTI + "MEMSET", CUPTI + "RUNTIME", "NVTX_EVENTS",
                  CUPTI + "SYNCHRONIZATION", "PROFILER_OVERHEAD"):
        real = {row[1] for row in sql(path, f"PRAGMA table_info({table})")}
        assert set(n.schema[table]) <= real, table
    assert set(PLACE) <= {row[1] for row in sql(path, f"PRAGMA table_info({CUPTI}KERNEL)")}
