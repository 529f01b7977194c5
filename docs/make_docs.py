"""Make what comes from the program itself: the README's figures and picture, and the output of every example.

    python docs/make_docs.py                       # fetches the two public traces
    python docs/make_docs.py train.json eager_trace.json.gz
    python docs/make_docs.py train.json eager_trace.json.gz h100.json.gz folder_of_eight_ranks
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
import runpy
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
PAGE = ROOT / "docs/pictures/h800.html"
TRAIN_URL = ("https://raw.githubusercontent.com/deepseek-ai/profile-data/"
             "449602428a1b023acb8a505d4f34fef536535db6/train.json")
EAGER_URL = ("https://raw.githubusercontent.com/AMD-AGI/TraceLens/"
             "171dd74721ca1ec45709e5805b68ae1f65e27811/tests/traces/b200/eager_trace.json.gz")
# Two more, which are not fetched; without them their place in the README stays as it is.
QWEN = "https://github.com/AMD-AGI/TraceLens/blob/171dd74/tests/traces/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
DLRM = "https://github.com/facebookresearch/param/blob/1e115ff/et_replay/tests/inputs/dlrm_kineto.tar.gz"
BEGIN, END = "<!-- {}: made by docs/make_docs.py -->", "<!-- end -->"
RUNS = ("sublight", "python")
WHAT_IFS = ("communication=hidden", "gemm=2x")

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
    """Put the small traces into a folder, and what else the pages use: topologies, logs, measurements, exports."""
    others = (p for p in sorted(DOCS.glob("examples/**/*")) if p.is_file() and p.suffix not in (".py", ".pyc"))
    for path in (*traces(), *others):
        shutil.copy(path, folder)
    runpy.run_path(str(DOCS / "examples/make.py"))["exports"](folder)


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


def explain(*paths: str, form: str, what_ifs: tuple[str, ...] = ()) -> str:
    """The command's own output in a format."""
    asked = [word for text in what_ifs for word in ("--whatif", text)]
    command = [sys.executable, "-m", "sublight", "explain", *paths, "--format", form, *asked]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, encoding="utf-8")
    if ran.returncode:
        raise SystemExit(ran.stderr.strip())
    return ran.stdout


def explained(*paths: str, what_ifs: tuple[str, ...] = ()) -> dict[str, Any]:
    """The command's JSON."""
    made: dict[str, Any] = json.loads(explain(*paths, form="json", what_ifs=what_ifs))
    return made


def ms(ns: int) -> str:
    return f"{ns / 1e6:.3f} ms"


def share(ns: float, of_ns: int, decimals: int = 1) -> str:
    return f"{100 * ns / of_ns:.{decimals}f} %"


def first_screen(train: str) -> str:
    """The verdict, the picture, the table and two what-ifs of DeepSeek's training trace."""
    text = explain(train, form="md")
    device = explained(train, what_ifs=WHAT_IFS)["devices"][0]
    verdict = device["verdict"]
    table = [line for line in text.split("\n") if line.startswith("|")]
    picture = f"[![{verdict}]({PICTURE.relative_to(ROOT)})]({PAGE.relative_to(ROOT)})"
    # A finding's line up to the end of its claim; what to do is in the report itself.
    claims = [re.split(r"\. (?=[A-Z])", line)[0].rstrip(".") + "." for line in text.split("\n")
              if line.startswith("- **")]
    summary = "<details><summary>The same as a table, with the findings</summary>"
    return "\n".join([picture, "", summary, "", *table, "", *claims, "", "</details>", "", *what_if(device["replay"])])


def page(train: str) -> str:
    """The HTML report of DeepSeek's training trace."""
    with tempfile.TemporaryDirectory() as name:
        return explain(local(train, "train.json", Path(name)), form="html")


def what_if(played: dict[str, Any]) -> list[str]:
    """What two changes would save, by the replay."""
    if played["refused"]:
        raise SystemExit(f"no what-if for the README: {played['refused']}")
    rows = [f"| `{w['text']}` | {ms(w['gain_ns_low'])} to {ms(w['gain_ns_high'])} | {w['next_limit']} |"
            for w in played["what_ifs"]]
    delays = share(played["unexplained_share"], 1)
    said = ("What a fix would save, by [replay](docs/replay.md) of the step's dependencies. It misses the measured "
            f"time by {100 * played['error']:.2f} %; delays without a cause sum to {delays} of it.")
    return [said, "", "| `--whatif` | saves | then the limit is |", "|:--|--:|:--|", *rows]


