"""Tables of an explanation in a notebook: data frames of three libraries, and small tables of HTML."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kineto import Kineto

from sublight.errors import InputError
from sublight.explain import Explanation, explain
from sublight.explain.frames import TABLES, columns
from sublight.observe.read import read_all

# library, extra, and how a made frame gives its rows
LIBRARIES: tuple[tuple[str, str, Callable[[Any], list[dict[str, Any]]]], ...] = (
    ("polars", "polars", lambda frame: frame.to_dicts()),
    ("pandas", "pandas", lambda frame: frame.astype(object).where(frame.notna(), None).to_dict("records")),
    ("pyarrow", "arrow", lambda frame: frame.to_pylist()),
)


@pytest.fixture
def explanation(tmp_path: Path) -> Explanation:
    paths = []
    for rank in range(2):
        k = Kineto(rank=rank, world_size=2)
        k.step(1, 0, 1_000_000)
        k.kernel("nvjet_tst_<b>", 100_000, 400_000, launch=(10_000, 20_000), grid=(132, 1, 1))
        k.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 400_000, 600_000, stream=20, launch=(30_000, 40_000))
        paths.append(k.write(tmp_path / f"rank{rank}.json"))
    return explain(read_all(paths))


def test_columns_are_the_fields_led_by_rank_and_device(explanation: Explanation) -> None:
    kernels = columns(explanation, "kernels")
    assert list(kernels)[:4] == ["rank", "device", "name", "short"]
    assert kernels["rank"] == ("integer", [0, 0, 1, 1])
    assert kernels["ns"] == ("integer", [300_000, 200_000] * 2)
    assert columns(explanation, "parts")["share"] == ("number", [0.6, 0.4] * 2)
    assert columns(explanation, "steps")["window_ns"] == ("integer", [500_000] * 2)
    assert "SL101" in columns(explanation.devices[0], "findings")["code"][1]
    assert columns(explanation.devices[1], "kernels")["rank"] == ("integer", [1, 1])


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("library", "extra", "rows"), LIBRARIES, ids=[row[1] for row in LIBRARIES])
def test_a_frame_holds_what_the_columns_hold(
    library: str, extra: str, rows: Callable[[Any], list[dict[str, Any]]], table: str, explanation: Explanation
) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed: pip install 'sublight[{extra}]'")
    for of in (explanation, explanation.devices[0]):
        wanted = columns(of, table)
        length = len(wanted["rank"][1])
        assert rows(getattr(of, f"to_{extra}")(table)) == [
            {name: values[i] for name, (_, values) in wanted.items()} for i in range(length)]


@pytest.mark.parametrize(("library", "extra", "rows"), LIBRARIES, ids=[row[1] for row in LIBRARIES])
def test_an_absent_library_names_its_extra(
    library: str, extra: str, rows: object, explanation: Explanation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf"{library} is not installed; .*pip install 'sublight\[{extra}\]'"):
        getattr(explanation, f"to_{extra}")()


def test_no_library_is_loaded_before_it_is_asked_for() -> None:
    import subprocess

    program = "import sublight.explain, sys; print({'polars', 'pandas', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_table_that_there_is_not_is_an_error_with_the_nearest(explanation: Explanation) -> None:
    with pytest.raises(InputError, match=r"no table 'kernel'; expected kernels, .* nearest: kernels"):
        columns(explanation, "kernel")


def test_nouns_are_small_tables_of_escaped_text(explanation: Explanation) -> None:
    from dataclasses import replace

    one = explanation.devices[0]
    budget = one.view.budget._repr_html_()
    assert all(word in budget for word in ("gemm", "300,000", "60.00%", "500,000"))
    finding = replace(one.findings[0], claim="<script>alert(1)</script>", evidence=("a & b",))._repr_html_()
    assert "<script>" not in finding
    assert "&lt;script&gt;" in finding
    assert "a &amp; b" in finding
    whole = explanation._repr_html_()
    assert whole.count("= window") == 2
    assert len(whole) < 10_000
    assert importlib.import_module("sublight.explain").Explained._repr_html_(one) in whole
