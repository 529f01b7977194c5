"""This file knows about a Finding: one thing to act on, with its evidence and what it could save at most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim about one device of a run.

    gain_ns_at_most is an upper limit in nanoseconds of the window: what the window would lose if this cost vanished
    and nothing else took its place. None where the finding is about what the file cannot tell.
    """

    code: str                            # stable: "SL101"
    title: str
    claim: str
    evidence: tuple[str, ...]
    action: str
    confidence: str                      # "high", "medium" or "low"
    gain_ns_at_most: int | None = None
    caveats: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        from html import escape

        gain = "cannot be told" if self.gain_ns_at_most is None else f"at most {self.gain_ns_at_most:,} ns"
        rows = [("claim", self.claim), *(("evidence", line) for line in self.evidence), ("do", self.action),
                ("gain", gain), ("confidence", self.confidence), *(("but", line) for line in self.caveats)]
        left = "<td style='text-align:left'>"
        body = "".join(f"<tr>{left}{label}</td>{left}{escape(text)}</td></tr>" for label, text in rows)
        return (f"<table><caption style='text-align:left'><b>{escape(self.code)} {escape(self.title)}</b></caption>"
                f"<tbody>{body}</tbody></table>")
