"""Linear reads as bursts on AXI4, optionally in a separate clock domain."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import DomainRenamer, Module, Mux, Signal
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from sterna.model.checks import check_whole

__all__ = ["AxiReadParams", "AxiReader"]

_PAGE_BYTES = 4096      # a burst crosses no such boundary
_MOST_BEATS = 256       # of a burst
_INCREMENTING = 1
_CROSSING_WORDS = 32    # depth of the queue between two clocks


@dataclass(frozen=True, slots=True)
class AxiReadParams:
    """An AXI4 bus to read from.

    >>> AxiReadParams(64).beats, AxiReadParams(512).beats
    (256, 64)
    """

    data_bits: int  #: 32 to 512, a power of two
    address_bits: int = 32
    outstanding: int = 16  #: most bursts with words still to arrive
    id_bits: int = 1  #: every burst has ID 0, so words arrive in order
    own_clock: bool = False  #: the bus runs on the clock of domain ``axi``

    def __post_init__(self) -> None:
        check_whole("data_bits", self.data_bits, 32, 512)
        check_whole("address_bits", self.address_bits, 12, 64)
        check_whole("outstanding", self.outstanding, 1, 256)
        check_whole("id_bits", self.id_bits, 1, 16)
        if self.data_bits & self.data_bits - 1:
            raise ValueError(f"data_bits must be a power of two, got {self.data_bits}")

    @property
    def beats(self) -> int:
        """Most beats of a burst, which crosses no multiple of their size."""
        return min(_PAGE_BYTES // (self.data_bits // 8), _MOST_BEATS)


class AxiReader(wiring.Component):
    """Splits linear reads into bursts.

    Words are passed on as they arrive: the bus waits unless there is room for all requested words.
    With ``own_clock`` the AXI part is in the clock domain ``axi``; both domains must be reset
    together.

    Members
    -------
    reads : ``In(stream.Signature(StructLayout))``
        ``count`` words starting at word ``address``.
    data : ``Out(stream.Signature(data_bits))``
    base : ``In(address_bits)``
        Address of word 0 in bytes, a multiple of 4096; stable during reads.
    failed : ``Out(1)``
        A word has arrived with an error since the reset.
    idle : ``Out(1)``
        All requested words have been taken.
    m_axi_ar..., m_axi_r...
        AXI4, without the signals that such reads do not need.
    """

    def __init__(self, params: AxiReadParams, count_bits: int) -> None:
        self.params = params
        read = StructLayout({"address": count_bits, "count": count_bits})
        super().__init__({
            "reads": In(stream.Signature(read)),
            "data": Out(stream.Signature(params.data_bits)),
            "base": In(params.address_bits),
            "failed": Out(1),
            "idle": Out(1, init=1),
            "m_axi_araddr": Out(params.address_bits), "m_axi_arlen": Out(8), "m_axi_arsize": Out(3),
            "m_axi_arburst": Out(2), "m_axi_arid": Out(params.id_bits),
            "m_axi_arvalid": Out(1), "m_axi_arready": In(1),
            "m_axi_rdata": In(params.data_bits), "m_axi_rresp": In(2), "m_axi_rlast": In(1),
            "m_axi_rid": In(params.id_bits), "m_axi_rvalid": In(1), "m_axi_rready": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        # Also counts requests queued before the bursts.
        due = Signal(len(self.reads.payload.count) + 3)
        more = Mux(self.reads.valid & self.reads.ready, self.reads.payload.count, 0)
        m.d.sync += due.eq(due + more - (self.data.valid & self.data.ready))
        m.d.comb += self.idle.eq(~due.any())
        if not self.params.own_clock:
            self._bursts(m, self.reads, self.data, self.failed)
            return m
        m.submodules.asked = asked = fifo.AsyncFIFO(
            width=self.reads.payload.shape().size, depth=4, w_domain="sync", r_domain="axi")
        m.submodules.come = come = fifo.AsyncFIFOBuffered(
            width=self.params.data_bits, depth=_CROSSING_WORDS, w_domain="axi", r_domain="sync")
        inner = Module()
        reads = stream.Signature(self.reads.payload.shape()).create()
        data = stream.Signature(self.params.data_bits).create()
        failed = Signal()
        self._bursts(inner, reads, data, failed)
        m.submodules.bursts = DomainRenamer("axi")(inner)
        m.submodules.failed = FFSynchronizer(failed, self.failed)
        m.d.comb += [
            asked.w_data.eq(self.reads.payload), asked.w_en.eq(self.reads.valid),
            self.reads.ready.eq(asked.w_rdy),
            reads.payload.eq(asked.r_data), reads.valid.eq(asked.r_rdy),
            asked.r_en.eq(reads.ready),
            come.w_data.eq(data.payload), come.w_en.eq(data.valid), data.ready.eq(come.w_rdy),
            self.data.payload.eq(come.r_data), self.data.valid.eq(come.r_rdy),
            come.r_en.eq(self.data.ready),
        ]
        return m

    def _bursts(self, m, reads, data, failed):
        params = self.params
        size = (params.data_bits // 8).bit_length() - 1
        address = Signal(reads.payload.address.shape())
        left = Signal(reads.payload.count.shape())
        burst_bits = params.beats.bit_length() - 1
        until = params.beats - address[:burst_bits]
        beats = Signal(range(params.beats + 1))
        pending = Signal(range(params.outstanding + 1))
        asked, came = Signal(), Signal()
        m.d.comb += [
            reads.ready.eq(~left.any() & ~self.m_axi_arvalid),
            asked.eq(self.m_axi_arvalid & self.m_axi_arready),
            came.eq(self.m_axi_rvalid & self.m_axi_rready),
            self.m_axi_arsize.eq(size), self.m_axi_arburst.eq(_INCREMENTING),
            beats.eq(Mux(left < until, left, until)),
            data.valid.eq(self.m_axi_rvalid), data.payload.eq(self.m_axi_rdata),
            self.m_axi_rready.eq(data.ready),
        ]
        m.d.sync += [pending.eq(pending + asked - (came & self.m_axi_rlast)),
                     failed.eq(failed | (came & (self.m_axi_rresp > 1)))]
        with m.If(asked):
            m.d.sync += self.m_axi_arvalid.eq(0)
        may_ask = pending + asked < params.outstanding
        with m.If((~self.m_axi_arvalid | asked) & left.any() & may_ask):
            m.d.sync += [
                self.m_axi_arvalid.eq(1), self.m_axi_arlen.eq(beats - 1),
                self.m_axi_araddr.eq(self.base + (address << size)),
                address.eq(address + beats), left.eq(left - beats)]
        with m.If(reads.valid & reads.ready):
            m.d.sync += [address.eq(reads.payload.address), left.eq(reads.payload.count)]
