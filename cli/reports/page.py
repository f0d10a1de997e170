"""Parts of the HTML pages that commands write: one file each, which needs nothing else."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence

__all__ = ["html_heading", "html_page", "html_picture", "html_table"]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c2330; background: #fff; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; font-size: .93rem; }
th, td { border-bottom: 1px solid #d9dee7; padding: .35rem .6rem; text-align: left;
         vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.ok { color: #17713b; } .bad { color: #b3261e; font-weight: 700; }
pre { background: #f4f6fa; padding: 1rem; white-space: pre-wrap; overflow-wrap: anywhere; }
img { max-width: 100%; } .scroll { overflow-x: auto; }
"""


def html_heading(text: str) -> str:
    """A heading of plain text, which begins with a capital."""
    return f"<h2>{html.escape(text[0].upper() + text[1:])}</h2>"


def html_page(title: str, body: str) -> str:
    """A page; ``title`` is plain text, ``body`` is HTML."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{_STYLE}</style></head><body>
<h1>{html.escape(title)}</h1>
{body}
</body></html>
"""


def html_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], numeric: Sequence[int] = (),
) -> str:
    """A table that scrolls if it must; the columns ``numeric`` are aligned to the right."""
    def cell(tag: str, index: int, value: object) -> str:
        kind = ' class="n"' if index in numeric else ""
        text = f"{value:,}" if isinstance(value, int) else str(value)
        return f"<{tag}{kind}>{html.escape(text)}</{tag}>"

    head = "".join(cell("th", i, name) for i, name in enumerate(columns))
    body = "".join(
        "<tr>" + "".join(cell("td", i, value) for i, value in enumerate(row)) + "</tr>"
        for row in rows)
    return (f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
            f"</table></div>")


def html_picture(png: bytes, description: str) -> str:
    """A picture inside the page."""
    encoded = base64.b64encode(png).decode()
    return (f'<img alt="{html.escape(description)}" '
            f'src="data:image/png;base64,{encoded}">')
