"""The comparison of mixers as files: figures, drawings, a page, and tables in Markdown."""

from __future__ import annotations

import html
import json
from pathlib import Path

from sterna.cli.reports.cycle_tables import CycleTable
from sterna.cli.reports.page import Verdict, html_figure, html_heading, html_page, html_table
from sterna.cli.reports.vector import svg_file
from sterna.cli.study.plots import seconds_plot, state_plot
from sterna.cli.study.tables import Found, findings, study_tables
from sterna.model.files import write_atomically

__all__ = ["settings_text", "study_markdown", "write_study"]


def write_study(folder: Path, found: Found) -> list[Path]:
    """Write ``mixers.json``, ``mixers.md``, ``mixers.html`` and the drawings of the page.

    Raises
    ------
    OSError
        If one cannot be written.
    """
    plots = {"state": state_plot(found), "seconds": seconds_plot(found)} if (
        "text" in found["tasks"] and "recall" in found["tasks"]) else {}
    texts = {"mixers.json": json.dumps(found, indent=1) + "\n",
             "mixers.md": study_markdown(found), "mixers.html": _page(found, plots)}
    texts |= {f"{name}.svg": svg_file(plot) for name, plot in plots.items()}
    return [write_atomically(folder / name, text) for name, text in texts.items()]


def settings_text(found: Found) -> list[str]:
    """What was trained how, in sentences."""
    said = []
    for name, task in found["tasks"].items():
        sizes = ", ".join(f"{key} {task[key]:,}" if isinstance(task[key], int)
                          else f"{key} {task[key]}" for key in
                          ("d", "layers", "batch", "window", "pairs", "queries", "vocab", "text")
                          if key in task)
        facts = "".join(f"; {key} {value:.4g}" for key, value in task["facts"].items())
        said.append(f"{name}: {sizes}; {task['tokens']:,} tokens or {task['seconds']:g} "
                    f"seconds{facts}.")
    seeds = f"{found['seeds']} seeds" if found["seeds"] > 1 else "one seed"
    said.append(
        f"Means over {seeds}, with the deviation of a sample. Each budget is a training run of "
        "its own, with its own cosine, on the same data in the same order. Seconds are CPU time of "
        "the process in training, in one thread, as the machine may be shared; all products are "
        "of float32.")
    swept = list(dict.fromkeys(each["row"] for each in found["sweep"]))
    rates = sorted({task["tokens"]["lr"] for row in found["rows"] if row["name"] not in swept
                    for task in row["tasks"].values()})
    if swept:
        said.append(f"The learning rate of {', '.join(swept)} is swept for each task" + (
            f"; the others have {' or '.join(f'{lr:g}' for lr in rates)} unswept, which may not be "
            "their best." if rates else "."))
    if any(row["weights"] == "ternary" and row["causal"] for row in found["rows"]):
        said.append("A step of ternary weights in torch makes them anew for every token, which is "
                    "part of its time: compare µs among rows of the same weights. The core and the "
                    "integer runtimes have them made.")
    machine = found["machine"]
    said.append(f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, "
                f"Sterna {machine['sterna']}.")
    return said


def study_markdown(found: Found) -> str:
    """What was found, how, and all tables, in Markdown."""
    parts = [f"{text}\n" for text in (*findings(found), *settings_text(found))]
    for table in study_tables(found).values():
        rule = ["---"] * table.text_columns + ["--:"] * (len(table.columns) - table.text_columns)
        lines = [table.columns, rule, *table.rows]
        parts.append(f"{_heading(table)}:\n\n" + "\n".join(
            "| " + " | ".join(_text(value) for value in line) + " |" for line in lines) + "\n")
    return "\n".join(parts)


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _heading(table: CycleTable) -> str:
    return table.title[0].upper() + table.title[1:]


def _page(found: Found, plots: dict[str, str]) -> str:
    said = findings(found)
    count = len(found["rows"])
    left = f"; {found['missing']:,} cells are not there yet" if found["missing"] else ""
    verdict = Verdict.note(
        f"{count} ROWS COMPARED" if count > 1 else "ONE ROW MEASURED",
        (said[0] if said else "Each trained and measured the same way.") + left)
    captions = {
        "state": "State of all layers in float32, for one sequence. A bar is the deviation over "
                 "the seeds.",
        "seconds": "Left: all rows had the same tokens, right: the same seconds. A bar is the "
                   "deviation over the seeds."}
    drawings = "".join(html_figure(plot, captions[name]) for name, plot in plots.items())
    tables = "".join(
        html_heading(table.title)
        + html_table(table.columns, table.rows, range(table.text_columns, len(table.columns)))
        for table in study_tables(found).values())
    listed = "".join(f"<p>{html.escape(text)}</p>" for text in (*said[1:], *settings_text(found)))
    return html_page("Mixers compared", verdict, f"{listed}{drawings}{tables}")
