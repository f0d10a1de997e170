"""The norm: turns the vectors of the sequences, one by one, into activations and scales."""

from __future__ import annotations

from typing import NamedTuple

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout, View
from amaranth.lib.wiring import In, Out

from sterna.hw.core.params.geometry import MAX_SLOTS, Geometry
from sterna.hw.parts.arithmetic import round_shift, square_of, square_parts
from sterna.hw.parts.digit_serial import ConstantDivider, IntegerRoot
from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.parts.reciprocal_table import ReciprocalTable

__all__ = [
    "ACT_STEPS", "READ_AHEAD", "Norm", "act_layout", "coming_layout", "norm_taps", "scale_layout",
    "sum_steps"]

_READ_STEPS = 2     # from the address of a chunk to the chunk: memory, its register
READ_AHEAD = _READ_STEPS + 1
"""Cycles by which reading a vector may precede its reciprocal: they meet at the multipliers."""
ACT_STEPS = READ_AHEAD + 3
"""Cycles from reading a chunk to its activations: two for the product, one for rounding."""


def sum_steps(params: Geometry) -> int:
    """Cycles from the last activations of a vector to the start of its root: two for squares, then
    their adder tree and the sum."""
    return 2 + (params.quant_lanes - 1).bit_length() + 1


def act_layout(params: Geometry) -> StructLayout:
    """A chunk of activations for the clusters.

    ``chunk``: its index in the tile. ``tile_ends`` and ``last``: last chunk of a tile, of the
    vector.
    """
    per_tile = params.cols // params.quant_lanes
    return StructLayout({
        "phase": 1, "sequence": params.batch_bits, "tile": range(max(params.tiles, 2)),
        "chunk": range(max(per_tile, 2)), "tile_ends": 1, "last": 1,
        "q": ArrayLayout(signed(params.profile.act_bits), params.quant_lanes)})


def coming_layout() -> StructLayout:
    """Fields of a chunk of activations known a cycle ahead."""
    return StructLayout({"phase": 1, "tile_ends": 1, "last": 1})


def scale_layout(params: Geometry) -> StructLayout:
    """The scale of a slot."""
    return StructLayout({
        "phase": 1, "sequence": params.batch_bits, "slot": range(MAX_SLOTS),
        "scale": unsigned(params.profile.scale_bits)})


def norm_taps(params: Geometry) -> StructLayout:
    """Trace lanes: maximum and reciprocal, sum of squares and root, and the scale ``v``."""
    norm = params.norm
    return StructLayout({
        "maximum": params.tap_layout(m=unsigned(norm.y_bits), r=unsigned(norm.r_bits)),
        "root": params.tap_layout(s=unsigned(norm.sum_bits), n=unsigned(norm.norm_bits)),
        "scale": params.tap_layout(v=unsigned(norm.scale_bits))})


class _Chunk(NamedTuple):
    """Activations of a vector, whether they are its first, and whether all of it are zeros."""

    valid: Signal
    first: Signal
    silent: Signal
    acts: View


