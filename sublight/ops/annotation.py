"""This file knows about step annotations: what a serving engine writes around a step says how much attention it has.

    execute_context_1(888)_generation_0(0)             vLLM: requests and tokens of each phase
    execute_context_1(888_788544)_generation_0(0)      the same with Σq² of the context, an early roofline patch
    execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)
                                                       vLLM with detailed_trace_annotation: Σq, Σk, Σq², Σq·k
    execute_new_3_cached_29                            vLLM before 0.13: requests only
    step[EXTEND bs=15 toks=15360]                      SGLang: requests and new tokens
    step[DECODE bs=64 g_sq=64 g_sqsq=64 g_sqsk=100032 g_sk=100032]
                                                       SGLang with roofline_annotations; c_: context, g_: generation

q is the number of tokens of a request in this step, k of those it may attend to, itself included. Sources: vLLM
PR#22496, PR#37524 (`sk = num_computed_tokens + sq`) and the patches for it in AMD-AGI/TraceLens
(`num_ctx_squared_tokens`); SGLang PR#24911, step_span_utils.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

PLAIN = re.compile(r"execute_context_(\d+)\((\d+)(?:_(\d+))?\)_generation_(\d+)\((\d+)(?:_(\d+))?\)")
SUMS = r"\(sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)\)"
DETAILED = re.compile(rf"execute_(\d+)_context_(\d+){SUMS}_generation_(\d+){SUMS}")
NEW_CACHED = re.compile(r"execute_new_(\d+)_cached_(\d+)")
SGLANG = re.compile(r"step\[([A-Z_]+) bs=(\d+)((?: \w+=\d+)*)\]")
GENERATING = ("DECODE",)
LONGEST = 400                            # characters of an annotation that are looked at


@dataclass(frozen=True, slots=True)
class StepLoad:
    """Requests, tokens and sums over requests of one engine step; None where the annotation does not say."""

    context_requests: int | None
    context_tokens: int | None
    generation_requests: int | None
    generation_tokens: int | None
    sum_q: int | None
    sum_k: int | None
    sum_qq: int | None
    sum_qk: int | None

    @property
    def exact(self) -> bool:
        """Does it say all that causal attention needs?"""
        return None not in (self.sum_q, self.sum_k, self.sum_qq, self.sum_qk)

    @property
    def causal_pairs(self) -> int | None:
        """(query, key) pairs of causal attention, at least. A request's last query sees its k keys, the one before
        k - 1: Σ(q·k - q·(q - 1)/2). Without Σq·k no request is longer than its new tokens; without Σq² all requests of
        the context are equally long, which makes their sum of squares least."""
        if self.sum_q is None:
            return None
        if self.sum_qq is None and self.sum_qk is not None:
            return (self.sum_qk + self.sum_q + 1) // 2           # Σq² is at most Σq·k
        squares = self.sum_qq
        if squares is None:
            squares = self.sum_q
            if self.context_requests and self.context_tokens:
                generated = self.generation_tokens or 0
                squares = -(-self.context_tokens**2 // self.context_requests) + generated
        return max((squares if self.sum_qk is None else self.sum_qk) - (squares - self.sum_q) // 2, self.sum_q)

    @property
    def least_keys(self) -> int | None:
        """Keys that are read, at least: a request sees its own new tokens."""
        return self.sum_q if self.sum_k is None else self.sum_k


@lru_cache(maxsize=4096)
def step_load(annotation: str) -> StepLoad | None:
    """What an annotation says; None for any other text.

    >>> step_load("execute_context_1(888_788544)_generation_0(0)").causal_pairs
    394716
    """
    if len(annotation) > LONGEST:
        return None
    if found := DETAILED.fullmatch(annotation):
        _, c, cq, ck, cqq, cqk, g, gq, gk, gqq, gqk = map(int, found.groups())
        return StepLoad(c, cq, g, gq, cq + gq, ck + gk, cqq + gqq, cqk + gqk)
    if found := PLAIN.fullmatch(annotation):
        return _plain(*(None if text is None else int(text) for text in found.groups()))
    if found := NEW_CACHED.fullmatch(annotation):
        return StepLoad(None, None, None, None, None, None, None, None)
    if found := SGLANG.fullmatch(annotation):
        mode, requests_text, rest = found.groups()
        return _sglang(mode, int(requests_text), {key: int(n) for key, n in re.findall(r"(\w+)=(\d+)", rest)})
    return None


def _plain(
    contexts: int | None, new: int | None, new_squared: int | None,
    generating: int | None, generated: int | None, generated_squared: int | None,
) -> StepLoad:
    context_qq = new_squared if new_squared is not None else _squares(contexts, new)
    generation_qq = generated_squared if generated_squared is not None else _squares(generating, generated)
    squares = None if context_qq is None or generation_qq is None else context_qq + generation_qq
    return StepLoad(contexts, new, generating, generated, (new or 0) + (generated or 0), None, squares, None)


def _squares(requests: int | None, tokens: int | None) -> int | None:
    """Σq² where it follows: of no request, of one, or of one token each."""
    if not tokens:
        return 0
    return tokens**2 if requests == 1 else tokens if requests == tokens else None


def _sglang(mode: str, requests: int, said: dict[str, int]) -> StepLoad:
    phases = [p for p in ("c", "g") if f"{p}_sk" in said] or (["g"] if mode in GENERATING else ["c"])
    if mode == "IDLE":
        return StepLoad(0, 0, 0, 0, 0, 0, 0, 0)
    c, g = ("c" in phases, "g" in phases)
    tokens = {"c": said.get("c_sq", said.get("toks")), "g": said.get("g_sq", requests if phases == ["g"] else None)}

    def summed(key: str) -> int | None:
        values = [said.get(f"{p}_{key}") for p in phases]
        return None if None in values else sum(v for v in values if v is not None)

    qs = [tokens[p] for p in phases]
    q = None if None in qs else sum(n for n in qs if n is not None)
    squares = summed("sqsq")
    if squares is None and len(phases) == 1 and q is not None:
        squares = _squares(requests, q)
    return StepLoad(
        said.get("c", requests if c and not g else 0 if not c else None), tokens["c"] if c else 0,
        said.get("g", requests if g and not c else 0 if not g else None), tokens["g"] if g else 0,
        q, summed("sk"), squares, summed("sqsk"),
    )
