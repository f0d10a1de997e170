"""The MLGRU in gateware: gates, candidate, state memory and output."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.fixed_point import round_shift, saturate
from sterna.hw.params import MlgruParams
from sterna.hw.pipeline import Pipeline
from sterna.hw.sigmoid_table import SigmoidTable, checked_table
from sterna.model.profile import NumericProfile

__all__ = ["MlgruLane", "MlgruUnit"]


class MlgruLane(wiring.Component):
    """The arithmetic of one channel, as ``sterna.model.integer.mlgru_cell`` defines it.

    A pipeline without handshake: it steps when ``advance`` is high. Steps are counted from
    the pre-activations; :class:`~sterna.hw.params.MlgruParams` names those that matter.

    Parameters
    ----------
    params, table
        As for :class:`MlgruUnit`.

    Members
    -------
    advance : ``In(1)``
        Step in this cycle.
    f, c, g : ``In(signed(z.bits))``
        Pre-activations.
    old_state : ``In(signed(h.bits))``
        State before, taken at step ``params.candidate_step``.
    new_state : ``Out(signed(h.bits))``
        State after, at step ``params.state_step``.
    o, h : ``Out(signed(o.bits))``, ``Out(signed(h.bits))``
        Output and state, at step ``params.latency``.
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
            "old_state": In(signed(profile.h.bits)),
            "new_state": Out(signed(profile.h.bits)),
            "o": Out(signed(profile.o.bits)),
            "h": Out(signed(profile.h.bits)),
        })

    def elaborate(self, platform):
        m = Module()
        profile = self.params.profile
        steps = Pipeline(m, self.advance)

        m.submodules.forget = forget = SigmoidTable(profile, self._table)
        m.submodules.candidate = candidate = SigmoidTable(profile, self._table)
        m.submodules.gate = gate = SigmoidTable(profile, self._table)
        for table, z in ((forget, self.f), (candidate, self.c), (gate, self.g)):
            m.d.comb += [table.advance.eq(self.advance), table.z.eq(z)]

        # Candidate: c = z * sigmoid(z).
        z = steps.delay(self.c, candidate.latency, "z")
        weighted = steps.register(z * candidate.sigmoid, "weighted")
        c = steps.register(
            saturate(round_shift(weighted, profile.candidate_shift), profile.h), "c")

        # State. The definition, (f*h + (2^Ff - f)*c + half) >> Ff, is the same number with one
        # multiplier: f*h + (2^Ff - f)*c = 2^Ff*c + f*(h - c), and a multiple of 2^Ff can be
        # taken out of a floor shift by Ff. As a rounded mean of h and c it fits in h.bits.
        f = steps.delay(forget.sigmoid, 3, "f")
        difference = steps.register(self.old_state - c, "difference")
        product = steps.register(f * difference, "product")
        mean = steps.delay(c, 2, "mean") + round_shift(product, profile.sigmoid_frac)
        new_state = steps.register(mean[:profile.h.bits].as_signed(), "new_state")
        m.d.comb += self.new_state.eq(new_state)

        # Output: o = g * h.
        g = steps.delay(gate.sigmoid, 5, "g")
        gated = steps.register(g * new_state, "gated")
        o = saturate(round_shift(gated, profile.output_shift), profile.o)
        m.d.comb += self.o.eq(steps.register(o, "o"))
        m.d.comb += self.h.eq(steps.delay(new_state, 2, "h"))
        return m


