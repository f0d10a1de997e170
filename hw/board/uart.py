"""A UART: eight data bits, no parity, one stop bit.

Implemented here because no library fits: ``amaranth-stdio`` is not on the package index, and the
UART of ``luna-usb`` only sends and depends on a USB stack. Tested against the independent
``cocotbext-uart``.
"""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

__all__ = ["UartParams", "UartReceiver", "UartTransmitter"]

_DATA_BITS = 8
_MIN_DIVISOR = 16
_MAX_ERROR = 0.02


@dataclass(frozen=True, slots=True)
class UartParams:
    """Speed of a UART.

    >>> UartParams(150_000_000, 1_000_000).divisor
    150
    """

    clock_hz: int
    baud: int

    def __post_init__(self) -> None:
        if self.baud < 1 or self.clock_hz < _MIN_DIVISOR * self.baud:
            raise ValueError(
                f"a bit must have at least {_MIN_DIVISOR} cycles: at {self.clock_hz} Hz baud "
                f"must be from 1 to {self.clock_hz // _MIN_DIVISOR}, got {self.baud}")
        if abs(self.error) >= _MAX_ERROR:
            raise ValueError(
                f"baud {self.baud} at {self.clock_hz} Hz would be wrong by {self.error:+.1%}, "
                f"at most {_MAX_ERROR:.0%} works; {self.clock_hz / self.divisor:,.0f} is exact")

    @property
    def divisor(self) -> int:
        """Cycles per bit."""
        return (2 * self.clock_hz + self.baud) // (2 * self.baud)

    @property
    def error(self) -> float:
        """Relative speed error; positive if faster than requested."""
        return self.clock_hz / (self.divisor * self.baud) - 1


class UartReceiver(wiring.Component):
    """Bytes from a serial line, each bit sampled once, in its middle.

    Accepts lines that are up to 4 % faster or slower. A start bit that is no longer present in its
    middle is ignored; a byte without a stop bit and all data until the line is idle are dropped.

    Members
    -------
    rx : ``In(1)``
        The line, asynchronous; 1 is idle.
    data : ``Out(8)``
        The last byte, valid in a cycle with ``received``.
    received : ``Out(1)``
        High for one cycle, in the middle of the stop bit.
    """

    def __init__(self, params: UartParams) -> None:
        self.params = params
        super().__init__({"rx": In(1), "data": Out(_DATA_BITS), "received": Out(1)})

    def elaborate(self, platform):
        m = Module()
        divisor = self.params.divisor
        line = Signal(init=1)
        m.submodules.synchroniser = FFSynchronizer(self.rx, line, init=1)
        timer = Signal(range(divisor))
        at_middle = Signal()
        # A 1 at the top is shifted down with the bits; when it drops out, eight are complete.
        shifted = Signal(_DATA_BITS + 1)

        m.d.comb += [at_middle.eq(timer == 0), self.data.eq(shifted[1:])]
        m.d.sync += [timer.eq(timer - 1), self.received.eq(0)]
        with m.If(at_middle):
            m.d.sync += timer.eq(divisor - 1)

        with m.FSM():
            with m.State("Listen"):
                m.d.sync += [timer.eq(divisor // 2 - 1), shifted.eq(1 << _DATA_BITS)]
                with m.If(~line):
                    m.next = "Confirm"
            with m.State("Confirm"), m.If(at_middle):
                m.next = "Collect"
                with m.If(line):
                    m.next = "Listen"
            with m.State("Collect"), m.If(at_middle):
                with m.If(shifted[0]):
                    m.d.sync += self.received.eq(line)
                    m.next = "Recover"
                with m.Else():
                    m.d.sync += shifted.eq(Cat(shifted[1:], line))
            with m.State("Recover"), m.If(line):
                m.next = "Listen"
        return m


class UartTransmitter(wiring.Component):
    """Bytes to a serial line, each taking ten bits and one cycle.

    Members
    -------
    bytes : ``In(stream.Signature(8))``
        Ready while the line is idle.
    tx : ``Out(1)``
        The line; 1 is idle.
    """

    def __init__(self, params: UartParams) -> None:
        self.params = params
        super().__init__({
            "bytes": In(stream.Signature(_DATA_BITS)),
            "tx": Out(1, init=1),
        })

    def elaborate(self, platform):
        m = Module()
        divisor = self.params.divisor
        timer = Signal(range(divisor))
        # The remaining bits, with the stop bit at the top.
        rest = Signal(_DATA_BITS + 1)
        busy = Signal()

        m.d.comb += self.bytes.ready.eq(~busy)
        with m.If(~busy), m.If(self.bytes.valid):
            m.d.sync += [
                busy.eq(1), self.tx.eq(0), rest.eq(Cat(self.bytes.payload, 1)),
                timer.eq(divisor - 1)]
        with m.Elif(timer == 0):
            m.d.sync += timer.eq(divisor - 1)
            with m.If(rest.any()):
                m.d.sync += [self.tx.eq(rest[0]), rest.eq(rest[1:])]
            with m.Else():
                m.d.sync += busy.eq(0)
        with m.Else():
            m.d.sync += timer.eq(timer - 1)
        return m
