"""Files and folders with GPU code: what is read, with which launch, what is left out, what one error says."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import cubins
import pytest

from sublight.errors import InputError
from sublight.kernels.inspect import tools
from sublight.kernels.inspect.code import Launch
from sublight.kernels.inspect.inspected import figures
from sublight.kernels.inspect.read import found
from sublight.kernels.inspect.triton_cache import launch_of


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A folder as Triton keeps one, with something else in it."""
    entry = tmp_path / "7HVX"
    entry.mkdir()
    (entry / "f.cubin").write_bytes(cubins.cubin())
    (entry / "f.ptx").write_text(".version 8.0\n.target sm_90\n")
    (entry / "f.json").write_text(json.dumps({"num_warps": 8, "shared": 147456, "num_ctas": 1, "tmem_size": 64}))
    (entry / "f.ttir").write_text("module {}")
    (tmp_path / "notes.so").write_text("no library")
    return tmp_path


def test_a_folder_of_tritons_cache(cache: Path) -> None:
    code = found(cache, instructions=False)
    assert [(unit.source, unit.launch) for unit in code.units] == [
        ("7HVX/f.cubin", Launch(8, 147456, 1, tensor_columns=64))]
    assert dict(code.skipped) == {"no GPU code by its name": 2, "PTX of a cubin beside it": 1, "not GPU code": 1}


def test_the_launch_makes_the_occupancy(cache: Path) -> None:
    unit, = found(cache, instructions=False).units
    kernel = figures(unit, unit.functions[0])
    assert (kernel.warps, kernel.dynamic_shared) == (8, 147456)
    assert kernel.occupancy is not None
    assert (kernel.occupancy.blocks, kernel.occupancy.limiters) == (1, ("shared memory",))


def test_the_code_is_believed_before_the_user() -> None:
    unit, = found(cubins.BEFORE, instructions=False).units
    assert figures(unit, unit.functions[0], Launch(4)).warps == 4
    assert figures(unit, unit.functions[0]).occupancy is None


def test_code_without_shared_memory_has_no_dynamic_one() -> None:
    unit, = found(cubins.BEFORE, instructions=False).units
    assert {function.name: figures(unit, function).dynamic_shared for function in unit.functions} == {
        "running_sums": 0, "tile_product": None}


@pytest.mark.parametrize("said", [
    "", "[]", "{", '{"num_warps": 4}', '{"num_warps": true, "shared": -1}', "[" * 100_000])
def test_metadata_that_says_nothing_sound_is_not_believed(said: str, tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text(said)
    assert launch_of(tmp_path / "f.cubin") in (None, Launch())


def test_clusters_of_older_tritons(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text('{"num_warps": 4, "shared": 0, "cluster_dims": [2, 2, 1]}')
    assert launch_of(tmp_path / "f.cubin") == Launch(4, 0, 4)


def test_a_fatbin_and_what_it_holds() -> None:
    code = found(cubins.FATBIN, instructions=False)
    assert [(unit.source, unit.arch, len(unit.functions)) for unit in code.units] == [
        ("tiles.fatbin, cubin 1", "sm_80", 2), ("tiles.fatbin, ptx 2", "sm_80", 2),
        ("tiles.fatbin, cubin 3", "sm_90a", 2)]


def test_a_damaged_entry_does_not_cost_the_others(tmp_path: Path) -> None:
    short = b"\n//\n.version 8.4\n.target sm_90\n.entry f() { }\n" + b"\0" * 7     # as fatbinary pads it
    file = cubins.fatbin((2, 80, 0, cubins.cubin()[:500], 0), (1, 90, 0, short, 0), (2, 90, 0, cubins.cubin(), 0))
    (tmp_path / "x.so").write_bytes(cubins.program(**{".nv_fatbin": file}))
    code = found(tmp_path / "x.so", instructions=False)
    assert [(unit.kind, unit.source) for unit in code.units] == [("ptx", "x.so, ptx 2"), ("cubin", "x.so, cubin 3")]
    assert code.skipped == (("cubin entry that is damaged", 1),)


@pytest.mark.parametrize(("name", "data", "says"), [
    ("empty.cubin", b"", "is empty"),
    ("text.cubin", b"hello", "holds no GPU code"),
    ("lib.a", b"!<arch>\n", "ar x"),
    ("none.ptx", b".version 8.0\n.target sm_90\n", "without kernels"),
    ("kernels.cubin", cubins.cubin(other=0), "without kernels"),
    ("cut.cubin", cubins.BEFORE.read_bytes()[:3000], "damaged or cut short"),
])
def test_what_cannot_be_read_is_one_error(name: str, data: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=says) as error:
        found(tmp_path / name)
    assert str(tmp_path) not in str(error.value)


def test_a_folder_without_code_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no GPU code in 0 files"):
        found(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        found(tmp_path / "absent.cubin")


# ---- tools


def test_without_nvdisasm_the_listing_beside_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tools, "places", lambda _: ())
    unit, = found(cubins.AFTER).units
    assert [len(function.instructions) for function in unit.functions] == [536, 224]
    shutil.copy(cubins.AFTER, tmp_path)
    alone, = found(tmp_path / cubins.AFTER.name).units
    assert {function.missing for function in alone.functions} == {f"needs nvdisasm: {tools.ADVICE}"}


def test_a_listing_of_other_code_is_not_believed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tools, "places", lambda _: ())
    shutil.copy(cubins.BEFORE, tmp_path / "x.cubin")
    shutil.copy(cubins.AFTER.with_suffix(".sass"), tmp_path / "x.sass")
    unit, = found(tmp_path / "x.cubin").units
    assert {f.name: f.missing for f in unit.functions} == {
        "running_sums": "the listing beside it is of other code", "tile_product": None}


def test_a_tool_that_cannot_is_followed_by_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("#!/bin/sh\necho 'nvdisasm fatal : old ELF format in /secret/x.cubin' >&2\nexit 1\n")
    new.write_text("#!/bin/sh\necho '        /*0000*/ EXIT ;'\n")
    for tool in (old, new):
        tool.chmod(0o755)
    monkeypatch.setattr(tools, "places", lambda _: (old, new))
    assert "EXIT" in tools.disassembly(b"x")
    monkeypatch.setattr(tools, "places", lambda _: (old,))
    with pytest.raises(tools.UnreadableError, match="old ELF format in the file"):
        tools.disassembly(b"x")


def test_no_tool_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "places", lambda _: ())
    with pytest.raises(InputError, match="pip install"):
        tools.find("nvdisasm")


def test_tools_are_looked_for_in_cuda_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin/nvdisasm"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    tools.places.cache_clear()
    try:
        assert tools.find("nvdisasm") == tool
        tool.chmod(0o644)
        tools.places.cache_clear()
        assert tool not in tools.places("nvdisasm"), "what cannot be run is no tool"
    finally:
        tools.places.cache_clear()


@pytest.mark.heavy
def test_instructions_of_the_kept_cubins_are_those_of_their_listings() -> None:
    cubins.needs_nvdisasm()
    for path in (cubins.BEFORE, cubins.AFTER):
        unit, = found(path).units
        text = path.with_suffix(".sass").read_text()
        assert sum(len(function.instructions) for function in unit.functions) == text.count(";")
    assert os.access(tools.find("nvdisasm"), os.X_OK)
