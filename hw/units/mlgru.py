"""The MLGRU: the recurrence, with its state memory and sigmoid tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth.hdl import Module, Mux, Signal, signed, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.parts.arithmetic import rounded_sum, saturated_shift, with_rounding_bit
from sterna.hw.parts.memory_attributes import BLOCK_RAM, NEVER_COLLIDES
from sterna.hw.parts.pipeline import Pipeline, advance_of
from sterna.hw.parts.sigmoid_table import SigmoidParams, SigmoidTable, checked_table
from sterna.model.checks import check_whole
from sterna.model.profile import NumericProfile

__all__ = ["MlgruParams", "MlgruUnit"]


@dataclass(frozen=True, slots=True)
class MlgruParams:
    """Geometry and formats of an MLGRU unit.

    >>> from sterna.model.profile import C12
    >>> params = MlgruParams(C12, layers=4, channels=128, lanes=8)
    >>> params.words, params.latency, params.beat_spacing
    (64, 9, 1)
    """

    profile: NumericProfile  #: formats of every number
    #: shape of the state
    layers: int
    channels: int
    lanes: int = 1  #: channels taken per beat
    trace: bool = False  #: whether gates and candidate are output with the results

    def __post_init__(self) -> None:
        check_whole("layers", self.layers, 1, 1024)
        check_whole("channels", self.channels, 1, 1 << 17)
        check_whole("lanes", self.lanes, 1, 65536)
        if self.channels % self.lanes:
            raise ValueError(
                f"channels ({self.channels}) must be a multiple of lanes ({self.lanes})")

    @property
    def beats_per_layer(self) -> int:
        """Beats for all channels of a layer."""
        return self.channels // self.lanes

    @property
    def words(self) -> int:
        """Beats per token; each has one word of the state memory."""
        return self.layers * self.beats_per_layer

    @property
    def memory_words(self) -> int:
        """Depth of the state memory; a memory without an address is not valid Verilog."""
        return max(self.words, 2)

    @property
    def sigmoid(self) -> SigmoidParams:
        """The table of the sigmoids."""
        return SigmoidParams(self.profile)

    @property
    def candidate_step(self) -> int:
        """Step at which c and the old state are needed: product and saturation."""
        return self.sigmoid.latency + 2

    @property
    def read_step(self) -> int:
        """Step at which the old state is read: before the output register of the memory and a
        register that is 0 in the first token of a sequence.
        """
        return self.candidate_step - 3

    @property
    def state_step(self) -> int:
        """Step at which the new state is available: difference, product, sum."""
        return self.candidate_step + 3

    @property
    def latency(self) -> int:
        """Steps from a beat of ``preacts`` to its beat of ``states``: product, saturation."""
        return self.state_step + 2

    @property
    def beat_spacing(self) -> int:
        """Minimum steps from one beat to the next.

        The memory is read at the end of ``read_step`` and written at the end of ``state_step``,
        so beats for the same word, ``words`` beats apart, must be further apart than the
        difference: only a tiny state needs a pause.
        """
        return -(-(self.state_step - self.read_step + 1) // self.words)

    @property
    def preact_layout(self) -> StructLayout:
        """Payload of ``preacts``."""
        lanes = ArrayLayout(signed(self.profile.z.bits), self.lanes)
        return StructLayout({"f": lanes, "c": lanes, "g": lanes, "start": 1})

    @property
    def state_layout(self) -> StructLayout:
        """Payload of ``states``; ``last`` is high with the last beat of a layer."""
        sigmoids = ArrayLayout(unsigned(self.profile.sigmoid_frac), self.lanes)
        candidates = ArrayLayout(signed(self.profile.h.bits), self.lanes)
        return StructLayout({
            "o": ArrayLayout(signed(self.profile.o.bits), self.lanes),
            "h": ArrayLayout(signed(self.profile.h.bits), self.lanes),
            "last": 1,
            **({"f": sigmoids, "g": sigmoids, "c": candidates} if self.trace else {}),
        })


class MlgruLane(wiring.Component):
    """The arithmetic of one channel, ``sterna.model.quantized.records.mlgru_cell``: a pipeline
    that advances while ``advance`` is high. Steps count from the pre-activations.
    """

    def __init__(self, params: MlgruParams, table: Sequence[int]) -> None:
        self.params = params
        self._table = table
        profile = params.profile
        super().__init__({
            "advance": In(1),
            "f": In(signed(profile.z.bits)),
            "c": In(signed(profile.z.bits)),
            "g": In(signed(profile.z.bits)),
            "old_state": In(signed(profile.h.bits)),    # at step params.candidate_step
            "new_state": Out(signed(profile.h.bits)),   # at step params.state_step
            # At step params.latency, like the values they are computed from.
            "o": Out(signed(profile.o.bits)),
            "h": Out(signed(profile.h.bits)),
            **({"forget": Out(unsigned(profile.sigmoid_frac)),
                "gate": Out(unsigned(profile.sigmoid_frac)),
                "candidate": Out(signed(profile.h.bits))} if params.trace else {}),
        })

    def elaborate(self, platform):
        m = Module()
        profile = self.params.profile
        steps = Pipeline(m, self.advance)

        forget, candidate, gate = (
            SigmoidTable(self.params.sigmoid, self._table) for _ in range(3))
        for name, table in (("forget", forget), ("candidate", candidate), ("gate", gate)):
            m.submodules[name] = table
        # The gate has slack, so its source may be late in its step.
        late_g = steps.register(self.g, "late_g")
        for table, z in ((forget, self.f), (candidate, self.c), (gate, late_g)):
            m.d.comb += [table.advance.eq(self.advance), table.z.eq(z)]

        # Candidate: c = z * sigmoid(z).
        z = steps.delay(self.c, candidate.params.latency, "z")
        weighted = steps.register(z * candidate.sigmoid, "weighted")
        most = -profile.z.min * profile.sigmoid_max
        c = saturated_shift(weighted, profile.candidate_shift, profile.h, most)
        c = steps.register(c, "c")

        # State. The definition, (f*h + (2^Ff - f)*c + half) >> Ff, with a single multiplier:
        # f*h + (2^Ff - f)*c = 2^Ff*c + f*(h - c), and a multiple of 2^Ff can be taken out of a
        # floor shift by Ff. As a rounded mean of h and c it fits in h.bits.
        # Operands and products are registered, so that registers of a multiplier can be used.
        f = steps.delay(forget.sigmoid, 3, "f")
        difference = steps.register(self.old_state - c, "difference")
        product = steps.register(f * difference, "product")
        mean = rounded_sum(
            with_rounding_bit(product, profile.sigmoid_frac), steps.delay(c, 2, "mean"))
        new_state = steps.register(mean[:profile.h.bits].as_signed(), "new_state")
        m.d.comb += self.new_state.eq(new_state)

        # Output: o = g * h.
        g = steps.delay(gate.sigmoid, 4, "g")
        gated = steps.register(g * new_state, "gated")
        most = -profile.h.min * profile.sigmoid_max
        o = saturated_shift(gated, profile.output_shift, profile.o, most)
        m.d.comb += self.o.eq(steps.register(o, "o"))
        m.d.comb += self.h.eq(steps.delay(new_state, 2, "h"))

        if self.params.trace:
            m.d.comb += [
                self.forget.eq(steps.delay(f, 2 + 2, "forget")),
                self.gate.eq(steps.delay(g, 2, "gate")),
                self.candidate.eq(steps.delay(c, 3 + 2, "candidate")),
            ]
        return m


class MlgruUnit(wiring.Component):
    """The MLGRU of every layer, with the states of a sequence in its memory.

    Takes the three pre-activations from the requantiser and returns output and new state,
    ``lanes`` channels per beat. Beats are ordered by token, layer and channel; results have the
    same order.

    ``start`` marks layer 0, channel 0 of a new sequence: every state is zero for this token. It
    may occur at any time, even within a token, which then remains incomplete. A reset has the same
    effect on the next beat.

    One beat per cycle (one in ``params.beat_spacing`` cycles if the whole state has fewer words
    than the pipeline has steps between reading and writing it). The pipeline advances as a whole
    and stalls only while a result waits to be taken; results appear ``params.latency`` steps after
    their beat.
    """

    def __init__(self, params: MlgruParams, table: Sequence[int]) -> None:
        self.params = params
        self._table = checked_table(params.profile, table)
        super().__init__({
            "preacts": In(stream.Signature(params.preact_layout)),
            "states": Out(stream.Signature(params.state_layout)),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        advance = advance_of(self.states)
        steps = Pipeline(m, advance)
        taken, address, fresh, last = self._take_beats(m, advance)
        filled = steps.flags(taken, params.latency, "filled")
        m.d.comb += self.states.valid.eq(filled[params.latency])

        # One word per beat: read to arrive with the candidate, written with the new state. A
        # word read in the first token of a sequence is from another sequence.
        word = ArrayLayout(signed(params.profile.h.bits), params.lanes)
        m.submodules.state = state = memory.Memory(
            shape=word, depth=params.memory_words, init=[],
            attrs=BLOCK_RAM | NEVER_COLLIDES)
        read = state.read_port()
        write = state.write_port()
        read_address = steps.delay(address, params.read_step, "address")
        write_address = steps.delay(
            read_address, params.state_step - params.read_step, "write_address")
        old_is_zero = steps.delay(fresh, params.candidate_step - 1, "fresh")
        states = self.states.payload
        m.d.comb += states.last.eq(steps.delay(last, params.latency, "last"))
        m.d.comb += [
            read.addr.eq(read_address),
            read.en.eq(advance),
            write.addr.eq(write_address),
            # While results wait, the same word is rewritten.
            write.en.eq(filled[params.state_step]),
        ]
        read_states = word(steps.register(read.data, "read_states"))

        for index in range(params.lanes):
            m.submodules[f"lane{index}"] = lane = MlgruLane(params, self._table)
            old = steps.register(Mux(old_is_zero, 0, read_states[index]), f"old{index}")
            m.d.comb += [
                lane.advance.eq(advance),
                lane.f.eq(self.preacts.payload.f[index]),
                lane.c.eq(self.preacts.payload.c[index]),
                lane.g.eq(self.preacts.payload.g[index]),
                lane.old_state.eq(old),
                write.data[index].eq(lane.new_state),
                states.o[index].eq(lane.o),
                states.h[index].eq(lane.h),
            ]
            if params.trace:
                m.d.comb += [
                    states.f[index].eq(lane.forget),
                    states.g[index].eq(lane.gate),
                    states.c[index].eq(lane.candidate),
                ]
        return m

    def _take_beats(self, m, advance):
        """Take beats and count them; return (taken, address, whether the state is still zero,
        whether a layer ends).
        """
        params = self.params
        taken = Signal()
        rested = Signal(init=1)
        beat = self.preacts.payload
        position = Signal(range(max(params.words, 2)))
        in_layer = Signal(range(max(params.beats_per_layer, 2)))
        in_first_token = Signal(init=1)
        address, at = Signal.like(position), Signal.like(in_layer)
        fresh, last = Signal(), Signal()

        m.d.comb += [
            self.preacts.ready.eq(advance & rested),
            taken.eq(self.preacts.valid & rested),
            address.eq(Mux(beat.start, 0, position)),
            at.eq(Mux(beat.start, 0, in_layer)),
            fresh.eq(beat.start | in_first_token),
            last.eq(at == params.beats_per_layer - 1),
        ]
        with m.If(advance & taken):
            m.d.sync += in_layer.eq(Mux(last, 0, at + 1))
            with m.If(address == params.words - 1):
                m.d.sync += [position.eq(0), in_first_token.eq(0)]
            with m.Else():
                m.d.sync += [position.eq(address + 1), in_first_token.eq(fresh)]

        if params.beat_spacing > 1:
            rest = Signal(range(params.beat_spacing))
            m.d.comb += rested.eq(~rest.any())
            with m.If(advance & taken):
                m.d.sync += rest.eq(params.beat_spacing - 1)
            with m.Elif(advance & ~rested):
                m.d.sync += rest.eq(rest - 1)
        return taken, address, fresh, last
