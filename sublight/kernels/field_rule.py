"""This file knows about the field's rule for whether a kernel is right, to be shown beside ours and never used in it.

    99 % of the elements lie within atol + rtol·|exact|, both 1e-2, and none is NaN or infinite

That is SOL-ExecBench's default: atol = rtol = 1e-2, matched ratio 0.99, no cap on the largest error. FlashInfer-Bench
has the same tolerances, and there an element fails that exceeds both.
"""

from __future__ import annotations

from sublight.kernels.contract import Case, Contract, Tensors

TOLERANCE = 1e-2                         # absolute and relative
RATIO = 0.99                             # of the elements


def passes(contract: Contract, case: Case, inputs: Tensors, outputs: Tensors, *, exact: Tensors | None = None) -> bool:
    """Whether every output of a kernel passes the field's rule. Elements that a contract does not judge count nowhere;
    a quantised output is compared times its scale; indices are not compared.
    """
    exact = contract.reference(case.shape, inputs) if exact is None else exact
    bound = contract.bound(case.shape, inputs, exact)
    values = contract.judged(case.shape, inputs, outputs) if contract.judged else outputs
    for name, value in values.items():
        judged = (bound[name] < float("inf")) & exact[name].isfinite()
        got, wanted = value.double()[judged], exact[name].double()[judged]
        if not got.numel():
            continue
        within = (got - wanted).abs() <= TOLERANCE + TOLERANCE * wanted.abs()
        if not bool(got.isfinite().all()) or float(within.double().mean()) < RATIO:
            return False
    return True
