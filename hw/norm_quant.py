"""NormQuant in gateware: RMS normalisation and absmax quantisation of a vector in one."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.const_divider import ConstantDivider
from sterna.hw.fixed_point import round_shift
from sterna.hw.norm_front import NormFront
from sterna.hw.norm_params import NormParams
from sterna.hw.norm_scale import NormScale
from sterna.model.profile import NumericProfile

__all__ = ["NormQuant"]


class NormQuant(wiring.Component):
    """8-bit activations and output scale of a vector: ``sterna.model.integer.norm_quant``.

    A vector arrives word by word into the buffer of its sequence, while its absolute maximum
    is found. ``params.max_steps`` cycles after its last word the unit begins with it, if it
    is free: one division gives the reciprocal of the maximum, and the first chunk of
    activations is offered ``params.first_chunk_steps`` cycles after ``service``, a further
    one in each cycle after one was taken. The sum of squares, its root and a second division
    follow; the scale is offered ``params.scale_steps`` cycles after the last chunk was taken.
    The unit is free again ``params.idle_steps`` cycles after the scale was taken.

    Each sequence takes words unless it has a complete vector of which chunks are still to be
    made: its buffer is free again in the cycle in which the last chunk is first offered. One
    vector at a time is worked on; if both sequences wait, the one not served last comes first.

    Nothing can overflow: R * y is at most 127 << k in magnitude, so q is from -127 to 127;
    :class:`~sterna.hw.norm_params.NormParams` has the other bounds.

    Parameters
    ----------
    profile
        Formats of every number.
    rows
        Channels per word.
    lanes
        Elements quantised per cycle; a multiple of ``rows``. Each takes a multiplier for
        ``y * R`` and one for ``q * q``.
    channels
        Channels of the longest vector.
    streams
        Independent sequences, 1 or 2.
    trace
        Whether ``scales`` carries the intermediate values too.
    digit_bits, root_digit_bits
        Bits per cycle of the divisions and of the root.

    Members
    -------
    words : ``In(stream.Signature(params.word_layout)).array(streams)``
        For each sequence, ``y`` of each row and ``last``. A vector has at most
        ``params.words(channels)`` words; rows beyond its channels are 0 in the last one.
    acts : ``Out(stream.Signature(params.act_layout))``
        ``q`` of each lane (0 beyond the last word), ``last`` with the vector's last chunk
        and, if there are several, ``sequence``.
    scales : ``Out(stream.Signature(params.scale_layout))``
        ``v``, ``sequence`` as above and, with ``trace``, ``m``, ``r``, ``s`` and ``n``.
    service : ``Out(1)``
        High in the cycle in which the unit begins with a vector.
    service_sequence : ``Out(unsigned(params.sequence_bits))``
        Its sequence; there if there are several.

    Raises
    ------
    ValueError
        If a number is out of its range or ``lanes`` is no multiple of ``rows``.
    """

    def __init__(
        self, profile: NumericProfile, *, rows: int, lanes: int, channels: int,
        streams: int = 1, trace: bool = False, digit_bits: int = 4, root_digit_bits: int = 2,
    ) -> None:
        self.params = params = NormParams(
            profile, rows, lanes, channels, streams, trace, digit_bits, root_digit_bits)
        members = {
            "words": In(stream.Signature(params.word_layout)).array(streams),
            "acts": Out(stream.Signature(params.act_layout)),
            "scales": Out(stream.Signature(params.scale_layout)),
            "service": Out(1),
        }
        if streams > 1:
            members["service_sequence"] = Out(unsigned(params.sequence_bits))
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        params = self.params
        fronts = []
        for sequence in range(params.streams):
            m.submodules[f"front{sequence}"] = front = NormFront(params)
            wiring.connect(m, wiring.flipped(self.words[sequence]), front.words)
            fronts.append(front)
        choice, serving, maximum = self._choose(m, fronts)

        reciprocal = params.reciprocal
        m.submodules.reciprocal = divider = ConstantDivider(
            reciprocal.frac_bits, reciprocal.divisor_bits, digit_bits=reciprocal.digit_bits)
        m.d.comb += [divider.start.eq(self.service), divider.divisor.eq(maximum)]
        for sequence, front in enumerate(fronts):
            m.d.comb += front.serve.eq(self.service & (choice == sequence))

        self._quantise(m, fronts, serving, divider)
        self._scale(m, serving, divider, maximum)
        return m

    def _choose(self, m, fronts):
        """Begin with a vector; return (its sequence, the sequence since then, its maximum)."""
        busy = Signal()
        with m.If(self.service):
            m.d.sync += busy.eq(1)
        with m.Elif(self.scales.valid & self.scales.ready):
            m.d.sync += busy.eq(0)

        waiting = Cat(front.waiting for front in fronts)
        m.d.comb += self.service.eq(~busy & waiting.any())
        if self.params.streams == 1:
            return 0, 0, fronts[0].maximum

        serving = Signal(self.params.sequence_bits, init=1)
        choice = Mux(waiting.all(), ~serving, waiting[1])
        m.d.comb += self.service_sequence.eq(choice)
        with m.If(self.service):
            m.d.sync += serving.eq(choice)
        maximum = Mux(choice, fronts[1].maximum, fronts[0].maximum)
        return self.service_sequence, serving, maximum

    def _quantise(self, m, fronts, serving, divider):
        """Read the buffer, multiply, round: memory, elements and products are registers.

        The first chunk is in the elements, and the second one read, when R comes.
        """
        params, acts = self.params, self.acts
        prefetch, quantising = Signal(), Signal()
        load, read, step = Signal(), Signal(), Signal()
        m.d.sync += prefetch.eq(self.service)
        m.d.comb += [
            load.eq((divider.done | quantising) & (~acts.valid | acts.ready)),
            step.eq(prefetch | load),
            read.eq(self.service | step),
        ]

        address, chunk_address = Signal(range(params.depth)), Signal(range(params.depth))
        chunk_last, ended = Signal(), Signal()
        for front in fronts:
            m.d.comb += [front.read.eq(read), front.address.eq(address)]
        with m.If(read):
            m.d.sync += [address.eq(address + 1), chunk_address.eq(address)]
        m.d.comb += chunk_last.eq(chunk_address == Array(f.last_chunk for f in fronts)[serving])

        # What lies beyond the last word is from another vector.
        filled = Array(front.filled for front in fronts)[serving]
        chunk = Array(front.chunk.as_value() for front in fronts)[serving]
        bank_bits = params.rows * params.y_bits
        elements = Signal(fronts[0].chunk.shape(), reset_less=True)
        with m.If(step):
            m.d.sync += ended.eq(chunk_last)
            for bank in range(params.banks):
                word = slice(bank * bank_bits, (bank + 1) * bank_bits)
                kept = (~chunk_last | filled[bank]).replicate(bank_bits)
                m.d.sync += elements.as_value()[word].eq(chunk[word] & kept)

        # A product is at most 127 << k in magnitude; below its half only k - 1 bits follow.
        half = params.profile.reciprocal_bits - 1
        product_bits = params.profile.act_bits + params.profile.reciprocal_bits
        for lane in range(params.lanes):
            product = (elements[lane] * divider.quotient)[half:product_bits].as_signed()
            halves = Signal(product.shape(), name=f"halves{lane}", reset_less=True)
            with m.If(load):
                m.d.sync += halves.eq(product)
            m.d.comb += acts.payload.q[lane].eq(round_shift(halves, 1))

        last = Signal(reset_less=True)
        m.d.comb += acts.payload.last.eq(last)
        with m.If(load):
            m.d.sync += [acts.valid.eq(1), last.eq(ended), quantising.eq(~ended)]
            with m.If(ended):
                m.d.sync += address.eq(0)
        with m.Elif(acts.ready):
            m.d.sync += acts.valid.eq(0)
        for sequence, front in enumerate(fronts):
            m.d.comb += front.release.eq(load & ended & (serving == sequence))
        if params.streams > 1:
            m.d.comb += acts.payload.sequence.eq(serving)

    def _scale(self, m, serving, divider, maximum):
        """Make the scale and hold it until it is taken."""
        params, acts, scales = self.params, self.acts, self.scales
        m.submodules.scale = scale = NormScale(params)
        held = Signal()
        m.d.sync += held.eq(scales.valid & ~scales.ready)
        m.d.comb += [
            scale.begin.eq(self.service),
            scale.silent.eq(~maximum.any()),
            scale.taken.eq(acts.valid & acts.ready),
            scale.last.eq(acts.payload.last),
            scale.q.eq(acts.payload.q),
            scales.valid.eq(scale.done | held),
            scales.payload.v.eq(scale.v),
        ]
        if params.streams > 1:
            m.d.comb += scales.payload.sequence.eq(serving)
        if params.trace:
            served_maximum = Signal(params.y_bits, reset_less=True)
            with m.If(self.service):
                m.d.sync += served_maximum.eq(maximum)
            m.d.comb += [
                scales.payload.m.eq(served_maximum),
                scales.payload.r.eq(divider.quotient),
                scales.payload.s.eq(scale.s),
                scales.payload.n.eq(scale.n),
            ]
