"""This file knows about names in free text: which GPUs it speaks of, which model, and figures in prose.

    >>> [(gpu.key, gpu.count) for gpu in gpus("8xH100 80GB, later one A100 80GB PCIe")]
    [('h100-sxm', 8), ('a100-pcie-80', 1)]
    >>> model_of("/models/DeepSeek-R1-Distill-Llama-8B"), model_of("Qwen3-8B-FP8-dynamic")
    (ModelName(name='meta-llama/Llama-3.1-8B', weights=None), ModelName(name='Qwen/Qwen3-8B', weights='fp8'))
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources

from sublight.models.read import catalog
from sublight.observe.json_values import model_name

# Longer names first. None: a GPU that the catalog does not have.
GPUS: tuple[tuple[str, str | None], ...] = (
    (r"GB300", "gb300"), (r"GB200", "gb200"), (r"GB10", None), (r"B300", "b300"), (r"B200", "b200"),
    (r"GH200(?:[ -]\d+GB)?", "gh200-96"), (r"H200[ -]NVL", "h200-nvl"), (r"H200", "h200"), (r"H800[ -]PCIe", None),
    (r"H800", "h800"), (r"H20-3e", None), (r"H20", "h20"),
    (r"H100[ -](?:80GB[ -])?PCIe|H100 PCI-?E", "h100-pcie"), (r"H100[ -]NVL", "h100-nvl"),
    (r"H100(?:[ -]SXM5?)?(?:[ -]80GB)?(?:[ -]HBM3)?(?:[ -]SXM5?)?", "h100-sxm"),
    (r"A800(?:[ -]SXM4|[ -]PCIe)?(?:[ -]80GB)?", None),
    (r"A100[ -]PCIE[ -]40GB", "a100-pcie-40"), (r"A100[ -](?:80GB[ -]PCIe|PCIe[ -]80GB|PCIe)", "a100-pcie-80"),
    (r"A100(?:[ -]SXM4?)?[ (-]{1,2}40 ?GB?\)?", "a100-sxm-40"),
    (r"A100(?:[ -]SXM4?)?(?:[ (-]{1,2}80 ?GB?\)?)?(?:[ -]SXM4?)?", "a100-sxm-80"),
    (r"A10G?", "a10"), (r"A30", "a30"), (r"L40S", "l40s"), (r"L40", None), (r"L20Y?", None), (r"L4", "l4"),
    (r"V100[ -]PCIe[ -]16GB", "v100-pcie-16"), (r"V100[ -]PCIe", "v100-pcie-32"),
    (r"V100[ -]SXM2[ -]16GB", "v100-sxm2-16"), (r"V100(?:[ -]SXM2)?(?:[ -]32GB)?", "v100-sxm2-32"),
    (r"(?:GeForce )?RTX 4090", "rtx-4090"), (r"RTX PRO 6000(?: Blackwell)?", "rtx-pro-6000"),
    (r"(?:GeForce )?RTX ?(?:3090|5090|3080|4080|2080)(?: ?Ti)?|RTX (?:A6000|6000 Ada)|A6000|A40|T4|P40", None),
    (r"MI\d{3}X?|Gaudi ?\d|Ascend ?\w+|TPU ?v\d\w?", None),
)
NAME = "|".join(f"(?P<g{at}>{pattern})" for at, (pattern, _) in enumerate(GPUS))
WORDS = {"one": 1, "single": 1, "two": 2, "four": 4, "eight": 8}
COUNTED = rf"(?:(?:(?P<nodes>\d{{1,3}}) ?[x×*] ?)?(?P<before>\d{{1,4}}|{'|'.join(WORDS)})(?: ?[x×*] ?| ))?"
GPU = re.compile(rf"{COUNTED}(?:NVIDIA[ -])?(?:Tesla )?(?<![\w.])(?:{NAME})(?:s\b)?(?!\w|\.\d)"
                 r"(?: ?[x×*] ?(?P<after>\d{1,4})\b)?", re.IGNORECASE)
GPU_HINT = re.compile(r"(?:(?<![A-Za-z])|(?<=\dx))(?:G?[BH][123]\d|H8|A[1348]\d|L[24]|V100|RTX|T4|P40|MI\d|"
                      r"Gaudi|Ascend|TPU)|GB\d", re.IGNORECASE)         # looked for before the long pattern
JOINED = re.compile(r"(?<=\d)[x×*](?=[A-Za-z])|(?<=[A-Za-z0-9])[x×*](?=\d+\b)", re.IGNORECASE)
LISTED = re.compile(r"^\W*(?:GPU )?(\d{1,2})\W{1,4}NVIDIA\b|^\W*GPU (\d{1,2}(?:,\d{1,2})*): ", re.IGNORECASE)
SUFFIX = re.compile(r"[-_](?:Instruct|Chat|it|Base|hf|Gradient-\d+k|\d{4}|preview|v1)$", re.IGNORECASE)
WEIGHTS = ((re.compile(r"[-_](?:FP8|fp8)(?:[-_](?:dynamic|KV|static|block))*$", re.IGNORECASE), "fp8"),
           (re.compile(r"[-_](?:AWQ|GPTQ)(?:[-_]Int4)?$|[-_]Int4$|[-_]w4a16$", re.IGNORECASE), "w4a16_int4_g128"),
           (re.compile(r"[-_]NVFP4$|[-_]FP4$", re.IGNORECASE), "nvfp4"))


@dataclass(frozen=True, slots=True)
class GpuName:
    """GPUs that a text names. key: the catalog's; None: it has no such device. count: None where it is not said."""

    title: str
    key: str | None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model of the catalog that a name stands for. weights: a number format that the name says."""

    name: str
    weights: str | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure in prose. what: "tokens/s", "TFLOP/s", "MFU", "utilisation"; value in base units, shares as shares."""

    what: str
    value: float


