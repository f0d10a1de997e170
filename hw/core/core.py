"""The whole core: prompt tokens of many sequences in, generated tokens out."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import fifo, memory, stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.block_memory import read_block_rom
from sterna.hw.core.core_image import CoreImage
from sterna.hw.core.core_params import CoreParams
from sterna.hw.core.datapath import Datapath
from sterna.hw.core.image_reader import ImageReader, ImageStatus
from sterna.hw.core.logit_weight import BETA_BITS, SEED_BITS
from sterna.hw.core.products import sequence_of
from sterna.hw.core.request import LIMIT_BITS
from sterna.hw.core.sampler import TokenSampler
from sterna.hw.core.trace import show_taps, trace_layout
from sterna.hw.core.vectors import element_layout
from sterna.hw.parts.arithmetic import constant_product
from sterna.hw.parts.memory_attributes import NEVER_COLLIDES
from sterna.hw.parts.pipeline import Pipeline
from sterna.model.quantized.plan import StageKind

__all__ = ["Core", "logit_layout", "prompt_layout", "token_layout"]

_READ_CYCLES = 4    # from a stage's index to the stage: a turn, the memory, a register


def prompt_layout(params: CoreParams) -> StructLayout:
    """A token of a prompt.

    ``start``: it begins a sequence, and the random numbers from ``seed`` on, 0 counting as 1.
    ``predict``: compute the logits after it, and generate up to ``limit`` tokens, or up to
    ``stop_token`` with ``stop``. ``beta``: ``log2(e) / T * 2**10`` for temperature T, 0 for
    greedy; if the core is compact, every one counts as 0.
    """
    return StructLayout({
        "sequence": range(max(params.sequences, 2)), "token": params.token_bits, "start": 1,
        "predict": 1, "stop": 1, "stop_token": params.token_bits, "limit": LIMIT_BITS,
        "beta": BETA_BITS, "seed": SEED_BITS})


def token_layout(params: CoreParams) -> StructLayout:
    """A generated token; ``last`` says that no more of its sequence follows."""
    return StructLayout({
        "sequence": range(max(params.sequences, 2)), "token": params.token_bits, "last": 1})


def logit_layout(params: CoreParams) -> StructLayout:
    """The logits of ``post_lanes`` tokens; ``last`` with those of the last token. Of sequences
    that ask for no prediction, while others do, they mean nothing."""
    return StructLayout({
        "sequence": range(max(params.sequences, 2)), "last": 1,
        "logits": ArrayLayout(signed(params.profile.logit.bits), params.post_lanes)})


class Embedder(wiring.Component):
    """The vectors of the tokens of a phase, sequence by sequence, word by word.

    Members
    -------
    jobs : ``In(stream.Signature(...))``
        A phase, and the chunks of a vector.
    owner, token : ``Out``, ``In``
        The sequence whose token is read in the same cycle.
    phase, done : ``Out(1)``
        In this cycle the last word of a phase is read.
    embedded, embedded_valid : ``Out``, for each phase
        The words.
    tokens, rows
        With a port, of :class:`~sterna.hw.core.image_reader.ImageReader`.
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
        reading, sequence, word, last_word, x, way = source(m, steps)
        # A cycle more, for the way from the memories to those of the vectors.
        way += 1
        valid = steps.flags(reading, way, "valid")[-1]
        whose = element_layout(params)
        place = Cat(Const(0, (params.post_lanes // params.cell_lanes).bit_length() - 1), word)
        now = Signal(whose)
        m.d.comb += [now.sequence.eq(sequence), now.place.eq(place), now.wide.eq(1),
                     now.first.eq(word == 0), now.last.eq(last_word)]
        later = whose(steps.delay(now, way, "whose"))
        later_phase = steps.delay(self.phase, way, "whose_phase")
        x = x.shape()(steps.register(x, "x"))
        for index in range(params.phases):
            m.d.comb += [
                self.embedded_valid[index].eq(valid & (later_phase == index)),
                self.embedded[index].eq(later),
            ]
            for lane in range(params.post_lanes):
                m.d.comb += self.embedded[index].y[lane].eq(x[lane])
        return m

    def _from_rom(self, m, steps):
        """Return (whether a word is read, of which sequence, its place, whether it is the last,
        the word, so many cycles later)."""
        params, job = self.params, self.jobs.payload
        per_chunk = params.quant_lanes // params.post_lanes
        active, reading = Signal(), Signal()
        phase = self.phase
        sequence, upcoming = Signal(params.batch_bits), Signal(params.batch_bits)
        words = Signal(range(params.chunks * per_chunk + 1))
        word = Signal(range(params.chunks * per_chunk))
        last_word, last_sequence = Signal(), Signal()
        # The rows of every model are as far apart as those of the widest one.
        pitch = params.vector_words
        depth = max(params.vocab * pitch, 2)
        address = Signal(range(depth), reset_less=True)
        # Where the row of the upcoming sequence begins: known two cycles after which one it is.
        token = steps.register(self.token, "token")
        first = steps.register(constant_product(token, pitch)[:len(address)], "first")
        changes, known = Signal(), Signal()
        m.d.comb += known.eq(~Cat(steps.flags(changes, 2, "changed")[1:]).any())
        m.d.comb += [
            last_sequence.eq(sequence == params.batch - 1),
            self.jobs.ready.eq(~active),
            self.owner.eq(sequence_of(params, phase, upcoming)),
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
        return reading, sequence, word, last_word, x, 2

    def _from_port(self, m, steps):
        """Ask for the rows of all sequences; hand on their words as they come. Returns as
        :meth:`_from_rom` does."""
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

        # Words of the port are put together or taken apart; a row begins with one of its own.
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
        return valid, sequence, word, last_word, x, 1


class Core(wiring.Component):
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
    taps : ``Out(trace_layout(params))``, with a trace
        Every intermediate vector.
    reads, data, failed, status
        With a port, of :class:`~sterna.hw.core.image_reader.ImageReader`: prompts are taken,
        tokens and logits given while the status is ``RUNNING``. Of the image only its ``params``
        are used then.
    """

    def __init__(self, image: CoreImage) -> None:
        self.image = image
        self.params = params = image.params
        self.path = Datapath(image)
        self.embedder = Embedder(image)
        self.sampler = TokenSampler(params)
        self.reader = ImageReader(params) if params.port_bits else None
        super().__init__({
            "prompts": In(stream.Signature(prompt_layout(params))),
            "tokens": Out(stream.Signature(token_layout(params))),
            "logits": Out(stream.Signature(logit_layout(params))),
            **({"taps": Out(trace_layout(params))} if params.trace else {}),
        } | ({name: self.reader.signature.members[name] for name in (
                "reads", "data", "failed", "status")}
             if self.reader else {}))

    def elaborate(self, platform):
        m = Module()
        params, path, embedder, sampler = self.params, self.path, self.embedder, self.sampler
        results = path.post.results
        m.submodules.embedder, m.submodules.sampler = embedder, sampler
        path.add(m, list(zip(embedder.embedded, embedder.embedded_valid, strict=True)))
        m.d.comb += [
            sampler.results.eq(results), sampler.results_valid.eq(path.post.results_valid)]
        predicts = self._sequences(m)
        word = Signal(logit_layout(params))
        m.d.comb += [
            word.sequence.eq(sequence_of(params, results.tag.phase, results.tag.sequence)),
            word.last.eq(results.tag.last),
            word.logits.eq(results.logits),
        ]
        path.queue_results(m, self.logits, word, predicts.bit_select(word.sequence, 1),
                           self._is_running())
        if self.reader:
            self._read_image(m)
        return m

    def _is_running(self):
        return self.reader.status == ImageStatus.RUNNING if self.reader else Const(1)

    def _read_image(self, m):
        m.submodules.reader = reader = self.reader
        products, post = self.path.products, self.path.post
        for name in ("reads", "data"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(reader, name))
        wiring.connect(m, self.embedder.tokens, reader.tokens)
        wiring.connect(m, reader.rows, self.embedder.rows)
        m.d.comb += [
            reader.failed.eq(self.failed), self.status.eq(reader.status),
            products.fill.eq(reader.weights), post.fill.eq(reader.headers),
            reader.word_used.eq(products.word_used), reader.header_used.eq(post.header_used),
        ]

    def _sequences(self, m):
        """Tokens of the sequences, and the rounds of the phases; return who predicts."""
        params, sampler = self.params, self.sampler
        count = params.sequences
        waiting, generating, held = Signal(count), Signal(count), Signal(count)
        active, starts, predicts = Signal(count), Signal(count), Signal(count)
        will_start, will_predict, warm = Signal(count), Signal(count), Signal(count)
        cells = self.path.cells
        m.d.comb += [cells.active.eq(active), cells.starts.eq(starts)]

        # A prompt waits for its sequence, and while the memories take something else. A sequence
        # that is free stays so until it takes the prompt.
        prompt, has_prompt = Signal(self.prompts.payload.shape()), Signal()
        asked = prompt.sequence if count > 1 else Const(0, 1)
        taken, is_free, generates = Signal(), Signal(), Signal()
        busy = Signal(count)
        m.d.sync += [
            busy.eq(waiting | generating | held | predicts),
            is_free.eq(has_prompt & ~taken & ~busy.bit_select(asked, 1)),
            generates.eq(prompt.predict & prompt.limit.any())]
        with m.If(self.prompts.valid & self.prompts.ready):
            m.d.sync += [prompt.eq(self.prompts.payload), has_prompt.eq(1)]
        with m.If(taken):
            m.d.sync += has_prompt.eq(0)
        m.d.comb += [
            self.prompts.ready.eq(~has_prompt & self._is_running()),
            taken.eq(is_free & ~sampler.sampled & ~sampler.choosing),
            sampler.reseed.eq(taken & prompt.start),
            sampler.seed.eq(prompt.seed), sampler.seed_owner.eq(asked),
        ]
        with m.If(taken):
            m.d.sync += [
                waiting.bit_select(asked, 1).eq(1),
                will_start.bit_select(asked, 1).eq(prompt.start),
                will_predict.bit_select(asked, 1).eq(prompt.predict),
                generating.bit_select(asked, 1).eq(generates),
                warm.bit_select(asked, 1).eq(prompt.beta.any()),
            ]

        sampled = sequence_of(params, sampler.phase, sampler.sequence)
        sampled = sampled if len(sampled) else Const(0, 1)
        chosen = sampler.chosen
        m.d.comb += [sampler.wanted.eq(generating & predicts), sampler.warm.eq(warm)]
        m.submodules.settings = store = memory.Memory(
            shape=StructLayout({
                "beta": BETA_BITS, "stop": 1, "stop_token": params.token_bits}),
            depth=max(count, 2), init=[], attrs=NEVER_COLLIDES)
        write = store.write_port()
        settings = store.read_port(domain="comb")
        m.d.comb += [
            write.addr.eq(asked), write.en.eq(taken & prompt.predict),
            write.data.beta.eq(prompt.beta), write.data.stop.eq(prompt.stop),
            write.data.stop_token.eq(prompt.stop_token),
            settings.addr.eq(sampler.owner), sampler.beta.eq(settings.data.beta),
        ]
        m.submodules.left = store = memory.Memory(
            shape=LIMIT_BITS, depth=max(count, 2), init=[], attrs=NEVER_COLLIDES)
        write, left = store.write_port(), store.read_port(domain="comb")
        left_before, is_last = Signal(LIMIT_BITS, reset_less=True), Signal()
        m.d.comb += [
            left.addr.eq(sampler.owner), write.en.eq(chosen | taken),
            write.addr.eq(Mux(chosen, sampled, asked)),
            write.data.eq(Mux(chosen, left_before - 1, prompt.limit)),
        ]
        # Read as the token is found, a cycle before it is there.
        steps = Pipeline(m, Const(1))
        stop = steps.register(settings.data.stop, "stop")
        stop_token = steps.register(settings.data.stop_token, "stop_token")
        m.d.sync += [left_before.eq(left.data), is_last.eq(left.data == 1)]
        m.submodules.following = store = memory.Memory(
            shape=params.token_bits, depth=max(count, 2), init=[], attrs=NEVER_COLLIDES)
        write, token = store.write_port(), store.read_port(domain="comb")
        m.d.comb += [
            token.addr.eq(self.embedder.owner), self.embedder.token.eq(token.data),
            write.en.eq(chosen | taken), write.addr.eq(Mux(chosen, sampled, asked)),
            write.data.eq(Mux(chosen, sampler.token, prompt.token)),
        ]

        # Every sequence may still be about to give one, and one is on its way to the queue.
        depth = max(2 * count, 8 if count > 1 else 4)
        m.submodules.token_queue = queue = fifo.SyncFIFO(
            width=token_layout(params).size, depth=depth)
        word = Signal(token_layout(params))
        m.d.comb += [
            word.sequence.eq(sampled), word.token.eq(sampler.token),
            word.last.eq(is_last | (stop & (stop_token == sampler.token))),
            queue.w_data.eq(steps.register(word, "given")),
            queue.w_en.eq(steps.flags(chosen, 1, "gives")[-1]),
            self.tokens.valid.eq(queue.r_rdy & self._is_running()),
            self.tokens.payload.eq(queue.r_data),
            queue.r_en.eq(self.tokens.ready & self._is_running()),
        ]
        with m.If(chosen):
            m.d.sync += [
                generating.bit_select(sampled, 1).eq(~word.last),
                waiting.bit_select(sampled, 1).eq(~word.last),
                will_start.bit_select(sampled, 1).eq(0),
                will_predict.bit_select(sampled, 1).eq(1),
            ]

        # One more may come in the cycle until this is known.
        room = Signal()
        m.d.sync += room.eq(queue.level + 1 < depth - count)
        programs = self._programs(m)
        wanted = [Signal(name=f"wanted{phase}") for phase in range(params.phases)]
        for phase in range(params.phases):
            own = slice(phase * params.batch, (phase + 1) * params.batch)
            begins, ended = self._phase(
                m, phase, programs[phase], waiting[own], predicts[own], wanted[phase], room,
                chosen & ~word.last & (sampler.phase == phase))
            with m.If(begins):
                m.d.sync += [
                    active[own].eq(waiting[own]), held[own].eq(waiting[own]),
                    starts[own].eq(will_start[own]),
                    predicts[own].eq(waiting[own] & will_predict[own]),
                ]
                # A token that comes in this very cycle is for the next round.
                for index in range(own.start, own.stop):
                    with m.If(waiting[index]):
                        m.d.sync += waiting[index].eq(0)
            if self.reader:
                m.d.comb += [self.reader.begins.eq(begins),
                             self.reader.predicts.eq((waiting & will_predict).any())]
            with m.If(self.embedder.done & (self.embedder.phase == phase)):
                m.d.sync += held[own].eq(0)
            with m.If(ended):
                m.d.sync += predicts[own].eq(0)
        self.path.choose_jobs(m, wanted)
        if params.trace:
            show_taps(m, self.path, self.taps, active, predicts)
        return predicts

    def _programs(self, m):
        """For each phase the index of its next stage, and that stage, ``_READ_CYCLES`` later."""
        params = self.params
        layout = params.stage_layout
        m.submodules.stages = rom = memory.Memory(
            shape=layout, depth=max(params.stages, 2),
            init=[] if self.reader else [layout.from_bits(word) for word in self.image.stages])
        read = rom.read_port()
        if self.reader:
            write = rom.write_port()
            m.d.comb += [write.addr.eq(self.reader.stage_index), write.data.eq(self.reader.stage),
                         write.en.eq(self.reader.stage_valid)]
        # Two phases read in turns.
        turn = Signal()
        m.d.sync += turn.eq(~turn if params.phases > 1 else 0)
        programs = []
        for phase in range(params.phases):
            index = Signal(range(max(params.stages, 2)), name=f"index{phase}")
            following = Signal(layout, name=f"following{phase}", reset_less=True)
            programs.append((index, following))
            with m.If(turn == (phase + 1) % params.phases):
                m.d.sync += following.eq(read.data)
        m.d.comb += [
            read.addr.eq(Array(index for index, _ in programs)[turn]), read.en.eq(1)]
        return programs

    def _phase(self, m, phase, program, waiting, predicts, wanted, room, goes_on):
        """The rounds of a phase; return what is high when one begins, and when it ends.
        ``goes_on``: a sequence of it waits from the next cycle on."""
        params, sampler, embedder = self.params, self.sampler, self.embedder
        index, following = program
        running, embeds = Signal(name=f"running{phase}"), Signal(name=f"embeds{phase}")
        begins, ended = (Signal(name=f"{name}{phase}") for name in ("begins", "ended"))
        all_complete = self.path.complete(m, phase)
        m.d.comb += sampler.stages[phase].eq(self.path.work_on(m, phase, all_complete, following))
        # Whether the following stage has been read since the index changed.
        rested = Signal(range(_READ_CYCLES + 1), name=f"rested{phase}")
        with m.If(all_complete):
            m.d.sync += rested.eq(0)
        with m.Elif(rested != _READ_CYCLES):
            m.d.sync += rested.eq(rested + 1)
        some_wait, some_predict = Signal(name=f"some_wait{phase}"), Signal(
            name=f"some_predict{phase}")
        m.d.sync += [some_wait.eq((waiting.any() & ~begins) | goes_on),
                     some_predict.eq(predicts.any())]
        m.d.comb += [
            begins.eq((rested == _READ_CYCLES) & ~running & some_wait & room),
            ended.eq((all_complete & (following.kind == StageKind.HEAD) & ~some_predict)
                     | (sampler.sampled & (sampler.phase == phase)
                        & (sampler.sequence == params.batch - 1))),
        ]
        with m.If(begins):
            m.d.sync += running.eq(1)
        with m.If(ended):
            m.d.sync += running.eq(0)
        with m.Elif(all_complete):
            m.d.comb += wanted.eq(1)
        with m.If(all_complete):
            m.d.sync += index.eq(Mux(following.kind == StageKind.HEAD, 0, index + 1))
        # The last phase that asks goes first; one that is not served at once waits.
        with m.If(begins | embeds):
            m.d.comb += [embedder.jobs.valid.eq(1), embedder.jobs.payload.phase.eq(phase),
                         embedder.jobs.payload.chunks.eq(following.chunks)]
        m.d.sync += embeds.eq((begins | embeds) & ~(
            embedder.jobs.ready & (embedder.jobs.payload.phase == phase)))
        return begins, ended
