"""This file knows about routing in Triton: softmax and top-k of a token's experts in one pass."""

from __future__ import annotations

from sublight.kernels.contract import Spec, Tensors
from sublight.kernels.kernel import Kernel
from sublight.kernels.launch.call import Call, blocks, next_power_of_2
from sublight.kernels.launch.form import kernel, unknown_format
from sublight.kernels.launch.targets import Target
from sublight.kernels.routing.shape import Shape

CODE = "sublight.kernels.routing.triton_code:routed"
MOST_EXPERTS = 4096                      # an expert's number has 12 bits beside the order of its logit
MOST_CHOSEN = 32                         # passes over the experts


def unsupported(shape: Shape, target: Target) -> str | None:
    """Why there is no code for a shape on an architecture; None: there is."""
    if shape.experts > MOST_EXPERTS:
        return f"at most {MOST_EXPERTS} experts, got {shape.experts}"
    if shape.top_k > MOST_CHOSEN:
        return f"one pass over the experts for each that is chosen: at most {MOST_CHOSEN}, got {shape.top_k}"
    return unknown_format(shape.form, target)


def tile(tokens: int, experts: int) -> tuple[int, int, int]:
    """Tokens and experts of a block, and its warps: 8 logits a thread.

    >>> tile(4096, 256), tile(1, 8), tile(4096, 8)
    ((4, 256, 4), (1, 8, 1), (32, 8, 1))
    """
    columns = next_power_of_2(experts)
    height = max(1, min(32, 1024 // columns, next_power_of_2(tokens)))
    return height, columns, max(1, min(8, height * columns // 256))


def tensors(shape: Shape) -> dict[str, Spec]:
    """Inputs and outputs by name, as the contract has them."""
    chosen = (shape.tokens, shape.top_k)
    return {"logits": Spec((shape.tokens, shape.experts), shape.form), "weights": Spec(chosen, "fp32"),
            "ids": Spec(chosen, "int32")}


def calls(shape: Shape, tensors: Tensors, target: Target) -> tuple[Call, ...]:
    """The one call that computes weights and ids."""
    height, columns, warps = tile(shape.tokens, shape.experts)
    return (Call(CODE, (blocks(shape.tokens, height),),
                 {"logits_ptr": tensors["logits"], "weights_ptr": tensors["weights"], "ids_ptr": tensors["ids"],
                  "tokens": shape.tokens, "experts": shape.experts},
                 {"TOP": shape.top_k, "ROWS": height, "COLUMNS": columns, "PLACES": next_power_of_2(shape.top_k),
                  "RENORMALISE": shape.renormalise}, warps=warps),)


KERNELS: tuple[Kernel, ...] = (kernel("routing", calls, unsupported),)