def gpus(text: str) -> list[GpuName]:
    """Each GPU of one line, with its count where it is said beside."""
    found: list[GpuName] = []
    if GPU_HINT.search(text) is None:
        return found
    for match in GPU.finditer(JOINED.sub(" x ", text)):
        at = next(number for number in range(len(GPUS)) if match[f"g{number}"] is not None)
        before = match["before"]
        count = None if before is None else WORDS.get(before.lower()) or int(before)
        if match["after"] is not None and count is None:
            count = int(match["after"])
        if match["nodes"] is not None and count is not None:
            count *= int(match["nodes"])
        found.append(GpuName(match[f"g{at}"], GPUS[at][1], count or None))
    return found


def all_gpus(lines: Sequence[str]) -> tuple[list[GpuName], set[int]]:
    """GPUs of a text, each once, and the lines that name them. Lines that list devices by number are counted."""
    held: dict[str | None, GpuName] = {}
    listed: dict[str | None, set[int]] = {}
    taken: set[int] = set()
    for number, line in enumerate(lines):
        for gpu in gpus(line):
            taken.add(number)
            row = LISTED.search(line)
            if row is not None:
                listed.setdefault(gpu.key or gpu.title, set()).update(int(n) for n in (row[1] or row[2]).split(","))
            known = held.get(gpu.key or gpu.title)
            if known is None or (known.count is None and gpu.count is not None):
                held[gpu.key or gpu.title] = gpu
    return [GpuName(gpu.title, gpu.key, len(listed[key])) if key in listed else gpu for key, gpu in held.items()], taken


# ---- models


SPACED = re.compile(r"\b(Llama|Qwen|Mixtral|DeepSeek|Mistral|Gemma|GLM|Kimi)[ -](\d(?:\.\d)?|V\d(?:\.\d)?|R1|K2)[ -]"
                    r"(\d+x?\d*B)\b", re.IGNORECASE)


@cache
def _derived() -> tuple[tuple[re.Pattern[str], str], ...]:
    rows = tomllib.loads(resources.files("sublight.catalog").joinpath("derived.toml").read_text("utf-8"))["model"]
    return tuple((re.compile(row["match"], re.IGNORECASE), row["like"]) for row in rows)


