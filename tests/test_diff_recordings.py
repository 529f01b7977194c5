"""A difference of several recordings of each side, of ranks that wait for each other, and of kernels that are nearly
the same: counts, names and what may be chance."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from kineto import Kineto
from nsys import Nsys

from sublight.cli import main
from sublight.guard import diff
from sublight.guard.attribute import difference
from sublight.guard.changes import reach
from sublight.guard.typical import pooled, typical
from sublight.observe.read import read, read_all
from sublight.show import diff_rows
from sublight.show.diff_json import document

GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
EXAMPLES = Path(__file__).parent.parent / "docs/examples"


def product_run(path: Path, ns: int, *, steps: int = 4) -> Path:
    """Steps of one product each, 100 ns between them."""
    k = Kineto()
    for i in range(steps):
        begin = i * (ns + 100)
        k.step(i, begin - 50, begin + 20)
        k.kernel(GEMM, begin, begin + ns, launch=(begin - 40, begin - 20))
    return k.write(path)


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["diff", *map(str, arguments)]) == 0
    return capsys.readouterr().out


# ---- several recordings of each side


def side(folder: Path, name: str, lengths: list[int]) -> list[Path]:
    return [product_run(folder / f"{name}{i}.json", ns) for i, ns in enumerate(lengths)]


NOISE = [1_000, 1_003, 998, 1_001, 996, 1_004, 999]


def test_recordings_are_pooled_and_sum_to_the_nanosecond(tmp_path: Path) -> None:
    a, b = (pooled([typical([read(p)]) for p in side(tmp_path, name, lengths)])
            for name, lengths in (("a", [1_000, 1_030]), ("b", [1_107, 1_100, 1_111])))
    assert (a.repetitions, b.repetitions, len(a.recordings), len(b.recordings)) == (6, 9, 2, 3)
    assert (a.step_ns, b.step_ns) == (1_115, 1_206)              # means, with the pause of 100 ns
    d = difference(a, b)
    assert d.ns == 91 == sum(c.ns for c in d.changes) == sum(p.ns for p in d.parts) == sum(k.ns for k in d.keys)


def test_seven_recordings_of_each_side_tell_five_percent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    a, b = side(tmp_path, "a", NOISE), side(tmp_path, "b", [round(1.05 * ns) for ns in NOISE])
    told = json.loads(shown(capsys, *a, "--against", *b, "--format", "json"))
    assert told["step_time"]["state"] == "worse"
    assert [len(told[x]["recordings"]) for x in "ab"] == [7, 7]
    assert sum(c["ns"] for c in told["changes"]) == told["difference_ns"]
    assert "7 recordings · step" in shown(capsys, *a, "--against", *b)
    paired = json.loads(shown(capsys, *a, "--against", *b, "--paired", "--format", "json"))
    assert "pairs" in paired["step_time"]["method"]
    same = json.loads(shown(capsys, *a, "--against", *side(tmp_path, "c", NOISE[::-1]), "--format", "json"))
    assert same["step_time"]["state"] == "same"


def test_what_lies_within_the_recordings_scatter_is_marked(tmp_path: Path) -> None:
    """Steps of one recording are alike to the nanosecond; recordings of the same thing are not."""
    def of(name: str, lengths: list[int]) -> list[Path]:
        return side(tmp_path, name, lengths)

    a, b = of("a", [1_000, 1_200, 1_100]), of("b", [1_150, 1_050, 1_220])
    (change,) = difference(*(pooled([typical([read(p)]) for p in files]) for files in (a, b))).changes
    assert change.doubtful
    (one,) = diff([read(a[0])], [read(b[0])]).changes
    assert (one.doubtful, one.scatter_ns) == (False, 0)
    (clear,) = difference(*(pooled([typical([read(p)]) for p in files]) for files in (a, of("c", [9_000] * 3)))).changes
    assert not clear.doubtful


def test_few_repetitions_reach_further() -> None:
    assert (reach(0), reach(1), reach(2), reach(100)) == (12.71, 12.71, 4.30, 2.0)


def test_one_recording_of_each_says_that_it_is_one(tmp_path: Path) -> None:
    a, b = (read(p) for p in side(tmp_path, "a", [1_000, 1_020]))
    assert any(note.startswith("One recording of each") for note in diff_rows.notes(diff([a], [b])))
    assert not any(note.startswith("One recording of each") for note in diff_rows.notes(diff([a], [a])))


@pytest.mark.parametrize(("arguments", "said"), [
    (["A", "B", "C"], "expected two runs, got 3"), (["A"], "expected two runs, got 1"),
    (["A", "B", "--against", "C", "--paired"], "pairs expected, got 2 runs before and 1 after"),
    (["A", "R", "--against", "B"], "A holds traces and results"),
])
def test_sides_that_do_not_fit_are_one_error(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    files = {name: str(product_run(tmp_path / f"{name}.json", 1_000)) for name in "ABC"}
    files["R"] = str(EXAMPLES / "serving_before.jsonl")
    assert main(["diff", *(files.get(word, word) for word in arguments)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert said in captured.err


def test_several_files_of_results_are_runs_of_a_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides: dict[str, list[Path]] = {}
    for name in ("before", "after"):
        for i, line in enumerate((EXAMPLES / f"serving_{name}.jsonl").read_text().splitlines()):
            sides.setdefault(name, []).append(tmp_path / f"{name}{i}.json")
            sides[name][-1].write_text(line)
    whole = shown(capsys, EXAMPLES / "serving_before.jsonl", EXAMPLES / "serving_after.jsonl")
    assert shown(capsys, *sides["before"], "--against", *sides["after"]) == whole


def test_a_folder_is_called_by_its_own_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("normal", "item"):
        (tmp_path / "secret_place" / name).mkdir(parents=True)
        product_run(tmp_path / "secret_place" / name / "rank0.json", 1_000)
    normal, item = (tmp_path / "secret_place" / name for name in ("normal", "item"))
    told = shown(capsys, normal, item)
    assert told.startswith("A: normal/ · step")
    assert "B: item/ · step" in told
    assert "A: normal/ … item/ · 2 recordings" in shown(capsys, normal, item, "--against", item)
    for form in ("table", "json", "md", "html"):
        assert "secret_place" not in shown(capsys, normal, item, "--format", form)


# ---- ranks that wait


def two_ranks(folder: Path, late: int, transfer: int = 300) -> list[Path]:
    """Three steps; rank 1 comes `late` ns after rank 0 to each all-reduce."""
    paths = []
    for rank, begin in ((0, 0), (1, late)):
        k = Kineto(rank=rank, world_size=2)
        for i in range(3):
            at = 10_000 * i
            k.step(i, at - 50, at + 9_000)
            k.kernel(GEMM, at, at + 1_000 + begin, launch=(at - 40, at - 30))
            k.kernel(REDUCE, at + 1_000 + begin, at + 1_000 + late + transfer, launch=(at - 28, at - 22))
        paths.append(k.write(folder / f"rank{rank}.json"))
    return paths


def test_a_peer_that_comes_later_is_no_slower_transfer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, late in (("a", 100), ("b", 700)):
        (tmp_path / name).mkdir()
        two_ranks(tmp_path / name, late)
    d = diff(read_all([tmp_path / "a"]), read_all([tmp_path / "b"]))
    a, b = d.inside
    assert a is not None
    assert b is not None
    assert (a.waiting_ns, a.transfer_ns, a.collectives) == (50, 300, 1.0)      # of a device: rank 0 waits, 1 does not
    assert (b.waiting_ns, b.transfer_ns) == (350, 300)
    line = "waiting for peers 50 ns in A, 350 ns in B (+300 ns); transfer 300 ns in A, 300 ns in B (0 ns)"
    assert line in (diff_rows.collectives_line(d) or "")
    assert document(d)["b"]["inside_collectives"] == {"waiting_ns": 350, "transfer_ns": 300, "collectives": 1.0}
    for form in ("table", "md", "html"):
        told = " ".join(shown(capsys, tmp_path / "a", tmp_path / "b", "--format", form).split())
        assert "waiting for peers 50 ns in A, 350 ns in B" in told
    assert diff_rows.collectives_line(diff(read_all([tmp_path / "a"]), read_all([tmp_path / "a"]))) is None


def test_recordings_are_not_matched_with_each_other(tmp_path: Path) -> None:
    """Waiting is of the ranks of one recording; two recordings of the same run say the same."""
    (tmp_path / "a").mkdir()
    two_ranks(tmp_path / "a", 100)
    one = typical(read_all([tmp_path / "a"]))
    again = typical(read_all([tmp_path / "a"]))
    several = difference(pooled([one, again]), one).inside
    assert several[0] == several[1]
    assert several[0] is not None


def test_ranks_are_no_repetitions(tmp_path: Path) -> None:
    """Eight ranks of the same steps know no more of the next step than one; ranks of one step know nothing of it."""
    def run(name: str, lengths: list[int], ranks: int) -> list[Path]:
        (tmp_path / name).mkdir()
        for rank in range(ranks):
            k, now = Kineto(rank=rank, world_size=ranks), 0
            for i, length in enumerate(lengths):
                k.step(i, now - 50, now + 20)
                k.kernel(GEMM, now, now + length + rank, launch=(now - 40, now - 20))
                now += 3_000
            k.write(tmp_path / name / f"rank{rank}.json")
        return sorted((tmp_path / name).iterdir())

    lengths = [1_000, 1_100, 1_050, 1_020, 1_000]
    one, eight = (typical(read_all(run(name, lengths, ranks))) for name, ranks in (("one", 1), ("eight", 8)))
    key = next(key for key in one.entries if not key.gap)
    assert (one.steps, eight.steps, eight.repetitions) == (4, 4, 32)
    expected = float(np.std(lengths[:4], ddof=1) / 2)
    assert one[key].scatter_ns == pytest.approx(expected)
    assert eight[key].scatter_ns == pytest.approx(expected)
    single = typical(read_all(run("single", [1_000], 8)))
    assert {entry.scatter_ns for entry in single.entries.values()} == {None}


# ---- counts and names


def test_a_launch_before_the_recording_is_no_fewer_runs(tmp_path: Path) -> None:
    """The first product's launch is not in B: it is of the operator that launches all others of its name."""
    runs = []
    for missing in (False, True):
        k = Kineto()
        for i in range(3):
            at = 10_000 * i
            k.step(i, at - 50, at + 9_000)
            k.kernel("void other(int)", at - 45, at, launch=(at - 49, at - 48))
            if missing and i == 1:
                k.kernel(GEMM, at, at + 1_000, correlation=1_000_000)
            else:
                k.kernel(GEMM, at, at + 1_000, launch=(at - 40, at - 20), op=k.op("aten::mm", at - 45, at - 10))
        runs.append([read(k.write(tmp_path / f"{missing}.json"))])
    d = diff(*runs)
    assert (d.ns, d.changes) == (0, ())
    assert {row.b.runs for row in d.keys if row.key.operator == "aten::mm" and not row.key.gap} == {1.0}


