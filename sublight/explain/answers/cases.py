"""This file knows about the runs that a pasted text speaks of: which command, log, benchmark summary, model and GPUs
belong together, and what is missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sublight.cluster import named as node_named
from sublight.cluster import parse as parse_cluster
from sublight.engines import Launch, default
from sublight.errors import InputError
from sublight.explain.answers.answer import Case, Given
from sublight.explain.answers.load import load_of_log, load_of_table
from sublight.models import Model, find, named, recast
from sublight.models.latent import LatentAttention
from sublight.observe.logs.log import Log
from sublight.observe.logs.text import launch as launch_of
from sublight.observe.pasted import Pasted
from sublight.observe.pasted_names import ModelName, model_of
from sublight.plan import Serving, Traffic, Training
from sublight.predict.layout import usual
from sublight.predict.machine import Machine
from sublight.result import Result

MOST_CASES = 4
TRAINS = ("megatron", "torchtitan")
MICRO = ("pytest-benchmark", "google benchmark")
Table = tuple[Result, ...]


def cases(pasted: Pasted, given: Given) -> list[Case]:
    """Up to four runs, in the order of the text."""
    joined = _joined(pasted)
    kinds = [gpu for gpu in pasted.gpus if gpu.key is not None]
    if len(joined) == 1 and len(kinds) > 1 and given.gpus is None:       # the same on several GPUs: one case each
        launch, log, table = joined[0]
        others = [replace(pasted, gpus=(gpu,)) for gpu in kinds[:MOST_CASES]]
        return [_case(_letter(number), launch, log if number == 0 else None, table if number == 0 else (), one, given)
                for number, one in enumerate(others)]
    return [_case(_letter(number), launch, log, table, pasted, given)
            for number, (launch, log, table) in enumerate(joined[:MOST_CASES])]


def _letter(number: int) -> str:
    return chr(ord("A") + number)


def _joined(pasted: Pasted) -> list[tuple[Launch | None, Log | None, Table]]:
    """Launches with the log of their engine and the summaries that follow them."""
    launches = [(found.launch, found.line) for found in sorted(pasted.launches, key=lambda found: found.line)]
    launches = [pair for at, pair in enumerate(launches) if pair[0] not in [other for other, _ in launches[:at]]]
    made = [(launch_of(log.engine, log.arguments, log.version), log) for log in pasted.logs
            if log.arguments and log.engine not in {launch.engine for launch, _ in launches}]
    heads: list[tuple[Launch | None, Log | None, int]] = [
        (launch, _log_of(launch.engine, at, launches, pasted), line) for at, (launch, line) in enumerate(launches)]
    heads += [(launch, log, 0) for launch, log in made]
    used = {id(log) for _, log, _ in heads if log is not None}
    heads += [(None, log, 0) for log in pasted.logs if id(log) not in used and log.steps]
    if not heads:
        serving = any(table[0].about.get("tool") not in MICRO for _, table in pasted.tables if table)
        heads = [(None, None, -1)] if serving or pasted.asked or (
            pasted.models and pasted.gpus and not pasted.trains) else []
    tables = _tables(len(heads), [line for _, _, line in heads], pasted)
    return [(launch, log, table) for (launch, log, _), own in zip(heads, tables, strict=True) for table in own or [()]]


def _log_of(engine: str, at: int, launches: list[tuple[Launch, int]], pasted: Pasted) -> Log | None:
    """The log of an engine belongs to its first launch."""
    first = next(number for number, (launch, _) in enumerate(launches) if launch.engine == engine)
    return next((log for log in pasted.logs if log.engine == engine), None) if at == first else None


def _tables(count: int, lines: list[int], pasted: Pasted) -> list[list[Table]]:
    """Summaries of each head: one each in order where the numbers agree, else of the last one before."""
    out: list[list[Table]] = [[] for _ in range(count)]
    if not count:
        return out
    if len(pasted.tables) == count:
        return [[table] for _, table in pasted.tables]
    for line, table in pasted.tables:
        before = [at for at in range(count) if lines[at] <= line]
        out[before[-1] if before else 0].append(table)
    return out


# ---- one case


def _case(name: str, launch: Launch | None, log: Log | None, table: Table, pasted: Pasted, given: Given) -> Case:
    about: dict[str, Any] = dict(table[0].about) if table else {}
    engine = launch.engine if launch else log.engine if log else engine_said(about) or "vllm"
    sources: dict[str, str] = {}
    missing: list[str] = []
    notes = [*(launch.notes if launch else ())]
    model, words = _model(launch, log, about, pasted, given, sources, missing)
    plan = launch.plan if launch else None
    if launch is None and not log and engine_said(about) is None:
        notes.append(f"the text names no engine; {engine} is assumed")
    where, count = _machine(engine, plan, launch, pasted, given, sources, missing)
    plan = plan or _assumed(engine, model, where, pasted, sources, notes)
    if plan is not None and launch is not None:
        sources["plan"] = "the command" if launch in [found.launch for found in pasted.launches] else "the log"
    plan, own = _filled(plan, model, where)
    load: Any = launch.job if launch else None
    if engine not in TRAINS:
        load = load_of_table(about, pasted, given, plan, sources) or load_of_log(log, plan, model, where, sources)
        if load is None:
            missing.append("the load: lengths of prompts and answers and how many at once (--isl, --osl, "
                           "--concurrency), or the benchmark's summary")
    elif load is None:
        missing.append("the job: sequence length and global batch are not in the text")
    return Case(name, engine, plan, model, words, where, load, table, log, count, own, sources, tuple(missing),
                tuple(dict.fromkeys(notes)))


def _filled(plan: Any, model: Model | None, where: Machine | None) -> tuple[Any, tuple[str, ...]]:
    """The plan with the sizes of a step that its engine takes in this version, where the command says none."""
    if not isinstance(plan, Serving) or where is None:
        return plan, ()
    latent = model is not None and any(isinstance(layer.attention, LatentAttention) for layer in model.layers)
    sizes: dict[str, int] = {}
    for name in ("token_budget", "max_sequences"):
        if getattr(plan, name) is None:
            try:
                found = default(plan, name, memory_bytes=where.device.memory_bytes, device=where.device.title,
                                latent=latent)
            except InputError:
                continue
            sizes[name] = int(found.value)
    made = replace(plan, token_budget=sizes.get("token_budget", plan.token_budget),
                   max_sequences=sizes.get("max_sequences", plan.max_sequences))
    return made, tuple(sizes)


def engine_said(about: dict[str, Any]) -> str | None:
    """The engine that a benchmark's summary names as its backend."""
    said = {"vllm": "vllm", "sglang": "sglang", "sglang-oai": "sglang", "trtllm": "trtllm", "trt": "trtllm",
            "tensorrt-llm": "trtllm"}.get(str(about.get("backend", "")))
    return said or ("sglang" if "sglang" in str(about.get("tool")) else None)


