"""The whole engine: prompt tokens of many sequences in, generated tokens out."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import fifo, memory, stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.queues import TaskQueue
from sterna.hw.engine.cells import Cells
from sterna.hw.engine.engine_image import EngineImage
from sterna.hw.engine.engine_params import EngineParams, StageKind
from sterna.hw.engine.norm import Norm
from sterna.hw.engine.post import Post, result_layout
from sterna.hw.engine.products import Products, sequence_of
from sterna.hw.engine.vectors import VectorStore, element_layout
from sterna.hw.parts.arithmetic import saturate
from sterna.hw.parts.memory_attributes import BLOCK_RAM, BLOCK_ROM, NEVER_COLLIDES
from sterna.hw.parts.pipeline import Pipeline

__all__ = ["Engine", "logit_layout", "prompt_layout", "token_layout"]

LIMIT_BITS = 16
"""Bits of the number of tokens to generate."""


def prompt_layout(params: EngineParams) -> StructLayout:
    """A token of a prompt.

    ``start``: it begins a sequence. ``predict``: compute the logits after it, and generate up to
    ``limit`` tokens.
    """
    return StructLayout({
        "sequence": range(max(params.sequences, 2)), "token": params.token_bits, "start": 1,
        "predict": 1, "limit": LIMIT_BITS})


def token_layout(params: EngineParams) -> StructLayout:
    """A generated token; ``last`` says that no more of its sequence follows."""
    return StructLayout({
        "sequence": range(max(params.sequences, 2)), "token": params.token_bits, "last": 1})


def logit_layout(params: EngineParams) -> StructLayout:
    """The logits of ``post_lanes`` tokens; ``last`` with those of the last token. Of sequences
    that ask for no prediction, while others do, they mean nothing."""
    return StructLayout({
        "sequence": range(max(params.sequences, 2)), "last": 1,
        "logits": ArrayLayout(signed(params.profile.logit.bits), params.post_lanes)})


class Residual(wiring.Component):
    """The residual stream of every sequence: ``x = sat(x + y)``, or ``x = y`` to begin with.

    Members
    -------
    coming, results, results_valid : ``In``
        Of the post-processor.
    embedded, embedded_valid : ``In``, for each phase
        Vectors to begin with.
    elements, elements_valid : ``Out``, for each phase
        The new vectors.
    """

    def __init__(self, params: EngineParams, ahead: int) -> None:
        self.params = params
        self._ahead = ahead
        each = element_layout(params)
        super().__init__({
            "coming": In(params.tag_layout),
            "results": In(result_layout(params)),
            "results_valid": In(1),
            "embedded": In(each).array(params.phases),
            "embedded_valid": In(1).array(params.phases),
            "elements": Out(each).array(params.phases),
            "elements_valid": Out(1).array(params.phases),
        })

    def elaborate(self, platform):
        m = Module()
        params, results = self.params, self.results
        steps = Pipeline(m, Const(1))
        bits = (params.batch - 1).bit_length()
        word_bits = (params.vector_words - 1).bit_length()
        read_of = Cat(self.coming.beat[:word_bits], self.coming.sequence[:bits])
        read_of = steps.delay(read_of, self._ahead - 2, "read_of")

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
        old = shape(Array(before)[results.tag.phase])

        updated = self.results_valid & (results.tag.kind == StageKind.RESIDUAL)
        valid = steps.flags(updated, 2, "updated")[-1]
        tag = params.tag_layout(steps.delay(results.tag, 2, "tag"))
        new = Signal(shape, reset_less=True)
        for lane in range(params.post_lanes):
            total = steps.register(old[lane] + results.update[lane], f"total{lane}")
            m.d.sync += new[lane].eq(saturate(total, params.profile.x))

        narrow = (params.post_lanes // params.cell_lanes).bit_length() - 1
        for phase, write in enumerate(stores):
            elements, embedded = self.elements[phase], self.embedded[phase]
            loads = self.embedded_valid[phase]
            m.d.comb += [
                self.elements_valid[phase].eq(loads | (valid & (tag.phase == phase))),
                elements.wide.eq(1),
                elements.sequence.eq(Mux(loads, embedded.sequence, tag.sequence)),
                elements.place.eq(Mux(
                    loads, embedded.place, Cat(Const(0, narrow), tag.beat))),
                elements.first.eq(Mux(loads, embedded.first, tag.first)),
                elements.last.eq(Mux(loads, embedded.last, tag.last)),
                write.en.eq(self.elements_valid[phase]),
                write.addr.eq(Cat(
                    elements.place[narrow:narrow + word_bits], elements.sequence[:bits])),
            ]
            for lane in range(params.post_lanes):
                m.d.comb += [
                    elements.y[lane].eq(Mux(loads, embedded.y[lane], new[lane])),
                    write.data[lane].eq(elements.y[lane]),
                ]
        return m


class Embedder(wiring.Component):
    """The vectors of the tokens of a phase, sequence by sequence, word by word."""

    def __init__(self, image: EngineImage) -> None:
        self.image = image
        self.params = params = image.params
        super().__init__({
            "jobs": In(stream.Signature(StructLayout({
                "phase": 1, "chunks": range(params.chunks + 1)}))),
            "tokens": In(params.token_bits).array(params.sequences),
            "embedded": Out(element_layout(params)).array(params.phases),
            "embedded_valid": Out(1).array(params.phases),
        })

    def elaborate(self, platform):
        m = Module()
        params, job = self.params, self.jobs.payload
        steps = Pipeline(m, Const(1))
        per_chunk = params.quant_lanes // params.post_lanes
        active, reading = Signal(), Signal()
        phase = Signal()
        sequence = Signal(params.batch_bits)
        words = Signal(range(params.chunks * per_chunk + 1))
        word = Signal(range(params.chunks * per_chunk))
        last_word, last_sequence = Signal(), Signal()
        token = Array(self.tokens)[sequence_of(params, phase, sequence)
                                   if params.sequences > 1 else 0]
        depth = max(params.limits.vocab * params.vector_words, 2)
        address = Signal(range(depth), reset_less=True)
        m.d.comb += [
            last_word.eq(word + 1 == words),
            last_sequence.eq(sequence == params.batch - 1),
            self.jobs.ready.eq(~active),
        ]
        with m.If(~active):
            m.d.sync += [active.eq(self.jobs.valid), phase.eq(job.phase), sequence.eq(0),
                         words.eq(job.chunks * per_chunk)]
        with m.Elif(~reading):
            m.d.sync += [reading.eq(1), word.eq(0), address.eq((token * words)[:len(address)])]
        with m.Else():
            m.d.sync += [word.eq(word + 1), address.eq(address + 1)]
            with m.If(last_word):
                m.d.sync += [reading.eq(0), sequence.eq(sequence + 1), active.eq(~last_sequence)]

        shape = ArrayLayout(signed(params.profile.x.bits), params.post_lanes)
        m.submodules.table = rom = memory.Memory(
            shape=shape, depth=depth,
            init=[shape.from_bits(each) for each in self.image.embedding], attrs=BLOCK_ROM)
        read = rom.read_port()
        m.d.comb += [read.addr.eq(address), read.en.eq(1)]
        x = shape(steps.register(read.data, "x"))
        valid = steps.flags(reading, 2, "valid")[-1]
        whose = element_layout(params)
        place = Cat(Const(0, (params.post_lanes // params.cell_lanes).bit_length() - 1), word)
        now = Signal(whose)
        m.d.comb += [now.sequence.eq(sequence), now.place.eq(place), now.wide.eq(1),
                     now.first.eq(word == 0), now.last.eq(last_word)]
        later = whose(steps.delay(now, 2, "whose"))
        later_phase = steps.delay(phase, 2, "whose_phase")
        for index in range(params.phases):
            m.d.comb += [
                self.embedded_valid[index].eq(valid & (later_phase == index)),
                self.embedded[index].eq(later),
            ]
            for lane in range(params.post_lanes):
                m.d.comb += self.embedded[index].y[lane].eq(x[lane])
        return m


class GreedySampler(wiring.Component):
    """The token with the largest logit, the lowest on ties, of every sequence of a phase."""

    def __init__(self, params: EngineParams) -> None:
        self.params = params
        super().__init__({
            "results": In(result_layout(params)),
            "results_valid": In(1),
            # In the order of the sequences of a phase.
            "sampled": Out(1),
            "phase": Out(1),
            "sequence": Out(params.batch_bits),
            "token": Out(params.token_bits),
        })

    def elaborate(self, platform):
        m = Module()
        params, results = self.params, self.results
        steps = Pipeline(m, Const(1))
        nodes = [(steps.register(value, f"value{lane}"), Const(0, 0))
                 for lane, value in enumerate(results.logits)]
        way = 1
        while len(nodes) > 1:
            way += 1
            pairs, nodes = nodes, []
            for index in range(0, len(pairs), 2):
                (left, left_lane), (right, right_lane) = pairs[index:index + 2]
                is_right = (left - right)[-1]       # so that the left wins a tie
                lane = Cat(Mux(is_right, right_lane, left_lane), is_right)
                nodes.append((
                    steps.register(Mux(is_right, right, left), f"value{way}_{index}"),
                    steps.register(lane[:way - 1] if way > 2 else is_right,
                                   f"lane{way}_{index}")))
        (value, lane), = nodes
        valid = steps.flags(
            self.results_valid & (results.tag.kind == StageKind.HEAD), way, "valid")[-1]
        tag = params.tag_layout(steps.delay(results.tag, way, "tag"))
        layout = StructLayout({"value": value.shape(), "token": params.token_bits})
        m.submodules.best = store = memory.Memory(
            shape=layout, depth=max(params.sequences, 2), init=[], attrs=NEVER_COLLIDES)
        write, read = store.write_port(), store.read_port(domain="comb")
        wins = tag.first | (read.data.value - value)[-1]
        token = Mux(wins, Cat(lane, tag.beat)[:params.token_bits], read.data.token)
        owner = sequence_of(params, tag.phase, tag.sequence)
        m.d.comb += [
            read.addr.eq(owner), write.addr.eq(owner), write.en.eq(valid & wins),
            write.data.value.eq(value), write.data.token.eq(token),
            self.sampled.eq(steps.flags(valid & tag.last, 1, "sampled")[-1]),
            self.phase.eq(steps.register(tag.phase, "sampled_phase")),
            self.sequence.eq(steps.register(tag.sequence, "sampled_sequence")),
            self.token.eq(steps.register(token, "sampled_token")),
        ]
        return m


class Engine(wiring.Component):
    """A MatMul-free language model that runs by itself, a token of every sequence at a time.

    The sequences of a phase go through a token together: each weight word is used for all of them,
    one after the other. With two phases the vectors of one are normalised while those of the other
    are multiplied. A phase begins a token when one of its sequences has one; the others stand still
    for that time, whatever is computed in their place.

    Members
    -------
    prompts : ``In(stream.Signature(prompt_layout(params)))``
    tokens : ``Out(stream.Signature(token_layout(params)))``
    logits : ``Out(stream.Signature(logit_layout(params)))``
    """

    def __init__(self, image: EngineImage) -> None:
        self.image = image
        self.params = params = image.params
        self.norm = Norm(params)
        self.products = Products(image)
        self.post = Post(image)
        self.cells = Cells(params, params.profile.sigmoid_table(), self.post.latency)
        self.residual = Residual(params, params.requantize.latency)
        self.embedder = Embedder(image)
        self.sampler = GreedySampler(params)
        self.vectors = [VectorStore(params) for _ in range(params.phases)]
        super().__init__({
            "prompts": In(stream.Signature(prompt_layout(params))),
            "tokens": Out(stream.Signature(token_layout(params))),
            "logits": Out(stream.Signature(logit_layout(params))),
        })

    def elaborate(self, platform):
        m = Module()
        params = self.params
        names = ("norm", "products", "post", "cells", "residual", "embedder", "sampler")
        for name in names:
            m.submodules[name] = getattr(self, name)
        norm, products, post, cells = self.norm, self.products, self.post, self.cells
        for phase, vectors in enumerate(self.vectors):
            m.submodules[f"vectors{phase}"] = vectors
            own, other = self.residual.elements[phase], cells.elements[phase]
            is_own = self.residual.elements_valid[phase]
            m.d.comb += [
                vectors.elements_valid.eq(is_own | cells.elements_valid[phase]),
                vectors.elements.eq(Mux(is_own, own.as_value(), other.as_value())),
                vectors.sequence.eq(norm.sequence),
                vectors.read_sequence.eq(norm.read_sequence),
                vectors.chunk.eq(norm.chunk),
            ]
        m.d.comb += [
            norm.maximum.eq(Array(each.maximum for each in self.vectors)[norm.phase]),
            norm.word.eq(Array(each.word.as_value() for each in self.vectors)[
                Pipeline(m, Const(1)).delay(norm.read_phase, 2, "read_phase")]),
            products.acts.eq(norm.acts), products.acts_valid.eq(norm.acts_valid),
            post.scales.eq(norm.scales), post.scales_valid.eq(norm.scales_valid),
        ]
        wiring.connect(m, products.sums, post.sums)
        for unit in (cells, self.residual, self.sampler):
            m.d.comb += [unit.results.eq(post.results), unit.results_valid.eq(post.results_valid)]
        m.d.comb += self.residual.coming.eq(post.coming)
        for phase in range(params.phases):
            m.d.comb += [
                self.residual.embedded[phase].eq(self.embedder.embedded[phase]),
                self.residual.embedded_valid[phase].eq(self.embedder.embedded_valid[phase])]
        predicts, left = self._sequences(m)
        self._logits(m, predicts)
        return m

    def _logits(self, m, predicts):
        """The queue of logits that leave, and room for more."""
        params, results = self.params, self.post.results
        group = params.batch * params.row_beats
        on_the_way = self.post.latency + 1
        depth = 1 << (2 * group + on_the_way).bit_length()
        m.submodules.logit_queue = queue = fifo.SyncFIFO(
            width=logit_layout(params).size, depth=depth)
        word = Signal(logit_layout(params))
        m.d.comb += [
            word.sequence.eq(sequence_of(params, results.tag.phase, results.tag.sequence)),
            word.last.eq(results.tag.last),
            word.logits.eq(results.logits),
            queue.w_data.eq(word),
            queue.w_en.eq(self.post.results_valid & (results.tag.kind == StageKind.HEAD)
                          & predicts.bit_select(word.sequence, 1)),
            self.logits.valid.eq(queue.r_rdy),
            self.logits.payload.eq(queue.r_data),
            queue.r_en.eq(self.logits.ready),
            self.post.room.eq(self.cells.room & (queue.level + group + on_the_way <= depth)),
        ]

    def _sequences(self, m):
        """Tokens of the sequences, and the rounds of the phases."""
        params = self.params
        count = params.sequences
        waiting, generating = Signal(count), Signal(count)
        active, starts, predicts = Signal(count), Signal(count), Signal(count)
        will_start, will_predict = Signal(count), Signal(count)
        tokens = Array(Signal(params.token_bits, name=f"token{i}", reset_less=True)
                       for i in range(count))
        current = [Signal(params.token_bits, name=f"current{i}", reset_less=True)
                   for i in range(count)]
        left = Array(Signal(LIMIT_BITS, name=f"left{i}", reset_less=True) for i in range(count))
        m.d.comb += [self.cells.active.eq(active), self.cells.starts.eq(starts)]
        for mine, theirs in zip(current, self.embedder.tokens, strict=True):
            m.d.comb += theirs.eq(mine)

        prompt = self.prompts.payload
        asked = prompt.sequence[:(count - 1).bit_length()]
        asked = asked if len(asked) else Const(0, 1)
        m.d.comb += self.prompts.ready.eq(~(waiting | generating).bit_select(asked, 1))
        with m.If(self.prompts.valid & self.prompts.ready):
            m.d.sync += [
                waiting.bit_select(asked, 1).eq(1),
                will_start.bit_select(asked, 1).eq(prompt.start),
                will_predict.bit_select(asked, 1).eq(prompt.predict),
                generating.bit_select(asked, 1).eq(prompt.predict & prompt.limit.any()),
                tokens[asked].eq(prompt.token),
                left[asked].eq(Mux(prompt.predict, prompt.limit, 0)),
            ]

        # Every sequence may still be about to give one.
        m.submodules.token_queue = queue = fifo.SyncFIFO(
            width=token_layout(params).size, depth=2 * count)
        room = queue.level <= count
        wanted = [Signal(name=f"wanted{phase}") for phase in range(params.phases)]
        embeds = [Signal(name=f"embeds{phase}") for phase in range(params.phases)]
        job = self.embedder.jobs
        for phase in range(params.phases):
            begins, chunks = self._phase(m, phase, waiting, predicts, wanted[phase], room)
            with m.If(embeds[phase]):
                m.d.comb += [
                    job.valid.eq(1), job.payload.phase.eq(phase), job.payload.chunks.eq(chunks)]
            with m.If(begins):
                m.d.sync += embeds[phase].eq(1)
            with m.Elif(job.ready & ~Cat(embeds[phase + 1:]).any()):
                m.d.sync += embeds[phase].eq(0)
            for index in range(phase * params.batch, (phase + 1) * params.batch):
                with m.If(begins):
                    m.d.sync += [
                        active[index].eq(waiting[index]),
                        starts[index].eq(will_start[index]),
                        predicts[index].eq(waiting[index] & will_predict[index]),
                        current[index].eq(tokens[index]),
                    ]
                    # A token that comes in this very cycle is for the next round.
                    with m.If(waiting[index]):
                        m.d.sync += waiting[index].eq(0)
        self._jobs(m, wanted)

        sampler = self.sampler
        sampled = sequence_of(params, sampler.phase, sampler.sequence)
        sampled = sampled if len(sampled) else Const(0, 1)
        word = Signal(token_layout(params))
        chosen = sampler.sampled & predicts.bit_select(sampled, 1) & left[sampled].any()
        m.d.comb += [
            word.sequence.eq(sampled), word.token.eq(sampler.token),
            word.last.eq(left[sampled] == 1),
            queue.w_data.eq(word), queue.w_en.eq(chosen),
            self.tokens.valid.eq(queue.r_rdy), self.tokens.payload.eq(queue.r_data),
            queue.r_en.eq(self.tokens.ready),
        ]
        with m.If(chosen):
            m.d.sync += [
                left[sampled].eq(left[sampled] - 1),
                generating.bit_select(sampled, 1).eq(~word.last),
                waiting.bit_select(sampled, 1).eq(~word.last),
                will_start.bit_select(sampled, 1).eq(0),
                will_predict.bit_select(sampled, 1).eq(1),
                tokens[sampled].eq(sampler.token),
            ]
        return predicts, left

    def _phase(self, m, phase, waiting, predicts, wanted, room):
        """The rounds of a phase; return what is high when one begins."""
        params = self.params
        own = slice(phase * params.batch, (phase + 1) * params.batch)
        layout = params.stage_layout
        m.submodules[f"stages{phase}"] = rom = memory.Memory(
            shape=layout, depth=max(params.stages, 2),
            init=[layout.from_bits(word) for word in self.image.stages])
        read = rom.read_port()
        index = Signal(range(max(params.stages, 2)))
        stage = Signal(layout, name=f"stage{phase}", reset_less=True)
        following = read.data
        m.d.comb += [read.addr.eq(index), read.en.eq(1)]
        for unit in (self.norm, self.products, self.post, self.cells):
            m.d.comb += unit.stages[phase].eq(stage)

        running, begins = Signal(), Signal()
        complete = Signal(range(params.batch + 1))
        all_complete, ended = Signal(), Signal()
        m.d.comb += [
            begins.eq(~running & waiting[own].any() & room),
            all_complete.eq(complete == params.batch),
            ended.eq((all_complete & (following.kind == StageKind.HEAD) & ~predicts[own].any())
                     | (self.sampler.sampled & (self.sampler.phase == phase)
                        & (self.sampler.sequence == params.batch - 1))),
        ]
        m.d.sync += complete.eq(Mux(all_complete, 0, complete) + self.vectors[phase].complete)
        with m.If(begins):
            m.d.sync += running.eq(1)
        with m.If(ended):
            m.d.sync += [running.eq(0), index.eq(0)]
        with m.Elif(all_complete):
            m.d.sync += [stage.eq(following), index.eq(index + 1), wanted.eq(1)]
        return begins, following.chunks

    def _jobs(self, m, wanted):
        """The next job of the norm, the array and the post-processor."""
        params, norm = self.params, self.norm
        phase = Signal()
        last = Signal()
        taken = Signal()
        m.d.comb += [
            phase.eq(Mux(Cat(wanted).all(), ~last, ~wanted[0]) if params.phases > 1 else 0),
            norm.jobs.valid.eq(Cat(wanted).any()), norm.jobs.payload.eq(phase),
            taken.eq(norm.jobs.valid & norm.jobs.ready),
        ]
        with m.If(taken):
            m.d.sync += [Array(wanted)[phase].eq(0), last.eq(phase)]
        for name, unit in (("issue", self.products), ("result", self.post)):
            m.submodules[f"{name}_queue"] = queue = TaskQueue(1, depth=2)
            m.d.comb += [queue.put.eq(taken), queue.payload.eq(phase),
                         unit.fresh.eq(taken), unit.fresh_phase.eq(phase)]
            wiring.connect(m, queue.head, unit.jobs)
