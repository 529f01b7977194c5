"""This file knows about how our Triton kernels become kernels of an operator: built, refused, keyed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, MutableMapping
from importlib import metadata, util
from pathlib import Path
from typing import TypeAlias

from sublight.kernels.contract import Shape, Tensor, Tensors
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.launch.call import Call, launch, why_not_here
from sublight.kernels.launch.targets import Target, here

Calls: TypeAlias = Callable[[Shape, Tensors, Target], tuple[Call, ...]]
Unsupported: TypeAlias = Callable[[Shape, Target], str | None]

FORMATS = (None, "bf16", "fp16", "fp32", "int8")


def kernel(op: str, calls: Calls, unsupported: Unsupported) -> Kernel:
    """An operator's kernel named "triton". calls(shape, tensors, target) are what it launches, in order, on inputs and
    outputs; unsupported(shape, target) is why there is none."""
    def build(shape: Shape, constants: Tensors) -> Run:
        target = here()

        def run(inputs: Tensors, outputs: MutableMapping[str, Tensor]) -> None:
            for call in calls(shape, {**inputs, **outputs}, target):
                launch(call)

        return run

    def refuses(shape: Shape) -> str | None:
        return why_not_here() or unsupported(shape, here())

    return Kernel(op=op, name="triton", build=build, refuses=refuses, where="cuda", provider="sublight",
                  key=lambda: source_key(op))


def source_key(op: str) -> Mapping[str, str]:
    """What the compiled code depends on: our source, and the compiler."""
    folder = Path(__file__).parent
    files = [*sorted((folder.parent / op).glob("triton_*.py")), *sorted(folder.glob("*.py"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    compiler = f"triton {metadata.version('triton')}" if util.find_spec("triton") else "no triton"
    return {"source": digest[:16], "compiler": compiler}


def unknown_format(form: str | None, target: Target) -> str | None:
    """Why an architecture cannot read or write a number format in Triton; None: it can."""
    if form in FORMATS or (form == "fp8" and target.fp8):
        return None
    if form == "fp8":
        return f"Triton has no fp8e4nv (e4m3) before compute capability 8.9; this is {target.name}"
    return f"no code for the number format {form!r}"