def test_of_two_operators_nobody_says_which_launched_it(tmp_path: Path) -> None:
    k = Kineto()
    for i in range(3):
        at = 10_000 * i
        k.step(i, at - 50, at + 9_000)
        for begin, name in ((at, "aten::mm"), (at + 2_000, "aten::addmm")):
            k.kernel(GEMM, begin, begin + 1_000, launch=(begin - 40, begin - 20),
                     op=k.op(name, begin - 45, begin - 10))
        k.kernel(GEMM, at + 4_000, at + 5_000, correlation=1_000_000 + i)
    run = typical([read(k.write(tmp_path / "t.json"))])
    assert {key.operator for key in run.entries if not key.gap} == {"aten::mm", "aten::addmm", ""}


def test_a_gap_of_two_causes_is_one_gap(tmp_path: Path) -> None:
    """The host waits for the device, then launches: blocked, then launch-starved, one gap before the product."""
    k = Kineto()
    for i in range(3):
        at = 10_000 * i
        k.step(i, at - 50, at + 9_000)
        k.kernel(GEMM, at, at + 1_000, launch=(at - 40, at - 20))
        k.call("cudaDeviceSynchronize", at - 10, at + 1_500)
        k.kernel("void layer_norm::ln_fwd_kernel<float>(int)", at + 4_000, at + 5_000, launch=(at + 3_900, at + 3_950))
    run = typical([read(k.write(tmp_path / "t.json"))])
    norm = {key.part: entry for key, entry in run.entries.items() if key.gap and "ln_fwd" in key.name}
    assert len(norm) > 1                                         # causes
    assert sum(entry.ns for entry in norm.values()) == 3_000
    assert sum(entry.runs for entry in norm.values()) == 1.0


