"""Generate text with a small decoder-only language model on the CPU, one token at a time, against a long cache.

    python decode_lm.py            # as PyTorch runs it
    python decode_lm.py --fast     # norms, gates and decode attention swapped for the kernels that fit best

Weights and cache are random: what counts is where the time goes. bf16, one thread, 8 sequences of 1,024 tokens. Prints
tokens per second and a checksum of the tokens. Needs torch.
"""
# nn.Module is not typed where torch is absent.
# mypy: disable-error-code="misc"

from __future__ import annotations

import argparse
import statistics
import time
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


def main() -> int:
    """Generate."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--fast", action="store_true", help="swap what has a better kernel, with sublight.kernels.apply")
    ask.add_argument("--steps", type=int, default=16)
    options = ask.parse_args()
    torch.set_num_threads(1)
    model, caches, tokens = made()
    if options.fast:
        from sublight.kernels import apply

        print(apply(model))
    seconds, out = generate(model, caches, tokens, options.steps)
    print(f"{BATCH / statistics.median(seconds):.0f} tokens/s, checksum {int(out.sum())}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
