"""This file knows about why NCCL chooses what it chooses: the term that wins, and the rules that ruled others out."""

from __future__ import annotations

from dataclasses import dataclass

from sublight.comm.nccl.choice import Candidate, Choice, Model, Sizes, Switch, as_it_counts, refusals, times

US_PER_GB = 1e-3                         # bytes over 10^9 bytes a second, in microseconds


def because(model: Model, choice: Choice) -> str:
    """Why this candidate beats the next one: latency or bandwidth, with both figures."""
    best, other = choice.best, choice.runner_up
    if other is None:
        return "nothing else is allowed"
    slower = _slower(best, other)
    if slower < 0.05:
        return f"no slower than {other.name}: equal times go to the first in NCCL's order"
    latency, transfer = other.latency_us - best.latency_us, _transfer(choice, other) - _transfer(choice, best)
    if latency >= transfer:
        word = f"latency {best.latency_us:.1f} µs against {other.latency_us:.1f} µs of {other.name}"
    else:
        word = f"bandwidth {best.bandwidth:.4g} GB/s against {other.bandwidth:.4g} GB/s of {other.name}"
    notes = "".join(_note(model, choice.function, c) for c in (best, other))
    behind = f"{slower:.1f} % slower" if slower < 1000 else f"{slower / 100 + 1:.0f} times as slow"
    return f"{word}, {behind}{notes}"


def _slower(best: Candidate, other: Candidate) -> float:
    assert best.time_us
    assert other.time_us is not None
    return (other.time_us / best.time_us - 1) * 100


def _transfer(choice: Choice, candidate: Candidate) -> float:
    return choice.nbytes * US_PER_GB / candidate.bandwidth


def _note(model: Model, function: str, candidate: Candidate) -> str:
    """What NCCL changed in the line at this size."""
    line = model.lines[function, candidate.algorithm, candidate.protocol]
    if candidate.bandwidth < 0.999 * float(line.bandwidth):
        factor = candidate.bandwidth / float(line.bandwidth)
        return f"; {candidate.name} counts {factor:.1f} of its bandwidth at this size"
    if candidate.latency_us > 1.001 * float(line.latency_us):
        factor = candidate.latency_us / float(line.latency_us)
        return f"; {candidate.name} counts {factor:.1f} times its latency (plateau)"
    return ""


def decided_by(choice: Choice) -> str:
    """Which term of the winner is larger."""
    return "latency" if choice.best.latency_us >= _transfer(choice, choice.best) else "bandwidth"


@dataclass(frozen=True, slots=True)
class Rule:
    """What one rule took out: candidates such as NVLS/Simple of these collectives."""

    reason: str
    names: tuple[str, ...]


def rules(model: Model, functions: tuple[str, ...], *, dtype: str = "fp16", op: str = "sum") -> tuple[Rule, ...]:
    """Why candidates are off, those that no hardware or setting could turn on left out, one line per reason."""
    found: dict[str, dict[str, None]] = {}
    for function in functions:
        refused = refusals(model, function, dtype, op)
        for (of, algorithm, protocol), line in model.lines.items():
            reason = line.off or refused.get(algorithm, "")
            if of == function and reason and not reason.endswith("with Simple only"):
                name = algorithm if protocol == "Simple" and _simple_only(algorithm) else f"{algorithm}/{protocol}"
                found.setdefault(reason, {})[f"{function}: {name}"] = None
    return tuple(Rule(reason, _short(model, tuple(names), functions)) for reason, names in found.items())


def _simple_only(algorithm: str) -> bool:
    return algorithm not in ("Ring", "Tree")


def _short(model: Model, names: tuple[str, ...], functions: tuple[str, ...]) -> tuple[str, ...]:
    """Names without the collective where every collective that has them is meant."""
    found: dict[str, None] = {}
    for name in names:
        bare = name.partition(": ")[2]
        algorithm = bare.partition("/")[0]
        having = {of for of, a, _ in model.lines if a == algorithm and of in functions}
        whole = having <= {other.partition(": ")[0] for other in names if other.endswith(f": {bare}")}
        found[bare if whole else name] = None
    return tuple(found)


def switching(model: Model, function: str, switch: Switch, *, dtype: str = "fp16", op: str = "sum") -> str:
    """What changes at that size: lines that meet, a step of the correction of trees, the plateau of a ring."""
    import numpy as np

    sizes = np.array([switch.nbytes - 1, switch.nbytes], np.int64)
    table = times(model, function, sizes, dtype=dtype, op=op)
    jumps = []
    for name in (switch.before, switch.after):
        before, after = (float(time) for time in table[name])
        if abs(after - before) > 1e-3 * before:
            jumps.append(f"{'/'.join(name)} steps from {before:.1f} to {after:.1f} µs")
    if jumps:
        return ", ".join(jumps) + f" ({_step(model, switch)})"
    old, new = (_counted(model, function, name, sizes[1:]) for name in (switch.before, switch.after))
    return _meeting(old, new)


def _step(model: Model, switch: Switch) -> str:
    plateau: int = model.constants.latency["plateau"]["bytes_per_channel_and_rank"]
    if switch.nbytes == plateau * model.comm.channels * model.comm.ranks and model.comm.nodes > 1:
        return f"from {plateau} B a channel and rank on a ring's latency counts more"
    return "NCCL corrects the bandwidth of trees by powers of two"


def _counted(model: Model, function: str, name: tuple[str, str], size: Sizes) -> tuple[float, float]:
    latency, bandwidth = as_it_counts(model, model.lines[(function, *name)], size)
    return float(latency[0]), float(bandwidth[0])


def _meeting(old: tuple[float, float], new: tuple[float, float]) -> str:
    """The two lines (µs, GB/s, as they count here) cross."""
    latencies, rates = f"{new[0]:.1f} against {old[0]:.1f} µs", f"{new[1]:.4g} against {old[1]:.4g} GB/s"
    if new[1] > old[1]:
        return f"more bandwidth ({rates}) makes up for more latency ({latencies})"
    return f"less latency ({latencies}) makes up for less bandwidth ({rates})"
