"""The CSV of `nsys stats`: kernels with counts and times, without a time line: read in every shape that versions write,
compared by the mean of a run, and never taken to tell what only a time line tells."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path

import pytest
from conftest import shared
from hypothesis import given
from hypothesis import strategies as st

from sublight.cli import main
from sublight.errors import InputError
from sublight.observe.kernel_sums import is_kernel_sums, read, without
from sublight.observe.read import read_all
from sublight.observe.results import read_results

FLASH = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128>>(flash::Flash_fwd_params)"
GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN"
HEAD = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"
NEW = f"""\
Generating SQLite file run.sqlite from run.nsys-rep
Processing [run.sqlite] with [/opt/nsight/reports/cuda_gpu_kern_sum.py]...

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

{HEAD}
75.0,3000,3,1000.0,900.0,800,1300,216.0,"{FLASH}"
25.0,1000,10,100.0,100.0,100,100,0.0,{GEMM}

Processing [run.sqlite] with [/opt/nsight/reports/cuda_api_sum.py]...
Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
99.0,5000000,13,1.0,1.0,1,1,0.0,cudaLaunchKernel
"""
OLD = f"""\
Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name
75.0,3000,3,1000.0,800,1300,"{FLASH}"
25.0,1000,10,100.0,100,100,{GEMM}
"""
BY_GRID = f"""\
Time (%),Total Time (us),Instances,Avg (us),Med (us),Min (us),Max (us),StdDev (us),GridXYZ,BlockXYZ,Name
75.0,3.000,3,1.000,0.900,0.800,1.300,0.216,"   8    4    1"," 128    1    1","{FLASH}"
25.0,1.000,10,0.100,0.100,0.100,0.100,0.000," 132    1    1"," 384    1    1",{GEMM}
"""


@pytest.mark.parametrize("text", [NEW, OLD, BY_GRID, NEW.replace("\n", "\r\n")], ids=["new", "old", "by grid", "crlf"])
def test_every_shape_says_the_same(text: str) -> None:
    assert is_kernel_sums(text)
    assert [(row.name, row.runs, row.total_ns) for row in read(text).rows] == [(FLASH, 3, 3_000), (GEMM, 10, 1_000)]


def test_what_a_version_does_not_say_is_absent() -> None:
    new, old, grid = (read(text).rows[0] for text in (NEW, OLD, BY_GRID))
    assert (new.median_ns, new.least_ns, new.most_ns, new.grid) == (900, 800, 1300, "")
    assert (old.median_ns, old.least_ns, old.most_ns) == (None, 800, 1300)
    assert grid.median_ns == pytest.approx(900)
    assert grid.grid == "8 4 1"


@pytest.mark.parametrize("text", [
    "Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n9,5,1,5,cudaMalloc\n",                  # calls
    "Time (%),Total Time (ns),Instances,Avg (ns),Style,Range\n9,5,1,5,PushPop,step 1\n",       # ranges
    "vllm serve m", "", HEAD.replace("Instances", "Count"),
])
def test_other_reports_are_no_sums_of_kernels(text: str) -> None:
    assert not is_kernel_sums(text)


def test_bad_rows_are_counted_and_no_row_is_an_error() -> None:
    rows = ["x,nan,3,1,1,1,1,0,k", "1,-5,3,1,1,1,1,0,k", "1,5,0,1,1,1,1,0,k", "1,5,2,1,1,1,1,0,k", "1,5"]
    found = read("\n".join([HEAD, *rows]))
    assert ([row.total_ns for row in found.rows], found.notes) == ([5], ("4 rows could not be read; left out",))
    with pytest.raises(InputError, match="cuda_gpu_kern_sum --format csv"):
        read(f"{HEAD}\n1,nan,1,1,1,1,1,0,{GEMM}\n")


@given(st.text(max_size=300))
def test_any_text_behind_the_head_is_an_error_or_rows(text: str) -> None:
    try:
        rows = read(f"{HEAD}\n{text}").rows
    except InputError:
        return
    assert all(row.runs > 0 and row.total_ns >= 0 and row.name for row in rows)


# ---- what is shown


def test_sums_are_explained_as_far_as_they_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text(NEW)
    assert main(["explain", str(path)]) == 0
    table = " ".join(capsys.readouterr().out.split())
    assert "2 kernels of nsys stats, 13 runs, 4.0 µs in all: attention 75 %, gemm 25 %" in table.replace(".0 %", " %")
    assert "Cannot tell idle time" in table
    assert main(["explain", str(path), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(k["category"], k["family"], k["runs"], k["ns"]) for k in told["kernels"]] == [
        ("attention", "FlashAttention 2", 3, 3_000), ("gemm", "nvjet", 10, 1_000)]
    assert main(["explain", str(path), "--format", "md"]) == 0
    assert "| gemm | cuBLAS · nvjet | 10 |" in capsys.readouterr().out
    assert main(["explain", str(path), "--format", "svg"]) == 2
    assert main(["doctor", str(path)]) == 0
    assert "a time line" in capsys.readouterr().out


def test_what_else_was_pasted_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "issue.txt"
    for more, said in (("", False), ("hello, why is this slow?\n", False), ("vllm serve Qwen/Qwen3-8B -tp 2\n", True)):
        path.write_text(more + NEW + more)
        assert main(["explain", str(path)]) == 0
        assert ("paste that apart" in " ".join(capsys.readouterr().out.split())) == said
    assert "flash" not in without(NEW)
    assert "cudaLaunchKernel" in without(NEW)


def test_names_cannot_break_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text(f'{HEAD}\n100,5,1,5,5,5,5,0,"k|[red]`<script>x()"\n')
    assert main(["explain", str(path), "--format", "md"]) == 0
    assert "k\\|\\[red\\]\\`\\<script\\>" in capsys.readouterr().out
    assert main(["explain", str(path)]) == 0
    assert "k|[red]`<script>" in capsys.readouterr().out


def sums(path: Path, **kernels: tuple[int, float]) -> Path:
    """name=(runs, mean in ns)."""
    out = io.StringIO()
    csv.writer(out).writerows([HEAD.split(","), *([1, round(runs * mean), runs, mean, mean, mean, mean, 0, name]
                                                  for name, (runs, mean) in kernels.items())])
    path.write_text(out.getvalue())
    return path


def test_two_sums_are_compared_by_the_mean_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = sums(tmp_path / "a.csv", gemm=(680, 1_000), cast=(340, 50), norm=(340, 70), gone=(34, 10),
             ncclDevKernel_SendRecv=(68, 400))
    b = sums(tmp_path / "b.csv", gemm=(600, 1_300), cast=(300, 50), norm=(900, 70), new=(30, 10),
             ncclDevKernel_SendRecv=(60, 800))
    assert main(["diff", str(a), str(b), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    states = {v["quantity"]: v["state"] for v in told["verdicts"]}
    assert states == {"kernel time gemm": "worse", "kernel time cast": "cannot tell", "kernel time norm": "cannot tell",
                      "collective time ncclDevKernel_SendRecv": "cannot tell"}      # it waits for peers
    said = " ".join(told["notes"])
    assert "0.882 times as often in B" in said
    assert "other counts: norm 340 → 900" in said
    assert "A alone ran gone ×34" in said
    assert "B alone ran new ×30" in said


# ---- a real recording


def test_sums_agree_with_the_export_they_are_made_of(tmp_path: Path) -> None:
    """What nsys stats would write of a shared export, made by plain SQL, against the trace of the same file."""
    source = shared("nsys/mfu_2gpu_before.sqlite")
    path = tmp_path / "kernels.csv"
    with sqlite3.connect(f"file:{source}?mode=ro&immutable=1", uri=True) as file, path.open("w", newline="") as out:
        rows = file.execute(
            "SELECT 0, sum(k.end - k.start), count(*), 0, 0, 0, 0, 0, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k "
            "JOIN StringIds s ON s.id = k.demangledName GROUP BY s.value").fetchall()
        csv.writer(out).writerows([HEAD.split(","), *rows])
    found = read(path.read_text())
    traces = read_all([source])
    kernel_ns = sum(int(t.activities.dur_ns[t.activities.kind == 0].sum()) for t in traces)
    assert (found.total_ns, sum(row.runs for row in found.rows), len(found.rows)) == (kernel_ns, 4_010, 27)
    assert {r.name for r in read_results(path)} == {"kernel time", "collective time"}
