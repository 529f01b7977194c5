"""What `sublight diff` prints, of which inputs, and what never reaches an output."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import shared
from kineto import Kineto

from sublight.cli import main
from sublight.guard import diff
from sublight.guard.changes import Change
from sublight.observe.read import read, read_all
from sublight.show import diff_rows
from sublight.show.diff_html import _bars, html
from sublight.show.diff_json import document
from sublight.show.diff_markdown import markdown

EXAMPLES = Path(__file__).parent.parent / "docs/examples"
BEFORE, AFTER = EXAMPLES / "diff_before.json", EXAMPLES / "diff_after.json"
GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"


def step_run(
    path: Path, *, rank: int = 0, product: int = 1_000, device: str = "NVIDIA H100 80GB HBM3", name: str = GEMM,
    steps: int = 3, **head: Any,
) -> Path:
    """Steps of one product each, 100 ns between them."""
    k = Kineto(rank=rank, world_size=2, device_name=device, **head)
    for i in range(steps):
        begin = i * (product + 100)
        k.step(i, begin - 50, begin + 20)
        k.kernel(name, begin, begin + product, launch=(begin - 40, begin - 20))
    return k.write(path)


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["diff", *map(str, arguments)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


# ---- formats


def test_every_format_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    table = shown(capsys, BEFORE, AFTER)
    assert max(map(len, table.splitlines())) <= 80
    assert "\x1b" not in table
    assert "B's step takes 0.450 ms longer (+90.0 %)" in table
    assert "B's step takes 0.450 ms longer (+90.0 %)" in shown(capsys, BEFORE, AFTER, "--format", "md")
    assert "B&#x27;s step takes 0.450 ms longer (+90.0 %)" in shown(capsys, BEFORE, AFTER, "--format", "html")
    told = json.loads(shown(capsys, BEFORE, AFTER, "--format", "json"))
    assert told["schema"] == "sublight.diff/1"
    assert told["difference_ns"] == 450_000 == told["b"]["step_ns"] - told["a"]["step_ns"]
    for rows in ("parts", "changes", "keys"):
        assert sum(row["ns"] for row in told[rows]) == 450_000
    assert told["a"]["members"][0]["step_ns"] == [500_000, 500_000]


def test_a_file_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, BEFORE, AFTER, "--format", "html", "-o", tmp_path / "d.html") == ""
    assert (tmp_path / "d.html").read_text("ascii").startswith("<!doctype html>")
    assert shown(capsys, BEFORE, AFTER, "-o", tmp_path / "d.txt") == ""
    assert "gap longer" in (tmp_path / "d.txt").read_text()


def test_the_waterfall_leads_from_a_to_b() -> None:
    d = diff([read(BEFORE)], [read(AFTER)])
    bars = _bars(d)
    assert bars[0][1] == d.a.step_ns
    assert bars[-1][2] == d.b.step_ns
    assert all(one[2] == other[1] for one, other in pairwise(bars))
    assert [label for label, _, _ in bars][:2] == ["idle: launch-starved", "gemm"]


def test_the_page_runs_and_loads_nothing() -> None:
    page = html(diff([read(BEFORE)], [read(AFTER)]))
    page.encode("ascii")
    assert "<script" not in page
    assert not re.search(r"(?:src|href)=", page)
    assert page.count("<table") >= 3
    for label in ("A's step", "B's step", "idle: launch-starved"):
        assert label.replace("'", "&#x27;") in page or label in page


def test_names_of_kernels_cannot_break_a_page_or_a_table(tmp_path: Path) -> None:
    evil = 'kernel<script>|"x"|</script>*_'
    d = diff([read(step_run(tmp_path / "a.json"))], [read(step_run(tmp_path / "b.json", name=evil))])
    assert "<script" not in html(d)
    for line in markdown(d).splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (4, 5, 7)
    json.dumps(document(d), allow_nan=False)


# ---- inputs


def test_a_folder_is_the_ranks_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, products in (("a", (1_000, 1_200)), ("b", (1_000, 1_500))):
        (tmp_path / side).mkdir()
        for rank, product in enumerate(products):
            step_run(tmp_path / side / f"rank{rank}.json", rank=rank, product=product)
    d = diff(read_all([tmp_path / "a"]), read_all([tmp_path / "b"]))
    assert (d.a.step_ns, d.b.step_ns, d.a.repetitions) == (1_200, 1_350, 4)
    assert diff_rows.member_rows(d) == [
        ("rank 0, device 0", "1.1 µs", "1.1 µs", "0 ns"), ("rank 1, device 0", "1.3 µs", "1.6 µs", "+300 ns")]
    assert "2 devices" in shown(capsys, tmp_path / "a", tmp_path / "b")


def test_formats_can_be_mixed() -> None:
    one = read_all([shared("nsys/mfu_2gpu_before.sqlite")])
    other = [read(shared("kineto/h100_qwen15_05b.json.gz"))]
    d = diff(one, other)
    assert sum(change.ns for change in d.changes) == d.ns
    tools = next(s for s in d.settings if s.name == "recorded with")
    assert (tools.a, tools.b, tools.differs) == ("nsys", "torch.profiler", True)


@pytest.mark.parametrize(("arguments", "message"), [
    (["nowhere.json", str(AFTER)], "nowhere.json"), (["-", "-"], "standard input can be read only once"),
    ([str(BEFORE), str(AFTER), "--device", "h1000"], "h1000"),
])
def test_what_cannot_be_read_is_one_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["diff", *arguments]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err


# ---- what differs in the runs


def test_versions_come_from_the_allow_list_alone(tmp_path: Path) -> None:
    path = step_run(tmp_path / "a.json")
    other = json.loads(path.read_text())
    other |= {"cuda_runtime_version": 12040, "cuda_driver_version": 13000, "cupti_version": 22,
              "environment": "HF_TOKEN=secret", "command": "python train.py --flag"}
    other["distributedInfo"]["nccl_version"] = "2.27.5"
    (tmp_path / "b.json").write_text(json.dumps(other))
    d = diff([read(path)], [read(tmp_path / "b.json")])
    assert diff_rows.settings_rows(d) == [
        ("CUDA runtime", "not said", "12.4"), ("CUDA driver", "not said", "13.0"), ("CUPTI", "not said", "22"),
        ("NCCL", "not said", "2.27.5")]
    everything = markdown(d) + html(d) + json.dumps(document(d))
    assert "secret" not in everything
    assert "train.py" not in everything


@pytest.mark.parametrize("version", ["2.27.5; rm -rf /", "host17", 227, None, ["2.1"]])
def test_a_version_must_look_like_one(tmp_path: Path, version: object) -> None:
    path = step_run(tmp_path / "a.json")
    text = json.loads(path.read_text())
    text["distributedInfo"]["nccl_version"] = version
    text["cuda_driver_version"] = "twelve"
    path.write_text(json.dumps(text))
    assert read(path).recording.versions == ()


def test_other_hardware_is_explained_by_the_bounds(tmp_path: Path) -> None:
    """The same product on two devices, both twice its least time: half of the difference is the hardware's."""
    traces = []
    for device, sms, flops in (("NVIDIA H100 80GB HBM3", 132, 1.0), ("NVIDIA A100-SXM4-80GB", 108, 312 / 989.4)):
        k = Kineto(device_name=device, sms=sms, compute_capability=(9, 0) if sms == 132 else (8, 0))
        length = round(2 * 2 * 4096**3 / (989.4e12 * flops) * 1e9)
        recorded: dict[str, Any] = {"Input type": ["c10::BFloat16"] * 2, "Input Strides": [[4096, 1]] * 2}
        op = k.op("aten::mm", -100, -50, dims=[[4096, 4096], [4096, 4096]], **recorded)
        k.kernel(GEMM, 0, length, launch=(-90, -80), op=op, grid=(sms, 1, 1))
        traces.append(read(k.write(tmp_path / f"{sms}.json")))
    d = diff([traces[0]], [traces[1]])
    (part,) = d.parts
    assert d.bounded
    assert part.explained_ns == pytest.approx(part.ns / 2, rel=0.1)     # bounds count whole rounds of the clock's rate
    assert part.explained_ns + part.left_ns == part.ns == d.ns
    assert [s.name for s in d.settings if s.differs][:2] == ["device", "SMs"]


