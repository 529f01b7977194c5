"""The support table of our Triton kernels is true: compiled here for each architecture, and read.

Every supported cell has code without spills, the tensor-core instruction of its format, wide accesses where memory
binds, and fits the registers and the shared memory of a block; every other cell says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from conftest import loaded

from sublight.kernels.launch.targets import TARGETS, target

pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from sublight.kernels.launch import support  # noqa: E402
from sublight.kernels.launch.support import ROWS, Cell, Row  # noqa: E402

DOCS = Path(__file__).parent.parent / "docs"
MEASURED_WITH = "3.7.1"                  # Triton, of the page's registers
NO_UTCIMMA = "3.7."                      # Triton's versions without an int8 form of tcgen05.mma; 3.9.0 has it


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cell, ...]]:
    """All cells, compiled once for this file in a cache of its own: nothing old is found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield support.cells()


def supported(cells: tuple[Cell, ...]) -> list[Cell]:
    return [cell for cell in cells if cell.facts is not None]


def deserved(cell: Cell) -> str:
    if cell.target.name == "sm_100" and cell.row.tensor == "int8" and triton.__version__.startswith(NO_UTCIMMA):
        return "IMMA"
    return dict(cell.target.tensor)[cell.row.tensor or ""]


@pytest.mark.heavy
def test_no_cell_spills(cells: tuple[Cell, ...]) -> None:
    spilt = [(cell.row.title, cell.target.name, cell.facts) for cell in supported(cells)
             if cell.facts and (cell.facts.spills or cell.facts.stack)]
    assert spilt == []


@pytest.mark.heavy
def test_products_use_the_tensor_cores_of_their_format(cells: tuple[Cell, ...]) -> None:
    other = [(cell.row.title, cell.target.name, cell.facts.tensor) for cell in supported(cells)
             if cell.facts and cell.row.tensor and cell.facts.tensor != (deserved(cell),)]
    assert other == []


@pytest.mark.heavy
def test_what_memory_binds_moves_128_bits_at_a_time(cells: tuple[Cell, ...]) -> None:
    narrow = [(cell.row.title, cell.target.name, cell.facts.wide) for cell in supported(cells)
              if cell.facts and cell.row.tensor is None and cell.facts.wide < 0.75]
    assert narrow == []


@pytest.mark.heavy
def test_a_block_fits_its_sm(cells: tuple[Cell, ...]) -> None:
    for cell in supported(cells):
        facts = cell.facts
        assert facts is not None
        assert facts.shared <= cell.target.shared_bytes
        assert facts.registers <= 255
        assert facts.registers * facts.warps * 32 <= 65536


@pytest.mark.heavy
def test_cells_without_code_say_why(cells: tuple[Cell, ...]) -> None:
    refused = [cell for cell in cells if cell.facts is None]
    assert {cell.target.name for cell in refused} == {"sm_80"}
    assert all("fp8" in cell.row.format and "before compute capability 8.9" in (cell.why or "") for cell in refused)


@pytest.mark.heavy
def test_fp8_is_refused_by_triton_itself_on_sm_80() -> None:
    """What the table says of these cells, tried: without our refusal Triton's own comes."""
    from sublight.kernels.launch.ahead import compiled_for
    from sublight.kernels.norm.shape import Shape

    with pytest.raises(Exception, match="fp8e4nv"):
        compiled_for("norm", Shape(64, 64, quant="fp8"), target(80))


@pytest.mark.heavy
def test_the_page_has_the_table(cells: tuple[Cell, ...]) -> None:
    if metadata.version("triton") != MEASURED_WITH:
        pytest.skip(f"registers on the page are of Triton {MEASURED_WITH}; this is {metadata.version('triton')}")
    lines = "\n".join(loaded(DOCS / "kernel_triton_table.py").lines(cells))
    assert lines in (DOCS / "kernel-triton.md").read_text("utf-8"), "paste what docs/kernel_triton_table.py prints"


@pytest.mark.heavy
def test_a_tile_that_is_too_large_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate can fail: a tile of 256 x 256 on sm_90 has more accumulators than registers."""
    from sublight.kernels.gemm import triton_form

    row = next(row for row in ROWS if row.title == "GEMM" and row.format == "bf16")
    monkeypatch.setattr(triton_form, "tile", lambda shape, where: triton_form.Tile(256, 256, 32, 8, 2))
    facts = support.cell(row, target(90)).facts
    assert facts is not None
    assert facts.spills > 100


@pytest.mark.heavy
def test_accesses_that_are_not_aligned_are_seen() -> None:
    row = Row("RMSNorm of an odd width", "norm", "bf16", {"rows": 4096, "width": 4097})
    facts = support.cell(row, target(90)).facts
    assert facts is not None
    assert facts.wide < 0.1


def test_targets_are_those_of_the_catalog() -> None:
    """Shared memory of a block and SMs agree with what the catalog has of the cards named."""
    from sublight.device import by_key
    from sublight.kernels.inspect import occupancy

    keys = {"sm_80": "a100-sxm-80", "sm_90": "h100-sxm", "sm_100": "b200", "sm_120": "rtx-pro-6000"}
    for one in TARGETS:
        assert by_key(keys[one.name]).sms == one.sms
        assert occupancy.limits_of(one.name).shared_block == one.shared_bytes
