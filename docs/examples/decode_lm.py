"""Generate text with a small decoder-only language model on the CPU, one token at a time, against a long cache.

    python decode_lm.py            # as PyTorch runs it
    python decode_lm.py --fast     # norms, gates and decode attention swapped for the kernels that fit best
    python decode_lm.py --compare  # both, in turns

Weights and cache are random: what counts is where the time goes. bf16, one thread, 8 sequences of 1,024 tokens. Prints
tokens per second and a checksum of the tokens. Needs torch.
"""
# nn.Module is not typed where torch is absent.
# mypy: disable-error-code="misc"

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as fn

LAYERS, WIDTH, INNER, HEADS, KV_HEADS, DIM, VOCABULARY = 4, 512, 1536, 16, 4, 64, 4096
BATCH, CONTEXT = 8, 1024


class RMSNorm(nn.Module):
    """As most models write it: in fp32, then back."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Any) -> Any:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down_proj(fn.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    """Of one new token a sequence, x [batch, 1, width], against a cache that it grows. Grouped queries."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(WIDTH, HEADS * DIM, bias=False), nn.Linear(HEADS * DIM, WIDTH, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, KV_HEADS * DIM, bias=False) for _ in range(2))

    def forward(self, x: Any, keys: Any, values: Any, length: int) -> Any:
        b = x.shape[0]
        q = self.q_proj(x).view(b, 1, HEADS, DIM).transpose(1, 2)
        keys[:, :, length] = self.k_proj(x).view(b, KV_HEADS, DIM)
        values[:, :, length] = self.v_proj(x).view(b, KV_HEADS, DIM)
        mixed = fn.scaled_dot_product_attention(q, keys[:, :, : length + 1], values[:, :, : length + 1],
                                                enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(b, 1, HEADS * DIM))


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.attention, self.mlp = Attention(), MLP()

    def forward(self, x: Any, keys: Any, values: Any, length: int) -> Any:
        x = x + self.attention(self.norm1(x), keys, values, length)
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """Logits [batch, vocabulary] of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Any, caches: Any, length: int) -> Any:
        x = self.embed(tokens)[:, None]
        for block, (keys, values) in zip(self.blocks, caches, strict=True):
            x = block(x, keys, values, length)
        return self.head(self.norm(x))[:, 0]


def made(seed: int = 0, *, room: int = 128) -> tuple[Any, Any, Any]:
    """A model, its caches [batch, kv_heads, context + room, dim] by layer, and the first tokens."""
    torch.manual_seed(seed)
    model = Decoder().to(torch.bfloat16).eval()
    sizes = BATCH, KV_HEADS, CONTEXT + room, DIM
    caches = [(torch.randn(sizes).bfloat16(), torch.randn(sizes).bfloat16()) for _ in range(LAYERS)]
    return model, caches, torch.randint(VOCABULARY, (BATCH,))


def generate(model: Any, caches: Any, tokens: Any, steps: int) -> tuple[list[float], Any]:
    """Seconds of each step, and the tokens [steps, batch]; the likeliest token each time."""
    seconds, out = [], []
    with torch.inference_mode():
        for step in range(steps):
            began = time.perf_counter()
            tokens = model(tokens, caches, CONTEXT + step).argmax(-1)
            seconds.append(time.perf_counter() - began)
            out.append(tokens)
    return seconds, torch.stack(out)


def compare(model: Any, caches: Any, tokens: Any, tables: Any, *, rounds: int = 8, steps: int = 2) -> str:
    """The model as it is and swapped, in turns within one process: tokens per second, the gain with its interval, and
    how far the logits of one step are apart."""
    import numpy as np

    from sublight.kernels import apply
    from sublight.shift import of_pairs

    took: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        took[0].append(statistics.median(generate(model, caches, tokens, steps)[0]))
        applied = apply(model, choices=tables)
        took[1].append(statistics.median(generate(model, caches, tokens, steps)[0]))
        applied.undo()
    gain = of_pairs(np.log(took[0]) - np.log(took[1]), 0.95)
    before, after = (BATCH / statistics.median(seconds) for seconds in took)
    return (f"{before:.0f} -> {after:.0f} tokens/s: {np.exp(gain.estimate):.2f} times as fast, "
            f"95 % interval {np.exp(gain.low):.2f} to {np.exp(gain.high):.2f}, {rounds} pairs\n"
            + apart(model, caches, tokens, tables))


def apart(model: Any, caches: Any, tokens: Any, tables: Any) -> str:
    """Errors of the logits of one step, as it is and swapped, against the same weights and cache in float64."""
    from sublight.kernels import apply

    def logits() -> Any:
        with torch.inference_mode():
            return model(tokens, caches, CONTEXT).double()

    plain = logits()
    applied = apply(model, choices=tables)
    fast = logits()
    applied.undo()
    exact_model = Decoder().double().eval()
    exact_model.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    with torch.inference_mode():
        exact = exact_model(tokens, [(k.double(), v.double()) for k, v in caches], CONTEXT)
    errors = [float((found - exact).norm() / exact.norm()) for found in (plain, fast)]
    return f"error of the logits (L2, against float64): {errors[0]:.4f} as PyTorch runs it, {errors[1]:.4f} swapped"


def main() -> int:
    """Generate."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--fast", action="store_true", help="swap what has a better kernel, with sublight.kernels.apply")
    ask.add_argument("--compare", action="store_true", help="both, in turns")
    ask.add_argument("--choices", nargs="*", metavar="TABLE", help="of sublight kernel choose --table")
    ask.add_argument("--steps", type=int, default=16)
    options = ask.parse_args()
    torch.set_num_threads(1)
    model, caches, tokens = made()
    tables = None
    if options.choices:
        from sublight.kernels.arena.choice import load

        tables = [load(Path(path)) for path in options.choices]
    if options.compare:
        print(compare(model, caches, tokens, tables))
        return 0
    if options.fast:
        from sublight.kernels import apply

        applied = apply(model, choices=tables)
        print(f"swapped {len(applied.swapped)} modules")
    seconds, out = generate(model, caches, tokens, options.steps)
    print(f"{BATCH / statistics.median(seconds):.0f} tokens/s, checksum {int(out.sum())}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
