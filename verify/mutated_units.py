"""The units mutated by ``mutate.py``. Core parts without a folder get one here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, zip_longest
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from sterna.hw.catalog import emit_verilog
from sterna.hw.core.compute.datapath import join_norm
from sterna.hw.core.compute.norm import Norm, norm_taps
from sterna.hw.core.compute.request import LIMIT_BITS, Request
from sterna.hw.core.compute.vectors import VectorStore, element_layout
from sterna.hw.core.params.core_params import CoreParams
from sterna.hw.core.params.geometry import MAX_SLOTS
from sterna.hw.core.params.limits import Limits, StageLimits
from sterna.hw.core.product.core_product import core_design
from sterna.hw.emit.folder import EmittedUnit, UnitDesign, emit_component
from sterna.hw.emit.selftest.folder_test import VectorPhase, Vectors
from sterna.hw.layers.layer_params import LayerParams
from sterna.hw.parts.requantize import Requantize, RequantizeParams
from sterna.model.config import ModelConfig
from sterna.model.profile import C12, S16, FixedPoint
from sterna.model.quantized import Projection, QuantizedModel
from sterna.model.quantized.integer import (
    IntegerModel,
    combine_scale,
    norm_quant,
    requantize,
)
from sterna.model.quantized.plan import StageKind
from sterna.model.quantized.synthetic import random_model
from sterna.sim.core.reference import Answer, answer

__all__ = ["UNITS", "Unit"]

Beats = list[dict[str, Any]]
"""Payloads of a stream, by field."""


def _words(component: wiring.Component, streams: Mapping[str, Beats]) -> dict[str, list[int]]:
    layouts = {key: getattr(component, key.partition("[")[0]).payload.shape() for key in streams}
    return {key: [layouts[key].const(beat).as_value().value for beat in beats]
            for key, beats in streams.items()}


def _part(
    component: wiring.Component, module: str,
    tried: Sequence[tuple[Mapping[str, Beats], Mapping[str, Beats]]], out_dir: Path,
) -> EmittedUnit:
    """Emit a component with tests of each stimulus and its result. A short phase goes first, as
    most mutants get no further."""
    steps = [0, *(at for at in (20, 100) if at < len(tried)), len(tried)]
    phases = []
    for begin, end in pairwise(steps):
        inputs, outputs = ({name: [beat for each in tried[begin:end] for beat in each[side][name]]
                            for name in tried[0][side]} for side in (0, 1))
        phases.append(VectorPhase(
            f"from {begin}", _words(component, inputs), _words(component, outputs)))
    return emit_component({}, UnitDesign(
        component, module, (), "A part of a core.", "", vectors=lambda _: Vectors(phases)), out_dir)


# Requantiser -----------------------------------------------------------------------------


class RequantizeStreams(wiring.Component):
    """A requantiser with its ``ready`` signals as ports."""

    def __init__(self, params: RequantizeParams) -> None:
        self.params = params
        super().__init__({"accs": In(stream.Signature(params.acc_layout)),
                          "results": Out(stream.Signature(params.result_layout))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = Requantize(self.params)
        m.d.comb += [
            self.accs.ready.eq(1),
            unit.accs.valid.eq(self.accs.valid), unit.accs.payload.eq(self.accs.payload),
            self.results.valid.eq(unit.results.valid),
            self.results.payload.eq(unit.results.payload)]
        return m


def _requantizer(out_dir: Path) -> EmittedUnit:
    params = RequantizeParams(
        17, 14, 17, 16, shifts=(9, 11, 12), lanes=2, narrower=(13, 8), tag_bits=5)
    beats = [*_random_beats(params), *_corners(params)]
    return _part(RequantizeStreams(params), "requantizer", [
        ({"accs": [beat]}, {"results": [_requantized(params, beat)]}) for beat in beats], out_dir)


def _corners(params: RequantizeParams) -> Iterator[dict[str, Any]]:
    """All combinations of range ends, each on every lane beside another one."""
    acc, bias = (np.array([-1 << bits - 1, -1, 0, 1, (1 << bits - 1) - 1])
                 for bits in (params.sum_bits, params.bias_bits))
    accs, biases = (each.ravel() for each in np.meshgrid(acc, bias))
    for shift in range(len(params.shifts)):
        for scale in (0, 1, 1 << params.scale_bits - 1, (1 << params.scale_bits) - 1):
            for at in range(accs.size):
                lanes = (at + 7 * np.arange(params.lanes)) % accs.size
                yield {"acc": accs[lanes].tolist(), "bias": biases[lanes].tolist(),
                       "scale": scale, "shift": shift, "tag": at % (1 << params.tag_bits)}


def _random_beats(params: RequantizeParams) -> Iterator[dict[str, Any]]:
    """Arbitrary operands; then those with a result at an end of a format, or one beyond."""
    rng = np.random.default_rng(1)

    def numbers(bits: int) -> np.ndarray:
        return rng.integers(-1 << bits - 1, 1 << bits - 1, params.lanes)

    for at in range(600):
        shift, scale = rng.integers(len(params.shifts)), rng.integers(1 << params.scale_bits)
        acc, bias = numbers(params.sum_bits), numbers(params.bias_bits)
        if at % 2:
            bits = rng.choice([params.out_bits, *params.narrower], params.lanes)
            ends = np.where(acc < 0, -1 << bits - 1, (1 << bits - 1) - 1)
            shifted = requantize(acc, scale, params.shifts[shift], 0, None)
            bias = np.clip(ends + rng.integers(-1, 2, params.lanes) - shifted,
                           -1 << params.bias_bits - 1, (1 << params.bias_bits - 1) - 1)
        yield {"acc": acc.tolist(), "bias": bias.tolist(), "scale": int(scale),
               "shift": int(shift), "tag": int(rng.integers(1 << params.tag_bits))}


def _requantized(params: RequantizeParams, beat: dict[str, Any]) -> dict[str, Any]:
    value, *narrow = (
        requantize(np.array(beat["acc"]), beat["scale"], params.shifts[beat["shift"]],
                   np.array(beat["bias"]), FixedPoint(bits, 0))
        for bits in (params.out_bits, *params.narrower))
    fits = sum((each == value).astype(int) << index for index, each in enumerate(narrow))
    return {"value": value.tolist(), "fits": fits.tolist(), "tag": beat["tag"]}


# Norm ------------------------------------------------------------------------------------


class NormStreams(wiring.Component):
    """The norm of a core and the stores of its phases, between streams: vectors in; all their
    results, and advance notices of these, out."""

    def __init__(self, params: LayerParams) -> None:
        self.params, self.norm = params, Norm(params)
        stage, norm = params.stage_layout.members, self.norm
        self.taps = dict(norm_taps(params).members)
        super().__init__({
            "vectors": In(stream.Signature(StructLayout({
                "phase": 1, "chunks": stage["chunks"], "k": stage["k"],
                "elements": element_layout(params)}))),
            **{name: Out(stream.Signature(layout)) for name, layout in {
                "acts": StructLayout({"valid": 1, "acts": norm.acts.shape(),
                                      "came": 1, "coming": norm.coming.shape()}),
                "scales": StructLayout({"valid": 1, "scales": norm.scales.shape(),
                                        "scaled": 1, "phase": 1}),
                **self.taps}.items()}})

    def elaborate(self, platform):
        m, unit = Module(), Module()
        m.submodules.unit = unit
        params, norm, word = self.params, self.norm, self.vectors.payload
        stores = [VectorStore(params) for _ in range(params.phases)]
        taken = self.vectors.valid & self.vectors.ready
        sources = [(word.elements, taken & (word.phase == phase))
                   for phase in range(params.phases)]
        join_norm(unit, norm, stores, sources)

        # A phase takes no vectors during a job, which begins with the last of them.
        busy, waits = Signal(params.phases), Signal(params.phases)
        m.d.comb += [
            self.vectors.ready.eq(~busy.bit_select(word.phase, 1)),
            norm.jobs.valid.eq(waits.any()), norm.jobs.payload.eq(~waits[0])]
        for phase, (store, (_, valid)) in enumerate(zip(stores, sources, strict=True)):
            complete = Signal(range(params.batch + 1))
            with m.If(norm.jobs.ready & (norm.jobs.payload == phase)):
                m.d.sync += waits[phase].eq(0)
            with m.If(complete == params.batch):
                m.d.sync += [complete.eq(0), waits[phase].eq(1)]
            with m.Elif(store.complete):
                m.d.sync += complete.eq(complete + 1)
            with m.If(valid):
                m.d.sync += [norm.stages[phase].chunks.eq(word.chunks),
                             norm.stages[phase].k.eq(word.k)]
            with m.If(valid & word.elements.last):
                m.d.sync += busy[phase].eq(word.elements.sequence == params.batch - 1)
        last = self.scales.payload.scales
        with m.If(norm.scales_valid & (last.sequence == params.batch - 1)
                  & (last.slot == MAX_SLOTS - 1)):
            m.d.sync += busy.bit_select(last.phase, 1).eq(0)

        acts, scales = self.acts.payload, self.scales.payload
        soon, soon_phase = Signal(), Signal()
        m.d.sync += [
            acts.came.eq(norm.coming_valid), acts.coming.eq(norm.coming),
            soon.eq(norm.scaled), scales.scaled.eq(soon),
            soon_phase.eq(norm.scaled & norm.scaled_phase), scales.phase.eq(soon_phase)]
        m.d.comb += [
            acts.valid.eq(norm.acts_valid), acts.acts.eq(norm.acts),
            self.acts.valid.eq(acts.valid | acts.came),
            scales.valid.eq(norm.scales_valid), scales.scales.eq(norm.scales),
            self.scales.valid.eq(scales.valid | scales.scaled)]
        for name in self.taps:
            m.d.comb += [getattr(self, name).payload.eq(norm.taps[name]),
                         getattr(self, name).valid.eq(norm.taps[name].valid)]
        return m


def _norm(out_dir: Path) -> EmittedUnit:
    limits = Limits(
        C12, (StageLimits(StageKind.HEAD, 1, 4, _LENGTH),), (1, 1), normalizes=True)
    params = LayerParams(limits, rows=4, cols=8, sequences=4, quant_lanes=4, trace=True)
    rng, most = np.random.default_rng(1), 1 << C12.mantissa_bits
    vectors = [*_deciding_vectors(C12.x, rng), *_extreme_vectors(C12.x),
               *_maxima(C12.x, rng), *_roots(rng)]
    rng.shuffle(vectors)
    tried = []
    for number in range(len(vectors) // params.batch):
        batch = vectors[number * params.batch:(number + 1) * params.batch]
        chunks = -(-max(map(len, batch)) // params.quant_lanes)
        job = {"phase": number % params.phases, "chunks": chunks,
               "k": rng.integers(most, size=MAX_SLOTS).tolist()}
        batch = [np.pad(each, (0, chunks * params.quant_lanes - len(each))) for each in batch]
        normed = [_normed(params, vector, job, sequence) for sequence, vector in enumerate(batch)]
        tried.append(({"vectors": _vector_beats(params, batch, job, rng)}, {
            name: [beat for each in normed for beat in each[name]] for name in normed[0]}))
    return _part(NormStreams(params), "norm_streams", tried, out_dir)


_LENGTH = 16


def _deciding_vectors(x: FixedPoint, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The largest magnitude differs in one bit: a power of two at one place, one less at the
    others."""
    for place in range(_LENGTH):
        for bit in range(x.bits):
            vector = np.full(_LENGTH, (1 << bit) - 1)
            vector[place] += 1
            yield np.clip(vector * rng.choice([-1, 1], _LENGTH), x.min, x.max)


