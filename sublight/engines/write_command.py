"""This file knows about writing a launch command: the words that start an engine with a plan, by version.

    >>> print(emit("Qwen/Qwen3-32B", Serving(tp=4, max_sequences=256), "vllm"))
    vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 --max-num-seqs 256
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sublight.engines import megatron, options_file, sglang, torchtitan, trtllm, vllm
from sublight.engines.arguments import Extra, Written, write_arguments
from sublight.engines.flags import Table, Version, numbers, table
from sublight.engines.read_command import parse
from sublight.engines.shell import quoted
from sublight.errors import InputError
from sublight.plan import Disaggregated, Job, Plan, Serving, Training

FILE = "options.yml"
GPUS_PER_NODE = 8
ASSUMED = ("acceptance", "imbalance", "engine", "framework", "version")   # of the workload, or said beside the command
TRAINING = ("megatron", "torchtitan")


def emit(
    model: str | None, plan: Plan, engine: str | None = None, version: str | None = None, *, job: Job | None = None,
) -> str:
    """The command that starts an engine with a plan; `parse` reads the same plan back.

    engine, version  default: the plan's own; no version: the newest that we know
    job              of a training run: its sequence length and global batch
    A disaggregated plan makes two commands, of its prefill and its decode workers; `parse_all` reads both.

    Raises InputError where this version of the engine cannot be told a value of the plan.
    """
    if isinstance(plan, Disaggregated):
        return _pair(model, plan, engine, version)
    return _checked(model, plan, _target(plan, engine, version), job)


@dataclass(frozen=True, slots=True)
class _Target:
    """What the command is written for.

    file       the options file that the command writes, where it needs one
    instances  independent ones that are started alike, beside the plan's own replicas
    """

    known: Table
    version: str | None
    file: str = FILE
    instances: int = 1

    @property
    def number(self) -> Version:
        return numbers(self.version)


def _target(plan: Serving | Training, engine: str | None, version: str | None) -> _Target:
    own = plan.engine if isinstance(plan, Serving) else plan.framework
    return _Target(table(engine or own), version or (plan.version if engine in (None, own) else None))


def _pair(model: str | None, plan: Disaggregated, engine: str | None, version: str | None) -> str:
    """A command for each role."""
    engine = engine or plan.prefill.engine
    roles, number = table(engine).facts.get("roles"), numbers(version or plan.prefill.version)
    if roles is None or number < numbers(roles["since"]):
        since = "" if roles is None else f"; from {roles['since']} on it has"
        raise InputError(f"{table(engine).title} has no workers that only prefill or only decode{since}")
    texts = []
    for role, part, workers in (("prefill", plan.prefill, plan.prefill_workers),
                                ("decode", plan.decode, plan.decode_workers)):
        given = {name for name, _ in part.extra}
        extra = tuple((name, held) for name, held in roles[role] if name not in given)
        target = replace(_target(part, engine, version), file=f"{role}.yml", instances=workers)
        texts.append(_checked(model, replace(part, extra=(*part.extra, *extra)), target, None))
    return "\n\n".join(texts)


def _checked(model: str | None, plan: Serving | Training, target: _Target, job: Job | None) -> str:
    known, engine = target.known, target.known.engine
    if isinstance(plan, Serving) == (engine in TRAINING):
        kind = "a Training plan" if engine in TRAINING else "a Serving plan"
        raise InputError(f"{known.title} is started with {kind}, got one of {type(plan).__name__}")
    if job is not None and engine not in TRAINING:
        raise InputError(f"{known.title} serves; a job of training has no place in its command")
    if model is None and engine != "megatron":
        raise InputError(f"{known.title} needs the name or path of a model in its command")
    text = _command(model or "", settled(plan), target, job)
    _verify(text, plan, target, job)
    return text


def settled(plan: Serving | Training) -> Serving | Training:
    """A plan as a command can say it: without what is assumed of the workload, and with defaults where a value has no
    effect (sequence parallelism of one rank)."""
    if isinstance(plan, Serving):
        kind = None if plan.moe_kind == "tp" and plan.ep == 1 else plan.moe_kind
        return replace(plan, acceptance=0.0, imbalance=1.0, moe_kind=kind)
    sequence_parallel = True if plan.tp == 1 else plan.sequence_parallel
    return replace(plan, imbalance=1.0, sequence_parallel=sequence_parallel)


def _command(model: str, plan: Serving | Training, target: _Target, job: Job | None) -> str:
    known, engine, number = target.known, target.known.engine, target.number
    if isinstance(plan, Serving):
        module = {"vllm": vllm, "sglang": sglang, "trtllm": trtllm}[engine]
        settings = _once(module.settings(plan, number))
        instances = target.instances * (1 if engine == "sglang" and plan.dp == 1 else plan.replicas)
        written = write_arguments(known, settings, plan.extra, number)
        start = _serve(model, engine, number)
        return _text(target, instances, None, start, written)
    settings = (megatron if engine == "megatron" else torchtitan).settings(plan, job, number)
    written = write_arguments(known, settings, plan.extra, number)
    start, name = _train(model, plan, engine, number, written)
    return _text(target, 1, name, start, written)


def _once(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None or name == "cuda_graph_config"}


def _serve(model: str, engine: str, number: Version) -> list[str]:
    name = quoted(model)
    if engine == "vllm":
        return ["vllm", "serve", name]
    if engine == "sglang":
        return ["python", "-m", "sglang.launch_server", "--model-path", name]
    return ["trtllm-serve", name]


def _train(
    model: str, plan: Training, engine: str, number: Version, written: Written,
) -> tuple[list[str], str | None]:
    """The start of a training command, and the model's name where only a comment can say it."""
    nodes, processes = _nodes(plan.gpus)
    torchrun = ["torchrun", *(["--nnodes", str(nodes)] if nodes > 1 else []), "--nproc-per-node", str(processes)]
    if engine == "megatron":
        return [*torchrun, "pretrain_gpt.py"], model
    start = [*torchrun, "-m", "torchtitan.train"]
    if model.endswith(".toml"):
        return [*start, "--job.config_file", quoted(model)], None
    name, slash, flavor = model.partition("/")
    if number >= (0, 3):
        if not slash:
            raise InputError(f"torchtitan from 0.3 on names a module and a config ('llama3/llama3_8b'), got {model!r}")
        return [*start, "--module", quoted(name), "--config", quoted(flavor)], None
    return [*start, "--model.name", quoted(name), *(["--model.flavor", quoted(flavor)] if slash else [])], None


