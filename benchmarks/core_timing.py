"""Draw one layer in the core, cycle by cycle, as the cycle model predicts it.

    python benchmarks/core_timing.py [-o docs/core-timing.svg] [--profile S16]

Prints the cycles of every event of a layer of ``tiny`` on the 8 x 128 core, one sequence, and
draws them as an SVG file. The same numbers give the same bytes.
"""

from __future__ import annotations

import argparse
import io
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from sterna.hw.core.core_params import StageKind
from sterna.hw.core.request import Request
from sterna.hw.oldcore.plan.core_params import CoreParams
from sterna.hw.oldcore.timing.cycles import CycleModel, StageTimes
from sterna.model.config import ModelConfig
from sterna.model.files import write_atomically
from sterna.model.profile import PROFILES

LAYER = 1
PARTS = {
    "maximum": "#a3623a", "reciprocal": "#d1495b", "quantise": "#edae49", "root, scale": "#8d6a9f",
    "beats": "#4a7fb5", "adder tree, wait": "#c9d3e0", "results": "#5fad8c", "unit": "#2f6f5e",
}
ROWS = ("norm", "array", "sums", "results", "unit")
NAMES = {
    StageKind.MLGRU: "f c g", StageKind.GLU: "gate up", StageKind.RESIDUAL: "",
    StageKind.HEAD: "head"}


@dataclass(frozen=True)
class StageEvents:
    """Cycles of a stage, counted from the cycle in which the norm begins with the layer."""

    name: str
    service: int
    first_chunk: int
    last_chunk: int
    first_beat: int
    last_beat: int
    first_sum: int
    scales: int
    first_result: int
    last_result: int
    first_word: int
    last_word: int
    next_service: int

    def spans(self, max_steps: int, results_steps: int) -> list[tuple[str, str, int, int]]:
        """Row, part, first cycle and the cycle after the last one."""
        return [
            ("norm", "maximum", self.service - max_steps, self.service),
            ("norm", "reciprocal", self.service, self.first_chunk),
            ("norm", "quantise", self.first_chunk, self.last_chunk + 1),
            ("norm", "root, scale", self.last_chunk + 1, self.scales),
            ("array", "beats", self.first_beat, self.last_beat + 1),
            ("sums", "adder tree, wait", self.first_beat + 1,
             self.last_result - results_steps + 1),
            ("results", "results", self.first_result, self.last_result + 1),
            ("unit", "unit", self.first_word, self.last_word + 1),
        ]


def events(model: CycleModel, times: StageTimes, origin: int, next_service: int) -> StageEvents:
    """Follow a stage that has array and post-processor for itself, word by word."""
    params, timings = model.params, model.timings
    stage = model.stages[times.index]
    first_chunk = times.service + timings.reciprocal
    chunks = timings.chunks[times.index]
    beat, scaled = times.first_beat - 1, 0
    sums, results = [], []
    for _ in range(stage.headers):
        for tile in range(stage.tiles):
            last_chunk = first_chunk + min((tile + 1) * params.chunks_per_tile, chunks) - 1
            ready = last_chunk + timings.feed
            beat = max(beat + 1, ready)
        sums.append(beat + timings.array)
        scaled = max(scaled + 1, sums[-1], times.scales)
        results.append(scaled + timings.requantize)
    assert (beat, results[-1]) == (times.last_beat, times.last_result)
    unit = timings.unit(stage.kind)
    name = NAMES[stage.kind] or stage.projections[0].rpartition(".")[2]
    cycles = (
        times.service, first_chunk, first_chunk + chunks - 1, times.first_beat, times.last_beat,
        sums[0], times.scales, results[0], results[-1],
        results[stage.slots - 1] + unit, results[-1] + unit, next_service)
    return StageEvents(name, *(cycle - origin for cycle in cycles))


def layer_events(model: CycleModel) -> list[StageEvents]:
    """The four stages of a layer of the second token that is generated."""
    token = model.run([[Request((0,), 3)]])[1]
    first = 4 * LAYER
    stages = token.stages[first:first + 5]
    origin = stages[0].service
    return [events(model, stages[i], origin, stages[i + 1].service) for i in range(4)]


def picture(model: CycleModel, found: list[StageEvents], title: str) -> bytes:
    """Draw the events as an SVG file."""
    settings = {"svg.fonttype": "none", "svg.hashsalt": "sterna", "font.family": "sans-serif"}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(11.5, 3.5), layout="constrained")
        canvas = FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        seen: set[str] = set()
        for stage in found:
            for row, part, first, end in stage.spans(
                    model.timings.maximum, model.timings.requantize):
                axes.barh(ROWS.index(row), end - first, left=first, height=0.62,
                          color=PARTS[part], label=None if part in seen else part)
                seen.add(part)
                if row in ("array", "results", "unit"):
                    axes.text((first + end) / 2, ROWS.index(row), f"{first}–{end - 1}",
                              ha="center", va="center", fontsize=8, color="white")
            axes.axvline(stage.service, color="#9aa3af", linewidth=0.7, zorder=0)
            middle = (stage.service + stage.next_service) / 2
            axes.text(middle, -0.78, stage.name, ha="center", va="bottom", fontsize=10)
        axes.axvline(found[-1].next_service, color="#9aa3af", linewidth=0.7, zorder=0)
        axes.set_yticks(range(len(ROWS)), ROWS)
        axes.set_ylim(len(ROWS) - 0.5, -1.25)
        axes.set_xticks([stage.service for stage in found] + [found[-1].next_service])
        axes.set_xlim(-6, found[-1].next_service + 6)
        axes.set_xlabel("cycle, from the norm's beginning with the layer")
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.set_title(title, fontsize=11)
        figure.legend(loc="outside lower center", ncols=len(PARTS), fontsize=9, frameon=False)
        text = io.BytesIO()
        canvas.print_svg(text, metadata={"Date": None, "Creator": None})
        return text.getvalue()


def main() -> None:
    """Print the table and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="S16")
    options = parser.parse_args()
    model = CycleModel(CoreParams(ModelConfig.named("tiny"), PROFILES[options.profile]))
    found = layer_events(model)
    for name in StageEvents.__dataclass_fields__:
        print(f"{name:14}" + "".join(f"{getattr(stage, name):>10}" for stage in found))
    if options.output is not None:
        title = f"One layer of tiny ({options.profile}) on 8 x 128, one sequence"
        write_atomically(options.output, picture(model, found, title))
        print(f"{options.output}: {options.output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
