"""The datapath of a program: norm, array, post-processor, cells, residual stream and image
reader."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Mux, Signal, Value
from amaranth.lib import fifo, memory, wiring

from sterna.hw.core.compute.cells import Cells
from sterna.hw.core.compute.norm import Norm
from sterna.hw.core.compute.post import Post
from sterna.hw.core.compute.products import Products
from sterna.hw.core.compute.queues import TaskQueue
from sterna.hw.core.compute.residual import Residual
from sterna.hw.core.compute.vectors import VectorStore
from sterna.hw.core.image.program import ProgramImage
from sterna.hw.core.image.reader import ImageReader, ImageStatus
from sterna.hw.parts.pipeline import Pipeline
from sterna.model.quantized.plan import StageKind

__all__ = ["READ_CYCLES", "Datapath", "join_norm"]

READ_CYCLES = 4
"""Cycles from the index of a stage to the stage in :meth:`Datapath.programs`: a turn, the memory,
a register."""


def join_norm(m, norm, stores, sources):
    """Add a norm and the vector stores of each phase; ``sources`` are the elements of each phase,
    and whether they are valid."""
    m.submodules.norm = norm
    for phase, (store, (elements, valid)) in enumerate(zip(stores, sources, strict=True)):
        m.submodules[f"vectors{phase}"] = store
        m.d.comb += [
            store.elements_valid.eq(valid), store.elements.eq(elements),
            store.sequence.eq(norm.sequence), store.read_sequence.eq(norm.read_sequence),
            store.chunk.eq(norm.chunk),
        ]
    m.d.comb += [
        norm.maximum.eq(Array(each.maximum for each in stores)[norm.phase]),
        norm.word.eq(Array(each.word.as_value() for each in stores)[
            Pipeline(m, Const(1)).delay(norm.read_phase, 2, "read_phase")]),
    ]


class Datapath:
    """The parts that run a program; unused parts are None.

    A component holds one and adds the parts to its module, next to the source of vectors, the
    control of the phases and the port for results.
    """

    def __init__(self, image: ProgramImage) -> None:
        self.image = image
        self.params = params = image.params
        self.products, self.post = Products(image), Post(image)
        self.norm, self.stores = None, []
        if params.limits.normalizes:
            self.norm = Norm(params)
            self.stores = [VectorStore(params) for _ in range(params.phases)]
        has_cells = {StageKind.MLGRU, StageKind.GLU} & set(params.result_bits)
        self.cells = Cells(params, params.profile.sigmoid_table()) if has_cells else None
        self.residual = Residual(params) if params.vector_words else None
        # With a port, only the ``params`` of the image are used.
        self.reader = ImageReader(params) if params.port_bits else None
        self.port_members = {name: self.reader.signature.members[name] for name in (
            "reads", "data", "failed", "status")} if self.reader else {}
        # For each phase, the elements that begin a program, or a stage, and whether they are valid.
        self.vectors: list = []

    @property
    def is_running(self):
        """Whether the program is loaded."""
        return self.reader.status == ImageStatus.RUNNING if self.reader else Const(1)

    def read_image(self, m, unit):
        """Read the image through the port of a unit with ``port_members``."""
        m.submodules.reader = reader = self.reader
        products, post = self.products, self.post
        for name in ("reads", "data"):
            wiring.connect(m, wiring.flipped(getattr(unit, name)), getattr(reader, name))
        m.d.comb += [
            reader.failed.eq(unit.failed), unit.status.eq(reader.status),
            products.fill.eq(reader.weights), post.fill.eq(reader.headers),
            reader.word_used.eq(products.word_used), reader.header_used.eq(post.header_used),
        ]

    def programs(self, m):
        """Return, for each phase, the index of its next stage and the stage, ``READ_CYCLES``
        later, from a memory."""
        params, layout = self.params, self.params.stage_layout
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

    def add_array(self, m):
        """Add the array and the post-processor of its sums."""
        m.submodules.products, m.submodules.post = self.products, self.post
        wiring.connect(m, self.products.sums, self.post.sums)

    def add(self, m, vectors):
        """Add all parts. ``vectors``: for each phase, the elements of the vectors that begin a
        program, and whether they are valid."""
        norm, products, post = self.norm, self.products, self.post
        cells, residual = self.cells, self.residual
        self.add_array(m)
        if residual is not None:
            m.submodules.residual = residual
            m.d.comb += [
                residual.coming.eq(post.coming), residual.results.eq(post.results),
                residual.results_valid.eq(post.results_valid)]
            for phase, (elements, valid) in enumerate(vectors):
                m.d.comb += [residual.vectors[phase].eq(elements),
                             residual.vectors_valid[phase].eq(valid)]
            vectors = list(zip(residual.elements, residual.elements_valid, strict=True))
        self.vectors = vectors
        if cells is not None:
            m.submodules.cells = cells
            m.d.comb += [
                cells.results.eq(post.results), cells.results_valid.eq(post.results_valid),
                post.cell_room.eq(cells.room), cells.begins.eq(post.begins)]
            vectors = [(Mux(valid, Value.cast(elements), made.as_value()), valid | is_made)
                       for (elements, valid), made, is_made in zip(
                           vectors, cells.elements, cells.elements_valid, strict=True)]
        join_norm(m, norm, self.stores, vectors)
        m.d.comb += [
            products.acts.eq(norm.acts), products.acts_valid.eq(norm.acts_valid),
            products.coming.eq(norm.coming), products.coming_valid.eq(norm.coming_valid),
            post.scales.eq(norm.scales), post.scales_valid.eq(norm.scales_valid),
            post.scaled.eq(norm.scaled), post.scaled_phase.eq(norm.scaled_phase),
        ]

    def leaving(self):
        """Return the tag of the outgoing results, the results, and whether they are valid."""
        results = self.post.results
        if StageKind.LAST in self.params.result_bits:
            return self.residual.sums_tag, self.residual.sums, self.residual.sums_valid
        return (results.tag, results.logits,
                self.post.results_valid & (results.tag.kind == StageKind.HEAD))

    def queue_jobs(self, m, taken, phase):
        """Queue a job of a phase for array and post-processor: its vectors and scales follow."""
        for name, unit in (("issue", self.products), ("result", self.post)):
            m.submodules[f"{name}_queue"] = queue = TaskQueue(1, depth=2)
            m.d.comb += [queue.put.eq(taken), queue.payload.eq(phase),
                         unit.fresh.eq(taken), unit.fresh_phase.eq(phase)]
            wiring.connect(m, queue.head, unit.jobs)

    def queue_results(self, m, port, word, wanted=1):
        """Queue the outgoing results that are ``wanted`` at a port, and ensure that there is room
        for them. ``word`` is the payload of the port."""
        depth, (_, _, comes) = self.params.logit_depth, self.leaving()
        m.submodules.logit_queue = queue = fifo.SyncFIFO(width=len(Value.cast(word)), depth=depth)
        steps, wanted = Pipeline(m, Const(1)), Value.cast(wanted)
        dropped = steps.flags(comes & ~wanted, 1, "dropped")[-1]
        m.d.comb += [
            queue.w_data.eq(steps.register(word, "head")),
            queue.w_en.eq(steps.flags(comes & wanted, 1, "kept_head")[-1]),
            port.valid.eq(queue.r_rdy & self.is_running),
            port.payload.eq(queue.r_data),
            queue.r_en.eq(port.ready & self.is_running),
        ]
        # Unwanted results are dropped at once, so two may leave in a cycle. Arrivals are counted a
        # cycle late, so one more may arrive before the count is known.
        kept, came = Signal(range(depth + 1)), Signal()
        gone = port.valid & port.ready
        m.d.sync += [came.eq(self.post.takes_logits), kept.eq(kept + came - gone - dropped),
                     self.post.logit_room.eq(kept < Mux(came, depth - 2, depth - 1))]

    def stage(self, index):
        """Return a stage of a constant program."""
        layout = self.params.stage_layout
        return layout(Array(Const(word, layout.size) for word in self.image.stages)[index])

    def complete(self, m, phase):
        """Return whether the vectors of a phase are complete, a cycle after the last one."""
        batch = self.params.batch
        count = Signal(range(batch + 1), name=f"complete{phase}")
        complete = Signal(name=f"all_complete{phase}")
        counted = Mux(complete, 0, count) + self.stores[phase].complete
        m.d.sync += [count.eq(counted), complete.eq(counted == batch)]
        return complete

    def work_on(self, m, phase, complete, following):
        """Switch a phase to its ``following`` stage once its vectors are complete; return the
        current stage."""
        stage = Signal(self.params.stage_layout, name=f"stage{phase}", reset_less=True)
        with m.If(complete):
            m.d.sync += stage.eq(following)
        for unit in (self.norm, self.products, self.post, self.cells):
            if unit is not None:
                m.d.comb += unit.stages[phase].eq(stage)
        return stage

    def choose_jobs(self, m, wanted):
        """Choose the next job of norm, array and post-processor among the phases that want one."""
        params, norm = self.params, self.norm
        waiting = [Signal(name=f"waits{phase}") for phase in range(params.phases)]
        phase = Signal()
        last = Signal()
        taken = Signal()
        # A phase that is not served at once waits.
        wanted = [each | waits for each, waits in zip(wanted, waiting, strict=True)]
        for index, (each, waits) in enumerate(zip(wanted, waiting, strict=True)):
            m.d.sync += waits.eq(each & ~(taken & (phase == index)))
        m.d.comb += [
            phase.eq(Mux(Cat(wanted).all(), ~last, ~wanted[0]) if params.phases > 1 else 0),
            norm.jobs.valid.eq(Cat(wanted).any()), norm.jobs.payload.eq(phase),
            taken.eq(norm.jobs.valid & norm.jobs.ready),
        ]
        with m.If(taken):
            m.d.sync += last.eq(phase)
        # Array and post-processor start a cycle later: activations take many cycles.
        steps = Pipeline(m, Const(1))
        self.queue_jobs(m, steps.flags(taken, 1, "taken")[-1], steps.delay(phase, 1, "job"))
