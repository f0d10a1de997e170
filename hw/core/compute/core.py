"""The whole core: prompt tokens of many sequences in, generated tokens out."""

from __future__ import annotations

from typing import NamedTuple

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout, View
from amaranth.lib.wiring import In, Out

from sterna.hw.core.compute.block_memory import read_block_rom
from sterna.hw.core.compute.datapath import READ_CYCLES, Datapath
from sterna.hw.core.compute.sampler import TokenSampler
from sterna.hw.core.compute.sequences import Sequences, prompt_layout, token_layout
from sterna.hw.core.compute.trace import show_taps, trace_layout
from sterna.hw.core.compute.vectors import element_layout
from sterna.hw.core.image.core_image import CoreImage
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.parts.arithmetic import constant_product
from sterna.hw.parts.pipeline import Pipeline
from sterna.model.quantized.plan import StageKind

__all__ = ["Core", "logit_layout"]


def logit_layout(params: CoreParams) -> StructLayout:
    """The logits of ``post_lanes`` tokens of a sequence that requested a prediction; ``last`` is
    set for the last tokens."""
    return StructLayout({
        "sequence": range(max(params.sequences, 2)), "last": 1,
        "logits": ArrayLayout(signed(params.profile.logit.bits), params.post_lanes)})


class _RowWord(NamedTuple):
    """A word of a sequence's row, whose values come ``latency`` cycles after all else."""

    valid: Signal
    sequence: Signal
    index: Signal
    is_last: Signal
    values: View
    latency: int


