"""This file knows about ops as text: what a predicted trace records of a call in place of arguments, and back.

    >>> from sublight.ops import Gemm
    >>> written(Gemm(m=16, n=32, k=64, a="fp8", b="fp8"))
    '{"op":"Gemm","m":16,"n":32,"k":64,"batch":1,"a":"fp8","b":"fp8","out":"bf16"}'
    >>> parsed(written(Gemm(m=16, n=32, k=64, a="fp8", b="fp8"))) == Gemm(m=16, n=32, k=64, a="fp8", b="fp8")
    True
    >>> parsed('{"op":"Gemm","m":-1,"n":32,"k":64}') is None
    True

Nothing here trusts the text: what is not as `written` writes it is no op.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from sublight.ops.arguments import LARGEST, Arguments
from sublight.ops.context import Context
from sublight.ops.op import Op, Operand
from sublight.trace import OpArgs

PREFIX = "predicted::"                   # of the names of such calls; the operator's label follows
LONGEST_WORD = 32


@cache
def _kinds() -> dict[str, type[Op]]:
    from sublight.ops import OPS

    return {kind.__name__: kind for kind in OPS}


def written(op: Op) -> str:
    """An op as one JSON object. Fields that are None are left out."""
    values = {f.name: getattr(op, f.name) for f in fields(op)}  # type: ignore[arg-type]   # every op is a dataclass
    plain = {name: _plain(value) for name, value in values.items() if value is not None}
    return json.dumps({"op": type(op).__name__, **{k: v for k, v in plain.items() if v is not None}},
                      separators=(",", ":"))


def _plain(value: Any) -> Any:
    """Operands as [elements, format]; None for what an op's work does not need (notes of other rooms)."""
    if isinstance(value, Operand):
        return {"elements": value.elements, "form": value.form}
    if isinstance(value, tuple):
        return [_plain(member) for member in value]
    return value if isinstance(value, bool | int | str) else None


def recorded(op: Op) -> OpArgs:
    """What the operators' table of a predicted trace holds of a call."""
    return OpArgs("[[]]", '[""]', "[[]]", json.dumps([written(op)], separators=(",", ":")))


def rule(given: Arguments, context: Context) -> tuple[Op, ...] | None:
    """The op of a call that `recorded` wrote; None where it is none."""
    del context
    op = parsed(given.text(0))
    return None if op is None else (op,)


def parsed(text: str) -> Op | None:
    """The op of a text; None where it is none, or where its work cannot be told."""
    try:
        found = json.loads(text)
        kind = _kinds()[found.pop("op")]
        names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
        required = {f.name for f in fields(kind)  # type: ignore[arg-type]
                    if f.default is MISSING and f.default_factory is MISSING}
        if found.keys() - names or required - found.keys():
            return None
        op = kind(**{name: _value(value) for name, value in found.items()})
        op.work()
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None
    return op


def _value(value: Any) -> Any:
    """Raises ValueError for what no op holds."""
    if isinstance(value, dict):
        if value.keys() != {"elements", "form"}:
            raise ValueError
        return Operand(_value(value["elements"]), _value(value["form"]))
    if isinstance(value, list):
        return tuple(_value(member) for member in value)
    if (isinstance(value, str) and len(value) <= LONGEST_WORD) or isinstance(value, bool):
        return value
    if isinstance(value, int) and 0 <= value <= LARGEST:
        return value
    raise ValueError
