"""This file knows about how a trial of a kernel ended: right, or in which way not."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

PASSED = "passed"
WRONG = "wrong"                          # values beyond their error
CHEATED = "rejected"                     # it broke a rule of the arena
RAISED = "raised"
CRASHED = "crashed"                      # a signal
EXITED = "exited"                        # ended its process by itself
HUNG = "hung"
MEMORY = "out of memory"
REFUSED = "refused"                      # the kernel says itself that it cannot
KINDS = (PASSED, WRONG, CHEATED, RAISED, CRASHED, EXITED, HUNG, MEMORY, REFUSED)
OF_MEMORY = ("MemoryError", "can't allocate memory", "bad_alloc", "OutOfMemory", "out of memory")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One of KINDS, and what was seen, in words."""

    kind: str = PASSED
    said: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """It may be used: nothing that it did is wrong. A refusal is no fault."""
        return self.kind in (PASSED, REFUSED)

    def __str__(self) -> str:
        return self.kind if not self.said else f"{self.kind}: {'; '.join(self.said)}"

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "said": list(self.said)}


class Ended(Exception):  # noqa: N818  (an ending, which may be no error)
    """A kernel's process is no more, or answered with an error; `outcome` says how."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(str(outcome))
        self.outcome = outcome


def of_error(said: str) -> Outcome:
    """Of an exception that the kernel raised."""
    return Outcome(MEMORY if any(word in said for word in OF_MEMORY) else RAISED, (said,))


def of_exit(code: int | None, printed: str) -> Outcome:
    """Of a process that ended by itself: the code as of os.waitstatus_to_exitcode, and the last that it printed."""
    last = (f"it printed last: {printed}",) if printed else ()
    if any(word in printed for word in OF_MEMORY):
        return Outcome(MEMORY, last)
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in signal.Signals._value2member_map_ else f"signal {-code}"
        return Outcome(CRASHED, (name, *last))
    return Outcome(EXITED, (f"with code {code}" if code is not None else "closed its channel", *last))