@cache
def _tails() -> dict[str, str]:
    """Names of the catalog without their organisation, in small letters."""
    out: dict[str, str] = {}
    for key in catalog():
        out.setdefault(key.split("/")[-1].lower(), key)
    return out


@cache
def _families() -> re.Pattern[str]:
    """First words of all names that are known: what has none of them names no model."""
    names = [*_tails(), *(pattern.pattern for pattern, _ in _derived())]
    words = {match[0].lower() for name in names if (match := re.match(r"[A-Za-z]{3,}", name)) is not None}
    return re.compile("|".join(sorted(words)), re.IGNORECASE)


@lru_cache(maxsize=4096)
def model_of(text: str) -> ModelName | None:
    """The model of the catalog that a name or a path means, by its last part; None where it is not known."""
    name = model_name(text)
    if name is None:
        return None
    keys = {key.lower(): key for key in catalog()}
    if name.lower() in keys:
        return ModelName(keys[name.lower()])
    tail, weights = name.split("/")[-1], None
    for _ in range(4):
        known = _known(tail)
        if known is not None:
            return ModelName(known, weights)
        shorter = SUFFIX.sub("", tail)
        if shorter == tail:
            for pattern, form in WEIGHTS:
                if pattern.search(tail):
                    shorter, weights = pattern.sub("", tail), form
                    break
        if shorter == tail:
            return None
        tail = shorter
    return None


def _known(tail: str) -> str | None:
    lower = tail.lower()
    for tried in (lower, lower.removeprefix("meta-"), f"meta-{lower}"):
        if tried in _tails():
            return _tails()[tried]
    for pattern, like in _derived():
        for tried in (tail, re.sub(r"^meta-", "", tail, flags=re.IGNORECASE)):
            if (match := pattern.fullmatch(tried)) is not None:
                return like.replace("{1}", match[1]) if match.groups() else like
    return None


def models(line: str) -> list[str]:
    """Words of a line that name a known model, as they stand; "Llama 3.1 8B" in words counts too."""
    if _families().search(line) is None:
        return []
    joined = SPACED.sub(r"\1-\2-\3", line)
    words = re.findall(r"[A-Za-z0-9][\w.-]*(?:/[\w.-]+)*", joined)
    return [word for word in dict.fromkeys(word.rstrip(".") for word in words)
            if len(word) > 5 and re.search(r"[A-Za-z].*\d", word) and model_of(word) is not None]


# ---- figures in prose


NUMBER = r"(?P<value>\d[\d,]*(?:\.\d+)?)"
FIGURES: tuple[tuple[str, re.Pattern[str], float], ...] = (
    ("tokens/s", re.compile(rf"{NUMBER} ?(?P<k>k)? ?(?:output |generation )?"
                            r"(?:tok(?:en)?s?(?:/|\.| per )s(?:ec(?:ond)?)?|tps)\b", re.IGNORECASE), 1.0),
    ("TFLOP/s", re.compile(rf"{NUMBER} ?(?P<k>k)?T(?:era)?FLOPS?(?:/s)?\b"
                           rf"|TFLOPS?(?:/s)?(?:/GPU)?\)? ?[:=] ?{NUMBER.replace('value', 'other')}",
                           re.IGNORECASE), 1e12),
    ("MFU", re.compile(rf"MFU\D{{0,24}}?{NUMBER} ?%|{NUMBER.replace('value', 'other')} ?% ?MFU", re.IGNORECASE), 0.01),
    ("utilisation", re.compile(rf"utili[sz]ation\D{{0,40}}?{NUMBER} ?%|{NUMBER.replace('value', 'other')} ?% (?:GPU )?"
                               rf"utili[sz]ation|GPU[- ]util\w*\D{{0,30}}?{NUMBER.replace('value', 'third')} ?%",
                               re.IGNORECASE), 0.01),
)
FIGURE_HINT = re.compile(r"tok|tps|flop|mfu|util", re.IGNORECASE)
QUOTIENT = re.compile(r"(?P<above>\d{2,4}(?:\.\d+)?) ?/ ?\(?(?P<below>\d{3,4}(?:\.\d+)?)\b(?!/)")


