"""This file knows about running a command so that its PyTorch processes record themselves.

Python runs `sitecustomize` when it starts, from the first place in PYTHONPATH that has one: while the command runs,
that is a folder of ours, which holds record_hook.py under that name. It works through torchrun, shells and launchers,
in other virtual environments too; not in a Python that was told to ignore its environment (-E, -I, -S), nor in a
container that gets neither the variables nor the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from sublight.errors import InputError
from sublight.observe.record_hook import ASKED, SEEN
from sublight.observe.recording import PART


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended. files: traces, one a rank. said: what was recorded, in words."""

    exit_code: int                       # the command's; 128 + n where signal n ended it
    files: tuple[Path, ...]
    said: str
    notes: tuple[str, ...]


def record_command(
    words: Sequence[str], folder: str | Path, *, steps: int, warm_up: int, shapes: bool = True, stacks: bool = False,
) -> Done:
    """Run a command to its end. Raises InputError, before it runs, where the folder is not new or the command not
    there."""
    place = Path(folder)
    _check(words, place)
    place.mkdir(parents=True, exist_ok=True)
    asked = {"folder": str(place.resolve()), "steps": steps, "warm_up": warm_up if steps else 0, "shapes": shapes,
             "stacks": stacks}
    with tempfile.TemporaryDirectory(prefix="sublight-record-") as hook:
        for name, as_name in (("record_hook.py", "sitecustomize.py"), ("recording.py", "sublight_recording.py")):
            text = resources.files("sublight.observe").joinpath(name).read_text("utf-8")
            (Path(hook) / as_name).write_text(text, "utf-8")
        paths = [hook, *filter(None, [os.environ.get("PYTHONPATH")])]
        code = _run(words, {**os.environ, "PYTHONPATH": os.pathsep.join(paths), ASKED: json.dumps(asked)})
    seen = _seen(place)
    for part in place.glob(f"{PART}*"):              # of a process that was killed while it wrote
        part.unlink(missing_ok=True)
    files = tuple(sorted(place.glob("rank*.json.gz")))
    if not files and not any(place.iterdir()):
        place.rmdir()
    return Done(code, files, _said(files, seen, steps), _notes(files, seen, steps, warm_up, code))


def _check(words: Sequence[str], place: Path) -> None:
    if shutil.which(words[0]) is None:
        raise InputError(f"no command '{words[0]}'; expected a program: sublight record -- python train.py")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InputError(f"{place} is there already; expected a new or empty folder: -o FOLDER")
    above = next(parent for parent in (place, *place.resolve().parents) if parent.is_dir())
    if not os.access(above, os.W_OK):
        raise InputError(f"cannot write in {above}; expected a folder that can be written: -o FOLDER")


def _run(words: Sequence[str], environment: dict[str, str]) -> int:
    """The exit code. Signals that end us are the command's to answer."""
    with subprocess.Popen(words, env=environment) as process:
        before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            while True:
                try:
                    code = process.wait()
                    break
                except KeyboardInterrupt:            # the terminal sent it to the command too: let it end
                    continue
        finally:
            signal.signal(signal.SIGTERM, before)
    return 128 - code if code < 0 else code


def _seen(place: Path) -> list[dict[str, Any]]:
    """What each process with torch saw; the notes are removed."""
    out = []
    for path in sorted(place.glob(f"{SEEN}*")):
        with contextlib.suppress(OSError, ValueError):
            out.append(json.loads(path.read_text("utf-8")))
        path.unlink(missing_ok=True)
    return out


def _said(files: Sequence[Path], seen: Sequence[dict[str, Any]], steps: int) -> str:
    counts = sorted({row.get("steps", 0) for row in seen if row.get("written")})
    what = f"{' or '.join(map(str, counts))} steps" if steps and counts else "the whole run"
    return what if len(files) == 1 else f"{what} of {len(files)} ranks"


def _notes(
    files: Sequence[Path], seen: Sequence[dict[str, Any]], steps: int, warm_up: int, code: int,
) -> tuple[str, ...]:
    """Why nothing was recorded, or less than asked for."""
    out = [f"a process could not be recorded: {row['error']}" for row in seen if row.get("error")]
    written = [row for row in seen if row.get("written")]
    if len(written) > len(files):
        out.append(f"{len(written)} processes wrote {len(files)} files: several said the same rank (set RANK)")
    if files:
        if steps and (short := min((row.get("steps", steps) for row in written), default=steps)) < steps:
            out.append(f"the run ended after {short} of {steps} steps")
    elif out:
        pass
    elif not seen:
        out.append("nothing was recorded: no process that imports torch ran to its end"
                   + ("" if code == 0 else f" (the command ended with code {code})")
                   + "; a Python with -E, -I or -S, or in a container, does not see the recorder")
    else:
        most = max(seen, key=lambda row: row["optimizer_steps"] + row["forwards"] + row["forwards_with_gradients"])
        out.append(f"nothing was recorded: {most['optimizer_steps']} optimizer steps, {most['forwards']} forward "
                   f"passes without gradients and {most['forwards_with_gradients']} with were seen; expected "
                   f"{warm_up + 2} steps or more (--warm-up, --steps), or a run of other steps: mark them with "
                   "sublight.record and step(), or record everything: --steps 0")
    return tuple(out)
