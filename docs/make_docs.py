"""Make what comes from the program itself: the README's figures and picture, and the output of every example.

    python docs/make_docs.py                       # fetches the two public traces
    python docs/make_docs.py train.json eager_trace.json.gz
    python docs/make_docs.py --examples            # only runs the examples of the pages again

An example is a line `$ command` of a fenced `console` block. It is run in a temporary folder that holds the
traces of docs/examples and sublight/demo. Outputs with a line `...` were cut by hand: the tests check them, and
nothing rewrites them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS, README, PICTURE = ROOT / "docs", ROOT / "README.md", ROOT / "docs/pictures/h800.svg"
TRAIN_URL = ("https://raw.githubusercontent.com/deepseek-ai/profile-data/"
             "449602428a1b023acb8a505d4f34fef536535db6/train.json")
EAGER_URL = ("https://raw.githubusercontent.com/AMD-AGI/TraceLens/"
             "171dd74721ca1ec45709e5805b68ae1f65e27811/tests/traces/b200/eager_trace.json.gz")
BEGIN, END = "<!-- {}: made by docs/make_docs.py -->", "<!-- end -->"
RUNS = ("sublight", "python")

# What the peers printed for the two files; the README has the commands and versions.
PEERS = {
    "train_flight": ("no COMMUNICATION row", "total_comm_time 0.0 ms"),
    "train_exposed": ("comp_comm_overlap NaN", "exposed_comm_time 0.0 ms"),
    "train_compute": ("99.60 %", "99.605 %"),
    "train_idle": ("0.39 %", "0.385 %"),
    "eager_flight": ("21 µs", "0.022 ms"),
    "eager_exposed": ("comp_comm_overlap 0.0 %", "0.022 ms"),
    "eager_idle": ("87.20 %", "86.274 %"),
}


# ---- the examples of the pages


@dataclass(frozen=True)
class Example:
    """A command of a page and the output that the page shows; lines are those of the output in the page."""

    page: Path
    line: int
    command: str
    expected: str
    lines: tuple[int, int]


def examples(page: Path) -> tuple[Example, ...]:
    """The commands of a page's fenced `console` blocks, in order."""
    out: list[Example] = []
    lines = page.read_text("utf-8").split("\n")
    inside, command, start = False, "", 0

    def close(end: int) -> None:
        if command:
            out.append(Example(page, start, command, "\n".join(lines[start:end]) + "\n", (start, end)))

    for number, line in enumerate(lines):
        if not inside:
            inside, command = line == "```console", ""
        elif line == "```":
            close(number)
            inside, command = False, ""
        elif line.startswith("$ "):
            close(number)
            command, start = line[2:], number + 1
    return tuple(out)


def traces() -> tuple[Path, ...]:
    """The small traces: of docs and of the demo."""
    return (*sorted(DOCS.glob("examples/*.json")), *sorted((ROOT / "sublight/demo").glob("*.json.gz")))


def prepare(folder: Path) -> None:
    """Put the small traces into a folder."""
    for trace in traces():
        shutil.copy(trace, folder)


def run(command: str, folder: Path) -> str:
    """What a command of a page prints, data and messages together; an exit code other than 0 in a last line.

    Raises ValueError for anything but sublight and python.
    """
    words = shlex.split(command)
    if words[0] not in RUNS:
        raise ValueError(f"examples run {' and '.join(RUNS)} only, not: {command}")
    home = Path(sys.executable).parent
    path = os.pathsep.join([str(home), os.environ.get("PATH", os.defpath)])
    ran = subprocess.run(
        [str(home / words[0]), *words[1:]], cwd=folder, stdin=subprocess.DEVNULL, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, encoding="utf-8",
        env=os.environ | {"PATH": path, "NO_COLOR": "1", "COLUMNS": "80", "PYTHONWARNINGS": "error"},
    )
    return ran.stdout + (f"(exit code {ran.returncode})\n" if ran.returncode else "")


def pages() -> Iterator[Path]:
    """Every page: the README and what lies in docs."""
    yield from (README, *sorted(DOCS.rglob("*.md")))


def refresh() -> None:
    """Run every example whose output is shown whole, and write what it prints into its page."""
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        for page in pages():
            found = examples(page)
            lines = page.read_text("utf-8").split("\n")
            for example in reversed(found):
                if "..." in [line.strip() for line in example.expected.split("\n")]:
                    continue
                start, end = example.lines
                printed = [line.rstrip() for line in run(example.command, Path(name)).rstrip().split("\n")]
                keep_blank = [""] if end < len(lines) and lines[end].startswith("$ ") else []
                lines[start:end] = printed + keep_blank
            page.write_text("\n".join(lines), "utf-8")


