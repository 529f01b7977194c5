"""Our Triton kernels on this machine's GPU, in under five minutes: right by their contracts, and how long they take.

    python bench/gpu_kernels.py -o gpu_kernels.json              # on a machine with an NVIDIA GPU, torch and Triton
    python bench/gpu_kernels.py -o rehearsal.json --rehearse     # without one: a few cases in the interpreter, no times

Checks run first, a process an operator: compiling takes most of their time. An operator that is not through its cases
after --seconds stops, and says how many it has not tried. Times follow in one process: every kernel of an operator that
this machine has (ours, torch's), the same call over and over on buffers in turn, so many that the L2 cache holds none
of them, in a CUDA graph, kernels taking turns round by round. The data are results, not a verdict: other load, clocks
and temperature are as they were.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module, metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from sublight.bound import bound
from sublight.device import DeviceInfo, find
from sublight.kernels.contract import Case, Contract
from sublight.kernels.kernel import Kernel
from sublight.kernels.launch.call import launch
from sublight.kernels.launch.support import ROWS, Row
from sublight.kernels.launch.targets import Target, here, target
from sublight.kernels.listed import contract, kernels

OPS = ("norm", "swiglu", "rope", "routing", "cross_entropy", "attention", "gemm")
ROUNDS = 15                              # of all kernels of a shape in turn
CALLS = 20                               # in one graph
L2_TIMES = 3                             # bytes of all buffers in turn, over those of the L2 cache
REHEARSED = 3                            # cases an operator


def main() -> None:
    options = parsed()
    began = time.monotonic()
    found: dict[str, Any] = {"machine": rehearsal() if options.rehearse else machine(), "checks": list(checks(options)),
                             "times": [] if options.rehearse else list(times(deadline=began + 290))}
    Path(options.output).write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    wrong = sum(len(check["wrong"]) for check in found["checks"])
    print(f"{sum(check['tried'] for check in found['checks'])} cases, {wrong} wrong; {len(found['times'])} times; "
          f"{time.monotonic() - began:.0f} s; written to {options.output}")
    raise SystemExit(1 if wrong else 0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("-o", "--output", required=True, help="the file of results, JSON")
    parser.add_argument("--seconds", type=float, default=120, help="for the cases of an operator (default 120)")
    parser.add_argument("--rehearse", action="store_true", help="a few cases in the interpreter, without a GPU")
    return parser.parse_args()


def machine() -> dict[str, Any]:
    """The card, what it was clocked at, and every version that the code or its time depends on."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device is available to torch; --rehearse tries the script without one")
    card = torch.cuda.get_device_properties()
    return {"card": card.name, "capability": f"{card.major}.{card.minor}", "sms": card.multi_processor_count,
            "l2_bytes": card.L2_cache_size, "memory_bytes": card.total_memory, **versions()}


def rehearsal() -> dict[str, Any]:
    return {"card": None, **versions()}


def versions() -> dict[str, Any]:
    import torch

    return {"date": datetime.now(UTC).date().isoformat(), "torch": torch.__version__,
            "triton": metadata.version("triton"), "sublight": metadata.version("sublight"), "cuda": torch.version.cuda}


# ---- right -------------------------------------------------------------------------------------------------------

def checks(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with ProcessPoolExecutor(2 if options.rehearse else len(OPS), mp_context=get_context("spawn")) as pool:
        yield from pool.map(check, OPS, [options.seconds] * len(OPS), [options.rehearse] * len(OPS))


def check(op: str, seconds: float, rehearse: bool) -> dict[str, Any]:
    """One operator's cases. wrong: each case with all that was wrong; worst: the largest share of a bound, of what an
    honest implementation makes."""
    end, kept = time.monotonic() + seconds, contract(op)
    where = target(90) if rehearse else here()
    form = import_module(f"sublight.kernels.{op}.triton_form")
    cases = [case for case in kept.cases() if form.unsupported(case.shape, where) is None]
    out: dict[str, Any] = {"op": op, "tried": 0, "refused": len(kept.cases()) - len(cases), "not_tried": 0,
                           "wrong": [], "share_of_bound": 0.0, "share_of_honest": 0.0}
    for case in cases:
        if time.monotonic() > end or (rehearse and out["tried"] == REHEARSED):
            out["not_tried"] += 1
            continue
        add(out, kept, case, where, "cpu" if rehearse else "cuda")
    return out


def add(out: dict[str, Any], kept: Contract, case: Case, where: Target, device: str) -> None:
    from sublight.kernels.policy import judge

    out["tried"] += 1
    try:
        inputs, outputs, outside = ran(kept, case, where, device)
    except Exception as error:           # of whatever kind: it belongs to the result
        out["wrong"].append({"case": str(case), "said": [f"{type(error).__name__}: {error}"[:500]]})
        return
    found = judge(kept, case, inputs, outputs)
    if not found.ok or outside:
        out["wrong"].append({"case": str(case), "said": [*found.wrong, *outside]})
    for errors in found.errors:
        out["share_of_bound"] = max(out["share_of_bound"], errors.share_of_bound)
        out["share_of_honest"] = max(out["share_of_honest"], errors.share_of_honest)


def ran(kept: Contract, case: Case, where: Target, device: str) -> tuple[Any, dict[str, Any], list[str]]:
    """Inputs, outputs on the CPU, and what was written where nobody may write."""
    from contextlib import nullcontext

    import torch

    from sublight.kernels.launch.guards import Guards
    from sublight.kernels.launch.interpret import interpreted
    from sublight.kernels.rounding import DTYPES

    inputs, guards = kept.inputs(case), Guards()
    given = {name: guards.copy(name, tensor.to(device)) for name, tensor in inputs.items()}
    outputs = {name: given[name] if name in given else guards.empty(name, spec.sizes, DTYPES[spec.form], device=device)
               for name, spec in kept.outputs(case.shape).items()}
    form = import_module(f"sublight.kernels.{kept.name}.triton_form")
    with interpreted() if device == "cpu" else nullcontext():
        for call in form.calls(case.shape, {**given, **outputs}, replace(where, sms=4) if device == "cpu" else where):
            launch(call)
    if device == "cuda":
        torch.cuda.synchronize()
    spoilt = [f"{name} was written" for name, tensor in inputs.items() if name not in outputs
              and not torch.equal(as_bytes(tensor), as_bytes(given[name].cpu()))]
    return inputs, {name: tensor.cpu() for name, tensor in outputs.items()}, [*guards.broken(), *spoilt]


def as_bytes(tensor: Any) -> Any:
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)


