"""A controller of single data rate SDRAM: linear reads, and writes to fill it."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import enum, fifo, stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.pipeline import Pipeline
from sterna.model.checks import check_whole

__all__ = ["Command", "SdramController", "SdramParams"]

_FIFO_WORDS = 16    # read, but not yet taken
_REFRESHES = 8      # before the mode is set


class Command(enum.Enum, shape=3):  # type: ignore[call-arg]  # shape is for Amaranth's metaclass
    """The pins RAS, CAS and WE, the lowest last, all of them active low."""

    MODE = 0
    REFRESH = 1
    PRECHARGE = 2
    ACTIVATE = 3
    WRITE = 4
    READ = 5
    NOTHING = 7


@dataclass(frozen=True, slots=True)
class SdramParams:
    """A 16-bit SDRAM, and the clock it shares with its controller.

    The defaults are for 32 MB (MT48LC16M16, IS42S16160, AS4C16M16, W9825G6), with the timing of
    the slowest of these.

    >>> params = SdramParams(100_000_000)
    >>> params.cas_latency, params.cycles(params.row_to_column), params.words
    (2, 2, 16777216)
    """

    clock_hz: int
    row_bits: int = 13
    column_bits: int = 9
    row_to_column: float = 20.0  #: ns from activating a row to reading from it, tRCD
    precharge: float = 20.0  #: ns, tRP
    row_active: float = 45.0  #: minimum ns that a row is active, tRAS
    row_cycle: float = 66.0  #: ns from activating a row to activating the next one, tRC
    refresh: float = 66.0  #: ns, tRFC
    write_recovery: float = 15.0  #: ns from a write to a precharge, tWR
    refresh_interval: float = 7_800.0  #: maximum average ns between refreshes
    start: float = 200_000.0  #: ns before the first command

    def __post_init__(self) -> None:
        check_whole("clock_hz", self.clock_hz, 1_000_000, 166_000_000)
        check_whole("row_bits", self.row_bits, 11, 13)
        check_whole("column_bits", self.column_bits, 8, 10)

    @property
    def cas_latency(self) -> int:
        """Cycles from a read to its word."""
        return 2 if self.clock_hz <= 100_000_000 else 3

    @property
    def words(self) -> int:
        """Words of 16 bits, in four banks."""
        return 4 << self.row_bits + self.column_bits

    @property
    def picoseconds(self) -> dict[str, int]:
        """The clock period and all times, by their data sheet names."""
        names = {
            "rcd": self.row_to_column, "rp": self.precharge, "ras": self.row_active,
            "rc": self.row_cycle, "rfc": self.refresh, "wr": self.write_recovery,
            "refi": self.refresh_interval, "start": self.start}
        return {"period": 10 ** 12 // self.clock_hz,
                **{name: round(1000 * value) for name, value in names.items()}}

    def cycles(self, nanoseconds: float) -> int:
        """Whole cycles that cover this time, at least one."""
        return max(-(-int(nanoseconds * 1000) * self.clock_hz // 10 ** 12), 1)


class SdramController(wiring.Component):
    """Reads consecutive 16-bit words, one per cycle within a row.

    One row is open at a time; consecutive rows rotate through the four banks. Refreshes occur
    between two words. Words are written while there is nothing to read.

    Members
    -------
    reads : ``In(stream.Signature(StructLayout))``
        ``count`` words starting at word ``address``.
    data : ``Out(stream.Signature(16))``
        The words, in the order of the requests.
    writes : ``In(stream.Signature(StructLayout))``
        ``word`` is written to ``address``.
    idle : ``Out(1)``
        Nothing is being read, and all words have been taken.
    command, bank, row, dq_o, dq_oe : ``Out``
        Registers, to the pins. CKE is high; CS and both DQM are low.
    dq_i : ``In(16)``
        Sampled ``cas_latency`` cycles after the memory receives a read, on the same edge.
    """

    def __init__(self, params: SdramParams, address_bits: int) -> None:
        self.params = params
        read = StructLayout({"address": address_bits, "count": address_bits})
        super().__init__({
            "reads": In(stream.Signature(read)),
            "data": Out(stream.Signature(16)),
            "writes": In(stream.Signature(StructLayout({"address": address_bits, "word": 16}))),
            "idle": Out(1),
            "command": Out(Command, init=Command.NOTHING),
            "bank": Out(2),
            "row": Out(params.row_bits),
            "dq_o": Out(16),
            "dq_oe": Out(1),
            "dq_i": In(16),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, Const(1))
        cycles = params.cycles
        # A row may be closed after tRAS, and the next one opened after tRC.
        active = max(cycles(params.row_active), cycles(params.row_cycle) - cycles(params.precharge))
        wait = Signal(range(cycles(params.start) + 1), init=cycles(params.start))
        holds = Signal(range(active + cycles(params.write_recovery) + 1))
        interval = cycles(params.refresh_interval) - 1     # rounded down
        timer = Signal(range(interval), init=interval - 1)
        due = Signal()
        m.d.sync += [
            self.command.eq(Command.NOTHING), self.dq_oe.eq(0),
            wait.eq(Mux(wait == 0, 0, wait - 1)), holds.eq(Mux(holds == 0, 0, holds - 1)),
            timer.eq(Mux(timer == 0, interval - 1, timer - 1)),
        ]
        with m.If(timer == 0):
            m.d.sync += due.eq(1)

        # The current read.
        address = Signal(self.reads.payload.address.shape())
        left = Signal(self.reads.payload.count.shape())
        reads_word, writes_word = Signal(), Signal()
        busy = left.any()
        m.d.comb += self.reads.ready.eq(~busy | (reads_word & (left == 1)))
        with m.If(reads_word):
            m.d.sync += [address.eq(address + 1), left.eq(left - 1)]
        with m.If(self.reads.valid & self.reads.ready):
            m.d.sync += [address.eq(self.reads.payload.address),
                         left.eq(self.reads.payload.count)]
        wanted = Signal(StructLayout(
            {"column": params.column_bits, "bank": 2, "row": params.row_bits}))
        m.d.comb += [wanted.eq(Mux(busy, address, self.writes.payload.address)),
                     self.writes.ready.eq(writes_word)]

        # Words in flight from the memory, and room for them.
        m.submodules.queue = queue = fifo.SyncFIFO(width=16, depth=_FIFO_WORDS)
        latency = 1 + params.cas_latency + 1
        flags = steps.flags(reads_word, latency, "reads")
        kept = Signal(range(_FIFO_WORDS + 1))
        m.d.sync += kept.eq(kept + reads_word - (self.data.valid & self.data.ready))
        m.d.comb += [
            queue.w_data.eq(steps.register(self.dq_i, "dq")), queue.w_en.eq(flags[-1]),
            self.data.valid.eq(queue.r_rdy), self.data.payload.eq(queue.r_data),
            queue.r_en.eq(self.data.ready), self.idle.eq(~busy & (kept == 0)),
        ]

        opened = Signal()
        open_row = Signal(len(wanted.row) + 2)
        hit = opened & (open_row == Cat(wanted.bank, wanted.row))
        refreshes = Signal(range(_REFRESHES + 1), init=_REFRESHES)
        all_banks = 1 << 10
        is_set, closed = Signal(), Signal()
        wants = busy | self.writes.valid
        closes = ~closed | ((due | (wants & ~hit)) & opened)
        with m.If(wait == 0):
            with m.If(closes & (holds == 0)):
                m.d.sync += [self.command.eq(Command.PRECHARGE), self.row.eq(all_banks),
                             opened.eq(0), closed.eq(1), wait.eq(cycles(params.precharge) - 1)]
            with m.Elif(closes):
                pass
            with m.Elif(due | refreshes.any()):
                m.d.sync += [
                    self.command.eq(Command.REFRESH), due.eq(0),
                    refreshes.eq(Mux(refreshes.any(), refreshes - 1, 0)),
                    wait.eq(cycles(params.refresh) - 1)]
            with m.Elif(~is_set):
                # Sequential bursts of one word.
                m.d.sync += [self.command.eq(Command.MODE), self.bank.eq(0),
                             self.row.eq(params.cas_latency << 4), is_set.eq(1), wait.eq(1)]
            with m.Elif(wants & ~hit):
                m.d.sync += [
                    self.command.eq(Command.ACTIVATE), self.bank.eq(wanted.bank),
                    self.row.eq(wanted.row), opened.eq(1),
                    open_row.eq(Cat(wanted.bank, wanted.row)),
                    wait.eq(cycles(params.row_to_column) - 1), holds.eq(active - 1)]
            with m.Elif(busy), m.If(kept != _FIFO_WORDS):
                m.d.comb += reads_word.eq(1)
                m.d.sync += [self.command.eq(Command.READ), self.bank.eq(wanted.bank),
                             self.row.eq(wanted.column)]
            # The memory drives the pins until the last word has arrived.
            with m.Elif(self.writes.valid & ~Cat(flags[1:-1]).any()):
                m.d.comb += writes_word.eq(1)
                m.d.sync += [
                    self.command.eq(Command.WRITE), self.bank.eq(wanted.bank),
                    self.row.eq(wanted.column), self.dq_o.eq(self.writes.payload.word),
                    self.dq_oe.eq(1),
                    holds.eq(Mux(holds > cycles(params.write_recovery), holds - 1,
                                 cycles(params.write_recovery)))]
        return m
