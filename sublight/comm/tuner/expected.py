"""This file knows about the regret that measurements of others let one expect, where nothing was measured here.

NCCL's tests tell algorithms apart in one place without forcing any: inside an NVLink domain the switch reduces fp16 but
not int8. At sizes where NCCL takes NVLS for fp16, the same bytes as int8 say what it would take without NVLS.
"""

from __future__ import annotations

from collections.abc import Sequence

from sublight.cluster import Cluster
from sublight.comm.expect import expect
from sublight.comm.nccl.choice import Model, choose
from sublight.comm.tuner.regret import Run
from sublight.errors import InputError
from sublight.work import Message

BASIS = ("Expected times, of sublight comm expect: NVLS as fp16 was measured, the other as int8 was, which NVLS does "
         "not reduce. Where their 80 % intervals meet, nothing is said; the NCCL that was measured may have chosen "
         "otherwise.")


def expected_runs(model: Model, cluster: Cluster, sizes: Sequence[int]) -> tuple[Run, ...]:
    """What an all-reduce should take with NCCL's own choice and, where that is NVLS, without NVLS, if the two are apart
    by more than their intervals.

    Raises InputError where the two cannot be told apart: over several domains, without NVLS, or without measurements.
    """
    comm = model.comm
    if comm.nodes > 1 or not comm.nvls:
        raise InputError("expected times tell algorithms apart only for an all-reduce inside one NVLink domain with "
                         "NVLS; elsewhere give measured runs (--runs)")
    found = []
    for nbytes in sizes:
        message = Message("all_reduce", comm.ranks, nbytes)
        with_nvls, without = (choose(model, "AllReduce", nbytes, dtype=dtype).best for dtype in ("fp16", "int8"))
        reduced = expect(message, cluster, dtype="bf16")
        plain = expect(message, cluster, dtype="int8")
        taken = [(with_nvls, reduced)]
        if with_nvls.algorithm.startswith("NVLS") and (plain.high < reduced.low or reduced.high < plain.low):
            taken.append((without, plain))
        found += [Run("all_reduce", 1, comm.ranks, nbytes, candidate.algorithm, candidate.protocol, None, time.seconds)
                  for candidate, time in taken]
    return tuple(found)
