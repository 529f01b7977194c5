"""This file knows about which operators have a contract, and where the kernels of each are.

A folder `kernels/<op>/` holds `contract.py` (CONTRACT) and the modules that its `__init__.py` names in IMPLEMENTATIONS,
each with KERNELS. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import difflib
from importlib import import_module, util

from sublight.errors import InputError
from sublight.kernels.contract import Contract
from sublight.kernels.kernel import Kernel

OPERATORS = (
    "gemm", "grouped_gemm", "moe", "attention", "decode", "mla_decode", "norm", "swiglu", "rope", "routing",
    "cross_entropy", "quantise", "dequantise",
)


def contract(op: str) -> Contract:
    """The contract of an operator. Raises InputError for a name that has none, or where torch is not installed."""
    if op not in OPERATORS:
        near = difflib.get_close_matches(op, OPERATORS, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"no contract is named {op!r}{meant} There are: {', '.join(OPERATORS)}")
    if util.find_spec("torch") is None:
        raise InputError("kernels are checked and timed on torch's tensors, and torch is not installed: "
                         "pip install 'sublight[torch]'")
    found: Contract = import_module(f"sublight.kernels.{op}.contract").CONTRACT
    return found


def kernels(op: str, *, where: str | None = None) -> tuple[Kernel, ...]:
    """All that offer an operator, whether or not this machine can run them; their `refuses` says."""
    package = f"sublight.kernels.{op}"
    modules = [import_module(f"{package}.{name}") for name in import_module(package).IMPLEMENTATIONS]
    return tuple(kernel for module in modules for kernel in module.KERNELS if where in (None, kernel.where))
