"""This file knows about shapes as text: `m=1,n=4096,k=4096,form=fp8` and the dataclass of sizes that it means."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Mapping
from typing import Any

from sublight.errors import InputError
from sublight.kernels.contract import Contract

WORDS = {"true": True, "false": False, "none": None}
SIZES = {"k": 1 << 10, "m": 1 << 20}     # 32k is 32768


def parsed(contract: Contract, text: str) -> Any:
    """The shape that `name=value,…` means. Raises InputError for a field that it has not, a value that does not fit, a
    field that lacks, and a shape that the contract refuses."""
    given = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"--shape {text}: expected name=value, got '{part}'")
        given[name.strip()] = value.strip()
    return from_fields(contract, {name: _value(contract, name, value) for name, value in given.items()})


def from_fields(contract: Contract, fields: Mapping[str, Any]) -> Any:
    """The shape of these fields; those that are left out have their defaults. Raises InputError as above."""
    known = {field.name: field for field in dataclasses.fields(contract.shape)}
    for name in fields:
        _known(contract, name)
    lacking = [name for name, field in known.items() if name not in fields and field.default is dataclasses.MISSING]
    if lacking:
        raise InputError(f"the shape of {contract.name} lacks {', '.join(lacking)}; expected "
                         f"{','.join(f'{name}=…' for name in known)}")
    shape = contract.shape(**fields)
    if why := contract.refusal(shape):
        raise InputError(f"{contract.name} has no shape {shown(shape)}: {why}")
    return shape


def _known(contract: Contract, name: str) -> Any:
    known = {field.name: field for field in dataclasses.fields(contract.shape)}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {near[0]}?" if near else "."
    raise InputError(f"the shape of {contract.name} has no '{name}'{meant} It has: {', '.join(known)}")


def _value(contract: Contract, name: str, text: str) -> Any:
    _known(contract, name)
    kind = typing.get_type_hints(contract.shape)[name]
    kinds = typing.get_args(kind) or (kind,)
    if text.lower() in WORDS and type(WORDS[text.lower()]) in kinds:
        return WORDS[text.lower()]
    for make, convert in ((int, _integer), (float, float), (str, str)):
        if make in kinds:
            try:
                return convert(text)
            except ValueError:
                continue
    expected = " or ".join(getattr(one, "__name__", str(one)) for one in kinds)
    raise InputError(f"{name}={text}: expected {expected}")


def _integer(text: str) -> int:
    unit = SIZES.get(text[-1:].lower())
    return int(text[:-1]) * unit if unit else int(text)


def shown(shape: Any) -> str:
    """The shortest text that means the shape: fields at their defaults are left out."""
    return ",".join(f"{field.name}={getattr(shape, field.name)}" for field in dataclasses.fields(shape)
                    if getattr(shape, field.name) != field.default)


def fields_of(shape: Any) -> dict[str, Any]:
    """All fields, as JSON has them."""
    return dataclasses.asdict(shape)