# ---- fast --------------------------------------------------------------------------------------------------------

def times(*, deadline: float) -> Iterator[dict[str, Any]]:
    """Every row of the support table, as long as there is time."""
    for row in ROWS:
        if time.monotonic() > deadline:
            yield {"row": row.title, "format": row.format, "missing": "the time was up"}
        else:
            yield timed(row)


def timed(row: Row) -> dict[str, Any]:
    shape, out = row.shape(), {"row": row.title, "format": row.format, "op": row.op, "sizes": dict(row.sizes)}
    replays, missing = {}, {}
    for kernel in kernels(row.op, where="cuda"):
        why = kernel.refuses(shape)
        try:
            if why is None:
                replays[kernel.name] = graph(kernel, contract(row.op), shape)
        except Exception as error:       # a rival that a graph cannot hold, or memory that is short
            why = f"{type(error).__name__}: {error}"[:300]
        if why is not None:
            missing[kernel.name] = why
    rounds: dict[str, list[float]] = {name: [] for name in replays}
    for _ in range(ROUNDS):
        for name, replay in replays.items():
            rounds[name].append(replay())
    light = least(contract(row.op), shape)
    return {**out, "bound": light, "missing": missing,
            "kernels": {name: summary(seconds, light) for name, seconds in rounds.items()}}


def graph(kernel: Kernel, kept: Contract, shape: Any) -> Callable[[], float]:
    """A function that replays the graph of CALLS calls and says the seconds of one."""
    import torch

    sets = buffers(kept, shape)
    run = kernel.build(shape, {name: sets[0][0][name] for name in kept.constant})
    for inputs, outputs in sets[:2]:     # compiles
        run(inputs, dict(outputs))
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        for at in range(CALLS):
            inputs, outputs = sets[at % len(sets)]
            run(inputs, dict(outputs))

    def replay() -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        recorded.replay()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3 / CALLS

    replay()
    return replay


def buffers(kept: Contract, shape: Any) -> list[tuple[Mapping[str, Any], dict[str, Any]]]:
    """Inputs and outputs, so often that one round over them is more than the L2 cache holds, at most CALLS times."""
    import torch

    from sublight.kernels.rounding import DTYPES

    first = {name: tensor.cuda() for name, tensor in kept.inputs(Case(shape)).items()}
    nbytes = sum(tensor.nbytes for tensor in first.values())
    times = min(CALLS, 1 + L2_TIMES * torch.cuda.get_device_properties().L2_cache_size // max(1, nbytes))
    out: list[tuple[Mapping[str, Any], dict[str, Any]]] = []
    for _ in range(times):
        inputs = {name: tensor.clone() for name, tensor in first.items()}
        out.append((inputs, {name: inputs[name] if name in inputs else torch.empty(
            spec.sizes, dtype=DTYPES[spec.form], device="cuda") for name, spec in kept.outputs(shape).items()}))
    return out


def least(kept: Contract, shape: Any) -> dict[str, Any] | None:
    """The bound on this card, where the catalog has it."""
    import torch

    card = torch.cuda.get_device_properties()
    known = find(DeviceInfo(card.name, card.multi_processor_count, card.total_memory, (card.major, card.minor)))
    found = known and bound(kept.op(shape).work(), known.limits)
    return {"device": known.key, "seconds": found.seconds, "limiter": found.limiter} if known and found else None


def summary(seconds: list[float], light: dict[str, Any] | None) -> dict[str, Any]:
    low, middle, high = statistics.quantiles(seconds, n=4)
    share = light["seconds"] / middle if light else None
    wrong = share is not None and share > 1     # nothing is faster than light: the bound or the time is wrong
    return {"median_s": middle, "quartiles_s": [low, high], "share_of_bound": share, "suspicious": wrong}


if __name__ == "__main__":
    main()
