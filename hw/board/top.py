"""The top module of a board: clock, serial line, line protocol and core."""

from __future__ import annotations

from dataclasses import dataclass, field

from amaranth.hdl import ClockDomain, Const, Module, ResetInserter
from amaranth.lib import fifo, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.board.boards import Board
from sterna.hw.board.clock import BoardClock, board_pll
from sterna.hw.board.line_protocol import LineProtocol
from sterna.hw.board.line_settings import LineDefaults, check_core
from sterna.hw.board.uart import UartParams, UartReceiver, UartTransmitter
from sterna.hw.core.core import MatMulFreeCore

__all__ = ["BoardParams", "BoardTop"]

_INTERRUPT = 0x03


@dataclass(frozen=True, slots=True)
class BoardParams:
    """What is chosen for a board, besides the core.

    Parameters
    ----------
    board
        The board.
    clock_hz
        Frequency of the core; 0 takes the board's usual one.
    baud
        Bits per second of the serial line; 0 takes the board's usual speed.
    defaults
        Settings of the line protocol after a reset.

    Raises
    ------
    ValueError
        If there is a temperature without sampling, the board's PLL cannot make the clock, or
        the clock does not divide to the baud.
    """

    board: Board
    clock_hz: int = 0
    baud: int = 0
    defaults: LineDefaults = field(default_factory=LineDefaults)

    def __post_init__(self) -> None:
        if self.defaults.beta and not self.board.sampled:
            raise ValueError(
                f"the core on {self.board.name} has no sampling: the temperature must be 0")
        object.__setattr__(self, "clock_hz", self.clock_hz or self.board.clock_hz)
        object.__setattr__(self, "baud", self.baud or self.board.baud)
        board_pll(self.board, self.clock_hz)
        UartParams(self.clock_hz, self.baud)

    @property
    def uart(self) -> UartParams:
        """Speed of the serial line in cycles."""
        return UartParams(self.clock_hz, self.baud)


class BoardTop(wiring.Component):
    """A model on a board, to be used from a serial terminal.

    A few bytes can be typed ahead while text is written; Ctrl-C drops them.

    Parameters
    ----------
    params
        What is chosen for the board.
    core
        The core, of one sequence.

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
        check_core(core.params)
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
        m.submodules.protocol = protocol = LineProtocol(
            core.params, defaults=params.defaults, sampled=params.board.sampled)
        typed = fifo.SyncFIFOBuffered(width=8, depth=params.board.typed_ahead)
        m.submodules.typed = ResetInserter(protocol.interrupt)(typed)
        m.submodules.core = core

        interrupts = receiver.data == _INTERRUPT
        m.d.comb += [
            clock.clk.eq(self.clk),
            receiver.rx.eq(self.rx),
            protocol.interrupt.eq(receiver.received & interrupts),
            typed.w_data.eq(receiver.data),
            typed.w_en.eq(receiver.received & ~interrupts),
            protocol.typed.payload.eq(typed.r_data),
            protocol.typed.valid.eq(typed.r_rdy),
            typed.r_en.eq(protocol.typed.ready),
            self.tx.eq(transmitter.tx),
        ]
        wiring.connect(m, protocol.shown, transmitter.bytes)
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
