"""Definitions, workloads, solutions and traces of FlashInfer-Bench and SOL-ExecBench: written, held against schemas
that were written down from their documentation, and read back."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
jsonschema = pytest.importorskip("jsonschema")

from sublight.errors import InputError  # noqa: E402
from sublight.kernels.arena import outcome  # noqa: E402
from sublight.kernels.arena.definitions import (  # noqa: E402
    FLASHINFER,
    SOL,
    STRUCTURE,
    definition_of,
    parsed,
    read_definition,
    read_workloads,
    shape_of_workload,
    workload_of,
)
from sublight.kernels.arena.environment import environment  # noqa: E402
from sublight.kernels.arena.exchange import read_traces, write_traces  # noqa: E402
from sublight.kernels.arena.outcome import Outcome  # noqa: E402
from sublight.kernels.arena.session import Run, Timed  # noqa: E402
from sublight.kernels.arena.sizes import fields_of  # noqa: E402
from sublight.kernels.contract import Case  # noqa: E402
from sublight.kernels.listed import OPERATORS, contract  # noqa: E402

TEXT = {"type": "string", "minLength": 1}
SIZE = {"type": "integer", "minimum": 0}
# From flashinfer_bench 0.1.2 (data/*.py) and SOL-ExecBench (docs/*.md at 266784c, data/*.py at 3fa0f1f and 5b0f590).
DTYPE = {"enum": ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1", "int64",
                  "int32", "int16", "int8", "bool"]}
TENSORS = {"type": "object", "minProperties": 1, "additionalProperties": {
    "type": "object", "required": ["shape", "dtype"], "additionalProperties": False,
    "properties": {"shape": {"type": ["array", "null"], "items": TEXT}, "dtype": DTYPE, "description": TEXT}}}
CONST = {"type": "object", "required": ["type", "value"], "properties": {"type": {"const": "const"}, "value": SIZE}}
VAR = {"type": "object", "required": ["type"], "properties": {"type": {"const": "var"}}}
DEFINITION = {
    "type": "object", "required": ["name", "op_type", "axes", "inputs", "outputs", "reference"],
    "properties": {"name": TEXT, "op_type": TEXT, "axes": {"additionalProperties": {"oneOf": [CONST, VAR]}},
                   "inputs": TENSORS, "outputs": TENSORS, "reference": TEXT, "description": TEXT,
                   "tags": {"type": "array", "items": TEXT}, "custom_inputs_entrypoint": TEXT},
    "additionalProperties": False}
WORKLOAD = {
    "type": "object", "required": ["uuid", "axes", "inputs"], "additionalProperties": False,
    "properties": {"uuid": TEXT, "axes": {"additionalProperties": SIZE}, "inputs": {"additionalProperties": {
        "type": "object", "required": ["type"], "properties": {"type": {"enum": ["random", "custom"]}}}}}}
FILE = {"type": "object", "required": ["path", "content"], "properties": {"path": TEXT, "content": TEXT}}
SPEC = {"entry_point": {"type": "string", "pattern": "^[^:]+::[^:]+$"}, "dependencies": {"type": "array"},
        "destination_passing_style": {"type": "boolean"}}
SPECS = {
    FLASHINFER: {"required": ["language", "target_hardware", "entry_point"], "additionalProperties": False,
                 "properties": {**SPEC, "language": {"enum": ["python", "triton", "cpp", "cuda", "tilelang"]},
        "target_hardware": {"type": "array", "minItems": 1, "items": TEXT}}},
    SOL: {"required": ["languages", "target_hardware", "entry_point"], "additionalProperties": False,
          "properties": {**SPEC, "languages": {"type": "array", "items": {"enum": ["pytorch", "triton", "cuda_cpp"]}},
        "target_hardware": {"type": "array", "minItems": 1, "items": {"enum": ["B200", "LOCAL"]}}}}}
NUMBER = {"anyOf": [{"type": "number", "minimum": 0}, {"const": "NaN"}]}
EVALUATION = {
    "type": "object", "required": ["status", "environment", "timestamp"],
    "properties": {
        "status": {"enum": ["PASSED", "INCORRECT_SHAPE", "INCORRECT_NUMERICAL", "INCORRECT_DTYPE", "RUNTIME_ERROR",
                            "COMPILE_ERROR", "TIMEOUT"]},
        "environment": {"type": "object", "required": ["hardware"], "properties": {
            "hardware": TEXT, "libs": {"additionalProperties": {"type": "string"}}}},
        "timestamp": TEXT, "log": {"type": "string"},
        "correctness": {"type": ["object", "null"], "properties": {"max_relative_error": NUMBER,
                                                                   "max_absolute_error": NUMBER}},
        "performance": {"type": ["object", "null"], "properties": {name: {"type": "number", "minimum": 0} for name in (
            "latency_ms", "reference_latency_ms", "speedup_factor")}}},
    # which of both may be there follows from the status
    "allOf": [
        {"if": {"properties": {"status": {"const": "PASSED"}}},
         "then": {"properties": {"correctness": {"type": "object"}, "performance": {"type": "object"}}}},
        {"if": {"properties": {"status": {"const": "INCORRECT_NUMERICAL"}}},
         "then": {"properties": {"correctness": {"type": "object"}, "performance": {"type": "null"}}}},
        {"if": {"properties": {"status": {"enum": ["RUNTIME_ERROR", "TIMEOUT"]}}},
         "then": {"properties": {"correctness": {"type": "null"}, "performance": {"type": "null"}}}}]}
TRACE = {"type": "object", "required": ["definition", "workload", "solution", "evaluation"],
         "properties": {"definition": TEXT, "workload": WORKLOAD, "solution": TEXT, "evaluation": EVALUATION}}


def solution_schema(schema: str) -> dict[str, Any]:
    return {"type": "object", "required": ["name", "definition", "author", "spec", "sources"], "properties": {
        "name": TEXT, "definition": TEXT, "author": TEXT, "spec": SPECS[schema],
        "sources": {"type": "array", "minItems": 1, "items": FILE}}}


def holds(row: Any, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(schema).validate(row)


def small(op: str) -> Any:
    """A shape of a contract that costs little."""
    shapes = [case.shape for case in contract(op).cases()]
    return min(shapes[1:], key=lambda shape: math.prod(v for v in fields_of(shape).values() if type(v) is int and v))


@pytest.mark.parametrize("schema", [FLASHINFER, SOL])
@pytest.mark.parametrize("op", OPERATORS)
def test_every_contract_is_a_definition_and_reads_back_as_its_shape(op: str, schema: str) -> None:
    of, shape = contract(op), small(op)
    row = definition_of(of, shape, schema=schema)
    holds(row, DEFINITION)
    assert not row["axes"].keys() & row["inputs"].keys(), "SOL-ExecBench: an input is not named as an axis is"
    definition = parsed(row, "here")
    if schema == FLASHINFER and any(name in STRUCTURE for name in row["inputs"]):
        with pytest.raises(InputError, match="at random"):
            workload_of(of, shape, row, schema=schema)
        return
    workload = workload_of(of, shape, row, schema=schema)
    holds(workload, WORKLOAD)
    assert workload["axes"].keys() == set(definition.variables)
    assert shape_of_workload(of, definition, workload) == shape


@pytest.mark.parametrize("op", OPERATORS)
def test_the_reference_of_a_definition_runs(op: str) -> None:
    of, shape = contract(op), small(op)
    row = definition_of(of, shape, schema=SOL)
    scope: dict[str, Any] = {}
    exec(row["reference"], scope)
    inputs = scope["inputs"](workload_of(of, shape, row, schema=SOL)["axes"], "cpu")
    assert list(inputs) == list(row["inputs"])
    made = scope["run"](*inputs.values())
    for (name, spec), tensor in zip(row["outputs"].items(), made, strict=True):
        assert f"torch.{spec['dtype']}" == str(tensor.dtype), name
        assert len(spec["shape"]) == tensor.dim()
    honest = of.honest(shape, of.inputs(Case(shape)))
    assert all((a.float().nan_to_num(7) == b.float().nan_to_num(7)).all()
               for a, b in zip(made, honest.values(), strict=True))


def run_of(op: str) -> Run:
    def timed(name: str, kind: str) -> Timed:
        return Timed(name, {}, Outcome(kind, ()), tuple(range(900, 920)), (None,) * 20, 1.0,
                     ({"output": "out", "rel_l2": 1e-3, "max_over_rms": None},))

    kernels = (timed("torch", outcome.PASSED), timed("a", outcome.WRONG), timed("b", outcome.CHEATED),
               timed("c", outcome.HUNG), timed("d", outcome.REFUSED))
    return Run(op, fields_of(small(op)), "hot", 1, kernels, 10, 1e-7, "memory", {}, None,
               environment(device=None, threads=1, cache="hot"), "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize(("op", "schema"), [("norm", FLASHINFER), ("gemm", SOL), ("rope", SOL)])
def test_runs_are_written_as_a_data_set(op: str, schema: str, tmp_path: Path) -> None:
    write_traces(tmp_path, contract(op), [run_of(op)], schema=schema)
    write_traces(tmp_path, contract(op), [run_of(op)], schema=schema)
    definition = read_definition(next((tmp_path / "definitions" / op).iterdir()))
    assert len(read_workloads(tmp_path / "workloads" / op / f"{definition.name}.jsonl", definition)) == 1
    traces = read_traces(tmp_path / "traces" / op / f"{definition.name}.jsonl")
    assert [t["evaluation"]["status"] for t in traces] == ["PASSED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR", "TIMEOUT"]
    for trace in traces:
        holds(trace, TRACE)
    solutions = [json.loads(path.read_text()) for path in (tmp_path / "solutions" / op).iterdir()]
    assert {trace["solution"] for trace in traces} == {solution["name"] for solution in solutions}
    for solution in solutions:
        holds(solution, solution_schema(schema))
        compile(solution["sources"][0]["content"], "main.py", "exec")


@pytest.mark.parametrize("op", ["norm", "rope", "gemm"])
def test_a_solution_of_ours_runs_and_is_right(op: str, tmp_path: Path) -> None:
    import torch

    of, shape = contract(op), small(op)
    write_traces(tmp_path, of, [run_of(op)], schema=SOL)
    file = next((tmp_path / "solutions" / op).glob("sublight_torch_*"))
    source = json.loads(file.read_text())["sources"][0]["content"]
    scope: dict[str, Any] = {}
    exec(source, scope)
    inputs = of.inputs(Case(shape))
    honest = of.honest(shape, inputs)
    outputs = [torch.zeros_like(tensor) for tensor in honest.values()]
    scope["run"](*inputs.values(), *outputs)
    for made, right in zip(outputs, honest.values(), strict=True):
        assert torch.allclose(made.float(), right.float(), rtol=2e-2, atol=2e-2, equal_nan=True)


# ---- theirs -------------------------------------------------------------------------------------------------------

THEIR_GEMM: dict[str, Any] = {
    "name": "gemm_n4096_k512", "op_type": "gemm", "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 4096},
                                                           "K": {"type": "const", "value": 512}},
    "inputs": {"A": {"shape": ["M", "K"], "dtype": "float16"}, "B": {"shape": ["N", "K"], "dtype": "float16"}},
    "outputs": {"C": {"shape": ["M", "N"], "dtype": "float16"}}, "reference": "def run(A, B):\n    return A @ B.T"}
THEIR_NORM: dict[str, Any] = {
    "name": "rmsnorm_h512", "op_type": "rmsnorm", "axes": {"batch_size": {"type": "var"},
                                                           "hidden_size": {"type": "const", "value": 512}},
    "inputs": {"hidden_states": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"},
               "weight": {"shape": ["hidden_size"], "dtype": "bfloat16"}},
    "outputs": {"output": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"}},
    "reference": "def run(hidden_states, weight):\n    EPS = 1e-5\n    return hidden_states"}


def workload(**axes: int) -> dict[str, Any]:
    return {"uuid": "u", "axes": axes, "inputs": {}}


def test_their_gemm_and_rmsnorm_are_ours() -> None:
    shape = shape_of_workload(contract("gemm"), parsed(THEIR_GEMM, ""), workload(M=7))
    assert fields_of(shape) == {"m": 7, "n": 4096, "k": 512, "form": "fp16", "out": "fp16"}
    shape = shape_of_workload(contract("norm"), parsed(THEIR_NORM, ""), workload(batch_size=3))
    assert (shape.rows, shape.width, shape.kind, shape.eps, shape.residual) == (3, 512, "rms", 1e-5, False)


def changed(row: dict[str, Any], part: str, **to: Any) -> dict[str, Any]:
    return {**row, part: {**row[part], **to}}


RESIDUAL = changed(THEIR_NORM, "inputs", residual={"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"})


@pytest.mark.parametrize(("op", "row", "why"), [
    ("norm", {**RESIDUAL, "name": "fused_add_rmsnorm_h512"}, "its outputs are out, expected out, summed"),
    ("norm", {**THEIR_NORM, "reference": "def run(x, w):\n    return x"}, "tells epsilon"),
    ("norm", THEIR_GEMM, "its op_type is gemm"),
    ("gemm", changed(THEIR_GEMM, "inputs", B={"shape": ["K", "N"], "dtype": "float16"}), "k is 512 and, of b, 4096"),
    ("gemm", changed(THEIR_GEMM, "outputs", D={"shape": ["M"], "dtype": "float32"}), "its outputs are out, D"),
    ("gemm", changed(THEIR_GEMM, "inputs", A={"shape": ["M", "K"], "dtype": "float8_e5m2"}), "no number format"),
])
def test_a_layout_that_is_not_ours_is_refused_by_name(op: str, row: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why) as refused:
        shape_of_workload(contract(op), parsed(row, ""), workload(M=7, batch_size=7))
    assert row["name"] in str(refused.value)


@pytest.mark.parametrize(("row", "why"), [
    ({**THEIR_GEMM, "reference": "x = 1"}, "no function run"),
    ({**THEIR_GEMM, "axes": {}}, "axes K, M, N are not defined"),
    ({**THEIR_GEMM, "outputs": THEIR_GEMM["inputs"]}, "named as an input"),
    ({}, "no definition"), ([], "no definition"), ({**THEIR_GEMM, "reference": "def"}, "no definition"),
])
def test_what_is_no_definition_says_why(row: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parsed(row, "x.json")


def test_an_axis_that_is_an_expression_is_evaluated_without_running_code() -> None:
    row = changed(THEIR_GEMM, "axes", half={"type": "expr", "expression": "(N - 96) // 2"},
                  evil={"type": "expr", "expression": "__import__('os').getpid()"})
    assert parsed(row, "").constants == {"N": 4096, "K": 512, "half": 2000}


def test_a_run_of_a_changed_shape_is_another_workload() -> None:
    of = contract("norm")
    one, other = small("norm"), replace(small("norm"), rows=small("norm").rows + 1)
    rows = [workload_of(of, s, definition_of(of, s, schema=FLASHINFER), schema=FLASHINFER) for s in (one, other)]
    assert rows[0]["uuid"] != rows[1]["uuid"]
