"""The comparison of mixers as drawings: quality against state and training time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from sterna.cli.reports.vector import GREY, PALETTE, drawing, finish, svg_of
from sterna.cli.study.tables import Found, order, recall_bounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["study_plots"]

_STATE_LENGTH = "1024"
"""The number of tokens at which the state is drawn."""

_MARKERS = "osD^vP"
_NAMED = {"mlgru": "#d1495b", "hybrid": "#e08a2c", "transformer": "#000000"}
_Place: TypeAlias = Callable[[dict[str, Any]], float | None]


def study_plots(found: Found) -> dict[str, str]:
    """SVG elements by name, for the available tasks: ``state``, quality at equal tokens against
    bytes of state; ``seconds``, quality against training seconds at equal tokens, and against
    tokens at equal seconds; ``distance``, recall by tokens since the answer."""
    def state(row: dict[str, Any]) -> float | None:
        costs = row["costs"].get(_STATE_LENGTH)
        return None if costs is None else float(costs["state_bytes"])

    def spent(budget: str, name: str) -> _Place:
        def place(row: dict[str, Any]) -> float | None:
            figures = row["tasks"]["text"][budget].get(name)
            return None if figures is None else float(figures["mean"])
        return place

    plots = {}
    tasks = [task for task in ("text", "recall") if task in found["tasks"]]
    if tasks:
        plots["state"] = _panels(found, "state", "quality against bytes of state", [
            (task, "tokens", state, f"bytes of state after {int(_STATE_LENGTH):,} tokens")
            for task in tasks])
    if "text" in tasks:
        seconds, tokens = spent("tokens", "train_seconds"), spent("seconds", "train_tokens")
        plots["seconds"] = _panels(found, "seconds", "quality against seconds of training", [
            ("text", "tokens", seconds, "CPU seconds for the same tokens"),
            ("text", "seconds", tokens, "tokens in the same CPU seconds")])
    if "recall" in tasks:
        plots["distance"] = _distance_plot(found)
    return plots


def _distance_plot(found: Found) -> str:
    bounds = recall_bounds(found)
    rows = order(found, "recall")
    marks = _marks([row["name"] for row in rows])
    with drawing(7, 4.2) as figure:
        axes = figure.subplots()
        for row in rows:
            figures = row["tasks"]["recall"]["tokens"]
            means = [figures[f"accuracy_{bound}"]["mean"] for bound in bounds
                     if f"accuracy_{bound}" in figures]
            if len(means) == len(bounds):
                colour, marker = marks[row["name"]]
                axes.plot([100 * mean for mean in means], marker=marker, color=colour, ms=5,
                          linewidth=1.2, label=row["name"])
        axes.set_xticks(range(len(bounds)), [
            f"{above + 1} to {bound}" for above, bound in zip((0, *bounds), bounds, strict=False)])
        _dress(axes, "recall", "tokens since the answer", logarithmic=False)
        figure.legend(loc="outside right center")
        return svg_of(figure, "distance", "recall against tokens since the answer")


def _panels(
    found: Found, name: str, description: str, panels: list[tuple[str, str, _Place, str]],
) -> str:
    """Drawings side by side with one legend and the same mark for each mixer."""
    marks = _marks([row["name"] for row in order(found, panels[0][0])])
    with drawing(9.5 if len(panels) > 1 else 6.5, 5.6) as figure:
        shown: dict[str, Any] = {}
        sharing = len({task for task, *_ in panels}) == 1
        every = figure.subplots(1, len(panels), sharey=sharing, squeeze=False)[0]
        for axes, (task, budget, place, label) in zip(every, panels, strict=True):
            shown |= _points(axes, found, task, budget, place, marks)
            _dress(axes, task, label, logarithmic=name == "state")
        figure.legend(shown.values(), shown.keys(), loc="outside right center")
        return svg_of(figure, name, description)


def _points(
    axes: Axes, found: Found, task: str, budget: str, place: _Place,
    marks: dict[str, tuple[str, str]],
) -> dict[str, Any]:
    """Draw each row with figures, with deviation bars; return them by name, best first."""
    shown = {}
    for row in order(found, task, budget):
        figures = row["tasks"][task][budget].get(found["tasks"][task]["figure"])
        x = place(row)
        if figures is None or x is None:
            continue
        scale = 100 if task == "recall" else 1
        colour, marker = marks.get(row["name"], (GREY, "o"))
        shown[row["name"]] = axes.errorbar(
            [x], [scale * figures["mean"]], yerr=[scale * (figures["deviation"] or 0.0)],
            fmt=marker, color=colour, ms=6, elinewidth=1, capsize=2,
            zorder=4 if row["name"] in _NAMED else 3)
    return shown


def _marks(names: list[str]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for each name; the baselines stand out."""
    others = [name for name in sorted(names) if name not in _NAMED]
    colours = [each for each in PALETTE if each not in _NAMED.values()]
    marks = {name: (colours[index % len(colours)], _MARKERS[index // len(colours) % len(_MARKERS)])
             for index, name in enumerate(others)}
    return marks | {name: (colour, "*") for name, colour in _NAMED.items()}


def _dress(axes: Axes, task: str, label: str, *, logarithmic: bool) -> None:
    """Labels, scale and grid."""
    if logarithmic:
        axes.set_xscale("log")
    if task == "recall":
        axes.set_ylim(-4, 104)
    finish(axes, label, "bits per byte, windows" if task == "text" else "recall, percent", "both")
