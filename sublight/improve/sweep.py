"""This file knows about sweeps: the best plan of many (model, GPUs, traffic), on all cores or on a Ray cluster,
resumable.

Every finished case is a line of a journal beside the output; a sweep that was killed reads it and goes on. The output
is written once, in the order of the cases, so that it is the same whoever did the work.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sublight.errors import InputError


@dataclass(frozen=True, slots=True)
class Case:
    """One question of a sweep."""

    model: str
    gpus: str
    isl: int
    osl: int
    engine: str = "vllm"
    ttft: float | None = None            # seconds
    tpot: float | None = None
    tables: bool = False                 # measured operator tables are used where they are installed

    @property
    def key(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


HEAD = ("model", "gpus", "isl", "osl", "engine", "tp", "pp", "dp", "ep", "replicas", "concurrency", "ttft_s", "tpot_s",
        "tokens_per_s_per_gpu", "low", "high", "tokens_per_s_per_user", "limiter", "problem")


def solve(case: Case) -> dict[str, Any]:
    """The plan with the most tokens a second and GPU; or the problem, in words."""
    from sublight.cluster import parse
    from sublight.improve.search import Slo, best_of_each, candidates
    from sublight.models import find
    from sublight.plan import Traffic
    from sublight.predict.answer import limiter_words
    from sublight.predict.machine import Machine

    row: dict[str, Any] = dict.fromkeys(HEAD, "")
    row |= {"model": case.model, "gpus": case.gpus, "isl": case.isl, "osl": case.osl, "engine": case.engine}
    where = Machine(parse(case.gpus), case.engine, tables=case.tables)
    try:
        found = best_of_each(candidates(find(case.model), Traffic(case.isl, case.osl, concurrency=1),
                                        [where], Slo(case.ttft, case.tpot)))
    except InputError as error:
        return row | {"problem": str(error)}
    if not found:
        return row | {"problem": "no load keeps the limits"}
    best = found[0]
    rate = best.estimate.results["tokens/s/GPU"]
    return row | {
        "tp": best.plan.tp, "pp": best.plan.pp, "dp": best.plan.dp, "ep": best.plan.ep, "replicas": best.plan.replicas,
        "concurrency": best.concurrency, "ttft_s": f"{best.estimate.value('TTFT'):.6g}",
        "tpot_s": f"{best.estimate.value('TPOT'):.6g}" if "TPOT" in best.estimate.results else "",
        "tokens_per_s_per_gpu": f"{best.per_gpu:.6g}",
        "low": f"{rate.low:.6g}" if rate.low is not None else "",
        "high": f"{rate.high:.6g}" if rate.high is not None else "",
        "tokens_per_s_per_user": f"{best.per_user:.6g}" if best.per_user else "",
        "limiter": limiter_words(best.estimate.limiter),
    }


def sweep(
    cases: Sequence[Case], out: Path, *, on: str = "local", jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Writes the CSV `out`; returns how many cases were taken from the journal of an earlier, cut run.

    on: "local" (`jobs` processes, default all cores) or "ray" (a cluster that ray.init finds).
    """
    journal = out.with_name(out.name + ".journal")
    done = _journalled(journal)
    known = len([case for case in cases if case.key in done])
    left = [case for case in dict.fromkeys(cases) if case.key not in done]
    with journal.open("a", encoding="utf-8") as log:
        for count, (case, row) in enumerate(_solved(left, on, jobs), 1):
            done[case.key] = row
            log.write(json.dumps({"case": case.key, "row": row}) + "\n")
            log.flush()
            if progress:
                progress(known + count, len(cases))
    _write(out, [done[case.key] for case in cases])
    journal.unlink()
    return known


def _journalled(path: Path) -> dict[str, dict[str, Any]]:
    """Finished cases of a journal; a last line that was cut by a kill is cut off, so that what follows is whole."""
    if not path.exists():
        return {}
    text = path.read_bytes()
    whole = text[:text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        path.write_bytes(whole)
    try:
        lines = [json.loads(line) for line in whole.decode("utf-8").splitlines()]
        return {line["case"]: line["row"] for line in lines}
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path.name} is not the journal of a sweep; move it away, or name another output") from None


def _solved(cases: Sequence[Case], on: str, jobs: int | None) -> Iterator[tuple[Case, dict[str, Any]]]:
    if on == "ray":
        yield from _with_ray(cases)
        return
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1 or len(cases) < 2:
        yield from ((case, solve(case)) for case in cases)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # spawn: a fork of a process with threads (numpy, rich) may hang
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from zip(cases, pool.map(solve, cases, chunksize=4), strict=True)


def _with_ray(cases: Sequence[Case]) -> Iterator[tuple[Case, dict[str, Any]]]:
    try:
        import ray
    except ImportError:
        raise InputError("--on ray needs Ray: pip install 'sublight[ray]'") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, configure_logging=False, include_dashboard=False)
    work = ray.remote(solve)
    waiting = {work.remote(case): case for case in cases}
    while waiting:
        ready, _ = ray.wait(list(waiting))
        for reference in ready:
            yield waiting.pop(reference), ray.get(reference)


def _write(out: Path, rows: Iterable[dict[str, Any]]) -> None:
    import csv
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, HEAD, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    part = out.with_name(out.name + ".part")
    part.write_text(text.getvalue(), "utf-8")
    part.replace(out)
