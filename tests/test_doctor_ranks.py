"""A straggler among the ranks of DeepEP's tests and of NCCL Inspector is named; none is where there is none."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from sublight.comm.doctor.diagnosis import diagnose
from sublight.observe.measurements import read_one

Took = Callable[[int, float], float]         # a rank's time of an operation of so many microseconds
ACCUSING = ("SL501", "SL502", "SL503", "SL504")


def steady(rank: int, took: Took) -> str:
    us = took(rank, 300)
    return (f"[rank {rank}] Dispatch + combine bandwidth: {22e3 / us:.2f} GB/s, avg_t={us:.2f} us, "
            f"min_t={us * 0.96:.2f} us, max_t={us * 1.06:.2f} us")


def parts(rank: int, took: Took) -> str:
    first, second = took(rank, 90), took(rank, 160)
    return (f"[rank {rank}] Dispatch bandwidth: {7500 / first:.2f} GB/s, avg_t={first:.2f} us | "
            f"Combine bandwidth: {14500 / second:.2f} GB/s, avg_t={second:.2f} us")


def sends(rank: int, took: Took) -> str:
    return (f"[rank {rank}] Dispatch send/recv time: {took(rank, 40):.2f} + {took(rank, 9):.2f} us | "
            f"Combine send/recv time: {took(rank, 50):.2f} + {took(rank, 9):.2f} us")


def elastic(rank: int, took: Took) -> str:
    us = took(rank, 120)
    return f"EP:  {rank}/16 | dispatch: {9000 / us:.0f} GB/s (SO), {9000 / us:.0f} GB/s (SU), {us:.3f} us, 9000 KB"


def inspector(rank: int, took: Took) -> str:
    return "\n".join(json.dumps({
        "header": {"id": "0x9e7a", "rank": rank, "n_ranks": 16, "nnodes": 2},
        "metadata": {"inspector_output_format_version": "v4.0", "hostname": f"h{rank // 8}"},
        "coll_perf": {"coll": "AllReduce", "coll_sn": n, "coll_msg_size_bytes": 1 << 26,
                      "coll_exec_time_us": took(rank, 400), "coll_timing_source": "kernel_gpu"}}) for n in range(5))


FORMS = (steady, parts, sends, elastic, inspector)


def named(
    form: Callable[[int, Took], str], times: dict[int, float], *, seed: int = 0
) -> list[tuple[str, tuple[int, ...]]]:
    """Accusing findings of 16 ranks; times: by how much a rank takes longer, default 1."""
    chance = random.Random(f"{form.__name__} {seed}")

    def took(rank: int, us: float) -> float:
        return us * times.get(rank, 1) * (1 + chance.gauss(0, 0.015))

    found = diagnose(read_one("\n".join(form(rank, took) for rank in range(16)), "ranks.log") or ())
    return [(f.finding.code, f.ranks) for f in found.findings if f.finding.code in ACCUSING]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("waiting", [1.2, 1.4, 1.7])
def test_the_rank_that_all_others_wait_for(form: Callable[[int, Took], str], waiting: float) -> None:
    assert named(form, {rank: waiting for rank in range(16) if rank != 5}) == [("SL504", (5,))]


@pytest.mark.parametrize("form", FORMS)
def test_a_rank_that_takes_longer(form: Callable[[int, Took], str]) -> None:
    assert named(form, {11: 1.3}) == [("SL504", (11,))]


@pytest.mark.parametrize("form", FORMS)
def test_no_rank_is_named_without_a_cause(form: Callable[[int, Took], str]) -> None:
    assert [seed for seed in range(20) if named(form, {}, seed=seed)] == []
    assert named(form, dict.fromkeys(range(8), 1.3)) == []       # half of them: no exception


def test_ranks_that_all_nearly_jump_are_not_blamed_one_by_one() -> None:
    chance = random.Random(2)
    lines = []
    for rank in range(16):
        mean = 345 * (1 + chance.gauss(0, 0.05))
        lines.append(f"[rank {rank}] Dispatch + combine bandwidth: 60 GB/s, avg_t={mean:.1f} us, min_t=295 us, "
                     f"max_t={435 * (1 + chance.gauss(0, 0.05)):.1f} us")
    found = diagnose(read_one("\n".join(lines), "x.log") or ())
    assert [f.ranks for f in found.findings if f.ranks] == []
