"""The arena: what happens to a kernel that is right, wrong, or ends its process; and that nothing is left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from arena_tiny import CONTRACT  # noqa: E402
from arena_tiny_shape import Shape  # noqa: E402

from sublight.kernels.arena import outcome  # noqa: E402
from sublight.kernels.arena.check import Checked, check  # noqa: E402
from sublight.kernels.arena.entry import Entry  # noqa: E402
from sublight.kernels.arena.honesty import untruths  # noqa: E402
from sublight.kernels.arena.process import Arena, arena  # noqa: E402
from sublight.kernels.arena.region import OUTPUT  # noqa: E402
from sublight.kernels.arena.trial import begin, change_inputs, set_up, watched  # noqa: E402
from sublight.kernels.contract import Case  # noqa: E402

FILE = str(Path(__file__).with_name("arena_kernels.py"))
CASE = Case(Shape(64, 256))


@pytest.fixture(scope="module")
def ring() -> Iterator[Arena]:
    with arena(memory_bytes=1 << 30) as opened:
        yield opened


def one(ring: Arena, name: str, *, case: Case = CASE, timeout: float = 20.0, device: str | None = None) -> Checked:
    entry = Entry("tiny", name, path=FILE)
    return next(iter(check(ring, CONTRACT, [entry], [case], timeout=timeout, device=device)))


@pytest.mark.parametrize("name", ["honest", "RETURNS"])
@pytest.mark.parametrize("device", [None, "cpu"], ids=["shared", "staged"])
def test_an_honest_kernel_passes_every_case(ring: Arena, name: str, device: str | None) -> None:
    found = list(check(ring, CONTRACT, [Entry("tiny", name, path=FILE)], CONTRACT.cases(), device=device))
    assert [str(checked.judged.outcome) for checked in found] == ["passed"] * 6
    assert all(errors.share_of_bound <= 1 for checked in found for errors in checked.judged.errors)


@pytest.mark.parametrize(("name", "kind", "said"), [
    ("raises", outcome.RAISED, "this is what it said"),
    ("crashes", outcome.CRASHED, "SIGSEGV"),
    ("illegal", outcome.CRASHED, "SIGILL"),
    ("exits", outcome.EXITED, "with code 0"),
    ("exits_by_exception", outcome.RAISED, "SystemExit"),
    pytest.param("eats_memory", outcome.MEMORY, "MemoryError", marks=pytest.mark.heavy),
    ("no_such_name", outcome.RAISED, "no_such_name"),
])
def test_each_end_of_a_process_is_one_clear_outcome(ring: Arena, name: str, kind: str, said: str) -> None:
    found = one(ring, name).judged.outcome
    assert found.kind == kind
    assert said in str(found)


def test_a_hang_ends_in_time(ring: Arena) -> None:
    since = time.monotonic()
    assert one(ring, "hangs", timeout=0.5).judged.outcome.kind == outcome.HUNG
    assert time.monotonic() - since < 3


def test_a_kernel_that_refuses_says_why(ring: Arena) -> None:
    assert one(ring, "REFUSES", case=Case(Shape(2, 3))).judged.outcome.said == ("odd widths are not for it",)
    assert one(ring, "REFUSES", case=Case(Shape(2, 4))).judged.outcome.kind == outcome.PASSED


def processes() -> set[int]:
    """All processes below this one."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(status.parent.name)] = int(fields[1])
    found: set[int] = set()
    fresh = {os.getpid()}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


@pytest.mark.heavy
def test_nothing_is_left_behind(tmp_path: Path) -> None:
    before, memory = processes(), set(Path("/dev/shm").iterdir())
    with arena() as opened:
        one(opened, "leaves_a_child")
        one(opened, "hangs", timeout=0.3)
        assert len(processes() - before) == 1, "the server alone"
    assert processes() == before
    assert set(Path("/dev/shm").iterdir()) == memory


def test_inputs_differ_from_call_to_call(ring: Arena) -> None:
    setup = set_up(ring, CONTRACT, CASE)
    was = {name: tensor.clone() for name, tensor in setup.inputs.items()}
    change_inputs(setup, np.random.default_rng(1))
    assert not torch.equal(was["x"], setup.inputs["x"])
    assert torch.equal(was["x"].flatten().sort().values, setup.inputs["x"].flatten().sort().values)
    assert torch.equal(was["weight"], setup.inputs["weight"])
    assert torch.equal(setup.region.tensor(setup.region.buffers[0]), setup.inputs["x"])


def test_outputs_are_poisoned_and_guards_watched(ring: Arena) -> None:
    setup = set_up(ring, CONTRACT, CASE)
    region = setup.region
    region.poison({})
    out, positive = region.of(OUTPUT)
    assert bool(region.tensor(out).isnan().all())
    assert set(region.tensor(positive).tolist()) == {-0x5A5A5A5B}
    assert region.touched_guards() == ()
    for buffer in region.buffers:
        end = buffer.offset + buffer.nbytes
        for at in (buffer.offset - 1, buffer.offset - 4096, end, end + 4095):
            region._bytes[at] ^= 1
            assert len(region.touched_guards()) == 1
            assert region.touched_guards() == ()


def test_our_clock_and_theirs_agree_on_an_honest_kernel(ring: Arena) -> None:
    process = ring.start(Entry("tiny", "honest", path=FILE))
    setup = set_up(ring, CONTRACT, Case(Shape(64, 1024)))
    assert begin(process, setup).ok
    calls = [watched(process, setup, look=False).call for _ in range(12)]
    assert untruths(process.nulls, calls, threads=1) == ()
    assert all(0 < call.took_ns <= call.ns <= call.wall_ns for call in calls)
    process.close()


def test_each_kernel_sees_the_constants_and_its_own_build(ring: Arena) -> None:
    process = ring.start(Entry("tiny", "RETURNS", path=FILE))
    assert process.described["key"] == {"layout": "plain"}
    assert process.described["provider"] == "torch"
    process.close()
