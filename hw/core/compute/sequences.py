"""The sequences of a core: prompt tokens, generated tokens and rounds."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import fifo, memory, stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.core.compute.logit_weight import BETA_BITS, SEED_BITS
from sterna.hw.core.compute.request import LIMIT_BITS
from sterna.hw.core.compute.sampler import choice_signature
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.parts.memory_attributes import NEVER_COLLIDES
from sterna.hw.parts.pipeline import Pipeline

__all__ = ["ROUND", "Sequences", "prompt_layout", "token_layout"]


def prompt_layout(params: CoreParams) -> StructLayout:
    """A token of a prompt.

    ``start``: it begins a sequence, with random numbers seeded by ``seed``, 0 counting as 1.
    ``predict``: compute the logits after it, and generate up to ``limit`` tokens, or up to
    ``stop_token`` with ``stop``. ``beta``: ``log2(e) / T * 2**10`` for temperature T, 0 for
    greedy; a compact core takes any value as 0.
    """
    return StructLayout({
        "sequence": range(max(params.sequences, 2)), "token": params.token_bits, "start": 1,
        "predict": 1, "stop": 1, "stop_token": params.token_bits, "limit": LIMIT_BITS,
        "beta": BETA_BITS, "seed": SEED_BITS})


def token_layout(params: CoreParams) -> StructLayout:
    """A generated token; ``last`` marks the last one of its sequence."""
    return StructLayout({
        "sequence": range(max(params.sequences, 2)), "token": params.token_bits, "last": 1})


ROUND = wiring.Signature({
    "waits": Out(1),
    "will_predict": Out(1),
    "predicts": Out(1),
    "begins": In(1),
    "embedded": In(1),
    "ended": In(1),
})
"""A phase: its sequences run a token in each round.