# ---- the README's figures


def local(path: str, name: str, folder: Path) -> str:
    """A path under the name that the public file has, so that titles do not depend on where it was kept."""
    if path.startswith(("http://", "https://")):
        return path
    from sublight.observe.source import Damage, open_bytes

    target = folder / name
    target.write_bytes(b"".join(open_bytes(path, Damage())))
    return str(target)


def explain(path: str, form: str) -> str:
    """The command's own output in a format."""
    command = [sys.executable, "-m", "sublight", "explain", path, "--format", form]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, encoding="utf-8")
    if ran.returncode:
        raise SystemExit(ran.stderr.strip())
    return ran.stdout


def first_screen(train: str) -> str:
    """The verdict, the picture and the table of DeepSeek's training trace."""
    text = explain(train, "md")
    verdict = json.loads(explain(train, "json"))["devices"][0]["verdict"]
    table = [line for line in text.split("\n") if line.startswith("|")]
    picture = f"![{verdict}]({PICTURE.relative_to(ROOT)})"
    # A finding's line up to the end of its claim; what to do is in the report itself.
    claims = [re.split(r"\. (?=[A-Z])", line)[0].rstrip(".") + "." for line in text.split("\n")
              if line.startswith("- **")]
    summary = "<details><summary>The same as a table, with the findings</summary>"
    return "\n".join([picture, "", summary, "", *table, "", *claims, "", "</details>"])


def comparison(train: str, eager: str) -> str:
    """Our figures beside those that the peers print for the same two files."""
    t, e = (json.loads(explain(path, "json"))["devices"][0] for path in (train, eager))

    def ms(ns: int) -> str:
        return f"{ns / 1e6:.3f} ms"

    def share(ns: int, of: dict[str, Any]) -> str:
        return f"{100 * ns / of['window_ns']:.2f} %"

    compute = sum(part["ns"] for part in t["parts"] if part["group"] == "compute")
    ours = {
        "train_flight": ("train.json: communication in flight", ms(t["communication"]["union_ns"])),
        "train_exposed": ("train.json: exposed", ms(t["communication"]["exposed_ns"])),
        "train_compute": ("train.json: compute, of the span", share(compute, t)),
        "train_idle": ("train.json: idle", share(t["idle_ns"], t)),
        "eager_flight": ("eager_trace: communication in flight", ms(e["communication"]["union_ns"])),
        "eager_exposed": ("eager_trace: exposed", ms(e["communication"]["exposed_ns"])),
        "eager_idle": ("eager_trace: idle", share(e["idle_ns"], e)),
    }
    rows = ["| | sublight | HolisticTraceAnalysis 0.5.0 | TraceLens 0.1.0 |", "|:--|--:|--:|--:|"]
    rows += [f"| {label} | {value} | {' | '.join(PEERS[key])} |" for key, (label, value) in ours.items()]
    return "\n".join(rows)


def made(train: str, eager: str) -> tuple[dict[str, str], str]:
    """(text by the name of its place in the README, the picture)."""
    with tempfile.TemporaryDirectory() as name:
        train = local(train, "train.json", Path(name))
        eager = local(eager, "eager_trace.json", Path(name))
        script = "```python\n" + (DOCS / "check_h800.py").read_text("utf-8") + "```"
        texts = {"first screen": first_screen(train), "comparison": comparison(train, eager), "check": script}
        return texts, explain(train, "svg")


def between(text: str, name: str) -> str:
    """What stands between the markers of a place in the README. Raises ValueError if they are missing."""
    begin = BEGIN.format(name)
    if begin not in text:
        raise ValueError(f"README.md has no line {begin}")
    return text.split(begin, 1)[1].split(END, 1)[0].strip("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the pages and pictures that come from the program.")
    parser.add_argument("train", nargs="?", default=TRAIN_URL, help="train.json of deepseek-ai/profile-data")
    parser.add_argument("eager", nargs="?", default=EAGER_URL, help="TraceLens' b200/eager_trace.json.gz")
    parser.add_argument("--examples", action="store_true", help="only the examples of the pages")
    options = parser.parse_args()
    refresh()
    if options.examples:
        return
    texts, picture = made(options.train, options.eager)
    text = README.read_text("utf-8")
    for name, new in texts.items():
        begin = BEGIN.format(name)
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{new}\n\n{END}{rest.partition(END)[2]}"
    README.write_text(text, "utf-8")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture, "utf-8")


if __name__ == "__main__":
    main()