class MlgruUnit(wiring.Component):
    """The MLGRU of every layer, with the states of one sequence in its memory.

    Takes the three pre-activations as they leave the requantiser and returns output and
    new state, ``lanes`` channels per beat. Beats come token by token, in a token layer by
    layer, in a layer channel by channel; results come in the same order.

    ``start`` on a beat says: this is layer 0, channel 0 of a new sequence, and every state
    counts as zero for this token. It may come at any time, also in the middle of a token,
    whose rest then never comes. A reset does the same for the first beat after it.

    One beat per cycle (one in ``params.beat_spacing`` cycles if the whole state has fewer
    words than the pipeline has steps between reading and writing it). The pipeline moves
    as a whole and stops only while a result waits to be taken; results appear
    ``params.latency`` steps after their beat.

    Parameters
    ----------
    profile
        Formats of every number.
    table
        Sigmoid table, as ``profile.sigmoid_table()`` defines it.
    layers, channels
        Shape of the state of one sequence.
    lanes
        Channels per beat; divides ``channels``.

    Members
    -------
    preacts : ``In(stream.Signature(params.preact_layout))``
        ``f``, ``c``, ``g`` of each lane, and ``start``.
    states : ``Out(stream.Signature(params.state_layout))``
        ``o`` and ``h`` of each lane.

    Raises
    ------
    ValueError
        If ``lanes`` does not divide ``channels``, or the table does not fit the profile.
    """

    def __init__(
        self, profile: NumericProfile, table: Sequence[int], *,
        layers: int, channels: int, lanes: int = 1,
    ) -> None:
        self.params = MlgruParams(profile, layers, channels, lanes)
        self._table = checked_table(profile, table)
        super().__init__({
            "preacts": In(stream.Signature(self.params.preact_layout)),
            "states": Out(stream.Signature(self.params.state_layout)),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        advance = Signal()
        steps = Pipeline(m, advance)

        # The pipeline stops only while a result waits.
        m.d.comb += advance.eq(~self.states.valid | self.states.ready)
        taken, address, fresh = self._take_beats(m, advance)
        filled = steps.flags(taken, params.latency, "filled")
        m.d.comb += self.states.valid.eq(filled[params.latency])

        # One word per beat: read just before the candidate is ready, written once the new
        # state is. A word read in the first token of a sequence is from another sequence.
        m.submodules.state = state = memory.Memory(
            shape=ArrayLayout(signed(params.profile.h.bits), params.lanes),
            depth=params.memory_words, init=[],
            attrs={"ram_style": "block", "syn_ramstyle": "block_ram"})
        read = state.read_port()
        write = state.write_port()
        read_address = steps.delay(address, params.candidate_step - 1, "address")
        write_address = steps.delay(
            read_address, params.state_step - params.candidate_step + 1, "write_address")
        old_is_zero = steps.delay(fresh, params.candidate_step, "fresh")
        m.d.comb += [
            read.addr.eq(read_address),
            read.en.eq(advance),
            write.addr.eq(write_address),
            write.en.eq(advance & filled[params.state_step]),
        ]

        for index in range(params.lanes):
            m.submodules[f"lane{index}"] = lane = MlgruLane(params, self._table)
            m.d.comb += [
                lane.advance.eq(advance),
                lane.f.eq(self.preacts.payload.f[index]),
                lane.c.eq(self.preacts.payload.c[index]),
                lane.g.eq(self.preacts.payload.g[index]),
                lane.old_state.eq(Mux(old_is_zero, 0, read.data[index])),
                write.data[index].eq(lane.new_state),
                self.states.payload.o[index].eq(lane.o),
                self.states.payload.h[index].eq(lane.h),
            ]
        return m

    def _take_beats(self, m, advance):
        """Take beats, count them; return (taken, address, whether the state is still zero)."""
        params = self.params
        taken = Signal()
        rested = Signal(init=1)
        position = Signal(range(params.memory_words))
        in_first_token = Signal(init=1)
        address = Signal(range(params.memory_words))
        fresh = Signal()

        m.d.comb += [
            self.preacts.ready.eq(advance & rested),
            taken.eq(self.preacts.valid & rested),
            address.eq(Mux(self.preacts.payload.start, 0, position)),
            fresh.eq(self.preacts.payload.start | in_first_token),
        ]
        with m.If(advance & taken):
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
        return taken, address, fresh
