"""Rates of an SM: every number has a source, and agrees with what the catalog of devices says of the same SM."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from sublight.device import catalog
from sublight.kernels.inspect.pipes import OTHER, RATES, charged, pipe_of, pipes_of, plain, title_of


def rows(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files("sublight.catalog") / "kernels" / name).read_text("utf-8"))


PIPES, OPCODES = rows("pipes.toml"), rows("opcodes.toml")
VECTOR = ("fp32", "fp64", "fp16")                                    # rates: devices count two FLOPs a result


@pytest.mark.parametrize("arch", PIPES)
def test_every_rate_has_a_source_and_every_source_a_rate(arch: str) -> None:
    row = PIPES[arch]
    assert set(row["sources"]) == set(row) - {"capability", "sources"}
    assert all(text.startswith(("stated: ", "measured: ", "upper limit: ")) for text in row["sources"].values())
    assert set(row) - {"capability", "sources", "tensor"} <= set(RATES)


@pytest.mark.parametrize("arch", PIPES)
def test_tensor_rates_are_those_of_the_fastest_device(arch: str) -> None:
    same = [device for device in catalog() if device.capability == tuple(PIPES[arch]["capability"])]
    assert same, "no device of the catalog has this architecture"
    fastest: dict[str, float] = {}
    for device in same:
        for form, rate in device.limits.tensor_flops_per_clock.items():
            fastest[form] = max(rate, fastest.get(form, 0))
    assert PIPES[arch]["tensor"] == fastest


@pytest.mark.parametrize("arch", PIPES)
def test_vector_rates_are_those_of_the_devices(arch: str) -> None:
    same = [device for device in catalog() if device.capability == tuple(PIPES[arch]["capability"])]
    for rate in VECTOR:
        stated = {device.limits.vector_flops_per_clock[rate] for device in same
                  if rate in device.limits.vector_flops_per_clock}
        if rate in PIPES[arch] and stated:
            assert {2 * PIPES[arch][rate]} == stated, f"{rate} of {arch}"


def test_an_opcode_occupies_one_pipe() -> None:
    names = [name for pipe, row in OPCODES.items() if pipe != "deserved" for name in row["opcodes"]]
    assert len(names) == len(set(names))
    assert all("." not in name for name in names)


def test_every_pipe_has_a_title_and_says_whether_it_is_charged() -> None:
    assert title_of("fp32") == "fp32 arithmetic"
    assert title_of(OTHER) == "not known to us"
    assert (charged("alu"), charged("convert"), charged(OTHER)) == (True, False, False)
    assert pipe_of("HGMMA") == "tensor"


def test_deserved_instructions_are_tensor_instructions_of_formats_with_a_rate() -> None:
    for arch, row in OPCODES["deserved"].items():
        assert {pipe_of(name) for name in row.values()} == {"tensor"}
        assert set(PIPES[arch]["tensor"]) <= set(row), arch
        assert set(row) - set(PIPES[arch]["tensor"]) <= {"fp6"}, f"{arch}: fp6 runs at fp8's rate"


def test_the_page_shows_the_rates_of_the_catalog() -> None:
    page = (Path(__file__).parent.parent / "docs" / "kernel-loops.md").read_text("utf-8")
    table = page.split("## Rates of an SM, a clock\n\n")[1].split("\n\n")[0].splitlines()
    head, _, *lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in table]
    assert head[1:] == list(PIPES)
    shown = {row[0].split(",")[0]: row[1:] for row in lines}
    assert set(shown) == {*RATES, "tensor bf16", "tensor fp8"}
    for name, cells in shown.items():
        form = name.removeprefix("tensor ")
        kept = [row["tensor"].get(form) if form != name else row.get(name) for row in PIPES.values()]
        assert [int(cell) if cell else None for cell in cells] == kept, name


def test_letters_of_an_architecture_choose_features_not_rates() -> None:
    assert pipes_of("sm_90a") is pipes_of("sm_90")
    assert (plain("sm_100f"), plain("90a"), plain("gfx942")) == ("sm_100", "sm_90", "gfx942")
    assert pipes_of("sm_75") is None
