"""The command line's promises: exit codes, streams, files, pipes, colours, width and how fast it starts."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import KINETO, shared
from kineto import Kineto

from sublight import __version__
from sublight.cli import main
from sublight.device import catalog
from sublight.errors import InputError
from sublight.explain.window import Window

ESCAPE = "\x1b"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two marked steps of 100 µs on one device; its first activity begins 11 µs after the trace does."""
    k = Kineto()
    for step in range(2):
        t = 100_000 * step
        for i in range(8):
            k.kernel("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", t + 11_000 + 10_000 * i, t + 20_000 + 10_000 * i,
                     launch=(t + 1_000 + 1_000 * i, t + 1_500 + 1_000 * i))
        k.kernel("some_kernel_with_a_very_long_name_" * 5 + "<float, int>", t + 91_000, t + 95_000,
                 launch=(t + 10_000, t + 10_500))
        k.step(step, t, t + 100_000)
    return k.write(tmp_path_factory.mktemp("cli") / "trace.json")


def sublight(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS")}
    return subprocess.run([sys.executable, "-m", "sublight", *arguments], capture_output=True, text=True,
                          env=clean | env, timeout=60, check=False)


def on_a_terminal(*arguments: str, **env: str) -> tuple[str, str]:
    """What a command prints on standard output and standard error, each of them a terminal."""
    streams = [pty.openpty(), pty.openpty()]
    clean = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen([sys.executable, "-m", "sublight", *arguments], stdout=streams[0][1],
                               stderr=streams[1][1], env=clean | env)
    for _, ours in streams:
        os.close(ours)
    out: dict[int, bytes] = {reader: b"" for reader, _ in streams}
    open_ones = set(out)
    while open_ones:
        for reader in select.select(list(open_ones), [], [], 60)[0]:
            try:
                data = os.read(reader, 65_536)
            except OSError:                      # Linux's way of saying that the other side is closed
                data = b""
            if not data:
                open_ones.discard(reader)
                os.close(reader)
            out[reader] += data
    assert process.wait(60) == 0
    return out[streams[0][0]].decode(), out[streams[1][0]].decode()


# ---------------------------------------------------------------- exit codes and options


def test_fine_is_0_with_nothing_on_standard_error(trace: Path) -> None:
    for form in ("table", "json", "md", "svg", "html", "perfetto"):
        done = sublight("explain", str(trace), "--format", form)
        assert (done.returncode, done.stderr) == (0, ""), form
        assert done.stdout.strip()


@pytest.mark.parametrize("arguments", [
    [], ["nonsense"], ["explain"], ["explain", "t.json", "--format", "nonsense"], ["explain", "t.json", "--nonsense"],
    ["explain", "gone.json"], ["explain", "gone.json", "--device", "nonsense"],
    ["explain", "gone.json", "--window", "x"],
])
def test_bad_usage_is_2_with_nothing_on_standard_output(arguments: list[str]) -> None:
    done = sublight(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith(("usage: sublight", "sublight: "))


def test_version() -> None:
    done = sublight("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"sublight {__version__}\n", "")


def test_help_names_every_command_and_option() -> None:
    done = sublight("--help")
    assert done.returncode == 0
    assert "explain" in done.stdout
    assert "demo" in done.stdout
    assert "Exit codes" in done.stdout
    done = sublight("explain", "--help")
    for option in ("--device", "--window", "--format", "--output"):
        assert option in done.stdout


@pytest.mark.parametrize(("text", "kind", "start_ns", "end_ns"), [
    ("step", "step", 0, 0), ("all", "all", 0, 0), ("default", "default", 0, 0),
    ("10:25", "A:B", 10_000_000, 25_000_000), ("10ms:25ms", "A:B", 10_000_000, 25_000_000),
    ("500us:0.25s", "A:B", 500_000, 250_000_000), ("0:7ns", "A:B", 0, 7), ("1.5µs:2us", "A:B", 1_500, 2_000),
])
def test_forms_of_a_window(text: str, kind: str, start_ns: int, end_ns: int) -> None:
    assert Window.parse(text) == Window(kind, start_ns, end_ns)


@pytest.mark.parametrize("text", ["", "x", "steps", "5", "5:", ":5", "5:5", "7:3", "1.2.3:4", ".:5", "1h:2h", "-1:3",
                                  "1:2:3", "1e3:2e3", "nan:inf"])
def test_bad_windows_are_named(text: str) -> None:
    with pytest.raises(InputError, match="expected step, all, or A:B such as 10ms:25ms"):
        Window.parse(text)


def test_a_bad_window_is_refused_before_the_file_is_read(tmp_path: Path) -> None:
    done = sublight("explain", str(tmp_path / "gone.json"), "--window", "7:3")
    assert "no window '7:3'" in done.stderr


def as_json(trace: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main(["explain", str(trace), "--format", "json", *more]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_each_form_of_a_window_accounts_for_that_window(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps: 11 to 95 µs and 111 to 195 µs."""
    device = as_json(trace, capsys)["devices"][0]
    assert (device["window"], device["windows"]) == ("step", [[0, 84_000], [100_000, 184_000]])
    device = as_json(trace, capsys, "--window", "step")["devices"][0]
    assert device["window_ns"] == 168_000
    device = as_json(trace, capsys, "--window", "all")["devices"][0]
    assert (device["window"], device["window_ns"]) == ("all", 184_000)
    device = as_json(trace, capsys, "--window", "5us:0.05ms")["devices"][0]
    assert (device["window"], device["windows"]) == ("A:B", [[5_000, 50_000]])


def test_windows_that_the_file_does_not_have(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(trace), "--window", "1s:2s"]) == 2
    assert "span is only 0.184 ms" in capsys.readouterr().err
    k = Kineto()
    k.kernel("a", 0, 1_000)
    assert main(["explain", str(k.write(tmp_path / "t.json")), "--window", "step"]) == 2
    refused = capsys.readouterr().err
    assert "no step is marked in the file, and its kernels hold one step at most; use --window all" in refused


def test_an_unknown_device_names_the_nearest(tmp_path: Path) -> None:
    key = catalog()[0].key
    done = sublight("explain", str(tmp_path / "gone.json"), "--device", key + "x")
    assert done.returncode == 2
    assert f"no device '{key}x' in the catalog; nearest: " in done.stderr
    assert key in done.stderr.split("nearest: ")[1].split(", ")[0]


def test_a_device_of_the_catalog_takes_the_place_of_the_files(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = next(d for d in catalog() if d.sms != 132)
    device = as_json(trace, capsys, "--device", other.key.upper())["devices"][0]
    assert (device["catalog_key"], device["sms"], device["device_name"]) == (other.key, other.sms, other.title)


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("form", ["table", "json", "md", "svg", "html", "perfetto"])
def test_a_file_gets_what_standard_output_would(
    form: str, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.txt"
    assert main(["explain", str(trace), "--format", form]) == 0
    printed = capsys.readouterr().out
    assert main(["explain", str(trace), "--format", form, "-o", str(target)]) == 0
    assert capsys.readouterr().out == ""
    assert target.read_text("utf-8") == printed
    assert [p.name for p in tmp_path.iterdir()] == ["out.txt"]
    mask = os.umask(0)
    os.umask(mask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("form", ["table", "json", "md", "svg", "html", "perfetto"])
@pytest.mark.parametrize("kept", [True, False], ids=["there before", "new"])
def test_after_a_failure_half_way_a_file_is_as_it_was(
    form: str, kept: bool, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.txt"
    if kept:
        target.write_text("precious")

    def fail(*arguments: Any) -> str:
        if form == "table":
            arguments[1].print("half a table")
        raise RuntimeError("planted")

    monkeypatch.setattr({"table": "sublight.show.terminal.print_explanation", "json": "sublight.show.json.document",
                         "md": "sublight.show.markdown.markdown", "svg": "sublight.show.svg.svg",
                         "html": "sublight.show.html.html", "perfetto": "sublight.show.perfetto.perfetto"}[form], fail)
    with pytest.raises(RuntimeError, match="planted"):
        main(["explain", str(trace), "--format", form, "-o", str(target)])
    assert [p.name for p in tmp_path.iterdir()] == (["out.txt"] if kept else [])
    assert not kept or target.read_text() == "precious"


def test_after_a_kill_half_way_a_file_is_as_it_was(trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("precious")
    program = (
        "import os, signal, sys, sublight.show.terminal as terminal\n"
        "def half(explanation, console):\n"
        "    console.print('half a table'); console.file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "terminal.print_explanation = half\n"
        "from sublight.cli import main; main(sys.argv[1:])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, "explain", str(trace), "-o", str(target)], timeout=60,
                          check=False)
    assert done.returncode == -signal.SIGKILL
    assert target.read_text() == "precious"


def test_where_nothing_can_be_written_is_said_before_the_trace_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    gone = str(tmp_path / "gone.json")
    for target in (tmp_path / "no folder" / "out.txt", tmp_path / "file" / "out.txt", tmp_path):
        done = sublight("explain", gone, "-o", str(target))
        assert done.returncode == 2
        assert done.stderr.startswith("sublight: cannot write ")
        assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = sublight("explain", str(tmp_path / "gone.json"), "-o", str(tmp_path / "out.txt"))
    tmp_path.chmod(0o700)
    assert done.stderr.startswith("sublight: cannot write ")


@pytest.mark.parametrize("form", ["table", "json", "md", "svg", "html", "perfetto"])
def test_a_closed_pipe_is_no_error(form: str, trace: Path) -> None:
    """`sublight explain … | head -0`."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "sublight", "explain", str(trace), "--format", form], stdout=writer,
                          stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_interrupted_is_one_line_and_130() -> None:
    # A shell's background jobs ignore interrupts, and so would what they start: the test must not depend on it.
    process = subprocess.Popen([sys.executable, "-m", "sublight", "explain", "-"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        assert process.stdin is not None
        process.stdin.write('{"traceEvents": [')
        process.stdin.flush()
        time.sleep(2.0)                          # well into reading
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, "", "sublight: interrupted\n")


# ---------------------------------------------------------------- what a terminal sees


def test_a_terminal_sees_colours_and_progress_that_vanishes(trace: Path) -> None:
    out, err = on_a_terminal("explain", str(trace))
    assert ESCAPE in out
    assert "reading trace.json" in err


def test_no_color_means_no_escape_codes(trace: Path) -> None:
    out, _ = on_a_terminal("explain", str(trace), NO_COLOR="1")
    assert "window" in out
    assert ESCAPE not in out


@pytest.mark.heavy
@pytest.mark.parametrize("form", ["table", "json", "md", "svg", "html", "perfetto"])
@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}, {"TERM": "xterm-256color"}], ids=str)
def test_what_is_no_terminal_sees_no_escape_codes(form: str, env: dict[str, str], trace: Path) -> None:
    done = sublight("explain", str(trace), "--format", form, **env)
    assert ESCAPE not in done.stdout + done.stderr



@pytest.mark.heavy
@pytest.mark.parametrize("which", ["small", *KINETO])
def test_a_table_that_is_no_terminals_is_80_columns_wide(which: str, trace: Path) -> None:
    path = trace if which == "small" else shared(KINETO[which])
    done = sublight("explain", str(path), COLUMNS="200")
    assert done.returncode == 0
    too_long = [line for line in done.stdout.splitlines() if len(line) > 80]
    assert not too_long
    assert max(len(line) for line in done.stdout.splitlines()) > 60


@pytest.mark.parametrize("form", ["table", "json", "md", "svg", "html", "perfetto"])
def test_a_terminal_without_unicode(form: str, trace: Path) -> None:
    done = sublight("explain", str(trace), "--format", form, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert form != "json" or json.loads(done.stdout)["devices"]


def test_the_demo_is_80_columns_wide_and_offline(tmp_path: Path) -> None:
    done = sublight("demo", https_proxy="http://127.0.0.1:9", http_proxy="http://127.0.0.1:9", HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert ESCAPE not in done.stdout


# ---------------------------------------------------------------- how fast it starts

HEAVY = ("numpy", "rich", "msgspec", "zstandard", "torch", "pandas", "cxxfilt")


def imported(program: str) -> set[str]:
    """The top-level modules that a program has loaded at its end."""
    tail = "\nimport sys; print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program + tail], capture_output=True, text=True, check=True)
    return set(re.findall(r"\w+", done.stderr))


HELP = "from sublight.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"


@pytest.mark.parametrize("program", ["import sublight", HELP, "import sublight; dir(sublight); sublight.__version__"])
def test_starting_imports_nothing_heavy(program: str) -> None:
    assert "sublight" in imported(program)
    assert not imported(program) & set(HEAVY)


def test_the_check_sees_a_heavy_import() -> None:
    assert "numpy" in imported("import sublight; sublight.Trace")


def cpu_s(*arguments: str) -> float:
    """The median CPU time of seven runs of the interpreter."""
    spent = []
    for _ in range(7):
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        spent.append(usage.ru_utime + usage.ru_stime)
    return statistics.median(spent)


def test_starting_costs_little() -> None:
    """Beyond a bare interpreter: under 0.15 s of CPU for the import, under 0.35 s for the help."""
    bare = cpu_s("-c", "pass")
    assert cpu_s("-c", "import sublight") - bare < 0.15
    assert cpu_s("-m", "sublight", "--help") - bare < 0.35
