"""This file knows about definitions and workloads of FlashInfer-Bench and SOL-ExecBench, as files.

    definition  an operator: axes (constant, variable; SOL-ExecBench: also expressions), tensors on them, a reference
    workload    values of the variable axes, and where each input comes from

Sources: flashinfer_bench 0.1.2, data/definition.py and data/workload.py; NVIDIA/SOL-ExecBench, docs/definition.md and
docs/workload.md at 266784c, src/sol_execbench/data/*.py at 3fa0f1f (2026). Both are written and read as files; neither
package is needed. An output that is written in place, such as rope's caches, is named NAME_out: outputs must not be
named as inputs are.
"""

from __future__ import annotations

import ast
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sublight.errors import InputError
from sublight.kernels.arena.sizes import fields_of, from_fields, shown
from sublight.kernels.contract import Case, Contract

FLASHINFER, SOL = "flashinfer-bench", "sol-execbench"
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64", "fp8": "float8_e4m3fn",
          "int8": "int8", "int32": "int32", "int64": "int64"}
FORMS = {dtype: form for form, dtype in DTYPES.items()}

# Axes of each tensor. A name that is a field of the shape is that field; other axes are counted on the tensors.
AXES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "gemm": {"a": ("m", "k"), "b": ("n", "k"), "out": ("m", "n")},
    "grouped_gemm": {"a": ("rows", "k"), "b": ("groups", "n", "k"), "offsets": ("ends",), "out": ("rows", "n")},
    "moe": {"x": ("tokens", "width"), "gate_up": ("experts", "two_inner", "width"),
            "down": ("experts", "width", "inner"), "ids": ("tokens", "top_k"), "weights": ("tokens", "top_k"),
            "out": ("tokens", "width")},
    "attention": {"q": ("batch", "q_length", "heads", "dim"), "k": ("batch", "kv_length", "kv_heads", "dim"),
                  "v": ("batch", "kv_length", "kv_heads", "dim"), "out": ("batch", "q_length", "heads", "dim")},
    "decode": {"q": ("batch", "heads", "dim"), "k_cache": ("pages", "page", "kv_heads", "dim"),
               "v_cache": ("pages", "page", "kv_heads", "dim"), "table": ("batch", "most_pages"),
               "lengths": ("batch",), "out": ("batch", "heads", "dim")},
    "mla_decode": {"q": ("batch", "heads", "key"), "cache": ("pages", "page", "key"),
                   "table": ("batch", "most_pages"), "lengths": ("batch",), "out": ("batch", "heads", "rank")},
    "norm": {"x": ("rows", "width"), "weight": ("width",), "bias": ("width",), "residual": ("rows", "width"),
             "out": ("rows", "width"), "scale": ("rows",), "summed": ("rows", "width")},
    "swiglu": {"gate_up": ("rows", "two_width"), "out": ("rows", "width"), "scale": ("rows",)},
    "rope": {"q": ("tokens", "heads", "dim"), "k": ("tokens", "kv_heads", "dim"), "v": ("tokens", "kv_heads", "dim"),
             "cos_sin": ("entries", "turned"), "q_out": ("tokens", "heads", "dim"),
             "k_cache": ("pages", "page", "kv_heads", "dim"), "v_cache": ("pages", "page", "kv_heads", "dim")},
    "routing": {"logits": ("tokens", "experts"), "weights": ("tokens", "top_k"), "ids": ("tokens", "top_k")},
    "cross_entropy": {"logits": ("rows", "classes"), "targets": ("rows",), "loss": ("rows",)},
    "quantise": {"x": ("rows", "width"), "q": ("rows", "width")},
    "dequantise": {"x": ("rows", "width"), "q": ("rows", "width")},
}
VARIABLE = ("m", "rows", "tokens", "batch", "q_length", "kv_length", "pages", "most_pages")
# Inputs that random values would make meaningless.
STRUCTURE = ("offsets", "ids", "table", "lengths", "positions", "slots", "targets")
# What others name as we do not: op_type -> contract, and their tensors -> ours. Axes follow from the tensors.
FOREIGN: Mapping[str, tuple[str, Mapping[str, str], Mapping[str, str]]] = {
    "gemm": ("gemm", {"A": "a", "B": "b"}, {"C": "out"}),
    "rmsnorm": ("norm", {"hidden_states": "x", "input": "x", "weight": "weight"}, {"output": "out"}),
}
EPSILON = re.compile(r"\beps\b\s*=\s*([0-9.]+(?:e-?\d+)?)", re.IGNORECASE)
NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")        # of URLs (RFC 4122, appendix C)


