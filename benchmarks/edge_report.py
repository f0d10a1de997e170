"""Tables and a picture from the record of ``benchmarks/edge.py``."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
from edge_contestants import BASE
from edge_peers import PRODUCT_BASES
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from sterna.cli.terminal.tables import Table
from sterna.model.files import write_atomically

__all__ = ["all_tables", "draw", "left_out", "markdown", "write_reports"]

Record = dict[str, Any]


def figure(value: float) -> str:
    """A number with three digits, whatever its size.

    >>> [figure(value) for value in (0.01234, 1.234, 56.78, 1234.5)]
    ['0.0123', '1.23', '56.8', '1,234']
    """
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    digits = 2
    while value < 10 ** (2 - digits) and digits < 6:
        digits += 1
    return f"{value:.{digits - 1 if value >= 10 else digits}f}"


def times(value: float) -> str:
    """A ratio, with two decimals if it is below 10.

    >>> [times(value) for value in (0.123, 1.234, 12.34)]
    ['0.12', '1.23', '12.3']
    """
    return f"{value:.2f}" if value < 9.995 else figure(value)


def states(measured: Record) -> list[str]:
    """The measured ones of warm and cold."""
    return [state for state in ("warm", "cold") if state in measured]


def all_tables(record: Record) -> list[Table]:
    """Every table of a record."""
    return [*file_tables(record), *speed_tables(record), *product_tables(record)]


def speed_tables(record: Record) -> Iterator[Table]:
    """Medians of a step and of a prefill: a row per form, a column per size."""
    count = record["settings"]["prefill_tokens"]
    for part, what, unit, scale in (("step", "One token", "µs", 1.0),
                                    ("prefill", f"{count} tokens", "ms", 1e-3)):
        models = [model for model in record["models"] if model.get(part)]
        # Cold caches hardly change a prefill, which reads the weights once for all its tokens.
        for state in states(models[0][part])[:2 if part == "step" else 1] if models else ():
            cells = {f"{model['d']} x {model['dff']}": {
                name: f"{figure(scale * each['us'][1])}, {times(each['speed'][BASE][1])}"
                if BASE in each["speed"] else figure(scale * each["us"][1])
                for name, each in model[part][state].items()} for model in models}
            yield by_size(f"{what}, {state}: {unit}, times as fast as float32", "d x dff", cells)


def file_tables(record: Record) -> Iterator[Table]:
    """Files and loading: a row per form, a column per size."""
    models = [model for model in record["models"] if model["files"]]
    for title, first, second in (
        ("File: MB, bits per ternary weight",
         ("bytes", 1e-6, figure), ("bits_per_weight", 1, times)),
        ("Loading: ms of the session, peak MiB", ("load_ms", 1, figure), ("peak_mib", 1, figure)),
    ):
        cells = {f"{model['d']} x {model['dff']}": {
            name: ", ".join(show(scale * each[key]) if key in each else "-"
                            for key, scale, show in (first, second))
            for name, each in model["files"].items()} for model in models}
        if cells:
            yield by_size(title, "d x dff", cells)


def product_tables(record: Record) -> Iterator[Table]:
    """Matrix-vector products: a row per kernel, a column per shape."""
    products = record["products"]
    for state in states(products[0]) if products else ():
        cells = {f"{product['columns']} x {product['rows']}": {
            name: ", ".join([figure(each["us"][1]), *(
                times(each["speed"][base][1]) if base in each["speed"] else "-"
                for base in PRODUCT_BASES)])
            for name, each in product[state].items()} for product in products}
        yield by_size(f"Product, {state}: µs, times as fast as float32 and as TQ2_0",
                      "product", cells)


def by_size(title: str, what: str, cells: dict[str, dict[str, str]]) -> Table:
    """Join the cells of each size, by name, into one table."""
    names = dict.fromkeys(name for column in cells.values() for name in column)
    return Table(title, [what, *cells],
                 [[name, *(column.get(name, "-") for column in cells.values())] for name in names])


def left_out(record: Record) -> dict[str, str]:
    """Contestants that could not be measured, with reasons."""
    found = dict(record["missing"])
    for model in record["models"]:
        for name, reason in model["failed"].items():
            found[f"d {model['d']}, {name}"] = reason
    for product in record["products"]:
        for name, reason in product["failed"].items():
            found[f"{product['columns']} x {product['rows']}, {name}"] = reason
    return found


def _markdown_table(table: Table) -> str:
    lines = [f"**{table.title}**", "", "| " + " | ".join(table.columns) + " |",
             "|---" + "|---:" * (len(table.columns) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in table.rows]
    return "\n".join(lines) + "\n"


def _items(lines: list[str]) -> str:
    return "\n".join(textwrap.fill(line, 98, initial_indent="- ", subsequent_indent="  ",
                                   break_on_hyphens=False) for line in lines)


def _said(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _listed(values: dict[str, object]) -> str:
    return "; ".join(f"{key} {_said(value)}" for key, value in values.items())


def markdown(record: Record, picture: str) -> str:
    """The page: method, picture and every table."""
    settings = record["settings"]
    absent = _items([f"{name}: {reason}" for name, reason in left_out(record).items()])
    return f"""\
# Edge benchmark

Pick the [ONNX form](onnx.md) for your model's size: speed, file and memory of every form against
float32, PyTorch and llama.cpp's ternary kernels. `benchmarks/edge.py` writes this page; run it on
your own machine. Made on {record['date']} with

