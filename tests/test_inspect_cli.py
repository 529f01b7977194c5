"""The commands: what they print, their exit codes, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import cubins
import pytest
from cubins import AFTER, BEFORE, FATBIN, run

from sublight.kernels.inspect import tools

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def listings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instructions come from the kept listings: the same on every machine."""
    monkeypatch.setattr(tools, "places", lambda _: ())


def test_inspect_prints_one_row_a_kernel_and_its_loops(capsys: Capture) -> None:
    code, text = run(capsys, "inspect", AFTER, "--warps", "4")
    assert code == 0
    lines = [line.split() for line in text.splitlines()]
    assert ["running_sums", "sm_90a", "32", "208", "0", "4", "16", "100", "%", "warps", "and", "registers", "138", "-",
            "lsu"] in lines
    assert "  fall-back     HMMA for bf16 on sm_90: HGMMA is what the format deserves" in text.splitlines()
    assert "0x0470-0x12b0" in text


def test_inspect_of_one_kernel(capsys: Capture) -> None:
    assert "running_sums" not in run(capsys, "inspect", AFTER, "--kernel", "tile*")[1]
    code, error = run(capsys, "inspect", AFTER, "--kernel", "attention")
    assert code == 2
    assert error == "--kernel attention: no kernel of that name; expected one of running_sums, tile_product"


def test_a_document_is_a_baseline_and_one_side_of_a_comparison(capsys: Capture, tmp_path: Path) -> None:
    document = tmp_path / "before.json"
    assert run(capsys, "inspect", BEFORE, "--warps", "4", "--format", "json", "-o", document) == (0, "")
    kernels = json.loads(document.read_text())["kernels"]
    assert [(kernel["name"], kernel["registers"], kernel["hot_spills"]) for kernel in kernels] == [
        ("running_sums", 55, 0), ("tile_product", 50, 0)]
    assert run(capsys, "gate", BEFORE, "--warps", "4", "--baseline", document) == (0, "2 kernels passed\n")
    code, text = run(capsys, "gate", AFTER, "--warps", "4", "--baseline", document)
    assert code == 1
    assert "baseline spills in loops 0" in text
    assert run(capsys, "compare", document, AFTER, "--warps", "4") == run(
        capsys, "compare", BEFORE, AFTER, "--warps", "4")


def test_a_baseline_may_be_code(capsys: Capture) -> None:
    code, text = run(capsys, "gate", AFTER, "--baseline", BEFORE, "--format", "json")
    assert code == 1
    assert {(one["kernel"], one["check"], one["got"]) for one in json.loads(text)["failures"]} == {
        ("running_sums", "baseline stack 0", "208"), ("running_sums", "baseline spills in loops 0", "138")}


def test_compare_puts_what_matters_first(capsys: Capture) -> None:
    code, text = run(capsys, "compare", BEFORE, AFTER, "--warps", "4", "--format", "json")
    assert code == 0
    assert [change["what"] for change in json.loads(text)["pairs"][0]["changes"]] == [
        "spills in loops", "blocks an SM", "bound by", "stack", "registers", "instructions", "pipe local"]


@pytest.mark.parametrize("command", ["inspect", "gate", "compare"])
@pytest.mark.parametrize("form", ["md", "html"])
def test_other_formats(command: str, form: str, capsys: Capture) -> None:
    words: list[str | Path] = [AFTER]
    words = {"inspect": words, "gate": [*words, "--max-spills", "0"], "compare": [BEFORE, *words]}[command]
    code, text = run(capsys, command, *words, "--format", form)
    assert code == (command == "gate")
    assert "running_sums" in text
    assert ("<!doctype html>" if form == "html" else "| kernel |") in text


def test_rules_of_a_file(capsys: Capture, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nkernels = "running*"\nmax-spills = 0\n'
                     '[[rule]]\nkernels = "tile*"\nrequire-tensor = "HMMA"\n')
    assert run(capsys, "gate", BEFORE, "--rules", rules) == (0, "2 kernels passed\n")
    assert run(capsys, "gate", AFTER, "--rules", rules)[0] == 1


def test_waves_of_a_shape(capsys: Capture) -> None:
    words = ("--shape", "4096x4096", "--tile", "64x32", "--device", "h200", "--warps", "4", "--format", "json")
    code, text = run(capsys, "inspect", BEFORE, "--kernel", "tile*", *words)
    wave, = json.loads(text)["waves"]
    # 50 registers: 7 x 256 a warp, 9 warps a quarter of the SM, 9 blocks of 4 warps; 132 x 9 = 1188 at once; 8192 tiles
    assert (code, wave["slots"], wave["tiles"], wave["rounds"], wave["last"]) == (0, 1188, 8192, 7, 1064)


def test_code_of_another_architecture_has_no_waves_on_a_device(capsys: Capture) -> None:
    words = ("--shape", "64x64", "--tile", "64x64", "--device", "b200", "--warps", "4")
    code, error = run(capsys, "inspect", BEFORE, *words)
    assert code == 2
    assert "code for sm_90a does not run there" in error


