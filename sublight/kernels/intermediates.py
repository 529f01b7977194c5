"""This file knows about roundings on the way that a kernel may make or leave, and what it is compared with then.

Each permitted way has an exact result of its own: the reference, computed in float64 with that one value rounded. What
a kernel returned is compared with the nearest of them as a whole: it is moved by how that one differs from the
reference. So what is left is the error of the kernel itself, and a cast that truncates shows whichever way it took. A
value that lies at a tie may still be rounded the other way: bounds allow one unit in its last place, not half.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from sublight.kernels.rounding import DTYPES, half_ulp

Tensor: TypeAlias = Any


def moved(values: Mapping[str, Tensor], exact: Mapping[str, Tensor], ways: Iterable[Mapping[str, Tensor]], *,
          form: str | None) -> dict[str, Tensor]:
    """values, moved from the way whose `out` is nearest to exact; the names that exact has.

    Distances are counted in last places of the format of out, in which all elements tell ways apart alike; None: of a
    quantised output, as they are.
    """
    unit = half_ulp(exact["out"].nan_to_num(0.0), form) if form else 1.0
    nearest, least = exact, _distance(values["out"], exact["out"], unit)
    for way in ways:
        if (far := _distance(values["out"], way["out"], unit)) < least:
            nearest, least = way, far
    shifts = {} if nearest is exact else {name: (exact[name] - nearest[name]).nan_to_num(0.0) for name in exact}
    return {name: value + shifts[name] if name in shifts else value for name, value in values.items()}


def cast(value: Tensor, form: str) -> Tensor:
    """A float64 value rounded to a format, by way of fp32 as kernels do."""
    return value.float().to(DTYPES[form]).double()


def _distance(one: Tensor, other: Tensor, unit: Tensor | float) -> float:
    return float(((one - other).nan_to_num(0.0, 0.0, 0.0) / unit).square().sum())
