"""One table for a terminal, a page and Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from sterna.cli.terminal.console import printer

__all__ = ["Table"]

_LONGEST_NAME = 18
_NUMBER = re.compile(r"-?[\d,]*(\.\d+)?(±[\d.]+)?%?|-")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns; a column with only numbers is right-aligned.

    >>> print(Table("sizes", ("part", "bits"), [("weights", 1769472)]).markdown())
    Sizes:
    <BLANKLINE>
    | part | bits |
    | --- | --: |
    | weights | 1,769,472 |
    """

    title: str | None
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def print(self, width: int | None = None) -> None:
        """Print it ``width`` characters wide, or as wide as the terminal, or COLUMNS, or 80."""
        table = RichTable(title=self.title, title_justify="left", title_style="bold",
                          box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
        for column, cells, numeric in self._columns():
            # Numbers and names are not wrapped; words may be.
            whole = numeric or all(
                len(cell) <= _LONGEST_NAME and " " not in cell for cell in cells)
            table.add_column(column, justify="right" if numeric else "left", overflow="fold",
                             no_wrap=whole and " " not in column)
        for row in self.rows:
            table.add_row(*map(_text, row))
        printer(width=width).print(table)

    def html(self) -> str:
        """Return it as HTML that scrolls if necessary, without the title."""
        kinds = [' class="n"' if numeric else "" for _, _, numeric in self._columns()]

        def row(tag: str, values: Sequence[object]) -> str:
            cells = "".join(f"<{tag}{kind}>{html.escape(_text(value))}</{tag}>"
                            for kind, value in zip(kinds, values, strict=True))
            return f"<tr>{cells}</tr>"

        body = "".join(row("td", values) for values in self.rows)
        return (f'<div class="scroll"><table><thead>{row("th", self.columns)}</thead>'
                f"<tbody>{body}</tbody></table></div>")

    def markdown(self) -> str:
        """Return it as Markdown, below its title."""
        rule = ["--:" if numeric else "---" for _, _, numeric in self._columns()]
        lines = ["| " + " | ".join(map(_text, line)) + " |"
                 for line in (self.columns, rule, *self.rows)]
        head = [f"{self.title[0].upper()}{self.title[1:]}:", ""] if self.title else []
        return "\n".join([*head, *lines])

    def _columns(self) -> list[tuple[str, list[str], bool]]:
        """Name and cells of each column, and whether they are all numbers."""
        found = []
        for index, column in enumerate(self.columns):
            cells = [_text(row[index]) for row in self.rows]
            found.append((column, cells, all(map(_NUMBER.fullmatch, cells))))
        return found


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4f}"
    return str(value)
