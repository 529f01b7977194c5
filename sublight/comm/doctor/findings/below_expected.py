"""SL508: slower than the expected time of this hardware."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.comm.doctor.against import Against, against_expected
from sublight.comm.doctor.view import Located, View
from sublight.comm.doctor.wording import count, listed, name, rate, size, time
from sublight.finding import Finding

CODE, TITLE = "SL508", "below the expected time"
LEAST_SHARE = 0.5                  # of the sizes that lie above the interval


def find(view: View) -> Iterable[Located]:
    """One finding for each test (collective, nodes, GPUs a node) of which at least half of the sizes take longer than
    the
    expected time's 80 % interval; of several runs, their median counts."""
    for test in against_expected(view):
        late = [row for row in test.rows if row.median_seconds > row.expected.high]
        if late and len(late) >= LEAST_SHARE * len(test.rows):
            yield _finding(test)


def _finding(test: Against) -> Located:
    late = [row for row in test.rows if row.median_seconds > row.expected.high]
    worst = max(late, key=lambda row: row.median_seconds / row.expected.seconds)
    times = worst.median_seconds / worst.expected.seconds
    claim = (f"{name(test.collective)} on {count(test.nodes, 'nodes')} of {count(test.gpus_per_node, 'GPUs')} takes "
             f"longer than expected at {len(late)} of {count(len(test.rows), 'sizes')}: {times:.1f} times at "
             f"{size(worst.nbytes)}")
    evidence = [f"{size(row.nbytes)}: {time(row.median_seconds)}"
                + (f" ({rate(row.median_bus)})" if row.median_bus else "")
                + f", expected {time(row.expected.low)} to {time(row.expected.high)}, limited by {row.expected.limiter}"
                for row in sorted(late, key=lambda row: -row.median_seconds / row.expected.seconds)[:6]]
    said = worst.expected
    return Located(Finding(
        CODE, TITLE, claim, tuple(evidence),
        f"Look at what limits it by our account ({said.limiter}): sublight comm nccl shows what NCCL would choose "
        f"there, and sublight "
        "comm topology checks the node's wiring", "medium", None,
        ("other hardware than taken here? Say it with --on, such as --on hgx-h100:nics=4x200",
         f"expected from {said.basis}", *said.notes[:3],
         f"{count(test.runs, 'runs')}" + (f", the median counts; "
                                          f"on {listed(test.hosts, 8)}" if test.runs > 1 else ""))),
        nodes=test.hosts if test.runs == 1 and test.nodes == 1 else ())
