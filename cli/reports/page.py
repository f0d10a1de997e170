"""Parts of the HTML pages that commands write, each a single self-contained file.

All have one style: light or dark by the reader's setting, readable from 360 pixels on (wider
parts scroll in a box), and a verdict at the top.
"""

from __future__ import annotations

import enum
import html
from collections.abc import Sequence
from dataclasses import dataclass

from sterna.cli.terminal.tables import Table

__all__ = ["Outcome", "Verdict", "html_figure", "html_heading", "html_meters", "html_page",
           "html_table"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --faint: #5b6575; --paper: #fff;
        --soft: #f4f6fa; --line: #d9dee7; --pass: #17713b; --pass-soft: #e6f4eb;
        --fail: #b3261e; --fail-soft: #fcebea; --note: #2b5c9e; --note-soft: #e9f0f9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e7ee; --faint: #9aa5b5; --paper: #14181f; --soft: #1d232d; --line: #343c49;
          --pass: #6fd199; --pass-soft: #17301f; --fail: #ff8a80; --fail-soft: #3a1b1a;
          --note: #8bb8f0; --note-soft: #1a283b; }
}
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; color: var(--ink); background: var(--paper);
       overflow-wrap: break-word; }
h1 { margin: 0 0 1rem; line-height: 1.2; } h2 { margin: 2.4rem 0 .6rem; line-height: 1.25; }
p { max-width: 46rem; }
.verdict { padding: 1rem 1.3rem; border-left: .5rem solid; border-radius: .3rem; }
.verdict p { margin: 0; color: var(--ink); }
.verdict .word { font-size: 2.4rem; line-height: 1.15; font-weight: 750; color: inherit; }
.verdict.pass { color: var(--pass); background: var(--pass-soft); }
.verdict.fail { color: var(--fail); background: var(--fail-soft); }
.verdict.note { color: var(--note); background: var(--note-soft); }
.verdict dl { display: flex; flex-wrap: wrap; gap: .6rem 2.2rem; margin: .9rem 0 0; }
.verdict dd { margin: 0; font-size: 1.6rem; line-height: 1.2; font-weight: 650;
              color: var(--ink); font-variant-numeric: tabular-nums; }
.verdict dt { font-size: .85rem; color: var(--faint); }
table { border-collapse: collapse; width: 100%; font-size: .93rem; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .6rem; text-align: left;
         vertical-align: top; overflow-wrap: normal; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { background: var(--soft); padding: 1rem; white-space: pre-wrap; overflow-wrap: anywhere; }
code { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; max-width: 100%; }
figure { margin: 1rem 0; }
figure svg { display: block; width: 100%; height: auto; min-width: 40rem; }
figure svg.floor { max-width: 44rem; max-height: 44rem; min-width: 0; }
figure svg text { fill: currentColor; font-family: system-ui, sans-serif !important; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0;
          font-size: .93rem; }
.legend svg { width: .8rem; height: .8rem; margin-right: .35rem; }
.meters { display: grid; grid-template-columns: max-content max-content 1fr; gap: .5rem .9rem;
          align-items: center; font-variant-numeric: tabular-nums; }
.meters .track { background: var(--soft); border: 1px solid var(--line); border-radius: .25rem;
                 height: 1.1rem; overflow: hidden; }
.meters .track span { display: block; height: 100%; background: var(--note); }
.meters .track .over { background: var(--fail); }
@media (max-width: 40rem) {
  .meters { grid-template-columns: 1fr max-content; }
  .meters .track { grid-column: 1 / -1; margin-bottom: .4rem; }
}
figcaption { max-width: 46rem; color: var(--faint); font-size: .93rem; }
"""


class Outcome(enum.StrEnum):
    """The outcome of a verdict, and its colour."""

    PASS = "pass"
    """All comparisons agreed, or all requirements were met."""
    FAIL = "fail"
    """A comparison or requirement failed."""
    NOTE = "note"
    """Nothing was compared: the page only states figures."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The top of a page: one to three large words, a sentence, the most important numbers."""

    outcome: Outcome
    word: str
    sentence: str
    figures: Sequence[tuple[str, str]] = ()

    def html(self) -> str:
        """The verdict as a section of a page."""
        figures = "".join(
            f"<div><dd>{html.escape(value)}</dd><dt>{html.escape(name)}</dt></div>"
            for value, name in self.figures)
        listed = f"<dl>{figures}</dl>" if figures else ""
        return (f'<section class="verdict {self.outcome.value}">'
                f'<p class="word">{html.escape(self.word)}</p>'
                f"<p>{html.escape(self.sentence)}</p>{listed}</section>")


def html_heading(text: str) -> str:
    """A capitalised heading of plain text; the part after a colon becomes a paragraph."""
    head, _, rest = (text[0].upper() + text[1:]).partition(": ")
    # Not capitalised: it may begin with a name.
    below = f"<p>{html.escape(rest)}</p>" if rest else ""
    return f"<h2>{html.escape(head)}</h2>{below}"


def html_page(title: str, verdict: Verdict, body: str) -> str:
    """A page; ``title`` is plain text, ``body`` is HTML."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{_STYLE}</style></head><body>
<h1>{html.escape(title)}</h1>
{verdict.html()}
{body}
</body></html>
"""


def html_table(table: Table) -> str:
    """A table below its title."""
    return (html_heading(table.title) if table.title else "") + table.html()


def html_meters(meters: Sequence[tuple[str, float, str]]) -> str:
    """Bars for shares of a whole: name, share (above 1 if exceeded), and text."""
    return '<div class="meters">' + "".join(
        f'<span class="name">{html.escape(name)}</span><span>{html.escape(text)}</span>'
        f'<div class="track"><span class="{"over" if share > 1 else "within"}" '
        f'style="width: {100 * min(share, 1):.4g}%"></span></div>'
        for name, share, text in meters) + "</div>"


def html_figure(svg: str, caption: str = "") -> str:
    """A drawing inside the page, with a plain-text caption below."""
    below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return f'<figure><div class="scroll">{svg}</div>{below}</figure>'
