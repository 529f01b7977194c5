"""This file knows about NCCL_ variables: which exist, what they may say, and what they switch in the tuning model.

    >>> env = read({"NCCL_ALGO": "allreduce:^tree"})
    >>> env.algorithms["AllReduce"]["Tree"], env.algorithms["AllGather"]["Tree"]
    (False, True)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sublight.comm.nccl.constants import Constants, load
from sublight.comm.nccl.system import PATH_CLASSES, SYS
from sublight.comm.nccl.version import whole
from sublight.errors import InputError

LEVELS = ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL")


@dataclass(frozen=True, slots=True)
class Environment:
    """What the variables mean. A protocol or algorithm is on, off, or None: not said, NCCL's own rule decides."""

    given: Mapping[str, str]
    algorithms: Mapping[str, Mapping[str, bool]]
    protocols: Mapping[str, Mapping[str, bool | None]]      # None only for LL128
    threads: int | None = None
    ll128_threads: int | None = None
    thread_thresholds: tuple[int | None, ...] = (None,) * 6     # Tree LL, LL128, Simple, Ring LL, LL128, Simple
    net_overhead_us: float | None = None
    ll128_over_c2c: bool = True
    pat: bool | None = None
    nvls: bool = True
    nvls_channels: int | None = None
    collnet: bool = False
    collnet_nodes: int = 2
    min_channels: int | None = None
    max_channels: int | None = None
    min_ctas: int | None = None
    max_ctas: int | None = None


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """NAME=value, one each, as a mapping. Raises InputError for what is no assignment or is said twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"'{text}' is no setting; expected NCCL_NAME=value")
        if name in found:
            raise InputError(f"{name} is set twice: '{found[name]}' and '{value}'")
        found[name] = value
    return found


def read(given: Mapping[str, str] | None = None, *, constants: Constants | None = None) -> Environment:
    """The meaning of these variables at this version. Raises InputError for a name that NCCL does not read, or a value
    that it refuses (grammar: parseList of src/graph/tuning.cc at 2.30.7)."""
    given, constants = given or {}, constants or load()
    _check_names(given, constants)
    _check_levels(given)
    return Environment(
        given=dict(given),
        algorithms=_algorithms(given.get("NCCL_ALGO"), constants),
        protocols=_protocols(given.get("NCCL_PROTO"), constants),
        threads=_integer(given, "NCCL_NTHREADS"), ll128_threads=_integer(given, "NCCL_LL128_NTHREADS"),
        thread_thresholds=_thresholds(given.get("NCCL_THREAD_THRESHOLDS")),
        net_overhead_us=_microseconds(given), ll128_over_c2c=_integer(given, "NCCL_LL128_C2C") != 0,
        pat=_switch(given, "NCCL_PAT_ENABLE", unset=2), nvls=_integer(given, "NCCL_NVLS_ENABLE") != 0,
        nvls_channels=_integer(given, "NCCL_NVLS_NCHANNELS"),
        collnet=_integer(given, "NCCL_COLLNET_ENABLE") == 1,
        collnet_nodes=_or(_integer(given, "NCCL_COLLNET_NODE_THRESHOLD"), 2),
        min_channels=_first(given, "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS"),
        max_channels=_first(given, "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS"),
        min_ctas=_positive(given, "NCCL_MIN_CTAS"), max_ctas=_positive(given, "NCCL_MAX_CTAS"),
    )


def _check_names(given: Mapping[str, str], constants: Constants) -> None:
    known = {*constants.tuning_variables, *constants.graph_variables, *constants.other_variables}
    for name in given:
        if name in known:
            continue
        near = difflib.get_close_matches(name, sorted(known), 1, 0.5)
        hint = f"; nearest: {near[0]}" if near else ""
        raise InputError(f"NCCL {constants.version} reads no variable '{name}'{hint}")


def _check_levels(given: Mapping[str, str]) -> None:
    """Levels that NCCL would ignore without a word."""
    known = PATH_CLASSES[:SYS + 1]
    for name in LEVELS:
        value = given.get(name, "")
        if value and value not in known and value[0] not in "0123456789":
            raise InputError(f"{name}='{value}': NCCL ignores it; expected one of {', '.join(known)}, in capitals")


def _algorithms(text: str | None, constants: Constants) -> dict[str, dict[str, bool]]:
    rows = {f: dict.fromkeys(constants.algorithms, True) for f in constants.functions}
    for functions, row in _lists(text, "NCCL_ALGO", constants.functions, constants.algorithms):
        for function in functions:
            rows[function] = dict(row)
    return rows


def _protocols(text: str | None, constants: Constants) -> dict[str, dict[str, bool | None]]:
    usual: dict[str, bool | None] = {p: None if p == "LL128" else True for p in constants.protocols}
    rows = {f: dict(usual) for f in constants.functions}
    for functions, row in _lists(text, "NCCL_PROTO", constants.functions, constants.protocols):
        for function in functions:
            rows[function] = dict(row)
    return rows


def _lists(
    text: str | None, variable: str, functions: tuple[str, ...], elements: tuple[str, ...],
) -> list[tuple[tuple[str, ...], dict[str, bool]]]:
    """Each entry `[function:][^]element,…` of a list with semicolons: the functions it is for, elements on or off."""
    found = []
    for place, entry in enumerate(piece for piece in (text or "").split(";") if piece):
        parts = [part for part in entry.split(":") if part]
        if not parts or (len(parts) == 1 and place):
            raise InputError(f"{variable}='{text}': NCCL refuses entry '{entry}'; all but the first need a function "
                             "before a colon")
        prefix, names = (parts[0], parts[1]) if len(parts) > 1 else (None, parts[0])
        wanted = functions if prefix is None else (_known(prefix, functions, variable, "function"),)
        off = names.startswith("^")
        row = dict.fromkeys(elements, off)
        for name in filter(None, names.removeprefix("^").split(",")):
            row[_known(name, elements, variable, "element")] = not off
        found.append((wanted, row))
    return found


def _known(name: str, known: tuple[str, ...], variable: str, what: str) -> str:
    for candidate in known:
        if candidate.lower() == name.lower():
            return candidate
    near = difflib.get_close_matches(name.lower(), [k.lower() for k in known], 1, 0.4)
    hint = f"; nearest: {near[0]}" if near else ""
    raise InputError(f"{variable}: NCCL refuses the {what} '{name}', expected one of {', '.join(known)}{hint}")


def _integer(given: Mapping[str, str], name: str) -> int | None:
    """The number, None where it is not set."""
    text = given.get(name)
    if text is None or text == "":
        return None
    try:
        return int(text, 0)
    except ValueError:
        raise InputError(f"{name}='{text}': expected a whole number; NCCL would read it as {whole(text)}") from None


def _first(given: Mapping[str, str], *names: str) -> int | None:
    return next((value for name in names if (value := _integer(given, name)) is not None), None)


def _positive(given: Mapping[str, str], name: str) -> int | None:
    value = _integer(given, name)
    return value if value is not None and value > 0 else None


def _or(value: int | None, usual: int) -> int:
    return usual if value is None else value


def _switch(given: Mapping[str, str], name: str, *, unset: int) -> bool | None:
    value = _integer(given, name)
    return None if value is None or value == unset else bool(value)


def _microseconds(given: Mapping[str, str]) -> float | None:
    nanoseconds = _integer(given, "NCCL_NET_OVERHEAD")
    return None if nanoseconds is None or nanoseconds == -2 else nanoseconds * 0.001


def _thresholds(text: str | None) -> tuple[int | None, ...]:
    """Up to six numbers; a negative one keeps NCCL's own."""
    values: list[int | None] = []
    for word in (text or "").split()[:6]:
        try:
            values.append(int(word) if int(word) >= 0 else None)
        except ValueError:
            break                                    # NCCL stops reading here
    return tuple(values) + (None,) * (6 - len(values))
