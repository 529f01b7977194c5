"""Our CPU kernels keep their contracts: every width of vectors, AMX tiles (emulated), two threads, guarded ends."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sublight.kernels.contract import Case, Contract  # noqa: E402
from sublight.kernels.listed import contract, kernels  # noqa: E402
from sublight.kernels.native import build, call  # noqa: E402
from sublight.kernels.native.build import Target  # noqa: E402

if build.refusal():
    pytest.skip(str(build.refusal()), allow_module_level=True)
from sublight.kernels.policy import Judgement, judge  # noqa: E402
from sublight.kernels.rounding import DTYPES  # noqa: E402

OPERATORS = ("norm", "swiglu", "cross_entropy", "decode", "gemm", "moe")
NATIVE = build.NATIVE.flags
WIDE = Target("wide", (*NATIVE, "-DSUBLIGHT_LANES=16", "-O1"))            # the logic of AVX-512 on any machine
PLAIN = Target("plain", ("-O1",))                                        # no vector instructions beyond the ABI's
TILES = Target("tiles", (*NATIVE, "-DSUBLIGHT_AMX_EMULATED", "-O1"))
GUARD = 512                                                        # bytes of NaN before and after every tensor


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    call.function.cache_clear()


def compiled_for(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    monkeypatch.setattr(build, "NATIVE", target)
    call.function.cache_clear()


def guarded(tensor: Any, fill: int = 0xFF) -> tuple[Any, Any]:
    """A copy between guard zones whose bits are NaN in every format, and the whole buffer."""
    size = tensor.numel() * tensor.element_size()
    buffer = torch.full((GUARD + size + GUARD,), fill, dtype=torch.uint8)
    inside = buffer[GUARD:GUARD + size].view(tensor.dtype).view(tensor.shape)
    inside.copy_(tensor)
    return inside, buffer


def run(found: Contract, case: Case) -> tuple[Judgement, dict[str, Any]]:
    """Our kernel on a case; tensors lie between guard zones that must stay as they are, and inputs too."""
    kernel = next(k for k in kernels(found.name) if k.name == "sublight")
    given = found.inputs(case)
    inputs = {name: guarded(tensor) for name, tensor in given.items()}
    outputs = {name: guarded(torch.full(spec.sizes, float("nan")).to(DTYPES[spec.form]))
               for name, spec in found.outputs(case.shape).items()}
    plain = {name: inside for name, (inside, _) in inputs.items()}
    made = {name: inside for name, (inside, _) in outputs.items()}
    kernel.build(case.shape, {name: plain[name] for name in found.constant if name in plain})(plain, made)
    for buffer in (buffer for _, buffer in (*inputs.values(), *outputs.values())):
        assert bool((buffer[:GUARD] == 0xFF).all()), f"{case}: something was written before a tensor"
        assert bool((buffer[-GUARD:] == 0xFF).all()), f"{case}: something was written behind a tensor"
    for name, tensor in given.items():
        assert torch.equal(plain[name].view(torch.uint8), tensor.view(torch.uint8)), f"{case}: {name} was written"
    return judge(found, case, given, made), made


def cases(op: str) -> list[Case]:
    (kernel,) = (k for k in kernels(op) if k.name == "sublight")
    return [case for case in contract(op).cases() if kernel.refuses(case.shape) is None]


def elements(case: Case) -> int:
    return sum(tensor.numel() for tensor in contract_of(case).inputs(case).values())


def contract_of(case: Case) -> Contract:
    return contract(type(case.shape).__module__.split(".")[-2])


@pytest.mark.parametrize("op", OPERATORS)
def test_some_cases_of_each_operator(op: str) -> None:
    small = [case for case in cases(op) if elements(case) < 60_000]
    for case in small[::max(1, len(small) // 12)]:
        judgement, _ = run(contract(op), case)
        assert judgement.ok, (case, judgement.wrong)


@pytest.mark.heavy
@pytest.mark.parametrize("op", OPERATORS)
def test_forty_cases_on_two_threads(op: str) -> None:
    torch.set_num_threads(2)
    some = cases(op)[:: max(1, len(cases(op)) // 40)]
    assert len(some) >= 40
    for case in some:
        judgement, _ = run(contract(op), case)
        assert judgement.ok, (case, judgement.wrong)


@pytest.mark.heavy
@pytest.mark.parametrize(("op", "target"), [(op, target) for op in OPERATORS for target in (WIDE, PLAIN, TILES)
                                            if target is not TILES or op in ("gemm", "moe")],
                         ids=lambda value: getattr(value, "name", value))
def test_other_machines_by_their_logic(op: str, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_for(monkeypatch, target)
    if target is TILES:
        assert call.function(import_module("sublight.kernels.gemm.cpu").SOURCE, "uses_tiles", "", gives="t")() == 1
    small = [case for case in cases(op) if elements(case) < 60_000]
    for case in small[::max(1, len(small) // 16)]:
        judgement, _ = run(contract(op), case)
        assert judgement.ok, (case, judgement.wrong)


@pytest.mark.parametrize("op", ["norm", "decode", "gemm", "moe"])
def test_threads_change_nothing_that_matters(op: str) -> None:
    case = max((c for c in cases(op) if c.values == "normal" and elements(c) < 300_000), key=elements)
    _, one = run(contract(op), case)
    torch.set_num_threads(2)
    judgement, two = run(contract(op), case)
    assert judgement.ok, judgement.wrong
    if op != "decode":                                             # which merges the parts of a sequence
        assert all(torch.equal(one[name], two[name]) for name in one)


FAULTS = [
    ("norm", "vectors.hpp", "+ 0x7fffu + ((u >> 16) & 1u)", "", "truncated, not rounded"),
    ("norm", "norm.cpp", "squares / double(width)", "squares / double(width + 1)", "mean over one more"),
    ("norm", "norm.cpp", "for (; i < width; i++) rest +=", "for (; i + 1 < width; i++) rest +=", "last one forgotten"),
    ("swiglu", "activation.hpp", "(x < -87.3f ? Floats{} : t)", "all(1.0f)", "wrong below zero"),
    ("swiglu", "swiglu.cpp", "if (i < width) {", "if (false) {", "tail not written"),
    ("cross_entropy", "cross_entropy.cpp", "set(rest[j], -INFINITY)", "set(rest[j], 0.0f)", "padding counts"),
    ("cross_entropy", "cross_entropy.cpp", "targets[r] == ignored ? 0.0f : ", "", "ignored rows count"),
    ("decode", "decode.cpp", "total *= shrink;", "", "sum not corrected"),
    ("decode", "decode.cpp", "first / s.group() * cache", "first % s.kv_heads * cache", "wrong key head"),
    ("gemm", "panels.hpp", "from < n ? b[from * k + i] : bf16{}", "b[at_most(from, n - 1) * k + i / 2 * 2]", "k"),
    ("gemm", "panels.hpp", "adds ? load(to) + value : value", "value", "pieces of k not added"),
    ("moe", "moe.cpp", "+ weight * load(", "+ load(", "weights forgotten"),
    ("moe", "moe.cpp", "weights + half, rows", "weights, rows", "up is gate"),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("op", "file", "right", "wrong", "what"), FAULTS, ids=lambda text: text[:24])
def test_a_planted_fault_is_caught(op: str, file: str, right: str, wrong: str, what: str, tmp_path: Path,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module(f"sublight.kernels.{op}.cpu")
    folder = tmp_path / what.replace(" ", "-")
    folder.mkdir()
    for source in (module.SOURCE, *build.HERE.glob("*.hpp")):
        text = source.read_text()
        if source.name == file:
            assert right in text
            text = text.replace(right, wrong)
        (folder / source.name).write_text(text)
    compiled_for(monkeypatch, Target("faulty", (*NATIVE, "-O1")))
    monkeypatch.setattr(module, "SOURCE", folder / module.SOURCE.name)
    monkeypatch.setattr(build, "HERE", folder)
    small = sorted(cases(op), key=elements)
    assert any(not run(contract(op), case)[0].ok for case in small), what
