"""This file knows about a Budget: where every nanosecond of a window went, for one device.

Each nanosecond has one owner. Owners rank: compute kernels > communication > copies > idle; inside each of them by
the order of the parts below. So the parts of a window sum to it exactly, and a window is the sum of its pieces'
windows.
"""

from __future__ import annotations

from dataclasses import dataclass

COMPUTE = (
    "gemm", "grouped gemm", "attention", "convolution", "recurrent", "routing", "normalisation", "position",
    "kv cache", "activation", "softmax/loss", "optimizer", "embedding", "sampling", "quantise", "copy", "reduction",
    "elementwise", "scan/sort", "random", "memory", "framework", "unclassified",
)
# What communication kernels do. Where one kernel both moves data and waits for its peers (NCCL, multimem), the
# two cannot be told apart on one rank.
COMMUNICATION = {
    "communication: transfer": "exposed communication: transfer",
    "communication": "exposed communication",
    "communication: wait": "exposed communication: waiting",
}
EXPOSED_COPIES = "exposed copies"
BLOCKED, STARVED, DEPENDENCY = "idle: blocked", "idle: launch-starved", "idle: dependency"
OUTSIDE_STEP, OVERHEAD, UNEXPLAINED = "idle: outside a step", "idle: profiler overhead", "idle: unexplained"
# CPU-only traces: the thread runs no operator, while another thread of the process does, or none
OTHER_THREADS, OUTSIDE_OPS = "idle: other threads run operators", "idle: outside operators"
IDLE = (BLOCKED, STARVED, DEPENDENCY, OUTSIDE_STEP, OVERHEAD, UNEXPLAINED, OTHER_THREADS, OUTSIDE_OPS)

PARTS: tuple[str, ...] = (*COMPUTE, *COMMUNICATION.values(), EXPOSED_COPIES, *IDLE)
PART_INDEX = {name: i for i, name in enumerate(PARTS)}
GROUPS: dict[str, str] = (
    dict.fromkeys(COMPUTE, "compute") | dict.fromkeys(COMMUNICATION.values(), "communication")
    | {EXPOSED_COPIES: "copies"} | dict.fromkeys(IDLE, "idle")
)


@dataclass(frozen=True, slots=True)
class Part:
    """A named share of a window, in nanoseconds."""

    name: str
    ns: int

    @property
    def group(self) -> str:
        """"compute", "communication", "copies" or "idle"."""
        return GROUPS[self.name]


@dataclass(frozen=True, slots=True)
class Communication:
    """Time with communication in flight. Overlapped time stands beside the parts, never inside them.

    union_ns = hidden_ns + exposed_ns; hidden has a compute kernel beside it, exposed has none (copies do not hide).
    wait_ns sums the durations of kernels that only wait; None where transfer and waiting share kernels and none
    only waits. undivided_ns sums the durations of those that do both.
    """

    union_ns: int
    hidden_ns: int
    exposed_ns: int
    wait_ns: int | None
    undivided_ns: int

    def __post_init__(self) -> None:
        assert self.union_ns == self.hidden_ns + self.exposed_ns, "communication does not add up"


@dataclass(frozen=True, slots=True)
class Budget:
    """Where a window went: parts that sum to it, in the order of PARTS, none of them empty."""

    window_ns: int
    parts: tuple[Part, ...]
    communication: Communication

    def __post_init__(self) -> None:
        total = sum(part.ns for part in self.parts)
        assert total == self.window_ns, f"the parts sum to {total} ns, the window has {self.window_ns} ns"
        assert all(part.ns > 0 for part in self.parts), "a part is empty or negative"

    def __getitem__(self, name: str) -> int:
        """Nanoseconds of a part; 0 if the window has none of it. KeyError for a name that is no part."""
        if name not in PART_INDEX:
            raise KeyError(name)
        return next((part.ns for part in self.parts if part.name == name), 0)

    def group_ns(self, group: str) -> int:
        """Nanoseconds of "compute", "communication", "copies" or "idle"."""
        return sum(part.ns for part in self.parts if part.group == group)

    @property
    def idle_ns(self) -> int:
        return self.group_ns("idle")

    @property
    def busy_ns(self) -> int:
        return self.window_ns - self.idle_ns

    def _repr_html_(self) -> str:
        """A small table for notebooks: the parts, largest first inside each group, and the window that they sum to."""
        groups = ("compute", "communication", "copies", "idle")
        rows = sorted(self.parts, key=lambda p: (groups.index(p.group), -p.ns))
        body = "".join(
            f"<tr><td style='text-align:left'>{part.name}</td><td>{part.ns:,}</td>"
            f"<td>{part.ns / self.window_ns:.2%}</td></tr>" for part in rows
        )
        return ("<table><thead><tr><th style='text-align:left'>part</th><th>ns</th><th>share</th></tr></thead>"
                f"<tbody>{body}<tr><td style='text-align:left'><b>= window</b></td><td><b>{self.window_ns:,}</b></td>"
                "<td></td></tr></tbody></table>")
