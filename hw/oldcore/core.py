"""The whole language model: prompt tokens in, generated tokens out."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.core.queues import BypassFifo
from sterna.hw.oldcore.control import (
    ControlSignature,
    Dispatcher,
    TokenControl,
    prompt_layout,
    token_layout,
)
from sterna.hw.oldcore.issuer import ActivationBuffer, BeatIssuer, WeightFeed, WeightPort
from sterna.hw.oldcore.plan.core_units import CoreUnits
from sterna.hw.oldcore.plan.image import CoreImage, weight_request_layout
from sterna.hw.oldcore.post_processor import PostProcessor, ResultRouter, ScaleUnit
from sterna.hw.oldcore.trace import show_taps, trace_layout
from sterna.hw.units.embedding import Embedding
from sterna.hw.units.glu import GluUnit
from sterna.hw.units.mac.mac_array import TernaryMacArray
from sterna.hw.units.mlgru import MlgruUnit
from sterna.hw.units.norm_quant import NormQuant
from sterna.hw.units.residual import ResidualAdd
from sterna.hw.units.sampler import ArgmaxSampler

__all__ = ["MatMulFreeCore"]

_CYCLE_BITS = 32


class MatMulFreeCore(wiring.Component):
    """A MatMul-free language model that runs by itself, a token at a time.

    Every vector goes round one ring: quantised by :class:`NormQuant`, multiplied by the
    array, scaled by the post-processor, made into the next vector by the MLGRU unit, the
    GLU unit or the residual stream, and quantised again. What a stage needs to know is in
    a *task*, made when the norm begins with its vector. Sequences go round independently
    of each other; the array takes their stages in the order in which the norm does.

    Members
    -------
    go : ``In(1)``
        New tokens of prompts are taken while it is high.
    busy : ``Out(1)``
        A token is in progress.
    cycles : ``Out(32)``
        Cycles in which ``busy`` was high, since the reset; wraps around.
    control : ``In(ControlSignature(params))``, for each sequence
    prompts : ``In(stream.Signature(prompt_layout(params)))``, for each sequence
    tokens : ``Out(stream.Signature(token_layout(params)))``, for each sequence
    logits : ``Out(stream.Signature(...))``, for each sequence, with ``params.logits``
        ``logits`` of ``rows`` tokens at a time, ``last`` with the last of them.
    weight_requests, weights : with ``params.external_weights``
        Requests for runs of weight words, and the words.
    taps : ``Out(trace_layout(image))``, with ``params.trace``
        Every intermediate vector as it appears; see :mod:`sterna.hw.oldcore.trace`.
    """

    def __init__(self, image: CoreImage) -> None:
        self.image = image
        self.params = params = image.params
        units = CoreUnits(params)
        self.array = TernaryMacArray(units.mac)
        self.norm = NormQuant(units.norm)
        self.glu = GluUnit(units.glu, image.sigmoid)
        self.mlgru = MlgruUnit(units.mlgru, image.sigmoid)
        self.embedding = Embedding(
            units.embedding.for_table(image.embedding), image.embedding)
        self.residuals = [ResidualAdd(units.residual) for _ in range(params.sequences)]
        self.samplers = [ArgmaxSampler(units.sampler) for _ in range(params.sequences)]
        self.post = PostProcessor(image)
        self.router = ResultRouter(image)

        def each(signature):
            return signature.array(params.sequences)

        members = {
            "go": In(1),
            "busy": Out(1),
            "cycles": Out(_CYCLE_BITS),
            "control": each(In(ControlSignature(params))),
            "prompts": each(In(stream.Signature(prompt_layout(params)))),
            "tokens": each(Out(stream.Signature(token_layout(params)))),
        }
        if params.logits:
            members["logits"] = each(Out(stream.Signature(self.router.logit_layout)))
        if params.external_weights:
            members["weight_requests"] = Out(stream.Signature(weight_request_layout(image)))
            members["weights"] = In(stream.Signature(params.weight_bits))
        if params.trace:
            members["taps"] = Out(trace_layout(image))
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        params = self.params
        m.submodules.norm = norm = self.norm
        m.submodules.activations = activations = ActivationBuffer(params)
        m.submodules.issuer = issuer = BeatIssuer(self.image)
        m.submodules.array = array = self.array
        m.submodules.post = post = self.post
        m.submodules.scales = scales = ScaleUnit(params)
        m.submodules.sums = sums = BypassFifo(
            array.params.sum_layout, depth=issuer.most_waiting, may_fill=False)

        wiring.connect(m, norm.acts, activations.chunks)
        wiring.connect(m, norm.scales, scales.norms)
        wiring.connect(m, issuer.beats, array.beats)
        # The issuer sees to it that there is room.
        m.d.comb += [
            sums.incoming.valid.eq(array.sums.valid),
            sums.incoming.payload.eq(array.sums.payload),
            array.sums.ready.eq(1),
        ]
        wiring.connect(m, sums.outgoing, post.sums)
        m.d.comb += [
            activations.sequence.eq(issuer.sequence),
            activations.tile.eq(issuer.tile),
            issuer.acts.eq(activations.acts),
            issuer.taken.eq(sums.outgoing.valid & sums.outgoing.ready),
        ]
        if params.block_activations:
            m.d.comb += activations.advance.eq(issuer.advance)
        for sequence in range(params.sequences):
            m.d.comb += [
                issuer.ready_tiles[sequence].eq(activations.ready_tiles[sequence]),
                issuer.arriving[sequence].eq(activations.arriving[sequence]),
                post.scales[sequence].eq(scales.scales[sequence]),
                post.scales_known[sequence].eq(scales.known[sequence]),
            ]
        controls = self._control(m)
        dispatcher = self._dispatch(m, controls, activations, issuer, scales)
        self._vectors(m, controls, dispatcher)
        if params.trace:
            show_taps(m, self, array, issuer, scales)
        return m

    def _control(self, m):
        """Tokens in and out; return the control of each sequence."""
        params = self.params
        m.submodules.embedding = embedding = self.embedding
        controls = []
        for sequence in range(params.sequences):
            m.submodules[f"control{sequence}"] = control = TokenControl(params)
            m.submodules[f"sampler{sequence}"] = sampler = self.samplers[sequence]
            controls.append(control)
            wiring.connect(m, wiring.flipped(self.prompts[sequence]), control.prompts)
            wiring.connect(m, control.tokens, wiring.flipped(self.tokens[sequence]))
            wiring.connect(m, wiring.flipped(self.control[sequence]), control.control)
            wiring.connect(m, sampler.tokens, control.sampled)
            m.d.comb += [
                control.go.eq(self.go),
            ]
            if params.sampling:
                m.d.comb += [
                    sampler.beta.eq(self.control[sequence].beta),
                    sampler.seed.eq(self.control[sequence].seed),
                    sampler.reseed.eq(control.reseed),
                ]
        # Sequence 0 goes first; what it leaves waits, for it asks once a token only.
        requests = embedding.requests
        for sequence, control in reversed(list(enumerate(controls))):
            with m.If(control.requests.valid):
                m.d.comb += [
                    requests.valid.eq(1), requests.payload.token.eq(control.requests.payload)]
                if params.sequence_bits:
                    m.d.comb += requests.payload.sequence.eq(sequence)
        for sequence, control in enumerate(controls):
            earlier = [other.requests.valid for other in controls[:sequence]]
            m.d.comb += control.requests.ready.eq(
                requests.ready & ~Cat(earlier).any())

        m.d.comb += self.busy.eq(Cat(control.busy for control in controls).any())
        with m.If(self.busy):
            m.d.sync += self.cycles.eq(self.cycles + 1)
        return controls

    def _dispatch(self, m, controls, activations, issuer, scales):
        """Make tasks when the norm begins; return the dispatcher."""
        params, norm = self.params, self.norm
        m.submodules.dispatcher = dispatcher = Dispatcher(self.image)
        sequence = norm.service_sequence if params.sequence_bits else Const(0)
        for unit in (activations, scales):
            m.d.comb += [unit.clear.eq(norm.service), unit.clear_sequence.eq(sequence)]
        m.d.comb += [dispatcher.begins.eq(norm.service), dispatcher.sequence.eq(sequence)]
        for index, control in enumerate(controls):
            m.d.comb += [
                dispatcher.restarts[index].eq(control.requests.valid & control.requests.ready),
                dispatcher.starts[index].eq(control.start),
                scales.mantissas[index].eq(dispatcher.mantissas[index]),
            ]
        wiring.connect(m, dispatcher.issue_tasks, issuer.tasks)
        wiring.connect(m, dispatcher.post_tasks, self.post.tasks)
        if params.external_weights:
            wiring.connect(
                m, dispatcher.weight_requests, wiring.flipped(self.weight_requests))
            m.submodules.weights = weights = WeightPort(self.image)
            wiring.connect(m, wiring.flipped(self.weights), weights.words)
        else:
            m.submodules.weights = weights = WeightFeed(self.image)
            wiring.connect(m, dispatcher.weight_requests, weights.requests)
        m.d.comb += [
            weights.advance.eq(issuer.advance),
            weights.take.eq(issuer.take),
            issuer.available.eq(weights.available),
            issuer.word.eq(weights.word),
        ]
        return dispatcher

    def _vectors(self, m, controls, dispatcher):
        """From results to the next vector of each sequence, and to the norm."""
        params = self.params
        m.submodules.router = router = self.router
        m.submodules.mlgru = mlgru = self.mlgru
        m.submodules.glu = glu = self.glu
        wiring.connect(m, self.post.results, router.results)
        wiring.connect(m, router.preacts, mlgru.preacts)
        wiring.connect(m, router.gates, glu.preacts)
        embedded = self.embedding.words

        for sequence, control in enumerate(controls):
            m.submodules[f"residual{sequence}"] = residual = self.residuals[sequence]
            words = self.norm.words[sequence]

            def ours(payload, sequence=sequence):
                return payload.sequence == sequence if params.sequence_bits else Const(1)

            # A sequence is in one place at a time, so its sources never meet.
            load = embedded.valid & ours(embedded.payload)
            update = router.updates[sequence]
            m.d.comb += [
                residual.updates.valid.eq(load | update.valid),
                residual.updates.payload.load.eq(load),
                self.post.room[sequence].eq(router.room[sequence]),
            ]
            for row in range(params.rows):
                m.d.comb += residual.updates.payload.y[row].eq(update.payload.y[row])
                with m.If(load):
                    m.d.comb += residual.updates.payload.y[row].eq(embedded.payload.x[row])

            # After the last layer a token without prediction is done.
            # Known long before, and so a cycle ahead.
            final = Signal(name=f"final{sequence}")
            m.d.sync += final.eq(
                (dispatcher.stages[sequence] == params.stages - 1) & ~control.predict)
            done = residual.words.valid & residual.words.payload.last & final
            m.d.comb += control.vector_done.eq(done)
            for source, field, is_ours, wanted in (
                (residual.words, "x", Const(1), ~final),
                (mlgru.states, "o", ours(mlgru.states.payload), Const(1)),
                (glu.products, "p", ours(glu.products.payload), Const(1)),
            ):
                with m.If(source.valid & is_ours):
                    m.d.comb += [
                        words.valid.eq(wanted), words.payload.last.eq(source.payload.last)]
                    for row in range(params.rows):
                        m.d.comb += words.payload.y[row].eq(source.payload[field][row])
            self._logits(m, sequence, control)

    def _logits(self, m, sequence, control):
        """Logits go to the port, and to the sampler if a token is to be chosen."""
        logits = self.router.logits[sequence]
        sampler = self.samplers[sequence]
        shown = self.logits[sequence].ready if self.params.logits else Const(1)
        sampled = sampler.logits.ready | ~control.generate
        if self.params.logits:
            m.d.comb += [
                self.logits[sequence].valid.eq(logits.valid & sampled),
                self.logits[sequence].payload.eq(logits.payload)]
        m.d.comb += [
            sampler.logits.valid.eq(logits.valid & control.generate & shown),
            sampler.logits.payload.logits.eq(logits.payload.logits),
            logits.ready.eq(shown & sampled),
            control.logits_done.eq(logits.valid & logits.ready & logits.payload.last),
        ]