@dataclass(frozen=True, slots=True)
class Definition:
    """A definition as its file has it, checked. constants: values of constant axes; tensors: (axes or None, dtype)."""

    name: str
    op_type: str
    constants: Mapping[str, int]
    variables: tuple[str, ...]
    inputs: Mapping[str, tuple[tuple[str, ...] | None, str]]
    outputs: Mapping[str, tuple[tuple[str, ...] | None, str]]
    reference: str


# ---- ours, written -------------------------------------------------------------------------------------------------


def definition_of(contract: Contract, shape: Any, *, schema: str) -> dict[str, Any]:
    """Our contract at the constant sizes and switches of a shape, as a definition; its reference calls the contract's
    honest implementation. Raises InputError for a schema that is not known."""
    _known_schema(schema)
    inputs = contract.inputs(Case(shape))
    sizes = {name: (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in inputs.items()}
    results = {_out(contract, name, inputs): (spec.sizes, DTYPES[spec.form], name)
               for name, spec in contract.outputs(shape).items()}
    axes: dict[str, int] = {}
    row: dict[str, Any] = {
        "name": name_of(contract, shape), "op_type": contract.name, "axes": {},
        "inputs": {name: _tensor(contract, shape, name, size, dtype, axes) for name, (size, dtype) in sizes.items()},
        "outputs": {out: _tensor(contract, shape, name, size, dtype, axes)
                    for out, (size, dtype, name) in results.items()},
    }
    row["axes"] = {name: {"type": "var"} if name in VARIABLE else {"type": "const", "value": value}
                   for name, value in axes.items()}
    row["reference"] = _reference(contract, shape, row["inputs"], custom=schema == SOL)
    row["description"] = f"{contract.title} (sublight's contract {contract.name}: {shown(shape)})"
    if schema == SOL:
        row["custom_inputs_entrypoint"] = "inputs"
    else:
        row["tags"] = ["status:verified", "source:sublight"]
    return row


def _known_schema(schema: str) -> None:
    if schema not in (FLASHINFER, SOL):
        raise InputError(f"no schema '{schema}'; there are {FLASHINFER} and {SOL}")


def name_of(contract: Contract, shape: Any) -> str:
    """The contract, and all that is constant: gemm_n4096_k4096_formbf16_outbf16."""
    parts = [f"{name}{value}" for name, value in fields_of(shape).items() if name not in VARIABLE and value is not None]
    return re.sub(r"[^A-Za-z0-9_.-]", "", "_".join([contract.name, *parts]))


def _out(contract: Contract, name: str, inputs: Mapping[str, Any]) -> str:
    return f"{name}_out" if name in inputs else name


def _tensor(contract: Contract, shape: Any, name: str, sizes: tuple[int, ...], dtype: str, axes: dict[str, int],
            ) -> dict[str, Any]:
    """A tensor on named axes; their values are added to `axes`."""
    known = AXES.get(contract.name, {}).get(name, ())
    names = known if len(known) == len(sizes) else tuple(_counted(shape, name, at, size) for at, size in
                                                         enumerate(sizes))
    for axis, size in zip(names, sizes, strict=True):
        if axes.setdefault(axis, size) != size:
            raise InputError(f"{contract.name}: axis {axis} is {axes[axis]} and, of {name}, {size}")
    return {"shape": list(names), "dtype": dtype}


def _counted(shape: Any, name: str, at: int, size: int) -> str:
    """The axis of a tensor that no list names: a variable size of the shape where one has this value."""
    of_shape = [field for field in VARIABLE if getattr(shape, field, None) == size]
    return of_shape[0] if at == 0 and of_shape else f"{name}_{at}"


def _reference(contract: Contract, shape: Any, inputs: Mapping[str, Any], *, custom: bool) -> str:
    places = {axis: f"{name}.shape[{at}]" for name in reversed(list(inputs))
              for at, axis in enumerate(inputs[name]["shape"]) if axis in VARIABLE}
    fields = ", ".join(f"{name}={places.get(name, repr(value))}" for name, value in fields_of(shape).items())
    names = ", ".join(inputs)
    given = ", ".join(f"{name!r}: {name}" for name in inputs)
    text = (f"from sublight.kernels.listed import contract\n\n\ndef run({names}):\n"
            f"    of = contract({contract.name!r})\n    made = of.honest(of.shape({fields}), {{{given}}})\n"
            f"    return tuple(made[name] for name in {tuple(contract.outputs(shape))!r})\n")
    if custom:
        values = ", ".join(f"{name}=axes_and_scalars.get({name!r}, {value!r})" if name in VARIABLE else
                           f"{name}={value!r}" for name, value in fields_of(shape).items())
        text += ("\n\ndef inputs(axes_and_scalars, device):\n    from sublight.kernels.contract import Case\n\n"
                 f"    of = contract({contract.name!r})\n    made = of.inputs(Case(of.shape({values})))\n"
                 "    return {name: tensor.to(device) for name, tensor in made.items()}\n")
    return text


def workload_of(contract: Contract, shape: Any, definition: Mapping[str, Any], *, schema: str) -> dict[str, Any]:
    """A shape as a workload of its definition. Raises InputError where random inputs would be meaningless and the
    schema has no others."""
    structure = [name for name in definition["inputs"] if name in STRUCTURE]
    if schema == FLASHINFER and structure:
        raise InputError(f"{FLASHINFER} fills inputs at random, and {', '.join(structure)} of {contract.name} would "
                         f"mean nothing; expected --schema {SOL}, whose workloads can call the contract's own inputs")
    variable = [name for name, axis in definition["axes"].items() if axis["type"] == "var"]
    sizes = {axis: size for name, tensor in contract.inputs(Case(shape)).items()
             for axis, size in zip(definition["inputs"][name]["shape"], tensor.shape, strict=True)}
    kind = "custom" if schema == SOL else "random"
    return {"uuid": str(uuid.uuid5(NAMESPACE, f"{contract.name}:{json.dumps(fields_of(shape), sort_keys=True)}")),
            "axes": {name: int(sizes[name]) for name in variable},
            "inputs": {name: {"type": kind} for name in definition["inputs"]}}


# ---- theirs, read --------------------------------------------------------------------------------------------------


def read_definition(path: Path) -> Definition:
    """A definition from its file. Raises InputError for what is none."""
    row = _json(path, path.read_text("utf-8") if path.is_file() else None)
    return parsed(row, path.name)


def parsed(row: Any, where: str) -> Definition:
    """A definition, checked as both packages check it. Raises InputError that says what is wrong."""
    try:
        axes, reference = row["axes"], row["reference"]
        constants = {name: axis["value"] for name, axis in axes.items() if axis.get("type", "const") == "const"}
        variables = tuple(name for name, axis in axes.items() if axis.get("type") == "var")
        constants |= _evaluated(axes, constants)
        inputs, outputs = (
            {name: (None if t["shape"] is None else tuple(t["shape"]), t["dtype"]) for name, t in row[part].items()}
            for part in ("inputs", "outputs"))
        run = [node for node in ast.parse(reference).body if isinstance(node, ast.FunctionDef) and node.name == "run"]
    except (KeyError, TypeError, AttributeError, SyntaxError) as error:
        raise InputError(f"{where}: no definition of {FLASHINFER} or {SOL} "
                         f"({type(error).__name__}: {error})") from None
    unknown = {axis for part in (inputs, outputs) for shape, _ in part.values() for axis in shape or ()
               if axis not in axes and not axis.isdigit()}
    if not run or unknown or inputs.keys() & outputs.keys() or not all(
            isinstance(value, int) and value >= 0 for value in constants.values()):
        wrong = "an output is named as an input is, or an axis is not a size"
        if not run or unknown:
            lacks = f"axes {', '.join(sorted(unknown))} are not defined"
            wrong = lacks if run else "its reference has no function run"
        raise InputError(f"{where}: {wrong}")
    return Definition(str(row["name"]), str(row.get("op_type") or ""), constants, variables, inputs, outputs, reference)


def _evaluated(axes: Mapping[str, Any], known: Mapping[str, int]) -> dict[str, int]:
    """Axes that are expressions of constant ones. What depends on a variable axis is left out."""
    out = {}
    for name, axis in axes.items():
        if axis.get("type") == "expr":
            tree = ast.parse(axis["expression"], mode="eval")
            names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            allowed = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, ast.operator, ast.unaryop,
                       ast.Load)
            if names <= known.keys() and all(isinstance(node, allowed) for node in ast.walk(tree)):
                out[name] = int(eval(compile(tree, "axis", "eval"), {"__builtins__": {}}, dict(known)))
    return out