def figures(line: str) -> Iterator[Figure]:
    """Figures of one line."""
    if FIGURE_HINT.search(line) is None:
        return
    for what, pattern, scale in FIGURES:
        for match in pattern.finditer(line):
            groups = match.groupdict()
            text = next(groups[name] for name in ("value", "other", "third") if groups.get(name))
            value = float(text.replace(",", "")) * scale * (1e3 if groups.get("k") else 1.0)
            yield Figure(what, value)
    for match in QUOTIENT.finditer(line):
        if re.search(r"MFU|FLOP|util|peak|throughput", line, re.IGNORECASE):
            yield Figure("quotient above", float(match["above"]) * 1e12)
            yield Figure("quotient below", float(match["below"]) * 1e12)


LAYOUT_HINT = re.compile(r"[tpe]p ?[=:]? ?\d|parallel", re.IGNORECASE)
LAYOUT = {name: re.compile(rf"(?<![\w-])(?:{word}) ?[=:]? ?(\d{{1,3}})\b(?! ?(?:GPU|/))", re.IGNORECASE)
          for name, word in (
    ("tp", r"tp|tensor[-_ ]parallel(?:ism)?(?:[-_ ]size)?"), ("pp", r"pp|pipeline[-_ ]parallel(?:ism)?(?:[-_ ]size)?"),
    ("ep", r"ep|expert[-_ ]parallel(?:ism)?(?:[-_ ]size)?"))}


def layout(line: str) -> dict[str, list[int]]:
    """Parallel sizes that prose names, each value once.

    >>> layout("with TP=1 I get 90, with tp=2 77"), layout("tensor parallel size 8")
    ({'tp': [1, 2]}, {'tp': [8]})
    """
    if LAYOUT_HINT.search(line) is None:
        return {}
    found = {name: list(dict.fromkeys(int(value) for value in pattern.findall(line) if 0 < int(value) <= 512))
             for name, pattern in LAYOUT.items()}
    return {name: values for name, values in found.items() if values}


LENGTH_HINT = re.compile(r"isl|osl|input|output| in\b", re.IGNORECASE)
COUNT = r"(\d[\d,]{0,6}) ?(k)?(?: tokens?)?"
IN_AND_OUT = re.compile(rf"\b{COUNT} in(?:put)?\b[ ,;/+and]{{1,6}}{COUNT} out(?:put)?\b(?! of\b)", re.IGNORECASE)
LENGTHS = (
    (re.compile(r"\bISL ?/ ?OSL\D{0,12}(\d+) ?[/,] ?(\d+)", re.IGNORECASE), True),
    (re.compile(r"\b(?:ISL|input(?:[_ -]len(?:gth)?)?)\b ?[=: ] ?(\d{1,6})\b(?!\s*x)", re.IGNORECASE), False),
    (re.compile(r"\b(?:OSL|output(?:[_ -]len(?:gth)?)?)\b ?[=: ] ?(\d{1,6})\b(?!\s*x)", re.IGNORECASE), False),
)


def lengths(line: str) -> tuple[int | None, int | None]:
    """Tokens of prompts and answers that prose names."""
    if LENGTH_HINT.search(line) is None:
        return None, None
    if (match := LENGTHS[0][0].search(line)) is not None:
        return int(match[1]), int(match[2])
    if (match := IN_AND_OUT.search(line)) is not None:
        new, made = (int(match[at].replace(",", "")) * (1024 if match[at + 1] else 1) for at in (1, 3))
        return new or None, made or None
    isl, osl = LENGTHS[1][0].search(line), LENGTHS[2][0].search(line)
    return (int(isl[1]) if isl and int(isl[1]) else None), (int(osl[1]) if osl and int(osl[1]) else None)
