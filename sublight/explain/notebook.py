"""This file knows about an explanation in a notebook: its verdicts, budgets and findings as small tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from sublight.explain.headline import headline
from sublight.explain.words import ms

if TYPE_CHECKING:
    from sublight.explain import Explained

MOST_DEVICES = 4


def notebook(devices: Sequence[Explained]) -> str:
    """HTML for `_repr_html_`: every text escaped, no script, no style sheet."""
    out = [_device(explained) for explained in devices[:MOST_DEVICES]]
    if len(devices) > MOST_DEVICES:
        out.append(f"<p>and {len(devices) - MOST_DEVICES} more devices</p>")
    return "".join(out)


def _device(explained: Explained) -> str:
    view = explained.view
    rank = "" if view.trace.rank is None else f"rank {view.trace.rank}, "
    rows = "".join(
        f"<tr><td>{escape(f.code)}</td><td style='text-align:left'>{escape(f.title)}</td>"
        f"<td>{'' if f.gain_ns_at_most is None else f'≤ {ms(f.gain_ns_at_most)}'}</td></tr>"
        for f in explained.findings
    )
    findings = f"<table><tbody>{rows}</tbody></table>" if rows else ""
    return (f"<p><b>{escape(rank + view.title)}</b><br>{escape(headline(view))}</p>"
            f"{view.budget._repr_html_()}{findings}")
