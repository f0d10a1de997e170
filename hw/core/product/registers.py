"""A unit behind registers on a bus, for a processor that sends words and takes results."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.image.linear import MAGIC, format_digest
from sterna.hw.core.image.reader import ImageStatus
from sterna.hw.memory.axi_reader import AxiReader, AxiReadParams

__all__ = ["Bus", "Register", "RegisterUnit", "StreamRegisters"]

_WORD_BITS = 32
_ADDRESS_BITS = 12      # of the registers: a page
_BASE_BITS = 40         # of an address in memory
_AXI_ERROR = 2          # SLVERR


class Bus(enum.Enum):
    """Bus of the registers."""

    AXI4_LITE = "axi4-lite"
    WISHBONE = "wishbone"   #: classic cycles


@dataclass(frozen=True, slots=True, eq=False)
class Register:
    """A register of 32 bits; those above ``bits`` are 0, or sign bits of a signed number.

    ``read`` is the value read, ``written`` stores the value written, ``strobe`` is high for one
    cycle after a write, ``beyond`` stores whether the value written exceeded its bits.
    """

    name: str
    meaning: str
    bits: int
    read: Value | None = None
    written: Value | None = None
    strobe: Value | None = None
    beyond: Value | None = None

    @property
    def access(self) -> str:
        """``r``, ``w`` or ``rw``."""
        can_write = self.written is not None or self.strobe is not None
        return ("r" if self.read is not None else "") + ("w" if can_write else "")


@dataclass(frozen=True, slots=True, eq=False)
class StreamRegisters:
    """A stream of a unit in registers: one per field or array element, and one to send, or take,
    the word in the others by a write."""

    prefix: str     #: of their names
    stream: Any
    word: str       #: its contents: ``a prompt token``
    meanings: Mapping[str, str] = field(default_factory=dict)   #: of fields
    below: Mapping[str, int] = field(default_factory=dict)      #: exclusive limits of some fields
    #: For an output stream: words are dropped unless a bit of ``CONTROL`` keeps them.
    is_optional: bool = False

    def parts(self, payload: Any) -> Iterator[tuple[str, str, int, Value]]:
        """Name, meaning, bits and value of each register for a payload."""
        for name, of_field in payload.shape():
            meaning = self.meanings.get(name, f"{name} of what waits")
            own = f"{self.prefix}_{name.upper()}"
            if isinstance(of_field.shape, ArrayLayout):
                bits = of_field.width // of_field.shape.length
                for index in range(of_field.shape.length):
                    yield f"{own}_{index}", f"{meaning}, {index}", bits, payload[name][index]
            else:
                yield own, meaning, of_field.width, payload[name]


class _RegisterFile(wiring.Component):
    """Registers with at most one access per cycle.

    Members
    -------
    access, address, writes, whole, data : ``In``
        The register at a byte address is read or written in this cycle; ``whole``: all four bytes.
    answer, error : ``Out``
        In the next cycle: its contents, and whether the access is invalid.
    """

    def __init__(self, registers: Sequence[Register]) -> None:
        self._registers = registers
        super().__init__({
            "access": In(1), "address": In(_ADDRESS_BITS), "writes": In(1), "whole": In(1),
            "data": In(_WORD_BITS), "answer": Out(_WORD_BITS), "error": Out(1)})

    def elaborate(self, platform):
        m = Module()
        for each in self._registers:
            if each.strobe is not None:
                m.d.sync += each.strobe.eq(0)
        with m.If(self.access):
            m.d.sync += [self.error.eq(1), self.answer.eq(0)]
            with m.Switch(self.address[2:]):
                for index, each in enumerate(self._registers):
                    with m.Case(index):
                        self._register(m, each)
        return m

    def _register(self, m, each):
        with m.If(~self.writes):
            if each.read is not None:
                m.d.sync += [self.error.eq(0), self.answer.eq(each.read)]
        with m.Elif(self.whole):
            if "w" in each.access:
                m.d.sync += self.error.eq(0)
            if each.written is not None:
                m.d.sync += each.written.eq(self.data)
            if each.beyond is not None:
                top = self.data[each.bits - each.written.shape().signed:]
                m.d.sync += each.beyond.eq(
                    top.any() & ~(top.all() if each.written.shape().signed else 0))
            if each.strobe is not None:
                m.d.sync += each.strobe.eq(1)


class RegisterUnit(wiring.Component):
    """A unit with its streams and status in registers, and an interrupt.

    With ``port_bits``, 32 to 512, it reads its model as an AXI4 master. It then starts in reset,
    and a reset ends only after all requested words have arrived. ValueError for another width.

    Members
    -------
    s_axi_... or wb_...
        The bus of the registers: AXI4-Lite, or Wishbone with word addresses.
    irq : ``Out(1)``
        High while an event enabled in ``ENABLE`` is active.
    m_axi_...
        With a port, of :class:`~sterna.hw.memory.axi_reader.AxiReader`.
    """

    def __init__(
        self, unit: Any, bus: Bus, sends: StreamRegisters, takes: Sequence[StreamRegisters],
    ) -> None:
        self.params = params = unit.params
        self.bus, self.unit = bus, unit
        self.sends, self.takes = sends, takes
        self.reader = AxiReader(
            AxiReadParams(params.port_bits, address_bits=_BASE_BITS),
            params.address_bits) if params.port_bits else None
        #: Bits of the registers ``EVENTS`` and ``ENABLE``, lowest first, and their meanings.
        self.events = {
            "CAN_SEND": f"{sends.word} can be sent",
            **{each.prefix: f"{each.word} waits" for each in takes},
            "REFUSED": "a `SEND` or `TAKE` did nothing; write a 1 to clear it",
            **({"STOPPED": "`STATUS` is neither loading (0) nor running (1)"}
               if self.reader else {})}
        self.registers = self._map()
        members = {"irq": Out(1), **_MEMBERS[bus]}
        if self.reader:
            members |= {name: member for name, member in self.reader.signature.members.items()
                        if name.startswith("m_axi_")}
        super().__init__(members)

    def _map(self) -> tuple[Register, ...]:
        params, count = self.params, len(self.events)
        self._events, self._enable = Signal(count), Signal(count)
        self._clear, self._clears = Signal(count), Signal()
        self._resets, self._keeps = Signal(init=bool(self.reader)), Signal()
        self._base = Signal(_BASE_BITS)
        self._send, self._taken = Signal(), [Signal(name=f"take{index}")
                                             for index in range(len(self.takes))]
        kept = [each.prefix.lower() for each in self.takes if each.is_optional]
        control = Cat(self._resets, *([self._keeps] if kept else []))
        found = [
            Register("MAGIC", "the letters STRN", 32, Const(MAGIC, 32)),
            Register("SEQUENCES", "sequences of the unit", 7, Const(params.sequences, 7)),
            Register("EVENTS", "what there is to do, a bit each", count, self._events,
                     self._clear, self._clears),
            Register("ENABLE", "the events that raise the interrupt", count, self._enable,
                     self._enable),
            Register("CONTROL", "bit 0 holds the unit in reset" + "".join(
                f"; bit 1 keeps {each} until they are taken" for each in kept),
                len(control), control, control),
        ]
        if self.reader:
            found += [
                Register("STATUS", "what became of the image", 3, Value.cast(self.unit.status)),
                Register("DIGEST", "of the images that the core takes", 32,
                         Const(format_digest(params), 32)),
                *(Register(f"BASE_{name}", f"{name.lower()} bits of the image's address in memory, "
                           "a multiple of 4096", len(part), part, part)
                  for name, part in (("LOW", self._base[:32]), ("HIGH", self._base[32:])))]
        self._word = Signal(self.sends.stream.payload.shape())
        parts = list(self.sends.parts(self._word))
        self._beyond = Signal(len(parts))
        found += [Register(name, meaning, bits, written=part, beyond=self._beyond[index])
                  for index, (name, meaning, bits, part) in enumerate(parts)]
        found.append(Register(
            f"{self.sends.prefix}_SEND", f"a write sends {self.sends.word}", 1,
            strobe=self._send))
        for each, taken in zip(self.takes, self._taken, strict=True):
            found += [Register(name, meaning, bits, part)
                      for name, meaning, bits, part in each.parts(each.stream.payload)]
            found.append(Register(f"{each.prefix}_TAKE", "a write takes it", 1, strobe=taken))
        return tuple(found)

    def elaborate(self, platform):
        m = Module()
        unit, reader, stream = self.unit, self.reader, self.sends.stream
        m.submodules.registers = registers = _RegisterFile(self.registers)
        _CONNECT[self.bus](m, self, registers)

        held = Signal(init=bool(reader))
        m.submodules.unit = ResetInserter(held)(unit)
        if reader:
            self._read_memory(m, held)
        else:
            m.d.sync += held.eq(self._resets)

        # A word is sent if all of it is in range, and none waits.
        sends, fits, refused, waits = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            fits.eq(~self._beyond.any() & Cat(
                self._word[name] < limit for name, limit in self.sends.below.items()).all()),
            sends.eq(self._send & fits & ~waits & ~held), stream.valid.eq(waits)]
        with m.If(sends):
            m.d.sync += [waits.eq(1), stream.payload.eq(self._word)]
        with m.Elif(stream.ready | held):
            m.d.sync += waits.eq(0)
        offered = {}
        missed = self._send & ~sends
        for each, taken in zip(self.takes, self._taken, strict=True):
            valid, keeps = each.stream.valid, self._keeps if each.is_optional else 1
            m.d.comb += each.stream.ready.eq(taken | ~Value.cast(keeps))
            offered[each.prefix] = valid & keeps
            missed |= taken & ~valid
        clears = dict(zip(self.events, self._clear, strict=True))
        m.d.sync += refused.eq((refused & ~(self._clears & clears["REFUSED"])) | missed)
        events = {"CAN_SEND": ~waits & ~held, **offered, "REFUSED": refused}
        if reader:
            events["STOPPED"] = ~((unit.status == ImageStatus.LOADING)
                                  | (unit.status == ImageStatus.RUNNING))
        m.d.comb += [bit.eq(events[name])
                     for name, bit in zip(self.events, self._events, strict=True)]
        m.d.sync += self.irq.eq((self._events & self._enable).any())
        return m

    def _read_memory(self, m, held):
        """Read the model from a memory; a reset ends once all requested words have arrived."""
        unit, reader = self.unit, self.reader
        m.submodules.reader = ResetInserter(held & reader.idle)(reader)
        m.d.sync += held.eq(self._resets | (held & ~reader.idle))
        m.d.comb += [
            reader.base.eq(self._base), unit.failed.eq(reader.failed),
            reader.reads.payload.eq(unit.reads.payload),
            reader.reads.valid.eq(unit.reads.valid & ~held),
            unit.reads.ready.eq(reader.reads.ready & ~held),
            unit.data.payload.eq(reader.data.payload), unit.data.valid.eq(reader.data.valid),
            reader.data.ready.eq(unit.data.ready | held)]
        for name in self.signature.members:
            if name.startswith("m_axi_"):
                own, inner = getattr(self, name), getattr(reader, name)
                m.d.comb += (own.eq(inner) if self.signature.members[name].flow is Out else
                             inner.eq(own))


_MEMBERS = {
    Bus.AXI4_LITE: {
        "s_axi_awaddr": In(_ADDRESS_BITS), "s_axi_awprot": In(3),
        "s_axi_awvalid": In(1), "s_axi_awready": Out(1),
        "s_axi_wdata": In(_WORD_BITS), "s_axi_wstrb": In(_WORD_BITS // 8),
        "s_axi_wvalid": In(1), "s_axi_wready": Out(1),
        "s_axi_bresp": Out(2), "s_axi_bvalid": Out(1), "s_axi_bready": In(1),
        "s_axi_araddr": In(_ADDRESS_BITS), "s_axi_arprot": In(3),
        "s_axi_arvalid": In(1), "s_axi_arready": Out(1),
        "s_axi_rdata": Out(_WORD_BITS), "s_axi_rresp": Out(2),
        "s_axi_rvalid": Out(1), "s_axi_rready": In(1)},
    Bus.WISHBONE: {
        "wb_cyc": In(1), "wb_stb": In(1), "wb_we": In(1), "wb_adr": In(_ADDRESS_BITS - 2),
        "wb_sel": In(_WORD_BITS // 8), "wb_dat_w": In(_WORD_BITS),
        "wb_dat_r": Out(_WORD_BITS), "wb_ack": Out(1), "wb_err": Out(1)},
}


def _connect_axi(m: Module, unit: RegisterUnit, registers: _RegisterFile) -> None:
    writes, reads, answered = Signal(), Signal(), Signal()
    m.d.comb += [
        answered.eq(unit.s_axi_bvalid | unit.s_axi_rvalid),
        writes.eq(unit.s_axi_awvalid & unit.s_axi_wvalid & ~answered),
        reads.eq(unit.s_axi_arvalid & ~writes & ~answered),
        unit.s_axi_awready.eq(writes), unit.s_axi_wready.eq(writes), unit.s_axi_arready.eq(reads),
        registers.access.eq(writes | reads), registers.writes.eq(writes),
        registers.address.eq(Mux(writes, unit.s_axi_awaddr, unit.s_axi_araddr)),
        registers.whole.eq(unit.s_axi_wstrb.all()), registers.data.eq(unit.s_axi_wdata),
        unit.s_axi_rdata.eq(registers.answer),
        unit.s_axi_bresp.eq(Mux(registers.error, _AXI_ERROR, 0)),
        unit.s_axi_rresp.eq(Mux(registers.error, _AXI_ERROR, 0)),
    ]
    m.d.sync += [unit.s_axi_bvalid.eq(writes | (unit.s_axi_bvalid & ~unit.s_axi_bready)),
                 unit.s_axi_rvalid.eq(reads | (unit.s_axi_rvalid & ~unit.s_axi_rready))]


def _connect_wishbone(m: Module, unit: RegisterUnit, registers: _RegisterFile) -> None:
    answered = Signal()
    asks = unit.wb_cyc & unit.wb_stb
    m.d.sync += answered.eq(asks & ~answered)
    m.d.comb += [
        registers.access.eq(asks & ~answered), registers.writes.eq(unit.wb_we),
        registers.address.eq(Cat(Const(0, 2), unit.wb_adr)),
        registers.whole.eq(unit.wb_sel.all()), registers.data.eq(unit.wb_dat_w),
        unit.wb_dat_r.eq(registers.answer),
        unit.wb_ack.eq(asks & answered & ~registers.error),
        unit.wb_err.eq(asks & answered & registers.error),
    ]


_CONNECT = {Bus.AXI4_LITE: _connect_axi, Bus.WISHBONE: _connect_wishbone}
