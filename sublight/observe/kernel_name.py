"""What the name of a GPU kernel tells: its category, library, family, number format and tile.

`classify` is a pure function of the name. What it knows is data, in `catalog/kernels.toml`: an ordered list
of rules, the first that matches decides. No rule is a default: a name that tells nothing is "unclassified".

A regular expression is compiled only when a name holds a literal that the expression cannot do without: compiling
all of them takes longer than reading a small trace.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
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
    "softmax/loss",  # cross entropy, softmax outside attention, log-softmax, negative log likelihood
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


class Pattern:
    """A regular expression (verbose), compiled when a text first holds one of the literals that it needs."""

    def __init__(self, source: str) -> None:
        self.source = source

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """Lower case; empty if unknown."""
        return needed(self.source)

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.source, re.VERBOSE)

    def search(self, text: str, lower: str) -> re.Match[str] | None:
        """The first match in `text`; `lower` is the same text in lower case."""
        if self.needs and not _any_in(self.needs, lower):
            return None
        return self.compiled.search(text)


@dataclass(frozen=True)
class Rule:
    """One `[[rule]]` of the catalogue."""

    id: str
    match: Pattern | None  # searched in the qualified function name, templates and parameters cut away
    words: tuple[str, ...]  # or one of these phrases is among the words of that name, each as `_words` spells it
    acronyms: tuple[str, ...]  # likewise, but by chance too common: only in a name that also has a word of `_USUAL`
    inside: Pattern | None  # if given, must also be found in the whole demangled name
    category: str
    library: str | None
    family: str | None
    number_format: str | None
    examples: tuple[str, ...]


@dataclass(frozen=True)
class _Name:
    """What rules look at."""

    full: str
    full_lower: str
    function: str
    lower: str
    words: str
    usual: bool

    def hits(self, rule: Rule) -> bool:
        if not (
            (rule.match and rule.match.search(self.function, self.lower))
            or _any_in(rule.words, self.words)
            or (self.usual and _any_in(rule.acronyms, self.words))
        ):
            return False
        return rule.inside is None or rule.inside.search(self.full, self.full_lower) is not None


def _any_in(phrases: tuple[str, ...], text: str) -> bool:
    for phrase in phrases:  # noqa: SIM110 - `any` with a generator takes three times as long
        if phrase in text:
            return True
    return False


@lru_cache(maxsize=65536)
def classify(name: str) -> KernelName:
    """The category of a kernel and what else its name tells.

    >>> classify("nvjet_tst_192x208_64x4_1x1_h_bz_coopB_bias_TNT").tile
    (192, 208, 64)
    """
    full = demangled(name)
    typed, function = _function(full)
    short = typed if len(typed) <= len(function) + _ELIDE else _elided(typed, function)
    words = _words(function)
    seen = _Name(full, full.lower(), function, function.lower(), words, not _USUAL.isdisjoint(words.split()))
    rule = next((rule for rule in rules() if seen.hits(rule)), None)
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
            match=Pattern(t["match"]) if "match" in t else None,
            words=tuple(_words(phrase) for phrase in phrases if len(phrase) > _ACRONYM),
            acronyms=tuple(_words(phrase) for phrase in phrases if len(phrase) <= _ACRONYM),
            inside=Pattern(t["inside"]) if "inside" in t else None,
            category=t["category"],
            library=t.get("library"),
            family=t.get("family"),
            number_format=t.get("format"),
            examples=tuple(t.get("examples", ())),
        )
        for t in _catalogue()["rule"]
        for phrases in [[phrase.strip() for phrase in t["words"].split(",")] if "words" in t else []]
    )


@cache
def _patterns(table: str) -> tuple[tuple[Pattern, str | None], ...]:
    """The patterns of a smaller table of the catalogue, each with the word that it stands for."""
    return tuple((Pattern(t["match"]), t.get("format") or t.get("library")) for t in _catalogue()[table])


def _first(table: str, text: str) -> str | None:
    lower = text.lower()
    return next((word for pattern, word in _patterns(table) if pattern.search(text, lower)), None)


def _tile(typed: str) -> tuple[int, ...] | None:
    lower = typed.lower()
    for pattern, _ in _patterns("tile"):
        if found := pattern.search(typed, lower):
            return tuple(int(side) for side in found.groups() if side)
    return None


_ACRONYM = 3  # so many letters: `gdn`, `mla`
_USUAL = {"kernel", "kernels", "ker", "func", "task", "impl", "fused", "triton", "cuda"} | {
    "fwd", "bwd", "forward", "backward", "decode", "prefill", "update", "step",
}  # fmt: skip
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def _words(name: str) -> str:
    """`turbomind::MoeGateFp8Kernel_v2` -> ` turbomind moe gate fp 8 kernel v 2 `."""
    return f" {' '.join(_WORD.findall(name)).lower()} "


# ---- which literals a regular expression needs -------------------------------------------------------------

_PIECE = re.compile(
    r"""(?: (?P<literal>(?:[A-Za-z0-9_:,<>=!@~"'/;&%-]|\\[^A-Za-z0-9])+) | (?P<look>\(\?<?[=!]) | (?P<end>[|)])
          | (?P<open>\((?:\?[a-z]*:)?) | \\. | \{[0-9,]*\} | \[\^?\]?(?:[^\]\\]|\\.)*\] | . ) \s*""",
    re.VERBOSE | re.DOTALL,
)
_REPEAT = re.compile(r"[?*]|\{0?,")  # what precedes may be absent


def needed(source: str) -> tuple[str, ...]:
    """Literals, lower case, one of which is in every text that the verbose expression `source` matches.

    >>> needed(r"(?: rms | layer_? ) norm_kernel | \\b silu\\w*")
    ('norm_kernel', 'silu')
    """
    found, _ = _alternatives(source.lstrip(), 0)
    return tuple(sorted(found)) if found else ()


def _alternatives(source: str, at: int) -> tuple[set[str] | None, int]:
    """What the alternatives from `at` to the end of their group need, and where the group ends."""
    total: set[str] | None = set()
    while True:
        best, at, closes = _sequence(source, at)
        total = total | best if total is not None and best else None
        if closes:
            return total, at


def _sequence(source: str, at: int) -> tuple[set[str], int, bool]:
    """One alternative: the best that it needs, where it ends, and whether the group ends there."""
    best: set[str] = set()
    length, run = 0, ""
    while piece := _PIECE.match(source, at):
        at, kind = piece.end(), piece.lastgroup
        if kind == "literal":
            run += piece["literal"].replace("\\", "").lower()
            if not _REPEAT.match(source, at):
                continue
            run = run[:-1]
        if len(run) > length:
            best, length = {run}, len(run)
        run = ""
        if kind == "end":
            return best, at, piece["end"] == ")"
        if kind in ("open", "look"):
            inner, at = _alternatives(source, at)
            if inner and kind == "open" and not _REPEAT.match(source, at):
                shortest = min(map(len, inner))
                if shortest > length:
                    best, length = inner, shortest
    return ({run} if len(run) > length else best), at, True


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
