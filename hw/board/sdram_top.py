"""A board whose model is an image in its SDRAM: top module, pads and image."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, Module, ResetInserter
from amaranth.lib import fifo, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.board.boards import constraints_text
from sterna.hw.board.clock import BoardClock
from sterna.hw.board.serial_protocol import QUEUE_BYTES, Order, SerialProtocol, check_core
from sterna.hw.board.top import FRAME_BITS, TOP_MODULE, BoardParams, clock_cells
from sterna.hw.board.uart import UartReceiver, UartTransmitter
from sterna.hw.core.core import Core
from sterna.hw.core.core_image import CoreImage, build_image
from sterna.hw.core.core_params import CoreParams, Limits
from sterna.hw.core.cycle_model import MemoryTiming, run_cycles
from sterna.hw.core.image_reader import ImageStatus
from sterna.hw.core.linear_image import pack_image
from sterna.hw.core.request import Request
from sterna.hw.emit import cells
from sterna.hw.emit.verilog import verilog_files
from sterna.hw.flow.target import style_for
from sterna.hw.memory.sdram import SdramController, SdramParams
from sterna.hw.units.spec import Sizes
from sterna.model.config import ModelConfig
from sterna.model.quantized import QuantizedModel

__all__ = ["SdramDesign", "SdramTop", "sdram_design"]

_CORE = "board_core"
_LATENCY = 12   # cycles of our controller from a request to its first word, in an open row or not


class SdramTop(wiring.Component):
    """A core behind a serial line, its image in SDRAM, all but the pads.

    Members
    -------
    clk, rx, tx, led : ``In(1)``, ``Out(1)``
        As :class:`~sterna.hw.board.top.BoardTop` has them.
    memory_clk : ``Out(1)``
        The clock of all that follows.
    command, bank, row, dq_o, dq_oe, dq_i
        Of :class:`~sterna.hw.memory.sdram.SdramController`.
    """

    def __init__(self, params: BoardParams, image: CoreImage) -> None:
        self.params, self.image = params, image
        self.memory = SdramController(SdramParams(params.clock_hz), image.params.address_bits)
        pins = self.memory.signature.members
        super().__init__({
            "clk": In(1), "rx": In(1), "tx": Out(1, init=1), "led": Out(1), "memory_clk": Out(1),
            **{name: pins[name] for name in _PINS}})

    def elaborate(self, platform):
        m = Module()
        params, memory = self.params, self.memory
        m.domains.sync = ClockDomain()
        m.submodules.clock = clock = BoardClock(params.board, params.clock_hz)
        m.submodules.receiver = receiver = UartReceiver(params.uart)
        m.submodules.transmitter = transmitter = UartTransmitter(params.uart)
        m.submodules.protocol = protocol = SerialProtocol(
            self.image.params.limits.vocab, loads=True)
        # Its output register holds one more than its memory.
        queue = fifo.SyncFIFOBuffered(width=8, depth=QUEUE_BYTES + 1)
        m.submodules.queue = ResetInserter(protocol.stop)(queue)
        core = Core(self.image)
        m.submodules.core = ResetInserter(protocol.loading)(core)
        m.submodules.memory = memory

        stops = receiver.data == Order.STOP
        prompt, asked = core.prompts.payload, protocol.prompts.payload
        m.d.comb += [
            clock.clk.eq(self.clk), self.memory_clk.eq(ClockSignal()),
            receiver.rx.eq(self.rx), self.tx.eq(transmitter.tx),
            protocol.stop.eq(receiver.received & stops),
            queue.w_data.eq(receiver.data), queue.w_en.eq(receiver.received & ~stops),
            prompt.token.eq(asked.token), prompt.start.eq(asked.start),
            prompt.predict.eq(asked.predict), prompt.limit.eq(1),
            prompt.beta.eq(protocol.beta), prompt.seed.eq(protocol.seed),
            core.prompts.valid.eq(protocol.prompts.valid),
            protocol.prompts.ready.eq(core.prompts.ready),
            protocol.tokens.payload.token.eq(core.tokens.payload.token),
            protocol.tokens.valid.eq(core.tokens.valid),
            core.tokens.ready.eq(protocol.tokens.ready),
            core.logits.ready.eq(1),
            protocol.status.eq(core.status),
            # On while there is a model.
            self.led.eq(core.status == ImageStatus.RUNNING),
            memory.writes.valid.eq(protocol.writes.valid),
            memory.writes.payload.word.eq(protocol.writes.payload.word),
            memory.writes.payload.address.eq(protocol.writes.payload.address),
            protocol.writes.ready.eq(memory.writes.ready),
        ]
        wiring.connect(m, queue.r_stream, protocol.received)
        wiring.connect(m, protocol.sent, transmitter.bytes)
        # While an image is loaded nothing is asked for, and what was is dropped.
        m.d.comb += [
            memory.reads.payload.eq(core.reads.payload),
            memory.reads.valid.eq(core.reads.valid & ~protocol.loading),
            core.reads.ready.eq(memory.reads.ready & ~protocol.loading),
            core.data.payload.eq(memory.data.payload), core.data.valid.eq(memory.data.valid),
            memory.data.ready.eq(core.data.ready | protocol.loading),
            protocol.idle.eq(memory.idle),
        ]
        for name in _PINS:
            mine, its = getattr(self, name), getattr(memory, name)
            m.d.comb += its.eq(mine) if name == "dq_i" else mine.eq(its)
        return m


_PINS = ("command", "bank", "row", "dq_o", "dq_oe", "dq_i")

_INSTANCE = """
  wire memory_clk;
  wire [2:0] command;
  wire [1:0] bank;
  wire [12:0] row;
  wire [15:0] dq_i, dq_o;
  wire dq_oe;
  {core} core (
    .clk(clk), .rx(rx), .tx(tx), .led(led), .memory_clk(memory_clk), .command(command),
    .bank(bank), .row(row), .dq_i(dq_i), .dq_o(dq_o), .dq_oe(dq_oe));
  // Held high it keeps the radio module from resetting the board.
  assign radio_gpio0 = 1'b1;