class Norm(wiring.Component):
    """8-bit activations and scales: ``sterna.model.quantized.integer.norm_quant``.

    A job is the vectors of a phase. Three vectors are in the pipeline: the reciprocal of one
    maximum is looked up, the vector before is multiplied by its reciprocal, and the root of the
    one before that is computed. One table gives the reciprocals of maxima and roots; a compact
    core has a divider for each, which a root waits for.

    Members
    -------
    jobs : ``In(stream.Signature(1))``
        The phase with complete vectors.
    stages : ``In(params.stage_layout).array(phases)``
    phase, sequence : ``Out``
        Vector whose ``maximum`` is read in the same cycle and used from the next one on.
    read_phase, read_sequence, chunk : ``Out``
        Chunk to read; ``word`` follows two cycles later.
    acts, acts_valid, coming, coming_valid : ``Out``
        Activations, and their fields known a cycle ahead.
    scales, scales_valid : ``Out``
        Scales of each slot.
    scaled, scaled_phase : ``Out(1)``
        A sequence's scales follow from the cycle after the next on, one per cycle.
    taps : ``Out(norm_taps(params))``, with a trace
    """

    def __init__(self, params: Geometry) -> None:
        self.params = params
        norm = params.norm
        self.spacing = params.norm_spacing
        super().__init__({
            "jobs": In(stream.Signature(1)),
            "stages": In(params.stage_layout).array(params.phases),
            "phase": Out(1),
            "sequence": Out(params.batch_bits),
            "maximum": In(norm.y_bits),
            "read_phase": Out(1),
            "read_sequence": Out(params.batch_bits),
            "chunk": Out(range(params.chunks)),
            "word": In(ArrayLayout(signed(norm.y_bits), params.quant_lanes)),
            "acts": Out(act_layout(params)),
            "acts_valid": Out(1),
            "coming": Out(coming_layout()),
            "coming_valid": Out(1),
            "scales": Out(scale_layout(params)),
            "scales_valid": Out(1),
            "scaled": Out(1),
            "scaled_phase": Out(1),
        } | ({"taps": Out(norm_taps(params))} if params.trace else {}))

    def elaborate(self, platform):
        m = Module()
        norm = self.params.norm
        steps = Pipeline(m, Const(1))
        self._rooted_sum = Signal(norm.sum_bits, reset_less=True)
        m.submodules.root = root = IntegerRoot(norm.root)
        maximum = steps.register(self.maximum, "largest")
        starts = Signal()
        quotients = self._divide if self.params.compact else self._look_up
        reciprocal, (v, rooted) = quotients(m, steps, starts, maximum, root)
        chunk = self._stream(m, steps, *self._reciprocals(
            m, steps, starts, maximum, root.done, *reciprocal))
        owner = self._sum(m, steps, root, chunk)
        # With a divider, the next root begins only after this quotient is done.
        whose = owner.shape()(steps.delay(
            owner, 0 if self.params.compact else norm.quotient_steps, "whose"))
        self._scale(m, steps, rooted, whose, v)
        self._show(m, "root", root.done, owner, {"n": root.root, "s": self._rooted_sum})
        self._show(m, "scale", rooted, whose, {"v": v})
        return m

    def _look_up(self, m, steps, starts, maximum, root):
        """Return (reciprocal of the maximum, whether its vector may be read, whether it is valid),
        (reciprocal of the root, whether it is valid)."""
        norm, profile = self.params.norm, self.params.profile
        m.submodules.table = table = ReciprocalTable(norm.table)
        m.d.comb += [
            table.start.eq(starts | root.done),
            table.divisor.eq(Mux(root.done, root.root, maximum)),
        ]
        # floor(floor(a * 2^j / d) / 2^j) = floor(a / d)
        r = table.quotient >> norm.table.frac_bits - profile.reciprocal_bits
        v = table.quotient >> norm.table.frac_bits - profile.scale_frac - profile.root_frac
        flags = steps.flags(starts, norm.table.latency, "found")
        rooted = steps.flags(root.done, norm.table.latency, "rooted")[-1]
        return ((r[:norm.r_bits], flags[-1 - READ_AHEAD], flags[-1]),
                (v[:norm.scale_bits], rooted))

    def _divide(self, m, steps, starts, maximum, root):
        """As :meth:`_look_up`, with two dividers instead of the table."""
        norm = self.params.norm
        m.submodules.reciprocal = reciprocal = ConstantDivider(norm.reciprocal)
        m.submodules.scale = scale = ConstantDivider(norm.scale)
        m.d.comb += [
            reciprocal.start.eq(starts), reciprocal.divisor.eq(maximum),
            scale.start.eq(root.done), scale.divisor.eq(root.root),
        ]
        return ((reciprocal.quotient, reciprocal.done, reciprocal.done),
                (scale.quotient, scale.done))

    def _show(self, m, lane, valid, owner, values):
        params = self.params
        if params.trace:
            tap = self.taps[lane]
            m.d.comb += [tap.valid.eq(valid),
                         tap.sequence.eq(params.sequence_of(owner.phase, owner.sequence)),
                         *(tap[name].eq(value) for name, value in values.items())]

    def _reciprocals(self, m, steps, starts, maximum, rooted, r, soon, found):
        """Request the reciprocal of the next vector's maximum; return (whether it is ready, signal
        to set when it is taken, the vector: reciprocal, whether it is all zero, its owner)."""
        params, norm = self.params, self.params.norm
        active, waiting, ready, taken = Signal(), Signal(), Signal(), Signal()
        settled = steps.flags(active, 1, "settled")[-1]     # the maximum is that of the job
        vector = Signal(StructLayout({
            "r": norm.r_bits, "silent": 1, "phase": 1, "sequence": params.batch_bits,
            "chunks": range(params.chunks + 1), "gap": range(self.spacing + 1)}), reset_less=True)
        ends = Signal()
        m.d.comb += [
            starts.eq(active & settled & ~waiting & ~ready & ~rooted),
            ends.eq(starts & (self.sequence == params.batch - 1)),
            self.jobs.ready.eq(~active),
        ]
        chunks = Array(self.stages)[self.phase].chunks
        with m.If(starts):
            m.d.sync += [
                waiting.eq(1), vector.silent.eq(~maximum.any()), vector.chunks.eq(chunks),
                vector.gap.eq(Mux(chunks < self.spacing, self.spacing - chunks, 0)),
                vector.phase.eq(self.phase), vector.sequence.eq(self.sequence),
                self.sequence.eq(Mux(ends, 0, self.sequence + 1))]
        with m.If(self.jobs.ready):
            m.d.sync += [active.eq(self.jobs.valid), self.phase.eq(self.jobs.payload)]
        with m.If(ends):
            m.d.sync += active.eq(0)
        with m.If(found):
            m.d.sync += vector.r.eq(r)
        if params.trace:
            owner = StructLayout({"phase": 1, "sequence": params.batch_bits})(steps.delay(
                Cat(self.phase, self.sequence), norm.reciprocal_steps, "found_of"))
            self._show(m, "maximum", found, owner, {
                "r": r, "m": steps.delay(maximum, norm.reciprocal_steps, "found_maximum")})
        with m.If(soon):
            m.d.sync += waiting.eq(0)
        with m.If(soon | taken):
            m.d.sync += ready.eq(soon)
        return ready, taken, vector

    def _stream(self, m, steps, ready, taken, following):
        """Read, multiply and round a vector; return its :class:`_Chunk`s."""
        params, norm, profile = self.params, self.params.norm, self.params.profile
        active, first = Signal(), Signal()
        all_zero = Signal(reset_less=True)
        last, tile_ends = Signal(), Signal()
        per_tile = params.cols // params.quant_lanes
        tile, part = Signal(range(max(params.tiles, 2))), Signal(range(max(per_tile, 2)))
        left = Signal(range(params.chunks + 1))
        rest = Signal(range(self.spacing + 1), init=self.spacing)
        m.d.comb += [
            tile_ends.eq(last | (part == per_tile - 1)),
            taken.eq(ready & Mux(active, last & ~following.gap.any(), rest >= following.gap)),
        ]
        with m.If(active & last):
            m.d.sync += rest.eq(0)
        with m.Elif(rest != self.spacing):
            m.d.sync += rest.eq(rest + 1)
        with m.If(active):
            m.d.sync += [
                self.chunk.eq(self.chunk + 1), left.eq(left - 1), last.eq(left == 2), first.eq(0),
                part.eq(Mux(tile_ends, 0, part + 1)), active.eq(~last)]
            with m.If(tile_ends):
                m.d.sync += tile.eq(tile + 1)
        with m.If(taken):
            m.d.sync += [
                active.eq(1), first.eq(1), all_zero.eq(following.silent),
                self.chunk.eq(0), left.eq(following.chunks), last.eq(following.chunks == 1),
                part.eq(0), tile.eq(0), self.read_phase.eq(following.phase),
                self.read_sequence.eq(following.sequence)]

        # Chunk and reciprocal meet at the multipliers.
        valid = steps.flags(active, ACT_STEPS, "valid")
        factor = Signal(norm.r_bits, reset_less=True)
        with m.If(steps.delay(first, _READ_STEPS, "first_read") & valid[_READ_STEPS]):
            m.d.sync += factor.eq(following.r)
        half, product_bits = profile.reciprocal_bits - 1, profile.act_bits + profile.reciprocal_bits
        acts = Signal(act_layout(params))
        for lane in range(params.quant_lanes):
            y = steps.register(self.word[lane], f"y{lane}")
            total = steps.register(y * factor[:norm.low_bits], f"low{lane}")
            if norm.low_bits < norm.r_bits:
                high = steps.register(y * factor[norm.low_bits:], f"high{lane}")
                total = total + Cat(Const(0, norm.low_bits), high).as_signed()
            # A product is at most 127 << k in magnitude; below its half only k - 1 bits follow.
            halves = steps.register(total[half:product_bits].as_signed(), f"halves{lane}")
            q = steps.register(round_shift(halves, 1)[:profile.act_bits].as_signed(), f"q{lane}")
            m.d.comb += acts.q[lane].eq(q)
        for name, value in (("phase", self.read_phase), ("sequence", self.read_sequence),
                            ("tile", tile), ("chunk", part), ("tile_ends", tile_ends),
                            ("last", last)):
            before = steps.delay(value, ACT_STEPS - 1, f"acts_{name}")
            m.d.comb += acts[name].eq(steps.register(before, f"acts_{name}"))
            if name in self.coming.shape().members:
                m.d.comb += self.coming[name].eq(before)
        m.d.comb += [self.acts.eq(acts), self.acts_valid.eq(valid[-1]),
                     self.coming_valid.eq(valid[-2])]
        return _Chunk(valid[-1], steps.delay(first, ACT_STEPS, "acts_first"),
                      steps.delay(all_zero, ACT_STEPS, "acts_silent"), acts)

    def _sum(self, m, steps, root, chunk):
        """Sum the squares and start the root; return the owner of the root."""
        params, norm, acts = self.params, self.params.norm, chunk.acts
        level = []
        for lane in range(params.quant_lanes):
            parts = [steps.register(each, f"square{lane}_{index}")
                     for index, each in enumerate(square_parts(acts.q[lane]))]
            square = square_of((parts[0], parts[1]))[:norm.square_bits]
            level.append(steps.register(square, f"square{lane}"))
        depth = 0
        while len(level) > 1:
            depth += 1
            level = [steps.register(sum(level[i + 1:i + 2], start=level[i]), f"sum{depth}_{i}")
                     for i in range(0, len(level), 2)]
        latency = sum_steps(params) - 1
        arrived = steps.flags(chunk.valid, latency, "squared")[-1]
        total = Signal(norm.sum_bits, reset_less=True)
        begins = steps.delay(chunk.first, latency, "sum_begins")
        with m.If(arrived):
            m.d.sync += total.eq(Mux(begins, 0, total) + level[0])
        complete = steps.flags(chunk.valid & acts.last, latency + 1, "summed")[-1]
        owner = Signal(StructLayout({"phase": 1, "sequence": params.batch_bits}))
        m.d.comb += [
            root.start.eq(complete),
            # An all-zero vector takes the root of 127^2.
            root.value.eq(Mux(
                steps.delay(chunk.silent, latency + 1, "sum_silent"), 127 ** 2, total)),
        ]
        phase_and_sequence = steps.delay(Cat(acts.phase, acts.sequence), latency + 1, "sum_of")
        with m.If(complete):
            m.d.sync += Cat(owner.phase, owner.sequence).eq(phase_and_sequence)
            if params.trace:
                m.d.sync += self._rooted_sum.eq(total)
        return owner

    def _scale(self, m, steps, rooted, whose, value):
        """Compute ``A = rs(V * K, combine_shift)`` of each slot, one by one."""
        params, profile = self.params, self.params.profile
        v = Signal(len(value), reset_less=True)
        owner = Signal(StructLayout({"phase": 1, "sequence": params.batch_bits}))
        slot, active = Signal(range(MAX_SLOTS)), Signal()
        mantissa = Signal(profile.mantissa_bits, reset_less=True)
        with m.If(rooted):
            m.d.sync += [v.eq(value), owner.eq(whose), slot.eq(0), active.eq(1),
                         mantissa.eq(Array(self.stages)[whose.phase].k[0])]
        with m.Elif(active):
            k = Array(self.stages)[owner.phase].k
            m.d.sync += [slot.eq(slot + 1), active.eq(slot != MAX_SLOTS - 1),
                         mantissa.eq(Array(k[i] for i in range(1, MAX_SLOTS))[slot])]
        product = steps.register(v * mantissa, "product")
        scale = round_shift(product, profile.combine_shift)[:profile.scale_bits]
        m.d.comb += [
            self.scaled.eq(rooted), self.scaled_phase.eq(whose.phase),
            self.scales_valid.eq(steps.flags(active, 1, "scaled")[-1]),
            self.scales.phase.eq(steps.delay(owner.phase, 1, "scale_phase")),
            self.scales.sequence.eq(steps.delay(owner.sequence, 1, "scale_sequence")),
            self.scales.slot.eq(steps.delay(slot, 1, "scale_slot")),
            self.scales.scale.eq(scale),
        ]