# ---- which step is compared


def test_one_step_against_several_is_said(tmp_path: Path) -> None:
    d = diff([read(step_run(tmp_path / "a.json", steps=1))], [read(step_run(tmp_path / "b.json", steps=3))])
    assert (d.a.step_ns, d.b.step_ns) == (1_000, 1_100)
    assert any("only one of the two steps includes the pause" in note for note in diff_rows.notes(d))


def test_a_repetition_of_another_length_is_set_apart(tmp_path: Path) -> None:
    k, now = Kineto(), 0
    for i, length in enumerate((1_000, 1_000, 9_000, 1_000, 1_000)):
        k.step(i, now - 50, now + 20)
        k.kernel(GEMM, now, now + length, launch=(now - 40, now - 20))
        now += length + 100
    d = diff([read(k.write(tmp_path / "a.json"))], [read(step_run(tmp_path / "b.json"))])
    assert (d.ns, d.a.repetitions) == (0, 3)
    assert "1 repetition of other length set apart" in diff_rows.run_line("A", d.a)


# ---- CPU-only runs


def cpu_run(path: Path, *, item: int = 0, backward: int = 300) -> Path:
    """Three steps: two operators, one on another thread while the first has none, perhaps an .item()."""
    k, now = Kineto(device_name=None), 0
    for i in range(3):
        begin = now
        k.op("aten::linear", now, now + 500)
        k.op("aten::gelu", now + 500, now + 700)
        now += 700
        k.op("aten::mm", now, now + backward, thread=2)
        now += backward
        if item:
            k.op("aten::item", now, now + item)
            now += item
        now += 50
        k.step(i, begin, now)
    return k.write(path)