@pytest.mark.parametrize(("words", "says"), [
    (["inspect", BEFORE, "--shape", "64x64"], "need --shape MxN, --tile MxN and --device GPU"),
    (["inspect", BEFORE, "--shape", "64", "--tile", "8x8", "--device", "h200"], "expected two sizes"),
    (["inspect", BEFORE, "--shape", "64x64", "--tile", "8x8", "--device", "h200"], "expected --warps N"),
    (["inspect", BEFORE, "--warps", "33"], "1 to 32"),
    (["inspect", BEFORE, "--dynamic-shared", "-1"], "0 or more"),
    (["gate", BEFORE], "nothing to check"),
    (["gate", BEFORE, "--max-stack", "-1"], "0 or more"),
    (["gate", BEFORE, "--min-occupancy", "120"], "0 to 100"),
    (["gate", BEFORE, "--rules", "absent.toml"], "cannot read absent.toml"),
    (["gate", BEFORE, "--rules", "absent.toml", "--max-stack", "0"], "expected one of them"),
    (["gate", BEFORE, "--baseline", "absent.json"], "cannot read absent.json"),
    (["compare", BEFORE, "absent.cubin"], "No such file"),
    (["inspect", __file__], "holds no GPU code"),
])
def test_what_is_refused_is_one_line(words: list[str | Path], says: str, capsys: Capture) -> None:
    code, error = run(capsys, *words)
    assert code == 2
    assert says in error
    assert "\n" not in error


def test_what_is_not_known_is_a_question_mark_never_a_zero(capsys: Capture) -> None:
    lines = run(capsys, "inspect", FATBIN)[1].splitlines()
    row = next(line for line in lines if line.startswith("running_sums  sm_80 "))
    assert row.split()[2:12] == ["52", "0", "0", "?", "?", "?", "?", "?", "?", "?"]
    assert row.endswith("tiles.fatbin, cubin 1"), "PTX of the same kernel for the same architecture is in there too"
    assert run(capsys, "gate", FATBIN, "--max-spills", "0")[0] == 1, "spills that nobody could count passed"


def test_every_form_says_what_binds_what_to_change_and_what_is_assumed(capsys: Capture) -> None:
    for form in ("table", "md", "html"):
        text = " ".join(run(capsys, "inspect", AFTER, "--format", form)[1].split())
        assert "the loop at 0x0350 is bound by shared (224 clocks, tensor 64)" in text
        assert "4 warps, assumed: neither the launch nor the kernel says how many" in text
        assert "138 loads and stores of spilled registers in loops: allow more registers" in text


def test_shared_memory_that_nobody_told_makes_occupancy_a_limit(capsys: Capture) -> None:
    words = ("inspect", AFTER, "--kernel", "tile*", "--warps", "4")
    assert " 3,072 + ?      4     ≤ 9 " in run(capsys, *words)[1]
    assert " ≤ 9 " not in run(capsys, *words, "--dynamic-shared", "0")[1]
    gate = ("gate", *words[1:], "--min-blocks", "9")
    assert (run(capsys, *gate)[0], run(capsys, *gate, "--dynamic-shared", "0")[0]) == (1, 0)


def test_what_is_compiled_is_held_against_what_was_compiled(capsys: Capture) -> None:
    """A fatbin has PTX of the same names: no kernel of it is gone."""
    assert run(capsys, "gate", FATBIN, "--baseline", FATBIN, "--resources-only") == (0, "4 kernels passed\n")


def test_names_cannot_steer_a_terminal(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "x.cubin").write_bytes(cubins.cubin(name="f\x1b[2Jg\x07"))
    for command in (["inspect"], ["gate", "--max-registers", "0", "--min-blocks", "9"]):
        for form in ("table", "md", "html", "json"):
            code, text = run(capsys, command[0], tmp_path / "x.cubin", *command[1:], "--format", form)
            assert code in (0, 1)
            assert not set(text) & set("\x1b\x07")


def test_resources_alone(capsys: Capture) -> None:
    text = run(capsys, "inspect", AFTER, "--resources-only", "--warps", "4", "--format", "json")[1]
    kernels = json.loads(text)["kernels"]
    assert [(one["registers"], one["occupancy"]["blocks"], one["instructions"]) for one in kernels] == [
        (32, 16, None), (50, 9, None)]


def test_ptx_beside_compiled_code_is_not_gated_and_ptx_alone_cannot_be(capsys: Capture, tmp_path: Path) -> None:
    assert run(capsys, "gate", FATBIN, "--max-registers", "255") == (0, "4 kernels passed\n")
    (tmp_path / "x.ptx").write_text(".version 8.0\n.target sm_90\n.entry f() { }")
    code, error = run(capsys, "gate", tmp_path / "x.ptx", "--max-registers", "255")
    assert (code, error.startswith("PTX has no registers")) == (2, True)


def test_folders_around_the_code_are_not_shown(capsys: Capture) -> None:
    for form in ("table", "json", "md", "html"):
        assert str(BEFORE.parent) not in run(capsys, "inspect", BEFORE, "--format", form)[1]
