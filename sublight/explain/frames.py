"""This file knows about tables of an explanation as data frames of polars, pandas and Arrow.

    explain(trace).to_polars()                        # kernels
    explain(trace).to_pandas("findings")

Each library is imported when it is asked for. Columns are the fields of the rows, led by rank and device; times stay
integer nanoseconds, absent values null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_type_hints

from sublight.errors import InputError

TABLES = ("kernels", "parts", "steps", "findings")
TEXTS = tuple[str, ...]
# What a field's annotation becomes; fields of any other type are left out.
PLAIN: Mapping[Any, str] = {
    str: "text", int: "integer", float: "number", bool: "yes or no", TEXTS: "texts", str | None: "text",
    int | None: "integer", float | None: "number", bool | None: "yes or no", int | str: "text",
}
Column = tuple[str, list[Any]]                 # (kind, values)


class Frames:
    """What has tables. A class that mixes this in says which devices they are of."""

    __slots__ = ()

    def views_and_findings(self) -> Iterable[tuple[Any, Sequence[Any]]]:
        """(view, findings) of each device."""
        raise NotImplementedError

    def to_polars(self, table: str = "kernels") -> Any:
        """A polars.DataFrame of "kernels", "parts", "steps" or "findings". Raises InputError without polars."""
        found, pl = columns(self, table), _library("polars", "polars")
        kinds = {"text": pl.String, "integer": pl.Int64, "number": pl.Float64, "yes or no": pl.Boolean,
                 "texts": pl.List(pl.String)}
        return pl.DataFrame({name: values for name, (_, values) in found.items()},
                            schema={name: kinds[kind] for name, (kind, _) in found.items()})

    def to_pandas(self, table: str = "kernels") -> Any:
        """A pandas.DataFrame, with pandas' own null. Raises InputError without pandas."""
        found, pd = columns(self, table), _library("pandas", "pandas")
        kinds = {"text": "string", "integer": "Int64", "number": "Float64", "yes or no": "boolean", "texts": "object"}
        return pd.DataFrame({name: pd.Series(values, dtype=kinds[kind])
                             for name, (kind, values) in found.items()})

    def to_arrow(self, table: str = "kernels") -> Any:
        """A pyarrow.Table. Raises InputError without pyarrow."""
        found, pa = columns(self, table), _library("pyarrow", "arrow")
        kinds = {"text": pa.string(), "integer": pa.int64(), "number": pa.float64(), "yes or no": pa.bool_(),
                 "texts": pa.list_(pa.string())}
        return pa.table({name: pa.array(values, type=kinds[kind])
                         for name, (kind, values) in found.items()})


def columns(of: Frames, table: str) -> dict[str, Column]:
    """A table's columns by name. Raises InputError for a table that there is not."""
    if table not in TABLES:
        import difflib

        near = difflib.get_close_matches(table, TABLES, 1) or TABLES
        raise InputError(f"no table '{table}'; expected {', '.join(TABLES)}; nearest: {near[0]}")
    kinds = {"rank": "integer", "device": "text"} | _kinds(table)
    out: dict[str, Column] = {name: (kind, []) for name, kind in kinds.items()}
    for view, findings in of.views_and_findings():
        for row in _rows(view, findings, table):
            out["rank"][1].append(view.trace.rank)
            out["device"][1].append(str(view.device))
            for name, (kind, values) in list(out.items())[2:]:
                value = view.share(row.ns) if name == "share" and table == "parts" else getattr(row, name)
                values.append(list(value) if kind == "texts" else value)
    return out


def _kinds(table: str) -> dict[str, str]:
    """Kind by column, from the annotations of the row's class."""
    from sublight.budget import Part
    from sublight.explain.view import KernelRow, StepRow
    from sublight.finding import Finding

    if table == "parts":
        return {"name": "text", "group": "text", "ns": "integer", "share": "number"}
    row: Any = {"kernels": KernelRow, "steps": StepRow, "findings": Finding, "parts": Part}[table]
    hints = get_type_hints(row)
    return {f.name: PLAIN[hints[f.name]] for f in fields(row) if hints[f.name] in PLAIN}


def _rows(view: Any, findings: Sequence[Any], table: str) -> Sequence[Any]:
    made: dict[str, Callable[[], Sequence[Any]]] = {
        "kernels": lambda: view.kernels, "parts": lambda: view.budget.parts, "steps": lambda: view.step_rows,
        "findings": lambda: findings,
    }
    return made[table]()


def _library(name: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(
            f"{name} is not installed; expected it for .to_{extra}(): pip install 'sublight[{extra}]'"
        ) from None