def test_an_item_in_a_cpu_only_run_is_named(tmp_path: Path) -> None:
    d = diff([read(cpu_run(tmp_path / "a.json"))], [read(cpu_run(tmp_path / "b.json", item=400))])
    assert (d.a.step_ns, d.ns) == (1_050, 400)
    (change,) = d.changes
    assert (change.kind, change.ns, change.after_names) == ("new", 400, ("aten::item",))


def test_what_another_thread_runs_meanwhile_is_named(tmp_path: Path) -> None:
    d = diff([read(cpu_run(tmp_path / "a.json"))], [read(cpu_run(tmp_path / "b.json", backward=450))])
    assert d.ns == 150
    change: Change = d.changes[0]
    assert (change.kind, change.ns, change.after_names) == ("slower", 150, ("aten::mm",))
    assert {key.part for key in change.keys} == {"idle: other threads run operators"}


# ---- results


def test_files_of_results_are_compared_as_results(capsys: pytest.CaptureFixture[str]) -> None:
    a, b = EXAMPLES / "serving_before.jsonl", EXAMPLES / "serving_after.jsonl"
    table = shown(capsys, a, b)
    assert re.search(r"^TPOT +worse", table, re.M)
    told = json.loads(shown(capsys, a, b, "--format", "json"))
    states = {v["quantity"]: v["state"] for v in told["verdicts"]}
    assert (states["TPOT"], states["TTFT"]) == ("worse", "cannot tell")
    assert "| TPOT | worse |" in shown(capsys, a, b, "--format", "md")
    assert "<script" not in shown(capsys, a, b, "--format", "html")


def test_other_settings_of_results_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (EXAMPLES / "serving_before.jsonl").read_text()
    other = tmp_path / "other.jsonl"
    other.write_text(text.replace('"model_id": "example/model"', '"model_id": "example/other"'))
    told = json.loads(shown(capsys, EXAMPLES / "serving_before.jsonl", other, "--format", "json"))
    assert [(s["name"], s["a"], s["b"]) for s in told["settings"] if s["differs"]] == [
        ("model", "example/model", "example/other")]


def test_a_folder_of_result_files_is_one_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side in ("before", "after"):
        (tmp_path / side).mkdir()
        lines = (EXAMPLES / f"serving_{side}.jsonl").read_text().splitlines()
        for i, line in enumerate(lines):
            (tmp_path / side / f"run{i}.json").write_text(line)
    assert re.search(r"^TPOT +worse", shown(capsys, tmp_path / "before", tmp_path / "after"), re.M)


