"""`sublight comm expect`: what it prints in each form, what it refuses, and that help needs no numpy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sublight.cli import main
from sublight.cli.comm.expect import quantity
from sublight.cli.comm.sizes import sizes
from sublight.errors import InputError

V3 = ("--top-k", "8", "--hidden", "7168", "--experts", "256", "--group-limit", "4")


def ask(*words: str) -> list[str]:
    return ["comm", "expect", *words]


def test_json_says_times_bandwidths_parts_and_basis(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ask("all_reduce", "--on", "10x4xH100", "--bytes", "64M:1G:x4", "--format", "json")) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["size"] for row in said["rows"]] == [64 << 20, 256 << 20, 1 << 30]
    for row in said["rows"]:
        assert 0 < row["low"] < row["seconds"] < row["high"]
        assert row["algorithm_bandwidth"] == pytest.approx(row["size"] / row["seconds"])
        assert row["bandwidth"] == pytest.approx(row["algorithm_bandwidth"] * 2 * 39 / 40)       # nccl-tests
        assert row["link_rate"] == 4 * 50e9
        assert row["limiter"] in row["terms"]
        assert "xxrjun" in row["basis"]


def test_table_and_markdown_have_a_row_for_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("table", "md"):
        assert main(ask("all_to_all", "--on", "2x8xH100", "--bytes", "1M,1G", "--format", form)) == 0
        text = capsys.readouterr().out
        assert "1M" in text
        assert "1G" in text
        assert "rail" in text
        assert "basis: 10 nodes" in text


@pytest.mark.parametrize(("measured", "state"), [
    ("92us", "faster than expected"), ("11.7ms", "as expected"), ("85GB/s", "as expected"), ("23.5GB/s", "slower than"),
])
def test_a_measured_value_gets_a_verdict(measured: str, state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ask("all_to_all", "--on", "2x8xH100", "--bytes", "1G", "--measured", measured, "--format", "json")) == 0
    verdict = json.loads(capsys.readouterr().out)["rows"][0]["verdict"]
    assert verdict["words"].startswith(state)
    if measured == "23.5GB/s":
        assert verdict["ratio"] == pytest.approx(3.65, abs=0.1)
        assert "if it is the rail" in verdict["words"]


def test_an_exchange_is_held_against_what_its_test_prints(capsys: pytest.CaptureFixture[str]) -> None:
    words = ask("combine", "--on", "4x8xH200", "--tokens", "4096", *V3, "--sms", "24", "--measured", "12.53GB/s")
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "RDMA GB/s" in text
    assert "slower than expected: 4." in text
    words = ask("dispatch", "--on", "8x8xH800", "--tokens", "128", *V3[:6], "--mode", "low-latency", "--format", "json")
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["bandwidth_name"] == "payload"


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "time.md"
    assert main(ask("all_gather", "--on", "2x8xH100", "--bytes", "1G", "--format", "md", "-o", str(target))) == 0
    assert target.read_text("utf-8").startswith("**all_gather** on 2x8xH100")
    refused = tmp_path / "none.md"
    assert main(ask("all_gather", "--on", "2x8xH999", "--bytes", "1G", "-o", str(refused))) == 2
    assert not refused.exists()


@pytest.mark.parametrize(("words", "said"), [
    (("all_reduce", "--on", "2x8xH100"), "all_reduce needs --bytes"),
    (("all_reduce", "--on", "2x8xH100", "--bytes", "sixty"), "is no size"),
    (("all_reduce", "--on", "2x8xH100", "--bytes", "1G:1M"), "does not grow"),
    (("all_reduce", "--on", "2x8xH100", "--bytes", "1G", "--tokens", "4"), "--tokens does not belong to all_reduce"),
    (("all_reduce", "--on", "2x8xH100", "--bytes", "1G", "--eager"), "say --kind one-shot"),
    (("all_reduce", "--on", "2x8xH100", "--bytes", "1M,1G", "--measured", "1ms"), "say one size"),
    (("all_reduce", "--on", "2x8xH100", "--bytes", "1G", "--measured", "fast"), "is no time and no bandwidth"),
    (("dispatch", "--on", "8x8xH800", "--tokens", "4096", "--top-k", "8"), "dispatch needs --hidden, --experts"),
    (("dispatch", "--on", "8x8xH800", "--tokens", "4096", *V3, "--bytes", "1G"), "--bytes does not belong to dispatch"),
    (("dispatch", "--on", "8x8xH800", "--tokens", "4096", *V3, "--graph"), "--graph does not belong to dispatch"),
])
def test_usage_that_cannot_be_answered_is_exit_code_2(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(ask(*words)) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert not captured.out


def test_sizes_and_quantities_read_as_they_are_written() -> None:
    assert list(sizes("1K:1M:x32")) == [1 << 10, 1 << 15, 1 << 20]
    assert list(sizes("4096, 64M,1.5K")) == [4096, 64 << 20, 1536]
    assert list(sizes("1K:4K")) == [1024, 2048, 4096]
    for text in ("0", "0.5", "-1", "1P", "1:2:x1", "1:1T:x2:3"):
        with pytest.raises(InputError):
            sizes(text)
    assert quantity("44GB/s") == (44e9, "B/s")
    seconds, unit = quantity("310us")
    assert unit == "s"
    assert seconds == pytest.approx(310e-6)
    for text in ("0us", "44", "44GB", "-1ms"):
        with pytest.raises(InputError):
            quantity(text)


def test_help_loads_no_numpy() -> None:
    code = ("import sys\nfrom sublight.cli import main\ntry:\n    main(['comm', 'expect', '--help'])\n"
            "except SystemExit:\n    pass\nprint(sorted({'numpy', 'rich', 'scipy'} & sys.modules.keys()))")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.endswith("[]\n")


def test_an_exchange_loads_no_numpy() -> None:
    """`explain` asks for many of them: importing and asking stays cheap."""
    code = ("import sys\nfrom sublight.cluster import parse\n"
            "from sublight.comm.expect import Exchange, expected_exchange\n"
            "e = Exchange('dispatch', 4096, 8, 7168, 256, 64, 8, group_limit=4)\n"
            "expected_exchange(e, parse('8x8xH800'))\nprint(sorted({'numpy', 'rich', 'scipy'} & sys.modules.keys()))")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_no_figure_is_cut_off_where_lines_are_short(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
                                                    ) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["comm", "expect", "all_reduce", "--on", "8xH100", "--bytes", "1,1000000"]) == 0
    assert "…" not in capsys.readouterr().out


def test_a_custom_all_reduce_of_a_format_that_it_cannot_add_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("int8", "foo"):
        assert main(["comm", "expect", "all_reduce", "--on", "8xH100", "--bytes", "1K", "--kind", "one-shot", "--dtype",
                     form]) == 2
        assert "one-shot adds up bf16, fp16, fp32" in capsys.readouterr().err
