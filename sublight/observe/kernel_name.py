"""What the name of a GPU kernel tells: its category, library, family, number format and tile.

`classify` is a pure function of the name. What it knows is data, in `catalog/kernels.toml`: an ordered list
of rules, the first that matches decides. No rule is a default: a name that tells nothing is "unclassified".
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any

CATEGORIES = (
    "gemm",  # matrix times matrix (or vector), with the reduction of its split-K parts
    "grouped gemm",  # grouped GEMM, expert kernels of a mixture of experts, fused MoE
    "attention",  # scores, softmax and weighted sum in any form: MLA, paged, split and combine, backward
    "convolution",  # with its transforms (im2col, Winograd, FFT)
    "recurrent",  # state-space and linear-attention layers, causal conv1d
    "routing",  # which token goes to which expert: top-k for experts, permute, unpermute, align, layout
    "normalisation",  # RMSNorm, LayerNorm, group and batch norm, with what is fused into them
    "position",  # rotary embedding, alone or fused with the KV write
    "kv cache",  # writes, copies and reshapes of the KV cache
    "activation",  # SwiGLU, GELU, act-and-mul
    "loss",  # cross entropy, softmax outside attention, log-softmax, negative log likelihood
    "optimizer",  # Adam and its like, multi-tensor apply, gradient norms
    "embedding",  # table lookups and their gradients
    "sampling",  # top-p, penalties, random choice of a token, speculative verification
    "quantise",  # quantise, dequantise, cast
    "copy",  # device-side movement: contiguous, transpose, layout, cat, pad, gather, scatter, index
    "reduction",  # sum, mean, max over an axis, pooling
    "elementwise",  # fill, dropout, where, comparisons, pointwise fusions
    "scan/sort",  # cumulative sum, sort, generic top-k, unique, nonzero
    "random",  # random numbers
    "memory",  # memset and memcpy kernels of the run time
    "communication: transfer",  # moves data between devices; its waiting is another kernel's
    "communication: wait",  # only waits or notifies: barriers, DeepEP notify
    "communication",  # transfer and waiting cannot be told apart: NCCL, custom all-reduce
    "unclassified",  # the name does not tell
)
_HAS_TILE = frozenset(("gemm", "grouped gemm", "attention", "convolution"))
_LOOK = 4000  # characters of a name that are searched for formats and tiles; beyond, types only repeat
_ELIDE = 60  # characters of a template list that `short` keeps


@dataclass(frozen=True)
class KernelName:
    """What one kernel's name tells; `None` where it does not tell."""

    name: str  # demangled
    short: str  # without return type and parameters, long template lists cut
    category: str  # one of CATEGORIES
    library: str | None
    family: str | None
    number_format: str | None
    tile: tuple[int, ...] | None  # (m, n, k) or (m, n)
    rule: str | None  # id of the rule that matched


@dataclass(frozen=True)
class Rule:
    """One `[[rule]]` of the catalogue."""

    id: str
    match: re.Pattern[str]  # searched in the qualified function name, templates and parameters cut away
    inside: re.Pattern[str] | None  # if given, must also be found in the whole demangled name
    category: str
    library: str | None
    family: str | None
    number_format: str | None
    examples: tuple[str, ...]

    def matches(self, function: str, full: str) -> bool:
        return bool(self.match.search(function) and (self.inside is None or self.inside.search(full)))


@lru_cache(maxsize=65536)
def classify(name: str) -> KernelName:
    """The category of a kernel and what else its name tells.

    >>> classify("nvjet_tst_192x208_64x4_1x1_h_bz_coopB_bias_TNT").tile
    (192, 208, 64)
    """
    full = demangled(name)
    typed, function = _function(full)
    short = typed if len(typed) <= len(function) + _ELIDE else _elided(typed, function)
    rule = next((rule for rule in rules() if rule.matches(function, full)), None)
    if rule is None:
        return KernelName(full, short, "unclassified", None, None, None, None, None)
    told = typed[:_LOOK]
    return KernelName(
        full,
        short,
        rule.category,
        library=_first("namespace", function) or rule.library,
        family=rule.family,
        number_format=rule.number_format or _first("format", told),
        tile=_tile(told) if rule.category in _HAS_TILE else None,
        rule=rule.id,
    )


