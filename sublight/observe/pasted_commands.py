"""This file knows about commands in free text: launches of engines and runs of benchmarks, wherever they stand in it.

Lines that a backslash or an indented flag joins are one command. `LLM(…)` and `Engine(…)` calls of the offline APIs
count as launches too: their keywords are the flags' names.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sublight.engines import Launch, parse_all
from sublight.engines.read_command import IMAGES, PROGRAMS
from sublight.errors import InputError
from sublight.observe.json_values import model_name
from sublight.observe.logs.text import keywords, launch

START = re.compile("|".join(rf"(?:^|[\s`'\"(/]){pattern}(?=$|[\s`'\"\\])"
                            for pattern in [p.replace("(.*/)?", r"(?:\S*/)?") for ps in PROGRAMS.values() for p in ps]))
IMAGE = re.compile(rf"docker run\b.*{IMAGES['vllm'].replace('(?P<tag>', '(?:')}")
ASSIGNED = re.compile(r"^\s*(?:export\s+)?[A-Z_][A-Z0-9_]*=(?:\"[^\"]*\"|'[^']*'|[^\s;&|]*)\s*$")
PROMPT = re.compile(r"^\s*(?:[-*] )?(?:[$>#]+ +)?|^\s*\S+@\S+[#$] ")
FLAG = re.compile(r"^\s+--?[A-Za-z]")
CALL = re.compile(r"\b(?P<name>LLM|AsyncEngineArgs|EngineArgs|sgl\.Engine|sglang\.Engine|Engine)\(")
NAMESPACE = re.compile(r"\bNamespace\((?P<text>.*\brequest_rate=.*)\)")
BENCH = {
    "vllm bench serve": r"(?:vllm bench serve|benchmark_serving\.py)",
    "vllm bench throughput": r"(?:vllm bench throughput|benchmark_throughput\.py)",
    "vllm bench latency": r"(?:vllm bench latency|benchmark_latency\.py)",
    "sglang bench_serving": r"(?:sglang\.bench_serving|sglang\.benchmark\.serving)",
    "aiperf": r"(?:aiperf profile|genai-perf profile)", "trtllm-bench": r"trtllm-bench",
    "sglang bench_one_batch": r"sglang\.bench_one_batch(?:_server)?",
}
OFFLINE = {"vllm bench throughput": "vllm", "vllm bench latency": "vllm", "trtllm-bench": "trtllm",
           "sglang bench_one_batch": "sglang"}
SERVED_AS = {"vllm": "vllm serve", "trtllm": "trtllm-serve serve", "sglang": "python -m sglang.launch_server"}
SETTINGS = {
    "isl": ("--random-input-len", "--random-input", "--input-len", "--sonnet-input-len", "--isl",
            "--synthetic-input-tokens-mean"),
    "osl": ("--random-output-len", "--random-output", "--output-len", "--sonnet-output-len", "--osl",
            "--output-tokens-mean", "--sharegpt-output-len"),
    "concurrency": ("--max-concurrency", "--concurrency", "--batch-size", "--batch"),
    "requests": ("--num-prompts", "--num-prompt", "--num-requests", "--request-count"),
    "rate": ("--request-rate",),
}
OF_BENCHMARK = {name for names in SETTINGS.values() for name in names} | {
    "--dataset", "--dataset-name", "--dataset-path", "--backend", "--tokenizer", "--seed", "--output-json",
    "--async-engine", "--trust-remote-code", "--warmup", "--report-json", "--num-iters", "--num-iters-warmup",
    "--streaming"}
WORDS = ("vllm", "sglang", "trtllm", "tensorrt_llm", "pretrain_", "train.sh", "torchtitan")
FRACTION = re.compile(r"--kv_cache_free_gpu_mem(?:ory)?_fraction")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a benchmark's command asks of the engine. all_at_once: no rate limit was given, or inf."""

    tool: str
    model: str | None = None
    settings: Mapping[str, float] = field(default_factory=dict)
    all_at_once: bool = False
    line: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """A launch, and the line (from 0) where it begins."""

    launch: Launch
    line: int