``waits``: a sequence has a token for the next round. ``will_predict``: one of these requests a
prediction; ``predicts``: one does in this round. ``begins``, ``ended``: a round begins, ended;
``embedded``: all its tokens have been read.
"""

_STATE = StructLayout({
    # For the next round: whether there is a token, starts a sequence, and has requested logits.
    "waiting": 1, "will_start": 1, "will_predict": 1,
    # In this round: whether a token runs, starts a sequence, and has requested logits.
    "active": 1, "starts": 1, "predicts": 1,
    "held": 1,          # its token has yet to be read
    "generating": 1,    # a token will be chosen for it
    "warm": 1,          # that token may be drawn
})


class Sequences(wiring.Component):
    """Feeds each sequence the tokens of its prompt, and then the generated ones.

    Members
    -------
    prompts : ``In(stream.Signature(prompt_layout(params)))``
    tokens : ``Out(stream.Signature(token_layout(params)))``
    is_open : ``In(1)``
        Prompts are accepted, and tokens output.
    rounds : ``Out(ROUND)``, for each phase
    room : ``Out(1)``
        A round may begin: there is room for a token of every sequence.
    active, starts, predicts : ``Out(sequences)``
        For each, whether its token runs in this round, begins a sequence, has requested logits.
    owner, token : ``In``, ``Out``
        A sequence, and its token in the same cycle.
    choices : ``In(choice_signature(params))``
        To the sampler.
    """

    def __init__(self, params: CoreParams) -> None:
        self.params = params
        super().__init__({
            "prompts": In(stream.Signature(prompt_layout(params))),
            "tokens": Out(stream.Signature(token_layout(params))),
            "is_open": In(1),
            "rounds": Out(ROUND).array(params.phases),
            "room": Out(1),
            **{name: Out(params.sequences) for name in ("active", "starts", "predicts")},
            "owner": In(max((params.sequences - 1).bit_length(), 1)),
            "token": Out(params.token_bits),
            "choices": In(choice_signature(params)),
        })

    def elaborate(self, platform):
        m = Module()
        params, choices = self.params, self.choices
        states = [Signal(_STATE, name=f"sequence{index}") for index in range(params.sequences)]

        def every(name: str):
            return Cat(each[name] for each in states)

        prompt, asked, taken = self._take_prompts(
            m, every("waiting") | every("generating") | every("held") | every("predicts"))
        sampled = params.sequence_of(choices.phase, choices.sequence)
        sampled = sampled if len(sampled) else Const(0, 1)
        last = self._give_tokens(m, prompt, asked, taken, sampled)
        generates = Signal()
        m.d.sync += generates.eq(prompt.predict & prompt.limit.any())
        m.d.comb += [
            choices.wanted.eq(every("generating") & every("predicts")),
            choices.warm.eq(every("warm")),
            *(getattr(self, name).eq(every(name)) for name in ("active", "starts", "predicts"))]

        for index, each in enumerate(states):
            of_round = self.rounds[index // params.batch]
            with m.If(taken & (asked == index)):
                m.d.sync += [
                    each.waiting.eq(1), each.will_start.eq(prompt.start),
                    each.will_predict.eq(prompt.predict), each.generating.eq(generates),
                    each.warm.eq(prompt.beta.any())]
            with m.If(choices.chosen & (sampled == index)):
                m.d.sync += [
                    each.generating.eq(~last), each.waiting.eq(~last),
                    each.will_start.eq(0), each.will_predict.eq(1)]
            with m.If(of_round.begins):
                m.d.sync += [
                    each.active.eq(each.waiting), each.held.eq(each.waiting),
                    each.starts.eq(each.will_start),
                    each.predicts.eq(each.waiting & each.will_predict)]
                # A token that arrives in this same cycle is for the next round.
                with m.If(each.waiting):
                    m.d.sync += each.waiting.eq(0)
            with m.If(of_round.embedded):
                m.d.sync += each.held.eq(0)
            with m.If(of_round.ended):
                m.d.sync += each.predicts.eq(0)

        for phase, each in enumerate(self.rounds):
            own = slice(phase * params.batch, (phase + 1) * params.batch)
            waiting = every("waiting")[own]
            goes_on = choices.chosen & ~last & (choices.phase == phase)
            m.d.comb += each.will_predict.eq((waiting & every("will_predict")[own]).any())
            m.d.sync += [each.waits.eq((waiting.any() & ~each.begins) | goes_on),
                         each.predicts.eq(every("predicts")[own].any())]
        return m

    def _take_prompts(self, m, occupied):
        """Hold a prompt until its sequence is free and the memories can be written; return (the
        prompt, its sequence, whether it is taken). A free sequence stays free until then."""
        choices = self.choices
        prompt, has_prompt = Signal(self.prompts.payload.shape()), Signal()
        asked = prompt.sequence if self.params.sequences > 1 else Const(0, 1)
        taken, is_free, busy = Signal(), Signal(), Signal(len(occupied))
        m.d.sync += [
            busy.eq(occupied), is_free.eq(has_prompt & ~taken & ~busy.bit_select(asked, 1))]
        with m.If(self.prompts.valid & self.prompts.ready):
            m.d.sync += [prompt.eq(self.prompts.payload), has_prompt.eq(1)]
        with m.If(taken):
            m.d.sync += has_prompt.eq(0)
        m.d.comb += [
            self.prompts.ready.eq(~has_prompt & self.is_open),
            taken.eq(is_free & ~choices.sampled & ~choices.choosing),
            choices.reseed.eq(taken & prompt.start),
            choices.seed.eq(prompt.seed), choices.seed_owner.eq(asked),
        ]
        return prompt, asked, taken

    def _give_tokens(self, m, prompt, asked, taken, sampled):
        """Output chosen tokens; store them, prompt tokens and their settings; return whether the
        chosen token is the last."""
        params, choices = self.params, self.choices
        count, chosen, token = params.sequences, choices.chosen, choices.token
        steps = Pipeline(m, Const(1))

        def store(name, shape):
            m.submodules[name] = made = memory.Memory(
                shape=shape, depth=max(count, 2), init=[], attrs=NEVER_COLLIDES)
            return made.write_port(), made.read_port(domain="comb")

        write, settings = store("settings", StructLayout({
            "beta": BETA_BITS, "stop": 1, "stop_token": params.token_bits}))
        m.d.comb += [
            write.addr.eq(asked), write.en.eq(taken & prompt.predict),
            write.data.beta.eq(prompt.beta), write.data.stop.eq(prompt.stop),
            write.data.stop_token.eq(prompt.stop_token),
            settings.addr.eq(choices.owner), choices.beta.eq(settings.data.beta),
        ]
        write, left = store("left", LIMIT_BITS)
        # Read as the token is found, a cycle before it is valid.
        left_before, is_last = Signal(LIMIT_BITS, reset_less=True), Signal()
        m.d.sync += [left_before.eq(left.data), is_last.eq(left.data == 1)]
        stop = steps.register(settings.data.stop, "stop")
        stop_token = steps.register(settings.data.stop_token, "stop_token")
        m.d.comb += [
            left.addr.eq(choices.owner), write.en.eq(chosen | taken),
            write.addr.eq(Mux(chosen, sampled, asked)),
            write.data.eq(Mux(chosen, left_before - 1, prompt.limit)),
        ]
        write, following = store("following", params.token_bits)
        m.d.comb += [
            following.addr.eq(self.owner), self.token.eq(following.data),
            write.en.eq(chosen | taken), write.addr.eq(Mux(chosen, sampled, asked)),
            write.data.eq(Mux(chosen, token, prompt.token)),
        ]

        # Every sequence may have one pending, and one is in flight to the queue.
        depth = max(2 * count, 8 if count > 1 else 4)
        m.submodules.token_queue = queue = fifo.SyncFIFO(
            width=token_layout(params).size, depth=depth)
        word = Signal(token_layout(params))
        m.d.comb += [
            word.sequence.eq(sampled), word.token.eq(token),
            word.last.eq(is_last | (stop & (stop_token == token))),
            queue.w_data.eq(steps.register(word, "given")),
            queue.w_en.eq(steps.flags(chosen, 1, "gives")[-1]),
            self.tokens.valid.eq(queue.r_rdy & self.is_open),
            self.tokens.payload.eq(queue.r_data),
            queue.r_en.eq(self.tokens.ready & self.is_open),
        ]
        # One more may arrive in the cycle before this is known.
        m.d.sync += self.room.eq(queue.level + 1 < depth - count)
        return word.last
