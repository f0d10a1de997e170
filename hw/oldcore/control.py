"""What a sequence does next: the token that it runs, and the stage of that token."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Signal, unsigned
from amaranth.lib import memory, stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.core_params import MAX_SLOTS
from sterna.hw.core.queues import TaskQueue
from sterna.hw.core.request import LIMIT_BITS
from sterna.hw.oldcore.plan.core_params import CoreParams
from sterna.hw.oldcore.plan.image import CoreImage, task_layout, weight_request_layout
from sterna.hw.units.sampler import BETA_BITS, SEED_BITS

__all__ = ["ControlSignature", "Dispatcher", "TokenControl", "prompt_layout", "token_layout"]


def prompt_layout(params: CoreParams) -> StructLayout:
    """A token of a prompt.

    ``start``: it begins a sequence. ``predict``: compute the logits after it, and go on
    writing if a limit is set.
    """
    return StructLayout({"token": params.token_bits, "start": 1, "predict": 1})


def token_layout(params: CoreParams) -> StructLayout:
    """A generated token; ``last`` says that no more follows."""
    return StructLayout({"token": params.token_bits, "last": 1})


class ControlSignature(wiring.Signature):
    """What a user sets for a sequence, while it can take the first token of a prompt.

    ``limit``: tokens to generate after a token with ``predict``; with 0 only logits come out.
    ``stop``, ``stop_token``: whether, and after which token, to end early. With
    ``params.sampling`` also ``beta``: ``log2(e) / T * 2**10`` for temperature T, 0 for greedy,
    and ``seed``: of the generator, loaded with the first token of a sequence.
    """

    def __init__(self, params: CoreParams) -> None:
        super().__init__({
            "limit": Out(LIMIT_BITS),
            "stop": Out(1),
            "stop_token": Out(params.token_bits),
            **({"beta": Out(BETA_BITS), "seed": Out(SEED_BITS)} if params.sampling else {}),
        })


class TokenControl(wiring.Component):
    """Runs one sequence, token by token.

    A token of the prompt is taken while ``go`` is high and no token is in progress. After one
    with ``predict``, tokens are generated: each goes out on ``tokens`` and back in as the next
    token, until the limit or the stop token is reached. The last token that goes out is not run;
    who continues the sequence sends it with the next prompt.
    """

    def __init__(self, params: CoreParams) -> None:
        self.params = params
        token = params.token_bits
        super().__init__({
            "go": In(1),
            "control": In(ControlSignature(params)),
            "prompts": In(stream.Signature(prompt_layout(params))),
            "tokens": Out(stream.Signature(token_layout(params))),
            "requests": Out(stream.Signature(token)),   # tokens to run: the embedding answers
            "sampled": In(stream.Signature(token)),     # chosen tokens
            # The last word of the last residual vector, or of the logits, has passed.
            "vector_done": In(1),
            "logits_done": In(1),
            # A token is in progress; it begins a sequence, needs logits, and after it a token
            # is to be chosen.
            "busy": Out(1),
            "start": Out(1),
            "predict": Out(1),
            "generate": Out(1),
            "reseed": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        control, prompt, written = self.control, self.prompts.payload, self.tokens.payload
        token = Signal(self.params.token_bits)
        # Tokens still to be generated, and, long before it matters, whether this is the last.
        remaining = Signal(LIMIT_BITS)
        is_final = Signal()
        last = Signal()
        m.d.sync += is_final.eq(remaining == 1)

        m.d.comb += [
            self.requests.payload.eq(token),
            last.eq(is_final
                    | (control.stop & (self.sampled.payload == control.stop_token))),
        ]
        with m.If(self.tokens.ready):
            m.d.sync += self.tokens.valid.eq(0)

        # A token of a prompt is taken, asked for, and run; a chosen one is asked for and run.
        asking = Signal()
        running = Signal()
        m.d.comb += [
            self.busy.eq(asking | running),
            self.prompts.ready.eq(self.go & ~self.busy),
            self.requests.valid.eq(asking),
            # A chosen token goes on while the one before it may still wait to be taken.
            self.sampled.ready.eq(running & (~self.tokens.valid | self.tokens.ready)),
        ]
        with m.If(self.prompts.valid & self.prompts.ready):
            m.d.comb += self.reseed.eq(prompt.start)
            m.d.sync += [
                asking.eq(1), token.eq(prompt.token), self.start.eq(prompt.start),
                self.predict.eq(prompt.predict), remaining.eq(control.limit),
                self.generate.eq(prompt.predict & control.limit.any())]
        with m.If(asking & self.requests.ready):
            m.d.sync += [asking.eq(0), running.eq(1)]
        with m.If(self.sampled.valid & self.sampled.ready):
            m.d.sync += [
                self.tokens.valid.eq(1), written.token.eq(self.sampled.payload),
                written.last.eq(last), token.eq(self.sampled.payload), self.start.eq(0),
                remaining.eq(remaining - 1), running.eq(0), asking.eq(~last)]
        with m.If(running & self.vector_done & ~self.predict):
            m.d.sync += running.eq(0)
        with m.If(running & self.logits_done & ~self.generate):
            m.d.sync += running.eq(0)
        return m


class Dispatcher(wiring.Component):
    """Looks up the next stage of a sequence when the norm begins with its vector.

    The program word is there a cycle later, and in the cycle after that the tasks and the
    request for weights stand at the head of their queues, if those were empty. A sequence has
    one stage in progress at most, so a place for each is enough.
    """

    def __init__(self, image: CoreImage) -> None:
        self.image = image
        params = image.params
        mantissas = ArrayLayout(unsigned(params.profile.mantissa_bits), MAX_SLOTS)
        super().__init__({
            # The norm begins with a vector in this cycle, and whose it is.
            "begins": In(1),
            "sequence": In(params.index_bits),
            # A token begins: the next stage is the first one. Whether it begins a sequence.
            "restarts": In(1).array(params.sequences),
            "starts": In(1).array(params.sequences),
            # Stages of the token that have begun.
            "stages": Out(range(params.stages + 1)).array(params.sequences),
            "issue_tasks": Out(stream.Signature(task_layout(image))),
            "post_tasks": Out(stream.Signature(task_layout(image))),
            "weight_requests": Out(stream.Signature(weight_request_layout(image))),
            # Of the stage that began last.
            "mantissas": Out(mantissas).array(params.sequences),
        })

    def elaborate(self, platform):
        m = Module()
        image, sequences = self.image, self.image.params.sequences
        shape = image.stage_layout
        m.submodules.program = rom = memory.Memory(
            shape=shape, depth=len(image.stages),
            init=[shape.from_bits(word) for word in image.stages])
        read = rom.read_port()
        current = Array(self.stages)[self.sequence]

        begun = Signal()
        sequence = Signal(self.sequence.shape())
        start = Signal()
        m.d.comb += read.addr.eq(current)
        m.d.sync += [
            begun.eq(self.begins), sequence.eq(self.sequence),
            start.eq(~current.any() & Array(self.starts)[self.sequence])]
        for index in range(sequences):
            with m.If(self.restarts[index]):
                m.d.sync += self.stages[index].eq(0)
            with m.Elif(self.begins & (self.sequence == index)):
                m.d.sync += self.stages[index].eq(self.stages[index] + 1)

        stage = read.data
        task = Signal(task_layout(image))
        request = Signal(weight_request_layout(image))
        m.d.comb += [
            *(task[name].eq(stage[name]) for name in (
                "kind", "last_slot", "tiles", "headers", "first_header", "shift")),
            task.start.eq(start),
            task.sequence.eq(sequence),
            request.first.eq(stage.first_weight),
            request.count.eq(stage.beats),
        ]
        for name, sink, payload in (
            ("issue_queue", self.issue_tasks, task), ("post_queue", self.post_tasks, task),
            ("weight_queue", self.weight_requests, request),
        ):
            m.submodules[name] = queue = TaskQueue(payload.shape(), depth=sequences)
            m.d.comb += [queue.put.eq(begun), queue.payload.eq(payload)]
            wiring.connect(m, queue.head, wiring.flipped(sink))
        for index in range(sequences):
            with m.If(begun & (sequence == index)):
                m.d.sync += self.mantissas[index].eq(stage.k)
        return m
