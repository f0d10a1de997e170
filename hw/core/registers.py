"""The core behind registers on a bus: for a processor that gives prompts and takes tokens."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.core import Core
from sterna.hw.core.image_reader import ImageStatus
from sterna.hw.core.linear_image import MAGIC, format_digest
from sterna.hw.memory.axi_reader import AxiReader, AxiReadParams

__all__ = ["EVENT_MEANINGS", "Bus", "Event", "Register", "RegisterCore"]

_WORD_BITS = 32
_ADDRESS_BITS = 12      # of the registers: a page
_BASE_BITS = 40         # of an address in memory
_AXI_ERROR = 2          # SLVERR


class Bus(enum.Enum):
    """What the registers are on."""

    AXI4_LITE = "axi4-lite"
    WISHBONE = "wishbone"   #: classic cycles


class Event(enum.IntEnum):
    """Bits of the registers ``EVENTS`` and ``ENABLE``; ``EVENT_MEANINGS`` says what they are."""

    CAN_SEND = 0
    TOKEN = 1
    LOGITS = 2
    STOPPED = 3
    REFUSED = 4


EVENT_MEANINGS = {
    Event.CAN_SEND: "a prompt token can be sent",
    Event.TOKEN: "a generated token waits",
    Event.LOGITS: "a word of logits waits",
    Event.STOPPED: "`STATUS` is neither loading (0) nor running (1)",
    Event.REFUSED: "a `SEND` or `TAKE` did nothing; write a 1 to clear it",
}
"""What each event says, in the map of registers."""

_PROMPT_MEANINGS = {
    "sequence": "whose token it is", "token": "the token", "start": "whether it begins a text",
    "predict": "whether to generate after it",
    "stop": "whether `PROMPT_STOP_TOKEN` ends the text early", "stop_token": "that token",
    "limit": "tokens to generate; 0 for the logits alone",
    "beta": "log2(e) / T * 1024, rounded, for temperature T; 0 for the most likely token",
    "seed": "of the random numbers, with `PROMPT_START`; 0 counts as 1"}


@dataclass(frozen=True, slots=True, eq=False)
class Register:
    """A register of 32 bits; those above ``bits`` are 0.

    ``read`` is what a read gives, ``written`` keeps what is written, ``strobe`` is high for the
    cycle after a write, ``beyond`` keeps whether what was written had more than its bits.
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


