"""This file knows about the markdown of a diagnosis: to paste into an issue or a ticket."""

from __future__ import annotations

from sublight.comm.doctor.diagnosis import Diagnosis
from sublight.show.doctor_rows import against_rows, node_rows, summary, test_rows

SIGNS = "\\`*_|<>[]"


def markdown(diagnosis: Diagnosis) -> str:
    """Verdict, findings whole, then the tables."""
    lines = [f"**{_plain(diagnosis.verdict)}**", "", _plain(summary(diagnosis)), ""]
    for located in diagnosis.findings:
        f = located.finding
        lines += [f"- **{f.code} {f.title}** (confidence {f.confidence}): {_plain(f.claim)}."]
        lines += [f"  - {_plain(line)}" for line in f.evidence]
        lines += [f"  - do: {_plain(f.action)}."]
        lines += [f"  - but: {_plain(line)}." for line in f.caveats]
    if not diagnosis.findings:
        lines.append("No findings.")
    if rows := test_rows(diagnosis):
        lines += ["", *_table(("test", "nodes x GPUs", "runs", "failed", "not run", "median "
            "GB/s", "lowest", "highest"), rows)]
    if nodes := node_rows(diagnosis):
        head = ("node", *(label for label, _ in nodes[0][1]))
        lines += ["", "Median over a node's pairs, GB/s (failed):", "",
                  *_table(head, [(host, *(cell for _, cell in cells)) for host, cells in nodes])]
    if against := against_rows(diagnosis):
        lines += ["", f"Measured against expected ({_plain(diagnosis.node_from)}):", "",
                  *_table(("test", "size", "measured", "bus GB/s", "expected", "ratio"), against)]
    return "\n".join(lines) + "\n"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(_plain(h) for h in head)} |", f"|:--|{'--:|' * (len(head) - 1)}",
            *(f"| {' | '.join(_plain(cell) for cell in row)} |" for row in rows)]


def _plain(text: str) -> str:
    for sign in SIGNS:
        text = text.replace(sign, "\\" + sign)
    return text
