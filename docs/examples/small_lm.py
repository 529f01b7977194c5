"""Train a small decoder-only language model on the CPU; with a fault planted, if asked.

    python small_lm.py                  # as it should be
    python small_lm.py --fault item     # reads the loss in every step
    python small_lm.py --fault float64  # one block computes in double precision

Needs torch. It knows nothing of sublight: record it with `sublight record -- python small_lm.py`.
"""
# nn.Module is not typed where torch is absent.
# mypy: disable-error-code="misc"

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn
from torch.nn import functional as fn

LAYERS, WIDTH, HEADS, VOCABULARY = 4, 192, 4, 512
BATCH, LENGTH = 4, 64


class Block(nn.Module):
    """Pre-norm attention and MLP on x [batch, length, width]."""

    def __init__(self, fault: str | None) -> None:
        super().__init__()
        self.fault = fault
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        if self.fault == "float64":
            x = x.double()
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4).unbind()
        mixed = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, d))
        x = x + self.down(fn.gelu(self.up(self.norm2(x))))
        return x.float() if self.fault == "float64" else x


class Decoder(nn.Module):
    """Next-token cross entropy of tokens [batch, length + 1]."""

    def __init__(self, fault: str | None) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block(fault if fault != "float64" or i == 1 else None) for i in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        if fault == "float64":
            self.blocks[1].double()

    def forward(self, tokens: Any) -> Any:
        x = self.norm(self.blocks(self.embed(tokens[:, :-1])))
        return fn.cross_entropy((x @ self.embed.weight.T).flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small decoder on the CPU.")
    parser.add_argument("--fault", choices=("item", "float64"))
    parser.add_argument("--steps", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Decoder(args.fault)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    generator = torch.Generator().manual_seed(0)
    loss, total = torch.zeros(()), 0.0
    for _ in range(args.steps):
        first = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
        loss = model((first + torch.arange(LENGTH + 1)) % VOCABULARY)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.item() if args.fault == "item" else 0.0
    print(f"loss {loss.item():.3f} after {args.steps} steps")


if __name__ == "__main__":
    main()
