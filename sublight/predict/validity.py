"""This file knows about what makes a plan impossible, and what makes it doubtful, each with its reason.

    problems   it cannot run: sizes that do not divide, GPUs or memory that are not there, what an engine refuses
    warnings   it can, and something speaks against it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sublight.errors import InputError
from sublight.models import Model, Split
from sublight.models import problems as indivisible
from sublight.models.feedforward import Mixture
from sublight.plan import Disaggregated, Job, Plan, Serving, Traffic, Training, Workload
from sublight.predict.machine import Machine
from sublight.predict.memory import ENGINES, GIB, Ledger, facts, kv_tokens, serving_memory, splits
from sublight.predict.training.memory import training_memory

SCHEDULES = ("1f1b", "interleaved", "zero-bubble", "dualpipe", "gpipe")
# Number formats of products that an engine cannot do where tensor cores lack them; others unpack the weights (Marlin).
# Sources: TensorRT-LLM, support matrix (FP8 from Ada on, NVFP4 from Blackwell on); SGLang, quantization (modelopt_fp4).
EIGHT, FOUR = "fp8", "fp4"
REFUSED = {"trtllm": (EIGHT, FOUR), "sglang": (FOUR,), "vllm": ()}
LEAST_CAPABILITY = {"mxfp8": (10, 0), "nvfp4": (10, 0)}          # of training (Transformer Engine, recipes by device)


def problems(model: Model, plan: Plan, where: Machine, workload: Workload) -> tuple[str, ...]:
    """Why this plan cannot run on this machine; empty where it can."""
    if isinstance(plan, Training):
        if not isinstance(workload, Job):
            return ("a training plan needs a job (seq, gbs), not traffic",)
        return tuple(_training(model, plan, where, workload))
    if not isinstance(workload, Traffic):
        return ("a serving plan needs traffic (isl, osl), not a training job",)
    if isinstance(plan, Disaggregated):
        return tuple(_disaggregated(model, plan, where, workload))
    return tuple(_serving(model, plan, where, workload))


def warnings(model: Model, plan: Plan, where: Machine, workload: Workload) -> tuple[str, ...]:
    """What speaks against a plan that can run."""
    del workload
    if isinstance(plan, Disaggregated):
        return tuple(dict.fromkeys((*_wide(plan.prefill, where), *_wide(plan.decode, where))))
    idle = where.cluster.ranks - plan.gpus
    unused = (f"{idle} of {where.cluster.ranks} GPUs are not used",) if idle > 0 else ()
    more = _weights_alone(model, plan, where) if isinstance(plan, Serving) else _uneven(model, plan)
    return (*_wide(plan, where), *unused, *more)


def _wide(plan: Serving | Training, where: Machine) -> Iterator[str]:
    domain = where.cluster.domain
    joined = "NVLink" if where.cluster.node.nvlink != "none" else "one node"
    if plan.tp > domain:
        yield f"tp = {plan.tp} reaches beyond {joined} ({domain} GPUs): its all-reduces go over the network"
    ranks = plan.ep * plan.etp if isinstance(plan, Training) else plan.ep
    if ranks > domain:
        yield f"ep = {plan.ep} reaches beyond {joined} ({domain} GPUs): tokens go to experts over the network"


def _uneven(model: Model, plan: Training) -> Iterator[str]:
    layers, chunks = len(model.layers), plan.pp * plan.vpp
    if layers % chunks and "layout" not in dict(plan.extra):
        yield (f"{layers} layers are not alike on pp x vpp = {plan.pp} x {plan.vpp} chunks: Megatron takes a layout "
               "for that (--pipeline-model-parallel-layout)")


def _gpus(plan: Plan, where: Machine) -> Iterator[str]:
    if plan.gpus > where.cluster.ranks:
        yield f"the plan needs {plan.gpus} GPUs, the cluster has {where.cluster.ranks}"


def _indivisible(model: Model, split: Split, where: Machine) -> tuple[str, ...]:
    key = "divides", id(model), split
    if key not in where.memo:            # with the model, so that its id stays its own
        where.memo[key] = model, indivisible(model, split)
    known: tuple[str, ...] = where.memo[key][1]
    return known


# ---- serving ----

def _disaggregated(model: Model, plan: Disaggregated, where: Machine, traffic: Traffic) -> Iterator[str]:
    yield from _gpus(plan, where)
    if plan.prefill_workers < 1 or plan.decode_workers < 1:
        yield f"{plan.prefill_workers} prefill and {plan.decode_workers} decode workers: one of each is the least"
    if plan.prefill.kv != plan.decode.kv:
        yield f"the cache is {plan.prefill.kv} in prefill and {plan.decode.kv} in decode: it cannot be handed over"
    for role, worker, osl in (("prefill", plan.prefill, 1), ("decode", plan.decode, traffic.osl)):
        for text in _serving(model, worker, where, replace(traffic, osl=osl), prefills=role == "prefill"):
            if "GPUs, the cluster has" not in text:
                yield f"{role}: {text}"


def _serving(
    model: Model, plan: Serving, where: Machine, traffic: Traffic, *, prefills: bool = True,
) -> Iterator[str]:
    if plan.engine not in ENGINES:
        yield f"engine '{plan.engine}' is not known; expected one of {', '.join(ENGINES)}"
        return
    yield from _gpus(plan, where)
    try:
        stages = splits(plan)
    except InputError as error:
        yield str(error)
        return
    apart = _indivisible(model, stages[0], where)
    yield from apart
    yield from _experts(model, plan.ep)
    yield from _engine(model, plan)
    yield from _formats(model, plan, where)
    yield from _length(model, plan, traffic)
    if prefills:
        yield from _budget(plan, traffic)
    if not apart:
        yield from _fits(model, plan, where, traffic)


def _experts(model: Model, ep: int) -> Iterator[str]:
    if ep > 1 and not _mixtures(model):
        yield f"ep = {ep}, but {model.name} has no experts"


def _mixtures(model: Model) -> tuple[Mixture, ...]:
    return tuple({layer.mlp for layer, _ in model.kinds if isinstance(layer.mlp, Mixture)})


def _engine(model: Model, plan: Serving) -> Iterator[str]:
    ranks = plan.tp * plan.dp
    if plan.engine == "vllm" and plan.ep not in (1, ranks):
        yield (f"vLLM shares experts over all tp x dp = {ranks} ranks (--enable-expert-parallel) or splits each; "
               f"ep = {plan.ep} is neither 1 nor {ranks}")
    if plan.engine == "trtllm" and plan.dp > 1 and plan.tp > 1:
        yield (f"TensorRT-LLM replicates attention on every rank (enable_attention_dp) or on none; "
               f"tp = {plan.tp} with dp = {plan.dp} is in between")
    if plan.moe_kind and plan.moe_kind.startswith("deepep") and plan.ep != ranks:
        yield f"DeepEP exchanges tokens between all tp x dp = {ranks} ranks; ep = {plan.ep} leaves some out"
    if plan.drafts and not model.drafts and not _names_a_draft(plan):
        yield f"{plan.drafts} drafts a step, but {model.name} has no layers that predict further tokens (MTP)"
    if not 0 <= plan.acceptance <= 1:
        yield f"acceptance = {plan.acceptance}: expected a share from 0 to 1"
    if plan.memory_fraction is not None and not 0 < plan.memory_fraction <= 1:
        yield f"memory fraction {plan.memory_fraction}: expected a share above 0, up to 1"


def _names_a_draft(plan: Serving) -> bool:
    return any("spec" in name or "draft" in name for name, _ in plan.extra)


def _formats(model: Model, plan: Serving, where: Machine) -> Iterator[str]:
    for name in _lacking(model, where):
        if name in REFUSED[plan.engine]:
            yield f"{where.device.title} does not multiply {name}, and {plan.engine} has no other way for it"


def _weights_alone(model: Model, plan: Serving, where: Machine) -> Iterator[str]:
    for name in _lacking(model, where):
        if name not in REFUSED.get(plan.engine, ()):
            yield f"{where.device.title} does not multiply {name}: weights are unpacked to 16 bits in each product"
    if plan.drafts and not model.drafts and _names_a_draft(plan):
        yield "the draft model's own memory and time are not counted: only layers of the model itself (MTP) are"


def _lacking(model: Model, where: Machine) -> tuple[str, ...]:
    tensor = where.device.limits.tensor_flops_per_clock
    used = {weight.form.activations for weight, _ in model.weights() if weight.multiplied and weight.elements}
    return tuple(form for form in (EIGHT, FOUR) if form in used and form not in tensor)


def _length(model: Model, plan: Serving, traffic: Traffic) -> Iterator[str]:
    whole = traffic.isl + traffic.osl
    if plan.max_length is not None and whole > plan.max_length:
        yield f"isl + osl = {whole:,} tokens are more than the plan's longest context, {plan.max_length:,}"
    if model.context is not None and max(whole, plan.max_length or 0) > model.context:
        yield f"{max(whole, plan.max_length or 0):,} tokens are more than the model's context, {model.context:,}"


def _budget(plan: Serving, traffic: Traffic) -> Iterator[str]:
    """TensorRT-LLM refuses a prompt of more than max_num_tokens where it may not cut it."""
    if plan.engine != "trtllm" or plan.chunked_prefill:
        return
    budget = plan.token_budget or facts()["trtllm"]["tokens"]
    if traffic.isl > budget:
        yield (f"a prompt of {traffic.isl:,} tokens is more than a step takes, {budget:,}, and without chunked prefill "
               "TensorRT-LLM refuses it: raise max_num_tokens, or set enable_chunked_prefill")


def _fits(model: Model, plan: Serving, where: Machine, traffic: Traffic) -> Iterator[str]:
    ledger = serving_memory(model, plan, where)
    if not ledger.fits or not ledger.parts["KV cache"]:
        yield _too_much(ledger, "leaves nothing to the cache")
        return
    whole = traffic.isl + traffic.osl
    room = kv_tokens(model, plan, where, length=whole)
    if room < whole:
        yield f"the cache holds {room:,} tokens, one request has isl + osl = {whole:,}"


def _too_much(ledger: Ledger, words: str) -> str:
    over = (ledger.used - ledger.capacity) / GIB
    largest = sorted(((size, part) for part, size in ledger.parts.items() if size), reverse=True)[:3]
    parts = ", ".join(f"{part} {size / GIB:,.1f}" for size, part in largest)
    by = f"{over:,.1f} GiB too much for a GPU" if over > 0 else f"a GPU of {ledger.capacity / GIB:,.1f} GiB is full"
    return f"memory: {by}, which {words} ({parts} GiB)" if over <= 0 else f"memory: {by} ({parts} GiB)"


# ---- training ----

def _training(model: Model, plan: Training, where: Machine, job: Job) -> Iterator[str]:
    yield from _gpus(plan, where)
    wrong = (*_layout(model, plan, where), *_batch(plan, job), *_schedule(model, plan, job))
    yield from wrong
    least = LEAST_CAPABILITY.get(plan.precision)
    capability = where.device.capability
    if least and capability and capability < least:
        yield (f"{where.device.title} does not train in {plan.precision}: that needs compute capability "
               f"{least[0]}.{least[1]}")
    elif plan.precision.startswith("fp8") and EIGHT not in where.device.limits.tensor_flops_per_clock:
        yield f"{where.device.title} does not multiply fp8"
    if not wrong:
        yield from _stages_fit(model, plan, where, job)


def _layout(model: Model, plan: Training, where: Machine) -> Iterator[str]:
    yield from _indivisible(model, Split(tp=plan.tp), where)
    yield from _experts(model, plan.ep)
    ranks = plan.dp * plan.cp * plan.tp
    if ranks % (plan.ep * plan.etp):
        yield f"ep x etp = {plan.ep} x {plan.etp} does not divide the dp x cp x tp = {ranks} ranks of a stage"
    for block in _mixtures(model):
        if block.experts % plan.ep:
            yield f"ep = {plan.ep} does not divide {block.experts} experts"
        if block.inner % plan.etp:
            yield f"etp = {plan.etp} does not divide {block.inner} columns of an expert"


def _batch(plan: Training, job: Job) -> Iterator[str]:
    if job.gbs % (plan.dp * plan.mbs):
        yield f"gbs = {job.gbs} is not a multiple of dp x mbs = {plan.dp} x {plan.mbs}"
    if job.seq % (2 * plan.cp if plan.cp > 1 else 1):
        yield f"seq = {job.seq:,} is not a multiple of 2 x cp = {2 * plan.cp}: causal halves are dealt out in pairs"
    if plan.sequence_parallel and plan.tp > 1 and (job.seq // plan.cp) % plan.tp:
        yield (f"seq / cp = {job.seq // plan.cp:,} is not a multiple of tp = {plan.tp}, which share it "
               "(sequence parallelism)")


def _schedule(model: Model, plan: Training, job: Job) -> Iterator[str]:
    layers, chunks, count = len(model.layers), plan.pp * plan.vpp, job.gbs // max(1, plan.dp * plan.mbs)
    if plan.schedule not in SCHEDULES:
        yield f"schedule '{plan.schedule}' is not known; expected one of {', '.join(SCHEDULES)}"
    if chunks > layers:
        yield f"pp x vpp = {plan.pp} x {plan.vpp} chunks are more than the {layers} layers"
    if plan.vpp > 1 and plan.pp == 1:
        yield f"vpp = {plan.vpp} interleaves stages, and there is one"
    if plan.schedule == "interleaved" and plan.vpp == 1:
        yield "the interleaved schedule needs vpp of 2 or more"
    if plan.vpp > 1 and plan.pp > 1 and count % plan.pp:
        yield f"{count} micro-batches are not a multiple of pp = {plan.pp}, which interleaving needs"
    if plan.schedule == "dualpipe" and plan.pp > 1 and (plan.pp % 2 or count < 2 * plan.pp):
        yield f"DualPipe needs an even pp and 2 x pp micro-batches at least; got pp = {plan.pp} and {count}"


def _stages_fit(model: Model, plan: Training, where: Machine, job: Job) -> Iterator[str]:
    for stage in sorted({0, plan.pp - 1}):
        ledger = training_memory(model, plan, job, where, stage=stage)
        if not ledger.fits:
            yield f"stage {stage}: {_too_much(ledger, '')}"
