"""This file knows about a page that loads nothing and runs nothing: its frame, tables and escaped text.

Every text is escaped; the policy allows one style by its hash and no script.
"""

from __future__ import annotations

import base64
import hashlib
import html as markup
from collections.abc import Iterable, Sequence
from importlib import resources

from sublight.show.page_data import printable


def page(name: str, body: Iterable[str], *, style: str = "", footer: str = "") -> str:
    """The whole page, in ASCII. style: added to page.css."""
    from sublight import __version__

    css = resources.files("sublight.show").joinpath("page.css").read_text("ascii") + style
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    whole = "\n".join([
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{text(name)}</title>", f"<style>{css}</style>", "</head>", "<body>",
        f"<header><h1>{text(name)}</h1></header>", "<main>", *body, "</main>",
        f"<footer>sublight {__version__}. Made offline; this page loads nothing and runs nothing.{footer}</footer>",
        "</body>", "</html>", "",
    ])
    return whole.encode("ascii", "xmlcharrefreplace").decode("ascii")


def text(value: object) -> str:
    """Escaped, without control characters."""
    return markup.escape(printable(str(value)), quote=True)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> list[str]:
    """The first column holds words, the others figures."""
    cells = "".join(f'<th scope="col"{" class=n" if k else ""}>{text(label)}</th>' for k, label in enumerate(head))
    out = [f'<div class="scroll"><table aria-label="{text(caption)}"><thead><tr>{cells}</tr></thead><tbody>']
    for row in rows:
        cells = "".join(f"<td class={'n' if k else 'w'}>{text(cell)}</td>" for k, cell in enumerate(row))
        out.append(f"<tr>{cells}</tr>")
    return [*out, "</tbody></table></div>"]