def test_kernels_that_differ_in_a_template_argument_are_told_apart() -> None:
    names = ["void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl_nocast<"
             f"at::native::BinaryFunctor<{kind}, {kind}, {kind}, at::native::binary_internal::MulFunctor<float>>>("
             "at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)"
             for kind in ("float", "c10::BFloat16")]
    told = diff_rows.labels([*names, GEMM])
    assert len(set(told.values())) == 3
    assert told[GEMM] == GEMM
    first, second = diff_rows.footnotes(told)
    assert first.startswith("[1] elementwise_kernel<128, 4, gpu_kernel_impl_nocast<BinaryFunctor<float, ")
    assert second.startswith("[2] elementwise_kernel<128, 4, gpu_kernel_impl_nocast<BinaryFunctor<BFloat16, ")


def test_what_took_a_place_on_its_stream_is_one_replacement(tmp_path: Path) -> None:
    """Another thread launches in between, onto another stream:

        launches  norm old   copy   gelu      stream 7   norm │ old          │ gelu
                  norm new_1 copy new_2 gelu  stream 7   norm │ new_1  new_2 │ gelu       stream 20   copy
    """
    def step(names: list[str], path: Path) -> Path:
        k = Kineto()
        for i in range(3):
            at = 20_000 * i
            k.step(i, at, at + 15_000)
            for number, name in enumerate(names):
                begin = at + 5_000 + 1_000 * number
                k.kernel(f"void {name}(int)", begin, begin + 900, launch=(at + 100 * number, at + 100 * number + 50),
                         stream=20 if name == "copy" else 7)
        return k.write(path)

    a = step(["norm", "old", "copy", "gelu"], tmp_path / "a.json")
    b = step(["norm", "new_1", "copy", "new_2", "gelu"], tmp_path / "b.json")
    found = [c for c in diff([read(a)], [read(b)]).changes if not c.gap]
    assert [(c.kind, c.before_names, set(c.after_names)) for c in found if c.kind != "other"] == [
        ("replaced", ("void old(int)",), {"void new_1(int)", "void new_2(int)"})]


def test_graphs_recorded_as_a_whole_are_said_to_hide_gaps_and_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    n = Nsys()
    p = n.process()
    for i in range(3):
        at = 1_000 * (i + 1)
        p.graph(at, at + 900, launch=(at - 40, at - 20))
    whole = n.write(tmp_path / "whole.sqlite")
    for form in ("table", "md", "html", "json"):
        told = " ".join(shown(capsys, whole, product_run(tmp_path / "b.json", 1_000), "--format", form).split())
        assert "A cannot tell how idle the device is, and which kernels ran how often" in told
        assert "B cannot tell" not in told
    assert "--cuda-graph-trace=node" in told


def test_names_that_differ_far_behind_show_their_ends() -> None:
    names = ["void f<" + "long_argument, " * 30 + f"last_{i}>()" for i in (1, 2)]
    first, second = diff_rows.footnotes(diff_rows.labels(names))
    assert first.endswith("last_1>()")
    assert second.endswith("last_2>()")
