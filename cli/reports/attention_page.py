"""The benchmark of attention as tables, as a drawing and as a page."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import TYPE_CHECKING

from sterna.cli.reports.page import Verdict, html_figure, html_heading, html_page, html_table
from sterna.cli.reports.vector import GREY, PALETTE, drawing, svg_file, svg_of
from sterna.model.files import write_atomically

if TYPE_CHECKING:
    from sterna.model.study.attention_benchmark import AttentionResult, Cell

__all__ = ["COLUMNS", "attention_plot", "misfits", "rows", "setting", "write_attention_report"]

COLUMNS = ("contestant", "runs", "mean ms", "± ms", "median ms", "× softmax", "× fused", "memory")

_STYLES = {"softmax": "-", "softmax fused": "-", "softmax causal": "--", "linear": "-",
           "linear causal": "--", "mlgru": "-", "mlgru scan": ":"}
_COLOURS = {"softmax": PALETTE[3], "softmax fused": PALETTE[1], "softmax causal": PALETTE[1],
            "linear": PALETTE[0], "linear causal": PALETTE[0], "mlgru": PALETTE[2],
            "mlgru scan": PALETTE[2]}


def setting(result: AttentionResult) -> str:
    """What was timed, and where, in one line."""
    from sterna.model.study.attention_benchmark import PARTS
    asked, machine = result.settings, result.machine
    threads = f"{machine['threads']} thread" + "s" * (machine["threads"] != 1)
    return (f"{PARTS[asked.part]}, {'forward and backward' if asked.backward else 'forward'}; "
            f"d {asked.d}, {asked.heads} heads, float32; {machine['processor']}, {threads}, "
            f"{machine['clock']} time, {'memory kept between runs, ' * machine['memory_kept']}"
            f"torch {machine['torch']}")


def rows(result: AttentionResult, length: int) -> list[tuple[str, ...]]:
    """The lines of a length, as :data:`COLUMNS` names them; × are taken of medians."""
    from sterna.model.study.attention_benchmark import FUSED, MATERIALISED, ratios
    cells = result.at(length)
    by_base = [ratios(cells, base) for base in (MATERIALISED, FUSED)]
    found: list[tuple[str, ...]] = []
    for name, cell in cells.items():
        memory = _memory(cell.needs_bytes)
        if not cell.seconds:
            found.append((name, "no fit", "", "", "", "", "", memory))
            continue
        times = (_number(1000 * value) for value in (cell.mean, cell.deviation, cell.median))
        found.append((name, str(len(cell.seconds)), *times,
                      *(_number(base[name]) if base else "" for base in by_base), memory))
    return found


def misfits(result: AttentionResult) -> list[str]:
    """What was not run, and what it would have needed."""
    return [f"{cell.contestant} at N {cell.length:,}, batch {cell.batch}, needs "
            f"{_memory(cell.needs_bytes)} and may take {_memory(cell.may_take_bytes or 0)}: not "
            f"run." for cell in result.cells if not cell.seconds]


def attention_plot(result: AttentionResult) -> str:
    """Milliseconds of a sequence by its length, both axes logarithmic, as an SVG element."""
    with drawing(9, 5.0) as figure:
        axes = figure.add_subplot()
        axes.set_xscale("log")
        axes.set_yscale("log")
        for name in dict.fromkeys(cell.contestant for cell in result.cells):
            cells = [cell for cell in result.cells if cell.contestant == name]
            ran = [cell for cell in cells if cell.seconds]
            axes.plot([cell.length for cell in ran], [_per_sequence(cell) for cell in ran],
                      "o" + _STYLES[name], color=_COLOURS[name], label=name, ms=4)
            for cell in cells:
                if not cell.seconds:    # at the upper edge, wherever that is
                    axes.plot([cell.length], [0.98], "x", color=_COLOURS[name], ms=7,
                              transform=axes.get_xaxis_transform(), clip_on=False)
        if any(not cell.seconds for cell in result.cells):
            axes.plot([], [], "kx", label="does not fit in memory")
        axes.set_xticks(result.lengths(), [f"{length:,}" for length in result.lengths()])
        axes.minorticks_off()
        axes.set_xlabel("N, tokens of a sequence")
        axes.set_ylabel("ms for each sequence")
        axes.grid(color=GREY, alpha=0.3, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper left", ncols=4)
        return svg_of(figure, "attention", "time to mix a sequence by its length")


def write_attention_report(folder: Path, result: AttentionResult) -> list[Path]:
    """Write ``attention.json``, ``attention.svg`` and ``attention.html``; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    plot = attention_plot(result)
    data = json.dumps(result.as_dict(), indent=1) + "\n"
    return [write_atomically(folder / f"attention.{kind}", text) for kind, text in (
        ("json", data), ("svg", svg_file(plot)), ("html", _page(result, plot)))]


def _page(result: AttentionResult, plot: str) -> str:
    from sterna.model.study.attention_benchmark import CONTESTANTS, findings
    said = findings(result)
    verdict = Verdict.note("ATTENTION TIMED", said[0] if said else "Nothing to compare.")
    caption = ("Median time of a call over the sequences in it. All contestants of a length were "
               "called in turn, so that what else the machine does hits all alike.")
    tables = "".join(
        html_heading(f"N {length:,}, batch {next(iter(result.at(length).values())).batch}")
        + html_table(COLUMNS, rows(result, length), range(1, len(COLUMNS)))
        for length in result.lengths())
    listed = "".join(f"<p>{html.escape(text)}</p>" for text in said[1:] + misfits(result))
    names = [(name, CONTESTANTS[name])
             for name in dict.fromkeys(cell.contestant for cell in result.cells)]
    return html_page("Attention by the length of the sequence", verdict, f"""
<p>{html.escape(setting(result))}</p>
{html_figure(plot, caption)}
{listed}
{html_heading("the contestants")}
{html_table(("name", "what it is"), names)}
<p>× softmax and × fused: how many times as fast as softmax attention that writes its matrix, and
as the fused one, by medians.</p>
{tables}""")


def _per_sequence(cell: Cell) -> float:
    return 1000 * cell.median / cell.batch


def _number(value: float) -> str:
    """Three digits.

    >>> [_number(each) for each in (0.01234, 5.678, 1234.5)]
    ['0.0123', '5.68', '1,234']
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _memory(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