class _RegisterFile(wiring.Component):
    """Registers for an access in each cycle at most.

    Members
    -------
    access, address, writes, whole, data : ``In``
        In this cycle the register of a byte address is read, or written, all four bytes of it.
    answer, error : ``Out``
        In the next cycle: its contents, and whether it cannot be accessed like this.
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
                m.d.sync += each.beyond.eq(self.data[each.bits:].any())
            if each.strobe is not None:
                m.d.sync += each.strobe.eq(1)


class RegisterCore(wiring.Component):
    """A core with its prompts, tokens, logits and status in registers, and an interrupt.

    With ``port_bits``, 32 to 512, it reads its model as an AXI4 master. It begins in reset then,
    and when a reset ends, all words that were asked for have come. ValueError for another width.

    Members
    -------
    s_axi_... or wb_...
        The bus of the registers: AXI4-Lite, or Wishbone with addresses of words.
    irq : ``Out(1)``
        High while an event is that ``ENABLE`` has.
    m_axi_...
        With a port, of :class:`~sterna.hw.memory.axi_reader.AxiReader`.
    """

    def __init__(self, core: Core, bus: Bus) -> None:
        self.params = params = core.params
        self.bus = bus
        self.core = core
        self.reader = AxiReader(
            AxiReadParams(params.port_bits, address_bits=_BASE_BITS),
            params.address_bits) if params.port_bits else None
        self.registers = self._map()
        members = {"irq": Out(1), **_MEMBERS[bus]}
        if self.reader:
            members |= {name: member for name, member in self.reader.signature.members.items()
                        if name.startswith("m_axi_")}
        super().__init__(members)

    def _map(self) -> tuple[Register, ...]:
        params, core = self.params, self.core
        self._events, self._enable = Signal(len(Event)), Signal(len(Event))
        self._clear, self._clears = Signal(len(Event)), Signal()
        self._resets, self._keeps = Signal(init=bool(self.reader)), Signal()
        self._base = Signal(_BASE_BITS)
        self._send, self._take_token, self._take_logits = Signal(), Signal(), Signal()
        control = Cat(self._resets, self._keeps)
        found = [
            Register("MAGIC", "the letters STRN", 32, Const(MAGIC, 32)),
            Register("SEQUENCES", "sequences of the core", 7, Const(params.sequences, 7)),
            Register("EVENTS", "what there is to do, a bit each", len(Event), self._events,
                     self._clear, self._clears),
            Register("ENABLE", "the events that raise the interrupt", len(Event), self._enable,
                     self._enable),
            Register("CONTROL", "bit 0 holds the core in reset; bit 1 keeps logits until they are "
                     "taken", 2, control, control),
        ]
        if self.reader:
            found += [
                Register("STATUS", "what became of the image", 3, Value.cast(core.status)),
                Register("DIGEST", "of the images that the core takes", 32,
                         Const(format_digest(params), 32)),
                *(Register(f"BASE_{name}", f"{name.lower()} bits of the image's address in memory, "
                           "a multiple of 4096", len(part), part, part)
                  for name, part in (("LOW", self._base[:32]), ("HIGH", self._base[32:])))]
        self._prompt = Signal(core.prompts.payload.shape())
        shape: StructLayout = self._prompt.shape()
        self._beyond = Signal(len(shape.members))
        for index, (name, field) in enumerate(shape):
            part = Value.cast(self._prompt[name])
            found.append(Register(f"PROMPT_{name.upper()}", _PROMPT_MEANINGS[name], field.width,
                                  written=part, beyond=self._beyond[index]))
        found.append(Register("PROMPT_SEND", "a write sends the token", 1, strobe=self._send))
        for prefix, stream, take in (("TOKEN", core.tokens, self._take_token),
                                     ("LOGITS", core.logits, self._take_logits)):
            for name, field in stream.payload.shape():
                bits = Value.cast(stream.payload[name])
                for low in range(0, field.width, _WORD_BITS):
                    part = bits[low:low + _WORD_BITS]
                    number = f"_{low // _WORD_BITS}" if field.width > _WORD_BITS else ""
                    found.append(Register(
                        f"{prefix}_{name.upper()}{number}", f"{name} of what waits", len(part),
                        part))
            found.append(Register(f"{prefix}_TAKE", "a write takes it", 1, strobe=take))
        return tuple(found)

    def elaborate(self, platform):
        m = Module()
        params, core, reader = self.params, self.core, self.reader
        m.submodules.registers = registers = _RegisterFile(self.registers)
        _CONNECT[self.bus](m, self, registers)

        held = Signal(init=bool(reader))
        m.submodules.core = ResetInserter(held)(core)
        if reader:
            # What it is still waiting for comes first.
            m.submodules.reader = ResetInserter(held & reader.idle)(reader)
            m.d.sync += held.eq(self._resets | (held & ~reader.idle))
            m.d.comb += [
                reader.base.eq(self._base), core.failed.eq(reader.failed),
                reader.reads.payload.eq(core.reads.payload),
                reader.reads.valid.eq(core.reads.valid & ~held),
                core.reads.ready.eq(reader.reads.ready & ~held),
                core.data.payload.eq(reader.data.payload), core.data.valid.eq(reader.data.valid),
                reader.data.ready.eq(core.data.ready | held)]
            for name in self.signature.members:
                if name.startswith("m_axi_"):
                    mine, its = getattr(self, name), getattr(reader, name)
                    m.d.comb += (mine.eq(its) if self.signature.members[name].flow is Out else
                                 its.eq(mine))
            stopped = ~((core.status == ImageStatus.LOADING)
                        | (core.status == ImageStatus.RUNNING))
        else:
            m.d.sync += held.eq(self._resets)
            stopped = Const(0)

        # A prompt token goes when all of it is in range, and none waits.
        sends, fits, refused = Signal(), Signal(), Signal()
        waits = Signal()
        token = self._prompt.token
        m.d.comb += [
            fits.eq(~self._beyond.any() & (self._prompt.sequence < params.sequences)
                    & (token < params.vocab)),
            sends.eq(self._send & fits & ~waits & ~held),
            core.prompts.valid.eq(waits),
            core.tokens.ready.eq(self._take_token),
            core.logits.ready.eq(self._take_logits | ~self._keeps),
        ]
        with m.If(sends):
            m.d.sync += [waits.eq(1), core.prompts.payload.eq(self._prompt)]
        with m.Elif(core.prompts.ready | held):
            m.d.sync += waits.eq(0)
        m.d.sync += refused.eq(
            (refused & ~(self._clears & self._clear[Event.REFUSED]))
            | (self._send & ~sends) | (self._take_token & ~core.tokens.valid)
            | (self._take_logits & ~core.logits.valid))
        events = {Event.CAN_SEND: ~waits & ~held, Event.TOKEN: core.tokens.valid,
                  Event.LOGITS: core.logits.valid & self._keeps, Event.STOPPED: stopped,
                  Event.REFUSED: refused}
        m.d.comb += [self._events[event].eq(value) for event, value in events.items()]
        m.d.sync += self.irq.eq((self._events & self._enable).any())
        return m


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


def _connect_axi(m: Module, core: RegisterCore, registers: _RegisterFile) -> None:
    writes, reads, answered = Signal(), Signal(), Signal()
    m.d.comb += [
        answered.eq(core.s_axi_bvalid | core.s_axi_rvalid),
        writes.eq(core.s_axi_awvalid & core.s_axi_wvalid & ~answered),
        reads.eq(core.s_axi_arvalid & ~writes & ~answered),
        core.s_axi_awready.eq(writes), core.s_axi_wready.eq(writes), core.s_axi_arready.eq(reads),
        registers.access.eq(writes | reads), registers.writes.eq(writes),
        registers.address.eq(Mux(writes, core.s_axi_awaddr, core.s_axi_araddr)),
        registers.whole.eq(core.s_axi_wstrb.all()), registers.data.eq(core.s_axi_wdata),
        core.s_axi_rdata.eq(registers.answer),
        core.s_axi_bresp.eq(Mux(registers.error, _AXI_ERROR, 0)),
        core.s_axi_rresp.eq(Mux(registers.error, _AXI_ERROR, 0)),
    ]
    m.d.sync += [core.s_axi_bvalid.eq(writes | (core.s_axi_bvalid & ~core.s_axi_bready)),
                 core.s_axi_rvalid.eq(reads | (core.s_axi_rvalid & ~core.s_axi_rready))]


def _connect_wishbone(m: Module, core: RegisterCore, registers: _RegisterFile) -> None:
    answered = Signal()
    asks = core.wb_cyc & core.wb_stb
    m.d.sync += answered.eq(asks & ~answered)
    m.d.comb += [
        registers.access.eq(asks & ~answered), registers.writes.eq(core.wb_we),
        registers.address.eq(Cat(Const(0, 2), core.wb_adr)),
        registers.whole.eq(core.wb_sel.all()), registers.data.eq(core.wb_dat_w),
        core.wb_dat_r.eq(registers.answer),
        core.wb_ack.eq(asks & answered & ~registers.error),
        core.wb_err.eq(asks & answered & registers.error),
    ]


_CONNECT = {Bus.AXI4_LITE: _connect_axi, Bus.WISHBONE: _connect_wishbone}
