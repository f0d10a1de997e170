"""A placed design from above: each tile of the device in the colours of the blocks in it.

Written as SVG directly: it is nothing but rectangles on a grid, and a full device has ten
thousand of them, for which matplotlib takes a megabyte.
"""

from __future__ import annotations

import html
from collections import Counter, defaultdict
from collections.abc import Iterable

from sterna.cli.reports.page import html_figure
from sterna.cli.reports.vector import GREY, PALETTE
from sterna.hw.flow.routed import PlacedCells, Placement
from sterna.hw.flow.synth_report import part_of
from sterna.hw.flow.target import FpgaTarget, Resource

__all__ = ["floorplan"]

_LOGIC = (Resource.LUT, Resource.FF)
_OTHERS = "others"
_OUTSIDE = "added to place it"
_UNIT = 10
"""Side of a tile in the drawing's own units."""


def floorplan(placement: Placement, target: FpgaTarget, seed: int) -> str:
    """Draw where the cells are, with a legend; return HTML.

    Parameters
    ----------
    placement
        Of a design for the target.
    target
        A device, so it has a grid.
    seed
        Of the run, for the caption.

    Raises
    ------
    ValueError
        If the target is a family, or a cell is outside of its grid.
    """
    if target.grid is None or target.router is None:
        raise ValueError(f"{target.name} is a family: it has no floorplan")
    columns, rows = target.grid
    outside = [each for each in placement.tiles if each.x >= columns or each.y >= rows]
    if outside:
        raise ValueError(f"{target.name} has {columns} x {rows} tiles, and a cell is at "
                         f"X{outside[0].x}/Y{outside[0].y}")
    colours = _colours(placement.tiles)
    drawn = _paths(placement.tiles, set(colours), rows, target.router.tile_cells)
    paths = "".join(f'<path fill="{colours[name]}" d="{drawn[name]}"/>'
                    for name in colours if name in drawn)
    width, height = columns * _UNIT, rows * _UNIT
    svg = (f'<svg class="floor" viewBox="-4 -4 {width + 8} {height + 8}" role="img" '
           f'aria-label="where the cells of each block are on the device">'
           f'<rect width="{width}" height="{height}" fill="none" stroke="currentColor" '
           f'stroke-width="2" opacity="0.55"/>{paths}</svg>')
    cells = Counter[str]()
    for each in placement.tiles:
        cells[_shown(each, set(colours))] += each.cells
    legend = "".join(
        f'<li><svg viewBox="0 0 10 10" aria-hidden="true"><rect width="10" height="10" '
        f'fill="{colour}"/></svg>{html.escape(name)} ({cells[name]:,})</li>'
        for name, colour in colours.items())
    caption = (
        f"{target.name}, {columns} x {rows} tiles, as placed with seed {seed}; in brackets the "
        f"cells. A tile of logic is filled as far as its {target.router.tile_cells} "
        f"{'logic cells are' if target.router.tile_cells == 8 else 'LUTs and flip-flops are'} "
        f"taken, a framed one is block RAM or a multiplier. Row 0 is at the bottom.")
    return f'<ul class="legend">{legend}</ul>{html_figure(svg, caption)}'


def _colours(tiles: Iterable[PlacedCells]) -> dict[str, str]:
    """A colour for each of the largest blocks, one for all others."""
    sizes = Counter[str]()
    for each in tiles:
        if each.block is not None:
            sizes[part_of(each.block)] += each.cells
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))
    kept = largest if len(largest) <= len(PALETTE) else largest[:len(PALETTE) - 1]
    colours = dict(zip(kept, PALETTE, strict=False))
    if len(kept) < len(largest):
        colours[_OTHERS] = PALETTE[-1]
    if any(each.block is None for each in tiles):
        colours[_OUTSIDE] = GREY
    return colours


def _shown(cells: PlacedCells, names: set[str]) -> str:
    if cells.block is None:
        return _OUTSIDE
    part = part_of(cells.block)
    return part if part in names else _OTHERS


def _paths(
    tiles: Iterable[PlacedCells], names: set[str], rows: int, tile_cells: int,
) -> dict[str, str]:
    """For each block the outline of all it takes: slices of tiles, by its number of cells."""
    by_tile: dict[tuple[int, int], list[PlacedCells]] = defaultdict(list)
    for each in tiles:
        by_tile[each.x, each.y].append(each)
    paths: dict[str, list[str]] = defaultdict(list)
    for (x, y), mine in sorted(by_tile.items()):
        left, top = x * _UNIT, (rows - 1 - y) * _UNIT
        logic = Counter[str]()
        for each in mine:
            name = _shown(each, names)
            if each.resource in _LOGIC:
                logic[name] += each.cells
            else:
                # The frame: a square with a square hole, which evens out where they overlap.
                paths[name].append(f"M{left} {top}h{_UNIT}v{_UNIT}h-{_UNIT}z"
                                   f"M{left + 2} {top + 2}v{_UNIT - 4}h{_UNIT - 4}v-{_UNIT - 4}z"
                                   f"M{left + 3} {top + 3}h{_UNIT - 6}v{_UNIT - 6}h-{_UNIT - 6}z")
        before = 0
        for name, cells in sorted(logic.items()):
            begin, end = (min(_UNIT * taken / tile_cells, _UNIT)
                          for taken in (before, before + cells))
            before += cells
            paths[name].append(
                f"M{left} {top + _UNIT - begin:g}h{_UNIT - 1}V{top + _UNIT - end:g}h-{_UNIT - 1}z")
    return {name: "".join(parts) for name, parts in paths.items()}