```console
{record['command']}
```

{_items([
    f"Machine: {_listed(record['machine'])}.",
    f"Versions: {_listed(record['versions'])}.",
    f"Models: random ternary weights, {settings['layers']} layers, vocabulary "
    f"{settings['vocab']}, profile {settings['profile']}.",
    f"Rounds: {settings['rounds']}, a fifth for prefill; at most "
    f"{figure(settings['seconds'])} s for a measurement."])}

![Speed beside the float32 ONNX graph]({picture})

## How to read it

Cells are medians; quartiles and more are in the `.json` beside this page. The machine is shared:
contestants take turns in rotating order, and ratios are taken within a round. One thread,
processor time. At best, ratios carry over to machines of the same family.

- *warm*: after an untimed call. *cold*: after reading more memory than the caches hold.
- *bits per ternary weight*: of the whole file, embedding and tables included.
- *ms of the session*: from file (in page cache) to onnxruntime session. *peak*: growth of resident
  memory, without libraries. Medians of {settings['probes']}.
- A step is one call from Python, batch 1; a prefill one with {settings['prefill_tokens']} tokens.
- A product maps float32 vector to float32 vector, quantisation included. llama.cpp computes a
  graph of one `ggml_mul_mat`; Sterna calls its operators' kernel directly.

{"Not measured:" + chr(10) * 2 + absent + chr(10) * 2 if absent else ""}\
## Step and prefill

{chr(10).join(_markdown_table(each) for each in speed_tables(record)) or "Not measured." + chr(10)}
## Files

{chr(10).join(_markdown_table(each) for each in file_tables(record)) or "Not measured." + chr(10)}
## Matrix-vector products

A shape is input length x output length.

{chr(10).join(_markdown_table(each) for each in product_tables(record)) or "Not measured."}"""


def write_reports(record: Record, output: Path) -> None:
    """Write the page and its picture beside ``output``."""
    picture = output.with_suffix(".svg")
    write_atomically(picture, draw(record))
    write_atomically(output.with_suffix(".md"), markdown(record, picture.name))


BASES = (BASE, PRODUCT_BASES[0])
COLOURS = ("#8a94a3", "#2f6f5e", "#d1495b", "#4a7fb5", "#edae49", "#8d6a9f", "#5fad8c", "#a3623a",
           "#1f3b57")


def _groups(record: dict[str, Any]) -> list[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """For each panel: title, and label and results (by cache state) of each group in it."""
    models, products = record["models"], record["products"]
    tokens = record["settings"]["prefill_tokens"]
    panels = [
        ("one token", [(f"d {m['d']}", m["step"]) for m in models if "step" in m]),
        (f"{tokens} tokens", [(f"d {m['d']}", m["prefill"]) for m in models if "prefill" in m]),
        ("matrix-vector product", [(f"{p['columns']} x {p['rows']}", p) for p in products])]
    return [panel for panel in panels if panel[1]]


def speed(results: dict[str, Any], name: str) -> list[float] | None:
    """Quartiles of the speedup of ``name`` over float32, if both were measured."""
    ratios = results.get(name, {}).get("speed", {})
    return next((ratios[base] for base in BASES if base in ratios), None)


def _panel(axes: Axes, title: str, groups: list[tuple[str, dict[str, Any]]]) -> None:
    # The baseline is the line at 1.
    names = list(dict.fromkeys(
        name for _, each in groups for name in each["warm"] if name not in BASES))
    if not names:
        return
    width, seen = 0.84 / len(names), set[str]()
    for index, name in enumerate(names):
        colour, shift = COLOURS[index % len(COLOURS)], (index - (len(names) - 1) / 2) * width
        for position, (_, results) in enumerate(groups):
            where = position + shift
            if found := speed(results["warm"], name):
                low, middle, high = found
                axes.bar(where, middle - 1, 0.9 * width, bottom=1, color=colour,
                         label=name if name not in seen else None)
                seen.add(name)
                axes.plot([where, where], [low, high], color="#222222", linewidth=0.8)
            if found := speed(results.get("cold", {}), name):
                axes.plot(where, found[1], marker="D", markersize=3.6, color="white",
                          markeredgecolor="#222222", markeredgewidth=0.8, linestyle="none")
    axes.axhline(1, color="#222222", linewidth=0.8)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.48), max(high, 2.1))
    ticks = [t for t in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
             if axes.get_ylim()[0] <= t <= axes.get_ylim()[1]]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xticks(range(len(groups)), [label for label, _ in groups])
    axes.tick_params(axis="x", length=0)
    axes.set_title(title, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def draw(record: dict[str, Any]) -> bytes:
    """Draw a record as an SVG file: bars with quartiles for warm, diamonds for cold."""
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "sterna", "font.family": "sans-serif"}
    with matplotlib.rc_context(settings):
        panels = _groups(record)
        figure = Figure(figsize=(9.5, 0.6 + 2.7 * max(1, len(panels))), layout="constrained")
        canvas = FigureCanvasSVG(figure)
        for index, (title, groups) in enumerate(panels):
            _panel(figure.add_subplot(len(panels), 1, index + 1), title, groups)
        figure.supylabel("times as fast as float32; bars warm, diamonds cold", fontsize=10)
        text = io.BytesIO()
        canvas.print_svg(text, metadata={"Date": None, "Creator": None})
        return text.getvalue()
