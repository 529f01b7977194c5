"""This file knows about collectives: what a rank has to send, and to move in its own memory."""

from __future__ import annotations

from dataclasses import dataclass

from sublight.ops.op import Op, Operand
from sublight.work import Message, Work


@dataclass(frozen=True, slots=True)
class Communication(Op):
    """One collective among `group` ranks. elements: of this rank's input (of its output for an all-gather).

    Memory: what is sent is read, what is received is written, once; results that may lie in place are not copied.
    Source: Chan et al., Collective communication: theory, practice and experience, CCPE 19(13), 2007; nccl-tests,
    PERFORMANCE.md, for the meaning of the sizes.
    """

    collective: str                      # as Message.collective
    group: int
    elements: int
    form: str
    inferred: bool = False               # the size of the group is the least that there can be

    def work(self) -> Work:
        n = max(self.group, 1)
        size = Operand(self.elements, self.form).nbytes
        own = size // n
        read, written = {
            "all_reduce": (size, size), "all_gather": (own, size - own), "reduce_scatter": (size - own, own),
            "all_to_all": (size - own, size - own), "broadcast": (0, 0), "send_recv": (0, 0),
        }[self.collective] if n > 1 else (0, 0)
        return Work.of(bytes_read=read, bytes_written=written, inferred=self.inferred,
                       messages=(Message(self.collective, n, size),))