def ranks(folder: str) -> list[str]:
    """Who waits for whom among the ranks of DLRM."""
    told = explained(*sorted(map(str, Path(folder).glob("*.json*"))))["ranks"]
    if told["refused"]:
        raise SystemExit(f"no ranks for the README: {told['refused']}")
    order = {label: i for i, label in enumerate(told["labels"])}
    rows = sorted(told["stragglers"], key=lambda s: order[s["rank"]])
    residual = f"{told['residual']['max_ns'] / 1e3:.1f} µs"

    def line(head: str, key: str) -> str:
        cells = [f"{r[key] / 1e6:.3f}" if key.endswith("_ns") else str(r[key]) for r in rows]
        return f"| {head} | {' | '.join(cells)} |"

    transfer = " to ".join(dict.fromkeys(f"{f(r['transfer_ns'] for r in rows) / 1e6:.3f}" for f in (min, max)))
    straggler = next(f for f in told["findings"] if f["code"] == "SL104")
    return [
        f"Eight ranks of a DLRM training on V100s ([dlrm_kineto.tar.gz]({DLRM})). Ends of {rows[0]['collectives']} "
        f"collectives agree within {residual} once the clocks are aligned; so waiting is told from transfer, which "
        f"takes {transfer} ms a rank. {straggler['code']}: {straggler['claim']}.", "",
        f"| | {' | '.join(r['rank'] for r in rows)} |", "|:--|" + "--:|" * len(rows), line("waiting, ms", "waiting_ns"),
        line("came last", "last_in"), line("cost the others, ms", "late_ns"),
    ]


def speed(h100: str) -> str:
    """How far a forward pass of Qwen1.5 is from the speed of light."""
    device = explained(h100)["devices"][0]
    found = device["bounds"]
    parts = {p["name"]: p for p in found["parts"]}
    gemm = parts["gemm"]
    above = sorted((p for p in found["parts"] if p is not gemm), key=lambda p: -p["above_ns"])[:3]
    owned = sum(gemm[key] for key in ("at_bound_ns", "above_ns", "unknown_ns"))
    far = next(f for f in device["findings"] if f["code"] == "SL302")
    others = ", ".join(f"{p['name']} {ms(p['above_ns'])}" for p in above)
    claim = far["claim"].split(" is spent", 1)[0]
    return (
        f"A step of Qwen1.5 0.5B on an H100 ([its trace]({QWEN})): [bounds](docs/bounds.md) are known for "
        f"{share(found['known_share'], 1)} of kernel time. Of {ms(owned)} of gemm, {share(gemm['at_bound_ns'], owned)} "
        f"is what an H100 needs at least. Above their bound: {others}. {claim} is spent there by operators that take "
        "over twice their bound, and over twice what streaming their bytes from memory takes."
    )


def light(h100: str, folder: str) -> str:
    """Several ranks, and one trace against its bounds."""
    return "\n".join([*ranks(folder), "", speed(h100)])


def comparison(train: str, eager: str) -> str:
    """Our figures beside those that the peers print for the same two files."""
    t, e = (explained(path)["devices"][0] for path in (train, eager))
    compute = sum(part["ns"] for part in t["parts"] if part["group"] == "compute")
    ours = {
        "train_flight": ("train.json: communication in flight", ms(t["communication"]["union_ns"])),
        "train_exposed": ("train.json: exposed", ms(t["communication"]["exposed_ns"])),
        "train_compute": ("train.json: compute, of the span", share(compute, t["window_ns"], 2)),
        "train_idle": ("train.json: idle", share(t["idle_ns"], t["window_ns"], 2)),
        "eager_flight": ("eager_trace: communication in flight", ms(e["communication"]["union_ns"])),
        "eager_exposed": ("eager_trace: exposed", ms(e["communication"]["exposed_ns"])),
        "eager_idle": ("eager_trace: idle", share(e["idle_ns"], e["window_ns"], 2)),
    }
    rows = ["| | sublight | HolisticTraceAnalysis 0.5.0 | TraceLens 0.1.0 |", "|:--|--:|--:|--:|"]
    rows += [f"| {label} | {value} | {' | '.join(PEERS[key])} |" for key, (label, value) in ours.items()]
    return "\n".join(rows)


def made(train: str, eager: str, h100: str | None = None, folder: str | None = None) -> tuple[dict[str, str], str]:
    """(text by the name of its place in the README, the picture). The last place needs the last two."""
    with tempfile.TemporaryDirectory() as name:
        train = local(train, "train.json", Path(name))
        eager = local(eager, "eager_trace.json", Path(name))
        texts = {"first screen": first_screen(train), "comparison": comparison(train, eager)}
        if h100 and folder:
            texts["light"] = light(h100, folder)
        return texts, explain(train, form="svg")


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
    parser.add_argument("h100", nargs="?", help="TraceLens' h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz")
    parser.add_argument("ranks", nargs="?", help="folder of the eight ranks in param's dlrm_kineto.tar.gz")
    parser.add_argument("--examples", action="store_true", help="only the examples of the pages")
    options = parser.parse_args()
    refresh()
    if options.examples:
        return
    texts, picture = made(options.train, options.eager, options.h100, options.ranks)
    text = README.read_text("utf-8")
    for name, new in texts.items():
        begin = BEGIN.format(name)
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{new}\n\n{END}{rest.partition(END)[2]}"
    README.write_text(text, "utf-8")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture, "utf-8")
    PAGE.write_text(page(options.train), "utf-8")


if __name__ == "__main__":
    main()
