"""SL508: slower than the expected time of this hardware."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from sublight.comm.doctor.against import Against, Row, against_expected
from sublight.comm.doctor.view import Located, View
from sublight.comm.doctor.wording import count, listed, name, rate, size, time
from sublight.finding import Finding

CODE, TITLE = "SL508", "below the expected time"
LEAST_SHARE = 0.5                  # of the sizes that lie above the interval
LEAST_OVER = 1.1                   # of the expected time: an interval may be narrower than what matters
ALIKE = 1.25                       # largest over smallest ratio of tests that look like one cause
MOST_LISTED = 12


def find(view: View) -> Iterable[Located]:
    """Fires where, of a test (collective, nodes, GPUs a node), at least half of the sizes take longer than the expected
    time's 80 % interval and 1.1 times it; of several runs, their median counts. One finding for all such tests."""
    slow = []
    for test in against_expected(view):
        late = [row for row in test.rows if row.median_seconds > row.expected.high and _ratio(row) > LEAST_OVER]
        if late and len(late) >= LEAST_SHARE * len(test.rows):
            slow.append((test, late))
    if slow:
        yield _finding(sorted(slow, key=lambda found: -max(map(_ratio, found[1]))))


def _ratio(row: Row) -> float:
    return row.median_seconds / row.expected.seconds


def _named(test: Against) -> str:
    return f"{name(test.collective)} on {count(test.nodes, 'nodes')} of {count(test.gpus_per_node, 'GPUs')}"


def _finding(slow: list[tuple[Against, list[Row]]]) -> Located:
    test, late = slow[0]
    worst = max(late, key=_ratio)
    most = f"{_ratio(worst):.1f} times at {size(worst.nbytes)}"
    claim = (f"{_named(test)} takes longer than expected, {most}" if len(slow) == 1 else
             f"{len(slow)} tests take longer than expected, {_named(test)} most: {most}")
    evidence = [_said(*found) for found in slow[:MOST_LISTED]]
    if len(slow) > MOST_LISTED:
        evidence.append(f"and {len(slow) - MOST_LISTED} more")
    across = [median(map(_ratio, rows)) for found, rows in slow if found.nodes > 1]
    if len(across) > 1 and max(across) < ALIKE * min(across):
        evidence.append(f"all of them by about the same factor, {median(across):.1f}: a network of another rate than "
                        "taken would look like this")
    alone = slow[0][0] if len(slow) == 1 and test.runs == 1 and test.nodes == 1 else None
    return Located(Finding(
        CODE, TITLE, claim, tuple(evidence),
        f"Look at what limits it by our account ({worst.expected.limiter}): sublight comm nccl shows what NCCL would "
        "choose there, and sublight comm topology checks the node's wiring", "medium", None,
        ("other hardware than taken here? Say it with --on, such as --on hgx-h100:nics=4x200",
         f"expected from {worst.expected.basis}", *worst.expected.notes[:3],
         *(("where several groups of nodes ran a test, their median counts",) if test.runs > 1 else ()))),
        nodes=alone.hosts if alone else ())


def _said(test: Against, late: list[Row]) -> str:
    ratios = sorted(map(_ratio, late))
    worst = max(late, key=_ratio)
    span = f"{ratios[0]:.1f} to {ratios[-1]:.1f} times" if ratios[-1] > 1.05 * ratios[0] else f"{ratios[-1]:.1f} times"
    where = f" ({listed(test.hosts, 2)})" if test.runs == 1 and test.nodes == 1 else ""
    bus = f" ({rate(worst.median_bus)})" if worst.median_bus else ""
    return (f"{_named(test)}{where}: {len(late)} of {count(len(test.rows), 'sizes')}, {span}; {size(worst.nbytes)} "
            f"took {time(worst.median_seconds)}{bus}, expected {time(worst.expected.low)} to "
            f"{time(worst.expected.high)}, limited by {worst.expected.limiter}")
