"""User-defined units: ternary matrices alone, and a layer with a norm, as programs."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.core.compute.datapath import Datapath
from sterna.hw.core.compute.trace import show_taps, trace_layout
from sterna.hw.core.compute.vectors import element_layout
from sterna.hw.core.image.program import ProgramImage
from sterna.hw.layers.frame import FrameScaler
from sterna.hw.layers.layer_params import FRAME_STEPS, LayerParams
from sterna.hw.parts.pipeline import Pipeline

__all__ = ["LayerUnit", "MatrixUnit"]


class MatrixUnit(wiring.Component):
    """Ternary matrices times vectors of 8-bit activations.

    A vector is loaded while the one before it is multiplied: the two phases take turns.

    Members
    -------
    acts : ``In(stream.Signature(params.acts_layout))``
        ``q`` of each lane and, if there are several matrices, ``matrix``, read with the first
        word of a vector.
    sums, or results : ``Out(stream.Signature(params.result_layout(...)))``
        ``sum``, or ``y``, of each row; ``last`` with the last word and, if there are several
        matrices, ``matrix``.
    """

    def __init__(self, params: LayerParams, image: ProgramImage) -> None:
        name, value = ("results", "y") if params.limits.requantizes else ("sums", "sum")
        self.params, self.path = params, Datapath(image)
        super().__init__({
            "acts": In(stream.Signature(params.acts_layout)),
            name: Out(stream.Signature(params.result_layout(value, params.matrix_field)))})
        self._value, self._port = value, getattr(self, name)

    def elaborate(self, platform):
        m = Module()
        params, acts, path = self.params, self.acts, self.path
        products, post, program = path.products, path.post, params.limits.program
        path.add_array(m)
        busy, loading = Signal(2), Signal()
        first, last, taken = Signal(init=1), Signal(), Signal()
        part, tile = Signal.like(products.acts.chunk), Signal.like(products.acts.tile)
        chunk, tile_ends = Signal(range(max(params.chunks, 2))), Signal()
        several = len(program) > 1
        matrix = Const(0, 1)
        if several:
            kept = Signal.like(acts.payload.matrix)
            matrix = Mux(first, acts.payload.matrix, kept)
        last_chunks = Array(
            Const(params.words_in(index, params.quant_lanes) - 1, chunk.shape())
            for index in range(len(program)))
        m.d.comb += [
            acts.ready.eq(~busy.bit_select(loading, 1)),
            taken.eq(acts.valid & acts.ready),
            last.eq(chunk == last_chunks[matrix]),
            tile_ends.eq(last | (part == params.cols // params.quant_lanes - 1)),
        ]
        with m.If(taken):
            m.d.sync += [first.eq(last), chunk.eq(Mux(last, 0, chunk + 1)),
                         part.eq(Mux(tile_ends, 0, part + 1)), tile.eq(tile + tile_ends)]
            with m.If(last):
                m.d.sync += [tile.eq(0), loading.eq(~loading),
                             busy.bit_select(loading, 1).eq(1)]

        # The first word starts the job; it goes to the array a cycle later.
        begins = Signal()
        m.d.comb += begins.eq(taken & first)
        path.queue_jobs(m, begins, loading)
        late = Signal(products.acts.shape())
        late_valid, scales = Signal(), Signal()
        m.d.sync += [
            late_valid.eq(taken), scales.eq(begins), late.q.eq(acts.payload.q),
            late.phase.eq(loading), late.tile.eq(tile), late.chunk.eq(part),
            late.tile_ends.eq(tile_ends), late.last.eq(last)]
        m.d.comb += [
            products.acts.eq(late), products.acts_valid.eq(late_valid),
            products.coming_valid.eq(taken), products.coming.phase.eq(loading),
            products.coming.tile_ends.eq(tile_ends), products.coming.last.eq(last)]

        stages = []
        for phase in range(2):
            stage = Signal(params.stage_layout, name=f"stage{phase}", reset_less=True)
            with m.If(begins & (loading == phase)):
                m.d.sync += stage.eq(path.stage(matrix))
            m.d.comb += [unit.stages[phase].eq(stage) for unit in (products, post)]
            stages.append(stage)
        if several:
            matrices = [Signal.like(kept, name=f"matrix{phase}") for phase in range(2)]
            with m.If(begins):
                m.d.sync += [kept.eq(matrix), Array(matrices)[loading].eq(matrix)]
        # The scale of a matrix is a constant, known when its vector begins.
        m.d.comb += [
            post.scaled.eq(begins), post.scaled_phase.eq(loading),
            post.scales_valid.eq(scales), post.scales.phase.eq(late.phase),
            post.scales.scale.eq(Array(each.k[0] for each in stages)[late.phase]),
        ]

        results, word = post.results, Signal(self._port.payload.shape())
        m.d.comb += [word[self._value].eq(results.logits), word.last.eq(results.tag.last)]
        if several:
            m.d.comb += word.matrix.eq(Array(matrices)[results.tag.phase])
        path.queue_results(m, self._port, word)
        with m.If(post.results_valid & results.tag.last):
            m.d.sync += busy.bit_select(results.tag.phase, 1).eq(0)
        return m


class LayerUnit(wiring.Component):
    """A layer of :mod:`sterna.model.layers`, or a network of them, bit for bit.

    The vectors of the sequences of a phase are processed together, once all have been loaded.

    Members
    -------
    vectors : ``In(stream.Signature(params.vector_layout))``
        ``x`` of each channel. With an MLGRU ``start``, read with the first word: the vector begins
        a sequence. With several sequences ``sequence``, the same in all words of a vector.
        Channels beyond the end, in the last word, are 0.
    results : ``Out(stream.Signature(params.result_layout(...)))``
        ``y`` of each channel, ``last`` with the last word, and ``sequence``. Channels beyond the
        end are 0.
    taps : ``Out(trace_layout(params))``, with a trace
        Every intermediate vector.
    reads, data, failed, status
        With a port, of :class:`~sterna.hw.core.image.reader.ImageReader`: vectors are accepted and
        results output while the status is ``RUNNING``.
    """

    def __init__(self, params: LayerParams, image: ProgramImage) -> None:
        self.scaler = FrameScaler(params) if params.frame else None
        self.params, self.path = params, Datapath(image)
        super().__init__({
            "vectors": In(stream.Signature(params.vector_layout)),
            "results": Out(stream.Signature(params.result_layout("y", params.sequence_field))),
            **({"taps": Out(trace_layout(params))} if params.trace else {}),
            **self.path.port_members})

    def elaborate(self, platform):
        m = Module()
        params, path = self.params, self.path
        loaded = Signal(params.sequences)   # vectors that are loaded or being processed
        path.add(m, self._load(m, loaded))
        tag, values, leaves = path.leaving()
        word = Signal(self.results.payload.shape())
        m.d.comb += [word.y.eq(values), word.last.eq(tag.last)]
        if params.sequence_field:
            m.d.comb += word.sequence.eq(params.sequence_of(tag.phase, tag.sequence))
        path.queue_results(m, self.results, word)

        completes, last = [], len(params.limits.program) - 1
        if path.reader:
            path.read_image(m, self)
            programs = path.programs(m)
        else:
            indices = [Signal(range(max(last + 1, 2)), name=f"index{phase}")
                       for phase in range(params.phases)]
            programs = [(index, path.stage(index)) for index in indices]
        for phase, (index, following) in enumerate(programs):
            complete = path.complete(m, phase)
            completes.append(complete)
            if last:
                with m.If(complete):
                    m.d.sync += index.eq(Mux(index == last, 0, index + 1))
            path.work_on(m, phase, complete, following)
            with m.If(leaves & tag.last & (tag.phase == phase)
                      & (tag.sequence == params.batch - 1)):
                m.d.sync += loaded[phase * params.batch:(phase + 1) * params.batch].eq(0)
        path.choose_jobs(m, completes)
        if params.trace:
            every = Const(-1, params.sequences)
            show_taps(m, path, self.taps, every, every)
        return m

    def _load(self, m, loaded):
        """Load vectors and pad them with zeros to whole chunks; return, for each phase, the
        elements, and whether they are valid."""
        params, vectors = self.params, self.vectors
        own = params.words_in(0, params.post_lanes)
        words = params.vector_beats
        word, fills, taken, last = Signal(range(max(words, 2))), Signal(), Signal(), Signal()
        kept = Signal(max((params.sequences - 1).bit_length(), 1))
        sequence = Signal.like(kept)
        if params.sequence_field:
            m.d.comb += sequence.eq(Mux(fills, kept, vectors.payload.sequence))
        free = ~fills & ~loaded.bit_select(sequence, 1)
        m.d.comb += [
            vectors.ready.eq(free & self.path.is_running if params.port_bits else free),
            taken.eq(vectors.valid & vectors.ready),
            last.eq(word == words - 1),
        ]
        with m.If(taken):
            m.d.sync += [kept.eq(sequence), fills.eq((word == own - 1) & ~last)]
        with m.If(taken | fills):
            m.d.sync += word.eq(Mux(last, 0, word + 1))
            with m.If(last):
                m.d.sync += [fills.eq(0), loaded.bit_select(sequence, 1).eq(1)]
        if params.has_state:
            starts, fresh = Signal(params.sequences), Signal(params.sequences, init=-1)
            with m.If(taken & (word == 0)):
                m.d.sync += [
                    starts.bit_select(sequence, 1).eq(
                        vectors.payload.start | fresh.bit_select(sequence, 1)),
                    fresh.bit_select(sequence, 1).eq(0)]
            m.d.comb += [self.path.cells.starts.eq(starts), self.path.cells.active.eq(-1)]

        bits = (params.batch - 1).bit_length()
        narrow = (params.post_lanes // params.cell_lanes).bit_length() - 1
        elements = Signal(element_layout(params))
        m.d.comb += [
            elements.sequence.eq(sequence[:bits]), elements.wide.eq(1),
            elements.place.eq(Cat(Const(0, narrow), word)),
            elements.first.eq(word == 0), elements.last.eq(last),
        ]
        phase = sequence[-1] if params.phases > 1 else Const(0, 1)
        valid = [(taken | fills) & (phase == index) for index in range(params.phases)]
        if self.scaler is None:
            m.d.comb += [elements.y[lane].eq(Mux(fills, 0, x))
                         for lane, x in enumerate(vectors.payload.x)]
            return [(elements, each) for each in valid]
        m.submodules.scaler = scaler = self.scaler
        steps = Pipeline(m, Const(1))
        scaled = Signal.like(elements)
        m.d.comb += [
            scaler.word.eq(word), scaler.x.eq(vectors.payload.x),
            scaled.eq(steps.delay(elements, FRAME_STEPS, "elements")),
            *(scaled.y[lane].eq(y) for lane, y in enumerate(scaler.y)),
        ]
        return [(scaled, steps.flags(each, FRAME_STEPS, f"valid{index}")[-1])
                for index, each in enumerate(valid)]
