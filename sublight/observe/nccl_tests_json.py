"""This file knows about the JSON that nccl-tests writes with -J: layout versions 1 to 3 (nccl-tests src/util.cu,
2.19.6).

Its `env` holds the whole environment of the run, and `args` a command line: of both, nothing but the program's name is
looked at.
"""

from __future__ import annotations

import json
import re
from typing import Any

from sublight.errors import InputError
from sublight.observe.nccl_tests import COLLECTIVES, CUT_SHORT, PROGRAM, Rank, Row, Test, results
from sublight.result import Result

BETWEEN_ROWS = re.compile(r"\}\s*,\s*\{\s*\"size\"")
PLACES = (("out_of_place", "out-of-place"), ("in_place", "in-place"))


def looks_like(text: str) -> bool:
    """Whether this is such a file."""
    head = text[:4000]
    return head.lstrip().startswith("{") and '"nccl_version"' in text and '"config"' in text and '"results"' in text


def read_json(text: str, name: str) -> tuple[Result, ...]:
    """As nccl_tests.read_text. Raises InputError where it cannot be repaired."""
    try:
        document, whole = json.loads(text), True
    except RecursionError:
        raise InputError(f"{name} is JSON that is nested too deep; expected what nccl-tests -J writes") from None
    except ValueError:
        document, whole = _repaired(text, name), False
    try:
        test = _test(document, name)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        raise InputError(f"{name} looks like JSON of nccl-tests, but {type(e).__name__} at {str(e)[:40]!r}; expected "
                         "config.devices and results[] with size and out_of_place or in_place") from None
    if not whole:
        test.failure, test.ended = CUT_SHORT, False
    return tuple(results(test, name))


def _repaired(text: str, name: str) -> Any:
    """What a killed run left, up to the last whole line of the table."""
    ends = [m.start() for m in BETWEEN_ROWS.finditer(text)]
    for end in reversed(ends[-3:]):
        try:
            return json.loads(text[:end] + "}]}")
        except ValueError:
            continue
    raise InputError(f"{name} is JSON of nccl-tests that breaks off before its first two sizes; run the test again")


def _test(document: dict[str, Any], name: str) -> Test:
    config = document.get("config") or {}
    program = PROGRAM.search(str((document.get("args") or [""])[0])) or PROGRAM.search(name)
    code = int(document.get("nccl_version") or 0)
    test = Test(
        COLLECTIVES[program.group(1)] if program else "unnamed",
        least_bytes=int(config.get("minimum_bytes") or 0), most_bytes=int(config.get("maximum_bytes") or 0),
        step=(int(config.get("step_factor") or 0), "factor") if config.get("step_factor") else (
            int(config.get("step_bytes") or 1), "bytes"),
        library=f"NCCL {code // 10000}.{code // 100 % 100}.{code % 100}" if code else None,
    )
    for device in config.get("devices") or ():
        test.ranks.append(Rank(str(device["hostname"]), int(device["device"]), str(device["device_hex"]),
                               str(device["device_info"]).strip()))
    per_process = int(config.get("nthreads") or 1) * int(config.get("ngpus") or 1)
    if per_process > 1:                  # the file lists the first GPU of each process only
        test.ranks = [rank for rank in test.ranks for _ in range(per_process)]
    for entry in document.get("results") or ():
        test.rows.extend(_rows(entry))
    average = (document.get("average_bus_bandwidth") or {}).get("bandwidth")
    test.average = float(average) * 1e9 if isinstance(average, int | float) and average > 0 else None
    test.ended = "average_bus_bandwidth" in document or "end_time" in document
    if document.get("errors"):
        test.failure = "NCCL error"
    return test


def _rows(entry: dict[str, Any]) -> list[Row]:
    out = []
    for key, place in PLACES:
        body = entry.get(key)
        if not body:
            continue
        time = _positive(body.get("time", body.get("cpu_time")))
        bus = _positive(body.get("bus_bw"))
        iterations = entry.get(f"{key}_per_iter") or {}
        wrong = body.get("nwrong")
        out.append(Row(
            int(entry["size"]), place, time and time * 1e-6, bus and bus * 1e9,
            int(wrong) if isinstance(wrong, int | float) else 0,
            _micro(iterations.get("min_us")), _micro(iterations.get("max_us")), _times(iterations.get("times_us")),
            tuple(_times(times) for times in iterations.get("per_process_max_times_us") or ()),
        ))
    return out


def _positive(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 < value < 1e30 else None


def _micro(value: object) -> float | None:
    found = _positive(value)
    return None if found is None else found * 1e-6


def _times(values: object) -> tuple[float, ...]:
    if not isinstance(values, list):
        return ()
    return tuple(float(v) * 1e-6 for v in values if isinstance(v, int | float) and v > 0)
