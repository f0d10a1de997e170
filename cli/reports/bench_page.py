"""The benchmarks of mixers: attention as tables, drawing and page; streaming as a drawing."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sterna.cli.reports.page import Outcome, Verdict, html_figure, html_page, html_table
from sterna.cli.reports.vector import GREY, PALETTE, drawing, finish, svg_file, svg_of
from sterna.cli.terminal.tables import Table
from sterna.model.files import write_atomically

if TYPE_CHECKING:
    from sterna.model.study.attention_benchmark import AttentionResult, Cell

__all__ = ["attention_plot", "attention_tables", "misfits", "setting", "streaming_plot",
           "write_attention_report"]

_COLUMNS = ("contestant", "runs", "mean ms", "± ms", "median ms", "× softmax", "× fused", "memory")

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


def attention_tables(result: AttentionResult) -> list[Table]:
    """A table for each length; × are taken of medians."""
    return [Table(f"N {length:,}, batch {next(iter(result.at(length).values())).batch}",
                  _COLUMNS, _rows(result, length)) for length in result.lengths()]


def _rows(result: AttentionResult, length: int) -> list[tuple[str, ...]]:
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
        finish(axes, "N, tokens of a sequence", "ms per sequence", "both")
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
    verdict = Verdict(Outcome.NOTE, "ATTENTION TIMED", said[0] if said else "Nothing to compare.")
    caption = ("Median time of a call over the sequences in it. All contestants of a length were "
               "called in turn, so that what else the machine does hits all alike.")
    tables = "".join(map(html_table, attention_tables(result)))
    listed = "".join(f"<p>{html.escape(text)}</p>" for text in said[1:] + misfits(result))
    names = Table("the contestants", ("name", "what it is"), [
        (name, CONTESTANTS[name])
        for name in dict.fromkeys(cell.contestant for cell in result.cells)])
    return html_page("Attention by the length of the sequence", verdict, f"""
<p>{html.escape(setting(result))}</p>
{html_figure(plot, caption)}
{listed}
{html_table(names)}
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


# The later ones are thinner, so that curves that are the same are all seen.
_FORMS = {"full": (GREY, 1.4, "full attention"), "window": (PALETTE[3], 3.2, "plain window"),
          "sinks": (PALETTE[0], 1.2, "window and sinks")}


def streaming_plot(found: dict[str, Any], title: str) -> str:
    """The curves of ``StreamingResult.as_dict()`` as an SVG element."""
    plan = found["plan"]
    keys = plan["keys"]
    labels = {"full": "all keys", "window": f"the newest {keys}",
              "sinks": f"the first {plan['sinks']} and the newest {plan['size']}"}
    with drawing(9, 3.6) as figure:
        axes = figure.add_subplot()
        for each in found["forms"]:
            colour, width, name = _FORMS[each["form"]]
            curve = each["bits_per_byte"]
            places = [(at + 0.5) * keys / 1000 for at in range(len(curve))]
            axes.plot(places, curve, "-", color=colour, linewidth=width,
                      label=f"{name}: {labels[each['form']]}")
            if each["tokens"] < plan["tokens"]:
                axes.plot(places[-1:], curve[-1:], "x", color=colour, ms=6)
        axes.axvline(keys / 1000, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_xlim(0, plan["tokens"] / 1000)
        axes.set_title(title, fontsize=9, parse_math=False)
        finish(axes, "thousand tokens read", "bits per byte")
        figure.legend(loc="outside upper left", ncols=3)
        return svg_of(figure, "streaming", "bits per byte over the tokens of a long text")
