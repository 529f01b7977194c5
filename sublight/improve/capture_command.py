"""This file knows about commands that record a run, or that start one: what the recording will lack, and the command
that lacks nothing.

    text ──shell──▶ the command that runs the model ──rules of its tool──▶ Checkup (lacks, the corrected command)
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from sublight.engines import Launch, parse
from sublight.engines.shell import Command, quoted, read
from sublight.errors import InputError
from sublight.improve import capture_rules as rules
from sublight.improve.capture import Checkup, Lack
from sublight.improve.capture_nsys import nsys
from sublight.improve.capture_script import Script, of_script
from sublight.improve.command_line import Line, line

LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "srun", "mpirun", "mpiexec", "uv", "poetry", "numactl"}
PYTHON = re.compile(r"(?:.*/)?python(?:\d[\d.]*)?")
BENCHES = {"vllm": r"\bvllm bench serve\b|benchmark_serving\.py",
           "sglang": r"sglang\.(?:bench_serving|benchmark\.serving)"}


def of_command(text: str) -> Checkup:
    """What the recording of a command will lack. Nothing is run. Raises InputError where the text has no command that
    runs a model, as far as can be told."""
    script = read(text)
    for command in script.commands:
        if not command.words:
            continue
        given = line(command.words, command.environment, script.variables)
        launch = _launch(command)
        at = _nsys(given)
        if at is not None:
            return _checkup(given, "Nsight Systems", nsys(given, at, launch))
        if _is(given, "sublight"):
            raise InputError("sublight records and explains itself: it lacks nothing; expected another command")
        for engine, pattern in BENCHES.items():
            if re.search(pattern, " ".join(given.words)):
                return _checkup(given, f"{rules.TITLES[engine]}'s benchmark", rules.bench(given, engine))
        if launch is not None:
            return _checkup(given, rules.TITLES[launch.engine], rules.RULES[launch.engine](given, launch))
        if _is(given, "nsys"):
            raise InputError("expected nsys profile … and the command it runs")
        if PYTHON.fullmatch(given.words[0]) or given.words[0].rsplit("/", 1)[-1] in LAUNCHERS:
            return _of_program(given)
    raise InputError("no command that runs a model is known in this; expected nsys profile …, vllm serve, "
                     "sglang.launch_server, trtllm-serve, pretrain_gpt.py, torchtitan's run_train.sh, python or "
                     "torchrun")


def _launch(command: Command) -> Launch | None:
    """Of an engine, where it starts one."""
    try:
        return parse(" ".join([*(f"{name}=x" for name in command.environment), *map(quoted, command.words)]))
    except InputError:
        return None


def _is(given: Line, program: str) -> bool:
    return given.words[0].rsplit("/", 1)[-1] == program


def _nsys(given: Line) -> int | None:
    """Where `nsys profile` stands, launchers before it or not: the place of "profile"."""
    for at, word in enumerate(given.words[:-1]):
        if word.rsplit("/", 1)[-1] == "nsys" and given.words[at + 1] == "profile":
            return at + 1
    return None


def _checkup(given: Line, title: str, changed: rules.Changed) -> Checkup:
    new = changed.line.text()
    return Checkup(f"a command of {title}", (), changed.lacks, new if new != given.text() else None, changed.then)


def _of_program(given: Line) -> Checkup:
    """A program that is not known: its file, where it can be read, tells whether it has a profiler."""
    path = next((word for word in given.words[1:] if word.endswith(".py")), None)
    found = of_script(Path(path)) if path is not None else None
    recorded = replace(given, words=("sublight", "record", "--", *given.words)).text()
    if found is None or not found.profiles:
        why = "the program starts no torch.profiler" if found is not None else "nothing that records"
        return Checkup("a command of Python", (), (Lack(why, "everything", "sublight record, or torch.profiler in the "
                                                        "program"),), recorded,
                       ("steps are found where an optimizer steps; else mark them: sublight.record and step()",))
    return of_program_file(Path(path or ""), found)


def of_program_file(path: Path, found: Script | None = None) -> Checkup:
    """A Python program by itself. Raises InputError where it cannot be read."""
    found = found or of_script(path)
    if found is None:
        raise InputError(f"{path.name} cannot be read as Python")
    lacks = found.lacks if found.profiles else (Lack("a profiler", "everything", "sublight record -- python …"),)
    return Checkup(f"{path.name}, a program{' that uses torch.profiler' if found.profiles else ''}", found.has, lacks)