def read_workloads(path: Path, definition: Definition) -> tuple[Mapping[str, Any], ...]:
    """The workloads of a JSONL file that belong to the definition: workloads themselves, or traces that hold them.
    Raises InputError for a line that is none."""
    if not path.is_file():
        raise InputError(f"no such file: {path}")
    found = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        row = _json(path, line)
        if isinstance(row, dict) and row.get("definition", definition.name) != definition.name:
            continue
        work = row.get("workload", row) if isinstance(row, dict) else None
        if not isinstance(work, dict) or not {"axes", "inputs", "uuid"} <= work.keys():
            raise InputError(f"{path.name}, line {number}: expected a workload with axes, inputs and uuid")
        found.append(work)
    if not found:
        raise InputError(f"{path.name} holds no workload of {definition.name}")
    return tuple(found)


def _json(path: Path, text: str | None) -> Any:
    if text is None:
        raise InputError(f"no such file: {path}")
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{path.name} is not JSON: {error}") from None


def shape_of_workload(contract: Contract, definition: Definition, workload: Mapping[str, Any]) -> Any:
    """The shape of our contract that a workload of a definition is. Raises InputError, with the reason, where operator
    or layout do not match."""
    kind, inputs, outputs = FOREIGN.get(definition.op_type, ("", {}, {}))
    if definition.op_type == contract.name and contract.name in AXES and set(definition.inputs) <= set(
            AXES[contract.name]) | set(STRUCTURE) | {"a_scale", "b_scale", "scale"}:
        kind, inputs, outputs = contract.name, {}, {}
    elif kind != contract.name:
        raise _unlike(contract, definition, f"its op_type is {definition.op_type or 'not given'}")
    sizes = {**definition.constants, **workload["axes"]}
    if missing := [axis for axis in definition.variables if axis not in sizes]:
        raise _unlike(contract, definition, f"its workload gives no value for {', '.join(missing)}")
    tensors = {inputs.get(name, name): spec for name, spec in definition.inputs.items() if spec[0] is not None}
    results = {outputs.get(name, name): spec for name, spec in definition.outputs.items()}
    fields = _sizes_of(contract, definition, {**tensors, **results}, sizes)
    shape = from_fields(contract, {**fields, **_switches(contract, definition, workload, tensors, results)})
    _same_tensors(contract, definition, shape, tensors, results, sizes)
    return shape


