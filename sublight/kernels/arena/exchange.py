"""This file knows about solutions and traces of FlashInfer-Bench and SOL-ExecBench, as files laid out as theirs are:
definitions/OP/NAME.json, workloads/OP/NAME.jsonl, solutions/OP/NAME.json, traces/OP/NAME.jsonl.

Sources: flashinfer_bench 0.1.2, data/solution.py, data/trace.py and data/trace_set.py; NVIDIA/SOL-ExecBench,
src/sol_execbench/core/data/solution.py at 5b0f590 and data/trace.py at 3fa0f1f. What our judge does not measure (the
largest relative and absolute error) is NaN, which both allow; what it does measure stands in `extra`. A kernel that
broke a rule of the arena has the status RUNTIME_ERROR, since they have none for that; the log says which rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sublight import __version__
from sublight.errors import InputError
from sublight.kernels.arena.definitions import SOL, definition_of, workload_of
from sublight.kernels.arena.outcome import HUNG, PASSED, REFUSED, WRONG
from sublight.kernels.arena.session import Run, Timed
from sublight.kernels.arena.sizes import from_fields
from sublight.kernels.contract import Contract

BASELINE = "torch"                       # whose time is their reference_latency_ms, where it was in the run
NOT_LIBRARIES = ("arena", "device", "driver", "threads", "cache", "system")


def write_traces(folder: Path, contract: Contract, runs: Iterable[Run], *, schema: str) -> None:
    """Write runs as a data set below a folder: files of earlier runs get more lines. Raises InputError where the schema
    cannot hold the operator's inputs, before anything is written."""
    made = []
    for run in runs:
        shape = from_fields(contract, run.shape)
        definition = definition_of(contract, shape, schema=schema)
        made.append((run, definition, workload_of(contract, shape, definition, schema=schema)))
    for run, definition, workload in made:
        name = definition["name"]
        _write(folder / "definitions" / contract.name / f"{name}.json", [definition], whole=True)
        empty = {"definition": name, "workload": workload, "solution": None, "evaluation": None}
        _write(folder / "workloads" / contract.name / f"{name}.jsonl", [workload if schema == SOL else empty])
        for kernel in run.kernels:
            if kernel.outcome.kind != REFUSED:
                made_by = solution_of(contract, kernel, definition, run, schema=schema)
                _write(folder / "solutions" / contract.name / f"{made_by['name']}.json", [made_by], whole=True)
                _write(folder / "traces" / contract.name / f"{name}.jsonl",
                       [trace_of(kernel, run, name, workload, made_by["name"])])


def _write(path: Path, rows: list[Mapping[str, Any]], *, whole: bool = False) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if whole:
            path.write_text(json.dumps(rows[0], indent=2) + "\n", "utf-8")
            return
        text = "".join(json.dumps(row) + "\n" for row in rows)
        known = path.read_text("utf-8") if path.exists() else ""
        if text not in known:
            path.write_text(known + text, "utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def solution_of(contract: Contract, kernel: Timed, definition: Mapping[str, Any], run: Run, *, schema: str,
                ) -> dict[str, Any]:
    """A kernel of ours as a solution: Python that builds it through sublight and fills the outputs."""
    cuda = run.environment.get("driver", "none") != "none"
    spec: dict[str, Any] = {"entry_point": "main.py::run", "dependencies": [f"sublight=={__version__}", "torch"],
                            "destination_passing_style": True}
    if schema == SOL:
        spec |= {"languages": ["pytorch"], "target_hardware": ["LOCAL"]}
    else:
        spec |= {"language": "python", "target_hardware": ["cuda" if cuda else "cpu"]}
    source = _source(contract, kernel.kernel, definition, run, cuda=cuda)
    return {"name": f"sublight_{kernel.kernel}_{definition['name']}", "definition": definition["name"],
            "author": "sublight", "spec": spec, "sources": [{"path": "main.py", "content": source}],
            "description": f"The kernel {kernel.kernel} of sublight for {contract.name}."}


def _source(contract: Contract, name: str, definition: Mapping[str, Any], run: Run, *, cuda: bool) -> str:
    inputs, outputs = list(definition["inputs"]), list(definition["outputs"])
    shape = from_fields(contract, run.shape)
    given = ", ".join(f"{one!r}: {one}" for one in inputs)
    wanted = ", ".join(f"{ours!r}: {theirs}" for ours, theirs in zip(contract.outputs(shape), outputs, strict=True))
    copies = [f"    {theirs}.copy_({source})" for ours, theirs in zip(contract.outputs(shape), outputs, strict=True)
              for source in (ours,) if source in inputs and source != theirs]
    fields = definition["reference"].split("of.shape(", 1)[1].split("), {", 1)[0]
    where = "cuda" if cuda else "cpu"
    return "\n".join([
        "from sublight.kernels.listed import contract, kernels", "",
        f"KERNEL = next(k for k in kernels({contract.name!r}, where={where!r}) if k.name == {name!r})", "", "",
        f"def run({', '.join([*inputs, *outputs])}):",
        f"    of = contract({contract.name!r})", f"    inputs, outputs = {{{given}}}, {{{wanted}}}", *copies,
        "    given = dict(outputs)",
        "    constants = {name: inputs[name] for name in of.constant if name in inputs}",
        f"    KERNEL.build(of.shape({fields}), constants)(inputs, outputs)",
        "    for name, tensor in given.items():", "        if outputs[name] is not tensor:",
        "            tensor.copy_(outputs[name])", ""])


def trace_of(kernel: Timed, run: Run, definition: str, workload: Mapping[str, Any], solution: str) -> dict[str, Any]:
    """What a run found of a kernel, as a trace."""
    kind = kernel.outcome.kind
    status = {PASSED: "PASSED", WRONG: "INCORRECT_NUMERICAL", HUNG: "TIMEOUT"}.get(kind, "RUNTIME_ERROR")
    libraries = {name: version for name, version in run.environment.items() if name not in NOT_LIBRARIES}
    evaluation: dict[str, Any] = {
        "status": status, "environment": {"hardware": run.environment["device"], "libs": libraries},
        "timestamp": run.made or datetime.now(UTC).isoformat(timespec="seconds"), "log": str(kernel.outcome),
        "correctness": None, "performance": None}
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        extra = {row["output"]: {name: value for name, value in row.items() if name != "output"}
                 for row in kernel.errors}
        evaluation["correctness"] = {"max_relative_error": "NaN", "max_absolute_error": "NaN", "extra": extra}
    if status == "PASSED":
        evaluation["performance"] = _performance(kernel.kernel, run)
    return {"definition": definition, "workload": workload, "solution": solution, "evaluation": evaluation}


def _performance(name: str, run: Run) -> dict[str, float]:
    """Milliseconds; those of the reference are torch's in the same run, 0 where it was not in it."""
    seconds = {one.name: one.seconds for one in run.standings()}
    baseline = seconds.get(BASELINE, 0.0)
    return {"latency_ms": seconds[name] * 1e3, "reference_latency_ms": baseline * 1e3,
            "speedup_factor": baseline / seconds[name]}


def read_traces(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The traces of a JSONL file that hold an evaluation. Raises InputError for a line that is no trace."""
    if not path.is_file():
        raise InputError(f"no such file: {path}")
    found = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            if not {"definition", "workload"} <= row.keys() or (row.get("evaluation") and not {
                    "status", "environment", "timestamp"} <= row["evaluation"].keys()):
                raise ValueError("it lacks a field")
        except (ValueError, AttributeError) as error:
            raise InputError(f"{path.name}, line {number}: no trace ({error})") from None
        if row.get("evaluation"):
            found.append(row)
    return tuple(found)
