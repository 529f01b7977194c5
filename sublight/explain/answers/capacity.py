"""This file knows about the room of the cache: how many requests fit at once, what limits a running batch, queueing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sublight.errors import InputError
from sublight.explain.answers.answer import Case, Judged, Point
from sublight.explain.answers.load import Moment, default_sequences, moment, printed_capacity
from sublight.models import Model
from sublight.plan import Serving, Traffic
from sublight.predict.machine import Machine
from sublight.predict.memory import kv_tokens, serving_memory

FULL = 0.95                              # of the cache: above, and with requests that wait, it is what limits
NEARLY = 0.97                            # of the sequences that a step may have
GIB = 2**30


def points(found: Judged) -> Iterator[Point]:
    """What the cache allows, and what the log's queue waits for."""
    case = found.case
    if not isinstance(case.plan, Serving):
        return
    now = moment(case.log, case.plan, case.model, case.where)
    if now is not None:
        yield from _queue(now, case.plan, case)
    yield from _room(case, case.plan, now)
    yield from _wait(found)


def capacity_of(case: Case, plan: Serving) -> tuple[int, str] | None:
    """Tokens of cache of one instance, and whether the log says them."""
    printed = printed_capacity(case.log)
    if printed is not None:
        return printed * (plan.dp if plan.engine == "vllm" else 1), "printed"
    if case.model is None or case.where is None:
        return None
    try:
        return kv_tokens(case.model, plan, case.where) * plan.dp, "computed"
    except InputError:
        return None


def _queue(now: Moment, plan: Serving, case: Case) -> Iterator[Point]:
    """Why requests wait while others run."""
    full = "" if now.kv_usage is None else f", cache {now.kv_usage:.1%} full"
    evidence = [f"running {now.running:,.0f}, waiting {now.waiting:,.0f}{full} "
                f"({'one line' if now.lines == 1 else f'median of {now.lines} lines'})"]
    if now.capacity is not None and now.length:
        evidence.append(f"cache {now.capacity:,} tokens ({'printed' if now.printed else 'computed'}): "
                        f"{now.length:,.0f} tokens a running request")
    limit = default_sequences(plan)
    usage = now.kv_usage or 0.0
    if now.waiting >= 1 and usage >= FULL:
        yield Point("capacity", f"the KV cache is full ({usage:.1%}): it limits the running batch to "
                    f"{now.running:,.0f}, and {now.waiting:,.0f} requests wait for room, whatever the GPU could do",
                    (*evidence, *_ledger(case, plan)), _more_room(plan, case))
    elif now.waiting >= 1 and plan.max_sequences and now.running >= NEARLY * limit:
        yield Point("capacity", f"the running batch is limited by the engine's setting of {limit} sequences, not by "
                    f"the cache, which is {usage:.0%} full: {now.waiting:,.0f} requests wait",
                    tuple(evidence), "raise the limit of sequences (--max-num-seqs, --max-running-requests, "
                    "--max_batch_size) until the cache is nearly full")
    elif now.waiting < 1 and usage < 0.5:
        yield Point("capacity", f"the cache is {usage:.0%} full because no more is asked: {now.running:,.0f} requests "
                    "run and none waits; a low usage is no fault", tuple(evidence),
                    "send more requests at once to fill it")


def _ledger(case: Case, plan: Serving) -> Iterator[str]:
    if case.model is None or case.where is None:
        return
    ledger = serving_memory(case.model, plan, case.where)
    parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in ledger.parts.items() if size > 0.05 * GIB)
    yield f"memory of a GPU, computed, GiB: {parts}"


def _more_room(plan: Serving, case: Case) -> str:
    """What makes room, with how much."""
    says = []
    if case.model is not None and case.where is not None and plan.kv != "fp8" and case.model.kv != "fp8":
        try:
            own, other = (kv_tokens(case.model, made, case.where) for made in (plan, replace(plan, kv="fp8")))
            says.append(f"an fp8 cache ({other / max(1, own):.1f}x the tokens)")
        except InputError:
            pass
    says.append("a larger share of memory" if (plan.memory_fraction or 0.9) < 0.93 else "fewer GPU buffers")
    says.append("a limit on the length of answers or contexts, or more replicas")
    return "; ".join(says)


def _room(case: Case, plan: Serving, now: Moment | None) -> Iterator[Point]:
    """How many requests of the load, or of the longest context, fit at once."""
    held = capacity_of(case, plan)
    if held is None:
        return
    tokens, how = held
    if tokens <= 0 and how == "computed":
        return                           # that the plan does not fit is said already
    load = case.load if isinstance(case.load, Traffic) else None
    predicted = _predicted(case, plan) if how == "printed" else None
    evidence = []
    if predicted is not None:
        evidence.append(f"computed for {plan.engine}: {predicted:,} tokens ({tokens / predicted - 1:+.0%} printed over "
                        "computed)")
        evidence += _ledger(case, plan)
    if load is None or (now is not None and load.burst is False):
        longest = f": {tokens / plan.max_length:.1f} requests of {plan.max_length:,} tokens" if plan.max_length else ""
        yield Point("capacity", f"the cache of one instance holds {tokens:,} tokens ({how}){longest}",
                    tuple(evidence or _ledger(case, plan)))
        return
    length = load.isl + load.osl
    fits = tokens // length * plan.replicas
    asked = load.concurrency
    claim = (f"the cache holds {tokens:,} tokens ({how}): {fits:,} requests of {length:,} tokens at once"
             + (f" on {plan.replicas} instances" if plan.replicas > 1 else ""))
    if asked is not None and fits < asked:
        yield Point("capacity", f"{claim}, of {asked:,} that are asked: the others wait, or are preempted as answers "
                    "grow", tuple(evidence or _ledger(case, plan)), _more_room(plan, case))
    else:
        yield Point("capacity", f"{claim}: it does not limit this load" if asked else claim, tuple(evidence))


def _predicted(case: Case, plan: Serving) -> int | None:
    if case.model is None or case.where is None:
        return None
    try:
        return kv_tokens(case.model, plan, case.where) or None
    except InputError:
        return None


def _wait(found: Judged) -> Iterator[Point]:
    """A time to the first token that is mostly queue."""
    case, rows = found.case, {row.name: row for row in found.rows}
    row, load = rows.get("TTFT"), case.load
    if row is None or row.reported is None or not isinstance(load, Traffic) or load.concurrency is None:
        return
    alone = prefill_alone(case.model, case.plan, case.where, load)
    if alone is None or row.reported < 5 * alone:
        return
    expected = "" if row.expected is None else f"; expected with this load {row.expected:.2g} s"
    yield Point("queue", f"of {row.reported:.3g} s to the first token, {alone * 1e3:.3g} ms are the prompt's own work: "
                "the rest is waiting for a place in the batch", (f"{load.concurrency:,} requests at once, "
                f"{load.isl:,} tokens in, {load.osl:,} out{expected}",),
                "lower the number of requests at once, or add replicas; the prompt's step is not what to tune")


def prefill_alone(model: Model | None, plan: object, where: Machine | None, load: Traffic) -> float | None:
    """Seconds of one prompt on an idle engine."""
    if model is None or where is None or not isinstance(plan, Serving):
        return None
    from sublight.predict.serving.typical import typical_steps

    new = load.isl * (1 - load.prefix_hit)
    chunks = max(1.0, new / max(1, plan.token_budget or 8192)) if plan.chunked_prefill else 1.0
    return typical_steps(model, plan, load, where)["prefill"].seconds * chunks
