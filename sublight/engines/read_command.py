"""This file knows about reading a launch command: which of its words starts an engine, and what that makes of a plan.

    >>> launch = parse("docker run -e HF_TOKEN=$T vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-32B -tp 4 --seed 1")
    >>> launch.engine, launch.version, launch.model, launch.plan.tp, launch.unknown
    ('vllm', '0.11.0', 'Qwen/Qwen3-32B', 4, (('--seed', '1'),))
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sublight.engines import megatron, options_file, sglang, torchtitan, trtllm, vllm
from sublight.engines.arguments import Said, off, ours, read_arguments, read_keys
from sublight.engines.flags import ENGINES, Table, Version, numbers, table
from sublight.engines.launch import Launch
from sublight.engines.shell import Command, Script, read
from sublight.errors import InputError
from sublight.plan import Job, Serving, Training

# Words that start an engine; those of one engine in order, the last word of each is the program's.
PROGRAMS = {
    "vllm": (r"(.*/)?vllm serve", r"vllm\.entrypoints\.openai\.api_server",
             r"\S*vllm/entrypoints/openai/api_server\.py", r"dynamo\.vllm"),
    "sglang": (r"sglang\.launch_server", r"(.*/)?sglang serve", r"\S*sglang/launch_server\.py", r"dynamo\.sglang"),
    "trtllm": (r"(.*/)?trtllm-serve serve", r"(.*/)?trtllm-serve", r"dynamo\.trtllm", r"tensorrt_llm\.commands\.serve"),
    "megatron": (r"(.*/)?pretrain_(gpt|mamba|hybrid|t5|bert|vlm)\.py",),
    "torchtitan": (r"(.*/)?run_(llama_)?train\.sh", r"torchtitan\.train", r"(.*/)?torchtitan/train\.py"),
}
IMAGES = {"vllm": r"(?:.*/)?vllm-openai(?:-\w+)?(?::(?P<tag>\S+))?", "sglang": r"(?:.*/)?sglang(?::(?P<tag>\S+))",
          "trtllm": r"(?:.*/)?tensorrt-llm/(?:release|devel)(?::(?P<tag>\S+))?",
          "megatron": r"(?:.*/)?nvidia/nemo(?::\S+)?"}
PINNED = {"vllm": r"\bvllm(?:\[[^\]]*\])?==([\d.]+\w*)", "sglang": r"\bsglang(?:\[[^\]]*\])?==([\d.]+\w*)",
          "trtllm": r"\btensorrt[-_]llm==([\d.]+\w*)", "megatron": r"\bmegatron-core==([\d.]+\w*)",
          "torchtitan": r"\btorchtitan==([\d.]+\w*)"}
TALK = {"echo", "printf", "grep", "pkill", "pgrep", "kill", "cat", "pip", "pip3"}     # name engines, start none
POSITIONAL = {"vllm", "trtllm"}          # engines whose model needs no flag
PROCESSES = {"--nproc-per-node", "--nproc_per_node", "--ntasks-per-node"}
NODES = {"--nnodes", "-N", "--nodes"}
HEADER = re.compile(r"(?P<engine>\w+)(?: (?P<version>\d\S*))?(?:, (?P<instances>\d+) instances)?(?:: (?P<model>\S+))?$")


@dataclass(frozen=True, slots=True)
class _Found:
    """A command that starts an engine: words before its program, and after."""

    engine: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    environment: tuple[str, ...]
    program: str


def parse(command: str, *, version: str | None = None, files: Mapping[str, str] | None = None) -> Launch:
    """What a launch command starts. Nothing is run, and no value of an environment variable is kept.

    command  a command line, or text around it: the first command in it that starts an engine is read
    version  of the engine, where the text does not say it (by an image's tag, or package==version)
    files    text of options files that the command names, by the name that it uses

    Raises InputError where no engine is started, or a flag's value cannot be.
    """
    script = read(command)
    starts = _all_starts(script)
    notes = [f"the text starts {len(starts)} engines; the first is read"] if len(starts) > 1 else []
    if script.doubtful:
        notes.append("conditions of the text are not evaluated: a variable set again under one keeps its first value")
    launch = _of(starts[0], 0, script, command, version, files or {})
    return replace(launch, notes=(*notes, *launch.notes))


def parse_all(
    command: str, *, version: str | None = None, files: Mapping[str, str] | None = None,
) -> tuple[Launch, ...]:
    """As parse, of every engine that the text starts, in order."""
    script = read(command)
    starts = _all_starts(script)
    return tuple(_of(found, sum(other.engine == found.engine for other in starts[:at]), script, command, version,
                     files or {}) for at, found in enumerate(starts))


def _all_starts(script: Script) -> list[_Found]:
    starts = [found for shell in script.commands for found in _starts(shell)]
    if not starts:                       # CMD="vllm serve …", which the text runs in some other way
        starts = [found for value in script.variables.values() if " " in value
                  for shell in _read_or_nothing(value) for found in _starts(shell)]
    if not starts:
        raise InputError("no launch command found: expected one of " + ", ".join(
            f"'{program}'" for name in ENGINES for program in table(name).facts["program"][:1]))
    return starts


def _read_or_nothing(text: str) -> list[Command]:
    try:
        return read(text).commands
    except InputError:
        return []


def _of(
    found: _Found, number: int, script: Script, command: str, version: str | None, files: Mapping[str, str],
) -> Launch:
    """The launch of one start: the number-th of its engine."""
    header = _header(script, found.engine, number)
    version = version or header.get("version") or _version(found, command)
    launch = _launch(found, script, version, dict(files))
    instances = int(header.get("instances") or 1)
    if instances > 1 and isinstance(launch.plan, Serving):
        launch = replace(launch, plan=replace(launch.plan, replicas=instances * launch.plan.replicas))
    plan = replace(launch.plan, version=version)
    gpus = plan.gpus if isinstance(plan, Serving) else launch.gpus
    return replace(launch, plan=plan, gpus=gpus, model=launch.model or header.get("model"))


# ---- where the engine starts


def _starts(command: Command) -> list[_Found]:
    words = command.words
    if words[:1] and words[0] in TALK:
        return []
    for at, word in enumerate(words):
        pair = f"{word} {words[at + 1]}" if at + 1 < len(words) else word
        for engine, patterns in PROGRAMS.items():
            for pattern in patterns:
                two = " " in pattern
                if re.fullmatch(pattern, pair if two else word):
                    after = words[at + 2:] if two else words[at + 1:]
                    return [_Found(engine, words[:at], after, command.environment, word)]
        if at and words[at - 1] in ("-c", "-lc", "-exc", "-ec", "eval") and " " in word:     # bash -c "vllm serve …"
            inner = [found for shell in read(word).commands for found in _starts(shell)]
            if inner:
                return [replace(found, before=(*words[:at], *found.before),
                                environment=(*command.environment, *found.environment)) for found in inner]
    return _of_image(command)


def _of_image(command: Command) -> list[_Found]:
    """An image of vLLM starts its server by itself."""
    if "run" not in command.words:
        return []
    for at, word in enumerate(command.words):
        if re.fullmatch(IMAGES["vllm"], word) and at + 1 < len(command.words):
            return [_Found("vllm", command.words[:at + 1], command.words[at + 1:], command.environment, word)]
    return []


def _version(found: _Found, text: str) -> str | None:
    for word in found.before:
        match = re.fullmatch(IMAGES.get(found.engine, r"(?!)"), word)
        tag = match.groupdict().get("tag") if match is not None else None
        if tag is not None and (number := re.match(r"v?(\d+\.\d+(?:\.\d+)?(?:\.?(?:post|rc)\d+)*)", tag)):
            return number[1]
    pinned = re.search(PINNED[found.engine], text)
    return None if pinned is None else pinned[1]


def _header(script: Script, engine: str, number: int) -> dict[str, str]:
    """What the comment says that `emit` begins with; the number-th of an engine belongs to its number-th start."""
    said = [match.groupdict() for comment in script.comments
            if (match := HEADER.match(comment)) is not None and match["engine"] == engine]
    held = said[number] if number < len(said) else {}
    return {name: value for name, value in held.items() if value is not None}


# ---- what it says


def _launch(found: _Found, script: Script, version: str | None, files: dict[str, str]) -> Launch:
    known, number = table(found.engine), numbers(version)
    said = read_arguments(known, found.after, number)
    _variables(known, found, script, said, number)
    _options(known, said, {**script.files, **files}, number)
    model = _model(found, said, script)
    environment = _environment(found)
    extra = list(said.extra)
    job: Job | None = None
    plan: Serving | Training
    gpus = None
    if found.engine == "megatron":
        gpus = _ranks(found.before, script)
        plan, job = megatron.plan(said.settings, extra, number, gpus)
    elif found.engine == "torchtitan":
        gpus = _ranks(found.before, script)
        plan, job = torchtitan.plan(said.settings, extra, number, gpus)
    else:
        for setting in ("chunked_prefill", "prefix_cache"):         # what silence means has changed with versions
            said.settings.setdefault(setting, known.when_silent(setting, number))
        plan = {"vllm": vllm, "sglang": sglang, "trtllm": trtllm}[found.engine].plan(said.settings, extra, number)
    words = [word for word in said.words if word != model]
    notes = [*said.notes, *([f"words without a flag are left out: {len(words)}"] if words else [])]
    _check(plan)
    return Launch(found.engine, version, model, plan, job, gpus, environment, tuple(notes))


def _variables(known: Table, found: _Found, script: Script, said: Said, version: Version) -> None:
    """Settings that variables of the environment give; flags win over them."""
    for row in known.rows:
        if row.place != "variable" or row.sets is None or row.sets in said.settings:
            continue
        value = script.variables.get(row.name) or _docker_variable(found.before, row.name)
        if value is not None:
            said.settings[row.sets] = ours(row, row.name, value) if row.type != "bool" else (
                row.on if value.lower() in ("1", "true") else off(row))
            if not row.within(version):
                said.notes.append(f"{row.name} has no effect in this version")


def _docker_variable(words: Sequence[str], name: str) -> str | None:
    return next((word.split("=", 1)[1] for word in words if word.startswith(f"{name}=")), None)


def _environment(found: _Found) -> tuple[str, ...]:
    """Names of the variables that are set for the engine, in docker's -e too."""
    names = list(found.environment)
    for flag, word in zip(found.before, found.before[1:], strict=False):
        if flag in ("-e", "--env") and (match := re.match(r"[A-Za-z_]\w*", word)):
            names.append(match[0])
    names += [match[1] for word in found.before if (match := re.match(r"--env=([A-Za-z_]\w*)", word))]
    return tuple(dict.fromkeys(names))


def _options(known: Table, said: Said, files: Mapping[str, str], version: Version) -> None:
    """What the options file says that the command names."""
    name = said.settings.pop("options", None)
    if name is None:
        return
    text = files.get(str(name))
    if text is None:
        said.extra.append((known.facts["options"], str(name)))
        said.notes.append("the options file is not part of the text: what its keys say is not known")
        return
    read_keys(known, options_file.flat(options_file.parsed(text)), version, said)


def _model(found: _Found, said: Said, script: Script) -> str | None:
    settings = said.settings
    if found.engine == "torchtitan":
        name, flavor = settings.pop("model_name", None), settings.pop("flavor", None)
        module, config = settings.pop("module", None), settings.pop("config", None)
        config = config or script.variables.get("CONFIG_FILE") or script.variables.get("CONFIG")
        module = module or script.variables.get("MODULE")
        if name or flavor:
            if config:
                said.extra.append(("--job.config_file", str(config)))
            return "/".join(part for part in (name, flavor) if part)
        return f"{module}/{config}" if module and config else config
    model = settings.pop("model", None)
    if model is None and found.engine in POSITIONAL:
        model = said.words[0] if said.words else _swallowed(said)
    return None if model is None else str(model)


def _swallowed(said: Said) -> str | None:
    """The model behind an unknown flag that takes no value: 'vllm serve --new-flag MODEL'."""
    for at, (name, held) in enumerate(said.extra):
        if "/" in held and " " not in held and not held.startswith(("/", "'", '"', "http")):
            said.extra[at] = (name, "")
            return held
    return None


def _ranks(words: Sequence[str], script: Script) -> int | None:
    """GPUs that torchrun, srun, mpirun or NGPU start; None where they do not say."""
    counts: dict[str, int] = {}
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        kind = "processes" if name in PROCESSES else "nodes" if name in NODES else "all"
        if kind == "all" and name not in ("-np", "-n"):
            continue
        value = value if equals else words[at + 1] if at + 1 < len(words) else ""
        match = re.fullmatch(r"(?:\d+:)?(\d+)", value)
        if match is None:
            return None
        counts[kind] = int(match[1])
    ngpu = script.variables.get("NGPU", "")
    if ngpu.isdigit() and not counts:
        return int(ngpu)
    if "processes" in counts:
        return counts["processes"] * counts.get("nodes", 1)
    return counts.get("all")


def _check(plan: Serving | Training) -> None:
    """Sizes that no engine takes."""
    for name in ("tp", "pp", "dp", "ep", "replicas", "cp", "etp", "vpp", "mbs", "token_budget", "max_sequences",
                 "max_length"):
        value = getattr(plan, name, None)
        if value is not None and value < 1:
            raise InputError(f"{name} expected 1 or more, got {value}")
    share = getattr(plan, "memory_fraction", None)
    if share is not None and not (0 < share <= 1 and math.isfinite(share)):
        raise InputError(f"a share of memory in (0, 1] expected, got {share}")
