"""SL204: copies between host and device inside the step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sublight.budget import BLOCKED, EXPOSED_COPIES
from sublight.explain.view import View
from sublight.explain.words import ms, number, of_window
from sublight.finding import Finding

CODE, TITLE = "SL204", "host copies in the step"
SMALLEST_SHARE, MANY = 0.005, 10


def find(view: View) -> Iterable[Finding]:
    """Fires where copies to or from the host take 0.5 % of the window, or are one in twenty activities."""
    rows = [r for r in view.kernels if r.kind == "memcpy" and ("HtoD" in r.name or "DtoH" in r.name)]
    ns, count = sum(r.ns for r in rows), sum(r.count for r in rows)
    if view.share(ns) < SMALLEST_SHARE and (count < MANY or count < 0.05 * len(view.rows)):
        return
    a = view.trace.activities
    evidence = []
    for row in rows:
        mine = np.isin(a.name[view.rows], [i for i, n in enumerate(view.trace.names) if n == row.name])
        nbytes = int(a.nbytes[view.rows[mine]].sum())
        evidence.append(f"{row.name}: {number(row.count, 'copy')}, {nbytes:,} bytes, {ms(row.ns)}")
    pageable = any("Pageable" in r.name for r in rows)
    yield Finding(
        CODE, TITLE,
        f"{number(count, 'copy')} between host and device: {of_window(view, ns)}",
        tuple(evidence),
        ("Pin the host memory (pin_memory=True) and pass non_blocking=True; keep" if pageable else "Keep")
        + " the data on the device, or copy it once for many steps",
        "high", min(ns, view.budget[EXPOSED_COPIES]) + (view.budget[BLOCKED] if pageable else 0),
        ("an upper limit: copies that nothing hides" + (", and all time blocked, since a pageable copy makes the host "
         "wait" if pageable else ""),),
    )