@cache
def _catalogue() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(resources.files("sublight").joinpath("catalog/kernels.toml").read_text("utf-8"))


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule, in the order in which they are tried."""
    return tuple(
        Rule(
            id=t["id"],
            match=re.compile(t["match"], re.VERBOSE),
            inside=re.compile(t["inside"], re.VERBOSE) if "inside" in t else None,
            category=t["category"],
            library=t.get("library"),
            family=t.get("family"),
            number_format=t.get("format"),
            examples=tuple(t.get("examples", ())),
        )
        for t in _catalogue()["rule"]
    )


@cache
def _patterns(table: str) -> tuple[tuple[re.Pattern[str], str | None], ...]:
    """The patterns of a smaller table of the catalogue, each with the word that it stands for."""
    rows = _catalogue()[table]
    return tuple((re.compile(t["match"], re.VERBOSE), t.get("format") or t.get("library")) for t in rows)


def _first(table: str, text: str) -> str | None:
    return next((word for pattern, word in _patterns(table) if pattern.search(text)), None)


def _tile(typed: str) -> tuple[int, ...] | None:
    for pattern, _ in _patterns("tile"):
        if found := pattern.search(typed):
            return tuple(int(side) for side in found.groups() if side)
    return None


# ---- from a symbol to the name of a function ---------------------------------------------------------------

# Older C++ run times lack these two builtin types; decimal ones, which no kernel uses, stand in for them.
_BUILTIN = (("DF16b", "Dd", "decimal64", "__bf16"), ("DF16_", "De", "decimal128", "_Float16"))


def demangled(name: str) -> str:
    """`name` as C++ spells it; a symbol that nobody here can demangle becomes its identifiers, in order."""
    symbol = re.sub(r"\s*\[clone [^\]]*\]$|\.kd$|\.intern\.\d+$", "", name)
    if not symbol.startswith("_Z"):
        return symbol
    import cxxfilt  # here, because it looks for the C++ run time with a subprocess when it is imported

    for code, stand_in, _, _ in _BUILTIN:
        symbol = symbol.replace(code, stand_in)
    try:
        full = str(cxxfilt.demangle(symbol))
    except (cxxfilt.Error, UnicodeError):  # not a whole symbol, too new, or no C++ run time on this machine
        return _identifiers(symbol)
    for _, _, stand_in, spelled in _BUILTIN:
        full = full.replace(stand_in, spelled)
    return full


_TOKEN = re.compile(r"[0-9]{1,4}|L[a-z]n?[0-9]+E|Dd|De|S[0-9A-Z]*_|T[0-9]*_|A[0-9]+_|.", re.DOTALL)


def _identifiers(symbol: str) -> str:
    """`_ZN2ck3addILi4EN3c104HalfEEEvPT_` -> `ck::add<4, c10::Half>`: enough to classify by."""
    function: list[str] = []
    arguments: list[str] | None = None
    joins = False
    at = 2
    while found := _TOKEN.match(symbol, at):
        token, at = found[0], found.end()
        if not "0" <= token[0] <= "9":
            if token == "I" or (function and arguments is None and token not in "NKL"):
                arguments = arguments if arguments is not None else []
            if arguments is not None and (literal := re.fullmatch(r"L[a-z](n?[0-9]+)E", token)):
                arguments.append(literal[1].replace("n", "-"))
            elif arguments is not None and token in ("Dd", "De"):
                arguments.append("__bf16" if token == "Dd" else "_Float16")
            joins = False
            continue
        word, at = symbol[at : at + int(token)], at + int(token)
        if word.startswith("_GLOBAL__N"):
            continue
        if arguments is None:
            function.append(word)
        elif joins and arguments:
            arguments[-1] += "::" + word
        else:
            arguments.append(word)
        joins = True
    return "::".join(function) + (f"<{', '.join(arguments)}>" if arguments else "")


_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::|\b_?GLOBAL__N_\w*::")
# Triton 2 appends which arguments are divisible by 16: `_fwd_kernel_0d1d2d3de4`
_TRITON_SIGNATURE = re.compile(r"_0(?:de?|c)?1(?:de?|c)?[\ddce]*$")


def _function(full: str) -> tuple[str, str]:
    """The function with its template list, and its qualified name alone; no return type, no parameters."""
    text = _ANONYMOUS.sub("", full)
    start, end, angles, parens = 0, len(text), 0, 0
    name: list[str] = []
    for at, char in enumerate(text):
        if parens or (char == "(" and angles):
            parens += (char == "(") - (char == ")")
        elif char == "<":
            angles += 1
        elif char == ">" and angles:
            angles -= text[at - 1] != "-"  # the arrow of a return type closes nothing
        elif angles:
            continue
        elif char == "(":
            end = at
            break
        elif char == " ":
            start, name = at + 1, []
        else:
            name.append(char)
    return text[start:end], _TRITON_SIGNATURE.sub("", "".join(name))


def _elided(typed: str, function: str) -> str:
    rest = typed.removeprefix(function + "<")
    return f"{function}<{rest[:_ELIDE]}…>" if rest != typed else f"{function}<…>"