"""

_PADS = """
module {top} (
  input clk, input rx, output tx, output led, output radio_gpio0,
  output sdram_clk, output sdram_clk_en, output sdram_cs, output sdram_ras, output sdram_cas,
  output sdram_we, output [1:0] sdram_ba, output [12:0] sdram_a, output [1:0] sdram_dqm,
  inout [15:0] sdram_dq
);
{instance}
  assign {{sdram_ras, sdram_cas, sdram_we}} = command;
  assign sdram_ba = bank;
  assign sdram_a = row;
  assign {{sdram_clk_en, sdram_cs, sdram_dqm}} = 4'b1000;
  // The memory takes what changes with our clock half a cycle later.
  ODDRX1F clock (.D0(1'b0), .D1(1'b1), .SCLK(memory_clk), .RST(1'b0), .Q(sdram_clk));
  BB dq [15:0] (.B(sdram_dq), .I(dq_o), .T(~dq_oe), .O(dq_i));
endmodule
"""

_SIMULATED = """
module {top} (
  input clk, input rx, output tx, output led, output radio_gpio0
);
{instance}
  sdram_model #(.CONTENTS("{contents}"), .WORDS({words})) memory (
    .clk(memory_clk), .rst(1'b0), {times}, .command(command), .bank(bank), .row(row),
    .dq_o(dq_o), .dq_oe(dq_oe), .dq_i(dq_i));
endmodule
"""

_CONTENTS = "sdram.mem"


@dataclass(frozen=True, slots=True)
class SdramDesign:
    """A board, and the image of a model for it.

    ``texts``: Verilog of all but the pads, and what its memories contain, texts by file name.
    """

    params: BoardParams
    core: CoreParams
    config: ModelConfig
    model_sha256: str
    texts: Mapping[str, str]
    image: bytes

    @property
    def verilog(self) -> dict[str, str]:
        """What is synthesised: ``board_top.v``, with all it has inside, and its memories."""
        return self._with_top(_PADS.format(top=TOP_MODULE, instance=_INSTANCE.format(core=_CORE)))

    @property
    def constraints(self) -> str:
        """Pins and clock, in the words of the router."""
        return constraints_text(self.params.board, with_memory=True)

    @property
    def simulation_files(self) -> dict[str, str]:
        """Files for a simulator, text by name: the same core, with ``sdram_model`` in place of the
        pads. That begins with the image, and samples with the clock of the board: neither pads
        nor wires take time here."""
        times = SdramParams(self.params.clock_hz).picoseconds
        words = [int.from_bytes(self.image[at:at + 2], "little")
                 for at in range(0, len(self.image), 2)]
        top = _SIMULATED.format(
            top=TOP_MODULE, instance=_INSTANCE.format(core=_CORE), contents=_CONTENTS,
            words=len(words), times=", ".join(
                f".{name}(32'd{value})" for name, value in times.items()))
        return {**clock_cells(), _CONTENTS: "".join(f"{word:04x}\n" for word in words),
                **cells.cell_models(self.texts[f"{_CORE}.v"]), **self._with_top(top)}

    def _with_top(self, top: str) -> dict[str, str]:
        memories = {name: text for name, text in self.texts.items() if not name.endswith(".v")}
        return {f"{TOP_MODULE}.v": self.texts[f"{_CORE}.v"] + top, **memories}

    @property
    def cycles_per_token(self) -> float:
        """Cycles of a drawn token, by the cycle model; refreshes and rows take some more."""
        one, two = (_cycles(self.core, replace(self.config, layers=layers)) for layers in (1, 2))
        return float(one + (self.config.layers - 1) * (two - one))

    @property
    def tokens_per_second(self) -> float:
        """Tokens that are written in a second: by the cycle model, or as the line allows."""
        return min(self.params.clock_hz / self.cycles_per_token, self.params.baud / FRAME_BITS)

    @property
    def summary(self) -> dict[str, Any]:
        """What was chosen, as plain data."""
        core, limits = self.core, self.core.limits
        return {
            "board": self.params.board.name.value,
            "model": {"sha256": self.model_sha256, "config": self.config.to_json(),
                      "profile": core.profile.name},
            "limits": {"width": limits.width, "inner": limits.inner, "layers": limits.layers,
                       "vocab": limits.vocab, "shifts": list(limits.shifts),
                       "embedding_bits": limits.embedding_bits},
            "core": {"rows": core.rows, "cols": core.cols, "quant_lanes": core.quant_lanes,
                     "style": core.style.value},
            "image_bytes": len(self.image),
            "clock_hz": self.params.clock_hz, "baud": self.params.baud,
        }


@functools.cache
def _cycles(core: CoreParams, config: ModelConfig) -> int:
    tokens = run_cycles(core, config, [(0, Request((0,), tokens=3, temperature=1.0))],
                        MemoryTiming(_LATENCY)).tokens[0]
    return tokens[-1] - tokens[-2]


def sdram_design(
    model: QuantizedModel, params: BoardParams, sizes: Sizes | None = None,
) -> SdramDesign:
    """Design the top module for the limits of a model, and make its image.

    ``sizes`` are ``rows``, ``cols``, ``quant_lanes`` and ``style``; what is missing is the board's
    usual. ValueError if the board has no SDRAM, or the image does not fit it or the serial line.
    """
    board = params.board
    if not board.memory:
        raise ValueError(f"the {board.name} has no SDRAM")
    chosen = {"rows": 8, "cols": 64, "quant_lanes": 8,
              "style": style_for(board.target, "auto"), **(sizes or {})}
    core = CoreParams(
        Limits.of(model), **chosen, root_digit_bits=1, port_bits=16)
    check_core(core.limits.vocab, core.sequences)
    image = build_image(model, core)
    packed, room = pack_image(image), 2 * SdramParams(params.clock_hz).words
    if len(packed) > room:
        raise ValueError(f"the image has {len(packed):,} bytes, the SDRAM {room:,}")
    return SdramDesign(params, core, model.config, model.sha256,
                       verilog_files(SdramTop(params, image), _CORE), packed)