def _model(launch: Launch | None, log: Log | None, about: dict[str, Any], pasted: Pasted, given: Given,
           sources: dict[str, str], missing: list[str]) -> tuple[Model | None, str]:
    """The model, and how the text calls it."""
    if given.model is not None:
        sources["model"] = "--model"
        return find(given.model), given.model
    said = [(launch.model, "the command") if launch else (None, ""),
            (log.arguments.get("model") if log else None, "the log"), (about.get("model"), "the summary"),
            *((asked.model, "the benchmark's command") for asked in pasted.asked),
            *((name, "the text") for name in pasted.models)]
    words = [(str(name), source) for name, source in said if name]
    for name, source in words:
        known = model_of(name)
        if known is not None:
            sources["model"] = source + ("" if known.name.lower().endswith(name.split("/")[-1].lower())
                                         else f" ({known.name} has its shape)")
            return _built(known, launch), known.name
    missing.append("the model: say --model with a config.json, or a name of the catalog" if not words else
                   "the model: the one that the text names is not in the catalog; say --model with its config.json")
    return None, ""


def _built(known: ModelName, launch: Launch | None) -> Model:
    """With the number format of weights that its name or the command says."""
    model = named(known.name)
    flags = dict(launch.plan.extra) if launch else {}
    weights = known.weights or ("fp8" if flags.get("--quantization", flags.get("-q", "")) == "fp8" else None)
    if weights is None or model.quantisation not in (None, "", "none"):
        return model
    return recast(model, attention=weights, mlp=weights, experts=weights)


def _machine(engine: str, plan: Any, launch: Launch | None, pasted: Pasted, given: Given, sources: dict[str, str],
             missing: list[str]) -> tuple[Machine | None, int | None]:
    """The GPUs, and how many of them the text names. Measured operator tables are left out: the answer is at once, and
    the same everywhere; sublight predict uses them."""
    library, version = ("torch", None) if engine in TRAINS else (engine, launch.version if launch else None)
    if given.gpus is not None:
        cluster = parse_cluster(given.gpus)
        sources["GPUs"] = "--gpus"
        return Machine(cluster, library, version, tables=False), cluster.ranks
    known = [gpu for gpu in pasted.gpus if gpu.key is not None]
    if not known:
        names = ", ".join(gpu.title for gpu in pasted.gpus)
        missing.append(f"the GPUs: {names} is not in the catalog; say the nearest that is, as --gpus 8xH100"
                       if names else "the GPUs: the text names none; say --gpus, as 8xH100")
        return None, None
    gpu = known[0]
    needed = plan.gpus if isinstance(plan, Serving | Training) and (launch is None or launch.gpus != 0) else None
    count = gpu.count or needed or 1
    try:
        node = node_named(gpu.key or "")
    except InputError:
        missing.append(f"the GPUs: the catalog has {gpu.title}, but no node of them; say a near one with --gpus")
        return None, gpu.count
    total = max(count, needed or 1)
    each = min(total, node.gpus)
    nodes = -(-total // each)
    sources["GPUs"] = "the text" + (f" ({gpu.count} named, the plan needs {needed}: read as {nodes} nodes)"
                                    if needed and gpu.count and gpu.count < needed else "")
    if len({other.key for other in known}) > 1:
        sources["GPUs"] += f"; the first of {len(known)} kinds that it names"
    return Machine(parse_cluster(f"{nodes}x{each}x{node.key}"), library, version, tables=False), gpu.count


def _assumed(engine: str, model: Model | None, where: Machine | None, pasted: Pasted, sources: dict[str, str],
             notes: list[str]) -> Serving | None:
    """The layout where no command says one: what prose names, or the usual one."""
    if engine in TRAINS or model is None or where is None:
        return None
    plan = Serving(engine, where.version)
    said = {name: values[-1] for name, values in pasted.layout.items() if len(values) == 1}
    if said:
        sources["plan"] = "the text"
        made = replace(plan, tp=said.get("tp", 1), pp=said.get("pp", 1), ep=said.get("ep", 1))
        return made if made.gpus <= where.cluster.ranks else None
    try:
        made = usual(model, where, plan)
    except InputError as error:
        notes.append(str(error))
        return None
    sources["plan"] = "assumed: the fewest ranks that hold the model"
    return made


def traffic_of(case: Case) -> Traffic | None:
    return case.load if isinstance(case.load, Traffic) else None