def test_a_trace_and_results_do_not_compare(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(BEFORE), str(EXAMPLES / "serving_after.jsonl")]) == 2
    assert "B is no trace, the other one is" in capsys.readouterr().err


def test_a_collective_that_a_cpu_only_run_waits_for_is_named() -> None:
    """The demo's rank 0 stalls before it loads its data; rank 1 waits for it in the all-reduce."""
    demo = Path(__file__).parent.parent / "sublight/demo"
    d = diff([read(demo / "cpu_lm_rank0.json.gz")], [read(demo / "cpu_lm_rank1.json.gz")])
    first, second = d.changes[:2]
    assert (first.kind, first.after_names) == ("slower", ("gloo:all_reduce",))
    assert (second.kind, second.after_names) == ("shorter gap", ("aten::randint",))
    assert abs(d.ns) < 0.05 * min(abs(first.ns), abs(second.ns))


def test_an_operator_that_is_interrupted_runs_once(tmp_path: Path) -> None:
    #  linear  ├──┤    ├──┤      aten::mm inside it
    #  mm         ├────┤
    k = Kineto(device_name=None)
    for i in range(3):
        k.op("aten::linear", 1_000 * i, 1_000 * i + 900)
        k.op("aten::mm", 1_000 * i + 200, 1_000 * i + 600)
        k.step(i, 1_000 * i, 1_000 * (i + 1))
    run = diff([read(k.write(tmp_path / "t.json"))], [read(tmp_path / "t.json")]).a
    assert {(key.name, entry.runs, entry.ns) for key, entry in run.entries.items() if not key.gap} == {
        ("aten::linear", 1.0, 500), ("aten::mm", 1.0, 400)}


def test_the_same_kernels_replayed_from_a_graph_are_the_same(tmp_path: Path) -> None:
    """Graphs carry no operator: the kernel is found again by its name, and what changed are the gaps."""
    norm = "void layer_norm::ln_fwd_kernel<float>(int)"
    eager, graph = Kineto(), Kineto()
    for i in range(3):
        begin = 10_000 * i
        eager.step(i, begin - 50, begin + 9_000)
        graph.step(i, begin - 50, begin + 9_000)
        op = eager.op("aten::mm", begin - 45, begin - 30)
        eager.kernel(GEMM, begin, begin + 3_000, launch=(begin - 40, begin - 35), op=op)
        op = eager.op("aten::native_layer_norm", begin + 3_900, begin + 3_990)
        eager.kernel(norm, begin + 4_000, begin + 5_000, launch=(begin + 3_950, begin + 3_960), op=op)
        graph.graph_launch((begin - 40, begin - 20), [(GEMM, begin, begin + 3_000, 7),
                                                      (norm, begin + 3_000, begin + 4_000, 7)])
    d = diff([read(eager.write(tmp_path / "a.json"))], [read(graph.write(tmp_path / "b.json"))])
    assert d.ns == 0
    assert {(change.kind, change.ns) for change in d.changes} == {("longer gap", 1_000), ("shorter gap", -1_000)}
    assert [(s.a, s.b) for s in d.settings if s.name == "CUDA graphs"] == [("none", "100.0 % of kernel time")]


def test_at_the_speed_of_light_other_hardware_explains_all(tmp_path: Path) -> None:
    """Predicted steps of one model on two GPUs, each operator at its bound: nothing is left."""
    runs = []
    for gpu in ("H100", "H200"):
        path = tmp_path / f"{gpu}.json"
        assert main(["predict", "meta-llama/Llama-3.1-8B", "--gpus", f"1x{gpu}", "--isl", "1024", "--osl", "128",
                     "--concurrency", "16", "--step", "decode", "--at", "bound", "--format", "trace", "--no-tables",
                     "-o", str(path)]) == 0
        runs.append([read(path)])
    d = diff(*runs)
    assert d.ns < -0.2 * d.a.step_ns
    explained = sum(part.explained_ns for part in d.parts)
    assert explained == pytest.approx(d.ns, rel=0.001)
    assert sum(abs(part.left_ns) for part in d.parts) <= 0.001 * abs(d.ns)
