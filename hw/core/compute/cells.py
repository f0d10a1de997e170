"""MLGRU and GLU: turn the pre-activations of a group of rows into the next vector."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import memory, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.compute.post import result_layout
from sterna.hw.core.compute.vectors import element_layout
from sterna.hw.core.params.geometry import Geometry
from sterna.hw.parts.memory_attributes import BLOCK_RAM, NEVER_COLLIDES
from sterna.hw.parts.pipeline import Pipeline
from sterna.hw.units.glu import GluUnit
from sterna.hw.units.mlgru import MlgruLane
from sterna.model.quantized.plan import StageKind

__all__ = ["Cells", "cell_taps"]


def cell_taps(params: Geometry) -> StructLayout:
    """Trace lanes: gates, candidate, state and output; ``silu(gate)`` and product."""
    def lane(layout: StructLayout, *names: str) -> StructLayout:
        return params.tap_layout(**{name: layout[name].shape for name in names})

    return StructLayout({"mlgru": lane(params.mlgru.state_layout, "f", "g", "c", "h", "o"),
                         "glu": lane(params.glu.product_layout, "silu", "p")})


class Cells(wiring.Component):
    """The lanes of MLGRU and GLU, and the states of all sequences.

    The pre-activations of each slot are queued until those of the last slot arrive, in three
    queues. A beat of ``post_lanes`` channels is then taken from all of them and goes through the
    lanes in parts.

    Members
    -------
    results, results_valid : ``In``
        Results of the post-processor; those of other stages are ignored.
    stages : ``In(params.stage_layout).array(phases)``
    starts, active : ``In(sequences)``
        For each sequence, whether its state is taken as zero, and whether it may change.
    begins : ``In(1)``
        The post-processor begins a group.
    room : ``Out(1)``
        There is room for a group of every sequence.
    elements, elements_valid : ``Out``, for each phase
        Channels of the next vector.
    taps : ``Out(cell_taps(params))``, with a trace
    """

    def __init__(self, params: Geometry, sigmoid: list[int]) -> None:
        self.params = params
        self._sigmoid = sigmoid
        super().__init__({
            "results": In(result_layout(params)),
            "results_valid": In(1),
            "stages": In(params.stage_layout).array(params.phases),
            "starts": In(params.sequences),
            "active": In(params.sequences),
            "begins": In(1),
            "room": Out(1, init=1),
            "elements": Out(element_layout(params)).array(params.phases),
            "elements_valid": Out(1).array(params.phases),
        } | ({"taps": Out(cell_taps(params))} if params.trace else {}))

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, Const(1))
        valid, tag, preacts, part = self._gather(m, steps)
        is_glu = tag.kind == StageKind.GLU
        parts = params.post_lanes // params.cell_lanes
        whose = Signal(StructLayout({"phase": 1, "elements": element_layout(params)}))
        m.d.comb += [
            whose.phase.eq(tag.phase),
            whose.elements.sequence.eq(tag.sequence),
            whose.elements.place.eq(Cat(part[:parts.bit_length() - 1], tag.beat)),
            whose.elements.first.eq(tag.first & (part == 0)),
            whose.elements.last.eq(tag.last & (part == parts - 1)),
        ]

        # A phase runs one stage at a time, so its GLU products and MLGRU outputs never coincide.
        made = []
        if StageKind.GLU in params.result_bits:
            made.append(self._glu(m, steps, valid & is_glu, whose, preacts))
        if StageKind.MLGRU in params.result_bits:
            made.append(self._mlgru(m, steps, valid & ~is_glu, whose, preacts))
        for phase in range(params.phases):
            is_made, elements = Const(0), None
            for ready, later, values in reversed(made):
                mine = Signal(element_layout(params))
                m.d.comb += [mine.eq(later.elements), *(
                    mine.y[index].eq(value) for index, value in enumerate(values))]
                now = ready & (later.phase == phase)
                elements = mine if elements is None else Mux(now, mine.as_value(), elements)
                is_made |= now
            m.d.comb += [self.elements[phase].eq(elements),
                         self.elements_valid[phase].eq(is_made)]
        return m

    def _glu(self, m, steps, valid, whose, preacts):
        """Return (whether products are valid, their owner, the product of each lane)."""
        params = self.params
        m.submodules.glu = glu = GluUnit(params.glu, self._sigmoid)
        products, inputs = glu.products.payload, glu.preacts.payload
        m.d.comb += [glu.preacts.valid.eq(valid), glu.products.ready.eq(1)]
        for index in range(params.cell_lanes):
            gate, _, up = (each[index] for each in preacts)
            m.d.comb += [inputs.gate[index].eq(gate), inputs.up[index].eq(up)]
        later = whose.shape()(steps.delay(whose, params.glu.latency, "of_glu"))
        if params.trace:
            self._show(m, "glu", glu.products.valid, later)
            m.d.comb += [self.taps.glu.silu.eq(products.silu), self.taps.glu.p.eq(products.p)]
        return glu.products.valid, later, list(products.p)

    def _mlgru(self, m, steps, valid, whose, preacts):
        """Return (whether outputs are valid, their owner, the output of each lane)."""
        params = self.params
        lanes = [MlgruLane(params.mlgru, self._sigmoid) for _ in range(params.cell_lanes)]
        for index, lane in enumerate(lanes):
            m.submodules[f"mlgru{index}"] = lane
            f, c, g = (each[index] for each in preacts)
            m.d.comb += [lane.advance.eq(1), lane.f.eq(f), lane.c.eq(c), lane.g.eq(g)]
        self._states(m, steps, valid, whose, lanes)
        later = whose.shape()(steps.delay(whose, params.mlgru.latency, "of_mlgru"))
        ready = steps.flags(valid, params.mlgru.latency, "updated")[-1]
        if params.trace:
            self._show(m, "mlgru", ready, later)
            for index, lane in enumerate(lanes):
                for name, value in (("f", lane.forget), ("g", lane.gate), ("c", lane.candidate),
                                    ("h", lane.h), ("o", lane.o)):
                    m.d.comb += self.taps.mlgru[name][index].eq(value)
        return ready, later, [lane.o for lane in lanes]

    def _show(self, m, name, valid, whose):
        tap = self.taps[name]
        m.d.comb += [tap.valid.eq(valid), tap.sequence.eq(self.params.sequence_of(
            whose.phase, whose.elements.sequence))]

    def _gather(self, m, steps):
        """Queue pre-activations; return, from registers, (whether some leave, their tag, the
        values of each slot, the part of their beat)."""
        params, results = self.params, self.results
        parts = params.post_lanes // params.cell_lanes
        shape = results.z.shape()
        part = Signal(range(max(parts, 2)))
        depth = params.preact_depth
        out_place = Signal(range(depth))
        stage = Array(self.stages)[results.tag.phase]
        is_ours = self.results_valid & (
            (results.tag.kind == StageKind.MLGRU) | (results.tag.kind == StageKind.GLU))
        is_last = results.tag.slot == stage.last_slot
        # In a GLU, gate uses the queue of f, and up that of g.
        chosen = [is_ours & (results.tag.slot == 0), is_ours & (results.tag.slot == 1) & ~is_last,
                  is_ours & is_last]
        values = []
        places = []
        for slot, enable in enumerate(chosen):
            m.submodules[f"queue{slot}"] = store = memory.Memory(
                shape=shape, depth=depth, init=[], attrs=NEVER_COLLIDES)
            write, read = store.write_port(), store.read_port(domain="comb")
            place = Signal(range(depth), name=f"place{slot}")
            places.append(place)
            m.d.comb += [write.addr.eq(place), write.data.eq(results.z), write.en.eq(enable),
                         read.addr.eq(out_place)]
            with m.If(enable):
                m.d.sync += place.eq(place + 1)
            values.append(read.data)
        # Advance the queue of the slot that a GLU lacks along with the others.
        with m.If(is_ours & is_last & (stage.last_slot == 1)):
            m.d.sync += places[1].eq(places[1] + 1)
        m.submodules.tags = store = memory.Memory(
            shape=params.tag_layout, depth=depth, init=[], attrs=NEVER_COLLIDES)
        write, read = store.write_port(), store.read_port(domain="comb")
        m.d.comb += [write.addr.eq(places[2]), write.data.eq(results.tag),
                     write.en.eq(chosen[2]), read.addr.eq(out_place)]

        waiting, leaves = Signal(), Signal()
        following = (out_place + 1)[:len(out_place)]
        m.d.comb += leaves.eq(waiting & (part == parts - 1))
        m.d.sync += waiting.eq(chosen[2] | Mux(leaves, following != places[2], waiting))
        with m.If(waiting):
            m.d.sync += part.eq(Mux(leaves, 0, part + 1))
        with m.If(leaves):
            m.d.sync += out_place.eq(following)
        group = params.batch * params.row_beats
        # A group is counted a cycle after it begins. Two never begin in consecutive cycles, so
        # `room` may be late.
        kept, begun = Signal(range(depth + 1)), Signal()
        m.d.sync += [
            begun.eq(self.begins),
            kept.eq(kept + Mux(begun, group, 0) - leaves),
            self.room.eq(kept <= Mux(begun, depth - 2 * group, depth - group))]

        lane_bits = shape.elem_shape.width * params.cell_lanes
        preacts = [ArrayLayout(shape.elem_shape, params.cell_lanes)(steps.register(
            value.as_value().word_select(part, lane_bits), f"slot{slot}"))
            for slot, value in enumerate(values)]
        return (steps.flags(waiting, 1, "leaves")[-1],
                params.tag_layout(steps.register(read.data, "tag")), preacts,
                steps.register(part, "part"))

    def _states(self, m, steps, valid, whose, lanes):
        """Add the state memory: read with the candidates, written with the new states."""
        params, unit = self.params, self.params.mlgru
        stage = Array(self.stages)[whose.phase]
        sequence = params.sequence_of(whose.phase, whose.elements.sequence)
        word = ArrayLayout(signed(params.profile.h.bits), params.cell_lanes)
        m.submodules.states = store = memory.Memory(
            shape=word, depth=max(params.state_words * params.sequences, 2), init=[],
            attrs=BLOCK_RAM | NEVER_COLLIDES)
        read, write = store.read_port(), store.write_port()
        address = steps.delay(
            Cat(sequence, (stage.state + whose.elements.place)[:len(stage.state)]),
            unit.read_step, "address")
        number = sequence if len(sequence) else Const(0, 1)
        fresh = steps.delay(
            self.starts.bit_select(number, 1), unit.candidate_step - 1, "fresh")
        kept = steps.flags(
            valid & self.active.bit_select(number, 1), unit.state_step, "kept")[-1]
        old = word(steps.register(read.data, "read_states"))
        m.d.comb += [
            read.addr.eq(address), read.en.eq(1),
            write.addr.eq(steps.delay(
                address, unit.state_step - unit.read_step, "write_address")),
            write.en.eq(kept),
        ]
        for index, lane in enumerate(lanes):
            m.d.comb += [
                lane.old_state.eq(steps.register(Mux(fresh, 0, old[index]), f"old{index}")),
                write.data[index].eq(lane.new_state),
            ]