def logical(lines: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """Commands with their lines: what a backslash joins, and indented flags below a launch."""
    at = 0
    while at < len(lines):
        text, numbers = lines[at].rstrip(), [at]
        at += 1
        while at < len(lines):
            if text.endswith("\\"):
                text = text[:-1].rstrip() + " " + lines[at].strip()
            elif FLAG.match(lines[at]) and (_starts(text) or _bench(text)):
                text += " " + lines[at].strip()
            else:
                break
            numbers.append(at)
            at += 1
        yield text, numbers


def commands(lines: Sequence[str], versions: Mapping[str, str]) -> tuple[list[Found], list[Asked], list[str], set[int]]:
    """Launches, benchmark runs, what could not be read, and the lines of all of them.

    versions: of engines, where the text says them in other words.
    """
    found, asked, notes, taken = list[Found](), list[Asked](), list[str](), set[int]()
    settings = [(number, line.strip()) for number, line in enumerate(lines)
                if "=" in line and ASSIGNED.match(line)]
    for text, numbers in logical(lines):
        before = "\n".join(line for number, line in settings if number < numbers[0])
        bench = _bench(text)
        if bench is not None:
            asked.append(_asked(bench, text, numbers[0], before))
            taken.update(numbers)
            found += [Found(made, numbers[0]) for made in _offline(bench, text, before, versions)]
        elif _starts(text):
            made, note = _launches(text, before, versions)
            found += [Found(one, numbers[0]) for one in made]
            if made:
                taken.update(numbers)
            if note:
                notes.append(f"line {numbers[0] + 1}: {note}")
        elif "Namespace(" in text and (match := NAMESPACE.search(text)) is not None:
            asked.append(_of_namespace(match["text"], numbers[0]))
            taken.update(numbers)
    taken.update(number for number, _ in settings if found or asked)
    calls, more = _calls(lines, versions)
    return [*found, *calls], asked, notes, taken | more


def _starts(text: str) -> bool:
    """It starts an engine. The words are looked for first: the pattern is long, and logs have millions of lines."""
    return any(word in text for word in WORDS) and bool(START.search(text) or IMAGE.search(text))


def _bench(text: str) -> str | None:
    if "bench" not in text and "perf profile" not in text:
        return None
    return next((tool for tool, pattern in BENCH.items() if re.search(rf"(?:^|[\s/`'\".]){pattern}\b", text)), None)


# ---- launches


def _launches(text: str, before: str, versions: Mapping[str, str]) -> tuple[list[Launch], str]:
    """Launches of one command. In prose it may stand between backquotes; a quotation without end is tried without."""
    quoted = [part for part in re.findall(r"`([^`]+)`", text) if START.search(part)]
    plain = PROMPT.sub("", text, count=1)
    tries = [*quoted, plain, re.sub(r"['\"`]", "", plain)]
    error = ""
    for tried in tries:
        try:
            made = parse_all(f"{before}\n{tried}" if before else tried)
        except InputError as problem:
            error = error or str(problem)
            continue
        return [_versioned(one, versions) for one in made], ""
    return [], error if "no launch command" not in error else ""


def _versioned(made: Launch, versions: Mapping[str, str]) -> Launch:
    version = made.version or versions.get(made.engine)
    return replace(made, version=version, plan=replace(made.plan, version=version))


def _calls(lines: Sequence[str], versions: Mapping[str, str]) -> tuple[list[Found], set[int]]:
    """LLM(model=…, tensor_parallel_size=…) over as many lines as it takes."""
    found, taken = list[Found](), set[int]()
    for number, line in enumerate(lines):
        match = CALL.search(line) if "LLM(" in line or "Engine" in line else None
        if match is None:
            continue
        body, used = _between(lines, number, match.end())
        engine = "sglang" if "ngine" in match["name"] and "Args" not in match["name"] else "vllm"
        said = keywords(engine, body)
        made = launch(engine, said, versions.get(engine)) if said else None
        if made is not None:
            found.append(Found(_versioned(made, versions), number))
            taken.update(used)
    return found, taken


def _between(lines: Sequence[str], number: int, start: int) -> tuple[str, list[int]]:
    """Text up to the parenthesis that closes the one before `start`, of at most 60 lines."""
    depth, body, used = 1, list[str](), list[int]()
    for at in range(number, min(len(lines), number + 60)):
        text = lines[at][start if at == number else 0:]
        used.append(at)
        for place, letter in enumerate(text):
            depth += {"(": 1, ")": -1}.get(letter, 0)
            if depth == 0:
                return "\n".join([*body, text[:place]]), used
        body.append(text)
    return "\n".join(body), used


def _offline(tool: str, text: str, before: str, versions: Mapping[str, str]) -> list[Launch]:
    """Benchmarks that start the engine themselves take its flags: read as if it was served."""
    engine = OFFLINE.get(tool)
    if engine is None:
        return []
    words = [word for word in _words(text) if word not in ("throughput", "latency", "\\")]
    at = next((number for number, word in enumerate(words) if re.search(BENCH[tool], word)
               or re.search(BENCH[tool], " ".join(words[max(0, number - 2):number + 1]))), 0)
    rest = [FRACTION.sub("--kv_cache_free_gpu_memory_fraction", word) for word in words[at + 1:]]
    if engine in ("vllm", "trtllm") and "--model" in rest and rest.index("--model") + 1 < len(rest):
        place = rest.index("--model")
        rest = [rest[place + 1], *rest[:place], *rest[place + 2:]]
    made, _ = _launches(shlex.join([*SERVED_AS[engine].split(), *rest]), before, versions)
    return [_without_benchmark(one) for one in made]


def _without_benchmark(made: Launch) -> Launch:
    """Without the benchmark's own flags, which are no engine's."""
    extra = tuple((flag, value) for flag, value in made.plan.extra if flag.replace("_", "-") not in OF_BENCHMARK)
    return replace(made, plan=replace(made.plan, extra=extra))


# ---- benchmark runs


def _words(text: str) -> list[str]:
    try:
        return shlex.split(PROMPT.sub("", text, count=1).replace("`", " "))
    except ValueError:
        return text.replace("`", " ").split()


def _asked(tool: str, text: str, line: int, before: str) -> Asked:
    variables = dict(re.findall(r"(\w+)=[\"']?([^\"'\s]+)", before))
    words = [re.sub(r"\$\{?(\w+)\}?", lambda m: variables.get(m[1], m[0]), word) for word in _words(text)]
    said: dict[str, str] = {}
    for at, word in enumerate(words):
        name, equals, given = word.partition("=")
        if name.startswith("-"):
            said[name.replace("_", "-")] = given if equals else words[at + 1] if at + 1 < len(words) else ""
    settings = {ours: value for ours, names in SETTINGS.items() if (value := _first(said, names)) is not None}
    if tool == "vllm bench latency":
        settings.setdefault("concurrency", 8.0)                  # benchmark_latency's default batch
        settings["requests"] = settings["concurrency"]
    limited = settings.get("rate") is not None or "concurrency" in settings
    return Asked(tool, model_name(said.get("--model")), settings, not limited, line)


def _first(said: Mapping[str, str], names: Sequence[str]) -> float | None:
    return next((number for name in names if (number := _number(said.get(name))) is not None), None)


def _of_namespace(text: str, line: int) -> Asked:
    """What benchmark_serving prints of its own arguments."""
    said = {match[1]: match[2].strip("'\"") for match in re.finditer(r"(\w+)=('[^']*'|\"[^\"]*\"|[^,\s)]+)", text)}
    names = {"requests": "num_prompts", "rate": "request_rate", "concurrency": "max_concurrency"}
    if said.get("dataset_name") == "random":
        names |= {"isl": "random_input_len", "osl": "random_output_len"}
    settings = {ours: value for ours, name in names.items() if (value := _number(said.get(name))) is not None}
    return Asked("vllm bench serve", model_name(said.get("model")), settings, said.get("request_rate") == "inf", line)


def _number(text: str | None) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)[,;)]?", text or "")
    return None if match is None or float(match[1]) <= 0 else float(match[1])
