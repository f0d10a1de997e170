"""Running an engine in a simulator: requests in, tokens and logits of every sequence out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sterna.hw.core.plan.request import Request
from sterna.hw.emit.cells import cell_models
from sterna.hw.emit.verilog import write_verilog
from sterna.hw.engine.engine import Engine, logit_layout, prompt_layout, token_layout
from sterna.hw.engine.engine_image import EngineImage
from sterna.hw.engine.engine_params import EngineParams
from sterna.hw.testbench.job import Job, Phase, PhaseResult
from sterna.sim.bench.runner import Simulator, run_on

__all__ = ["MODULE", "SequenceRun", "run_engine", "write_engine"]

MODULE = "engine"


@dataclass(slots=True)
class SequenceRun:
    """What a sequence gave."""

    tokens: list[int] = field(default_factory=list)  # generated
    token_cycles: list[int] = field(default_factory=list)  # in which each was taken
    logits: list[np.ndarray] = field(default_factory=list)  # int64 ``[vocab]`` each


def write_engine(image: EngineImage, folder: Path) -> list[Path]:
    """Write the Verilog of an engine and of the cells it uses; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    verilog = write_verilog(Engine(image), MODULE, folder)
    models = cell_models(verilog.read_text(encoding="utf-8"))
    for name, text in models.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [*(folder / name for name in models), verilog]


def prompt_words(params: EngineParams, sequence: int, request: Request) -> list[int]:
    """Words of ``prompts`` for a request."""
    layout = prompt_layout(params)
    return [layout.const({
        "sequence": sequence, "token": token, "start": request.start and not position,
        "predict": request.predicts_after(position), "limit": request.tokens,
        "stop": request.stop_token is not None, "stop_token": request.stop_token or 0,
        "beta": request.beta, "seed": request.seed}).as_value().value
        for position, token in enumerate(request.prompt)]


def run_engine(
    image: EngineImage, sources: Sequence[Path], phases: Sequence[Sequence[tuple[int, Request]]],
    generated: Sequence[int], work: Path, *, simulator: Simulator = Simulator.VERILATOR,
    random_pauses: bool = False,
) -> list[list[SequenceRun]]:
    """Run requests on an engine, which is reset before each phase.

    Parameters
    ----------
    image
        What the engine was made of.
    sources
        Its Verilog, as :func:`write_engine` returns it.
    phases
        For each phase the requests and the sequence of each, in the order in which their prompts
        are sent: one that waits keeps those behind it.
    generated
        Tokens that each phase generates.
    work
        Folder of the simulation.
    random_pauses
        Whether prompts come, and tokens and logits are taken, with pauses at random.

    Returns
    -------
    What each sequence gave, in each phase.

    Raises
    ------
    SimulationError
        If the engine hangs, or gives something after the end.
    """
    params, vocab = image.params, image.config.vocab
    beats = params.groups(vocab, chunks=False) * params.row_beats
    job = Job(
        ["prompts"], ["tokens", "logits"], 1,
        [Phase(
            f"phase {number}",
            {"prompts": [word for sequence, request in requests
                         for word in prompt_words(params, sequence, request)]},
            {"tokens": tokens, "logits": beats * _predictions(requests, tokens)},
            reset=True, random_pauses=random_pauses)
         for number, (requests, tokens) in enumerate(zip(phases, generated, strict=True))],
        patience=20_000 + 40 * params.sequences * params.most_weights)
    results = run_on(simulator, list(sources), MODULE, job, work)
    return [_runs(params, vocab, result) for result in results]


def _predictions(requests: Sequence[tuple[int, Request]], tokens: int) -> int:
    """Logits come before each token, and after a prompt's token that asks for them alone."""
    return tokens + sum(
        sum(request.predictions) for _, request in requests if not request.tokens)


def _runs(params: EngineParams, vocab: int, result: PhaseResult) -> list[SequenceRun]:
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
