"""Our CPU kernels against all that torch offers here: one thread, rounds in which everybody runs once, ratios in pairs.

    python bench/cpu_kernels.py [NAME …] [--rounds 9]

Times are the thread's CPU time, so that neighbours on a shared machine cost less; what they take of the memory's rate
is in the rates of the same rounds, which the share of the bound rests on. A ratio is the median of those of the rounds,
with the interval of order statistics that holds the median with 95 % or more.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from sublight.kernels.arena import clock
from sublight.kernels.contract import Case
from sublight.kernels.decode.cpu import attend
from sublight.kernels.decode.shape import Shape as Decode
from sublight.kernels.listed import contract, kernels
from sublight.kernels.native import build, machine
from sublight.kernels.rounding import DTYPES
from sublight.work import Work

OURS = "sublight"
Call = Callable[[], Any]


@dataclass(frozen=True)
class Bench:
    """Who computes the same: ours first, then eager torch, then its other forms; and the least that it takes."""

    name: str
    calls: dict[str, Call]
    eager: str
    flops: float
    nbytes: float
    reads: float                         # share of the bytes that are read


def of_contract(op: str, eager: str, shape: Any, more: Callable[[Any], dict[str, Call]] | None = None) -> Bench:
    """All CPU kernels of an operator that take a shape."""
    found = contract(op)
    inputs = found.inputs(Case(shape))
    outputs = {name: torch.empty(spec.sizes, dtype=DTYPES[spec.form]) for name, spec in found.outputs(shape).items()}
    calls: dict[str, Call] = {}
    for kernel in sorted(kernels(op, where="cpu"), key=lambda k: k.name != OURS):
        if kernel.refuses(shape) is None:
            run = kernel.build(shape, {name: inputs[name] for name in found.constant if name in inputs})
            calls[kernel.name] = lambda run=run: run(inputs, dict(outputs))     # type: ignore[misc]
    work = found.op(shape).work()
    sizes = " ".join(str(value) for value in vars_of(shape).values() if isinstance(value, int) and value is not False)
    return of_work(f"{op} {sizes}", calls | (more(inputs) if more else {}), eager, work)


def of_work(name: str, calls: dict[str, Call], eager: str, work: Work) -> Bench:
    nbytes = float(work.bytes_read + work.bytes_written)
    return Bench(name, calls, eager, float(sum(work.flops.values())), nbytes, work.bytes_read / nbytes)


def vars_of(shape: Any) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in shape.__dataclass_fields__}


def attention(tokens: int, heads: int = 32, kv_heads: int = 8, dim: int = 128) -> Bench:
    """Decode over a cache in one piece, which torch's own forms read without gathering pages."""
    q, k, v = (torch.randn(1, h, n, dim).bfloat16() for h, n in ((heads, 1), (kv_heads, tokens), (kv_heads, tokens)))
    rows = q.view(1, kv_heads, -1, dim)

    def products() -> Any:
        return torch.softmax((rows @ k.transpose(-1, -2)).float() * dim**-0.5, -1).bfloat16() @ v

    def repeated() -> Any:
        return sdpa(q, k.repeat_interleave(heads // kv_heads, 1), v.repeat_interleave(heads // kv_heads, 1))

    work = contract("decode").op(Decode(1, tokens, heads, kv_heads, dim)).work()
    calls = {OURS: lambda: attend(q, k, v), "enable_gqa": lambda: sdpa(q, k, v, enable_gqa=True),
             "queries as rows": lambda: sdpa(rows, k, v), "products": products, "repeat": repeated}
    return of_work(f"decode in one piece {tokens} {heads} {kv_heads} {dim}", calls, "enable_gqa", work)


def wide_weights(inputs: Any) -> dict[str, Call]:
    """The matrix in fp32, converted ahead: twice the bytes, and MKL's products."""
    a, b = inputs["a"], inputs["b"].float()
    return {"fp32 weights": lambda: (a.float() @ b.T).bfloat16()}


def wide_experts(inputs: Any) -> dict[str, Call]:
    gate_up, down, x = inputs["gate_up"].float(), inputs["down"].float(), inputs["x"].float()

    def layer() -> Any:
        out = torch.zeros(x.shape)
        for expert in inputs["ids"].unique().tolist():
            tokens, place = (inputs["ids"] == expert).nonzero(as_tuple=True)
            gate, up = (x[tokens] @ gate_up[expert].T).chunk(2, -1)
            y = (torch.nn.functional.silu(gate) * up) @ down[expert].T
            out.index_add_(0, tokens, y * inputs["weights"][tokens, place][:, None])
        return out.bfloat16()

    return {"fp32 weights": layer}


def benches() -> dict[str, Callable[[], Bench]]:
    from sublight.kernels.cross_entropy.shape import Shape as Loss
    from sublight.kernels.gemm.shape import Shape as Product
    from sublight.kernels.moe.shape import Shape as Experts
    from sublight.kernels.norm.shape import Shape as Norm
    from sublight.kernels.swiglu.shape import Shape as Gated

    return {
        "norm": lambda: of_contract("norm", "torch", Norm(2048, 4096)),
        "norm-residual": lambda: of_contract("norm", "torch", Norm(2048, 4096, residual=True)),
        "swiglu": lambda: of_contract("swiglu", "torch", Gated(1024, 8192)),
        "cross-entropy": lambda: of_contract("cross_entropy", "torch", Loss(64, 151936)),
        "decode": lambda: attention(32768),
        "decode-paged": lambda: of_contract("decode", "torch", Decode(1, 32768, 32, 8, 128)),
        **{f"gemm-{m}": partial(of_contract, "gemm", "torch", Product(m, 14336, 4096), wide_weights)
           for m in (1, 4, 16, 64)},
        **{f"moe-{t}": partial(of_contract, "moe", "loop", Experts(t, 64, 8, 2048, 1024), wide_experts)
           for t in (1, 16, 256)},
    }


def seconds(call: Call, times: int) -> float:
    started = time.thread_time_ns()
    for _ in range(times):
        call()
    return (time.thread_time_ns() - started) / times / 1e9


class Ceilings:
    """Best rates of the rounds, in the same CPU time as the kernels: the arena's loops, which time themselves by the
    wall clock, as its kernels are. Bytes a second read, and copied past the caches or not; fp32 multiply-adds.
    """

    def __init__(self, nbytes: int) -> None:
        self.library = build.library(Path(clock.__file__).with_name("ceilings.cpp"))
        self.buffer = torch.ones(max(nbytes, 1 << 14) // 1024 * 1024, dtype=torch.uint8)
        self.read = self.memory = self.fma = 0.0

    def sample(self) -> None:
        at, size = ctypes.c_void_p(self.buffer.data_ptr()), ctypes.c_int64(self.buffer.numel())
        passes = max(1, (1 << 26) // self.buffer.numel())
        moved = self.buffer.numel() * passes
        self.read = max(self.read, moved / seconds(lambda: self.library.sublight_read(at, size, passes, 1), 1))
        for past in (0, 1):
            copied = moved / seconds(partial(self.library.sublight_copy, at, size, passes, 1, past), 1)
            self.memory = max(self.memory, self.read, copied)
        operations = ctypes.c_double()
        taken = seconds(lambda: self.library.sublight_fma(ctypes.c_int64(1 << 21), 1, ctypes.byref(operations)), 1)
        self.fma = max(self.fma, operations.value / taken)


def rounds(bench: Bench, count: int) -> tuple[dict[str, list[float]], Ceilings]:
    """CPU seconds of each, round by round, and the rates of the same rounds. Who takes 20 times as long as ours is not
    asked more than three times.
    """
    ceilings = Ceilings(int(bench.nbytes))
    first = {name: (seconds(call, 1), seconds(call, 1))[1] for name, call in bench.calls.items()}
    times = {name: max(1, math.ceil(0.02 / once)) for name, once in first.items()}
    found: dict[str, list[float]] = {name: [] for name in bench.calls}
    for number in range(count):
        ceilings.sample()
        for name, call in bench.calls.items():
            if number < 3 or first[name] < 20 * first[OURS]:
                found[name].append(seconds(call, times[name]))
    return found, ceilings


def interval(values: list[float]) -> tuple[float, float, float]:
    """The median and the order statistics around it that hold it with 95 % or more (all of them, where few)."""
    ordered, n = sorted(values), len(values)
    lowest = 0
    while lowest + 1 < n // 2 and 2 * sum(math.comb(n, i) for i in range(lowest + 2)) / 2**n <= 0.05:
        lowest += 1
    return float(np.median(ordered)), ordered[lowest], ordered[n - 1 - lowest]


def lines(bench: Bench, found: dict[str, list[float]], ceilings: Ceilings) -> Iterator[str]:
    ours = found[OURS]
    # What reads almost all of its bytes is held against what reading reaches; a copy past the caches may be faster.
    fma, memory = ceilings.fma, ceilings.read if bench.reads > 0.95 else ceilings.memory
    bound = max(bench.nbytes / memory, bench.flops / fma)
    share = bound / float(np.median(ours))
    yield (f"{bench.name}: ours {np.median(ours) * 1e3:.3g} ms, {bench.nbytes / np.median(ours) / 1e9:.3g} GB/s, "
           f"{bench.flops / np.median(ours) / 1e9:.3g} GFLOP/s; {share:.0%} of the bound "
           f"(memory {memory / 1e9:.3g} GB/s, fp32 FMA {fma / 1e9:.3g} GFLOP/s in the same rounds)")
    for name, theirs in found.items():
        if name != OURS:
            middle, low, high = interval([b / a for a, b in zip(ours, theirs, strict=False)])
            shown = name + (" (eager)" if name == bench.eager else "")
            yield (f"    {shown:24} {np.median(theirs) * 1e3:10.3g} ms   {middle:6.2f} x ours  "
                   f"[{low:.2f}, {high:.2f}]")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", metavar="NAME")
    options.add_argument("--rounds", type=int, default=9)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{machine.described()}; ours uses {machine.instructions()}; torch {torch.__version__}; one thread")
    for name, made in benches().items():
        if not chosen.names or name in chosen.names:
            bench = made()
            with torch.inference_mode():
                found, ceilings = rounds(bench, chosen.rounds)
            print("\n".join(lines(bench, found, ceilings)), flush=True)
            del bench
            gc.collect()


if __name__ == "__main__":
    main()