def _unlike(contract: Contract, definition: Definition, why: str) -> InputError:
    return InputError(f"definition {definition.name} is not the contract {contract.name}: {why}")


def _sizes_of(contract: Contract, definition: Definition, tensors: Mapping[str, Any], sizes: Mapping[str, int],
              ) -> dict[str, int]:
    """Fields of the shape from the sizes of tensors whose axes we know."""
    fields: dict[str, int] = {}
    of_shape = set(contract.shape.__dataclass_fields__)
    for name, (axes, _) in tensors.items():
        ours = AXES[contract.name].get(name.removesuffix("_out") if name not in AXES[contract.name] else name)
        if ours and len(ours) != len(axes or ()):
            raise _unlike(contract, definition, f"{name} has {len(axes or ())} axes, expected {len(ours)}")
        for axis, theirs in zip(ours or (), axes or (), strict=bool(ours)):
            size = int(theirs) if theirs.isdigit() else sizes.get(theirs)
            if axis in of_shape and size is not None and fields.setdefault(axis, size) != size:
                raise _unlike(contract, definition, f"{axis} is {fields[axis]} and, of {name}, {size}")
    return fields


def _switches(contract: Contract, definition: Definition, workload: Mapping[str, Any], tensors: Mapping[str, Any],
              results: Mapping[str, Any]) -> dict[str, Any]:
    """Formats, and what only our own reference or theirs tells."""
    literal = re.search(r"of\.shape\((.*)\), \{", definition.reference)
    known = set(contract.shape.__dataclass_fields__)
    if literal and definition.op_type == contract.name:
        call = ast.parse(f"f({literal[1]})", mode="eval").body
        assert isinstance(call, ast.Call)
        return {k.arg: k.value.value for k in call.keywords
                if k.arg is not None and k.arg in known and isinstance(k.value, ast.Constant)}
    fields: dict[str, Any] = {}
    first = next(iter(tensors.values()))[1]
    if "form" in known:
        fields["form"] = _form(contract, definition, first)
    if "out" in known:
        fields["out"] = _form(contract, definition, next(iter(results.values()))[1])
    if contract.name == "norm":
        given = workload["inputs"].get("eps", {}).get("value")
        found = EPSILON.search(definition.reference)
        if given is None and found is None:
            raise _unlike(contract, definition, "neither its workload nor its reference tells epsilon")
        fields |= {"eps": float(given if given is not None else found[1] if found else 0.0),
                   "residual": "residual" in tensors}
    return fields


def _form(contract: Contract, definition: Definition, dtype: str) -> str:
    if dtype not in FORMS:
        raise _unlike(contract, definition, f"we have no number format {dtype}")
    return FORMS[dtype]


def _same_tensors(contract: Contract, definition: Definition, shape: Any, tensors: Mapping[str, Any],
                  results: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Hold every tensor against ours: the same names, sizes and number formats."""
    inputs = contract.inputs(Case(shape))
    ours = {name: (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in inputs.items()}
    made = {_out(contract, name, inputs): (tuple(spec.sizes), DTYPES[spec.form])
            for name, spec in contract.outputs(shape).items()}
    for what, mine, theirs in (("inputs", ours, tensors), ("outputs", made, results)):
        if mine.keys() != theirs.keys():
            raise _unlike(contract, definition, f"its {what} are {', '.join(theirs)}, expected {', '.join(mine)}")
        for name, (axes, dtype) in theirs.items():
            found = tuple(int(axis) if axis.isdigit() else sizes.get(axis, -1) for axis in axes or ())
            if (found, dtype) != mine[name] and name not in STRUCTURE:
                wanted, like = mine[name]
                raise _unlike(contract, definition, f"{name} is {dtype} {found}, expected {like} {wanted}")