class Embedder(wiring.Component):
    """Reads the embeddings of the tokens of a phase, sequence by sequence, word by word.

    Members
    -------
    jobs : ``In(stream.Signature(...))``
        A phase, and the chunks per vector.
    owner, token : ``Out``, ``In``
        A sequence, and its token in the same cycle.
    phase, done : ``Out(1)``
        The last word of a phase is read in this cycle.
    embedded, embedded_valid : ``Out``, for each phase
        The words.
    tokens, rows
        With a port, of :class:`~sterna.hw.core.image.reader.ImageReader`.
    """

    def __init__(self, image: CoreImage) -> None:
        self.image = image
        self.params = params = image.params
        super().__init__({
            "jobs": In(stream.Signature(StructLayout({
                "phase": 1, "chunks": range(params.chunks + 1)}))),
            "owner": Out(max((params.sequences - 1).bit_length(), 1)),
            "token": In(params.token_bits),
            "phase": Out(1),
            "done": Out(1),
            "embedded": Out(element_layout(params)).array(params.phases),
            "embedded_valid": Out(1).array(params.phases),
        } | ({"tokens": Out(stream.Signature(params.token_bits)),
              "rows": In(stream.Signature(params.port_bits))} if params.port_bits else {}))

    def elaborate(self, platform):
        m = Module()
        params = self.params
        steps = Pipeline(m, Const(1))
        source = self._from_port if params.port_bits else self._from_rom
        word = source(m, steps)
        latency = word.latency + 1      # for routing to the memories of the vectors
        valid = steps.flags(word.valid, latency, "valid")[-1]
        layout = element_layout(params)
        place = Cat(Const(0, (params.post_lanes // params.cell_lanes).bit_length() - 1), word.index)
        now = Signal(layout)
        m.d.comb += [now.sequence.eq(word.sequence), now.place.eq(place), now.wide.eq(1),
                     now.first.eq(word.index == 0), now.last.eq(word.is_last)]
        later = layout(steps.delay(now, latency, "whose"))
        later_phase = steps.delay(self.phase, latency, "whose_phase")
        x = word.values.shape()(steps.register(word.values, "x"))
        for index in range(params.phases):
            m.d.comb += [
                self.embedded_valid[index].eq(valid & (later_phase == index)),
                self.embedded[index].eq(later),
            ]
            for lane in range(params.post_lanes):
                m.d.comb += self.embedded[index].y[lane].eq(x[lane])
        return m

    def _from_rom(self, m, steps):
        """Read the rows of a phase, word by word; return the :class:`_RowWord`."""
        params, job = self.params, self.jobs.payload
        per_chunk = params.quant_lanes // params.post_lanes
        active, reading = Signal(), Signal()
        phase = self.phase
        sequence, upcoming = Signal(params.batch_bits), Signal(params.batch_bits)
        words = Signal(range(params.chunks * per_chunk + 1))
        word = Signal(range(params.chunks * per_chunk))
        last_word, last_sequence = Signal(), Signal()
        # Rows are spaced for the widest model, whatever the model.
        pitch = params.vector_words
        depth = max(params.vocab * pitch, 2)
        address = Signal(range(depth), reset_less=True)
        # Start of the row of the upcoming sequence, known two cycles after the sequence.
        token = steps.register(self.token, "token")
        first = steps.register(constant_product(token, pitch)[:len(address)], "first")
        changes, known = Signal(), Signal()
        m.d.comb += known.eq(~Cat(steps.flags(changes, 2, "changed")[1:]).any())
        m.d.comb += [
            last_sequence.eq(sequence == params.batch - 1),
            self.jobs.ready.eq(~active),
            self.owner.eq(params.sequence_of(phase, upcoming)),
            self.done.eq(reading & last_word & last_sequence),
        ]
        with m.If(~active):
            m.d.comb += changes.eq(1)
            m.d.sync += [active.eq(self.jobs.valid), phase.eq(job.phase), upcoming.eq(0),
                         words.eq(job.chunks * per_chunk)]
        with m.Elif(~reading | last_word):
            m.d.comb += changes.eq(known)
            m.d.sync += [
                reading.eq(known & ~self.done), word.eq(0), last_word.eq(words == 1),
                address.eq(first),
                sequence.eq(upcoming), upcoming.eq(upcoming + (known & ~self.done)),
                active.eq(~self.done)]
        with m.Else():
            m.d.sync += [
                word.eq(word + 1), last_word.eq(word + 2 == words), address.eq(address + 1)]
        size = params.limits.embedding_bits
        table = [word for row in self.image.embedding
                 for word in (*row, *[0] * (pitch - len(row)))]
        bits = read_block_rom(m, steps, "table", table, params.post_lanes * size, depth, address,
                              small=params.compact)
        x = ArrayLayout(signed(size), params.post_lanes)(bits)
        return _RowWord(reading, sequence, word, last_word, x, 2)

    def _from_port(self, m, steps):
        """Request the rows of all sequences and forward their words on arrival. Returns the same
        as :meth:`_from_rom`."""
        params, job = self.params, self.jobs.payload
        per_chunk = params.quant_lanes // params.post_lanes
        size, port = params.element_bits, params.port_bits
        asks, comes = Signal(), Signal()
        words = Signal(range(params.chunks * per_chunk + 1))
        word = Signal(range(params.chunks * per_chunk))
        asked, sequence = Signal(params.batch_bits), Signal(params.batch_bits)
        last_word, valid = Signal(), Signal()
        m.d.comb += [
            self.jobs.ready.eq(~asks & ~comes),
            self.owner.eq(asked), self.tokens.payload.eq(self.token), self.tokens.valid.eq(asks),
            self.done.eq(asks & self.tokens.ready & (asked == params.batch - 1)),
            last_word.eq(word + 1 == words),
        ]
        with m.If(self.jobs.ready):
            m.d.sync += [asks.eq(self.jobs.valid), comes.eq(self.jobs.valid),
                         words.eq(job.chunks * per_chunk), asked.eq(0), sequence.eq(0)]
        with m.If(asks & self.tokens.ready):
            m.d.sync += [asked.eq(asked + 1), asks.eq(~self.done)]
        with m.If(valid):
            m.d.sync += word.eq(Mux(last_word, 0, word + 1))
            with m.If(last_word):
                m.d.sync += [sequence.eq(sequence + 1), comes.eq(sequence != params.batch - 1)]

        # Words of the port are joined or split; every row begins with a new word.
        ratio = params.post_lanes * size // port
        if ratio > 1:
            part = Signal(range(ratio))
            held = Signal(port * (ratio - 1), reset_less=True)
            row = Cat(held, self.rows.payload)
            m.d.comb += [self.rows.ready.eq(1), valid.eq(self.rows.valid & (part == ratio - 1))]
            with m.If(self.rows.valid):
                m.d.sync += [held.eq(row[port:]), part.eq(part + 1)]
        else:
            parts = port // (params.post_lanes * size)
            part = Signal(range(max(parts, 2)))
            row = self.rows.payload.word_select(part, params.post_lanes * size)
            m.d.comb += [self.rows.ready.eq(last_word | (part == parts - 1)),
                         valid.eq(self.rows.valid)]
            with m.If(self.rows.valid):
                m.d.sync += part.eq(Mux(self.rows.ready, 0, part + 1))
        x = ArrayLayout(signed(size), params.post_lanes)(steps.register(row, "row"))
        return _RowWord(valid, sequence, word, last_word, x, 1)


class Core(wiring.Component):
    """A complete MatMul-free language model that runs a token of every sequence at a time.

    The sequences of a phase process a token together: each weight word is used for all of them, one
    by one. With two phases, the vectors of one are normalised while those of the other are
    multiplied. A phase begins a token when one of its sequences has one; idle sequences keep their
    state, and results computed for them are discarded.

    Members
    -------
    prompts : ``In(stream.Signature(prompt_layout(params)))``
    tokens : ``Out(stream.Signature(token_layout(params)))``
    logits : ``Out(stream.Signature(logit_layout(params)))``
    taps : ``Out(trace_layout(params))``, with a trace
        Every intermediate vector.
    reads, data, failed, status
        With a port, of :class:`~sterna.hw.core.image.reader.ImageReader`: prompts are accepted,
        and tokens and logits output, while the status is ``RUNNING``. Only the ``params`` of the
        image are then used.
    """

    def __init__(self, image: CoreImage) -> None:
        self.image = image
        self.params = params = image.params
        self.path = Datapath(image)
        self.sequences, self.embedder = Sequences(params), Embedder(image)
        self.sampler = TokenSampler(params)
        super().__init__({
            "prompts": In(stream.Signature(prompt_layout(params))),
            "tokens": Out(stream.Signature(token_layout(params))),
            "logits": Out(stream.Signature(logit_layout(params))),
            **({"taps": Out(trace_layout(params))} if params.trace else {}),
            **self.path.port_members})

    def elaborate(self, platform):
        m = Module()
        params, path, embedder, sampler = self.params, self.path, self.embedder, self.sampler
        results = path.post.results
        for name in ("sequences", "embedder", "sampler"):
            m.submodules[name] = getattr(self, name)
        path.add(m, list(zip(embedder.embedded, embedder.embedded_valid, strict=True)))
        m.d.comb += [
            sampler.results.eq(results), sampler.results_valid.eq(path.post.results_valid)]
        sequences, cells = self.sequences, path.cells
        wiring.connect(m, wiring.flipped(self.prompts), sequences.prompts)
        wiring.connect(m, sequences.tokens, wiring.flipped(self.tokens))
        wiring.connect(m, sampler.choices, sequences.choices)
        m.d.comb += [
            sequences.is_open.eq(path.is_running),
            cells.active.eq(sequences.active), cells.starts.eq(sequences.starts),
            sequences.owner.eq(embedder.owner), embedder.token.eq(sequences.token)]
        path.choose_jobs(m, [self._phase(m, phase, *each)
                             for phase, each in enumerate(path.programs(m))])
        word = Signal(logit_layout(params))
        m.d.comb += [
            word.sequence.eq(params.sequence_of(results.tag.phase, results.tag.sequence)),
            word.last.eq(results.tag.last),
            word.logits.eq(results.logits),
        ]
        path.queue_results(
            m, self.logits, word, sequences.predicts.bit_select(word.sequence, 1))
        if path.reader:
            path.read_image(m, self)
            wiring.connect(m, embedder.tokens, path.reader.tokens)
            wiring.connect(m, path.reader.rows, embedder.rows)
        if params.trace:
            show_taps(m, path, self.taps, sequences.active, sequences.predicts)
        return m

    def _phase(self, m, phase, index, following):
        """Control the rounds of a phase; return whether the vectors of its next stage are ready."""
        params, sampler, embedder = self.params, self.sampler, self.embedder
        each, choices = self.sequences.rounds[phase], sampler.choices
        running, embeds = Signal(name=f"running{phase}"), Signal(name=f"embeds{phase}")
        wanted = Signal(name=f"wanted{phase}")
        complete = self.path.complete(m, phase)
        m.d.comb += sampler.stages[phase].eq(self.path.work_on(m, phase, complete, following))
        # Whether the following stage has been read since the index changed.
        rested = Signal(range(READ_CYCLES + 1), name=f"rested{phase}")
        with m.If(complete):
            m.d.sync += rested.eq(0)
        with m.Elif(rested != READ_CYCLES):
            m.d.sync += rested.eq(rested + 1)
        is_head = following.kind == StageKind.HEAD
        m.d.comb += [
            each.begins.eq(
                (rested == READ_CYCLES) & ~running & each.waits & self.sequences.room),
            each.embedded.eq(embedder.done & (embedder.phase == phase)),
            each.ended.eq((complete & is_head & ~each.predicts)
                          | (choices.sampled & (choices.phase == phase)
                             & (choices.sequence == params.batch - 1))),
        ]
        with m.If(each.begins):
            m.d.sync += running.eq(1)
        with m.If(each.ended):
            m.d.sync += running.eq(0)
        with m.Elif(complete):
            m.d.comb += wanted.eq(1)
        with m.If(complete):
            m.d.sync += index.eq(Mux(is_head, 0, index + 1))
        # The last requesting phase goes first; one that is not served at once waits.
        with m.If(each.begins | embeds):
            m.d.comb += [embedder.jobs.valid.eq(1), embedder.jobs.payload.phase.eq(phase),
                         embedder.jobs.payload.chunks.eq(following.chunks)]
        m.d.sync += embeds.eq((each.begins | embeds) & ~(
            embedder.jobs.ready & (embedder.jobs.payload.phase == phase)))
        if self.path.reader:
            m.d.comb += [self.path.reader.begins.eq(each.begins),
                         self.path.reader.predicts.eq(each.will_predict)]
        return wanted
