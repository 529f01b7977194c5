"""Every cheat that a naive bench lets pass is rejected by the arena; so are attacks on the arena itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from arena_cheats import CHEATS, Cheat  # noqa: E402
from arena_tiny import CONTRACT  # noqa: E402
from arena_tiny_shape import Shape  # noqa: E402

from sublight.bound import Bound  # noqa: E402
from sublight.kernels.arena import outcome  # noqa: E402
from sublight.kernels.arena.bench import Lane, Pace, measure  # noqa: E402
from sublight.kernels.arena.entry import Entry  # noqa: E402
from sublight.kernels.arena.honesty import faster_than_light, untruths, worked_ahead  # noqa: E402
from sublight.kernels.arena.process import Arena, Call, arena  # noqa: E402

HERE = Path(__file__).parent
FILE = str(HERE / "arena_cheats.py")
PACE = Pace(seconds=0.0, least=6)


@pytest.fixture(scope="module")
def ring() -> Iterator[Arena]:
    with arena() as opened:
        yield opened


@pytest.fixture(scope="module")
def naive() -> dict[str, dict[str, float]]:
    """What the naive bench says of each cheat."""
    lines = subprocess.run([sys.executable, str(HERE / "arena_naive.py"), FILE], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    return {row["name"]: row for row in map(json.loads, lines)}


def timed(ring: Arena, name: str, shape: Shape | None = None) -> Lane:
    return measure(ring, CONTRACT, shape or Shape(64, 256), [Entry("tiny", name, path=FILE)], pace=PACE).lanes[0]


@pytest.mark.heavy
def test_the_honest_kernel_beside_them_passes(ring: Arena) -> None:
    lane = timed(ring, "right")
    assert str(lane.outcome) == "passed"
    assert len(lane.calls) == 6


@pytest.mark.heavy
@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_a_cheat_passes_the_naive_bench(naive: dict[str, dict[str, float]], cheat: Cheat) -> None:
    assert naive[cheat.name]["ok"]
    assert not cheat.faster or naive[cheat.name]["share"] < 0.5


@pytest.mark.heavy
@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_the_arena_rejects_it(ring: Arena, cheat: Cheat) -> None:
    found = timed(ring, cheat.name).outcome
    assert found.kind == cheat.kind, str(found)
    assert cheat.said in str(found)


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "said"), [
    ("patches_our_loop", "its clock says"),
    ("answers_early", "answered out of turn"),
    ("claims_too_much", "more than the whole exchange"),
    ("works_while_caches_are_made_ready", "while it made its caches ready"),
    ("adds_what_changed", "most of the input changed"),
])
def test_an_attack_on_the_arena_gains_nothing(ring: Arena, name: str, said: str) -> None:
    found = timed(ring, name, Shape(64, 2048)).outcome
    assert not found.ok
    assert said in str(found)


# ---- what the system's clocks say, on calls made up here: 40 µs of exchange, 1 ms of kernel ------------------------

NULLS = tuple(Call(1_000, 41_000, 30_000) for _ in range(9))


def calls(ns: int, wall: int, cpu: int, waited: int = 0, delayed: int = 0) -> tuple[Call, ...]:
    return tuple(Call(ns, wall, cpu, waited, delayed) for _ in range(9))


@pytest.mark.parametrize(("made", "said"), [
    (calls(1_000_000, 1_050_000, 1_030_000), None),
    (calls(10_000, 1_050_000, 1_030_000), "less than the exchange took"),
    (calls(700_000, 1_050_000, 1_030_000), "less than the exchange took"),
    (calls(10_000, 1_050_000, 1_030_000, waited=1_000_000), "longer on the CPU than its clock says"),
    (calls(1_000_000, 3_050_000, 1_030_000, waited=2_000_000), None),
    (calls(1_000_000, 3_050_000, 1_030_000, delayed=2_000_000), None),
    (calls(2_000_000, 1_050_000, 1_030_000), "more than the whole exchange"),
    (calls(2_000_000, 2_050_000, 4_030_000), "on 2.0 CPUs at once, and 1 were stated"),
])
def test_a_clock_that_cannot_be_right_is_noticed(made: tuple[Call, ...], said: str | None) -> None:
    found = untruths(NULLS, made, threads=1)
    assert found == () if said is None else said in "; ".join(found)


def test_other_load_is_not_the_kernels() -> None:
    assert Call(30_000_000, 31_000_000, 10_050_000, 20_500_000, 0).took_ns == 10_050_000
    assert Call(1_000_000, 5_000_000, 1_050_000, 3_500_000, 0).took_ns == 1_000_000, "waited before it began"
    assert Call(30_000_000, 31_000_000, 100_000, 0, 0).took_ns == 30_000_000, "it slept: who worked?"


def test_nothing_is_faster_than_light() -> None:
    lowest = Bound(1e-3, "memory", {"memory": 1e-3})
    assert faster_than_light(0.9e-3, lowest) is None, "a ceiling may be measured low"
    assert "faster than light: 500 µs, and memory alone takes 1e+03 µs" in str(faster_than_light(0.5e-3, lowest))
    assert faster_than_light(1e-9, None) is None


def test_kinds_are_listed() -> None:
    assert {cheat.kind for cheat in CHEATS} <= set(outcome.KINDS)


@pytest.mark.parametrize(("readied", "without", "ok"), [
    ((200_000,) * 9, (190_000,) * 9, True),
    ((345_000,) * 9, (190_000,) * 9, True),        # 1.5 times, and 60 µs
    ((346_000,) * 9, (190_000,) * 9, False),
    ((9_000_000, *(200_000,) * 8), (190_000,) * 9, True),      # once: other load
    ((9_000_000,) * 9, (), True),                  # a system that does not tell
])
def test_who_works_while_its_caches_are_made_ready_is_seen(readied: tuple[int, ...], without: tuple[int, ...],
                                                          ok: bool) -> None:
    assert (worked_ahead(readied, without) is None) == ok
