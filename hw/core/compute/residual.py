"""The residual stream."""

from __future__ import annotations

from functools import reduce
from operator import or_

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import memory, wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.compute.post import result_layout
from sterna.hw.core.compute.vectors import element_layout
from sterna.hw.core.params.geometry import ADDED, Geometry
from sterna.hw.parts.arithmetic import saturate
from sterna.hw.parts.memory_attributes import BLOCK_RAM, NEVER_COLLIDES
from sterna.hw.parts.pipeline import Pipeline
from sterna.model.quantized.plan import StageKind

__all__ = ["Residual"]


class Residual(wiring.Component):
    """The residual stream of every sequence: ``x = sat(x + y)``, or ``x = y`` to begin with.

    Results that bypass the stream use the same adder.

    Members
    -------
    coming, results, results_valid : ``In``
        From the post-processor.
    vectors, vectors_valid : ``In``, for each phase
        Vectors to begin with.
    elements, elements_valid : ``Out``, for each phase
        The new vectors.
    sums, sums_tag, sums_valid : ``Out``
        Output of a program that ends with an addition, two cycles after the results.
    """

    def __init__(self, params: Geometry) -> None:
        self.params = params
        self._ahead = params.requantize.latency
        each = element_layout(params)
        super().__init__({
            "coming": In(params.tag_layout),
            "results": In(result_layout(params)),
            "results_valid": In(1),
            "vectors": In(each).array(params.phases),
            "vectors_valid": In(1).array(params.phases),
            "elements": Out(each).array(params.phases),
            "elements_valid": Out(1).array(params.phases),
        } | ({"sums": Out(ArrayLayout(signed(params.profile.x.bits), params.post_lanes)),
              "sums_tag": Out(params.tag_layout), "sums_valid": Out(1)}
             if StageKind.LAST in params.result_bits else {}))

    def elaborate(self, platform):
        m = Module()
        params, results = self.params, self.results
        steps = Pipeline(m, Const(1))
        bits = (params.batch - 1).bit_length()
        word_bits = (params.vector_words - 1).bit_length()
        read_of = Cat(self.coming.beat[:word_bits], self.coming.sequence[:bits])
        read_of = steps.delay(read_of, self._ahead - 3, "read_of")

        stores, before = [], []
        shape = ArrayLayout(signed(params.profile.x.bits), params.post_lanes)
        for phase in range(params.phases):
            m.submodules[f"x{phase}"] = store = memory.Memory(
                shape=shape, depth=params.batch << word_bits, init=[],
                attrs=BLOCK_RAM | NEVER_COLLIDES)
            stores.append(store.write_port())
            read = store.read_port()
            m.d.comb += [read.addr.eq(read_of), read.en.eq(1)]
            before.append(steps.register(read.data, f"x{phase}_word"))
        phase_of = steps.delay(self.coming.phase, self._ahead - 1, "phase_of")
        before = Array(before)[phase_of]
        kinds = [kind for kind in params.result_bits if kind in ADDED]
        if {StageKind.BEGIN, StageKind.PASS} & set(kinds):
            kind_of = steps.delay(self.coming.kind, self._ahead - 1, "kind_of")
            before = Mux((kind_of == StageKind.BEGIN) | (kind_of == StageKind.PASS), 0, before)
        old = shape(steps.register(before, "old"))

        updated = self.results_valid & reduce(or_, (results.tag.kind == kind for kind in kinds))
        valid = steps.flags(updated, 2, "updated")[-1]
        tag = params.tag_layout(steps.delay(results.tag, 2, "tag"))
        new = Signal(shape, reset_less=True)
        for lane in range(params.post_lanes):
            total = steps.register(old[lane] + results.update[lane], f"total{lane}")
            m.d.sync += new[lane].eq(saturate(total, params.profile.x))
        if StageKind.LAST in kinds:
            leaves = tag.kind == StageKind.LAST
            m.d.comb += [
                self.sums.eq(new), self.sums_tag.eq(tag), self.sums_valid.eq(valid & leaves)]
            valid &= ~leaves

        narrow = (params.post_lanes // params.cell_lanes).bit_length() - 1
        for phase, write in enumerate(stores):
            elements, vector = self.elements[phase], self.vectors[phase]
            loads = self.vectors_valid[phase]
            m.d.comb += [
                self.elements_valid[phase].eq(loads | (valid & (tag.phase == phase))),
                elements.wide.eq(1),
                elements.sequence.eq(Mux(loads, vector.sequence, tag.sequence)),
                elements.place.eq(Mux(
                    loads, vector.place, Cat(Const(0, narrow), tag.beat))),
                elements.first.eq(Mux(loads, vector.first, tag.first)),
                elements.last.eq(Mux(loads, vector.last, tag.last)),
            ]
            for lane in range(params.post_lanes):
                m.d.comb += elements.y[lane].eq(Mux(loads, vector.y[lane], new[lane]))
            # A cycle for routing to the memory, which is read in another stage.
            late = elements.shape()(steps.register(elements, f"late{phase}"))
            written = self.elements_valid[phase]
            if StageKind.PASS in kinds:
                written = loads | (
                    valid & (tag.phase == phase) & (tag.kind != StageKind.PASS))
            m.d.comb += [
                write.en.eq(steps.flags(written, 1, f"late_valid{phase}")[-1]),
                write.addr.eq(Cat(
                    late.place[narrow:narrow + word_bits], late.sequence[:bits])),
                *(write.data[lane].eq(late.y[lane]) for lane in range(params.post_lanes)),
            ]
        return m
