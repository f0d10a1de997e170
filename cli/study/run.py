"""Run a comparison and show its results: on the terminal, as figures and as a page."""

from __future__ import annotations

import html
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sterna.cli.reports.page import Outcome, Verdict, html_figure, html_page, html_table
from sterna.cli.reports.vector import svg_file
from sterna.cli.study.plots import study_plots
from sterna.cli.study.tables import Found, findings, study_tables
from sterna.cli.terminal.console import out, print_files, print_json, progress_bar, say
from sterna.cli.terminal.interrupt import INTERRUPTED
from sterna.hw.core.cycles.memories import memory_bits
from sterna.hw.core.cycles.model import cycles_per_token
from sterna.hw.core.cycles.report import shape_limits, shape_stages
from sterna.hw.core.params.core_params import CoreParams
from sterna.model.config import ModelConfig
from sterna.model.files import write_atomically
from sterna.model.profile import S16

if TYPE_CHECKING:
    from sterna.model.torch.study.cells import Cell
    from sterna.model.torch.study.plan import Study

__all__ = ["core_costs", "run_study", "settings_text", "study_markdown", "write_study"]


def run_study(study: Study, output: Path, jobs: int, *, quiet: bool, as_json: bool) -> int:
    """Make the missing cells, write the files, print the results; return the exit code.

    After Ctrl-C the results so far are written and printed.
    """
    from sterna.model.torch.study.plan import summarize
    cells = output / "cells"
    cells.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    code = 0
    try:
        while not failed and any(
                cell.result(cells) is None for cell in study.sweep_cells(cells)):
            failed += _make("learning rates", study.sweep_cells(cells), cells, jobs, quiet)
        failed += _make("cells", study.cells(cells), cells, jobs, quiet)
    except KeyboardInterrupt:
        code = INTERRUPTED
    found = summarize(study, cells)
    found["core"] = {row.name: core_costs(config) for row, config in study.configs()
                     if config.has_integer_form}
    _show(found, write_study(output, found), as_json)
    for line in failed:
        say(line)
    if code == INTERRUPTED:
        say(f"the results so far stay in {output}: the same command continues, "
            f"{found['missing']:,} cells are left")
    return code or int(bool(failed))


def _make(label: str, cells: list[Cell], folder: Path, jobs: int, quiet: bool) -> list[str]:
    """Make cells with progress; return the errors."""
    from sterna.model.torch.study.cells import make_cells
    failed: list[str] = []
    different = {cell.path(folder): cell for cell in cells}.values()
    total = len(different)
    before = done = sum(cell.result(folder) is not None for cell in different)
    started = time.monotonic()
    if done == total:
        return failed

    def note(cell: Cell, result: dict[str, Any] | None, error: str) -> None:
        nonlocal done
        if result is None:
            failed.append(f"{cell.title}: {error}")
            return
        done += 1
        left = (time.monotonic() - started) / (done - before) * (total - done) / 60
        say(f"{done:,}/{total:,}, {left:.0f} min left: {cell.summary(result)}", quiet)
        move(done, total)

    with progress_bar(f"{label}: {total:,}, {done:,} of them done", quiet) as move:
        move(done, total)
        make_cells(cells, folder, jobs, note)
    return failed


def _show(found: Found, written: list[Path], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    for line in settings_text(found):
        out.print(line)
    for table in study_tables(found).values():
        out.print()
        table.print()
    out.print()
    for line in findings(found):
        out.print(line)
    print_files(written)


def core_costs(config: ModelConfig) -> dict[str, Any]:
    """Cycles per generated token and bits of memory of the core for a shape, profile S16, with the
    default array of ``sterna report``."""
    params = CoreParams(shape_limits(config, S16))
    bits = memory_bits(params)
    return {"array": f"{params.rows} x {params.cols}",
            "cycles_per_token": float(cycles_per_token(params, shape_stages(config, S16))),
            "state_bits": bits["states"], "memory_bits": sum(bits.values())}


def write_study(folder: Path, found: Found) -> list[Path]:
    """Write ``mixers.json``, ``mixers.md``, ``mixers.html`` and the drawings of the page."""
    plots = study_plots(found)
    texts = {"mixers.json": json.dumps(found, indent=1) + "\n",
             "mixers.md": study_markdown(found), "mixers.html": _page(found, plots)}
    texts |= {f"{name}.svg": svg_file(plot) for name, plot in plots.items()}
    return [write_atomically(folder / name, text) for name, text in texts.items()]


def settings_text(found: Found) -> list[str]:
    """The training settings, in sentences."""
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
    """Findings, settings and all tables, in Markdown."""
    parts = [f"{text}\n" for text in (*findings(found), *settings_text(found))]
    parts += [f"{table.markdown()}\n" for table in study_tables(found).values()]
    return "\n".join(parts)


def _page(found: Found, plots: dict[str, str]) -> str:
    said = findings(found)
    count = len(found["rows"])
    left = f"; {found['missing']:,} cells are still missing" if found["missing"] else ""
    verdict = Verdict(
        Outcome.NOTE, f"{count} ROWS COMPARED" if count > 1 else "ONE ROW MEASURED",
        (said[0] if said else "Each trained and measured the same way.") + left)
    captions = {
        "state": "State of all layers in float32, for one sequence. A bar is the deviation over "
                 "the seeds.",
        "seconds": "Left: all rows had the same tokens, right: the same seconds. A bar is the "
                   "deviation over the seeds.",
        "distance": "At equal tokens, means over the seeds."}
    drawings = "".join(html_figure(plot, captions[name]) for name, plot in plots.items())
    tables = "".join(map(html_table, study_tables(found).values()))
    listed = "".join(f"<p>{html.escape(text)}</p>" for text in (*said[1:], *settings_text(found)))
    return html_page("Mixers compared", verdict, f"{listed}{drawings}{tables}")
