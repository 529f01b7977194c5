"""This file knows about fitting an operator family's form to measured rows, its held-out errors, and writing constants.

Errors are |predicted / measured - 1|, medians over rows that were not fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sublight.bound import bound
from sublight.device import by_key
from sublight.ops.op import Op
from sublight.predict.operators.fitted import nearest
from sublight.work import Work

# Devices of one chip: where one is held out, all are.
CHIPS = {"b200": ("b200", "gb200"), "gb200": ("b200", "gb200"), "b300": ("b300", "gb300"), "gb300": ("b300", "gb300")}
FEWEST = 20                              # fitted rows for constants of their own


@dataclass(frozen=True)
class Row:
    op: Any
    kind: str
    held: bool
    seconds: float


@dataclass(frozen=True)
class Fit:
    constants: Mapping[str, float]
    predicted: np.ndarray


def fit(rows: list[Row], form: Callable[[Mapping[str, float]], np.ndarray], first: Mapping[str, float],
        limits: Mapping[str, tuple[float, float]]) -> Fit | None:
    """Constants whose ln errors of the fitted rows are least, soft beyond 20 %; in logs, between their limits."""
    from scipy.optimize import least_squares

    measured = np.log([row.seconds for row in rows])
    learn = np.array([not row.held for row in rows])
    if learn.sum() < FEWEST:
        return None
    names = list(first)
    low, high = (np.log([limits[n][i] for n in names]) for i in (0, 1))

    def constants(x: np.ndarray) -> dict[str, float]:
        return dict(zip(names, np.exp(x).tolist(), strict=True))

    def errors(x: np.ndarray) -> np.ndarray:
        apart: np.ndarray = np.log(form(constants(x))) - measured
        return np.asarray(apart[learn])

    best = min((least_squares(errors, np.clip(np.log([first[n] for n in names]) + shift, low + 1e-6, high - 1e-6),
                              bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=60)
                for shift in (0.0, 0.3)), key=lambda found: found.cost)
    found = {n: float(f"{v:.4g}") for n, v in constants(best.x).items()}
    return Fit(found, form(found))


@dataclass
class Report:
    family: str
    out: Path
    kinds: Callable[[Any], tuple[str, ...]]
    lines: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, device: str, library: str, kind: str, rows: list[Row], found: Fit | None, at: np.ndarray,
    ) -> None:
        """at: sizes of each row, by which the nearest fitted one is found."""
        if found is None or not any(row.held for row in rows):
            return
        held = np.array([row.held for row in rows])
        measured = np.array([row.seconds for row in rows])
        errors = np.abs(found.predicted / measured - 1)[held]
        roof = np.array([_roof(row.op, device) for row in rows])
        self.lines.append({
            "device": device, "library": library, "kind": kind, "rows": len(rows), "held": int(held.sum()),
            "roofline": np.abs(roof / measured - 1)[held], "errors": errors,
            "neighbour": _neighbour(np.log(at), measured, np.array([_work(row.op) for row in rows]), held),
            "median": float(np.median(errors)), "p90": float(np.quantile(errors, 0.9)),
            "spread": float(1.4826 * np.median(np.abs(np.log(found.predicted / measured)[held]))),
            "constants": dict(found.constants)})

    def transfer(
        self, rows: Callable[[str, str], list[Row]], form: Callable[[list[Row], str, Mapping[str, float]], np.ndarray],
        devices: Iterable[str],
    ) -> None:
        """What constants of the nearest other device give on one that was never measured, with its own limits."""
        print(f"\n{self.family}: constants by transfer, the device's own left out")
        for device in devices:
            chip = frozenset(CHIPS.get(device, (device,)))
            errors, whose = [], set()
            for library in ("vllm", "sglang", "trtllm"):
                here = rows(device, library)
                for kind in sorted({row.kind for row in here}):
                    part = [row for row in here if row.kind == kind]
                    found = nearest(self.family, self.kinds(part[0].op), by_key(device), library, without=chip)
                    if found is not None:
                        whose.add(found.device)
                        measured = np.array([row.seconds for row in part])
                        errors.append(np.abs(form(part, device, found.values) / measured - 1))
            if errors:
                every = np.concatenate(errors)
                print(f"{device:14} {len(every):6} rows, median error {np.median(every):.1%}, "
                      f"from {', '.join(sorted(whose))}")

    def show(self) -> None:
        print(f"{'device':14} {'library':8} {'kind':28} {'rows':>6} {'held':>6} {'roofline':>9} {'neighbour':>9} "
              f"{'ours':>6} {'p90':>6}")
        for line in self.lines:
            values = " ".join(f"{n}={v:.3g}" for n, v in line["constants"].items())
            print(f"{line['device']:14} {line['library']:8} {line['kind']:28} {line['rows']:6} {line['held']:6} "
                  f"{np.median(line['roofline']):9.1%} {np.median(line['neighbour']):9.1%} {line['median']:6.1%} "
                  f"{line['p90']:6.1%}  {values}")
        for device in dict.fromkeys(line["device"] for line in self.lines):
            roof, near, ours = (np.concatenate([line[name] for line in self.lines if line["device"] == device])
                                for name in ("roofline", "neighbour", "errors"))
            print(f"{device:14} all {len(ours):6} held-out rows: roofline {np.median(roof):.1%}, neighbour "
                  f"{np.median(near):.1%}, ours {np.median(ours):.1%}, 90 % within {np.quantile(ours, 0.9):.1%}")

    def write(self, source: str) -> None:
        """One line for each set of constants, by device and library."""
        text = [f'source = "fitted on {source}"']
        for device, library in dict.fromkeys((line["device"], line["library"]) for line in self.lines):
            text += ["", f"[{device}.{library}]"]
            for line in self.lines:
                if (line["device"], line["library"]) == (device, library):
                    values = {**line["constants"], "spread": round(line["spread"], 3), "rows": line["rows"],
                              "held_out_median": round(line["median"], 3)}
                    text.append(f'"{line["kind"]}" = {{ {", ".join(f"{n} = {v!r}" for n, v in values.items())} }}')
        self.out.write_text("\n".join(text) + "\n", "utf-8")


def _neighbour(at: np.ndarray, measured: np.ndarray, work: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Errors of the nearest fitted row's time, scaled by operations."""
    from scipy.spatial import cKDTree

    _, nearest_row = cKDTree(at[~held]).query(at[held])
    found = measured[~held][nearest_row] * work[held] / work[~held][nearest_row]
    plain: np.ndarray = np.abs(found / measured[held] - 1)
    return plain


def _work(op: Op) -> float:
    return float(max(op.work().flops_total, 1))


def _roof(op: Op, device: str) -> float:
    """The pure roofline: operations and bytes at the peaks, nothing held in an L2."""
    limits, work = by_key(device).limits, op.work()
    least = bound(Work(flops=work.flops), limits)
    return max(least.seconds if least else 0.0, work.bytes_total / (limits.memory_bytes_per_second or float("inf")))
