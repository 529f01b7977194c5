"""This file knows about what is kept of checks and runs, and which of them a file of results holds already."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sublight.device import Limits
from sublight.kernels.arena.bench import Measured, Pace, measure
from sublight.kernels.arena.check import check
from sublight.kernels.arena.compare import Standing, standings
from sublight.kernels.arena.entry import Entry
from sublight.kernels.arena.environment import environment
from sublight.kernels.arena.outcome import PASSED, Ended, Outcome
from sublight.kernels.arena.process import Arena
from sublight.kernels.arena.results import Results
from sublight.kernels.arena.sizes import fields_of
from sublight.kernels.arena.trial import shown
from sublight.kernels.contract import Case, Contract

Done = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """One kernel on one case, as it is kept. errors: by output, the fields of policy.Errors; None is not finite."""

    kernel: str
    case: Mapping[str, Any]              # shape, values, seed
    outcome: Outcome
    errors: tuple[Mapping[str, Any], ...]
    known: bool = False                  # it was in the file already


@dataclass(frozen=True, slots=True)
class Timed:
    """One kernel in a run, as it is kept. ns: of each round, without waits for a CPU."""

    kernel: str
    key: Mapping[str, str]
    outcome: Outcome
    ns: tuple[int, ...]
    cpu_ns: tuple[int | None, ...]
    tolerance_ns: float
    errors: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One shape's run of all kernels, as it is kept."""

    op: str
    shape: Mapping[str, Any]
    cache: str
    threads: int
    kernels: tuple[Timed, ...]
    working_set: int
    bound_seconds: float | None
    limiter: str | None
    rates: Mapping[str, tuple[float, float]]           # the ceilings: best, and how far the median lies below it
    note: str | None
    environment: Mapping[str, str]
    made: str = ""                       # when, in UTC
    known: bool = False

    def standings(self) -> tuple[Standing, ...]:
        """Those that passed, the fastest first."""
        return standings({k.kernel: k.ns for k in self.kernels if k.outcome.kind == PASSED and k.ns})


def described(arena: Arena, entries: Sequence[Entry]) -> dict[Entry, dict[str, str]]:
    """What a result of each kernel depends on: the hash of its source, and what the kernel itself declares."""
    keys = {}
    for entry in entries:
        keys[entry] = {"name": entry.name, "file": entry.source}
        try:
            process = arena.start(entry)
        except Ended as ended:
            keys[entry]["import"] = str(ended.outcome)
            continue
        keys[entry] |= {"provider": process.described["provider"], **process.described["key"]}
        process.close()
    return keys


def checks(arena: Arena, contract: Contract, entries: Sequence[Entry], cases: Sequence[Case], *,
           results: Results | None = None, device: str | None = None, done: Done | None = None) -> Iterator[Trial]:
    """Every kernel on every case; those that the file holds already are not made again."""
    keys = described(arena, entries) if results is not None else {entry: {} for entry in entries}
    about = _environment(keys, device, arena.threads, None)
    for number, case in enumerate(cases):
        left = []
        for entry in entries:
            found = results.get(_check_key(contract, case, keys[entry], about)) if results is not None else None
            if found is None:
                left.append(entry)
            else:
                yield dataclasses.replace(trial_of(found), known=True)
        for checked in check(arena, contract, left, [case], device=device):
            trial = Trial(checked.entry.name, shown(case), checked.judged.outcome,
                          tuple(map(_errors, checked.judged.errors)))
            if results is not None:
                results.add(_check_key(contract, case, keys[checked.entry], about), trial_json(trial))
            yield trial
        if done:
            done(number + 1, len(cases))