def _nodes(gpus: int) -> tuple[int, int]:
    processes = next(size for size in range(min(GPUS_PER_NODE, gpus), 0, -1) if gpus % size == 0)
    return gpus // processes, processes


def _text(target: _Target, instances: int, name: str | None, start: list[str], written: Written) -> str:
    known, version, file = target.known, target.version, target.file
    lines = []
    if version is not None or instances > 1 or name is not None:
        lines.append(f"# {known.engine}" + (f" {version}" if version is not None else "")
                     + (f", {instances} instances" if instances > 1 else "") + (f": {name}" if name else ""))
    flags = list(written.flags)
    if written.keys:
        option = known.facts["options"]
        if not option:
            raise InputError(f"{known.title} has no options file for {written.keys[0][0]}")
        if any(flag.split(" ", 1)[0] in (option, "--config") for flag in flags):
            raise InputError(f"the plan needs keys of an options file ({written.keys[0][0]}), but names one whose text "
                             "is not known; give its text to parse")
        lines.append(f"cat > {file} << 'EOF'\n{options_file.written(options_file.nested(written.keys))}\nEOF")
        flags.append(f"{option} {file}")
    variables = [f"{variable}={value}" for variable, value in written.variables]
    lines.append(" ".join([*variables, *start, *flags]))
    return "\n".join(lines)


def _verify(text: str, plan: Serving | Training, target: _Target, job: Job | None) -> None:
    """What is written must read as the same plan: where it does not, the engine cannot be told it."""
    known, version = target.known, target.version
    back = parse(text, version=version)
    wanted = settled(plan)
    if isinstance(wanted, Serving):
        wanted = replace(wanted, replicas=wanted.replicas * target.instances)
    for part in fields(wanted):
        if part.name in ASSUMED:
            continue
        want, got = getattr(wanted, part.name), getattr(back.plan, part.name)
        if part.name == "extra":
            want, got = (_kept(known, extra) for extra in (want, got))
        if want != got:
            which = f"{known.title} {version}" if version is not None else known.title
            raise InputError(f"{which} has no flag that says {part.name.replace('_', ' ')} = {want!r}"
                             + (f"; it would be {got!r}" if part.name != "extra" else ""))
    if job is not None and back.job != job:
        raise InputError(f"{known.title} would read the job as {back.job}, not {job}")


def _kept(known: Table, extra: Sequence[Extra]) -> tuple[Extra, ...]:
    """Extra flags in one order; without objects that a setting is written into (speculation's)."""
    objects = {row.name for row in known.rows if row.type == "json" and row.template}
    return tuple(sorted(pair for pair in extra if pair[0] not in objects))