def _extreme_vectors(x: FixedPoint) -> Iterator[np.ndarray]:
    """Values around both ends of the range, zero and 127: all equal, alone, with alternating sign.
    """
    place = np.arange(_LENGTH)
    for value in (0, 1, 2, 3, 126, 127, 128, 129, x.max, x.min, x.min + 1):
        yield np.full(_LENGTH, value)
        yield np.where(place == _LENGTH - 1, -max(value, -x.max), 0)
        yield np.where(place % 2, value, -max(value, -x.max))


def _maxima(x: FixedPoint, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Divisors: all up to 127, which a divider tabulates, and a quarter of those above."""
    for most in [*range(128), *rng.permutation(np.arange(128, 1 - x.min))[:480].tolist()]:
        vector = rng.integers(-most, most + 1, 1 + most % 4)
        vector[rng.integers(len(vector))] = most if most <= x.max and rng.integers(2) else -most
        yield np.clip(vector, x.min, x.max)


def _roots(rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Sums of squares over their whole range: with a maximum of 127, activations are elements."""
    for least in range(0, (_LENGTH - 1) * 127 ** 2, 1024):
        left, vector = least + int(rng.integers(1024)), [127]
        for others in range(_LENGTH - 1, 0, -1):
            vector.append(min(isqrt(left // others), 127))
            left -= vector[-1] ** 2
        yield rng.permutation(vector) * rng.choice([-1, 1], _LENGTH)


def _vector_beats(
    params: LayerParams, batch: Sequence[np.ndarray], job: Mapping[str, Any],
    rng: np.random.Generator,
) -> Beats:
    """The words of the vectors of a phase: vectors in sequence or interleaved, forwards or
    backwards, wide, or narrow with noise on the other lanes."""
    wide, in_turns, backwards = rng.integers(2, size=3)
    lanes = params.post_lanes if wide else params.cell_lanes
    low, high = params.profile.x.min, params.profile.x.max
    places = list(range(0, len(batch[0]), lanes))[::-1 if backwards else 1]
    beats = []
    for sequence, vector in enumerate(batch):
        for at in places:
            noise = rng.integers(low, high + 1, params.post_lanes - lanes)
            beats.append({**job, "elements": {
                "sequence": sequence, "place": at // params.cell_lanes, "wide": int(wide),
                "first": int(at == places[0]), "last": int(at == places[-1]),
                "y": [*vector[at:at + lanes].tolist(), *noise.tolist()]}})
    if in_turns:
        beats = [beat for turn in range(len(places)) for beat in beats[turn::len(places)]]
    return beats


def _normed(
    params: LayerParams, vector: np.ndarray, job: Mapping[str, Any], sequence: int,
) -> dict[str, Beats]:
    """The expected output of the streams for a vector."""
    profile, lanes, phase = params.profile, params.quant_lanes, job["phase"]
    normed = norm_quant(vector, profile)
    m, r, s, n, v = (int(normed[name][0]) for name in "mrsnv")
    owner = {"valid": 1, "sequence": phase * params.batch + sequence}
    acts, per_tile, count = [], params.cols // lanes, len(vector) // lanes
    for at in range(count):
        tile, chunk = divmod(at, per_tile)
        ends = {"phase": phase, "last": int(at == count - 1),
                "tile_ends": int(at == count - 1 or chunk == per_tile - 1)}
        acts.append({"valid": 1, "came": 1, "coming": ends, "acts": {
            **ends, "sequence": sequence, "tile": tile, "chunk": chunk,
            "q": normed["q"][at * lanes:(at + 1) * lanes].tolist()}})
    scales = [
        {"valid": 1, "scaled": int(slot == 0), "phase": phase * (slot == 0), "scales": {
            "phase": phase, "sequence": sequence, "slot": slot,
            "scale": int(combine_scale(v, k, profile))}}
        for slot, k in enumerate(job["k"])]
    return {"acts": acts, "scales": scales, "maximum": [{**owner, "m": m, "r": r}],
            "root": [{**owner, "s": s, "n": n}], "scale": [{**owner, "v": v}]}


# Core ------------------------------------------------------------------------------------


def _saturating() -> QuantizedModel:
    """A model with frequent near-ties of logits: those of four consecutive tokens differ in a
    weight. Its second layer and head often saturate."""
    config = ModelConfig(d=8, layers=2, dff=20, vocab=32)
    model = random_model(config, C12, seed=3)
    wild, wilder = (random_model(config, C12, seed=3, gain=gain).projections for gain in (8, 60))
    model = replace(model, projections={
        name: (wilder if name == "head" else wild if name.startswith("layer1.") else
               model.projections)[name] for name in model.projections})
    head, token = model.projections["head"], np.arange(model.config.vocab)
    weight = head.weight[token // 4]
    weight[token, token % model.config.d] = 0
    return replace(model, projections={
        **model.projections, "head": replace(head, weight=weight)})


def _models() -> list[QuantizedModel]:
    """Models of different sizes for one core: a size small in one is at a limit in another."""
    rng = np.random.default_rng(1)
    models = [_saturating(), *(
        random_model(ModelConfig(*shape), C12, seed=seed, gain=gain) for seed, (shape, gain) in
        enumerate((((12, 1, 5, 20), 1.0), ((12, 3, 20, 32), 0.5), ((3, 3, 20, 4), 4.0))))]
    most = 1 << C12.mantissa_bits      # shifts stay from 6 to 17, those of these models

    def scaled(name: str, each: Projection, number: int) -> Projection:
        """With a separate scale. Every shift is used: the head's are the smallest, at which logits
        saturate, and one at which they nearly tie."""
        shift = int(np.clip(each.shift + rng.integers(-1, 2), 6, 17))
        chosen = {"head": (6, 7, 8, 15), "layer0.glu.down": (12, 12, 13, 9)}
        return replace(each, k=int(rng.integers(most // 2, most)),
                       shift=chosen[name][number] if name in chosen else shift)

    return [replace(model, projections={
        name: scaled(name, each, number) for name, each in model.projections.items()})
        for number, model in enumerate(models)]


def _core(number: int, out_dir: Path) -> EmittedUnit:
    """A core, and one of the models for it."""
    models = _models()
    model, rng = models[number], np.random.default_rng(1)
    # At least two of everything: clusters, chunks of a tile, parts of a group, ...
    params = CoreParams(
        Limits.of(*models), rows=4, cols=8, clusters=2, sequences=4, post_lanes=2, cell_lanes=1,
        quant_lanes=2, compact=True)
    design = core_design(model, params)
    asked = [_requests(model, rng, is_long=(number, sequence) == (3, 0))
             for sequence in range(params.sequences)]
    phases = []
    for begin, end in ((0, 1), (1, None)):
        outputs: dict[str, Beats] = {}
        prompts: list[list[Beats]] = []
        for sequence, each in enumerate(asked):
            answers = answer(IntegerModel(model), each[begin:end])
            prompts.append([_prompt_beats(sequence, found, rng) for found in answers])
            outputs[f"tokens[{sequence}]"] = [
                {"sequence": sequence, "token": token, "last": int(at == len(run.tokens) - 1)}
                for found in answers for run in found.generations
                for at, token in enumerate(run.tokens)]
            outputs[f"logits[{sequence}]"] = [
                {"sequence": sequence, "last": int(at + params.post_lanes == len(logits)),
                 "logits": logits[at:at + params.post_lanes].tolist()}
                for found in answers for logits in found.logits
                for at in range(0, len(logits), params.post_lanes)]
        # One request of every sequence, then the next ones.
        in_turns = [beat for turn in zip_longest(*prompts, fillvalue=()) for beats in turn
                    for beat in beats]
        phases.append(VectorPhase(
            f"from {begin}", _words(design.component, {"prompts": in_turns}),
            _words(design.component, outputs)))
    return emit_component(model, replace(design, vectors=lambda _: Vectors(phases, 8000)), out_dir)


def _requests(model: QuantizedModel, rng: np.random.Generator, *, is_long: bool) -> list[Request]:
    """Requests, the first a short one of one token, so that those of both phases follow each other
    as soon as possible. In a long list one has many tokens, and others every bit of a limit and a
    stop token."""
    def prompt(length: int) -> tuple[int, ...]:
        return tuple(rng.integers(model.config.vocab, size=length).tolist())

    def stopped(limit: int) -> Request:
        """One of some prompts, chosen so that the stop token does not occur too early."""
        asked = [Request(prompt(3), tokens=9) for _ in range(20)]
        found = [answer(IntegerModel(model), [each])[0].generated for each in asked]
        best = max(range(len(asked)), key=lambda at: found[at].index(found[at][3]))
        return replace(asked[best], tokens=limit, stop_token=found[best][3])

    return [
        Request(prompt(1), tokens=1), Request(prompt(4), tokens=3),
        Request(prompt(1), tokens=40 if is_long else 9, start=False),
        Request(prompt(5), predict=(True, False, True, False, True)),
        # After a token the remaining limit still has the bit.
        *(stopped(limit) for limit in ([(1 << bit) + 2 for bit in range(3, LIMIT_BITS)]
                                       if is_long else [9]))]


def _prompt_beats(sequence: int, found: Answer, rng: np.random.Generator) -> Beats:
    """The tokens of a prompt. Without a stop token, the field holds the first generated token; a
    compact core ignores beta and seed."""
    request = found.request
    stop = [*found.generated, 0][0] if request.stop_token is None else request.stop_token
    return [{
        "sequence": sequence, "token": token, "start": int(request.start and not at),
        "predict": int(request.predicts_after(at)), "limit": request.tokens,
        "stop": int(request.stop_token is not None), "stop_token": stop,
        "beta": int(rng.integers(1 << 8)), "seed": int(rng.integers(1 << 16)),
    } for at, token in enumerate(request.prompt)]


_MODEL = random_model(ModelConfig(d=8, layers=1, dff=12, vocab=16), S16, seed=3)
# With enough states for a beat in every cycle.
_WIDER = random_model(ModelConfig(d=16, layers=1, dff=12, vocab=16), S16, seed=3)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit to change."""

    # Each writes a folder. If there are several, they differ in memory contents.
    emits: Sequence[Callable[[Path], EmittedUnit]]
    cells: str = "c:*"  # which cells are changed, as Yosys selects them
    waits: bool = True  # whether its results can be stalled


UNITS: Mapping[str, Unit] = {
    "mac": Unit([partial(emit_verilog, _MODEL, "mac", rows=2, cols=5)]),
    "mlgru": Unit([partial(emit_verilog, _WIDER, "mlgru", lanes=2)]),
    "glu": Unit([partial(emit_verilog, _MODEL, "glu", lanes=2)]),
    "requantizer": Unit([_requantizer], "c:*unit.*", waits=False),
    "norm": Unit([_norm], "c:*unit.*", waits=False),
    # Most of its cells; the norm is left out.
    "core": Unit([partial(_core, number) for number in range(4)], "c:* c:*norm.* %d"),
}
"""Units by name."""
