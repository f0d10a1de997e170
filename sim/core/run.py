"""Running a core in a simulator: requests in, tokens and logits of every sequence out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sterna.hw.core.core import Core, logit_layout, prompt_layout, token_layout
from sterna.hw.core.core_image import CoreImage
from sterna.hw.core.core_params import CoreParams
from sterna.hw.core.core_product import patience, prompt_words
from sterna.hw.core.image_reader import ImageStatus
from sterna.hw.core.linear_image import pack_image
from sterna.hw.core.request import Request
from sterna.hw.emit.cells import cell_models
from sterna.hw.emit.documents import field_bits
from sterna.hw.emit.verilog import write_verilog
from sterna.hw.testbench.job import Job, Phase, PhaseResult
from sterna.sim.bench.runner import Simulator, run_on
from sterna.sim.core.memory import ImageMemory

__all__ = ["SequenceRun", "run_core", "write_core"]

_MODULE = "core"


@dataclass(slots=True)
class SequenceRun:
    """What a sequence gave."""

    tokens: list[int] = field(default_factory=list)  # generated
    token_cycles: list[int] = field(default_factory=list)  # in which each was taken
    logits: list[np.ndarray] = field(default_factory=list)  # int64 ``[vocab]`` each


class _WithMemory(wiring.Component):
    """A core and the memory behind its port."""

    def __init__(self, core: Core, memory: wiring.Component) -> None:
        self.core, self.memory = core, memory
        params = core.params
        super().__init__({
            "prompts": In(stream.Signature(prompt_layout(params))),
            "tokens": Out(stream.Signature(token_layout(params))),
            "logits": Out(stream.Signature(logit_layout(params))),
            "pauses": In(1), "status": Out(ImageStatus)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        core, memory = self.core, self.memory
        m.submodules.core, m.submodules.memory = core, memory
        for name in ("reads", "data"):
            wiring.connect(m, getattr(core, name), getattr(memory, name))
        for name in ("prompts", "tokens", "logits"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(core, name))
        m.d.comb += self.status.eq(core.status)
        if "pauses" in memory.signature.members:
            m.d.comb += memory.pauses.eq(self.pauses)
        return m


def write_core(
    image: CoreImage, folder: Path, *, memory: wiring.Component | None = None,
) -> list[Path]:
    """Write the Verilog of a core and of the cells it uses; return the files.

    A core with a port has a memory behind it: a component with the streams ``reads`` and
    ``data``; None for one that holds the image and answers soon.
    """
    folder.mkdir(parents=True, exist_ok=True)
    component: wiring.Component = Core(image)
    if image.params.port_bits:
        component = _WithMemory(
            component, memory or ImageMemory(image.params, pack_image(image)))
    verilog = write_verilog(component, _MODULE, folder)
    models = cell_models(verilog.read_text(encoding="utf-8"))
    for name, text in models.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [*(folder / name for name in models), verilog]


def run_core(
    image: CoreImage, sources: Sequence[Path], requests: Sequence[tuple[int, Request]],
    generated: int, work: Path, *, random_pauses: bool = False, cut_after: int | None = None,
    settled: bool = False, top: str = _MODULE,
) -> list[SequenceRun]:
    """Reset a core and run requests on it, in Verilator.

    Parameters
    ----------
    image
        What the core was made of.
    sources
        Its Verilog, as :func:`write_core` returns it.
    requests
        The sequence of each and the request, in the order in which their prompts are sent: one
        that waits keeps those behind it.
    generated
        Tokens that are generated, all together.
    work
        Folder of the simulation.
    random_pauses
        Whether prompts come, tokens and logits are taken, and an :class:`ImageMemory` answers, with
        pauses at random.
    cut_after
        Begin with a prompt of one token for every sequence, and reset the core so many cycles
        after the last of them was taken; None for no such beginning.
    settled
        Begin the requests when the core has rested for a while, not right after a reset.
    top
        Another module that has the core and the same ports.

    Returns
    -------
    What each sequence gave.

    Raises
    ------
    SimulationError
        If the core hangs, or gives something after the end.
    """
    params, vocab = image.params, len(image.embedding)
    beats = params.logit_beats(vocab)
    first = [(sequence, Request((0,), 9)) for sequence in range(params.sequences)]
    phases = [] if cut_after is None else [
        Phase("cut", {"prompts": _words(params, first)}, {}, reset=True, cut_after=cut_after)]
    if settled:
        token = [(0, Request((0,), tokens=1))]
        phases.append(Phase("settle", {"prompts": _words(params, token)},
                            {"tokens": 1, "logits": beats}, reset=True))
    phases.append(Phase(
        "run", {"prompts": _words(params, requests)},
        {"tokens": generated, "logits": beats * _predictions(requests, generated)},
        reset=not settled, random_pauses=random_pauses,
        levels={"pauses": int(random_pauses)} if params.port_bits else {}))
    job = Job(["prompts"], ["tokens", "logits"], 1, phases,
              ["pauses"] if params.port_bits else [], patience=patience(params))
    return _runs(params, vocab, run_on(
        Simulator.VERILATOR, list(sources), top, job, work)[-1])


def _words(params: CoreParams, requests: Sequence[tuple[int, Request]]) -> list[int]:
    """Words of ``prompts``."""
    return prompt_words({each.name: each for each in field_bits(prompt_layout(params))}, requests)


def _predictions(requests: Sequence[tuple[int, Request]], tokens: int) -> int:
    """Logits come before each token, and after a prompt's token that asks for them alone."""
    return tokens + sum(
        sum(request.predictions) for _, request in requests if not request.tokens)


def _runs(params: CoreParams, vocab: int, result: PhaseResult) -> list[SequenceRun]:
    runs = [SequenceRun() for _ in range(params.sequences)]
    layout = token_layout(params)
    for word, cycle in zip(result.outputs["tokens"], result.taken_at["tokens"], strict=True):
        fields = layout.from_bits(word)
        runs[fields.sequence].tokens.append(fields.token)
        runs[fields.sequence].token_cycles.append(cycle)
    layout = logit_layout(params)
    gathered: list[list[int]] = [[] for _ in runs]
    for word in result.outputs["logits"]:
        fields = layout.from_bits(word)
        gathered[fields.sequence] += list(fields.logits)
        if fields.last:
            runs[fields.sequence].logits.append(
                np.array(gathered[fields.sequence][:vocab], dtype=np.int64))
            gathered[fields.sequence] = []
    return runs