def runs(arena: Arena, contract: Contract, shapes: Sequence[Any], entries: Sequence[Entry], *, cache: str, pace: Pace,
         results: Results | None = None, device: str | None = None, limits: Limits | None = None,
         done: Done | None = None) -> Iterator[Run]:
    """A run of all kernels on each shape; those that the file holds already are not made again."""
    keys = described(arena, entries)
    about = _environment(keys, device, arena.threads, cache)
    for number, shape in enumerate(shapes):
        key = {"kind": "bench", "op": contract.name, "shape": fields_of(shape), "environment": about,
               "kernels": [keys[entry] for entry in entries]}
        found = results.get(key) if results is not None else None
        if found is not None:
            yield dataclasses.replace(run_of(found), known=True)
        else:
            run = kept(measure(arena, contract, shape, entries, cache=cache, pace=pace, device=device, limits=limits),
                       keys, about)
            if results is not None:
                results.add(key, run_json(run))
            yield run
        if done:
            done(number + 1, len(shapes))


def _environment(keys: Mapping[Entry, Mapping[str, str]], device: str | None, threads: int, cache: str | None,
                 ) -> dict[str, str]:
    return environment(device=device, threads=threads, cache=cache,
                       providers=[key.get("provider", "") for key in keys.values()])


def _check_key(contract: Contract, case: Case, kernel: Mapping[str, str], about: Mapping[str, str]) -> dict[str, Any]:
    return {"kind": "check", "op": contract.name, **shown(case), "kernel": kernel, "environment": about}


def kept(measured: Measured, keys: Mapping[Entry, Mapping[str, str]], about: Mapping[str, str]) -> Run:
    """What is kept of a run."""
    lanes = tuple(Timed(lane.entry.name, keys[lane.entry], lane.outcome, lane.ns, lane.cpu_ns, lane.tolerance_ns,
                        tuple(map(_errors, lane.errors))) for lane in measured.lanes)
    found, lowest = measured.ceilings, measured.bound
    rates = {name: (found.best(name), found.spread(name)) for name in found.samples} if found else {}
    return Run(measured.contract.name, fields_of(measured.shape), measured.cache, measured.threads, lanes,
               measured.working_set, lowest.seconds if lowest else None, lowest.limiter if lowest else None, rates,
               measured.note, about, datetime.now(UTC).isoformat(timespec="seconds"))


def _errors(errors: Any) -> Mapping[str, Any]:
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in dataclasses.asdict(errors).items()}


def trial_json(trial: Trial) -> dict[str, Any]:
    return {"kernel": trial.kernel, "case": trial.case, "outcome": trial.outcome.to_json(),
            "errors": list(trial.errors)}


def trial_of(row: Mapping[str, Any]) -> Trial:
    return Trial(row["kernel"], row["case"], _outcome(row["outcome"]), tuple(row["errors"]))


def run_json(run: Run) -> dict[str, Any]:
    """A run as JSON; `standings` are there for readers, and made anew from the times when it is read."""
    out = {field.name: getattr(run, field.name) for field in dataclasses.fields(run) if field.name != "known"}
    out["kernels"] = [{"kernel": k.kernel, "key": k.key, "outcome": k.outcome.to_json(), "ns": list(k.ns),
                       "cpu_ns": list(k.cpu_ns), "tolerance_ns": k.tolerance_ns, "errors": list(k.errors)}
                      for k in run.kernels]
    out["rates"] = {name: list(rate) for name, rate in run.rates.items()}
    return {**out, "standings": [dict(standing.to_json()) for standing in run.standings()]}


def run_of(row: Mapping[str, Any]) -> Run:
    kernels = tuple(Timed(k["kernel"], k["key"], _outcome(k["outcome"]), tuple(k["ns"]), tuple(k["cpu_ns"]),
                          k["tolerance_ns"], tuple(k["errors"])) for k in row["kernels"])
    rates = {name: (rate[0], rate[1]) for name, rate in row["rates"].items()}
    return Run(row["op"], row["shape"], row["cache"], row["threads"], kernels, row["working_set"],
               row["bound_seconds"], row["limiter"], rates, row["note"], row["environment"],
               row["made"])


def _outcome(row: Mapping[str, Any]) -> Outcome:
    return Outcome(row["kind"], tuple(row["said"]))
