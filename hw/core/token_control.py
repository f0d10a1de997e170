"""Which token a sequence runs next: from the prompt, or the one it has just chosen."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.plan.params import CoreParams
from sterna.hw.core.plan.request import LIMIT_BITS
from sterna.hw.units.sampler.params import BETA_BITS, SEED_BITS

__all__ = ["ControlSignature", "TokenControl", "prompt_layout", "token_layout"]


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

    A token of the prompt is taken while ``go`` is high and no token is in progress. After
    one with ``predict``, tokens are generated: each goes out on ``tokens`` and back in as
    the next token, until the limit or the stop token is reached. The last token that goes
    out is not run; who continues the sequence sends it with the next prompt.

    Members
    -------
    go : ``In(1)``
    control : ``In(ControlSignature(params))``
    prompts : ``In(stream.Signature(prompt_layout(params)))``
    tokens : ``Out(stream.Signature(token_layout(params)))``
    requests : ``Out(stream.Signature(unsigned(token_bits)))``
        Tokens to run: the embedding answers.
    sampled : ``In(stream.Signature(unsigned(token_bits)))``
        Chosen tokens.
    vector_done, logits_done : ``In(1)``
        The last word of the last residual vector, or of the logits, has passed.
    busy : ``Out(1)``
        A token is in progress.
    start, predict, generate : ``Out(1)``
        Of the token in progress: whether it begins a sequence, needs logits, and whether a
        token is to be chosen.
    reseed : ``Out(1)``
        Load the seed.
    """

    def __init__(self, params: CoreParams) -> None:
        self.params = params
        token = params.token_bits
        super().__init__({
            "go": In(1),
            "control": In(ControlSignature(params)),
            "prompts": In(stream.Signature(prompt_layout(params))),
            "tokens": Out(stream.Signature(token_layout(params))),
            "requests": Out(stream.Signature(token)),
            "sampled": In(stream.Signature(token)),
            "vector_done": In(1),
            "logits_done": In(1),
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
