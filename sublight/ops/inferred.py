"""This file knows about work that no argument tells: what kernels' names, tiles and grids imply, as a lower bound.

TensorRT-LLM's generated expert kernels, one for each of the two products:

    bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_…_dynBatch_sm100f     grid [8, 342, 1]
        │      │     └ activations in  └ tile m × n × k                                 │   └ most token tiles
        out    └ weights                 (m: the weights' rows, n: tokens)              └ tiles of the weights' rows
"""

from __future__ import annotations

import re

from sublight.ops.context import KernelHint
from sublight.ops.moe import Experts

TRTLLM = re.compile(r"bmm_(?P<out>\w+?)_(?P<weights>(?:Mx|Nv)?(?:E\dm\d|Bfloat16|Fp16))"
                    r"(?P<activations>(?:Mx|Nv)?(?:E\dm\d|Bfloat16|Fp16))?_Fp32_t(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)")
FORMS = {"E2m1": "fp4", "E4m3": "fp8", "E5m2": "fp8", "Bfloat16": "bf16", "Fp16": "fp16"}
BLOCKS = {"Mx": 32, "Nv": 16}            # elements that share a one-byte scale (OCP MX 1.0; NVFP4)


def experts(*, tokens: int, width: int, experts: int, form: str, kernels: tuple[KernelHint, ...]) -> Experts | None:
    """A gated mixture of experts in TensorRT-LLM's generated kernels; None where the grids do not agree with it.

    The grid of token tiles is the most that routing may need, experts + (tokens·top_k - experts) // tile
    (TensorRT-LLM, getMaxNumCtasInBatchDim), from which top_k follows. The first product's grid has as many tiles as
    gate and up rows have: of the last tile at least one row is real. Which experts are chosen is not known: top_k at
    least.
    """
    products = [(k, found) for k in kernels if (found := TRTLLM.match(k.name))]
    if len(products) != 2 or not (tokens and width and experts):
        return None
    (up, up_name), (down, down_name) = sorted(products, key=lambda p: "swiGlu" not in p[0].name)
    if "swiGlu" not in up.name or up.grid[1] != down.grid[1] or up_name["n"] != down_name["n"]:
        return None
    tile_m, tile_n = int(up_name["m"]), int(up_name["n"])
    if tile_n < 1 or tile_m < 1 or -(-width // int(down_name["m"])) != down.grid[0]:
        return None                      # the second product's rows must be the hidden width
    top_k = _top_k(tokens, experts, tile_n, up.grid[1])
    if top_k is None or up.grid[0] < 1:
        return None
    weights = up_name["weights"]
    return Experts(
        tokens=tokens, top_k=top_k, experts_used=top_k, width=width, inner=((up.grid[0] - 1) * tile_m + 2) // 2,
        activations=_form(up_name["activations"] or weights), weights=_form(weights),
        weight_block=BLOCKS.get(weights[:2]), tokens_form=form, inferred=True,
    )


def _form(name: str) -> str:
    return FORMS[name.removeprefix("Mx").removeprefix("Nv")]


def _top_k(tokens: int, experts: int, tile: int, tiles: int) -> int | None:
    """The one number of experts a token that needs so many token tiles at most."""
    fitting = []
    for k in range(1, min(experts, 64) + 1):
        rows = tokens * k
        most = rows if rows <= experts else experts + (rows - experts) // tile
        if most == tiles:
            fitting.append(k)
    return fitting[0] if len(fitting) == 1 else None
